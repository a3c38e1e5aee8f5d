"""Kafka Connect's config and status topics: their records, read and written in its own format.

A record has a text key whose prefix says what it is, and a JSON value without schema. The config
topic also has one key of semel's own, ``semel-assignment``, which Kafka Connect ignores.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import logging
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from semel.config import whole
from semel.config.connector import MOST_TASKS
from semel.core.errors import ServiceError
from semel.core.ledger import OWNERS_FORMAT, check_format
from semel.core.quoting import named
from semel.driver.base import State, Wait, WaitKind
from semel.sources import is_source
from semel.worker.herder import Part

log = logging.getLogger(__name__)

Record = tuple[bytes, bytes | None]
"""Key and value; a value of None deletes the key."""

_CONNECTOR, _TARGET, _TASK, _COMMIT = "connector-", "target-state-", "task-", "commit-"
_RESTART, _LOGGER = "restart-connector-", "logger-cluster-"
_ASSIGNMENT = "semel-assignment"
_SESSION_KEY = "session-key"
_OF_CONNECT = "task.class"
"""A key that Kafka Connect adds to the configurations of tasks."""
_FIRST_POSITION = "first.position"
_PEER = b"semel: a worker of the cluster"
_OF_CONNECTOR, _OF_TASK, _OF_TOPIC = "status-connector-", "status-task-", "status-topic-"
_READ_BY = ":connector-"
_LEAVING = "semel-worker-"
_TARGETS = {State.RUNNING: "STARTED", State.PAUSED: "PAUSED", State.STOPPED: "STOPPED"}
_STATES = {word: state for state, word in _TARGETS.items()}
_UNREADABLE = (AttributeError, KeyError, TypeError, ValueError, OverflowError, RecursionError)


@dataclass(frozen=True, slots=True)
class Assignment:
    """Which worker, by its URL, runs which share of a connector. A single share is the whole
    connector; otherwise each share is a task. ``versions`` are those of the configurations that the
    numbers of shares were taken from."""

    epoch: int = 0
    workers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def owners(self) -> frozenset[str]:
        """The workers that have work."""
        return frozenset(owner for owners in self.workers.values() for owner in owners)

    def first(self, connector: str) -> str | None:
        """The worker that answers for a connector: that of the first task."""
        owners = self.workers.get(connector)
        return owners[0] if owners else None

    def owner(self, connector: str, task: int) -> str | None:
        """The worker that runs a task."""
        owners = self.workers.get(connector)
        if not owners:
            return None
        return owners[task] if task < len(owners) else owners[0]

    def tasks(self, connector: str, worker: str) -> frozenset[int] | None:
        """The tasks that a worker runs; None for all."""
        owners = self.workers.get(connector, ())
        if len(owners) == 1 and owners[0] == worker:
            return None
        return frozenset(n for n, owner in enumerate(owners) if owner == worker)


@dataclass(frozen=True, slots=True)
class Restart:
    """A request to restart a connector (KIP-745)."""

    connector: str
    include_tasks: bool
    only_failed: bool


@dataclass(frozen=True, slots=True)
class Level:
    """A request to set a logger's level on all workers (KIP-976)."""

    logger: str
    level: str


@dataclass(frozen=True, slots=True)
class Tasks:
    """How many tasks a connector has, and the configuration of the first one."""

    count: int
    config: Mapping[str, str]


@dataclass
class Configs:
    """The contents of the config topic, as far as it has been read."""

    connectors: dict[str, dict[str, str]] = field(default_factory=dict)
    targets: dict[str, State] = field(default_factory=dict)
    tasks: dict[str, Tasks] = field(default_factory=dict)
    """what workers of Kafka Connect have committed, by connector; semel leaves it as it is, in case
    they come back"""
    assignment: Assignment = Assignment()
    session_key: str = field(default="", repr=False)
    """the secret of the cluster's workers, as Kafka Connect's leaders write it (KIP-507)"""
    _firsts: dict[str, dict[str, str]] = field(default_factory=dict)
    """the configuration of each connector's first task, committed or not"""

    def version(self, connector: str) -> str:
        """The version of a connector's configuration."""
        text = json.dumps(self.connectors.get(connector, {}), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def run(self, connector: str) -> Mapping[str, str]:
        """The configuration that a connector is started with. If Kafka Connect ran it until now, a
        sink continues where that stopped, at its consumer group's offsets. Otherwise such offsets
        are not trusted: they might be copies of a ledger that is gone."""
        config, tasks = self.connectors[connector], self.tasks.get(connector)
        taken_over = tasks is not None and _OF_CONNECT in tasks.config
        is_sink = not is_source(config.get("connector.class", ""))
        return {_FIRST_POSITION: "group", **config} if taken_over and is_sink else config

    def target(self, connector: str) -> State:
        """The state that a connector should have."""
        return self.targets.get(connector, State.RUNNING)

    @property
    def peer_token(self) -> str:
        """A token that only the cluster's workers know; empty until there is a session key."""
        if not self.session_key:
            return ""
        return hmac.new(self.session_key.encode(), _PEER, hashlib.sha256).hexdigest()

    def apply(self, key: bytes, value: bytes | None) -> Restart | Level | None:
        """Apply a record; returns what it requests of running workers. A record that cannot be read
        is skipped with a warning, as in Kafka Connect."""
        name = key.decode(errors="replace")
        try:
            return self._applied(name, _facts(value))
        except _UNREADABLE as error:
            log.warning("config topic: skipping the record %s: %r", named(name), error)
            return None

    def _applied(self, name: str, facts: Mapping[str, Any] | None) -> Restart | Level | None:
        if name == _ASSIGNMENT:
            if facts is None:
                self.assignment = Assignment()
                return None
            assignment = facts
            try:
                check_format("the assignment", assignment["format"], OWNERS_FORMAT)
            except ServiceError as error:
                log.error("config topic: %s. Until then this worker runs nothing", error)
                assignment = {**assignment, "workers": {}, "versions": {}}
            workers = {of: tuple(each) for of, each in assignment["workers"].items()}
            self.assignment = Assignment(
                int(assignment["epoch"]), workers, dict(assignment["versions"])
            )
        elif name == _SESSION_KEY:
            self.session_key = "" if facts is None else str(facts["key"])
        elif (connector := _after(_RESTART, name)) is not None:
            if facts is not None:
                flags = (facts.get(name) is True for name in ("include-tasks", "only-failed"))
                return Restart(connector, *flags)
        elif (connector := _after(_CONNECTOR, name)) is not None:
            self._configure(connector, facts)
        elif (connector := _after(_TARGET, name)) is not None:
            _keep(self.targets, connector, facts, _target)
        elif (connector := _after(_COMMIT, name)) is not None:
            first = self._firsts.get(connector, {})
            _keep(self.tasks, connector, facts, lambda f: Tasks(int(f["tasks"]), first))
        elif (task := _after(_TASK, name)) is not None:
            connector, _, number = task.rpartition("-")
            if number == "0":
                _keep(self._firsts, connector, facts, _properties)
        elif (logger := _after(_LOGGER, name)) is not None and facts is not None:
            return Level(logger, str(facts["level"]))
        return None

    def _configure(self, connector: str, facts: Mapping[str, Any] | None) -> None:
        if facts is None:
            self.connectors.pop(connector, None)
            self.tasks.pop(connector, None)
            return
        self.connectors[connector] = _properties(facts)


def configured(connector: str, config: Mapping[str, str]) -> Record:
    """A connector's configuration."""
    return _record(_CONNECTOR + connector, {"properties": dict(config)})


def forgotten(connector: str) -> list[Record]:
    """The records that delete a connector. Its tasks may be Kafka Connect's; left behind, they
    would make a new connector of that name look like one that Kafka Connect has run."""
    return [_record(key + connector, None) for key in (_CONNECTOR, _TARGET, _COMMIT)]


def targeted(connector: str, state: State) -> Record:
    """The state that a connector should have. Workers older than KIP-875 know only two states, and
    read the first field."""
    old = State.PAUSED if state is State.STOPPED else state
    facts = {"state": _TARGETS[old], "state.v2": _TARGETS[state]}
    return _record(_TARGET + connector, facts)


def restarting(request: Restart) -> Record:
    """A request to restart a connector."""
    facts = {"include-tasks": request.include_tasks, "only-failed": request.only_failed}
    return _record(_RESTART + request.connector, facts)


def levelled(request: Level) -> Record:
    """A request to set a logger's level."""
    return _record(_LOGGER + request.logger, {"level": request.level})


def session_key() -> Record:
    """A new secret of the cluster's workers."""
    key = base64.b64encode(secrets.token_bytes(32)).decode()
    facts = {"key": key, "algorithm": "HmacSHA256"}
    return _record(_SESSION_KEY, {**facts, "creation-timestamp": int(time.time() * 1000)})


def assigned(assignment: Assignment) -> Record:
    """The record of an assignment."""
    workers = {name: list(owners) for name, owners in assignment.workers.items()}
    facts = {"epoch": assignment.epoch, "workers": workers, "versions": dict(assignment.versions)}
    return _record(_ASSIGNMENT, {"format": OWNERS_FORMAT, **facts})


@dataclass(frozen=True, slots=True)
class StateRecord(Part):
    """What the status topic says of a connector or a task. ``generation`` is the epoch of the
    assignment under which it runs, ``version`` that of its configuration, where other workers need
    it."""

    generation: int = field(default=0, compare=False)
    version: str = ""

    def value(self) -> dict[str, Any]:
        """Its value in the topic."""
        trace = {"trace": self.trace or None}
        facts: dict[str, Any] = {"state": self.state, **trace, "worker_id": self.worker}
        facts["generation"] = self.generation
        # Kafka Connect's own "version" is that of a plugin (KIP-891).
        held_up = None if self.waiting is None else asdict(self.waiting)
        more = {"configuration": self.version, "executor": self.executor, "waiting": held_up}
        return facts | {name: value for name, value in more.items() if value}


@dataclass
class Statuses:
    """The contents of the status topic, as far as it has been read."""

    connectors: dict[str, StateRecord] = field(default_factory=dict)
    tasks: dict[str, dict[int, StateRecord]] = field(default_factory=dict)
    """by connector and number"""
    topics: dict[str, dict[str, int]] = field(default_factory=dict)
    """by connector and topic, the time in milliseconds at which it was first seen"""
    leaving: dict[str, int] = field(default_factory=dict)
    """workers that have shut down cleanly, by URL, with the time in milliseconds"""

    def apply(self, key: bytes, value: bytes | None) -> None:
        """Apply a record."""
        name = key.decode(errors="replace")
        try:
            self._applied(name, _facts(value))
        except _UNREADABLE as error:
            log.warning("status topic: skipping the record %s: %r", named(name), error)

    def known(self) -> set[str]:
        """The connectors that have a record."""
        nested = (table for table in (self.tasks, self.topics))
        return {*self.connectors, *(name for table in nested for name, of in table.items() if of)}

    def forgetting(self, connector: str) -> Iterator[Record]:
        """The records that remove a connector from the topic."""
        yield stated(connector, None)
        for number in self.tasks.get(connector, ()):
            yield task_stated(connector, number, None)
        for topic in self.topics.get(connector, ()):
            yield topic_used(connector, topic, None)

    def _applied(self, name: str, facts: Mapping[str, Any] | None) -> None:
        if (worker := _after(_LEAVING, name)) is not None:
            _keep(self.leaving, worker, facts, lambda f: int(f["leaving"]))
        elif (rest := _after(_OF_TOPIC, name)) is not None:
            topic, _, connector = rest.partition(_READ_BY)
            seen = self.topics.setdefault(connector, {})
            _keep(seen, topic, facts, lambda f: int(f["topic"]["discoverTimestamp"]))
        elif (rest := _after(_OF_TASK, name)) is not None:
            connector, _, number = rest.rpartition("-")
            tasks = self.tasks.setdefault(connector, {})
            _keep(tasks, whole(number, 0, MOST_TASKS - 1), facts, _state)
        elif (connector_name := _after(_OF_CONNECTOR, name)) is not None:
            _keep(self.connectors, connector_name, facts, _state)


def stated(connector: str, state: StateRecord | None) -> Record:
    """A connector's state."""
    return _record(_OF_CONNECTOR + connector, None if state is None else state.value())


def task_stated(connector: str, task: int, state: StateRecord | None) -> Record:
    """A task's state."""
    return _record(f"{_OF_TASK}{connector}-{task}", None if state is None else state.value())


def topic_used(connector: str, topic: str, at: int | None, task: int = 0) -> Record:
    """The record of a topic that a connector has used since a time in milliseconds (KIP-558)."""
    facts = {"name": topic, "connector": connector, "task": task, "discoverTimestamp": at}
    key = f"{_OF_TOPIC}{topic}{_READ_BY}{connector}"
    return _record(key, None if at is None else {"topic": facts})


def left(worker: str, at: int | None) -> Record:
    """The record of a worker that shuts down cleanly; None when it is back."""
    return _record(_LEAVING + worker, None if at is None else {"leaving": at})


def _target(facts: Mapping[str, Any]) -> State:
    return _STATES[facts.get("state.v2") or facts["state"]]


def _properties(facts: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(v) for name, v in facts["properties"].items() if v is not None}


def _state(facts: Mapping[str, Any]) -> StateRecord:
    trace, version, executor = (
        str(facts.get(name) or "") for name in ("trace", "configuration", "executor")
    )
    part = str(facts["state"]), str(facts["worker_id"]), trace, executor, _waiting(facts)
    return StateRecord(*part, int(facts.get("generation", 0)), version)


def _waiting(facts: Mapping[str, Any]) -> Wait | None:
    match facts.get("waiting"):
        case {"on": str(on), "why": str(why), "since": float(since)} if on in set(WaitKind):
            return Wait(WaitKind(on), why, since)
    return None


def _keep(
    table: dict[Any, Any],
    key: Any,
    facts: Mapping[str, Any] | None,
    read: Callable[[Mapping[str, Any]], Any],
) -> None:
    """Keep what is read from a record; without facts, it deletes the key."""
    if facts is None:
        table.pop(key, None)
    else:
        table[key] = read(facts)


def _after(prefix: str, name: str) -> str | None:
    return name[len(prefix) :] if name.startswith(prefix) else None


def _facts(value: bytes | None) -> dict[str, Any] | None:
    """What a record says; None deletes its key, as JSON's null does for Kafka Connect."""
    facts = None if value is None else json.loads(value)
    if facts is not None and not isinstance(facts, dict):
        raise TypeError("no JSON object")
    return facts


def _record(key: str, facts: Mapping[str, Any] | None) -> Record:
    text = None if facts is None else json.dumps(facts, separators=(",", ":"), ensure_ascii=False)
    return key.encode(), None if text is None else text.encode()
