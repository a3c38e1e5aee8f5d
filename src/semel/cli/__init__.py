"""The command line: one module per group of commands; ``commands.py`` puts them together."""

from __future__ import annotations

import gc
import sys

from semel import launch


def main() -> None:
    """Entry point of the ``semel`` command. Spark starts while the commands are imported."""
    _, *arguments = sys.argv
    if arguments[:1] == ["run"]:
        launch.begin_early(arguments[1:])
    gc.disable()  # imports leave next to no garbage
    try:
        from semel.cli.commands import run
    finally:
        gc.enable()
    try:
        run()
    finally:
        launch.end_early()
