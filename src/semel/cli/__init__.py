"""The command line: one module a group of commands, this one puts them together.

Errors are printed without a stack trace; ``SEMEL_DEBUG=1`` shows it.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import typer

from semel.cli import connector, demo, drill, offsets, proof, services, warmup
from semel.cli.console import console
from semel.errors import ConfigError, SemelError
from semel.redact import redacted

_EXIT_CODES = """
Exit codes: 0 done; 1 records lost or duplicated, or an unexpected error; 2 configuration;
3 a service cannot be reached or refuses; 4 fenced by another run, or a ledger conflict;
5 a bad record; 6 the ledger points at records that Kafka no longer has;
7 the audit found nothing wrong, but could not judge everything.
"""

_UsageError: type[Exception] = typer.BadParameter.__mro__[1]
"""What all mistakes in a command line are; typer does not export it."""

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Kafka connectors on Spark whose results and offsets can never disagree.",
    epilog=_EXIT_CODES,
)
connector.register(app)
proof.register(app)
demo.register(app)
drill.register(app)
warmup.register(app)
app.add_typer(offsets.app, name="offsets")
app.add_typer(services.app, name="services")


def main() -> None:
    """Entry point of the ``semel`` command."""
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
    """A mistake in the command line, in one line; a group without a command shows its help."""
    where = error.ctx.command_path if error.ctx is not None else "semel"
    message = " ".join(error.format_message().split())
    if type(error).__name__ == "NoArgsIsHelpError":
        print(error.ctx.get_help())
    else:
        _say(f"{where}: {message.rstrip('.')}. See {where} --help")
    sys.exit(ConfigError.exit_code)


def _say(text: str, kind: str = "bold red]error") -> None:
    from rich.markup import escape

    console(stderr=True).print(f"[{kind}:[/] {escape(redacted(text))}")
