"""The command line: one module per group of commands. ``semel run`` and ``semel connectors`` import
only their own; ``commands.py`` has all of them."""

import _signal  # type: ignore[import-not-found]  # unlike signal, it imports nothing
import os
import sys
import typing

if typing.TYPE_CHECKING:
    from collections.abc import Callable


def main() -> None:
    """Entry point of the ``semel`` command.

    Until a command says what else a signal is to do, it ends the process at once. An exception
    could leave Python's import lock held, for which other threads would wait forever.
    """
    for number in (_signal.SIGINT, _signal.SIGTERM):
        if _signal.getsignal(number) is not _signal.SIG_IGN:  # as under nohup
            _signal.signal(number, lambda number, _frame: os._exit(128 + number))
    from semel.cli import ending

    ending.prepare()
    try:
        command()
    finally:
        ending.finish()


def command() -> None:
    """Run the command of this process. Spark starts while the commands are imported. SIGUSR2 prints
    the stacks of all threads."""
    import faulthandler
    import gc
    from contextlib import suppress

    with suppress(Exception):  # there may be no standard error
        faulthandler.register(_signal.SIGUSR2)
    name, *arguments = _words() or [""]
    gc.disable()  # imports leave next to no garbage
    try:
        end = _imported(name, arguments)
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


def _imported(command: str, arguments: list[str]) -> "Callable[[], None]":
    """Import what a command needs: what only others need would delay it. Returns what to call at
    the end."""
    if command == "connectors":
        from semel.cli import application, connectors

        connectors.register(application.app)
        return lambda: None
    from semel.spark import launch

    if command == "run":
        launch.begin_early(arguments)
        from semel.cli import application, connector

        connector.register(application.app)
    else:
        import semel.cli.commands  # noqa: F401
    return launch.end_early
