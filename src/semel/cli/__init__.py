"""The command line: one module per group of commands. ``application.py`` is what ``semel run``
needs; ``commands.py`` adds all others."""

import _signal  # type: ignore[import-not-found]  # unlike signal, it imports nothing
import os
import sys


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

    from semel import launch

    with suppress(Exception):  # there may be no standard error
        faulthandler.register(_signal.SIGUSR2)
    _, *arguments = sys.argv
    runs = arguments[:1] == ["run"]
    if runs:
        launch.begin_early(arguments[1:])
    gc.disable()  # imports leave next to no garbage
    try:
        if runs:  # what only other commands import would delay it
            from semel.cli.application import run
        else:
            from semel.cli.commands import run
    finally:
        gc.enable()
    try:
        run()
    finally:
        launch.end_early()
