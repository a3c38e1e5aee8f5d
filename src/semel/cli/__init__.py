"""The command line: one module per group of commands. ``application.py`` is what ``semel run``
needs; ``commands.py`` adds all others."""

from __future__ import annotations

import faulthandler
import gc
import signal
import sys
from contextlib import suppress

from semel import launch


def main() -> None:
    """Entry point of the ``semel`` command. Spark starts while the commands are imported. SIGUSR2
    prints the stacks of all threads."""
    with suppress(Exception):  # there may be no standard error
        faulthandler.register(signal.SIGUSR2)
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
