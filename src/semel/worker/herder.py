"""What a worker's REST API does to connectors, whether one worker runs them or a cluster.

Answers have Kafka Connect's shape, and errors its wording, because tools read them.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

from semel.config.worker import WorkerConfig
from semel.core.abandoned import Abandoned, within
from semel.core.errors import ConfigError, Unresolvable
from semel.driver import letters
from semel.driver.base import State, Wait
from semel.driver.offsets import Offsets
from semel.driver.planning import AnyPlan, plan_any, with_plan
from semel.driver.planning.base import without_references
from semel.driver.validation import ConfigKeyInfo
from semel.sinks import is_sink
from semel.sources import is_source
from semel.worker import plugins
from semel.worker.errors import BadRequest, Forbidden, NotFound, ServiceUnavailable
from semel.worker.secrets import kept

log = logging.getLogger(__name__)

T = TypeVar("T")
Answer = dict[str, Any]

_READS_IN, _CHANGES_IN = 30.0, 90.0
"""Seconds within which a store must answer a request. Kafka Connect's limit is the larger."""


@dataclass(frozen=True, slots=True)
class Part:
    """The state of a connector or a task, and the worker that runs it."""

    state: str
    worker: str
    trace: str = ""
    executor: str = ""
    waiting: Wait | None = None

    def answer(self) -> Answer:
        """As the REST API writes it."""
        answer = {"state": self.state, "worker_id": self.worker}
        answer |= {"version": plugins.VERSION}  # the plugin's (KIP-891)
        answer |= {"executor": self.executor} if self.executor else {}
        return answer | ({"trace": self.trace} if self.trace else {})


@dataclass(frozen=True, slots=True)
class Parts:
    """A connector's state and those of its tasks."""

    connector: Part
    tasks: Mapping[int, Part] = field(default_factory=dict)


class Herder(ABC):
    """Creates, changes, restarts and deletes connectors."""

    has_ledgers: ClassVar[bool] = True
    """Whether connectors have ledgers, and this worker can look at their records."""

    def __init__(self, worker: WorkerConfig) -> None:
        self._worker = worker

    def peer_token(self) -> str:
        """What the cluster's workers know one another by; empty without a cluster."""
        return ""

    # What depends on where connectors are kept and run

    @property
    @abstractmethod
    def _configs(self) -> Mapping[str, Mapping[str, str]]:
        """Connectors' configurations, as they were given."""

    @abstractmethod
    def _parts(self, name: str) -> Parts | None:
        """The states of a connector; None if nothing is known about it."""

    @abstractmethod
    def _tasks(self, name: str) -> Sequence[int]:
        """The numbers of a connector's tasks."""

    @abstractmethod
    def _is_stopped(self, name: str) -> bool:
        """Whether a connector was stopped and has ended."""

    @abstractmethod
    def create(self, name: str, config: Mapping[str, str], state: State) -> Answer:
        """Add a connector, in this state (KIP-980).

        Raises:
            BadRequest: its configuration is invalid.
            Conflict: a connector of this name exists.
        """

    @abstractmethod
    def put(self, name: str, config: Mapping[str, str]) -> tuple[bool, Answer]:
        """Set a connector's configuration; returns whether the connector is new.

        Raises:
            BadRequest: the configuration is invalid. The connector continues unchanged.
        """

    @abstractmethod
    def delete(self, name: str) -> None:
        """Stop a connector and forget it. Its ledger stays."""

    @abstractmethod
    def target(self, name: str, state: State) -> None:
        """Let a connector run, be paused, so that it reads nothing, or be stopped: then its tasks
        end, which is waited for, and it keeps its configuration (KIP-875)."""

    @abstractmethod
    def restart(self, name: str) -> None:
        """Restart a connector without its tasks."""

    @abstractmethod
    def restart_all(self, name: str, *, tasks: bool, only_failed: bool) -> Answer:
        """Restart a connector and its tasks (KIP-745); returns what is being restarted."""

    @abstractmethod
    def restart_task(self, name: str, task: int) -> None:
        """Restart one task."""

    @abstractmethod
    def _used_topics(self, name: str) -> Sequence[str]:
        """The topics that a connector has used since they were reset."""

    @abstractmethod
    def _forget_topics(self, name: str) -> None:
        """Forget the topics that a connector has used."""

    @abstractmethod
    def set_level(self, logger: str, level: str) -> None:
        """Set a logger's level on all workers (KIP-976)."""

    @property
    def is_ready(self) -> bool:
        """Whether this worker has completed its startup (KIP-1017)."""
        return True

    @property
    def me(self) -> str:
        """What the workers of a cluster call this one."""
        return self._worker.id

    @property
    def members(self) -> frozenset[str]:
        """The workers that share the connectors, by the same names."""
        return frozenset({self.me})

    @property
    def rebalances(self) -> Mapping[str, float | str]:
        """Kafka Connect's attributes of ``connect-worker-rebalance-metrics``; none for a worker
        that runs alone."""
        return {}

    def own(self, name: str, task: int = 0) -> None:
        """Make sure that this worker runs a task; a worker that runs alone runs all of them.

        Raises:
            NotFound: there is no such connector.
            OtherWorker: another worker runs it.
            UnknownWorker: no worker runs it at the moment.
        """
        self.config(name)

    def lead(self) -> None:  # noqa: B027
        """Make sure that this worker leads; a worker that runs alone always does.

        Raises:
            OtherWorker: another worker leads.
            UnknownWorker: no worker leads at the moment.
        """

    # Configurations

    def connectors(self) -> list[str]:
        """Their names."""
        return list(self._configs)

    def config(self, name: str) -> dict[str, str]:
        """A connector's configuration, as it was given."""
        try:
            return dict(self._configs[name])
        except KeyError:
            raise NotFound(f"Connector {name} not found") from None

    def inherited(self, name: str) -> dict[str, str]:
        """What a connector runs with: its configuration, and what it has from the worker."""
        return self._worker.inherited(self.config(name))

    def info(self, name: str) -> Answer:
        """``GET /connectors/{name}``."""
        config = self.config(name)
        tasks = [{"connector": name, "task": n} for n in self._tasks(name)]
        return {"name": name, "config": config, "tasks": tasks, "type": _type(config)}

    def kept(self, name: str, config: Mapping[str, str]) -> dict[str, str]:
        """A given configuration with the secrets that it has as answers show them.

        Raises:
            BadRequest: there is no such secret.
        """
        return kept(config, self._configs.get(name, {}))

    def patch(self, name: str, changes: Mapping[str, str | None]) -> Answer:
        """Change some keys; one that is null is removed (KIP-477)."""
        merged = {**self.config(name), **changes}
        return self.put(name, {k: v for k, v in merged.items() if v is not None})[1]

    def connector_plugins(self) -> list[dict[str, str]]:
        """``GET /connector-plugins``."""
        return plugins.listed(connectors_only=True)

    def definitions(self, plugin: str) -> Sequence[ConfigKeyInfo]:
        """``GET /connector-plugins/{plugin}/config``.

        Raises:
            NotFound: there is no such plugin.
        """
        return plugins.definitions_of(plugin)

    def validate(self, plugin: str, config: plugins.RequestConfig) -> Answer:
        """``PUT /connector-plugins/{plugin}/config/validate``."""
        return plugins.apart(plugins.READS, plugins.answer, plugin, config, self._worker)

    def check(self, config: plugins.RequestConfig) -> Answer:
        """What an answer says in addition about a configuration that is not refused: its warnings,
        if there are any.

        Raises:
            BadRequest: names everything that is wrong with it.
        """
        return plugins.apart(plugins.SETS, plugins.unrefused, config, self._worker)

    def _known(self, name: str) -> None:
        if name not in self._configs:
            raise NotFound(f"Unknown connector {name}")

    # States

    def status(self, name: str) -> Answer:
        """``GET /connectors/{name}/status``."""
        parts = self._parts(name)
        if parts is None:
            raise NotFound(f"No status found for connector {name}")
        return {
            "name": name,
            "connector": parts.connector.answer(),
            "tasks": [{"id": n, **part.answer()} for n, part in sorted(parts.tasks.items())],
            "type": _type(self._configs.get(name, {})),
        }

    def waiting(self, name: str) -> Mapping[int | None, Wait]:
        """What its tasks wait for, by number, and what it waits for itself, by None."""
        parts = self._parts(name)
        if parts is None:
            return {}
        numbered: list[tuple[int | None, Part]] = [(None, parts.connector), *parts.tasks.items()]
        return {number: part.waiting for number, part in numbered if part.waiting is not None}

    def task_status(self, name: str, task: int) -> Answer:
        """``GET /connectors/{name}/tasks/{task}/status``."""
        parts = self._parts(name)
        if parts is None or task not in parts.tasks:
            raise NotFound(f"No status found for task {name}-{task}")
        return {"id": task, **parts.tasks[task].answer()}

    def task_configs(self, name: str) -> list[Answer]:
        """``GET /connectors/{name}/tasks``."""
        config = self.config(name)
        return [{"id": {"connector": name, "task": n}, "config": config} for n in self._tasks(name)]

    def _restarting(self, name: str, *, tasks: bool, only_failed: bool) -> Answer:
        """The status that answers a request to restart.

        Raises:
            NotFound: there is no such connector.
        """
        if name not in self._configs:
            raise NotFound(f"Unknown connector: {name}")
        answer = self.status(name)
        parts = [answer["connector"], *(answer["tasks"] if tasks else ())]
        for part in parts:
            if part["state"] == State.FAILED or not only_failed:
                part["state"] = State.RESTARTING
        return answer

    def _log(self, name: str, what: str) -> None:
        log.info("connector %s: %s", name, what)

    def _log_restart(self, what: str, *, tasks: bool = False, only_failed: bool = False) -> None:
        with_tasks = " with its tasks" if tasks else ""
        failed = ", only of what has failed" if only_failed else ""
        self._log(what, f"restart requested{with_tasks}{failed}")

    # Topics and positions

    def topics(self, name: str) -> Answer:
        """``GET /connectors/{name}/topics`` (KIP-558): those it has used since they were reset."""
        if not self._worker.topic_tracking:
            raise Forbidden("Topic tracking is disabled.")
        return {name: {"topics": list(self._used_topics(name))}}

    def reset_topics(self, name: str) -> None:
        """``PUT /connectors/{name}/topics/reset``."""
        if not self._worker.topic_tracking:
            raise Forbidden("Topic tracking is disabled.")
        if not self._worker.topic_tracking_reset:
            raise Forbidden("Topic tracking reset is disabled.")
        self._forget_topics(name)

    def offsets(self, name: str) -> Answer:
        """``GET /connectors/{name}/offsets``: what the ledger holds (KIP-875)."""
        return self.with_offsets(name, lambda offsets: {"offsets": _pairs(offsets)})

    def with_offsets(self, name: str, call: Callable[[Offsets], T]) -> T:
        """Call ``call`` with a connector's stored offsets, and return what it finds."""
        result: T = self.look(name, lambda planned: call(planned.offsets))
        return result

    def alter_offsets(self, name: str, body: Mapping[str, Any], by: str) -> Answer:
        """``PATCH /connectors/{name}/offsets``, of a stopped connector: rewrites its ledger. ``by``
        names who asks for it."""
        if not body.get("offsets"):
            raise BadRequest(
                "Partitions / offsets need to be provided for an alter offsets request"
            )
        self._check_stopped(name)

        def alter(planned: AnyPlan) -> None:
            offsets = planned.offsets
            positions = map(offsets.text, offsets.set(offsets.checked(body["offsets"]), by))
            text = ", ".join(f"{where}={at}" for where, at in positions)
            self._log(name, f"offsets set: {text}")

        self._with_plan(name, alter, changes=True)
        return {"message": "The offsets for this connector have been altered successfully"}

    def reset_offsets(self, name: str, by: str) -> Answer:
        """``DELETE /connectors/{name}/offsets``, of a stopped connector: empties its ledger. ``by``
        names who asks for it."""
        self._check_stopped(name)

        self._with_plan(name, lambda planned: planned.offsets.reset(by), changes=True)
        self._log(name, "offsets reset")
        return {"message": "The offsets for this connector have been reset successfully"}

    def _check_stopped(self, name: str) -> None:
        self.config(name)
        if not self._is_stopped(name):
            raise BadRequest(
                "Connectors must be in the STOPPED state before their offsets can be modified. "
                "This can be done for the specified connector by issuing a 'PUT' request to the "
                f"'/connectors/{name}/stop' endpoint"
            )

    def apart(self, name: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """What a function finds that is called with what a connector runs with, in a process that
        may die of what it reads.

        Raises:
            BadRequest: it has died, or took too long.
            TooManyRequests: too many others are being answered.
        """
        return self.tried(self.config(name), function, *arguments)

    def resend_letters(self, name: str, only: Any, by: str) -> letters.ResendResult:
        """Send the records of dead letters again to their topics: of the letter at a place, or of
        all that were not sent yet. ``by`` names who asks for it."""
        resent: letters.ResendResult = self.apart(name, with_plan, letters.resend, only)
        self._log(name, f"{resent.count} dead letters sent again by {by}")
        return resent

    def tried(
        self, config: Mapping[str, str], function: Callable[..., Any], *arguments: Any
    ) -> Any:
        """The same with a configuration that may be no connector's yet."""
        try:
            run = self._worker.inherited(self._worker.permitted(config))
        except ConfigError as error:
            raise BadRequest(str(error)) from None
        return plugins.apart(plugins.LOOKS, function, run, *arguments)

    def look(self, name: str, call: Callable[[AnyPlan], Any]) -> Any:
        """Call ``call`` with a new plan of the connector, and return what it finds."""
        return self._with_plan(name, call)

    def _with_plan(
        self, name: str, call: Callable[[AnyPlan], Any], *, changes: bool = False
    ) -> Any:
        """Plan the connector again, because the run's sink or source belongs to the run.

        Raises:
            ServiceUnavailable: a store or Kafka takes too long. Where ``call`` ``changes``
                something, it may still do so. Or the configuration refers to something that is not
                there now.
        """
        try:
            config = self._worker.permitted(self.config(name))
            planned = plan_any(self._worker.inherited(config))
        except Unresolvable as error:
            raise ServiceUnavailable(str(error)) from None
        except ConfigError as error:
            raise BadRequest(str(error)) from None

        def done() -> Any:
            try:
                return call(planned)
            except ConfigError as error:
                reason = without_references(str(error), planned.connector.originals)
                raise BadRequest(reason) from None
            finally:
                planned.close()

        bound = _CHANGES_IN if changes else _READS_IN
        try:
            return within(bound, f"a request about connector {name}", done)
        except Abandoned:
            outcome = ". It may still take effect: check the offsets before you repeat it"
            raise ServiceUnavailable(
                f"connector {name}: no answer from where it keeps its offsets within {bound:.0f} s"
                + (outcome if changes else "")
            ) from None


def _pairs(offsets: Offsets) -> list[Answer]:
    return [{"partition": dict(p), "offset": dict(o)} for p, o in offsets.read()]


def _type(config: Mapping[str, str]) -> str:
    name = config.get("connector.class", "").strip()
    if is_source(name):
        return "source"
    return "sink" if is_sink(name) else "unknown"  # it is not installed here
