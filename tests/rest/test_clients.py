"""Clients of Kafka Connect's REST API, as PyPI has them, drive semel unchanged."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from httpx import Client

from tests.conftest import MakeTopic
from tests.engine.conftest import Configure
from tests.engine.harness import assert_nothing_lost_nothing_twice, records, wait_until
from tests.rest.conftest import Worker

pytestmark = [pytest.mark.integration, pytest.mark.long]

Status = Callable[[], Any]


def url_of(api: Client) -> str:
    return str(api.base_url).rstrip("/")


def runs(status: Status) -> bool:
    found = status()
    return bool(found["tasks"]) and {t["state"] for t in found["tasks"]} == {"RUNNING"}


@pytest.fixture
def config(topic: MakeTopic, configure: Configure) -> dict[str, str]:
    """A connector's configuration, with its topic full of records."""
    source = topic(values=records(50))
    return configure(source)


def test_kafka_connect_api(worker: Worker, config: dict[str, str]) -> None:
    client = pytest.importorskip("kafka_connect_api.kafka_connect_api")
    errors = pytest.importorskip("kafka_connect_api.errors")
    cluster = client.Cluster(client.Api(url=url_of(worker())))
    assert cluster.version.startswith("4.")
    assert cluster.kafka_cluster
    assert cluster.root_logger["level"]
    name = config["name"]
    connector = client.Connector(cluster, name)
    with pytest.raises(errors.GenericNotFound):
        connector.exists()
    connector.config = config
    assert connector.exists()
    assert connector.connector_class == config["connector.class"]
    assert name in cluster.connectors
    wait_until(lambda: runs(lambda: connector.status))
    (task,) = connector.tasks
    assert task.is_running()
    connector.pause()
    wait_until(lambda: connector.state == "PAUSED")
    connector.resume()
    wait_until(lambda: runs(lambda: connector.status))
    connector.restart()
    connector.cycle_connector()
    wait_until(lambda: runs(lambda: connector.status))
    wait_until(lambda: bool(committed(connector)))
    connector.delete()
    with pytest.raises(errors.GenericNotFound):
        connector.exists()
    assert_nothing_lost_nothing_twice(config, range(50))


def committed(connector: Any) -> bool:
    found = connector.api.get(f"/connectors/{connector.name}/offsets")["offsets"]
    return sum(each["offset"]["kafka_offset"] for each in found) == 50


def test_kafka_connect_py(worker: Worker, config: dict[str, str]) -> None:
    client = pytest.importorskip("kafka_connect.kafka_connect")
    name = config["name"]
    connect = client.KafkaConnect(url=url_of(worker()))
    assert connect.get_cluster_info()["kafka_cluster_id"]
    plugin = config["connector.class"]
    assert connect.validate_connector_config(plugin, config)["error_count"] == 0
    assert connect.create_connector({"name": name, "config": config})["name"] == name
    wait_until(lambda: runs(lambda: connect.get_connector_status(name)))
    assert list(connect.list_connectors(expand="status", state="RUNNING")) == [name]
    assert [t["id"]["task"] for t in connect.list_connector_tasks(name)] == [0]
    assert connect.get_connector_task_status(name, 0)["state"] == "RUNNING"
    connect.restart_connector(name, include_tasks=True, only_failed=True)
    connect.restart_connector_task(name, 0)
    wait_until(lambda: runs(lambda: connect.get_connector_status(name)))
    wait_until(lambda: bool(connect.list_connector_topics(name)[name]["topics"]))
    connect.reset_connector_topics(name)
    assert connect.list_connector_topics(name) == {name: {"topics": []}}
    connect.pause_connector(name)
    connect.resume_connector(name)
    connect.stop_connector(name)
    assert connect.get_connector_status(name)["connector"]["state"] == "STOPPED"
    shown = connect.get_connector_config(name)
    assert connect.update_connector(name, {**shown, "tasks.max": "2"})["name"] == name
    assert plugin in {each["class"] for each in connect.list_connector_plugins()}
    connect.delete_all_connectors()
    assert connect.list_connectors() == []


def test_kafkaconnect(worker: Worker, config: dict[str, str]) -> None:
    client = pytest.importorskip("kafkaconnect.connect")
    name = config["name"]
    connect = client.Connect(url_of(worker()))
    assert "not found" in connect.status(name)
    made = connect.validate_and_create(name, json.dumps(config))
    assert json.loads(made)["name"] == name
    wait_until(lambda: runs(lambda: json.loads(connect.status(name))))
    assert json.loads(connect.list()) == [name]
    assert json.loads(connect.info(name))["type"] == "sink"
    assert json.loads(connect.config(name))["topics"] == config["topics"]
    assert len(json.loads(connect.tasks(name))) == 1
    wait_until(lambda: config["topics"] in connect.topics(name))
    assert json.loads(connect.plugins())
    assert connect.restart(name) == ""
    assert connect.pause(name) == ""
    wait_until(lambda: json.loads(connect.status(name))["connector"]["state"] == "PAUSED")
    assert connect.resume(name) == ""
    assert connect.remove(name) == ""
    assert "not found" in connect.info(name)
