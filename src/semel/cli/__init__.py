"""The command line: one module per group of commands. ``semel run`` and ``semel connectors`` import
only their own; ``commands.py`` has all of them."""

from __future__ import annotations

import faulthandler
import gc
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress


def main() -> None:
    """Entry point of the ``semel`` command. Spark starts while the commands are imported. SIGUSR2
    prints the stacks of all threads."""
    with suppress(Exception):  # there may be no standard error
        faulthandler.register(signal.SIGUSR2)
    command, *arguments = _words() or [""]
    gc.disable()  # imports leave next to no garbage
    try:
        end = _imported(command, arguments)
        from semel.cli.application import run
    finally:
        gc.enable()
    try:
        run()
    finally:
        end()


def _words() -> list[str]:
    """The command and its arguments; of the line to be completed, if a shell asks for that, for
    which nothing must run."""
    if "_SEMEL_COMPLETE" in os.environ:
        line = os.environ.get("_TYPER_COMPLETE_ARGS") or os.environ.get("COMP_WORDS", "")
        return [word for word in line.split()[1:] if word != "run"]
    return sys.argv[1:]


def _imported(command: str, arguments: list[str]) -> Callable[[], None]:
    """Import what a command needs: what only others need would delay it. Returns what to call at
    the end."""
    if command == "connectors":
        from semel.cli import application, connectors

        connectors.register(application.app)
        return lambda: None
    from semel import launch

    if command == "run":
        launch.begin_early(arguments)
        from semel.cli import application, connector

        connector.register(application.app)
    else:
        import semel.cli.commands  # noqa: F401
    return launch.end_early
