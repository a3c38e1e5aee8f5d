"""What the stores of a topology hold, from a worker and from Python."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from semel.streams.query import stores
from tests.conftest import MakeTopic, Produce
from tests.engine.conftest import Config, Configure
from tests.engine.harness import wait_until
from tests.engine.streams.conftest import COLORS, by_key, values
from tests.engine.streams.topologies import TOPIC, visits
from tests.rest.conftest import Worker
from tests.rest.test_cluster import Join, join, keys  # noqa: F401

pytestmark = pytest.mark.integration

COUNT = 60
MODULES = "tests.engine.streams"
BEGIN = 1_790_000_000_000 // 60_000 * 60_000
STEP = 5_000
Ask = Callable[..., httpx.Response]


def time_of(i: int) -> int:
    return BEGIN + i * STEP


@pytest.fixture
def config(
    configure: Configure,
    topic: MakeTopic,
    produce: Produce,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Config:
    """A topology over a topic of two partitions, with records in it."""
    source = topic(2)
    monkeypatch.setenv(TOPIC, source)
    times = [time_of(i) for i in range(COUNT)]
    produce(source, values(COUNT), [by_key(i) for i in range(COUNT)], timestamps=times)
    return configure(
        None,
        {
            "provenance": None,
            "state.dir": str(tmp_path / "state"),
            "topology": f"{MODULES}.topologies:visits",
            "pk.fields": "color,odd",
        },
    )


def totals() -> dict[tuple[str, bool], dict[str, int]]:
    kinds = [(COLORS[i * i % 5], i % 2 == 1) for i in range(COUNT)]
    number = Counter(kinds)
    sums = {kind: sum(i for i in range(COUNT) if kinds[i] == kind) for kind in number}
    return {kind: {"count": n, "total": sums[kind]} for kind, n in number.items()}


def minutes() -> Counter[tuple[str, int]]:
    return Counter((by_key(i), time_of(i) // 60_000 * 60_000) for i in range(COUNT))


def asker(api: httpx.Client, name: str) -> Ask:
    def ask(store: str = "", **parameters: Any) -> httpx.Response:
        path = f"/semel/connectors/{name}/stores/{store}".rstrip("/")
        return api.get(path, params=parameters)

    return ask


def holds(ask: Ask) -> bool:
    """Whether the stores hold the results of all records."""
    found = ask("counts", limit=1000)
    if found.status_code != 200:
        return False
    by = {(e["key"]["color"], e["key"]["odd"]): e["value"] for e in found.json()["entries"]}
    return by == totals()


def windows(answer: httpx.Response) -> dict[tuple[str, int], int]:
    assert answer.status_code == 200, answer.text
    return {(e["key"], e["window"]["start"]): e["value"] for e in answer.json()["entries"]}


def check_answers(ask: Ask) -> None:
    """What a store answers: keys, ranges, windows, pages, and nothing for what is absent."""
    (one,) = ask("counts", key='{"odd": true, "color": "blue"}').json()["entries"]
    assert one["value"] == totals()["blue", True] and one["key"] == {"color": "blue", "odd": True}
    assert one["window"] is None and one["timestamp"] >= BEGIN
    assert ask("counts", key='{"odd": true, "color": "pink"}').json()["entries"] == []
    every = minutes()
    assert windows(ask("minutes", limit=1000)) == every
    assert windows(ask("minutes", key="k3")) == {k: n for k, n in every.items() if k[0] == "k3"}
    low, high = BEGIN + 60_000, BEGIN + 120_000
    ranged = windows(ask("minutes", **{"from": "k2", "to": "k4"}, since=low, until=high))
    assert ranged == {
        k: n for k, n in every.items() if "k2" <= k[0] <= "k4" and low <= k[1] <= high
    }
    found: dict[tuple[str, int], int] = {}
    after: dict[str, str] = {}
    while True:
        page = ask("minutes", limit=7, **after)
        assert 0 < len(page.json()["entries"]) <= 7
        found |= windows(page)
        if page.json()["after"] is None:
            break
        after = {"after": page.json()["after"]}
    assert found == every and list(found) == sorted(every)


def test_stores_answer_while_the_application_runs_and_when_it_is_stopped(
    worker: Worker, config: Config
) -> None:
    api, name = worker(**{"semel_python_modules": MODULES}), config["name"]
    put = api.put(f"/connectors/{name}/config", json=config)
    assert put.status_code == 201, put.text
    ask = asker(api, name)
    wait_until(lambda: holds(ask))
    listed = {s["name"]: s for s in ask().json()["stores"]}
    assert listed.keys() == {"counts", "minutes"}
    assert listed["minutes"]["kind"] == "windows"
    assert listed["counts"]["changelog"] == f"{name}-counts-changelog"
    check_answers(ask)
    assert api.put(f"/connectors/{name}/stop").status_code == 204
    check_answers(ask)
    asked = stores(visits(), config)
    assert asked.get("counts", {"color": "blue", "odd": True}) == totals()["blue", True]
    assert asked.get("counts", {"color": "pink", "odd": True}) is None
    page = asked.entries("minutes", key="k3", since=BEGIN, limit=1000)
    assert {(e.key, e.window[0]): e.value for e in page.entries if e.window} == {
        k: n for k, n in minutes().items() if k[0] == "k3"
    }


@pytest.mark.long
def test_what_cannot_be_answered_is_refused(
    worker: Worker, config: Config, configure: Configure, topic: MakeTopic
) -> None:
    api, name = worker(**{"semel_python_modules": MODULES}), config["name"]
    body = {"name": name, "config": config, "initial_state": "STOPPED"}
    assert api.post("/connectors", json=body).status_code == 201
    ask = asker(api, name)
    never = ask("counts")
    assert never.status_code == 404 and "has not run yet" in never.text
    assert ask("others").status_code == 404 and "it has" in ask("others").text
    assert asker(api, "nobody")().status_code == 404
    for given in ({"limit": 0}, {"limit": "x"}, {"since": 5}, {"after": "x"}, {"until": "now"}):
        answer = ask("counts", **given)
        assert answer.status_code == 400, (given, answer.text)
    plain = configure(topic())
    plain_body = {"name": plain["name"], "config": plain, "initial_state": "STOPPED"}
    assert api.post("/connectors", json=plain_body).status_code == 201
    assert "is no topology" in asker(api, plain["name"])().text
    assert api.put(f"/connectors/{name}/resume").status_code == 202
    wait_until(lambda: holds(ask))
    wrong = ask("counts", key="red")
    assert wrong.status_code == 400 and "they are like" in wrong.text


@pytest.mark.long
def test_a_worker_does_not_load_a_topology_that_it_may_not_run(
    worker: Worker, config: Config
) -> None:
    api = worker()
    answer = api.put(f"/connectors/{config['name']}/config", json=config)
    assert answer.status_code == 400 and "semel.python.modules" in answer.text


@pytest.fixture
def workers(join: Join) -> Iterator[list[Any]]:  # noqa: F811
    yield [join(**{"semel.python.modules": MODULES}) for _ in range(2)]


@pytest.mark.long
def test_any_worker_of_a_cluster_answers(workers: list[Any], config: Config) -> None:
    name = config["name"]
    body = json.loads(json.dumps(config))
    wait_until(
        lambda: workers[0].api.put(f"/connectors/{name}/config", json=body).status_code == 201
    )
    for each in workers:
        ask = asker(each.api, name)
        wait_until(lambda ask=ask: holds(ask))
        check_answers(ask)
