"""Errors on their way from a task to the driver."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import pytest

from semel.core.errors import (
    BadRecord,
    ConfigError,
    Failure,
    SemelError,
    ServiceError,
    TransientError,
    Unavailable,
)


class TableLocked(Unavailable):
    """As a third party's sink may raise it: with arguments of its own."""

    def __init__(self, table: str, holder: str) -> None:
        super().__init__(f"table {table} is locked by {holder}")


class QuotaUsedUp(ServiceError):
    exit_code = 42


class Told(TransientError):
    """What it says is kept where only its constructor puts it."""

    def __init__(self, said: str) -> None:
        super().__init__()
        self.said = said

    def __str__(self) -> str:
        return self.said


def arrived(error: SemelError) -> SemelError:
    failure: Failure = pickle.loads(pickle.dumps(Failure.of(error)))
    return failure.error()


@pytest.mark.parametrize(
    "error", [TableLocked("t", "x"), QuotaUsedUp("no room"), BadRecord("a"), SemelError("b")]
)
def test_an_error_arrives_as_its_own_class_with_its_message_and_exit_code(
    error: SemelError,
) -> None:
    found = arrived(error)
    assert type(found) is type(error)
    assert (str(found), found.exit_code) == (str(error), error.exit_code)


def test_an_error_whose_message_only_its_constructor_can_make_arrives_as_its_base() -> None:
    found = arrived(Told("try later"))
    assert (type(found), str(found)) == (TransientError, "try later")


def test_a_class_that_the_driver_cannot_import_arrives_as_its_base_with_its_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "on_executors_only.py").write_text(
        "from semel.core.errors import Unavailable\n"
        "class Throttled(Unavailable):\n    exit_code = 17\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    from on_executors_only import Throttled  # type: ignore[import-not-found]

    told = pickle.dumps(Failure.of(Throttled("slow down")))
    monkeypatch.undo()
    del sys.modules["on_executors_only"]
    found = pickle.loads(told).error()
    assert (type(found), str(found), found.exit_code) == (Unavailable, "slow down", 17)


def test_a_class_defined_in_a_function_arrives_as_its_base() -> None:
    class Local(BadRecord):
        pass

    assert type(arrived(Local("x"))) is BadRecord


def test_a_configuration_error_keeps_a_problem_to_show() -> None:
    found = arrived(ConfigError("topics is missing"))
    assert isinstance(found, ConfigError)
    assert [p.message for p in found.problems] == ["topics is missing"]
