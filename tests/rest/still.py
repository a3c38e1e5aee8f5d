"""A worker's API in this process, with connectors that never run: no service is needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

from fastapi.testclient import TestClient

from semel.config import read
from semel.config.worker import WorkerConfig
from semel.driver.base import Progress, State
from semel.driver.planning import AnyPlan, plan_any
from semel.driver.run import Tally
from semel.worker.audits import Audits
from semel.worker.errors import Conflict
from semel.worker.herder import Answer, Herder, Part, Parts
from semel.worker.loggers import RecentLines
from semel.worker.observed import Lags, ObservedConnector
from semel.worker.page import add_page
from semel.worker.page.figures import History, Peers
from semel.worker.page.site import PageContext
from semel.worker.rest.app import application
from semel.worker.rest.guard import guarded
from semel.worker.rest.users import users

HOST = "http://worker:8083"
POSTGRES = {
    "connector.class": "postgresql",
    "bootstrap.servers": "kafka:9092",
    "topics": "orders",
    "connection.url": "jdbc:postgresql://db/sales",
    "connection.password": "open sesame",
}


class Still(Herder):
    """Keeps connectors in memory, and notes what it is told to do."""

    def __init__(self, worker: WorkerConfig) -> None:
        super().__init__(worker)
        self.given: dict[str, dict[str, str]] = {}
        self.parts: dict[str, Parts] = {}
        self.told: list[tuple[Any, ...]] = []
        self.offsets: Any = None
        self.later: dict[str, list[Parts]] = {}
        self.records: dict[str, Any] = {}

    def has(
        self,
        name: str,
        config: Mapping[str, str] = POSTGRES,
        state: str = "RUNNING",
        trace: str = "",
        tasks: Sequence[str] = (),
    ) -> None:
        """Have a connector; its tasks are in these states, and the trace is theirs, too."""
        self.given[name] = {"name": name, **config}
        parts = {n: Part(each, "worker:8083", trace) for n, each in enumerate(tasks)}
        self.parts[name] = Parts(Part(state, "worker:8083", trace), parts)

    @property
    def _configs(self) -> Mapping[str, Mapping[str, str]]:
        return self.given

    def _parts(self, name: str) -> Parts | None:
        if self.later.get(name):
            self.parts[name] = self.later[name].pop(0)
        return self.parts.get(name)

    def _becomes(self, name: str, *states: str) -> None:
        """Go through these states, one at each look, but only after a first one, as connectors of
        another worker do."""
        now = self.parts[name]
        tasks = now.tasks.items()
        self.later[name] = [now] + [
            Parts(replace(now.connector, state=s), {n: replace(p, state=s) for n, p in tasks})
            for s in states
        ]

    def _tasks(self, name: str) -> Sequence[int]:
        return sorted(self.parts[name].tasks)

    def _is_stopped(self, name: str) -> bool:
        return self.parts[name].connector.state == State.STOPPED

    def create(self, name: str, config: Mapping[str, str], state: State) -> Answer:
        warned = self.check(config)
        if name in self.given:
            raise Conflict(f"Connector {name} already exists")
        self.has(name, config, state)
        self.told.append(("create", name, state))
        return self.info(name) | warned

    def put(self, name: str, config: Mapping[str, str]) -> tuple[bool, Answer]:
        warned = self.check(config)
        self.given[name] = dict(config)
        self.told.append(("put", name))
        return False, self.info(name) | warned

    def delete(self, name: str) -> None:
        self.config(name)
        del self.given[name], self.parts[name]
        self.told.append(("delete", name))

    def target(self, name: str, state: State) -> None:
        self._known(name)
        self.told.append(("target", name, state))
        self._becomes(name, state)

    def restart(self, name: str) -> None:
        self.config(name)
        self.told.append(("restart", name))
        self._becomes(name, State.RESTARTING, State.RUNNING)

    def restart_all(self, name: str, *, tasks: bool, only_failed: bool) -> Answer:
        self.told.append(("restart_all", name, tasks, only_failed))
        answer = self._restarting(name, tasks=tasks, only_failed=only_failed)
        self._becomes(name, State.RESTARTING, State.RUNNING)
        return answer

    def restart_task(self, name: str, task: int) -> None:
        self.told.append(("restart_task", name, task))
        self._becomes(name, State.RESTARTING, State.RUNNING)

    def _used_topics(self, name: str) -> Sequence[str]:
        return ()

    def _forget_topics(self, name: str) -> None:
        pass

    def set_level(self, logger: str, level: str) -> None:
        pass

    def tried(
        self, config: Mapping[str, str], function: Callable[..., Any], *arguments: Any
    ) -> Any:
        """What the test says is found about records, by the name of the function."""
        called = arguments[0].__name__
        self.told.append((called, config["name"], *arguments[1:]))
        return self.records[called]

    def look(self, name: str, call: Callable[[AnyPlan], Any]) -> Any:
        """With the offsets of the test, if it has some."""
        if self.offsets is None:
            return super().look(name, call)
        return call(cast(AnyPlan, SimpleNamespace(offsets=self.offsets)))


@dataclass
class StillWorker:
    """The worker, and what its page asks."""

    herder: Still
    client: TestClient
    history: History
    lines: RecentLines
    observed: list[ObservedConnector] = field(default_factory=list)
    lag: dict[str, dict[Any, int]] = field(default_factory=dict)

    def counts(self, name: str, progress: Progress) -> None:
        """Let a connector of the herder have these counts."""
        each = plan_any(self.herder.config(name))
        parts = self.herder.parts[name]
        tasks = {number: part.state for number, part in parts.tasks.items()}
        self.observed = [o for o in self.observed if o.name != name]
        self.observed.append(
            ObservedConnector(each, parts.connector.state, tasks, progress, Tally())
        )


class _Lags(Lags):
    def __init__(self, known: Mapping[str, Mapping[Any, int]]) -> None:
        super().__init__()
        self._known = known

    def recent(self, name: str, seconds: float) -> Mapping[Any, int]:
        return self._known.get(name, {})


def still_worker(**keys: str) -> StillWorker:
    """A worker with this configuration, and its page."""
    raw = {"semel.rest.authentication": "none", **{k.replace("_", "."): v for k, v in keys.items()}}
    raw |= {"rest.advertised.host.name": "worker", "rest.advertised.port": "8083"}
    worker = read(WorkerConfig, raw)
    herder, lines, lag = Still(worker), RecentLines(), cast(dict[str, dict[Any, int]], {})
    known = users(worker)
    found: StillWorker
    history = History(lambda: found.observed, _Lags(lag))
    app = application(herder, worker, cast(Any, None), known)
    add_page(
        app, PageContext(herder, Audits(herder.connectors), lines, history, known, Peers(worker))
    )
    client = TestClient(guarded(app, worker, known), base_url=HOST, follow_redirects=False)
    found = StillWorker(herder, client, history, lines, lag=lag)
    return found
