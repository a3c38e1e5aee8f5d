"""``semel connectors``: manages the connectors of a worker, semel's or Kafka Connect's own, by its
REST API. It imports no engine, so that it starts fast."""

from __future__ import annotations

import functools
import inspect
import json
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from semel.cli.application import console
from semel.cli.ending import clean_up_on_signals
from semel.cli.worker_client import CA, URL, USER, Client, client
from semel.config.loading import load
from semel.core.errors import ConfigError, SemelError, ServiceError
from semel.core.quoting import on_terminal

app = typer.Typer(
    no_args_is_help=True,
    help="Manage the connectors of a worker, semel's or Kafka Connect's own, by its REST API.",
    epilog="Example: semel connectors --help; semel connectors list --url http://worker:8083",
)

_EVERY = 2.0
"""Seconds between two looks of ``--watch``."""
_COMPLETES_IN = 1.5
"""Seconds that the completion of names waits for a worker."""
_COLOURS = {"RUNNING": "green", "FAILED": "red", "PAUSED": "yellow", "STOPPED": "dim"}
_HIDDEN = re.compile(r"\[hidden\]|(?<=://)\*{3}@|(?<==)\*{3}(?![^&;\s])")
"""What a semel worker shows instead of secrets."""
Answer = dict[str, Any]


def register(onto: typer.Typer) -> None:
    """Add the commands."""
    onto.add_typer(app, name="connectors")


# What the commands share


def _complete(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names for the shell; none if the worker does not answer soon."""
    options = {k: ctx.params.get(k) or "" for k in ("url", "user", "ca", "certificate")}
    try:
        names = client(**options, timeout=_COMPLETES_IN).names()
    except SemelError:
        return []
    return [name for name in names if name.startswith(incomplete)]


_NAME = typer.Argument(help="A connector.", metavar="NAME", autocompletion=_complete)
_NAMES = typer.Argument(help="Connectors.", metavar="NAME...", autocompletion=_complete)
Name = Annotated[str, _NAME]
Names = Annotated[list[str], _NAMES]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Watch = Annotated[
    bool, typer.Option("--watch", "-w", help="Go on until Ctrl-C, and show what changes.")
]


User = Annotated[
    str,
    typer.Option(
        "--user",
        envvar=USER,
        metavar="NAME[:PASSWORD]",
        help="Who logs in; the password may be in SEMEL_WORKER_PASSWORD. A bearer token is "
        "taken from SEMEL_WORKER_TOKEN.",
    ),
]
Trusted = Annotated[
    str, typer.Option("--ca-file", envvar=CA, metavar="PEM", help="Whom to trust with https://.")
]
Certificate = Annotated[
    str, typer.Option("--cert", metavar="PEM", help="The client's certificate, with its key.")
]


def _connected(
    url: Annotated[
        str,
        typer.Option(
            "--url", envvar=URL, help="The worker's URL.", show_default="http://localhost:8083"
        ),
    ] = "",
    user: User = "",
    ca: Trusted = "",
    certificate: Certificate = "",
) -> Client:
    return client(url, user, ca, certificate)


def _command(name: str, example: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a command of a function whose first argument is the client: the command has the options
    that say which worker to ask."""

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        options = inspect.signature(_connected, eval_str=True).parameters
        first, *own = inspect.signature(function, eval_str=True).parameters.values()

        @functools.wraps(function)
        def run(**values: Any) -> None:
            worker = _connected(**{option: values.pop(option) for option in options})
            function(**{first.name: worker}, **values)

        named = inspect.Parameter.KEYWORD_ONLY
        parameters = [each.replace(kind=named) for each in (*own, *options.values())]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {}
        return app.command(name, epilog=f"Example: semel connectors {example}")(run)

    return decorate


def _json(answer: Any) -> None:
    print(json.dumps(answer, ensure_ascii=False), flush=True)


def _show(
    look: Callable[[], Any],
    drawn: Callable[[Any], Any],
    lines: Callable[[Any], Mapping[str, str]],
    *,
    watch: bool,
    as_json: bool,
) -> None:
    """Show what ``look`` finds. With ``watch``, do so again and again: in place on a terminal;
    elsewhere each line that has changed, or all of it as JSON.

    Args:
        drawn: it, for people.
        lines: it as lines, each under a name that stays the same.
    """
    if watch:
        clean_up_on_signals()  # the terminal's cursor comes back
    else:
        answer = look()
        _json(answer) if as_json else console().print(drawn(answer))
        return
    try:
        if console().is_terminal and not as_json:
            _show_live(look, drawn)
        else:
            _show_changes(look, lines, as_json=as_json)
    except KeyboardInterrupt:
        return


def _show_live(look: Callable[[], Any], drawn: Callable[[Any], Any]) -> None:
    shown = drawn(look())
    with Live(shown, console=console(), auto_refresh=False) as live:
        while True:
            time.sleep(_EVERY)
            try:
                shown, trouble = drawn(look()), ""
            except ServiceError as error:
                trouble = f"[red]{escape(str(error))}[/]"
            live.update(Group(shown, trouble) if trouble else shown, refresh=True)


def _show_changes(
    look: Callable[[], Any], lines: Callable[[Any], Mapping[str, str]], *, as_json: bool
) -> None:
    shown: dict[str, str] | None = None
    while True:
        try:
            answer = look()
            now = {"": json.dumps(answer, ensure_ascii=False)} if as_json else dict(lines(answer))
        except ServiceError as error:  # a worker that starts again is worth waiting for
            if shown is None:
                raise
            now = {**shown, "": json.dumps({"error": str(error)}) if as_json else str(error)}
        before, shown = shown or {}, now
        changed = [line for name, line in now.items() if before.get(name) != line]
        gone = [f"{name} is gone" for name in before if name and name not in now]
        for line in (*changed, *gone):
            _print(line if as_json else f"{time.strftime('%H:%M:%S')} {line}")
        time.sleep(_EVERY)


def _table(*titles: str) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in titles:
        table.add_column(title, overflow="fold")
    return table


def _state(state: str) -> str:
    colour = _COLOURS.get(state, "")
    return f"[{colour}]{state}[/]" if colour else state


def _tasks(status: Answer) -> str:
    states = Counter(task["state"] for task in status["tasks"])
    return ", ".join(f"{count} {state}" for state, count in sorted(states.items())) or "none"


def _waits(part: Answer) -> str:
    waits = part.get("waits")
    return f"for {waits['for']} since {waits['since']}: {waits['reason']}" if waits else ""


def _print(text: str) -> None:
    """Print what a worker says."""
    print(on_terminal(text), flush=True)


def _say(text: str) -> None:
    """A line that is no result."""
    console(stderr=True).print(text)


# Looking


@_command("list", "list --watch")
def list_(worker: Client, watch: Watch = False, as_json: AsJson = False) -> None:
    """List the connectors, with their states."""

    def drawn(statuses: list[Answer]) -> Any:
        table = _table("NAME", "TYPE", "STATE", "TASKS", "WORKER", "CLASS")
        for entry in statuses:
            state, of = entry["connector"], entry["class"].rpartition(".")[2]
            table.add_row(
                escape(entry["name"]),
                escape(entry["type"]),
                _state(state["state"]),
                _tasks(entry),
                escape(state["worker_id"]),
                escape(of),
            )
        return table if statuses else f"{worker.url} has no connectors"

    def lines(statuses: list[Answer]) -> dict[str, str]:
        return {
            e["name"]: f"{e['name']} {e['connector']['state']}, tasks: {_tasks(e)}"
            for e in statuses
        }

    _show(worker.statuses, drawn, lines, watch=watch, as_json=as_json)


@_command("status", "status orders --watch")
def status(worker: Client, name: Name, watch: Watch = False, as_json: AsJson = False) -> None:
    """Show a connector's state and those of its tasks, what they wait for, and why they failed."""

    def look() -> Answer:
        answer: Answer = (
            worker.semel(name, "GET") if worker.is_semel else worker.of(name, "GET", "/status")
        )
        return answer

    def drawn(answer: Answer) -> Any:
        state = answer["connector"]
        head = _table("NAME", "TYPE", "STATE", "WORKER", "WAITS")
        head.add_row(
            escape(name),
            escape(answer.get("type", "")),
            _state(state["state"]),
            escape(state["worker_id"]),
            escape(_waits(answer)),
        )
        table = _table("TASK", "STATE", "WORKER", "WAITS")
        for task in answer["tasks"]:
            cells = (
                str(task["id"]),
                _state(task["state"]),
                escape(task["worker_id"]),
                escape(_waits(task)),
            )
            table.add_row(*cells)
        parts = [head, "", table] if answer["tasks"] else [head]
        return Group(*parts, *(escape(text) for text in _traces(answer)))

    def lines(answer: Answer) -> dict[str, str]:
        parts = {"": {**answer["connector"], "waits": answer.get("waits")}}
        parts |= {f", task {task['id']}": task for task in answer["tasks"]}
        texts = {}
        for what, part in parts.items():
            held_up = _waits(part)
            texts[f"{name}{what}"] = f"{name}{what} {part['state']}" + (
                f", waits {held_up}" if held_up else ""
            )
        return texts

    _show(look, drawn, lines, watch=watch, as_json=as_json)


def _traces(answer: Answer) -> list[str]:
    """Why parts have failed, each reason once: a connector that fails takes its tasks along."""
    by_trace: dict[str, list[str]] = {}
    for part in (answer["connector"], *answer["tasks"]):
        if part.get("trace"):
            what = f"task {part['id']}" if "id" in part else "connector"
            by_trace.setdefault(part["trace"].rstrip(), []).append(what)
    return [f"\n{', '.join(parts)}: {trace}" for trace, parts in by_trace.items()]


@_command("config", "config orders --json > orders.json")
def config(worker: Client, name: Name, as_json: AsJson = False) -> None:
    """Show a connector's configuration. Secrets are hidden by a semel worker, which keeps them when
    the configuration is applied to the same connector."""
    settings: dict[str, str] = worker.of(name, "GET", "/config")
    if as_json:
        print(json.dumps(settings, indent=2, ensure_ascii=False))
    else:
        table = _table("KEY", "VALUE")
        for key, value in sorted(settings.items()):
            table.add_row(escape(key), escape(value))
        console().print(table)
    if secret := sorted(_hidden(settings)):
        _say(escape(f"hidden: {', '.join(secret)}. Applied to {name}, they stay as they are"))


@_command("offsets", "offsets orders --set orders-0=1200")
def offsets(
    worker: Client,
    name: Name,
    new: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="PLACE=OFFSET",
            help="Continue there: TOPIC-PARTITION=OFFSET, or for a source its partition and offset "
            "in JSON; null forgets it. The connector must be stopped.",
        ),
    ] = None,
    reset: Annotated[
        bool, typer.Option("--reset", help="Forget all offsets of a stopped connector.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    watch: Watch = False,
    as_json: AsJson = False,
) -> None:
    """Show, set or reset a connector's offsets (KIP-875)."""
    if new and reset:
        raise ConfigError("--set and --reset exclude each other")
    if reset:
        if not yes:
            _ask(f"Forget the offsets of {name}? What is read again is written again", as_json)
        _report(name, worker.of(name, "DELETE", "/offsets"), as_json)
        return
    if new:
        body = {"offsets": [_offset(text) for text in new]}
        _report(name, worker.of(name, "PATCH", "/offsets", body), as_json)
        return

    def drawn(answer: Answer) -> Any:
        parts = [{**each["partition"], **(each["offset"] or {})} for each in answer["offsets"]]
        titles = list(dict.fromkeys(key for part in parts for key in part))
        table = _table(*(title.removeprefix("kafka_").upper() for title in titles))
        for part in parts:
            table.add_row(*(escape(_text(part[t])) if t in part else "" for t in titles))
        return table if parts else f"{escape(name)} has no offsets yet"

    def lines(answer: Answer) -> dict[str, str]:
        texts = {}
        for each in answer["offsets"]:
            place = _text(each["partition"])
            texts[place] = f"{place} {_text(each['offset'])}"
        return texts

    _show(lambda: worker.of(name, "GET", "/offsets"), drawn, lines, watch=watch, as_json=as_json)


def _offset(text: str) -> Answer:
    """An entry of a request; see ``--set``."""
    if text.startswith("{"):
        try:
            partition, end = json.JSONDecoder().raw_decode(text)
            if text[end : end + 1] == "=":
                return {"partition": partition, "offset": json.loads(text[end + 1 :])}
        except ValueError:
            pass
    place, equals, at = text.rpartition("=")
    topic, dash, partition = place.rpartition("-")
    if not (equals and dash and topic):
        raise ConfigError(
            f"--set {text} is not TOPIC-PARTITION=OFFSET, such as orders-0=1200, nor a source "
            'partition and its offset in JSON, such as {"filename":"a.txt"}={"position":8}'
        )
    where = {"kafka_topic": topic, "kafka_partition": partition}
    return {"partition": where, "offset": None if at == "null" else {"kafka_offset": at}}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _report(name: str, answer: Answer | None, as_json: bool) -> None:
    """Show what a worker says after a change."""
    if as_json:
        _json({"name": name, **(answer or {})})
    else:
        _print(f"{name}: {(answer or {}).get('message', 'done')}")


@_command("logs", "logs orders --task 0 --watch")
def logs(
    worker: Client,
    name: Name,
    task: Annotated[int | None, typer.Option(help="Only this task's lines.", min=0)] = None,
    most: Annotated[
        int, typer.Option("--lines", "-n", help="How many lines.", min=1, max=1000)
    ] = 100,
    watch: Watch = False,
    as_json: AsJson = False,
) -> None:
    """Show the last log lines about a connector, and the traces of what has failed. Kafka Connect
    keeps no lines, so only traces come from there."""
    if watch:
        clean_up_on_signals()
    known: set[str] = set()
    is_first = True
    try:
        while True:
            try:
                answer = _log(worker, name, task, most)
            except ServiceError:
                if is_first:
                    raise
                time.sleep(_EVERY)
                continue
            for line in answer["lines"] + answer["traces"]:
                if (text := json.dumps(line, sort_keys=True)) not in known:
                    known.add(text)
                    _json(line) if as_json else _print(_log_line(line))
            if is_first and not worker.is_semel:
                _say("Kafka Connect's workers keep no log lines: see their own log")
            if not watch:
                return
            is_first = False
            known &= {json.dumps(e, sort_keys=True) for e in answer["lines"] + answer["traces"]}
            time.sleep(_EVERY)
    except KeyboardInterrupt:
        if not watch:
            raise


def _log(worker: Client, name: str, task: int | None, most: int) -> Answer:
    """Lines and traces; of a connector whose tasks are on several workers, from all of them."""
    status: Answer = worker.of(name, "GET", "/status")
    if not worker.is_semel:
        parts = [p for p in (status["connector"], *status["tasks"]) if p.get("trace")]
        traces = [{"task": part.get("id"), "trace": part["trace"]} for part in parts]
        return {"lines": [], "traces": [t for t in traces if task is None or t["task"] == task]}
    answer: Answer = worker.semel(name, "GET", "/logs", task=task, lines=most)
    if task is None:
        home = next((t["worker_id"] for t in status["tasks"] if t["id"] == 0), "")
        for other in status["tasks"]:
            if other["worker_id"] not in ("", home):
                more = worker.semel(name, "GET", "/logs", task=other["id"], lines=most)
                answer["lines"] += more["lines"]
    answer["lines"] = sorted(answer["lines"], key=lambda line: line["time"])[-most:]
    return answer


def _log_line(line: Answer) -> str:
    if "message" not in line:
        what = "connector" if line["task"] is None else f"task {line['task']}"
        return f"{what} has failed: {line['trace'].rstrip()}"
    text = f"{line['time']} {line['level']} {line['message']}"
    return f"{text}\n{line['trace'].rstrip()}" if line.get("trace") else text


# Changing states


def _each(names: Sequence[str], done: str, call: Callable[[str], Any], *, as_json: bool) -> None:
    for name in names:
        call(name)
        _json({"name": name, "outcome": done}) if as_json else _print(f"{name}: {done}")


@_command("pause", "pause orders")
def pause(worker: Client, names: Names, as_json: AsJson = False) -> None:
    """Let connectors read nothing. Their tasks stay."""
    _each(names, "paused", lambda name: worker.of(name, "PUT", "/pause"), as_json=as_json)


@_command("resume", "resume orders")
def resume(worker: Client, names: Names, as_json: AsJson = False) -> None:
    """Let paused or stopped connectors run again."""
    _each(names, "resumed", lambda name: worker.of(name, "PUT", "/resume"), as_json=as_json)


@_command("stop", "stop orders")
def stop(worker: Client, names: Names, as_json: AsJson = False) -> None:
    """End the tasks of connectors. Their configurations and offsets stay."""
    _each(names, "stopped", lambda name: worker.of(name, "PUT", "/stop"), as_json=as_json)


@_command("restart", "restart orders --only-failed")
def restart(
    worker: Client,
    names: Names,
    task: Annotated[int | None, typer.Option(help="Only this task.", min=0)] = None,
    only_failed: Annotated[bool, typer.Option("--only-failed", help="Only what failed.")] = False,
    as_json: AsJson = False,
) -> None:
    """Restart connectors with their tasks."""

    def again(name: str) -> None:
        if task is not None:
            worker.of(name, "POST", f"/tasks/{task}/restart")
            return
        flags = {"includeTasks": "true", "onlyFailed": str(only_failed).lower()}
        worker.of(name, "POST", "/restart", **flags)

    _each(names, "restarted", again, as_json=as_json)


@_command("delete", "delete orders --yes")
def delete(
    worker: Client,
    names: Names,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Delete connectors. What they have written stays, and so do their offsets."""
    if not yes:
        _ask(f"Delete {', '.join(names)}?", as_json)
    _each(names, "deleted", lambda name: worker.of(name, "DELETE"), as_json=as_json)


def _ask(question: str, as_json: bool) -> None:
    """Ask before something is lost."""
    typer.confirm(question, abort=True, err=as_json)


# Configurations


@_command("apply", "apply orders.json customers.json")
def apply(
    worker: Client,
    files: Annotated[list[Path], typer.Argument(help="Connectors, a file each.")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would change.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Create connectors, or change them to what their files say. Says what changes; a connector
    that already is as its file says is left alone."""
    for file in files:
        settings = load(file)
        name = settings.setdefault("name", "").strip()
        if not name:
            raise ConfigError(f"{file} has no name: add name=...")
        outcome, changes = _compared(worker, file, name, settings)
        answer: Answer = {}
        if outcome != "unchanged" and not dry_run:
            answer = worker.of(name, "PUT", "/config", settings) or {}
        warnings = answer.get("warnings", [])
        if as_json:
            dry = {"dry_run": True} if dry_run else {}
            facts = {"name": name, "outcome": outcome, **dry}
            _json({**facts, "changes": changes, "warnings": warnings})
            continue
        _print(f"{name}: {'would be ' if dry_run and outcome != 'unchanged' else ''}{outcome}")
        for change in changes if outcome == "updated" else ():
            _print(f"  {_change(change)}")
        for warning in warnings:
            _say(f"[yellow]warning:[/] {escape(warning['message'])}")


def _compared(
    worker: Client, file: Path, name: str, settings: Mapping[str, str]
) -> tuple[str, list[Answer]]:
    """What the file would do to the connector of this name, and what would change.

    Raises:
        ConfigError: the file holds secrets that are hidden, and the worker does not have them.
    """
    if not worker.is_semel:
        if secret := sorted(_hidden(settings)):
            raise ConfigError(
                f"{file}: {secret[0]} is {settings[secret[0]]}, which a semel worker shows instead "
                "of a secret. Kafka Connect would take it for the secret itself: give that, or a "
                "reference to it"
            )
        present = worker.of(name, "GET", "/config") if name in worker.names() else {}
        changes = [
            {"key": key, "before": present.get(key), "after": settings.get(key)}
            for key in sorted(present.keys() | settings.keys())
            if present.get(key) != settings.get(key)
        ]
        answer: Answer = {"exists": bool(present), "changes": changes}
    else:
        try:
            answer = worker.semel(name, "POST", "/compare", dict(settings))
        except ConfigError as error:
            raise ConfigError(f"{file}: {error}") from None
    changes = answer["changes"]
    if not answer["exists"]:
        return "created", changes
    return ("updated" if changes else "unchanged"), changes


def _hidden(config: Mapping[str, str]) -> set[str]:
    """The keys whose values hold what is shown instead of a secret."""
    return {key for key, value in config.items() if _HIDDEN.search(value)}


def _change(change: Answer) -> str:
    key, before, after = change["key"], change["before"], change["after"]
    if before is None:
        return f"+ {key}={after}"
    if after is None:
        return f"- {key}={before}"
    return f"{key}: {before} -> {after}" if before != after else f"{key}: another secret"
