"""``semel ui``: the page for a cluster of plain Kafka Connect."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeVar
from urllib.parse import quote, urlsplit

import typer

from semel.cli.application import Format, LogFormat, console, start_log
from semel.cli.common import PACKAGES, address, until_signal
from semel.cli.connectors import Certificate, Trusted, User
from semel.cli.worker_client import Client, Refused, client
from semel.config import read
from semel.config.extras import require
from semel.config.worker import WorkerConfig
from semel.core.errors import ConfigError, ServiceError
from semel.core.ledger import Hole
from semel.core.redact import redacted
from semel.driver.base import State
from semel.driver.offsets import Facts, LedgerPositions, Offsets, StoredSourceOffsets
from semel.driver.validation import ConfigKeyInfo
from semel.worker.errors import BadRequest, Conflict, NotFound, RequestError, ServiceUnavailable
from semel.worker.herder import Answer, Herder, Part, Parts
from semel.worker.plugins import RequestConfig
from semel.worker.secrets import learn

if TYPE_CHECKING:
    from semel.driver.planning import AnyPlan

T = TypeVar("T")
log = logging.getLogger("semel")

_RECENT = 1.0
"""Seconds for which an answer about all connectors is recent."""
_LEFT_OUT = (
    "This is left out of a Kafka Connect cluster's page: it needs a ledger, which only semel's "
    "connectors have"
)
_KEPT = 40_000
"""How much is kept of the beginning and of the end of a trace."""
_NO_OFFSETS = "This Kafka Connect cannot tell its connectors' offsets: version 3.6 and later can"
_TARGETS = {State.PAUSED: "pause", State.RUNNING: "resume", State.STOPPED: "stop"}
_OF_KEYS: Mapping[str, Any] = {
    "documentation": "",
    "group": "",
    "default_value": None,
    "order_in_group": -1,
    "width": "NONE",
    "display_name": "",
    "dependents": (),
}
"""What old versions of Kafka Connect may leave out of a key's definition."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("ui", epilog="Example: semel ui --connect http://connect:8083")(ui)


def ui(
    connect: Annotated[
        str, typer.Option(metavar="URL", help="A worker of the Kafka Connect cluster.")
    ],
    listen: Annotated[
        str, typer.Option(metavar="[HOST:]PORT", help="Where the page is, at /ui.")
    ] = "8090",
    user: User = "",
    ca: Trusted = "",
    certificate: Certificate = "",
    log_format: Format = LogFormat.TEXT,
) -> None:
    """Show the connectors of a Kafka Connect cluster on semel's page, until SIGTERM or Ctrl-C.

    What needs a ledger is left out. Whoever opens the page needs the token of semel's workers.
    """
    require("semel ui", "worker", PACKAGES)
    start_log(console(stderr=True), log_format)
    host, port = address("--listen", listen)
    there = client(connect, user, ca, certificate)
    if there.is_semel:
        raise ConfigError(f"{there.url} is a worker of semel: its page is {there.url}/ui")
    match there.ask("GET", "/"):
        case {"version": str(version)}:
            pass
        case _:
            raise ServiceError(f"--connect {connect}: no Kafka Connect answers there")
    host = f"[{host}]" if ":" in host else host
    worker = read(WorkerConfig, {"listeners": f"http://{host}:{port}"})
    stop = until_signal()
    from semel.worker.rest.listening import relaying

    with relaying(Relay(worker, there), worker) as server:
        where = f"http://{host}:{server.ports[0]}/ui"
        log.info("the page of Kafka Connect %s at %s is %s", version, there.url, where)
        stop.wait()


class Relay(Herder):
    """Passes requests on to Kafka Connect's REST API."""

    has_ledgers = False

    def __init__(self, worker: WorkerConfig, there: Client) -> None:
        super().__init__(worker)
        self._there = there
        self._lock = threading.Lock()
        self._known_configs: dict[str, dict[str, str]] = {}
        self._states: dict[str, Mapping[str, Any]] = {}
        self._looked = -_RECENT
        self._classes: set[str] = set()

    @property
    def me(self) -> str:
        return urlsplit(self._there.url).netloc

    def _ask(self, method: str, path: str, body: Any = None, **query: Any) -> Any:
        try:
            return self._there.ask(method, path, body, query)
        except Refused as error:
            kinds: dict[int, type[RequestError]] = {404: NotFound, 409: Conflict, 422: BadRequest}
            raise kinds.get(error.status, ServiceUnavailable)(str(error)) from None
        except ConfigError as error:
            raise BadRequest(str(error)) from None
        except ServiceError as error:
            raise ServiceUnavailable(str(error)) from None

    def _change(self, method: str, path: str, body: Any = None, **query: Any) -> Any:
        try:
            return self._ask(method, path, body, **query)
        finally:
            self._looked = -_RECENT

    def _look(self) -> None:
        """Ask for all connectors, unless that was just done."""
        with self._lock:
            if time.monotonic() - self._looked < _RECENT:
                return
            answer = self._ask("GET", "/connectors", expand=["info", "status"])
            connectors = answer.items() if isinstance(answer, dict) else ()
            self._known_configs = {
                name: {k: str(v) for k, v in facts["info"]["config"].items()}
                for name, facts in connectors
                if "info" in facts
            }
            self._states = {
                name: facts["status"] for name, facts in connectors if "status" in facts
            }
            self._looked = time.monotonic()

    @property
    def _configs(self) -> Mapping[str, Mapping[str, str]]:
        self._look()
        return self._known_configs

    def config(self, name: str) -> dict[str, str]:
        config = super().config(name)
        plugin = config.get("connector.class", "")
        if plugin not in self._classes:  # to learn which of its keys are passwords
            with suppress(RequestError):
                self.definitions(plugin)
                self._classes.add(plugin)
        return config

    def inherited(self, name: str) -> dict[str, str]:
        return self.config(name)

    def _parts(self, name: str) -> Parts | None:
        self._look()
        status = self._states.get(name)
        if status is None:
            return None
        tasks = {task["id"]: _part(task) for task in status.get("tasks", ())}
        return Parts(_part(status["connector"]), tasks)

    def status(self, name: str) -> Answer:
        answer = super().status(name)
        return answer | {"type": self._states.get(name, answer).get("type", answer["type"])}

    def _tasks(self, name: str) -> Sequence[int]:
        parts = self._parts(name)
        return sorted(parts.tasks) if parts is not None else ()

    def _is_stopped(self, name: str) -> bool:
        parts = self._parts(name)
        return parts is not None and parts.connector.state == State.STOPPED

    # Changes

    def create(self, name: str, config: Mapping[str, str], state: State) -> Answer:
        body = {"name": name, "config": dict(config)}
        body |= {"initial_state": state.value} if state is not State.RUNNING else {}
        answer: Answer = self._change("POST", "/connectors", body)
        return answer

    def put(self, name: str, config: Mapping[str, str]) -> tuple[bool, Answer]:
        created = name not in self._configs
        return created, self._change("PUT", f"{_place(name)}/config", dict(config))

    def delete(self, name: str) -> None:
        self._change("DELETE", _place(name))

    def target(self, name: str, state: State) -> None:
        self._change("PUT", f"{_place(name)}/{_TARGETS[state]}")

    def restart(self, name: str) -> None:
        self._change("POST", f"{_place(name)}/restart")

    def restart_all(self, name: str, *, tasks: bool, only_failed: bool) -> Answer:
        flags = {"includeTasks": str(tasks).lower(), "onlyFailed": str(only_failed).lower()}
        answer: Answer = self._change("POST", f"{_place(name)}/restart", **flags)
        return answer

    def restart_task(self, name: str, task: int) -> None:
        self._change("POST", f"{_place(name)}/tasks/{task}/restart")

    # Plugins

    def connector_plugins(self) -> list[dict[str, str]]:
        plugins = self._ask("GET", "/connector-plugins")
        return sorted(plugins, key=lambda plugin: str(plugin["class"]))

    def definitions(self, plugin: str) -> Sequence[ConfigKeyInfo]:
        definitions = self._ask("GET", f"/connector-plugins/{quote(plugin, safe='')}/config")
        keys = [ConfigKeyInfo(**_key(each)) for each in definitions]
        learn(plugin, keys)
        return keys

    def validate(self, plugin: str, config: RequestConfig) -> Answer:
        values = {key: value for key, value in config.items() if value is not None}
        path = f"/connector-plugins/{quote(plugin, safe='')}/config/validate"
        answer: Answer = self._ask("PUT", path, values)
        for entry in answer["configs"]:
            if entry["definition"] is not None:
                entry["definition"] = _key(entry["definition"])
        learn(plugin, [ConfigKeyInfo(**d) for e in answer["configs"] if (d := e["definition"])])
        return answer | {"warnings": []}

    # Offsets

    def with_offsets(self, name: str, call: Callable[[Offsets], T]) -> T:
        path = f"{_place(name)}/offsets"
        kind = _SourceOffsets if self.status(name)["type"] == "source" else _SinkOffsets
        try:
            answer = self._ask("GET", path)
        except NotFound:
            self.config(name)  # it does exist
            raise BadRequest(_NO_OFFSETS) from None
        pairs = [(each["partition"], each["offset"]) for each in answer["offsets"]]
        try:
            return call(kind(sorted(pairs, key=_by_partition)))
        except ConfigError as error:
            raise BadRequest(str(error)) from None

    def alter_offsets(self, name: str, body: Mapping[str, Any], by: str) -> Answer:
        answer: Answer = self._ask("PATCH", f"{_place(name)}/offsets", dict(body))
        return answer

    def reset_offsets(self, name: str, by: str) -> Answer:
        answer: Answer = self._ask("DELETE", f"{_place(name)}/offsets")
        return answer

    # What it does not have

    def look(self, name: str, call: Callable[[AnyPlan], Any]) -> NoReturn:
        raise BadRequest(_LEFT_OUT)

    def tried(
        self, config: Mapping[str, str], function: Callable[..., Any], *arguments: Any
    ) -> NoReturn:
        raise BadRequest(_LEFT_OUT)

    def _used_topics(self, name: str) -> Sequence[str]:
        raise BadRequest(_LEFT_OUT)

    def _forget_topics(self, name: str) -> None:
        raise BadRequest(_LEFT_OUT)

    def set_level(self, logger: str, level: str) -> None:
        raise BadRequest(_LEFT_OUT)


class _RemoteOffsets:
    """Offsets that another worker keeps, which checks those that are set. Where they could end is
    not known."""

    def __init__(self, pairs: Sequence[tuple[Facts, Facts]]) -> None:
        self._pairs = pairs

    def read(self) -> Sequence[tuple[Facts, Facts]]:
        return self._pairs

    def lag(self) -> None:
        return None

    def holes(self) -> Sequence[Hole]:
        return ()


class _SinkOffsets(_RemoteOffsets, LedgerPositions):
    noted = ""

    def _check_topic(self, topic: str) -> None:
        pass


class _SourceOffsets(_RemoteOffsets, StoredSourceOffsets):
    pass


def _by_partition(pair: tuple[Facts, Facts]) -> tuple[str, int]:
    partition, _ = pair
    return str(partition.get("kafka_topic")), int(partition.get("kafka_partition", 0))


def _place(name: str) -> str:
    return f"/connectors/{quote(name, safe='')}"


def _part(status: Mapping[str, Any]) -> Part:
    trace = str(status.get("trace") or "")
    if len(trace) > 2 * _KEPT:  # without the words that are cut, which may be halves of secrets
        head, tail = trace[:_KEPT].rsplit(None, 1)[0], trace[-_KEPT:].split(None, 1)[-1]
        trace = f"{head}\n…\n{tail}"
    return Part(str(status["state"]), str(status.get("worker_id", "")), redacted(trace))


def _key(entry: Mapping[str, Any]) -> dict[str, Any]:
    fields = ConfigKeyInfo.__dataclass_fields__
    values = {name: value for name, value in entry.items() if name in fields and value is not None}
    return {**_OF_KEYS, **values}
