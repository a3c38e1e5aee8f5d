"""What a worker answers, and what its connectors do then."""

from __future__ import annotations

import logging
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from httpx import Client

from semel.kafka.groups import lag as kafka_lag
from semel.worker.secrets import shown
from tests.conftest import MakeTopic, Produce
from tests.engine.conftest import Configure
from tests.engine.harness import assert_nothing_lost_nothing_twice, records, some, sql, wait_until
from tests.rest.conftest import Worker

pytestmark = pytest.mark.integration

JSON = {"Content-Type": "application/json"}


def state(api: Client, name: str) -> str:
    return str(api.get(f"/connectors/{name}/status").json()["connector"]["state"])


def task_states(api: Client, name: str) -> list[str]:
    return [t["state"] for t in api.get(f"/connectors/{name}/status").json()["tasks"]]


def offset(api: Client, name: str) -> int:
    """The sum of a connector's positions."""
    found = api.get(f"/connectors/{name}/offsets").json()["offsets"]
    return sum(each["offset"]["kafka_offset"] for each in found)


def changes(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the log says that requests have changed."""
    return [r.getMessage() for r in caplog.records if r.name == "semel.worker.herder"]


def test_a_connector_lives_and_dies_by_requests(
    worker: Worker,
    topic: MakeTopic,
    produce: Produce,
    configure: Configure,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "semel.worker.herder")
    source = topic(partitions=2, values=records(100))
    config = configure(source, {"tasks.max": "2"})
    name = config["name"]
    api = worker()
    made = api.post("/connectors", json={"name": name, "config": config})
    assert (made.status_code, made.headers["location"]) == (201, f"/connectors/{name}")
    created = made.json()
    (warning,) = created.pop("warnings")
    assert warning["message"].startswith("value.converter is not set: values are JSON here.")
    assert created == {
        "name": name,
        "config": shown(config),
        "tasks": [{"connector": name, "task": n} for n in (0, 1)],
        "type": "sink",
    }
    again = api.post("/connectors", json={"name": name, "config": config})
    assert again.status_code == 409
    assert again.json() == {"error_code": 409, "message": f"Connector {name} already exists"}

    wait_until(lambda: task_states(api, name) == ["RUNNING"] * 2)
    wait_until(lambda: offset(api, name) == 100)
    assert api.get(f"/connectors/{name}/topics").json() == {name: {"topics": [source]}}
    both = api.get("/connectors", params={"expand": ["status", "info", "nonsense"]}).json()
    assert both[name]["info"]["config"] == shown(config)
    assert both[name]["status"]["tasks"][0]["worker_id"] == "worker:8083"

    assert api.put(f"/connectors/{name}/pause").status_code == 202
    wait_until(lambda: task_states(api, name) == ["PAUSED"] * 2)
    assert api.put(f"/connectors/{name}/resume").status_code == 202
    wait_until(lambda: task_states(api, name) == ["RUNNING"] * 2)
    assert api.post(f"/connectors/{name}/tasks/1/restart").status_code == 204
    restarted = api.post(f"/connectors/{name}/restart", params={"includeTasks": True})
    assert restarted.status_code == 202
    assert {t["state"] for t in restarted.json()["tasks"]} == {"RESTARTING"}
    produce(source, records(50, start=100))
    wait_until(lambda: offset(api, name) == 150)

    assert api.delete(f"/connectors/{name}").status_code == 204
    assert api.get("/connectors").json() == []
    missing = api.get(f"/connectors/{name}/status")
    assert missing.json() == {
        "error_code": 404,
        "message": f"No status found for connector {name}",
    }
    assert_nothing_lost_nothing_twice(config, range(150))
    assert changes(caplog) == [
        f"connector {name}: created",
        f"connector {name}: target state PAUSED",
        f"connector {name}: target state RUNNING",
        f"connector {name}, task 1: restart requested",
        f"connector {name}: restart requested with its tasks",
        f"connector {name}: deleted",
    ]


@pytest.mark.long
def test_rows_deleted_after_offsets_were_altered_are_lost(
    worker: Worker, topic: MakeTopic, produce: Produce, configure: Configure
) -> None:
    source = topic(values=records(10))
    config = configure(source)
    name = config["name"]
    api = worker()
    assert api.post("/connectors", json={"name": name, "config": config}).status_code == 201
    wait_until(lambda: offset(api, name) == 10)
    assert api.put(f"/connectors/{name}/stop").status_code == 204
    produce(source, records(5, 10))
    place = {"kafka_topic": source, "kafka_partition": 0}
    body = {"offsets": [{"partition": place, "offset": {"kafka_offset": 12}}]}
    wait_until(lambda: api.patch(f"/connectors/{name}/offsets", json=body).status_code == 200)
    base = f"/semel/connectors/{name}"
    (entry,) = api.get(f"{base}/ledger").json()["entries"]
    (hole,) = entry["holes"]
    assert (hole["from_offset"], hole["until_offset"], hole["reason"]) == (10, 12, "skipped")
    assert hole["by"].startswith("REST: ")
    (lag,) = kafka_lag({"bootstrap.servers": config["bootstrap.servers"]}, name)
    assert lag.position == 12
    sql(config["connection.url"], f'DELETE FROM "{source}"')
    assert api.post(f"{base}/audit").status_code == 202
    wait_until(lambda: api.get(f"{base}/audit").json()["state"] == "DONE")
    report = api.get(f"{base}/audit").json()["report"]
    assert (report["lost"], report["kept"]) == (10, False)
    assert [h["reason"] for h in report["holes"]] == ["skipped"]


@pytest.mark.long
def test_offsets_of_a_stopped_connector_are_altered_and_reset_in_its_ledger(
    worker: Worker, topic: MakeTopic, configure: Configure, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "semel.worker.herder")
    source = topic(values=records(10))
    config = configure(source)
    name = config["name"]
    api = worker()
    body = {"name": name, "config": config, "initial_state": "STOPPED"}
    assert api.post("/connectors", json=body).status_code == 201
    assert (state(api, name), task_states(api, name)) == ("STOPPED", [])

    def alter(at: int | None) -> int:
        wanted = {
            "partition": {"kafka_topic": source, "kafka_partition": 0},
            "offset": None if at is None else {"kafka_offset": at},
        }
        answer = api.patch(f"/connectors/{name}/offsets", json={"offsets": [wanted]})
        assert "--force" not in answer.text, "a request has no such option"
        return answer.status_code

    assert alter(4) == 200
    assert offset(api, name) == 4
    assert alter(11) == 400  # beyond the log
    api.put(f"/connectors/{name}/resume")
    wait_until(lambda: offset(api, name) == 10)
    assert alter(0) == 400  # it runs
    assert api.put(f"/connectors/{name}/stop").status_code == 204
    wait_until(lambda: alter(None) == 200)
    assert offset(api, name) == 0
    assert api.delete(f"/connectors/{name}/offsets").status_code == 200
    assert api.get(f"/connectors/{name}/offsets").json() == {"offsets": []}
    assert changes(caplog) == [
        f"connector {name}: {change}"
        for change in (
            "created",
            f"offsets set: {source}-0=4",
            "target state RUNNING",
            "target state STOPPED",
            f"offsets set: {source}-0=0",
            "offsets reset",
        )
    ]


def test_a_configuration_that_is_wrong_is_refused_and_the_connector_goes_on(
    worker: Worker, topic: MakeTopic, produce: Produce, configure: Configure
) -> None:
    source = topic()
    config = configure(source)
    path = f"/connectors/{config['name']}/config"
    api = worker()
    assert api.put(path, json=config).status_code == 201
    wrong = api.put(path, json={**config, "tasks.max": "two", "insert.mode": "delete"})
    assert wrong.status_code == 400
    assert "contains the following 2 error(s):" in wrong.json()["message"]
    assert "tasks.max='two' must be a whole number" in wrong.json()["message"]
    produce(source, records(5))
    wait_until(lambda: offset(api, config["name"]) == 5)
    assert api.patch(path, json={"tasks.max": "2", "provenance": None}).status_code == 200
    changed = {k: v for k, v in config.items() if k != "provenance"} | {"tasks.max": "2"}
    assert api.get(path).json() == shown(changed)
    renamed = api.patch(path, json={"name": "other"})
    assert renamed.status_code == 400, renamed.text
    other = api.put(path, json={**config, "name": "other"})
    assert other.json()["message"].startswith("Connector name configuration (other) doesn't match")


@pytest.mark.long
def test_answers_have_the_warnings_of_a_configuration(
    worker: Worker, topic: MakeTopic, configure: Configure
) -> None:
    json = "org.apache.kafka.connect.json.JsonConverter"
    config = configure(topic(), {"insert.mod": "insert", "value.converter": json})
    name = config["name"]
    warning = "unknown configuration key insert.mod; did you mean insert.mode?"
    warned = [{"key": "insert.mod", "value": "insert", "message": warning}]
    api = worker()
    path = f"/connectors/{name}/config"
    body = {"name": name, "config": config, "initial_state": "STOPPED"}
    plugin = config["connector.class"]
    for answer in (
        api.post("/connectors", json=body),
        api.put(path, json=config),
        api.patch(path, json={"tasks.max": 1}),
        api.put(f"/connector-plugins/{plugin}/config/validate", json=config),
    ):
        assert answer.json()["warnings"] == warned, answer.text
    assert "warnings" not in api.patch(path, json={"insert.mod": None}).json()


@pytest.mark.long
def test_a_null_is_an_error_of_its_key(
    worker: Worker, topic: MakeTopic, configure: Configure
) -> None:
    config = {**configure(topic()), "tasks.max": None, "no.such.key": None, "insert.mode": "no"}
    name, plugin = config["name"], config["connector.class"]
    api = worker()
    answer = api.put(f"/connector-plugins/{plugin}/config/validate", json=config)
    assert (answer.status_code, answer.json()["error_count"]) == (200, 3)
    values = {c["value"]["name"]: c["value"] for c in answer.json()["configs"]}
    for key in ("tasks.max", "no.such.key"):
        null = "Null value can not be supplied as the configuration value."
        assert (values[key]["value"], values[key]["errors"]) == (None, [null])
    assert "insert.mode='no'" in values["insert.mode"]["errors"][0]
    for answer in (
        api.post("/connectors", json={"name": name, "config": config}),
        api.put(f"/connectors/{name}/config", json=config),
    ):
        assert answer.status_code == 400
        assert "contains the following 3 error(s):" in answer.json()["message"]
    assert api.get("/connectors").json() == []


@pytest.mark.long
def test_an_offset_that_a_sink_cannot_use_is_refused(
    worker: Worker, topic: MakeTopic, configure: Configure
) -> None:
    source = topic()
    config = configure(source)
    name = config["name"]
    api = worker()
    api.post("/connectors", json={"name": name, "config": config, "initial_state": "STOPPED"})
    for partition, offset, message in (
        (-1, 0, "partitions may not be negative: -1"),
        (-1, None, "partitions may not be negative: -1"),
        (7, None, "-7 does not exist: topic"),
        ("1_0", 0, "partition value in the provided offsets: '1_0'"),
        (True, 0, "partition value in the provided offsets: 'true'"),
        (2**31, 0, "partition value in the provided offsets: '2147483648'"),
        (0, " 1", "offset value in the provided offsets: ' 1'"),
        (0, 2**63, "offset value in the provided offsets: '9223372036854775808'"),
        (0, [1], "offset value in the provided offsets: '[1]'"),
        (0, -1, "offsets may not be negative: -1"),
    ):
        where = {"kafka_topic": source, "kafka_partition": partition}
        at = None if offset is None else {"kafka_offset": offset}
        body = {"offsets": [{"partition": where, "offset": at}]}
        answer = api.patch(f"/connectors/{name}/offsets", json=body)
        assert answer.status_code == 400, answer.text
        assert message in answer.json()["message"]


def test_an_offset_that_a_source_cannot_use_is_refused(worker: Worker, tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("one\n")
    config = {
        "connector.class": "FileStreamSource",
        "file": str(tmp_path / "lines.txt"),
        "topic": "lines",
        "value.converter": "org.apache.kafka.connect.storage.StringConverter",
    }
    api = worker()
    name = f"lines-{uuid.uuid4().hex[:8]}"
    api.post("/connectors", json={"name": name, "config": config, "initial_state": "STOPPED"})
    for offset, message in (
        ('{"position": 99999999999999999999}', "is out of range"),
        ('{"position": "8"}', "must have a position of 0 or more"),
        ('{"position": 1.0}', "must have a position of 0 or more"),
        ('{"position": NaN}', "NaN is not a number"),
        ('{"positoin": 8}', "must have a position"),
        ("{}", "must have a position"),
    ):
        body = f'{{"offsets": [{{"partition": {{"filename": "lines.txt"}}, "offset": {offset}}}]}}'
        answer = api.patch(f"/connectors/{name}/offsets", content=body, headers=JSON)
        assert answer.status_code == 400, answer.text
        assert message in answer.json()["message"]


@pytest.mark.long
def test_a_number_in_a_configuration_keeps_its_text(
    worker: Worker, topic: MakeTopic, configure: Configure
) -> None:
    config = configure(topic())
    path = f"/connectors/{config['name']}/config"
    api = worker()
    body = {"name": config["name"], "config": config, "initial_state": "STOPPED"}
    assert api.post("/connectors", json=body).status_code == 201
    for number in ("1e3", "1.10", "12345678901234567890123", "true"):
        answer = api.patch(path, content=f'{{"file.comment": {number}}}', headers=JSON)
        assert answer.json()["config"]["file.comment"] == number
    for broken in ("NaN", "-Infinity", '"\\ud800"', "1" * 5000):
        answer = api.patch(path, content=f'{{"file.comment": {broken}}}', headers=JSON)
        assert answer.status_code == 400, answer.text


def test_a_task_that_is_no_number_is_not_found(worker: Worker) -> None:
    api = worker()
    for task in ("1_0", "+", "1.0", "%201", "2147483648"):
        answer = api.get(f"/connectors/none/tasks/{task}/status")
        assert answer.json() == {"error_code": 404, "message": "HTTP 404 Not Found"}, task


@pytest.mark.long
def test_a_connector_inherits_what_the_worker_says_and_no_more(
    worker: Worker, topic: MakeTopic, configure: Configure
) -> None:
    source = topic(values=records(5))
    config = configure(source)
    del config["bootstrap.servers"], config["value.converter.schemas.enable"]
    converter = {
        "value_converter": "org.apache.kafka.connect.json.JsonConverter",
        "value_converter_schemas.enable": "false",
    }
    api = worker(**converter, connector_client_config_override_policy="None")
    path = f"/connectors/{config['name']}/config"
    refused = api.put(path, json={**config, "consumer.override.client.id": "mine"})
    assert refused.status_code == 400
    assert "The 'None' policy does not allow 'client.id'" in refused.json()["message"]
    assert api.put(path, json=config).status_code == 201
    assert api.get(path).json() == shown(config)
    wait_until(lambda: offset(api, config["name"]) == 5)


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "message"),
    [
        ("GET", "/connectors/none", None, 404, "Connector none not found"),
        ("GET", "/connectors/none/config", None, 404, "Connector none not found"),
        ("GET", "/connectors/none/tasks", None, 404, "Connector none not found"),
        ("GET", "/connectors/none/offsets", None, 404, "Connector none not found"),
        ("GET", "/connectors/none/tasks/0/status", None, 404, "No status found for task none-0"),
        ("PUT", "/connectors/none/pause", None, 404, "Unknown connector none"),
        ("POST", "/connectors/none/restart?onlyFailed=true", None, 404, "Unknown connector: none"),
        ("GET", "/connector-plugins/none/config", None, 404, "Unknown plugin none."),
        ("POST", "/connectors", {"name": "n", "config": {}}, 400, "connector.class is required"),
        ("PATCH", "/connectors/none/offsets", {"offsets": []}, 400, "need to be provided for an"),
        ("PUT", "/admin/loggers/semel", {}, 400, "Desired 'level' parameter"),
        ("PUT", "/admin/loggers/semel", {"level": "LOUD"}, 404, "invalid log level 'LOUD'."),
        ("GET", "/nowhere", None, 404, "HTTP 404 Not Found"),
        ("DELETE", "/connectors", None, 405, "HTTP 405 Method Not Allowed"),
        ("POST", "/connectors", [1], 400, "Input should be a valid dictionary"),
        ("POST", "/connectors/none/restart", None, 404, "Connector none not found"),
    ],
)
def test_errors_are_those_of_kafka_connect(
    method: str, path: str, body: object, status: int, message: str, worker: Worker
) -> None:
    answer = worker().request(method, path, json=body)
    assert (answer.status_code, answer.json()["error_code"]) == (status, status)
    assert message in answer.json()["message"]


def test_plugins_are_listed_described_and_validated(worker: Worker) -> None:
    api = worker()
    listed = {p["class"]: p for p in api.get("/connector-plugins").json()}
    jdbc = "io.debezium.connector.jdbc.JdbcSinkConnector"
    assert listed[jdbc]["type"] == "sink"
    every = api.get("/connector-plugins", params={"connectorsOnly": False}).json()
    types = {"sink", "source", "transformation", "predicate", "converter"}
    assert {p["type"] for p in every} == types
    cast = "org.apache.kafka.connect.transforms.Cast$Value"
    assert cast in {p["class"] for p in every if p["type"] == "transformation"}
    assert "spec" in {d["name"] for d in api.get(f"/connector-plugins/{cast}/config").json()}
    keys = {d["name"]: d for d in api.get(f"/connector-plugins/{jdbc}/config").json()}
    assert keys["tasks.max"]["default_value"] == "1"
    for plugin in (jdbc, "JdbcSinkConnector", "JdbcSink"):
        path = f"/connector-plugins/{plugin}/config/validate"
        answer = api.put(path, json={"connector.class": jdbc, "tasks.max": "0", "name": "x"})
        found = {c["value"]["name"]: c["value"]["errors"] for c in answer.json()["configs"]}
        assert found["tasks.max"] == ["tasks.max='0' must be at least 1"], plugin
    unknown = "org.example.UnknownConnector"  # 500 in Kafka Connect
    path = f"/connector-plugins/{unknown}/config/validate"
    answer = api.put(path, json={"connector.class": unknown})
    assert answer.status_code == 400
    assert f"{unknown}' is not a connector that semel has" in answer.json()["message"]


def test_levels_of_loggers_are_set_with_those_below(worker: Worker) -> None:
    api = worker()
    logging.getLogger("semel.probe.below")
    assert api.put("/admin/loggers/semel.probe", json={"level": "debug"}).json() == [
        "semel.probe",
        "semel.probe.below",
    ]
    found = api.get("/admin/loggers").json()["semel.probe.below"]
    assert found["level"] == "DEBUG"
    assert found["last_modified"] > 0
    assert api.get("/admin/loggers/semel.unheard").status_code == 404


def test_the_worker_says_who_it_is(worker: Worker) -> None:
    api = worker(access_control_allow_origin="https://console.example")
    root = api.get("/", headers={"Origin": "https://console.example"})
    assert root.headers["access-control-allow-origin"] == "https://console.example"
    assert set(root.json()) == {"version", "commit", "kafka_cluster_id"}
    assert api.get("/health").json()["status"] == "healthy"
    assert "/connectors/{name}/status" in api.get("/openapi.json").json()["paths"]


def test_a_source_connector_is_run_and_its_offsets_are_altered(
    worker: Worker, topic: MakeTopic, tmp_path: Path
) -> None:
    file = tmp_path / "lines.txt"
    file.write_text("one\ntwo\n")
    name = f"lines-{tmp_path.name}"
    config = {
        "connector.class": "FileStreamSource",
        "file": str(file),
        "topic": topic(),
        "offsets.storage.topic": f"offsets-{name}",
        "offset.storage.partitions": "1",
        "value.converter": "org.apache.kafka.connect.storage.StringConverter",
    }
    api = worker()
    assert api.post("/connectors", json={"name": name, "config": config}).json()["type"] == "source"
    place = {"filename": str(file)}

    def offsets() -> Any:
        return api.get(f"/connectors/{name}/offsets").json()["offsets"]

    def position() -> list[tuple[Any, Any]]:
        return [(o["partition"], o["offset"]["position"]) for o in offsets()]

    wait_until(lambda: position() == [(place, 8)])
    assert api.get(f"/connectors/{name}/status").json()["type"] == "source"
    api.put(f"/connectors/{name}/stop")
    wait_until(lambda: state(api, name) == "STOPPED" and task_states(api, name) == [])
    wanted = {"partition": place, "offset": {"position": 4}}

    def altered() -> int:
        answer = api.patch(f"/connectors/{name}/offsets", json={"offsets": [wanted]})
        return answer.status_code

    wait_until(lambda: altered() == 200)
    assert offsets() == [wanted]
    assert api.delete(f"/connectors/{name}/offsets").status_code == 200
    assert offsets() == []
    plugins = api.get("/connector-plugins?connectorsOnly=false").json()
    assert {p["type"] for p in plugins if p["class"].endswith("FileStreamSource")} == {"source"}


@pytest.mark.parametrize(
    "name",
    some(
        ["a/b", "/", "ü☃", "sp ace", "%25", "a%2Fb", "a?b", "#h", "a;b=c", "a\\b", "[x]"],
        {"a/b", "ü☃"},
    ),
)
def test_names_may_hold_what_a_path_may_not(
    name: str, worker: Worker, topic: MakeTopic, configure: Configure
) -> None:
    api = worker()
    config = configure(topic(), {"name": name})
    body = {"name": name, "config": config, "initial_state": "STOPPED"}
    made = api.post("/connectors", json=body)
    assert made.status_code == 201, made.text
    place = made.headers["location"]
    assert place.isascii()
    assert api.get(place).json()["name"] == name
    assert state(api, quote(name, safe="")) == "STOPPED"
    assert api.get(f"/semel{place}/guarantee").status_code == 200
    assert api.put(f"{place}/config", json=config).status_code == 200
    assert api.delete(place).status_code == 204
    assert api.get("/connectors").json() == []


def test_a_name_with_control_characters_is_refused(
    worker: Worker, topic: MakeTopic, configure: Configure
) -> None:
    config = configure(topic(), {"name": "x\ny"})
    refused = worker().post("/connectors", json={"name": "x\ny", "config": config})
    assert refused.status_code == 400
    assert "has control characters, number 10" in refused.json()["message"]


@pytest.mark.parametrize("kind", some(["sink", "source"], {"sink"}))
def test_malformed_offsets_are_refused(
    kind: str, worker: Worker, topic: MakeTopic, configure: Configure, tmp_path: Path
) -> None:
    config = configure(topic(), {"name": "still"})
    if kind == "source":
        config = {"connector.class": "FileStreamSource", "file": str(tmp_path / "x"), "topic": "t"}
    api = worker()
    api.post("/connectors", json={"name": "still", "config": config, "initial_state": "STOPPED"})
    for offsets in (5, [5], [{"partition": {}, "offset": 5}], {"partition": {}}):
        answer = api.patch("/connectors/still/offsets", json={"offsets": offsets})
        assert answer.status_code == 400, answer.text


def test_a_connector_that_has_failed_is_stopped_and_resumed(
    worker: Worker, topic: MakeTopic, tmp_path: Path
) -> None:
    source = topic(values=records(3))
    file = tmp_path / "later" / "lines.txt"
    config = {
        "connector.class": "FileStreamSink",
        "topics": source,
        "file": str(file),
        "value.converter": "org.apache.kafka.connect.storage.StringConverter",
        "consumer.override.auto.offset.reset": "earliest",
    }
    name = f"lines-{tmp_path.name}"
    api = worker()
    assert api.post("/connectors", json={"name": name, "config": config}).status_code == 201
    wait_until(lambda: state(api, name) == "FAILED")
    assert api.put(f"/connectors/{name}/pause").status_code == 202
    assert state(api, name) == "FAILED"
    assert api.put(f"/connectors/{name}/stop").status_code == 204
    assert (state(api, name), task_states(api, name)) == ("STOPPED", [])
    file.parent.mkdir()
    assert api.put(f"/connectors/{name}/resume").status_code == 202
    wait_until(lambda: file.exists() and len(file.read_text().splitlines()) == 3)


@pytest.mark.long
def test_changes_of_one_connector_at_once_lose_none(
    worker: Worker, topic: MakeTopic, configure: Configure
) -> None:
    api = worker()
    config = configure(topic())
    name = config["name"]
    body = {"name": name, "config": config, "initial_state": "STOPPED"}
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: api.post("/connectors", json=body).status_code, range(8)))
        assert sorted(made) == [201, *[409] * 7]
        keys = [f"transforms.{n}.note" for n in range(8)]
        path = f"/connectors/{name}/config"
        changed = list(pool.map(lambda key: api.patch(path, json={key: "x"}).status_code, keys))
    assert changed == [200] * 8
    assert set(keys) <= set(api.get(path).json())
