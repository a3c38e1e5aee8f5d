"""The ``semel`` command, to which modules add their commands, its terminal, and how errors are
reported.

Errors are printed without their stack trace. ``SEMEL_DEBUG=1`` shows it.
"""

from __future__ import annotations

import logging
import os
import sys
import traceback
import warnings
from collections.abc import Iterable
from enum import StrEnum
from importlib.metadata import EntryPoint, version
from typing import Annotated, Any

import typer
import typer.core
from rich.console import Console, ConsoleOptions, RenderableType
from rich.logging import RichHandler
from rich.segment import Segment

from semel.config.extras import entries
from semel.core.context import (
    LINE,
    LOG_FORMAT,
    LOG_STARTED,
    JsonFormatter,
    TextFormatter,
    logs_json,
)
from semel.core.errors import EXIT_CODES, INTERRUPTED, ConfigError, SemelError, ServiceError
from semel.core.quoting import on_terminal
from semel.core.redact import redacted

GROUP = "semel.commands"
"""The entry point group of commands that other packages add: name -> a function that adds it to a
:class:`typer.Typer`. It is called when the command or the help is asked for."""
_OF_THE_LAB = frozenset({"demo", "drill", "services"})
_EXIT_CODES = "; ".join(f"{code} {meaning}" for code, meaning in EXIT_CODES.items())
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]
"""The base class of all mistakes in a command line, which typer does not export."""
_UNBOUNDED = 10_000
"""The width of output that is not wrapped."""
_NO_LAB = "needs the package semel-lab: pip install 'semel[lab]' (in a clone: pip install ./lab)"


class LogFormat(StrEnum):
    """The format of log lines."""

    TEXT = "text"
    JSON = "json"


Format = Annotated[
    LogFormat,
    typer.Option(
        "--log-format",
        envvar=LOG_FORMAT,
        help="The log as text, or as a JSON object in each line.",
    ),
]


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"semel {version('semel')}")
        raise typer.Exit


class _Commands(typer.core.TyperGroup):
    """semel's commands, and those of other packages.

    The library takes any closed connection for a closed standard output.
    """

    def list_commands(self, ctx: Any) -> list[str]:
        """See :class:`click.Group`."""
        own = super().list_commands(ctx)
        return [*own, *sorted({*entries(GROUP), *_OF_THE_LAB} - {*own})]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """See :class:`click.Group`."""
        return super().get_command(ctx, cmd_name) or _added(cmd_name)

    def invoke(self, ctx: Any) -> Any:
        """See :class:`click.Group`."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise ServiceError(f"a connection was closed: {error}") from error


def _added(name: str) -> Any:
    """A command of another package; one that cannot be had only says why. None if there is none of
    this name."""
    entry = entries(GROUP).get(name)
    if entry is None:
        return _unavailable(name, _NO_LAB) if name in _OF_THE_LAB else None
    parent = typer.Typer()
    parent.callback()(options)  # with one, a single command stays below its name
    try:
        EntryPoint(name, entry, GROUP).load()(parent)
        return typer.main.get_group(parent).commands[name]
    except Exception as error:  # whatever another package raises: other commands must work
        return _unavailable(name, f"cannot load {entry}: {type(error).__name__}: {error}")


def _unavailable(name: str, why: str) -> Any:
    """A command that takes any arguments, and says why it cannot run."""

    from rich.markup import escape

    def refuse() -> None:
        raise ConfigError(f"semel {name} {why}")

    anything = {"allow_extra_args": True, "ignore_unknown_options": True}
    shown = escape(why[0].upper() + why[1:])
    return typer.core.TyperCommand(name, context_settings=anything, callback=refuse, help=shown)


app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Kafka connectors on Spark whose results and offsets can never disagree.",
    epilog=f"Exit codes: {_EXIT_CODES}.",
    cls=_Commands,
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
        _say("aborted: nothing has changed")
        sys.exit(INTERRUPTED)
    except SemelError as error:
        _show_stack()
        for warning in error.warnings if isinstance(error, ConfigError) else ():
            _say(warning, "yellow]warning")
        _say(str(error))
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except Exception as error:
        _show_stack()
        say_unexpected(error, "failed unexpectedly")
        sys.exit(SemelError.exit_code)


def say_unexpected(error: BaseException, what: str) -> None:
    """Report an error that nobody expected."""
    _say(f"{what}: {type(error).__name__}: {error} (SEMEL_DEBUG=1 shows the stack)")


def _show_stack() -> None:
    if os.environ.get("SEMEL_DEBUG"):
        traceback.print_exc()


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


def json_line(level: int, message: str) -> str:
    """A log line about the command itself, which may fail before there is a log."""
    record = logging.getLogger("semel").makeRecord("semel", level, "", 0, message, (), None)
    return JsonFormatter().format(record)


def console(*, stderr: bool = False) -> Console:
    """The terminal. Output that goes elsewhere is not wrapped."""
    result = _Console(stderr=stderr, highlight=False, soft_wrap=False)
    if not result.is_terminal:
        result = _Console(stderr=stderr, highlight=False, width=_UNBOUNDED)
    return result


class _Console(Console):
    """Shows what would control the terminal: names and messages come from elsewhere."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            text, style, control = segment
            yield segment if control else Segment(on_terminal(text), style)


def start_log(out: Console, form: LogFormat = LogFormat.TEXT) -> None:
    """Log to standard error; a terminal gets colours."""
    level = os.environ.get("SEMEL_LOG", "INFO").upper()
    handler: logging.Handler
    os.environ[LOG_FORMAT] = form.value  # for what this process starts, too
    if form is LogFormat.JSON:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(JsonFormatter())
    elif out.is_terminal:
        handler = RichHandler(
            console=out, show_path=False, log_time_format="%H:%M:%S", omit_repeated_times=False
        )
        handler.setFormatter(TextFormatter("%(about)s%(message)s"))
    else:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(TextFormatter(LINE))
    handler.addFilter(not_of_py4j)
    logging.basicConfig(level="WARNING", handlers=[handler])
    logging.getLogger("semel").setLevel(level)
    logging.getLogger("py4j").setLevel("CRITICAL")
    LOG_STARTED.set()


def not_of_py4j(record: logging.LogRecord) -> bool:
    """Py4J also logs to the root logger, with stack traces, what the engines report themselves."""
    return record.name != "root" or f"{os.sep}py4j{os.sep}" not in record.pathname
