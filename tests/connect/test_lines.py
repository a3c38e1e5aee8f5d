"""The last log lines about each connector."""

from __future__ import annotations

import itertools
import logging
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from semel.worker import loggers
from semel.worker.loggers import RecentLines
from tests.patience import PATIENCE

log = logging.getLogger("semel.test_lines")


@pytest.fixture
def kept() -> Iterator[RecentLines]:
    handler = RecentLines()
    log.addHandler(handler)
    yield handler
    log.removeHandler(handler)


def messages(found: list[dict[str, Any]]) -> list[str]:
    return [line["message"] for line in found]


def test_lines_are_kept_by_connector_and_task_without_secrets(kept: RecentLines) -> None:
    log.warning("connector orders: password=hunter2 is wrong")
    log.warning("task 3: late", extra={"connector": "orders", "task": 3})
    log.warning("connector customers: created")
    log.warning("nothing about anybody")
    assert messages(kept.of("orders", None, 10)) == [
        "connector orders: password=*** is wrong",
        "task 3: late",
    ]
    (line,) = kept.of("orders", 3, 10)
    assert (line["level"], line["logger"], line["task"]) == ("WARNING", "semel.test_lines", 3)
    assert messages(kept.of("orders", None, 1)) == ["task 3: late"]
    assert kept.of("unknown", None, 10) == []


def test_memory_is_bounded(kept: RecentLines, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(2 * loggers._LINES):
        log.warning("%d", number, extra={"connector": "many"})
    assert messages(kept.of("many", None, 10**6)) == [
        str(n) for n in range(loggers._LINES, 2 * loggers._LINES)
    ]
    for _ in range(100):
        log.warning("x" * 10**6, extra={"connector": "long"})
    assert 0 < sum(map(len, messages(kept.of("long", None, 100)))) <= loggers._BYTES
    for number in range(loggers._CONNECTORS):
        log.warning("one", extra={"connector": f"other-{number}"})
    assert kept.of("many", None, 1) == []
    assert kept.of(f"other-{loggers._CONNECTORS - 1}", None, 1)


def test_a_trace_comes_with_its_line(kept: RecentLines) -> None:
    try:
        raise ValueError("token=abcdefgh")
    except ValueError:
        log.exception("connector orders failed")
    (line,) = kept.of("orders", None, 1)
    assert line["trace"].endswith("ValueError: token=***")


def test_a_call_with_wrong_arguments_does_not_fail(
    kept: RecentLines, capsys: pytest.CaptureFixture[str]
) -> None:
    kept.emit(logging.makeLogRecord({"msg": "connector orders: %d", "args": ("one",)}))
    assert kept.of("orders", None, 10) == []
    assert "Logging error" in capsys.readouterr().err


def test_levels_are_told_and_set_while_other_threads_make_loggers() -> None:
    over = threading.Event()

    def make() -> None:
        for number in itertools.count():
            if over.is_set():
                return
            logging.getLogger(f"semel.test.made.{number}")

    maker, interval = threading.Thread(target=make), sys.getswitchinterval()
    for number in range(2000):
        logging.getLogger(f"semel.test.there.{number}")
    sys.setswitchinterval(1e-6)
    maker.start()
    try:
        for _ in range(30):
            loggers.levels()
            loggers.set_level("semel.test.other", "INFO")
    finally:
        over.set()
        sys.setswitchinterval(interval)
        maker.join(PATIENCE)


def test_the_root_logger_may_be_named_in_any_case(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loggers, "_known", dict)  # the levels of all others stay as they are
    before = loggers.level("root")
    assert loggers.level("ROOT") == before
    assert loggers.set_level("Root", before["level"]) == []
    assert "Root" not in logging.root.manager.loggerDict
