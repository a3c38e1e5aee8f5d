"""Many faults, one after another: the results stay those of all records."""

from __future__ import annotations

import os
import random
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from semel.core import failpoints
from tests.engine.harness import LocalSpark, Running, sql, wait_until
from tests.engine.streams.conftest import PLACES, App

pytestmark = [pytest.mark.integration, pytest.mark.long]

FAULTS = int(os.environ.get("SEMEL_FAULTS", "25"))
_DROP = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
    "WHERE datname = current_database() AND pid <> pg_backend_pid()"
)


class Injector:
    """Injects faults into a running topology, which it starts again where that is the fault."""

    def __init__(self, app: App, points: Path, seed: int) -> None:
        self._app = app
        self._points = points
        self._dice = random.Random(seed)
        self._spark = LocalSpark(points)
        self.running = app.run(self._spark)
        self._frozen: list[int] = []

    def inject(self) -> str:
        kind = self._dice.choice(
            ["killed at", "killed at", "failed at", "frozen at", "killed", "dropped", "restarted"]
        )
        place = self._dice.choice(PLACES)
        if kind.endswith(" at"):
            action = {"killed at": "kill-worker", "failed at": "raise"}.get(kind, "freeze")
            failpoints.forget(self._points)
            failpoints.arm(self._points, place, action)
            self._app.feed(40)
            wait_until(lambda: bool(failpoints.fired(self._points)))
            if kind == "frozen at":
                self._replace()
            return f"{kind} {place}"
        self._app.feed(20)
        if kind == "killed":
            self._spark.signal(self._dice.choice(list(self._spark.workers)), signal.SIGKILL)
        elif kind == "dropped":
            sql(self._app.config["connection.url"], _DROP)
        else:
            return f"restarted, {self._restart()}"
        return kind

    def _replace(self) -> None:
        (fired,) = failpoints.fired(self._points)
        task = next(n for n, w in self._spark.workers.items() if w.pid == fired.pid)
        wait_until((self._points / f"frozen.{fired.pid}").exists)
        self._spark.replace(task)
        self._frozen.append(fired.pid)

    def thaw(self) -> None:
        """Wake up what was frozen: others have its partitions by now."""
        while self._frozen:
            failpoints.thaw(self._points, self._frozen.pop())

    def _restart(self) -> str:
        self.running.stop()
        tasks = self._dice.choice(["1", "2", "3"])
        self._app.config["tasks.max"] = tasks
        lost = self._dice.random() < 0.5
        if lost:
            shutil.rmtree(self._app.config["state.dir"], ignore_errors=True)
        self._spark = LocalSpark(self._points)
        self.running = self._app.run(self._spark)
        return f"{tasks} tasks{', local state lost' if lost else ''}"


@pytest.fixture
def injector(app: App, points: Path, request: pytest.FixtureRequest) -> Iterator[Injector]:
    made = Injector(app, points, getattr(request, "param", 1))
    yield made
    made.thaw()


@pytest.mark.parametrize("app", ["keys", "repartition"], indirect=True)
def test_results_stay_right_under_many_faults(app: App, injector: Injector) -> None:
    for number in range(FAULTS):
        what = injector.inject()
        running: Running = injector.running
        running.until(lambda _: app.is_right)
        injector.thaw()
        app.feed(10)
        injector.running.until(lambda _: app.is_right)
        print(number, what, app.sent)
    app.until_right(injector.running)
