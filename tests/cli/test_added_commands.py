"""Commands of other packages, among them the lab's, are found by entry point when asked for."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Mapping

import pytest
import typer

from semel.cli import application
from semel.core.errors import ConfigError
from tests.cli.conftest import Semel


@pytest.fixture
def acme(monkeypatch: pytest.MonkeyPatch) -> Callable[[Mapping[str, str]], None]:
    """Installs entry points; those that there are, are gone."""

    def register(app: typer.Typer) -> None:
        @app.command()
        def greet(name: str) -> None:
            """Greet somebody."""
            print(f"hello {name}")

    module = types.ModuleType("acme")
    module.__dict__["register"] = register
    monkeypatch.setitem(sys.modules, "acme", module)

    def install(found: Mapping[str, str]) -> None:
        monkeypatch.setattr(application, "entries", lambda _group: found)

    return install


def test_another_package_adds_a_command(acme: Callable[..., None], semel: Semel) -> None:
    acme({"greet": "acme:register", "validate": "acme:register"})
    ended = semel("greet", "Ann")
    assert (ended.code, ended.out) == (0, "hello Ann\n")
    assert "Greet somebody." in semel("--help").out
    assert "Greet" not in semel("validate", "--help").out  # semel's own stays


def test_a_command_that_cannot_be_loaded_says_why_and_harms_no_other(
    acme: Callable[..., None], semel: Semel
) -> None:
    acme({"greet": "acme:nothing"})
    ended = semel("greet", "Ann", "--loud")
    assert ended.code == ConfigError.exit_code
    assert "semel greet cannot load acme:nothing: AttributeError" in ended.err
    assert semel("--help").code == 0


@pytest.mark.parametrize("words", [("drill", "--faults", "5"), ("services", "up"), ("demo",)])
def test_without_the_lab_its_commands_say_what_to_install(
    words: tuple[str, ...], acme: Callable[..., None], semel: Semel
) -> None:
    acme({})
    ended = semel(*words)
    assert ended.code == ConfigError.exit_code
    assert f"semel {words[0]} needs the package semel-lab: pip install 'semel[lab]'" in ended.err
    assert "pip install 'semel[lab]'" in semel("--help").out
    assert "pip install 'semel[lab]'" in semel(words[0], "--help").out


def test_a_command_that_nobody_has_is_refused(acme: Callable[..., None], semel: Semel) -> None:
    acme({})
    assert "No such command 'gret'" in semel("gret").err
