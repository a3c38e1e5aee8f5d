"""The ``semel`` command, to which modules add their commands, and how errors are reported.

Errors are printed without their stack trace. ``SEMEL_DEBUG=1`` shows it.
"""

from __future__ import annotations

import logging
import os
import sys
import warnings
from importlib.metadata import version
from typing import Annotated, Any

import typer

from semel.cli.console import console
from semel.cli.logs import json_line
from semel.context import logs_json
from semel.errors import ConfigError, SemelError
from semel.redact import redacted

_EXIT_CODES = """
Exit codes: 0 done; 1 records lost or duplicated, or an unexpected error; 2 configuration;
3 a service cannot be reached or refuses; 4 fenced by another run, or a ledger conflict;
5 a bad record; 6 the ledger points at records that Kafka no longer has;
7 the audit found nothing wrong, but could not judge everything.
"""

_UsageError: type[Exception] = typer.BadParameter.__mro__[1]
"""The base class of all mistakes in a command line, which typer does not export."""


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"semel {version('semel')}")
        raise typer.Exit


app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Kafka connectors on Spark whose results and offsets can never disagree.",
    epilog=_EXIT_CODES,
)


@app.callback()
def options(
    _version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    """Kafka connectors on Spark whose results and offsets can never disagree."""


def run() -> None:
    """Run the command of this process, and exit with its code."""
    warnings.showwarning = _warn
    try:
        sys.exit(app(prog_name="semel", standalone_mode=False))
    except _UsageError as error:
        _refuse(error)
    except typer.Abort:
        _say("aborted")
        sys.exit(SemelError.exit_code)
    except SemelError as error:
        if os.environ.get("SEMEL_DEBUG"):
            raise
        for warning in error.warnings if isinstance(error, ConfigError) else ():
            _say(warning, "yellow]warning")
        _say(str(error))
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        if os.environ.get("SEMEL_DEBUG"):
            raise
        _say(
            f"failed unexpectedly: {type(error).__name__}: {error} (SEMEL_DEBUG=1 shows the stack)"
        )
        sys.exit(SemelError.exit_code)


def _refuse(error: Any) -> None:
    """Print a mistake in the command line as one line, or the help of a group without a command."""
    where = error.ctx.command_path if error.ctx is not None else "semel"
    message = " ".join(error.format_message().split())
    if type(error).__name__ == "NoArgsIsHelpError":
        print(error.ctx.get_help())
    else:
        _say(f"{where}: {message.rstrip('.')}. See {where} --help")
    sys.exit(ConfigError.exit_code)


def _warn(message: Warning | str, *_where: Any, **_more: Any) -> None:
    """Print a library's warning, which may quote a URL."""
    _say(str(message), "yellow]warning")


def _say(text: str, kind: str = "bold red]error") -> None:
    if logs_json():
        level = logging.WARNING if kind.endswith("warning") else logging.ERROR
        print(json_line(level, text), file=sys.stderr)
        return
    from rich.markup import escape

    console(stderr=True).print(f"[{kind}:[/] {escape(redacted(text))}")
