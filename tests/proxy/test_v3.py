"""Version 3 of the REST Proxy's API, by Confluent's OpenAPI description."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from confluent_kafka import Consumer, TopicPartition

from semel_lab.embedded import Kafka
from tests.conftest import MakeTopic, Produce
from tests.engine.harness import wait_until
from tests.proxy.test_v2 import AVRO, ORDER, Instance, raw, refused

RECORD = {
    "partition_id": 0,
    "headers": [{"name": "h", "value": "AAE="}],
    "key": {"type": "BINARY", "data": "a2V5"},
    "value": {"type": "JSON", "data": {"a": [1, None]}},
    "timestamp": "2004-02-12T20:01:16.544Z",
}


class Cluster:
    """The paths below the proxy's cluster."""

    def __init__(self, proxy: httpx.Client) -> None:
        self.proxy = proxy
        (found,) = proxy.get("/v3/clusters").json()["data"]
        self.id = found["cluster_id"]
        self.path = f"/v3/clusters/{self.id}"

    def get(self, path: str) -> httpx.Response:
        return self.proxy.get(self.path + path)

    def data(self, path: str) -> Any:
        """The resources of a list, which says what it is."""
        answer = self.get(path)
        assert answer.status_code == 200, answer.text
        body = answer.json()
        assert body["kind"].endswith("List")
        assert body["metadata"] == {"self": str(answer.url), "next": None}
        return body["data"]

    def send(self, method: str, path: str, body: Any = None, **more: Any) -> httpx.Response:
        return self.proxy.request(method, self.path + path, json=body, **more)


@pytest.fixture(scope="module")
def cluster(proxy: httpx.Client) -> Cluster:
    return Cluster(proxy)


def links(found: Any) -> Iterator[str]:
    """The links to other resources in a resource."""
    for name, value in found.items():
        if isinstance(value, dict) and "related" in value and "reassignment" not in name:
            yield value["related"]


def test_every_resource_links_to_resources_that_are_there(
    cluster: Cluster, topic: MakeTopic, produce: Produce
) -> None:
    name = topic(2)
    produce(name, [b"1"], partition=0)
    instance = Instance(cluster.proxy, format="binary")
    instance.post("/subscription", {"topics": [name]})
    instance.read(1)
    instance.post("/offsets")
    group = f"/consumer-groups/{instance.group}"
    member = cluster.data(f"{group}/consumers")[0]["consumer_id"]
    (broker,) = (each["broker_id"] for each in cluster.data("/brokers"))
    seen = []
    for path in (
        *("", f"/brokers/{broker}", f"/topics/{name}", f"/topics/{name}/partitions/0"),
        f"/topics/{name}/partitions/0/replicas/{broker}",
        *(f"/topics/{name}/partitions/0/offset", f"/topics/{name}/configs/retention.ms"),
        *(f"/brokers/{broker}/configs/compression.type", group, f"{group}/consumers/{member}"),
        f"{group}/consumers/{member}/assignments/{name}/partitions/0",
        *(f"{group}/lags/{name}/partitions/0", f"{group}/lag-summary"),
    ):
        answer = cluster.get(path)
        assert answer.status_code == 200, (path, answer.text)
        found = answer.json()
        assert found["kind"].startswith("Kafka")
        assert found["metadata"]["self"] == str(answer.url)
        assert found["metadata"]["resource_name"].startswith(f"crn:///kafka={cluster.id}")
        seen += links(found)
    for link in sorted({each for each in seen if not each.endswith("/acls")}):
        assert cluster.proxy.get(link).status_code == 200, link


def test_what_is_not_there_is_not_found(cluster: Cluster, topic: MakeTopic) -> None:
    name = topic()
    assert refused(cluster.proxy.get("/v3/clusters/none"), 404, 404) == (
        "Cluster none cannot be found."
    )
    for path, code in {
        "/brokers/99": 404,
        "/brokers/99/configs": 404,
        "/brokers/x": 404,
        "/topics/none": 40403,
        "/topics/none/configs": 40403,
        "/topics/none/partitions": 40403,
        f"/topics/{name}/partitions/9": 40403,
        f"/topics/{name}/partitions/0/replicas/99": 404,
        f"/topics/{name}/configs/none": 404,
        "/consumer-groups/none": 404,
        "/consumer-groups/none/lags": 404,
        "/no/such/path": 404,
    }.items():
        refused(cluster.get(path), 404, code)
    refused(cluster.send("POST", "/topics/none/records", RECORD), 404, 40403)
    refused(cluster.send("DELETE", "/topics/none"), 404, 40403)


def test_a_topic_lives_from_its_creation_to_its_end(cluster: Cluster) -> None:
    name = f"topic-{uuid.uuid4().hex[:8]}"
    given = {
        "topic_name": name,
        "partitions_count": 2,
        "replication_factor": 1,
        "configs": [{"name": "cleanup.policy", "value": "compact"}],
    }
    checked = cluster.send("POST", "/topics", {**given, "validate_only": True})
    assert checked.status_code == 200
    refused(cluster.get(f"/topics/{name}"), 404, 40403)
    made = cluster.send("POST", "/topics", given)
    assert made.status_code == 201, made.text
    found = made.json()
    assert (found["partitions_count"], found["replication_factor"]) == (2, 1)
    assert (found["topic_name"], found["is_internal"]) == (name, False)
    assert name in {each["topic_name"] for each in cluster.data("/topics")}
    assert [each["partition_id"] for each in cluster.data(f"/topics/{name}/partitions")] == [0, 1]
    refused(cluster.send("POST", "/topics", given), 400, 40002)
    grown = cluster.send("PATCH", f"/topics/{name}", {"partitions_count": 3})
    assert grown.json()["partitions_count"] == 3
    refused(cluster.send("PATCH", f"/topics/{name}", {"partitions_count": 3}), 400, 40002)
    placed = {"topic_name": f"{name}-placed", "replicas_assignments": []}
    placed["replicas_assignments"] = [{"partition_id": 0, "broker_ids": [1]}]
    assert cluster.send("POST", "/topics", placed).json()["partitions_count"] == 1
    for topic in (name, f"{name}-placed"):
        assert cluster.send("DELETE", f"/topics/{topic}").status_code == 204
        wait_until(lambda topic=topic: cluster.get(f"/topics/{topic}").status_code == 404)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({}, 400),
        ({"topic_name": "a b"}, 40002),
        ({"topic_name": ""}, 40002),
        ({"topic_name": "\0"}, 40002),
        ({"topic_name": "t", "partitions_count": 0}, 400),
        ({"topic_name": "t", "partitions_count": "A"}, 400),
        ({"topic_name": "t", "partitions_count": 10_001}, 40002),
        ({"topic_name": "t", "replication_factor": 30_000}, 40002),
        ({"topic_name": "t", "configs": [{"name": "none", "value": "x"}]}, 40002),
        ({"topic_name": "t", "configs": [{"name": "retention.ms", "value": "x"}]}, 40002),
        ({"topic_name": "t", "replicas_assignments": [{}]}, 400),
        (
            {"topic_name": "t", "replicas_assignments": [{"partition_id": 1, "broker_ids": [1]}]},
            40002,
        ),
    ],
)
def test_a_topic_that_cannot_be_is_refused(cluster: Cluster, body: Any, code: int) -> None:
    refused(cluster.send("POST", "/topics", body), 400, code)


def test_settings_of_topics_change_one_by_one_and_together(
    cluster: Cluster, topic: MakeTopic
) -> None:
    path = f"/topics/{topic()}/configs"

    def value(name: str) -> Any:
        return cluster.get(f"{path}/{name}").json()["value"]

    assert cluster.send("PUT", f"{path}/compression.type", {"value": "gzip"}).status_code == 204
    wait_until(lambda: value("compression.type") == "gzip")
    found = next(each for each in cluster.data(path) if each["name"] == "compression.type")
    assert (found["source"], found["is_default"]) == ("DYNAMIC_TOPIC_CONFIG", False)
    assert found["synonyms"][-1]["value"] == "producer"
    assert cluster.send("DELETE", f"{path}/compression.type").status_code == 204
    wait_until(lambda: value("compression.type") == "producer")
    changes = [
        {"name": "compression.type", "value": "lz4"},
        {"name": "retention.ms", "operation": "DELETE"},
    ]
    checked = {"data": changes, "validate_only": True}
    assert cluster.send("POST", f"{path}:alter", checked).status_code == 204
    assert value("compression.type") == "producer"
    assert cluster.send("POST", f"{path}:alter", {"data": changes}).status_code == 204
    wait_until(lambda: value("compression.type") == "lz4" and value("retention.ms") != "-1")
    refused(cluster.send("PUT", f"{path}/none", {"value": "x"}), 404, 404)
    refused(cluster.send("PUT", f"{path}/retention.ms", {"value": "x"}), 400, 40002)
    refused(cluster.send("PUT", f"{path}/retention.ms", {}), 400, 400)
    wrong = [{"name": "retention.ms", "operation": "ADD", "value": "1"}]
    refused(cluster.send("POST", f"{path}:alter", {"data": wrong}), 400, 400)
    assert "retention.ms" in {each["name"] for each in cluster.data("/topics/-/configs")}


def test_settings_of_brokers_are_told_and_changed(cluster: Cluster) -> None:
    (broker,) = (each["broker_id"] for each in cluster.data("/brokers"))
    path = f"/brokers/{broker}/configs"
    name = "log.cleaner.threads"
    assert cluster.get(f"{path}/{name}").json()["broker_id"] == broker
    assert name in {each["name"] for each in cluster.data("/brokers/-/configs")}
    before = cluster.get(f"{path}/{name}").json()["value"]
    assert cluster.send("PUT", f"{path}/{name}", {"value": before}).status_code == 204
    wait_until(lambda: cluster.get(f"{path}/{name}").json()["source"] == "DYNAMIC_BROKER_CONFIG")
    assert cluster.send("DELETE", f"{path}/{name}").status_code == 204
    assert cluster.data("/broker-configs") == []
    refused(cluster.get(f"/broker-configs/{name}"), 404, 404)
    refused(cluster.send("PUT", f"/broker-configs/{name}", {"value": before}), 501, 501)
    refused(cluster.send("PUT", f"{path}/broker.id", {"value": "7"}), 400, 40002)
    (replica,) = {
        each["broker_id"] for each in cluster.data(f"/brokers/{broker}/partition-replicas")
    }
    assert replica == broker


def test_lags_are_told(cluster: Cluster, topic: MakeTopic, produce: Produce) -> None:
    name = topic(2)
    produce(name, [b"1", b"2", b"3"], partition=0)
    instance = Instance(cluster.proxy, format="binary")
    instance.post("/subscription", {"topics": [name]})
    instance.read(3)
    instance.post("/offsets", {"offsets": [{"topic": name, "partition": 0, "offset": 0}]})
    group = f"/consumer-groups/{instance.group}"
    found = cluster.get(group).json()
    assert (found["state"], found["type"], found["is_simple"]) == ("STABLE", "CLASSIC", False)
    assert instance.group in {
        each["consumer_group_id"] for each in cluster.data("/consumer-groups")
    }
    (member,) = cluster.data(f"{group}/consumers")
    assigned = cluster.data(f"{group}/consumers/{member['consumer_id']}/assignments")
    assert [each["partition_id"] for each in assigned] == [0, 1]
    (lag,) = cluster.data(f"{group}/lags")
    assert (lag["current_offset"], lag["log_end_offset"], lag["lag"]) == (1, 3, 2)
    assert lag["consumer_id"] == member["consumer_id"]
    summary = cluster.get(f"{group}/lag-summary").json()
    assert (summary["max_lag"], summary["total_lag"]) == (2, 2)
    assert summary["max_lag_topic_name"] == name


def test_the_name_of_a_group_may_have_a_slash(
    cluster: Cluster, kafka: Kafka, topic: MakeTopic, produce: Produce
) -> None:
    name, group = topic(), f"a/b-{uuid.uuid4().hex[:8]}"
    produce(name, [b"1"])
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": group})
    consumer.commit(offsets=[TopicPartition(name, 0, 1)], asynchronous=False)
    consumer.close()
    found = cluster.data("/consumer-groups")
    (one,) = (each for each in found if each["consumer_group_id"] == group)
    assert cluster.proxy.get(one["metadata"]["self"]).json() == one
    assert cluster.proxy.get(one["lag_summary"]["related"]).json()["total_lag"] == 0


def test_a_record_is_produced(cluster: Cluster, kafka: Kafka, topic: MakeTopic) -> None:
    name = topic()
    answer = cluster.send("POST", f"/topics/{name}/records", RECORD)
    assert answer.status_code == 200, answer.text
    assert answer.json() == {
        "error_code": 200,
        "cluster_id": cluster.id,
        "topic_name": name,
        "partition_id": 0,
        "offset": 0,
        "timestamp": "2004-02-12T20:01:16.544Z",
        "key": {"type": "BINARY", "size": 3},
        "value": {"type": "JSON", "size": 14},
    }
    empty = cluster.send("POST", f"/topics/{name}/records", {})
    assert empty.json()["offset"] == 1
    text = {"value": {"type": "STRING", "data": "é"}}
    assert cluster.send("POST", f"/topics/{name}/records", text).json()["value"]["size"] == 2
    first, second, third = raw(kafka, name, 3)
    assert (first.key(), first.value()) == (b"key", b'{"a":[1,null]}')
    assert first.headers() == [("h", b"\0\1")]
    assert (second.key(), second.value(), third.value()) == (None, None, "é".encode())


def test_records_with_schemas_are_produced(cluster: Cluster, topic: MakeTopic) -> None:
    path = f"/topics/{topic()}/records"
    given = {"value": {"type": "AVRO", "schema": AVRO, "data": ORDER}}
    first = cluster.send("POST", path, given).json()["value"]
    assert (first["type"], first["schema_id"] > 0) == ("AVRO", True)
    for named in (
        {"type": "AVRO", "schema_id": first["schema_id"]},
        {"subject": first["subject"]},
        {"subject": first["subject"], "schema_version": 1},
        {},
    ):
        found = cluster.send("POST", path, {"value": {**named, "data": ORDER}}).json()
        assert (found["value"]["type"], found["value"]["schema_id"]) == ("AVRO", first["schema_id"])
    refused(cluster.send("POST", path, {"key": {"data": 1}}), 422, 42207)


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"", 422, 422),
        (b"[]", 400, 400),
        (b"{", 400, 400),
        (b'{"value": {"type": "BINARY", "data": "1"}}', 400, 400),
        (b'{"value": {"type": "XML", "data": "1"}}', 400, 400),
        (b'{"value": {"type": "STRING", "data": 1}}', 400, 400),
        (b'{"value": {"type": "JSON", "data": 1e999}}', 400, 400),
        (b'{"value": {"type": "JSON", "data": "\\udc00"}}', 400, 400),
        (b'{"value": {"type": "JSON", "schema_id": 1, "data": 1}}', 400, 400),
        (b'{"value": {"type": "JSON", "data": %s%s}}' % (b"[" * 9999, b"]" * 9999), 400, 400),
        (b'{"headers": [{"name": "h", "value": "="}]}', 400, 400),
        (b'{"headers": [{"name": "h\\u0000"}]}', 400, 400),
        (b'{"timestamp": "1970-01-01T00:00:00Z"}', 400, 400),
        (b'{"timestamp": "yesterday"}', 400, 400),
        (b'{"timestamp": "0001-01-01T00:00:00+14:00"}', 400, 400),
        (b'{"partition_id": 9}', 404, 40403),
        (b'{"partition_id": -1}', 400, 400),
        (b'{"partition": 0}', 400, 400),
    ],
)
def test_a_record_that_is_none_is_refused(
    cluster: Cluster, topic: MakeTopic, body: bytes, status: int, code: int
) -> None:
    path = f"{cluster.path}/topics/{topic()}/records"
    headers = {"content-type": "application/json"}
    refused(cluster.proxy.post(path, content=body, headers=headers), status, code)
    text = cluster.proxy.post(path, content=body, headers={"content-type": "text/plain"})
    refused(text, 415, 415)


def test_a_stream_is_answered_record_by_record(
    cluster: Cluster, kafka: Kafka, topic: MakeTopic
) -> None:
    name = topic()
    answered: list[Any] = []

    def parts() -> Iterator[bytes]:
        for number in range(5):
            text = json.dumps({"value": {"type": "STRING", "data": f'}}"\\{number}'}}).encode()
            yield text[:9]
            yield text[9:] + b" \n"
        yield b'{"value": {"type": "STRING", "data": 1}}{}'
        yield b'{"value'

    path = f"{cluster.path}/topics/{name}/records"
    kind = {"content-type": "application/json"}
    with cluster.proxy.stream("POST", path, content=parts(), headers=kind) as answer:
        assert answer.status_code == 200
        answered += map(json.loads, answer.iter_lines())
    assert [each.get("offset") for each in answered] == [0, 1, 2, 3, 4, None, 5, None]
    assert [each["error_code"] for each in answered] == [200] * 5 + [400, 200, 400]
    assert [m.value() for m in raw(kafka, name, 6)][4:] == [b'}"\\4', None]
    broken = b'{"value": {"type": "JSON", "data": }}'
    with cluster.proxy.stream(
        "POST", path, content=iter([b"{}%b{} x{}" % broken]), headers=kind
    ) as told:
        codes = [json.loads(line)["error_code"] for line in told.iter_lines()]
    assert codes == [200, 400, 200, 400]
    whole = b'{"value": {"type": "STRING", "data": "a"}}{}'
    lines = cluster.proxy.post(path, content=whole, headers=kind).text.splitlines()
    assert [json.loads(line)["offset"] for line in lines] == [8, 9]


def test_a_batch_tells_of_each_entry(cluster: Cluster, topic: MakeTopic) -> None:
    path = f"/topics/{topic()}/records:batch"
    bad = {"id": "bad", "value": {"type": "BINARY", "data": "1"}}
    answer = cluster.send("POST", path, {"entries": [{"id": "1", **RECORD}, bad, {"id": "2"}]})
    assert answer.status_code == 207
    found = answer.json()
    assert [(e["id"], e["offset"]) for e in found["successes"]] == [("1", 0), ("2", 1)]
    assert [(e["id"], e["error_code"]) for e in found["failures"]] == [("bad", 400)]
    for entries in ([], [{"id": "1"}, {"id": "1"}], [{"id": "a b"}], [{"id": "x" * 81}]):
        refused(cluster.send("POST", path, {"entries": entries}), 422, 42208)
    refused(cluster.send("POST", path, {"entries": [{}]}), 400, 400)
