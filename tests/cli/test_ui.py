"""``semel ui --connect``: the page for connectors of plain Kafka Connect."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from semel.cli.ui import Relay
from semel.cli.worker_client import client
from semel.config import read
from semel.config.worker import WorkerConfig
from semel.worker.rest.listening import relaying
from semel.worker.secrets import learn
from semel_lab.embedded import Kafka
from semel_lab.embedded.connect import ConnectWorker
from semel_lab.embedded.process import LOOPBACK
from tests.cli.conftest import Semel
from tests.conftest import MakeTopic
from tests.engine.harness import records, wait_until
from tests.patience import PATIENCE
from tests.rest.still import POSTGRES, StillWorker, still_worker
from tests.rest.test_page import Page

LINES = "org.apache.kafka.connect.file.FileStreamSinkConnector"


class Shown:
    """A person in front of the page for the cluster at a URL."""

    def __init__(self, url: str, ends: ExitStack) -> None:
        raw = {"listeners": f"http://{LOOPBACK}:0", "semel.rest.authentication": "none"}
        worker = read(WorkerConfig, raw)
        server = ends.enter_context(relaying(Relay(worker, client(url)), worker))
        base = f"http://{LOOPBACK}:{server.ports[0]}"
        self._api = ends.enter_context(httpx.Client(base_url=base, timeout=PATIENCE))
        self._origin = {"Origin": base}

    def get(self, path: str = "", **query: str) -> Page:
        return Page(self._api.get(f"/ui{path}", params=query))

    def post(self, path: str, name: str = "", **fields: str) -> Page:
        query = {"name": name} if name else {}
        sent = self._api.post(f"/ui{path}", params=query, data=fields, headers=self._origin)
        there = sent.headers.get("location")
        return Page(self._api.get(there) if there else sent)


@pytest.fixture
def show() -> Iterator[Callable[[str], Shown]]:
    with ExitStack() as ends:
        yield lambda url: Shown(url, ends)


@pytest.fixture
def there() -> Iterator[tuple[str, StillWorker]]:
    """A worker with the REST API of Kafka Connect, and its URL."""
    worker = still_worker()

    class Answers(BaseHTTPRequestHandler):
        def answer(self) -> None:
            content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            given = {"Content-Type": "application/json"}
            answer = worker.client.request(
                self.command, self.path, content=content or None, headers=given
            )
            self.send_response(answer.status_code)
            self.send_header("Content-Length", str(len(answer.content)))
            self.end_headers()
            self.wfile.write(answer.content)

        do_GET = do_POST = do_PUT = do_DELETE = answer

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer((LOOPBACK, 0), Answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://{LOOPBACK}:{server.server_port}", worker
        server.shutdown()


def test_the_connectors_of_another_cluster_are_shown_and_what_is_left_out_is_said(
    show: Callable[[str], Shown], there: tuple[str, StillWorker]
) -> None:
    url, worker = there
    worker.herder.has("orders", state="RUNNING", tasks=["RUNNING", "FAILED"], trace="Boom")
    worker.herder.has("users", tasks=["RUNNING"])
    page = show(url)
    table = page.get()
    assert "2 of 2 connectors, 1 with an error" in table.text
    assert "This is plain Kafka Connect. What needs semel's ledger is left out" in table.text
    shown = page.get("/connector", name="orders")
    assert "Boom" in shown.text
    assert "are left out: they need semel's ledger" in shown.text
    tabs = [a["href"] for a in shown.all("a") if "name=orders" in a["href"]]
    assert not [link for link in tabs if "audit" in link or "letters" in link]
    assert "orders this connector" in page.get("/config", name="orders").text
    assert page.get("/letters", name="orders").status == 400
    assert page.post("/audit", name="orders", do="start").status == 400


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"do": "restart-failed"}, ("restart_all", "orders", True, True)),
        ({"do": "restart-task", "task": "1"}, ("restart_task", "orders", 1)),
        ({"do": "restart"}, ("restart", "orders")),
        ({"do": "pause"}, ("target", "orders", "PAUSED")),
        ({"do": "stop"}, ("target", "orders", "STOPPED")),
        ({"do": "delete", "sure": "on"}, ("delete", "orders")),
    ],
)
def test_buttons_are_passed_on(
    show: Callable[[str], Shown],
    there: tuple[str, StillWorker],
    fields: dict[str, str],
    told: tuple[Any, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("semel.worker.page.connector._HOLDS", 0.0)
    url, worker = there
    worker.herder.has("orders", tasks=["RUNNING", "FAILED"], trace="Boom")
    assert show(url).post("/connector", name="orders", **fields).status == 200
    assert worker.herder.told == [told]


def test_configurations_are_checked_and_applied_there(
    show: Callable[[str], Shown], there: tuple[str, StillWorker]
) -> None:
    url, worker = there
    known = {k: v for k, v in POSTGRES.items() if k != "connection.password"}
    worker.herder.has("orders", known)
    page = show(url)
    assert {"href": "/ui/new?plugin=postgresql"} in page.get("/new").all("a")
    wrong = json.dumps({**known, "tasks.max": "many", "delivery": "thrice"})
    assert "2 mistakes" in page.post("/edit", name="orders", json=wrong).text
    new = json.dumps({**known, "topics": "t"})
    checked = page.post("/edit", name="orders", json=new)
    assert "topics orders t" in checked.text
    given = {name: checked.values()[name] for name in ("seen", "json")}
    applied = page.post("/edit", "orders", do="apply", **given)
    assert "Its new configuration has been applied." in applied.text
    assert worker.herder.given["orders"]["topics"] == "t"
    made = page.post("/new", json=json.dumps({**POSTGRES, "name": "more"}), do="apply")
    assert "It has been created." in made.text
    assert worker.herder.given["more"]["connection.password"] == "open sesame"


def test_offsets_are_shown_explained_and_set_there(
    show: Callable[[str], Shown], there: tuple[str, StillWorker], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, worker = there
    worker.herder.has("orders", state="STOPPED")
    page = show(url)
    place = {"kafka_topic": "orders", "kafka_partition": 0}
    monkeypatch.setattr(Relay, "_ask", _answering(Relay._ask, place, told := []))
    found = page.get("/positions", name="orders")
    assert "orders-0 40" in found.text
    assert "does not tell where the logs end" in found.text
    changed = {**found.values(), "do": "preview", "offset.1": "60", "more": "orders-1=3"}
    wrong = page.post("/positions", "orders", **{**changed, "more": "junk"})
    assert wrong.status == 400 and "junk" in wrong.text
    preview = page.post("/positions", "orders", **changed)
    assert "orders-0 40 60 20 offsets are left out. orders-1 none 3" in preview.text
    given = preview.values()["offsets"]
    assert (
        "Its offsets have been changed."
        in page.post("/positions", "orders", do="apply", offsets=given).text
    )
    assert told == [
        {
            "offsets": [
                {"partition": place, "offset": {"kafka_offset": "60"}},
                {"partition": {**place, "kafka_partition": 1}, "offset": {"kafka_offset": 3}},
            ]
        }
    ]


def _answering(ask: Any, place: Any, told: list[Any]) -> Any:
    """How Kafka Connect answers to requests about offsets."""

    def answer(relay: Relay, method: str, path: str, body: Any = None, **query: Any) -> Any:
        if not path.endswith("/offsets"):
            return ask(relay, method, path, body, **query)
        if method == "PATCH":
            told.append(body)
        return {"offsets": [{"partition": place, "offset": {"kafka_offset": 40}}]}

    return answer


def test_what_a_plugin_there_calls_a_password_is_hidden(
    show: Callable[[str], Shown], there: tuple[str, StillWorker], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, worker = there
    worker.herder.has("orders", {"connector.class": "x.Plugin", "pin.number": "open sesame"})
    ask = Relay._ask

    def answer(relay: Relay, method: str, path: str, *more: Any, **query: Any) -> Any:
        if path == "/connector-plugins/x.Plugin/config":
            key = {"name": "pin.number", "type": "PASSWORD", "required": True}
            return [{**key, "importance": "HIGH"}]
        return ask(relay, method, path, *more, **query)

    monkeypatch.setattr(Relay, "_ask", answer)
    page = show(url)
    for path in ("/config", "/edit", "/connector"):
        text = page.get(path, name="orders")
        assert text.status == 200
        assert "open sesame" not in str((text.text, text.values()))
    learn("x.Plugin", [])
    assert "open sesame" not in page.get("/config", name="orders").text, "others add to it"


def test_a_trace_from_there_is_cut_and_its_secrets_are_hidden(
    show: Callable[[str], Shown], there: tuple[str, StillWorker]
) -> None:
    url, worker = there
    trace = "Boom at jdbc:x://u:open-sesame@db/x\u202e " + "x" * 1_000_000
    worker.herder.has("orders", state="FAILED", trace=trace)
    page = show(url)
    found = page.get("/connector", name="orders").text
    assert "Boom at jdbc:x://***@db/x\\u202e" in found
    assert len(found) < 10_000
    line = "x" * 39_990 + " "
    for before in range(0, 26, 5):  # the secret is cut in two
        trace = f"{line}{'y' * 10_000} password=open-sesame-very-secret {line}"
        worker.herder.has("orders", state="FAILED", trace=trace[before:])
        assert "secret" not in page.get("/connector", name="orders").text


def test_a_worker_of_semel_has_a_page_of_its_own(
    semel: Semel, there: tuple[str, StillWorker], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, _ = there
    about = {"version": "4.1.3", "commit": "semel-0.1.0"}
    monkeypatch.setattr("semel.cli.worker_client.Client.ask", lambda *_a, **_k: about)
    ended = semel("ui", "--connect", url)
    assert ended.code == 2
    assert f"is a worker of semel: its page is {url}/ui" in " ".join(ended.err.split())


def test_a_cluster_that_is_away_is_named(show: Callable[[str], Shown]) -> None:
    found = show("http://127.0.0.1:9").get()
    assert found.status == 503
    assert "no worker can be reached at http://127.0.0.1:9" in found.text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--connect", "ftp://x"], "is not a worker's URL"),
        (["--connect", "http://127.0.0.1:9"], "no worker can be reached"),
        (["--connect", "http://127.0.0.1:9", "--listen", "x"], "--listen x: give PORT"),
    ],
)
def test_what_cannot_be_shown_is_refused(semel: Semel, arguments: list[str], said: str) -> None:
    ended = semel("ui", *arguments)
    assert ended.code in (2, 3)
    assert said in " ".join(ended.err.split())


@pytest.mark.integration
@pytest.mark.long
def test_connectors_of_kafka_connect_itself_are_shown_changed_and_created(
    show: Callable[[str], Shown], kafka: Kafka, topic: MakeTopic, tmp_path: Path
) -> None:
    source = topic(values=records(5))
    text = "org.apache.kafka.connect.storage.StringConverter"
    config = {
        **{"name": "lines", "connector.class": LINES, "topics": source, "tasks.max": "1"},
        **{"file": str(tmp_path / "lines"), "value.converter": text, "key.converter": text},
    }
    with ConnectWorker(tmp_path / "connect", kafka.bootstrap_servers, plugin=None) as connect:
        page = show(f"http://{LOOPBACK}:{connect.port}")
        links = [a["href"] for a in page.get("/new").all("a")]
        assert any(LINES in link for link in links)
        wrong = page.post("/new", json=json.dumps({**config, "tasks.max": "many"}))
        assert "Invalid value many" in wrong.text
        checked = page.post("/new", json=json.dumps(config))
        assert "This would be created" in checked.text, checked.text
        page.post("/new", json=checked.values()["json"], do="apply")
        wait_until(lambda: "1 running" in page.get().text)
        wait_until(lambda: (tmp_path / "lines").read_text().count("\n") == 5)
        page.post("/connector", name="lines", do="pause")
        wait_until(lambda: "PAUSED" in page.get("/connector", name="lines").text)
        page.post("/connector", name="lines", do="delete", sure="on")
        wait_until(lambda: "There is no connector yet." in page.get().text)
