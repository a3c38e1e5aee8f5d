"""The worker's page, ``/ui``: what it shows, what it does, and to whom."""

from __future__ import annotations

import contextvars
import json
import logging
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from semel.config import read
from semel.config.worker import WorkerConfig
from semel.core.context import CONNECTOR
from semel.core.ledger import Hole, TopicPartition
from semel.driver.base import Progress
from semel.worker.page import connector
from semel.worker.page.editing import Field
from semel.worker.page.figures import ConnectorSamples, Peers, Sample
from tests.conftest import MakeTopic
from tests.engine.conftest import Configure
from tests.engine.harness import records, wait_until
from tests.engine.streams.test_plans import CONFIG
from tests.patience import PATIENCE
from tests.rest.conftest import Worker
from tests.rest.still import HOST, POSTGRES, Still, StillWorker, still_worker
from tests.rest.test_security import users  # noqa: F401

ORDERS = TopicPartition("orders", 0)
OWN = {"Origin": HOST, "Sec-Fetch-Site": "same-origin"}
HOSTILE = [
    "<script>alert(1)</script>",
    "\"'><img src=x onerror=alert(1)>",
    "{{ 7*7 }}{% raw %}",
    "\u202eabc\u2066",
    "n" * 10_000,
]
BROKEN = "half of a character: \ud83d"


class Page(HTMLParser):
    """A page as a browser would read it: its elements, its texts, and what is open at its end."""

    EMPTY = ("meta", "link", "input", "br", "path", "polyline")

    def __init__(self, answer: httpx.Response) -> None:
        super().__init__()
        self.status = answer.status_code
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.words: list[str] = []
        self.open: list[str] = []
        self.feed(answer.content.decode())
        assert not self.open, f"not closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in self.EMPTY:
            self.open.append(tag)
        if tag not in ("bdi", "time", "textarea", "span"):
            self.words.append(" ")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join("".join(self.words).split())

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.elements if name == tag]

    def values(self) -> dict[str, str]:
        """The fields of its forms."""
        return {each["name"]: each.get("value", "") for each in self.all("input") if "name" in each}


def page(worker: StillWorker, path: str, **parameters: str) -> Page:
    return Page(worker.client.get(path, params=parameters or None))


def send(
    worker: StillWorker, path: str, name: str = "", view: str = "", **fields: str
) -> httpx.Response:
    """Send a form of a connector's page."""
    query = {key: value for key, value in (("name", name), ("view", view)) if value}
    return worker.client.post(path, params=query, data=fields, headers=OWN)


@pytest.fixture(name="still")
def make_still() -> StillWorker:
    return still_worker()


# What is red


def test_the_table_begins_with_what_has_failed(still: StillWorker) -> None:
    still.herder.has("b", tasks=["RUNNING"])
    still.herder.has("a", state="PAUSED", tasks=["PAUSED"])
    still.herder.has("c", tasks=["RUNNING", "FAILED"], trace="Boom")
    found = page(still, "/ui")
    links = [a["href"] for a in found.all("a") if a["href"].startswith("/ui/connector")]
    assert links == [f"/ui/connector?name={name}" for name in "cba"]
    assert "3 of 3 connectors, 1 with an error" in found.text
    assert "1 failed, 1 running" in found.text


def test_connectors_are_searched_filtered_and_sorted_by_the_address(still: StillWorker) -> None:
    for name, lag in (("orders-eu", 5), ("orders-us", 70), ("users", 0)):
        still.herder.has(name, tasks=["RUNNING"])
        still.counts(name, Progress(records=lag, positions={ORDERS: 1}))
        still.lag[name] = {ORDERS: lag}
    still.herder.has("gone", state="STOPPED")

    def named(**given: str) -> list[str]:
        links = [a["href"] for a in page(still, "/ui", **given).all("a")]
        return [link.partition("name=")[2] for link in links if "name=" in link]

    assert named(q="ORDERS") == ["orders-eu", "orders-us"]
    assert named(q="orders us") == ["orders-us"]
    assert named(state="STOPPED") == ["gone"]
    assert named(type="source") == []
    assert named(sort="lag", order="desc") == ["orders-us", "orders-eu", "users", "gone"]
    assert named(sort="lag") == ["users", "orders-eu", "orders-us", "gone"]
    assert len(named(sort="nonsense", order="nonsense")) == 4


def test_a_row_has_lag_rate_guarantee_and_the_course_of_15_minutes(
    still: StillWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1_000_000.0
    monkeypatch.setattr("semel.worker.page.figures.time.time", lambda: now)
    still.herder.has("orders", tasks=["RUNNING"])
    for at, lag in enumerate((0, 40, 80)):
        now = 1_000_000.0 + 30 * at
        still.counts("orders", Progress(records=60 * at, positions={ORDERS: 60 * at}, failed=4))
        still.lag["orders"] = {ORDERS: lag}
        still.history.take()
    now += 30
    still.counts("orders", Progress(records=180, positions={ORDERS: 180}, failed=4))
    found = page(still, "/ui")
    (svg,) = found.all("svg")
    assert svg["aria-label"] == "Lag in the last 15 minutes: 0 to 80, now 80"
    assert len(found.all("polyline")[0]["points"].split()) == 4
    assert " 2.0 80 1 min " in found.text  # it ended at 100 then, and at 200 half a minute later
    assert " 4 " in found.text
    assert "exactly-once" in found.text


def test_a_worker_without_the_first_task_shows_no_figures_of_its_own(still: StillWorker) -> None:
    still.herder.has("orders", tasks=["RUNNING", "RUNNING"])
    still.counts("orders", Progress(records=777, positions={ORDERS: 777}))
    still.observed = [replace(each, is_counted=False) for each in still.observed]
    still.lag["orders"] = {ORDERS: 888}
    for path in ("/ui", "/ui/connector"):
        text = page(still, path, name="orders").text
        assert "777" not in text
        assert "888" not in text
    assert "Not known on this worker." in text


@pytest.fixture(name="other")
def make_other() -> Iterator[tuple[str, StillWorker]]:
    """Another worker of the cluster, and its URL."""
    other = still_worker()

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer = other.client.get(self.path)
            self.send_response(answer.status_code)
            self.send_header("Content-Length", str(len(answer.content)))
            self.end_headers()
            self.wfile.write(answer.content)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", other
        server.shutdown()


def test_figures_of_another_workers_connectors_are_shown_too(
    still: StillWorker, other: tuple[str, StillWorker], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, there = other
    still.herder.has("orders", tasks=["RUNNING", "RUNNING"])
    there.herder.has("orders", tasks=["RUNNING", "RUNNING"])
    there.counts("orders", Progress(records=777, positions={ORDERS: 777}, failed=3, commits=1))
    there.lag["orders"] = {ORDERS: 888}
    there.history.take()
    monkeypatch.setattr(Still, "members", frozenset({"http://worker:8083", url}))
    monkeypatch.setattr("semel.worker.page.figures._FIRST", PATIENCE)
    found = page(still, "/ui")
    assert " 888 " in found.text
    assert " 3 " in found.text
    assert "exactly-once" in found.text
    assert f"{url} no 0 0 " in found.text
    assert found.text.count("0.1.0") == 3  # that of the page, and those of both workers


def test_a_worker_that_does_not_answer_holds_no_page_up(
    still: StillWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    still.herder.has("orders", tasks=["RUNNING"])
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}"
        monkeypatch.setattr(Still, "members", frozenset({"http://worker:8083", url}))
        monkeypatch.setattr("semel.worker.page.figures._TIMEOUT", 1.0)
        assert f"{url} no 0 0 – –" in page(still, "/ui").text


def test_a_worker_is_not_asked_again_before_it_has_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked, answers = [], threading.Event()

    def ask(_peers: Peers, url: str, _login: str) -> None:
        asked.append(url)
        assert answers.wait(PATIENCE)

    monkeypatch.setattr(Peers, "_ask", ask)
    for name, seconds in (("_FRESH", 0.0), ("_FIRST", 0.01), ("_AT_ONCE", 4)):
        monkeypatch.setattr(f"semel.worker.page.figures.{name}", seconds)
    peers = Peers(read(WorkerConfig, {}))
    for _ in range(3):
        peers.now(["http://a", "http://b"], "")
    answers.set()
    assert asked == ["http://a", "http://b"]


@pytest.mark.parametrize(
    ("samples", "behind"),
    [
        ([], None),
        ([Sample(0, 0, 5, None)], None),
        ([Sample(0, 0, 5, 0)], 0.0),
        ([Sample(0, 0, 5, 5), Sample(30, 0, 10, 0), Sample(60, 0, 10, 9)], 30.0),
        ([Sample(0, 0, 5, 500), Sample(30, 0, 6, 600)], 30.0),  # longer than anybody knows
    ],
)
def test_lag_in_time_is_when_the_log_ended_where_the_connector_is(
    samples: list[Sample], behind: float | None
) -> None:
    assert ConnectorSamples(samples).behind == behind


def test_a_run_that_starts_again_has_no_negative_rate() -> None:
    samples = [Sample(0, 900, 900, 0), Sample(30, 10, 910, 0), Sample(60, 70, 970, 0)]
    assert [rate for _, rate in ConnectorSamples(samples).rates] == [2.0]


def test_500_connectors_ask_kafka_nothing(
    still: StillWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("semel.kafka.cluster.Cluster.__init__", lambda *_a, **_k: pytest.fail())
    for number in range(500):
        still.herder.has(f"c{number}", tasks=["RUNNING"])
    assert "500 of 500 connectors" in page(still, "/ui").text


def test_only_what_changes_is_sent_again(still: StillWorker) -> None:
    still.herder.has("orders", tasks=["RUNNING"])
    part = page(still, "/ui", part="1")
    assert not part.all("html")
    assert [div["id"] for div in part.all("div") if "data-live" in div] == ["table"]


def test_open_pages_share_a_table_but_a_reader_shares_none_of_a_writers(
    users: dict[str, str],  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr("semel.worker.page.overview.time.monotonic", lambda: now)
    worker = still_worker(**users)

    def asks(who: tuple[str, str], **given: str) -> str:
        return worker.client.get("/ui", params={"part": "1", **given}, auth=who).text

    ada, grace = ("ada", "lovelace"), ("grace", "hop:per")
    before = asks(ada)
    assert "Create the first one" in before
    worker.herder.has("orders")
    assert asks(ada) == before
    assert "orders" in asks(ada, q="orders")
    assert "orders" in asks(grace)
    now += 3
    assert "orders" in asks(ada)


def test_a_page_that_is_kept_up_to_date_plans_nothing(
    still: StillWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    still.herder.has("orders", tasks=["RUNNING"])
    monkeypatch.setattr(still.herder, "look", lambda *_: pytest.fail())
    part = page(still, "/ui/connector", name="orders", part="1")
    assert [div["id"] for div in part.all("div") if "data-live" in div] == ["state", "lines"]


# Why


def test_a_page_tells_why_a_connector_and_its_tasks_have_failed(still: StillWorker) -> None:
    still.herder.has("orders", state="FAILED", tasks=["FAILED"], trace="Boom: disk full")
    found = page(still, "/ui/connector", name="orders")
    assert found.text.count("Boom: disk full") == 2
    assert "Restart what has failed" in found.text
    assert "exactly-once , transactional" in found.text.replace("exactly-once,", "exactly-once ,")


def test_the_stores_of_a_topology_are_shown_with_their_changelogs() -> None:
    worker = still_worker(semel_python_modules="tests.engine.streams.test_plans")
    worker.herder.has("app", {k: v for k, v in CONFIG.items() if k != "name"})
    text = page(worker, "/ui/connector", name="app").text
    assert "Stores of its topology" in text
    assert "app-customers-repartition app-" in text
    assert "-changelog" in text


def test_the_table_is_followed_by_topologies_with_their_stores(
    still: StillWorker, other: tuple[str, StillWorker], monkeypatch: pytest.MonkeyPatch
) -> None:
    still.herder.has("orders")
    still.counts("orders", Progress())
    assert "Topologies" not in page(still, "/ui").text
    url, there = other
    for worker in (still, there):  # the other one counts it
        worker.herder.has("app", {k: v for k, v in CONFIG.items() if k != "name"})
    there.counts("app", Progress())
    monkeypatch.setattr(Still, "members", frozenset({"http://worker:8083", url}))
    monkeypatch.setattr("semel.worker.page.figures._FIRST", PATIENCE)
    found = page(still, "/ui")
    store = page(there, "/ui").text.partition("Topology Stores app ")[2].split()[0]
    assert "STATE-STORE" in store
    assert f"Topology Stores app {store} " in found.text


def test_restarts_are_listed_with_their_reasons(still: StillWorker) -> None:
    still.herder.has("orders", tasks=["RUNNING"])
    log = logging.Logger("some")
    log.addHandler(still.lines)
    log.setLevel(logging.INFO)

    def lines() -> None:
        CONNECTOR.set("orders")
        log.info("reads orders-0")
        log.info("task 0: restart requested")
        log.warning("task 0 has failed and starts again: <b>disk</b> full")

    contextvars.copy_context().run(lines)
    found = page(still, "/ui/connector", name="orders")
    assert "task 0 has failed and starts again: <b>disk</b> full" in found.text
    assert "task 0: restart requested" in found.text
    assert "reads orders-0" not in found.text
    assert "reads orders-0" in page(still, "/ui/connector", name="orders", log="all").text


def test_the_configuration_says_where_each_value_comes_from() -> None:
    worker = still_worker(value_converter="org.apache.kafka.connect.storage.StringConverter")
    worker.herder.has("orders")
    text = page(worker, "/ui/config", name="orders").text
    assert "open sesame" not in text
    for key, value, origin in (
        ("topics", "orders", "this connector"),
        ("connection.password", "[hidden]", "this connector"),
        ("value.converter", "org.apache.kafka.connect.storage.StringConverter", "the worker"),
        ("tasks.max", "1", "the default"),
    ):
        assert key in text
        assert f"{value} {origin}" in text


# Put it right


@pytest.mark.parametrize(
    ("do", "told"),
    [
        ("restart", ("restart", "orders")),
        ("restart-all", ("restart_all", "orders", True, False)),
        ("restart-failed", ("restart_all", "orders", True, True)),
        ("pause", ("target", "orders", "PAUSED")),
        ("resume", ("target", "orders", "RUNNING")),
        ("stop", ("target", "orders", "STOPPED")),
    ],
)
def test_a_button_does_what_it_says_and_shows_the_outcome(
    still: StillWorker, do: str, told: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("semel.worker.page.connector._HOLDS", 0.0)
    still.herder.has("orders", state="FAILED", tasks=["FAILED"])
    answer = send(still, "/ui/connector", name="orders", do=do)
    assert (answer.status_code, still.herder.told) == (303, [told])
    after = Page(still.client.get(answer.headers["location"]))
    state = told[2] if told[0] == "target" else "RUNNING"
    assert f"Now it is {state}; task 0 is {state}." in after.text


def test_a_restart_that_fails_again_has_not_helped(
    still: StillWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(connector, "time", SimpleNamespace(monotonic=lambda: now, sleep=sleep))
    still.herder.has("orders", state="FAILED", tasks=["FAILED"])
    becomes = still.herder._becomes
    still.herder._becomes = lambda name, *_: becomes(name, "RESTARTING", *["RUNNING"] * 6, "FAILED")
    answer = send(still, "/ui/connector", name="orders", do="restart-failed")
    after = Page(still.client.get(answer.headers["location"]))
    assert "Now it is FAILED; task 0 is FAILED." in after.text


def test_a_task_is_restarted(still: StillWorker) -> None:
    still.herder.has("orders", tasks=["RUNNING", "FAILED"])
    send(still, "/ui/connector", name="orders", do="restart-task", task="1")
    assert still.herder.told == [("restart_task", "orders", 1)]
    wrong = send(still, "/ui/connector", name="orders", do="restart-task", task="x")
    assert wrong.status_code == 400


def test_a_connector_is_only_deleted_by_who_is_sure(still: StillWorker) -> None:
    still.herder.has("orders")
    assert send(still, "/ui/connector", name="orders", do="delete").status_code == 400
    answer = send(still, "/ui/connector", name="orders", do="delete", sure="on")
    assert (answer.status_code, answer.headers["location"]) == (303, "/ui")
    assert still.herder.told == [("delete", "orders")]


def test_an_edit_shows_its_difference_and_then_is_applied(still: StillWorker) -> None:
    still.herder.has("orders")
    form = page(still, "/ui/edit", name="orders").values()
    assert form["key.topics"] == "orders"
    assert form["key.connection.password"] == "[hidden]"
    changed = {**form, "key.topics": "orders,returns"}
    checked = Page(send(still, "/ui/edit", "orders", **changed))
    assert "This would change" in checked.text
    assert "topics orders orders,returns" in checked.text
    assert still.herder.told == []
    fields = checked.values()
    given = {name: fields[name] for name in ("seen", "json")}
    answer = send(still, "/ui/edit", "orders", do="apply", **given)
    assert answer.status_code == 303
    assert still.herder.given["orders"]["topics"] == "orders,returns"
    assert still.herder.given["orders"]["connection.password"] == "open sesame"


def test_an_edit_of_what_somebody_else_has_changed_shows_the_new_difference(
    still: StillWorker,
) -> None:
    still.herder.has("orders")
    new = json.dumps({**POSTGRES, "connection.password": "[hidden]", "topics": "t"})
    checked = Page(send(still, "/ui/edit", name="orders", json=new)).values()
    still.herder.given["orders"]["tasks.max"] = "7"
    given = {name: checked[name] for name in ("seen", "json")}
    again = Page(send(still, "/ui/edit", "orders", do="apply", **given))
    assert "tasks.max 7 not set" in again.text
    assert still.herder.told == []


def test_all_mistakes_are_told_at_once(still: StillWorker) -> None:
    still.herder.has("orders")
    wrong = {**POSTGRES, "tasks.max": "many", "auto.create": "maybe", "delivery": "thrice"}
    wrong["connection.password"] = "[hidden]"
    found = Page(send(still, "/ui/edit", name="orders", json=json.dumps(wrong)))
    assert "3 mistakes" in found.text
    for word in ("many", "maybe", "thrice"):
        assert word in found.text
    assert "Apply" not in found.text


@pytest.mark.parametrize("text", ["{", "[]", '{"topics": {}}', "1", "[" * 100_000])
def test_what_is_no_configuration_is_told_and_kept_for_correction(
    still: StillWorker, text: str
) -> None:
    still.herder.has("orders")
    found = Page(send(still, "/ui/edit", name="orders", json=text, view="json"))
    assert (found.status, "1 mistake" in found.text) == (200, True)
    assert text in "".join(found.words)


def test_thousands_of_keys_are_shown_at_once(still: StillWorker) -> None:
    began = time.process_time()
    more = "\n".join(f"k{n}=v" for n in range(10_000))
    found = Page(send(still, "/ui/new", **{"key.connector.class": "postgresql", "more": more}))
    assert (found.status, "key.k9999" in found.values()) == (200, True)
    assert time.process_time() - began < 30


class Positions:
    """Stored offsets of a sink connector."""

    is_source, reread, noted = False, "Its rows stay", ", and the ledger notes the hole"

    def __init__(self, partitions: int = 1) -> None:
        self.at = [
            ({"kafka_topic": "orders", "kafka_partition": n}, {"kafka_offset": 40})
            for n in range(partitions)
        ]

    def parsed(self, text: str) -> Any:
        place, _, offset = text.partition("=")
        topic, _, number = place.rpartition("-")
        return {"kafka_partition": int(number), "kafka_topic": topic}, {"kafka_offset": int(offset)}

    def read(self) -> Any:
        return self.at

    def lag(self) -> Any:
        part = {"topic": "orders", "partition": 0, "position": 40, "end": 90, "lag": 50}
        return type("Lag", (), {"partitions": [part], "unit": ""})()

    def holes(self) -> Any:
        return [Hole("orders", 0, 3, 9, by="ada", at="2026-11-30T10:00:00+01:00")]

    def text(self, wanted: Any) -> tuple[str, str]:
        offset = (wanted[1] or {}).get("kafka_offset")
        return f"{wanted[0]['kafka_topic']}-{wanted[0]['kafka_partition']}", str(offset)

    def checked(self, given: Any) -> Any:
        return [
            (e["partition"], e["offset"] and {"kafka_offset": int(e["offset"]["kafka_offset"])})
            for e in given
        ]


@pytest.mark.parametrize(
    ("given", "meaning"),
    [
        ("10", "40 10 30 offsets are read again. Its rows stay."),
        ("60", "40 60 20 offsets are left out, and the ledger notes the hole."),
        ("", "40 forgotten The next run begins where its configuration says. Its rows stay."),
    ],
)
def test_new_offsets_are_explained_before_they_are_set(
    still: StillWorker, given: str, meaning: str
) -> None:
    still.herder.offsets = Positions()
    still.herder.has("orders", state="STOPPED")
    found = page(still, "/ui/positions", name="orders")
    assert "orders-0 40 90 50" in found.text
    assert "2026-11-30 09:00:00 UTC" in found.text  # which the script shows in the reader's zone
    form = found.values()
    assert form["offset.1"] == "40"
    changed = {**form, "do": "preview", "offset.1": given}
    preview = Page(send(still, "/ui/positions", "orders", **changed))
    assert meaning in preview.text
    assert still.herder.told == []


def test_offsets_of_thousands_of_partitions_can_be_changed(still: StillWorker) -> None:
    still.herder.offsets = Positions(2000)
    still.herder.has("orders", state="STOPPED")
    found = page(still, "/ui/positions", name="orders")
    assert "1000 more are not shown; name those that you want to change below." in found.text
    changed = {**found.values(), "do": "preview", "offset.1000": "39", "more": "orders-1999=10"}
    preview = Page(send(still, "/ui/positions", "orders", **changed))
    assert "orders-999 40 39 1 offsets are read again." in preview.text
    assert "orders-1999 40 10 30 offsets are read again." in preview.text


def test_offsets_of_a_connector_that_runs_have_no_form(still: StillWorker) -> None:
    still.herder.offsets = Positions()
    still.herder.has("orders")
    found = page(still, "/ui/positions", name="orders")
    assert not found.all("form")
    assert send(still, "/ui/positions", name="orders", do="preview").status_code == 400


# A new one


def test_a_connector_is_chosen_filled_in_checked_and_created(still: StillWorker) -> None:
    plugins = page(still, "/ui/new")
    assert {"href": "/ui/new?plugin=postgresql"} in plugins.all("a")
    form = page(still, "/ui/new", plugin="postgresql")
    assert "Unique name; a sink's consumer group is" in form.text
    empty = Page(send(still, "/ui/new", **form.values()))
    assert "mistakes" in empty.text
    filled = {f"key.{k}": v for k, v in POSTGRES.items()} | {"key.name": "orders"}
    checked = Page(send(still, "/ui/new", **{**form.values(), **filled}))
    assert "This would be created" in checked.text
    given = {"json": checked.values()["json"], "do": "apply", "state": "STOPPED"}
    answer = send(still, "/ui/new", **given)
    assert answer.headers["location"] == "/ui/connector?name=orders&did=create"
    assert still.herder.told == [("create", "orders", "STOPPED")]
    assert still.herder.given["orders"]["connection.password"] == "open sesame"
    again = Page(send(still, "/ui/new", **given))
    assert "A connector orders already exists" in again.text


# Who may do it


def test_a_reader_sees_no_buttons_and_no_forms_that_change(
    users: dict[str, str],  # noqa: F811
) -> None:
    worker = still_worker(**{k: v for k, v in users.items() if k.startswith(("rest.", "semel."))})
    worker.herder.has("orders", state="FAILED", tasks=["FAILED"], trace="Boom")
    for path in ("", "/connector", "/config", "/audit", "/positions"):
        worker.herder.offsets = Positions() if path == "/positions" else None
        for who in (("grace", "hop:per"), ("robot", "r0b0t")):
            found = Page(worker.client.get(f"/ui{path}", params={"name": "orders"}, auth=who))
            assert found.status == 200
            assert not [form for form in found.all("form") if form["method"] == "post"]
            assert "button" not in [tag for tag, _ in found.elements] or path == ""
    worker.herder.offsets = None
    writer = Page(worker.client.get("/ui/connector?name=orders", auth=("ada", "lovelace")))
    assert any(form["method"] == "post" for form in writer.all("form"))
    worker.client.auth = None
    for path in ("/ui", "/ui/edit?name=orders", "/ui/style.css"):
        refused = worker.client.get(path)
        assert refused.status_code == 401
        assert refused.headers["www-authenticate"].startswith("Basic realm=")


def test_who_may_read_without_a_login_sees_no_buttons(
    users: dict[str, str],  # noqa: F811
) -> None:
    worker = still_worker(**{**users, "semel.rest.anonymous.paths": "/ui,/ui/connector,/ui/edit"})
    worker.herder.has("orders")
    for path in ("/ui", "/ui/connector?name=orders"):
        found = page(worker, path)
        assert (found.status, "New connector" in found.text) == (200, False)
        assert not [form for form in found.all("form") if form["method"] == "post"]
    assert worker.client.get("/ui/edit?name=orders").status_code == 403
    assert send(worker, "/ui/connector", name="orders", do="restart").status_code == 401


def test_a_token_of_a_file_serves_as_a_password_in_a_browser(
    users: dict[str, str],  # noqa: F811
) -> None:
    worker = still_worker(**users)
    assert worker.client.get("/ui", auth=("robot", "r0b0t")).status_code == 200
    for wrong in (("robot", "lovelace"), ("ada", "r0b0t"), ("robot", ""), ("", "r0b0t")):
        assert worker.client.get("/ui", auth=wrong).status_code == 401


def test_the_default_token_serves_as_a_password_in_a_browser(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SEMEL_WORKER_TOKEN", "t0ken")
    worker = still_worker(**{"semel.rest.authentication": "token"})
    refused = worker.client.get("/ui")
    assert (refused.status_code, "Basic" in refused.headers["www-authenticate"]) == (401, True)
    assert worker.client.get("/ui", auth=("anyone", "t0ken")).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://elsewhere.example"},
        {"Origin": "null"},
        {"Origin": "http://worker:8083.elsewhere.example"},
        {"Origin": "http://[", "Sec-Fetch-Site": "same-origin"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Origin": HOST, "Sec-Fetch-Site": "same-site"},
    ],
)
@pytest.mark.parametrize("path", ["/ui/connector", "/ui/edit", "/ui/new", "/ui/positions"])
def test_another_origin_can_change_nothing(
    users: dict[str, str],  # noqa: F811
    path: str,
    headers: dict[str, str],
) -> None:
    for keys in (users, {"access.control.allow.origin": "*"}):
        worker = still_worker(**keys)
        worker.herder.has("orders")
        fields, name = {"do": "delete", "sure": "on"}, {"name": "orders"}
        worker.client.auth = ("ada", "lovelace")
        answer = worker.client.post(path, params=name, data=fields, headers=headers)
        assert (answer.status_code, worker.herder.told) == (403, [])


def test_another_origin_cannot_use_a_browsers_login_for_the_api(
    users: dict[str, str],  # noqa: F811
) -> None:
    worker = still_worker(**users)
    worker.herder.has("orders")
    worker.client.auth = ("ada", "lovelace")
    place, evil = "/connectors/orders/restart", {"Origin": "https://elsewhere.example"}
    assert worker.client.post(place, headers=evil).status_code == 403
    assert worker.client.post(place, headers={"Origin": HOST}).status_code == 204
    assert worker.client.post(place).status_code == 204


def test_every_answer_lets_no_foreign_script_or_style_run(still: StillWorker) -> None:
    still.herder.has("orders", tasks=["FAILED"], trace="Boom")
    paths = ("", "/connector?name=orders", "/edit?name=orders", "/new", "/none", "/live.js")
    for path in paths:
        answer = still.client.get(f"/ui{path}")
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        if answer.headers["content-type"].startswith("text/html"):
            found = Page(answer)
            assert all(script["src"].startswith("/ui/") for script in found.all("script"))
            assert not found.all("style")
            for _, attributes in found.elements:
                assert not [a for a in attributes if a == "style" or a.startswith("on")]


# What is shown is from outside


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_text_stays_text(still: StillWorker, text: str) -> None:
    config = {**POSTGRES, "topics": text, f"transforms.{text}.type": text}
    still.herder.has(text, config, state="FAILED", tasks=["FAILED"], trace=text + BROKEN)
    tags = ("script", "img")
    for path in ("", "/connector", "/config", "/edit", "/audit", "/positions"):
        found = page(still, f"/ui{path}", **({"name": text} if path else {"q": text}))
        if path != "/positions":  # which asks Kafka
            assert found.status == 200, found.text
        shown = [attributes for tag, attributes in found.elements if tag in tags]
        assert shown in ([], [{"src": "/ui/live.js?v=0.1.0", "defer": ""}]), path
        assert "49" not in found.text or "7*7" not in text or "{{ 7*7 }}" in found.text
    links = [a["href"] for a in page(still, "/ui").all("a") if "name=" in a["href"]]
    assert Page(still.client.get(links[0])).status == 200
    answer = send(still, "/ui/connector", name=text, do="pause")
    assert answer.status_code == 303
    assert Page(still.client.get(answer.headers["location"])).status == 200


def test_names_and_traces_turn_no_text_around_and_are_cut(still: StillWorker) -> None:
    trace = "Boom \u202e" + "x" * 1_000_000
    still.herder.has("\u202egro.lmth", state="FAILED", tasks=["FAILED"], trace=trace)
    for path in ("", "/connector"):
        text = page(still, f"/ui{path}", **({"name": "\u202egro.lmth"} if path else {})).text
        assert "\u202e" not in text
        assert r"\u202egro.lmth" in text
        assert len(text) < 100_000


@pytest.mark.parametrize(
    "key", ["producer.override.ssl.keystore.key", "consumer.override.ssl.key.pem", "query.masked"]
)
def test_a_secret_that_may_have_lines_gets_a_field_of_lines(key: str) -> None:
    assert Field(key, "", secret=True).is_long
    assert not Field("connection.password", "x" * 100, secret=True).is_long


def test_a_secret_is_on_no_page(still: StillWorker) -> None:
    still.herder.has("orders", tasks=["RUNNING"])
    new = json.dumps({**POSTGRES, "connection.password": "[hidden]", "topics": "t"})
    answers = [send(still, "/ui/edit", name="orders", json=new)]
    for path in ("connector?", "config?", "edit?", "edit?view=json&", "audit?"):
        answers += [still.client.get(f"/ui/{path}name=orders")]
    for answer in answers:
        assert answer.status_code == 200
        assert "open sesame" not in answer.text


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/ui/connector", 400),
        ("/ui/connector?name=none", 404),
        ("/ui/connector?name=orders&task=x", 400),
        ("/ui/edit?name=none", 404),
        ("/ui/new?plugin=none", 404),
        ("/ui/positions?name=none", 404),
        ("/ui/none/at/all", 404),
    ],
)
def test_an_error_is_a_page(still: StillWorker, path: str, status: int) -> None:
    still.herder.has("orders")
    found = Page(still.client.get(path))
    assert (found.status, "That cannot be done" in found.text) == (status, True)


def test_an_unforeseen_error_is_in_the_log_with_its_trace(
    still: StillWorker, caplog: pytest.LogCaptureFixture
) -> None:
    still.herder.has("orders")
    still.herder.offsets = SimpleNamespace()
    found = page(still, "/ui/positions", name="orders")
    assert (found.status, "AttributeError" in found.text) == (500, True)
    assert "the page /ui/positions cannot be shown" in caplog.text
    assert "Traceback" in caplog.text


# For everybody


def test_pages_have_labels_one_heading_and_a_language(still: StillWorker) -> None:
    still.herder.has("orders", state="STOPPED", tasks=["FAILED"], trace="Boom")
    still.herder.offsets = Positions()
    for path in (
        *("", "/connector?name=orders", "/config?name=orders", "/positions?name=orders"),
        *("/edit?name=orders", "/edit?name=orders&view=json", "/new", "/new?plugin=postgresql"),
    ):
        found = Page(still.client.get(f"/ui{path}"))
        assert found.all("html") == [{"lang": "en"}]
        assert len(found.all("h1")) == 1, path
        identities = [attributes["id"] for _, attributes in found.elements if "id" in attributes]
        assert len(identities) == len(set(identities)), path
        labelled = {label["for"] for label in found.all("label") if "for" in label}
        assert labelled <= set(identities)
        for table in found.all("th"):
            assert table["scope"] in ("row", "col")


def test_what_answers_a_form_has_an_address_that_can_be_opened(still: StillWorker) -> None:
    still.herder.offsets = Positions()
    still.herder.has("a/b", state="STOPPED", tasks=["FAILED"], trace="Boom")
    pages = ("", "/connector", "/positions", "/audit", "/edit", "/edit?view=json", "/new")
    found: set[str] = set()
    for path in pages:
        query = {"name": "a/b", "plugin": "postgresql"}
        answer = still.client.get(f"/ui{path}", params=httpx.URL(path).params.merge(query))
        found |= {form["action"] for form in Page(answer).all("form")}
    assert len(found) >= 6
    for address in found:
        assert still.client.get(address).status_code == 200, address


def test_the_page_is_small_and_needs_nothing_from_elsewhere(still: StillWorker) -> None:
    sizes = 0
    for name in ("style.css", "live.js", "icon.svg"):
        answer = still.client.get(f"/ui/{name}")
        assert answer.status_code == 200
        sizes += len(answer.content)
        assert "http" not in answer.text.replace("http://www.w3.org/2000/svg", "")
    assert sizes < 300_000


# With real services


@pytest.mark.integration
def test_a_connector_lives_on_the_page_from_its_creation_to_its_end(
    worker: Worker, topic: MakeTopic, configure: Configure
) -> None:
    source = topic(values=records(10))
    config = configure(source)
    name = config["name"]
    api = worker()

    def get(path: str, **more: str) -> Page:
        return Page(api.get(f"/ui{path}", params={"name": name, **more}))

    def post(path: str, **fields: str) -> httpx.Response:
        host = f"{api.base_url.scheme}://{api.base_url.netloc.decode()}"
        query = {"name": name}
        return api.post(f"/ui{path}", params=query, data=fields, headers={"Origin": host})

    checked = Page(post("/new", json=json.dumps(config)))
    assert "This would be created" in checked.text, checked.text
    assert post("/new", json=checked.values()["json"], do="apply").status_code == 303
    wait_until(lambda: " 0 0 s " in get("", q=name).text)  # its lag
    assert f"{source}-0 10 10 0" in get("/positions").text

    assert post("/audit", do="start").status_code == 303
    wait_until(lambda: "DONE" in get("/audit").text)
    assert "The guarantee holds." in get("/audit").text

    assert post("/connector", do="stop").status_code == 303
    wait_until(lambda: "offset.1" in get("/positions").values())
    form = get("/positions").values()
    preview = Page(post("/positions", **{**form, "offset.1": "4", "do": "preview"}))
    assert "6 offsets are read again" in preview.text
    given = preview.values()["offsets"]
    wait_until(lambda: post("/positions", offsets=given, do="apply").status_code == 303)
    assert f"{source}-0 4 10 6" in get("/positions").text
    post("/connector", do="resume")
    wait_until(lambda: f"{source}-0 10 10 0" in get("/positions").text)

    assert post("/connector", do="delete", sure="on").headers["location"] == "/ui"
    assert "There is no connector yet." in get("").text
