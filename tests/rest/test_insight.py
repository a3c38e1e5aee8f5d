"""What the API tells beyond Kafka Connect's."""

from __future__ import annotations

import sys
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from httpx import Client

from semel.worker import audits
from semel.worker.errors import NotFound, TooManyRequests
from semel_lab.embedded import Kafka
from semel_lab.embedded.proxy import Proxy
from tests.conftest import MakeTopic, Produce
from tests.engine.conftest import Configure
from tests.engine.harness import records, wait_until
from tests.rest.conftest import Worker

pytestmark = pytest.mark.integration


def test_guarantee_ledger_lag_metrics_and_audit_of_a_connector(
    worker: Worker, topic: MakeTopic, configure: Configure
) -> None:
    source = topic(values=records(100))
    config = configure(source)
    name = config["name"]
    api = worker()
    assert api.post("/connectors", json={"name": name, "config": config}).status_code == 201
    base = f"/semel/connectors/{name}"

    def metric(text: str) -> bool:
        return text in api.get("/metrics").text

    where = {"topic": source, "partition": 0, "position": 100, "end": 100, "lag": 0}
    there = {"lag": 0, "partitions": [where]}
    wait_until(lambda: api.get(f"{base}/lag").json() == there)
    (entry,) = api.get(f"{base}/ledger").json()["entries"]
    assert (entry["topic"], entry["position"], entry["rows_written"]) == (source, 100, 100)
    assert entry["topic_id"]
    kept = api.get(f"{base}/guarantee").json()
    assert (kept["delivery"], kept["mechanism"]) == ("exactly-once", "transactional")
    assert kept["facts"]["engine"] == kept["engine"] == "direct"

    labels = f'connector="{name}",task="0"'
    wait_until(lambda: metric(f"kafka_connect_sink_task_sink_record_read_total{{{labels}}} 100.0"))
    of_it = f'{{connector="{name}"}}'
    wait_until(lambda: metric(f"semel_commits_total{of_it}"))
    assert metric(f'semel_commit_seconds_bucket{{connector="{name}",le="+Inf"}}')
    wait_until(
        lambda: metric(f'semel_lag_records{{connector="{name}",partition="0",topic="{source}"}} 0')
    )

    assert api.get(f"{base}/audit").status_code == 404
    assert api.post(f"{base}/audit", params={"values": True}).json()["state"] == "RUNNING"
    assert api.post(f"{base}/audit").status_code == 409
    wait_until(lambda: state(api, base) != "RUNNING")
    audit = api.get(f"{base}/audit").json()
    assert audit["state"] == "DONE", audit
    found = {key: audit["report"][key] for key in ("broken", "lost", "duplicated", "compared")}
    assert found == {"broken": False, "lost": 0, "duplicated": 0, "compared": 100}
    assert metric(f"semel_audit_records{of_it} 100.0")
    assert api.get("/semel/connectors/none/lag").status_code == 404


@pytest.mark.long
def test_the_api_says_what_a_running_connector_waits_for_and_since_when(
    worker: Worker, kafka: Kafka, produce: Produce, configure: Configure, database: str
) -> None:
    source = f"late-{uuid.uuid4().hex[:8]}"
    with Proxy.before(database) as proxy:
        config = configure(source)
        config["connection.url"] = proxy.url(config["connection.url"])
        name = config["name"]
        api = worker()
        assert api.post("/connectors", json={"name": name, "config": config}).status_code == 201

        def waits() -> dict[str, str]:
            answer = api.get(f"/semel/connectors/{name}").json()
            assert answer["connector"]["state"] == "RUNNING"
            return answer["waits"] or {"for": ""}

        def metric(awaited: str) -> bool:
            told = f'semel_waiting_seconds{{connector="{name}",for="{awaited}"}}'
            return told in api.get("/metrics").text

        wait_until(lambda: waits()["for"] == "topic")
        first = waits()
        assert source in first["reason"]
        assert datetime.fromisoformat(first["since"]) <= datetime.now(UTC)
        assert metric("topic")

        kafka.create_topic(source, 1)
        wait_until(lambda: waits()["for"] == "records")
        produce(source, records(5))
        wait_until(lambda: 'semel_records_total{connector="' + name + '"} 5.0' in scraped(api))
        wait_until(lambda: waits()["for"] == "records")
        assert waits()["since"] > first["since"]
        assert metric("records")

        proxy.refuse()
        produce(source, records(5, start=5))
        wait_until(lambda: waits()["for"] == "service")
        since = waits()["since"]
        wait_until(lambda: "refused" in waits()["reason"])
        outage = waits()
        assert outage["since"] == since
        (task,) = api.get(f"/semel/connectors/{name}").json()["tasks"]
        assert task["waits"] == outage
        assert metric("service")
        assert "waits" not in api.get(f"/connectors/{name}/status").text

        logs = api.get(f"/semel/connectors/{name}/logs", params={"task": 0}).json()
        assert any("; trying again" in line["message"] for line in logs["lines"]), logs
        assert logs["traces"] == []
        last = api.get(f"/semel/connectors/{name}/logs", params={"lines": 1}).json()["lines"]
        assert len(last) == 1

        proxy.accept()
        wait_until(lambda: waits()["for"] == "records")
        assert not metric("service")
        assert api.put(f"/connectors/{name}/stop").status_code == 204
        assert api.get(f"/semel/connectors/{name}").json()["waits"] is None
        assert api.get("/semel/connectors/none").status_code == 404


def scraped(api: Client) -> str:
    return api.get("/metrics").text


@pytest.mark.long
def test_lag_of_a_source_is_what_it_has_still_to_read(
    worker: Worker, topic: MakeTopic, tmp_path: Path
) -> None:
    path = tmp_path / "lines.txt"
    path.write_text("one\ntwo\n")
    name = f"source-{uuid.uuid4().hex[:8]}"
    config = {
        "connector.class": "FileStreamSource",
        "file": str(path),
        "topic": topic(),
        "value.converter": "org.apache.kafka.connect.storage.StringConverter",
    }
    api = worker()
    stopped = {"name": name, "config": config, "initial_state": "STOPPED"}
    assert api.post("/connectors", json=stopped).status_code == 201
    base = f"/semel/connectors/{name}"
    where = {"partition": {"filename": str(path)}, "offset": None, "lag": 8}
    assert api.get(f"{base}/lag").json() == {"lag": 8, "unit": "bytes", "partitions": [where]}

    assert api.put(f"/connectors/{name}/resume").status_code == 202
    wait_until(lambda: api.get(f"{base}/lag").json()["lag"] == 0)
    (there,) = api.get(f"{base}/lag").json()["partitions"]
    (stored,) = api.get(f"{base}/ledger").json()["offsets"]
    assert there == {**stored, "lag": 0}
    assert there["offset"]["position"] == 8
    told = f'semel_source_lag{{connector="{name}",unit="bytes"}} 0.0'
    wait_until(lambda: told in api.get("/metrics").text)

    endless = {"connector.class": "Datagen", "quickstart": "orders", "kafka.topic": topic()}
    assert api.put(f"/connectors/{name}/stop").status_code == 204
    assert api.put(f"/connectors/{name}/config", json=endless).status_code == 200
    answer = api.get(f"{base}/lag")
    assert answer.status_code == 400
    assert "its source cannot tell how much is left to read" in answer.json()["message"]


def state(api: Client, base: str) -> Any:
    return api.get(f"{base}/audit").json()["state"]


NAMES = ["orders", "bills"]


def test_an_audit_ends_with_its_connector(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audits, "_COMMAND", (sys.executable, "-c", "import time; time.sleep(600)"))
    names = list(NAMES)
    with audits.Audits(lambda: names) as made:
        made.start("orders", {}, values=False)
        process = made._audits["orders"]._process
        names.remove("orders")
        with pytest.raises(NotFound, match="No audit of connector orders"):
            made.answer("orders")
    assert process.poll() is not None


def test_an_audit_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audits, "_COMMAND", (sys.executable, "-c", "import time; time.sleep(600)"))
    with audits.Audits(lambda: NAMES) as made:
        assert made.start("orders", {}, values=False)["state"] == "RUNNING"
        made.cancel("orders")
        assert made.answer("orders")["state"] == "CANCELLED"
        assert made.figures() == {}
        assert made.start("orders", {}, values=False)["state"] == "RUNNING"
    assert made.answer("orders")["state"] == "CANCELLED"


def test_only_some_audits_run_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audits, "_COMMAND", (sys.executable, "-c", "import time; time.sleep(600)"))
    monkeypatch.setattr(audits, "_MOST", 1)
    with audits.Audits(lambda: NAMES) as made:
        made.start("orders", {}, values=False)
        with pytest.raises(TooManyRequests, match="1 audits are running"):
            made.start("bills", {}, values=False)
        made.cancel("orders")
        assert made.start("bills", {}, values=False)["state"] == "RUNNING"


def test_an_audit_that_fails_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    program = "import sys; print('error: password=secret is wrong', file=sys.stderr); sys.exit(2)"
    monkeypatch.setattr(audits, "_COMMAND", (sys.executable, "-c", program))
    with audits.Audits(lambda: NAMES) as made:
        made.start("orders", {}, values=False)
        wait_until(lambda: made.answer("orders")["state"] != "RUNNING")
        found = made.answer("orders")
    assert found["state"] == "FAILED"
    assert found["message"] == "error: password=*** is wrong"
