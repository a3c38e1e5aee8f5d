"""A worker runs queries over streams beside other connectors, on the Spark that it has."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from semel_lab.embedded import Kafka
from semel_lab.embedded.process import LOOPBACK, free_port
from tests.conftest import MakeTopic, Produce
from tests.engine.harness import wait_until
from tests.engine.microbatch.conftest import query  # noqa: F401
from tests.patience import PATIENCE

pytestmark = [pytest.mark.integration, pytest.mark.long]


@pytest.mark.parametrize("first", ["plain", "query"])
def test_a_query_runs_in_a_worker_whichever_connector_came_first(
    kafka: Kafka, topic: MakeTopic, produce: Produce, database: str, query: Any,  # noqa: F811
    tmp_path: Path, first: str,
) -> None:  # fmt: skip
    t, port = topic(1), free_port()
    produce(t, [json.dumps({"id": n, "country": "de"}) for n in range(30)])
    common = {
        "connector.class": "postgresql",
        "topics": t,
        "connection.url": database,
        "auto.create": "true",
        "value.converter.schemas.enable": "false",
    }
    asks = {
        "query": f"SELECT country, count(*) AS n FROM `{t}` GROUP BY country",
        "checkpoint.location": str(tmp_path / "state"),
        "insert.mode": "upsert",
        "pk.mode": "record_value",
        "pk.fields": "country",
        "table.name.format": "asked",
    }
    configs = {
        f"plain-{t}": common | {"table.name.format": "plain"},
        f"query-{t}": common | asks,
    }
    worker = tmp_path / "worker.properties"
    worker.write_text(
        f"bootstrap.servers={kafka.bootstrap_servers}\nlisteners=http://{LOOPBACK}:{port}\n"
        f"offset.storage.file.filename={tmp_path}/offsets\nsemel.rest.authentication=none\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "semel", "worker", str(worker)],
        stdout=(tmp_path / "log").open("w"),
        stderr=subprocess.STDOUT,
    )
    try:
        with httpx.Client(base_url=f"http://{LOOPBACK}:{port}", timeout=PATIENCE) as client:
            wait_until(lambda: _answers(client))
            for name in sorted(configs, key=lambda name: not name.startswith(first)):
                client.put(f"/connectors/{name}/config", json=configs[name]).raise_for_status()
                table = configs[name]["table.name.format"]
                wait_until(lambda table=table: _holds(query, table))
            client.put(f"/connectors/query-{t}/stop").raise_for_status()
            offsets = client.get(f"/connectors/query-{t}/offsets").json()["offsets"]
            assert [o["offset"] for o in offsets] == [{"kafka_offset": 30}]
            moved = [{"partition": offsets[0]["partition"], "offset": {"kafka_offset": 3}}]
            change = partial(
                client.patch, f"/connectors/query-{t}/offsets", json={"offsets": moved}
            )
            wait_until(lambda: "STOPPED state" not in change().text)
            assert change().status_code >= 400 and "its query has run" in change().text
            wait_until(lambda: client.delete(f"/connectors/query-{t}/offsets").status_code == 200)
            assert query("SELECT DISTINCT connector FROM semel_offsets") == [(f"plain-{t}",)]
    finally:
        process.terminate()
        process.wait(PATIENCE)


def _answers(client: httpx.Client) -> bool:
    try:
        return client.get("/").status_code == 200
    except httpx.TransportError:
        return False


def _holds(query: Any, table: str) -> bool:  # noqa: F811
    if query(f"SELECT to_regclass('{table}') IS NULL AS lacks") == [(True,)]:
        return False
    wanted = "sum(n)::bigint" if table == "asked" else "count(*)"
    return bool(query(f"SELECT {wanted} AS n FROM {table}") == [(30,)])
