"""Version 2 of the REST Proxy's API, as Confluent's and Karapace's clients know it."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import threading
import uuid
from collections.abc import Iterator
from typing import Any
from unittest.mock import MagicMock, Mock

import httpx
import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from semel.config import read
from semel.config.proxy import ProxyConfig
from semel.proxy import kafka as clients
from semel.proxy.bodies import EmbeddedFormat
from semel.proxy.consumers import Instance as Given
from semel.proxy.consumers import Session, Sessions
from semel.proxy.errors import Refusal
from semel.proxy.v2 import topics
from semel_lab.embedded import Kafka
from semel_lab.embedded.process import LOOPBACK
from semel_lab.embedded.registry import SchemaRegistry
from tests.conftest import MakeTopic, Produce
from tests.engine.harness import wait_until
from tests.patience import PATIENCE
from tests.proxy.conftest import V2, OwnProxy, threads, v2
from tests.proxy.still import StillProxy

JSON_RECORD = {"records": [{"key": "k", "value": {"a": 1}}]}
AVRO = json.dumps(
    {
        "type": "record",
        "name": "order",
        "namespace": "shop",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "note", "type": ["null", "string"]},
            {"name": "code", "type": {"type": "fixed", "name": "code", "size": 2}},
            {"name": "size", "type": {"type": "enum", "name": "size", "symbols": ["S", "L"]}},
            {"name": "tags", "type": {"type": "map", "values": "double"}},
            {"name": "lines", "type": {"type": "array", "items": ["null", "int", "order"]}},
        ],
    }
)
ORDER = {
    "id": 2**53 + 1,
    "note": {"string": "é"},
    "code": "\u00ff\u0000",
    "size": "L",
    "tags": {"x": 0.5, "y": "NaN"},
    "lines": [
        {"int": -7},
        None,
        {"shop.order": {"id": 1, "note": None, "code": "ab", "size": "S", "tags": {}, "lines": []}},
    ],
}
JSON_SCHEMA = json.dumps(
    {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}
)
PROTOBUF = 'syntax = "proto3"; message Order { int64 id = 1; repeated string tags = 2; }'


def produced(
    proxy: httpx.Client, topic: str, body: Any, embedded: str = "json", partition: int | None = None
) -> httpx.Response:
    path = f"/topics/{topic}" + ("" if partition is None else f"/partitions/{partition}")
    return proxy.post(path, json=body, headers={"content-type": v2(embedded)})


def raw(kafka: Kafka, topic: str, count: int = 1, partition: int = 0) -> list[Message]:
    """The records of a partition, as Kafka has them."""
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": "raw"})
    consumer.assign([TopicPartition(topic, partition, 0)])
    found: list[Message] = []
    wait_until(lambda: bool(found.extend(consumer.consume(count, 0.2)) or len(found) >= count))
    consumer.close()
    return found


class Instance:
    """A consumer instance, and its paths."""

    def __init__(self, proxy: httpx.Client, group: str = "", **settings: Any) -> None:
        self.group = group or f"group-{uuid.uuid4().hex[:8]}"
        given = {"auto.offset.reset": "earliest"} | {
            name.replace("_", "."): value for name, value in settings.items()
        }
        answer = proxy.post(f"/consumers/{self.group}", json=given)
        assert answer.status_code == 200, answer.text
        self.id = answer.json()["instance_id"]
        self.url = answer.json()["base_uri"]
        self.proxy = proxy

    def post(self, path: str, body: Any = None) -> httpx.Response:
        return self.proxy.post(self.url + path, json=body, headers={"content-type": V2})

    def get(self, path: str = "", embedded: str = "", body: Any = None, **query: Any) -> Any:
        return self.proxy.request(
            "GET", self.url + path, json=body, params=query, headers={"accept": v2(embedded)}
        )

    def read(self, count: int, **query: Any) -> list[dict[str, Any]]:
        """So many records."""
        found: list[dict[str, Any]] = []

        def enough() -> bool:
            answer = self.get("/records", **query)
            assert answer.status_code == 200, answer.text
            found.extend(answer.json())
            return len(found) >= count

        wait_until(enough)
        return found


def at(topic: str, partition: int = 0, **more: Any) -> dict[str, Any]:
    return {"topic": topic, "partition": partition, **more}


def refused(answer: httpx.Response, status: int, code: int) -> str:
    """The message of an error."""
    assert (answer.status_code, answer.json()["error_code"]) == (status, code), answer.text
    message: str = answer.json()["message"]
    return message


def test_topics_partitions_and_brokers(proxy: httpx.Client, topic: MakeTopic) -> None:
    name = topic(2)
    assert name in proxy.get("/topics").json()
    described = proxy.get(f"/topics/{name}").json()
    assert described["configs"]["retention.ms"] == "-1"
    (broker,) = proxy.get("/brokers").json()["brokers"]
    replicas = [{"broker": broker, "leader": True, "in_sync": True}]
    expected = [{"partition": p, "leader": broker, "replicas": replicas} for p in (0, 1)]
    assert described["partitions"] == expected
    assert proxy.get(f"/topics/{name}/partitions").json() == expected
    assert proxy.get(f"/topics/{name}/partitions/1").json() == expected[1]
    produced(proxy, name, {"records": [{"value": n} for n in range(3)]}, partition=1)
    offsets = {"beginning_offset": 0, "end_offset": 3}
    assert proxy.get(f"/topics/{name}/partitions/1/offsets").json() == offsets
    answer = proxy.get("/topics")
    assert answer.headers["content-type"] == V2


def test_what_is_not_there_is_not_found(proxy: httpx.Client, topic: MakeTopic) -> None:
    name = topic()
    for path in ("", "/partitions", "/partitions/0", "/partitions/0/offsets"):
        refused(proxy.get(f"/topics/no-such-topic{path}"), 404, 40401)
    for path in ("/partitions/1", "/partitions/1/offsets", "/partitions/-1"):
        refused(proxy.get(f"/topics/{name}{path}"), 404, 40402)
    refused(produced(proxy, "no-such-topic", JSON_RECORD), 404, 40401)
    refused(produced(proxy, "a%20b", JSON_RECORD), 404, 40401)
    refused(produced(proxy, name, JSON_RECORD, partition=1), 404, 40402)
    refused(produced(proxy, name, {"records": [{"value": 1, "partition": 9}]}), 404, 40402)
    refused(proxy.get(f"/topics/{name}/partitions/x"), 404, 404)
    refused(proxy.get("/no/such/path"), 404, 404)
    refused(proxy.delete(f"/topics/{name}"), 405, 405)


def test_records_go_where_they_should_with_headers_and_timestamps(
    proxy: httpx.Client, kafka: Kafka, topic: MakeTopic
) -> None:
    name = topic(2)
    headers = [{"name": "h", "value": "AAE="}, {"name": "n", "value": None}]
    body = {
        "records": [
            {"key": {"id": 1}, "value": [1, "é", None, 1.5], "partition": 1, "timestamp": 7},
            {"value": {"b": 2}, "partition": 1, "headers": headers},
            {"key": "only a key", "partition": 1},
        ]
    }
    answer = produced(proxy, name, body)
    assert answer.status_code == 200
    assert answer.json() == {
        "key_schema_id": None,
        "value_schema_id": None,
        "offsets": [
            {"partition": 1, "offset": n, "error_code": None, "error": None} for n in range(3)
        ],
    }
    first, second, third = raw(kafka, name, 3, partition=1)
    assert (first.key(), first.value()) == (b'{"id":1}', '[1,"é",null,1.5]'.encode())
    assert first.timestamp()[1] == 7
    assert second.headers() == [("h", b"\0\1"), ("n", None)]
    assert (third.key(), third.value()) == (b'"only a key"', None)


def test_binary_records_are_base64(proxy: httpx.Client, kafka: Kafka, topic: MakeTopic) -> None:
    name = topic()
    body = {"records": [{"key": "", "value": base64.b64encode(b"\xff\0").decode()}]}
    assert produced(proxy, name, body, "binary").status_code == 200
    (message,) = raw(kafka, name)
    assert (message.key(), message.value()) == (b"", b"\xff\0")
    for junk in ("=", "Y", "YQ=", "Y Q==", "_-8=", "é", 1, {"a": 1}):
        body = {"records": [{"value": junk}]}
        assert "record 0" in refused(produced(proxy, name, body, "binary"), 422, 42203)


@pytest.mark.parametrize(
    ("embedded", "schema", "good", "bad"),
    [
        ("avro", AVRO, ORDER, {**ORDER, "size": "XL"}),
        ("jsonschema", JSON_SCHEMA, {"id": 1, "more": "x"}, {"id": "1"}),
        ("protobuf", PROTOBUF, {"id": "1", "tags": ["a"]}, {"no_such_field": 1}),
    ],
)
def test_records_with_schemas_come_back_as_they_went(
    proxy: httpx.Client, topic: MakeTopic, embedded: str, schema: str, good: Any, bad: Any
) -> None:
    name = topic()
    answer = produced(proxy, name, {"value_schema": schema, "records": [{"value": good}]}, embedded)
    assert answer.status_code == 200, answer.text
    number = answer.json()["value_schema_id"]
    by_id = {"value_schema_id": number, "records": [{"value": good}]}
    assert produced(proxy, name, by_id, embedded).json()["offsets"][0]["offset"] == 1
    instance = Instance(proxy, format=embedded)
    instance.post("/assignments", {"partitions": [at(name)]})
    assert [each["value"] for each in instance.read(2, embedded=embedded)] == [good, good]
    by_id = {"value_schema_id": number, "records": [{"value": good}, {"value": bad}]}
    assert "record 1" in refused(produced(proxy, name, by_id, embedded), 422, 42203)
    refused(produced(proxy, name, {"records": [{"value": good}]}, embedded), 422, 42202)
    refused(produced(proxy, name, {"records": [{"key": good}]}, embedded), 422, 42201)
    wrong = {"value_schema": "{", "records": [{"value": good}]}
    refused(produced(proxy, name, wrong, embedded), 422, 42205)
    unknown = {"value_schema_id": 2**31 - 1, "records": [{"value": good}]}
    refused(produced(proxy, name, unknown, embedded), 408, 40801)


def test_media_types_are_negotiated(proxy: httpx.Client, topic: MakeTopic) -> None:
    path, body = f"/topics/{topic()}", {"records": [{"value": "YQ=="}]}
    for kind in (v2("binary"), V2, "application/json", "application/octet-stream"):
        given = json.dumps(body).encode()
        answer = proxy.post(path, content=given, headers={"content-type": kind})
        assert answer.status_code == 200, answer.text
    for kind in ("text/plain", v2("xml"), "application/vnd.kafka.json.v3+json"):
        refused(proxy.post(path, content=b"{}", headers={"content-type": kind}), 415, 415)
    for accept, found in {
        "*/*": V2,
        "application/json": "application/json",
        f"{V2};q=0.5, application/json;q=0.9": "application/json",
        v2("avro"): v2("avro"),
        "text/html, application/*;q=0.1": V2,
    }.items():
        answer = proxy.get(path, headers={"accept": accept})
        assert answer.headers["content-type"] == found
    for accept in ("text/html", "application/vnd.kafka.v3+json", "application/json;q=0"):
        refused(proxy.get(path, headers={"accept": accept}), 406, 406)


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"", 422, 42206),
        (b"{", 400, 400),
        (b'{"records": [{"value": NaN}]}', 400, 400),
        (b'{"records": [{"value": 1e999}]}', 400, 400),
        (b'{"records": [{"value": "\\ud800"}]}', 400, 400),
        (b'{"records": [{"value": %s}]}' % (b"9" * 5000), 400, 400),
        (b'{"records": [{"value": %s%s}]}' % (b"[" * 9999, b"]" * 9999), 400, 400),
        (b"\xff\xfe", 400, 400),
        (b"[]", 422, 42206),
        (b"{}", 422, 42206),
        (b'{"records": []}', 422, 42206),
        (b'{"records": {}}', 422, 42206),
        (b'{"records": [{"valu": 1}]}', 422, 42206),
        (b'{"records": [{"value": 1, "partition": -1}]}', 422, 42206),
        (b'{"records": [{"value": 1, "partition": 1e99}]}', 422, 42206),
        (b'{"records": [{"value": 1, "timestamp": -1}]}', 422, 42206),
        (b'{"records": [{"value": 1, "timestamp": 0}]}', 422, 42206),
        (b'{"records": [{"value": 1, "headers": [{"name": "a", "value": "="}]}]}', 422, 42206),
        (b'{"records": [{"value": 1, "headers": [{"name": "a\\u0000b"}]}]}', 422, 42206),
    ],
)
def test_a_body_that_is_none_is_refused(
    proxy: httpx.Client, topic: MakeTopic, body: bytes, status: int, code: int
) -> None:
    answer = proxy.post(f"/topics/{topic()}", content=body, headers={"content-type": v2("json")})
    refused(answer, status, code)


def test_both_paths_refuse_a_body_in_the_same_words(proxy: httpx.Client, topic: MakeTopic) -> None:
    """One of them is not served by FastAPI's own code."""
    name = topic()
    for body in (
        b"",
        b"nope",
        b"[]",
        b'"text"',
        b"null",
        b"{}",
        b'{"recrods": []}',
        b'{"records": {}}',
        b'{"records": []}',
        b'{"records": ["text"]}',
        b'{"records": [{"value": 1, "timestamp": 0}, {"b": 1}]}',
        b'{"records": [{"headers": [{"name": 1}]}]}',
        b'{"records": [{"value": "\\ud800"}]}',
    ):
        answers = [
            proxy.post(f"/topics/{name}{path}", content=body, headers={"content-type": v2("json")})
            for path in ("", "/partitions/0")
        ]
        assert {400, 422} >= {each.status_code for each in answers}, body
        assert answers[0].json() == answers[1].json(), body


def test_records_are_counted_before_they_are_read(own_proxy: OwnProxy, topic: MakeTopic) -> None:
    """Models of them may take 200 times the memory of the body."""
    proxy, name = own_proxy(semel_rest_max_records="5"), topic()
    wrong = [{"wrong": 1}] * 6
    for path in ("", "/partitions/0"):
        answer = proxy.post(f"/topics/{name}{path}", json={"records": wrong})
        assert "6 records; the limit is 5" in refused(answer, 422, 42206)
    cluster = proxy.get("/v3/clusters").json()["data"][0]["cluster_id"]
    path = f"/v3/clusters/{cluster}/topics/{name}/records:batch"
    answer = proxy.post(path, json={"entries": wrong})
    assert "6; the limit is 5" in refused(answer, 422, 42208)


def test_only_what_takes_long_is_encoded_in_a_thread(
    own_proxy: OwnProxy, registry: SchemaRegistry, topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[str] = []
    encode = topics._outgoing

    def noted(*given: Any) -> Any:
        used.append(threading.current_thread().name)
        return encode(*given)

    monkeypatch.setattr(topics, "_outgoing", noted)
    proxy, name = own_proxy(schema_registry_url=registry.url), topic()

    def post(text: str, **schema: Any) -> Any:
        answer = proxy.post(
            f"/topics/{name}",
            json={**schema, "records": [{"value": text}]},
            headers={"content-type": v2("avro")},
        )
        assert answer.status_code == 200, answer.text
        return answer.json()["value_schema_id"]

    number = post("a", value_schema='"string"')
    for text in ("b", "c", "d" * 100_000):
        assert post(text, value_schema_id=number) == number
    in_the_loop = [each == "semel-rest" for each in used]
    assert in_the_loop == [False, False, True, False], "new, not made yet, at hand, large"


def test_too_much_is_refused(own_proxy: OwnProxy, topic: MakeTopic) -> None:
    limits = {"semel_rest_max_request_bytes": "2000", "semel_rest_max_records": "2"}
    proxy, name = own_proxy(**limits, semel_rest_max_consumers="1"), topic()
    refused(produced(proxy, name, {"records": [{"value": "x" * 2000}]}), 413, 413)
    refused(produced(proxy, name, {"records": [{"value": 1}] * 3}), 422, 42206)
    path = "/v3/clusters/consumer-groups/topics/t%2Frecords"  # looks like that of a stream
    refused(proxy.patch(path, content=b" " * 2001), 405, 405)  # and nothing reads its body
    instance = Instance(proxy)
    answer = proxy.post(f"/consumers/{instance.group}", json={})
    refused(answer, 429, 429)
    assert answer.headers["retry-after"]


def test_a_record_that_is_too_large_is_told_apart(proxy: httpx.Client, topic: MakeTopic) -> None:
    name = topic(config={"max.message.bytes": "1000"})
    body = {"records": [{"value": "x" * 2000, "partition": 0}]}
    (offset,) = produced(proxy, name, body).json()["offsets"]
    assert (offset["partition"], offset["offset"], offset["error_code"]) == (None, None, 1)
    assert "larger" in offset["error"]


def test_a_consumer_lives_from_its_creation_to_its_end(
    proxy: httpx.Client, topic: MakeTopic
) -> None:
    name = topic()
    produced(proxy, name, {"records": [{"key": n, "value": {"n": n}} for n in range(3)]})
    instance = Instance(proxy, name="mine", format="json", auto_commit_enable="false")
    assert instance.id == "mine"
    assert instance.url.endswith(f"/consumers/{instance.group}/instances/mine")
    again = proxy.post(f"/consumers/{instance.group}", json={"name": "mine"})
    refused(again, 409, 40902)
    assert instance.post("/subscription", {"topics": [name]}).status_code == 204
    assert instance.get("/subscription").json() == {"topics": [name]}
    found = instance.read(3, embedded="json")
    expected = at(
        name, key=0, value={"n": 0}, offset=0, headers=[], timestamp=found[0]["timestamp"]
    )
    assert found[0] == expected
    assert instance.get("/assignments").json() == {"partitions": [at(name)]}
    asked = {"partitions": [at(name)]}
    assert instance.get("/offsets", body=asked).json() == {"offsets": []}
    assert instance.post("/offsets").status_code == 200
    committed = {"offsets": [at(name, offset=3, metadata="")]}
    assert instance.get("/offsets", body=asked).json() == committed
    # As with Confluent, clients name the last record, and the next one is committed.
    given = {"offsets": [at(name, offset=0, metadata="m")]}
    assert instance.post("/offsets", given).status_code == 200
    committed = {"offsets": [at(name, offset=1, metadata="m")]}
    assert instance.get("/offsets", body=asked).json() == committed
    assert proxy.delete(f"{instance.url}/subscription").status_code == 204
    assert instance.get("/subscription").json() == {"topics": []}
    assert proxy.delete(instance.url).status_code == 204
    for answer in (
        proxy.delete(instance.url),
        instance.get("/records"),
        instance.get("/subscription"),
        instance.post("/offsets"),
        instance.post("/subscription", {"topics": [name]}),
        instance.post("/positions/end", {"partitions": []}),
    ):
        refused(answer, 404, 40403)


def test_positions_are_set(proxy: httpx.Client, topic: MakeTopic) -> None:
    name = topic(2)
    produced(proxy, name, {"records": [{"value": n} for n in range(5)]}, partition=0)
    instance = Instance(proxy, format="json")
    places = {"partitions": [at(name), at(name, 1)]}
    assert instance.post("/assignments", places).status_code == 204
    assert instance.get("/assignments").json() == places
    assert [each["value"] for each in instance.read(5)] == [0, 1, 2, 3, 4]
    instance.post("/positions", {"offsets": [at(name, offset=3)]})
    assert [each["value"] for each in instance.read(2)] == [3, 4]
    instance.post("/positions/beginning", {"partitions": [at(name)]})
    assert instance.read(5)[0]["value"] == 0
    instance.post("/positions/beginning", {"partitions": [at(name)]})
    instance.post("/positions/end", {"partitions": [at(name)]})
    assert instance.get("/records", timeout=300).json() == []
    missing = {"partitions": [at("no-such-topic")]}
    refused(instance.post("/assignments", missing), 404, 40401)
    refused(instance.post("/assignments", {"partitions": [at(name, 7)]}), 404, 40402)
    refused(instance.post("/positions", {"offsets": [at(name, 7, offset=0)]}), 409, 40903)
    refused(instance.post("/positions", {"offsets": [at(name, offset=-1)]}), 422, 42206)
    refused(instance.post("/subscription", {"topics": [name]}), 409, 40903)


def test_a_position_is_the_first_record_since_a_time(proxy: httpx.Client, topic: MakeTopic) -> None:
    name, hour = topic(), 3_600_000
    records = [{"value": n, "timestamp": n * hour} for n in (1, 2, 3)]
    produced(proxy, name, {"records": records}, partition=0)
    instance = Instance(proxy, format="json")
    instance.post("/assignments", {"partitions": [at(name)]})
    assert [each["value"] for each in instance.read(3)] == [1, 2, 3]
    instance.post("/positions", {"timestamps": [at(name, timestamp="1970-01-01T01:30:00Z")]})
    assert [each["value"] for each in instance.read(2)] == [2, 3]
    instance.post("/positions", {"timestamps": [at(name, timestamp="1970-01-01T09:00:00Z")]})
    assert instance.get("/records", timeout=300).json() == []


def test_a_subscription_is_by_names_or_by_pattern(proxy: httpx.Client, topic: MakeTopic) -> None:
    prefix = f"p{uuid.uuid4().hex[:8]}"
    name = topic(prefix=prefix)
    instance = Instance(proxy, format="json")
    for wrong in ({}, {"topics": []}, {"topics": [name], "topic_pattern": "x"}):
        refused(instance.post("/subscription", wrong), 409, 40903)
    refused(instance.post("/subscription", {"topics": "x"}), 422, 42206)
    refused(instance.post("/subscription", {"topic_pattern": "("}), 422, 42206)
    assert instance.post("/subscription", {"topic_pattern": f"{prefix}.*"}).status_code == 204
    produced(proxy, name, {"records": [{"value": 1}]})
    assert instance.read(1)[0]["topic"] == name
    assert instance.get("/subscription").json() == {"topics": [name]}
    refused(instance.post("/assignments", {"partitions": [at(name)]}), 409, 40903)


def kafka_of(servers: str = f"{LOOPBACK}:1") -> clients.Kafka:
    return clients.Kafka(read(ProxyConfig, {"bootstrap.servers": servers}))


def session_of(kafka: clients.Kafka) -> Session:
    given = Given("g", "i", EmbeddedFormat.BINARY, "earliest", False, 1, 0)
    return Session(given, kafka, "http://proxy")


def test_partitions_are_read_after_a_subscription_has_ended() -> None:
    producer = Producer({"test.mock.num.brokers": 1, "log_level": 0})
    producer.produce("t", b"1", partition=0)
    assert producer.flush(PATIENCE) == 0
    (broker,) = producer.list_topics(timeout=PATIENCE).brokers.values()
    session = session_of(kafka_of(f"{broker.host}:{broker.port}"))
    session.subscribe(["t"], None)
    wait_until(session.poll)
    with pytest.raises(Refusal, match="by name or pattern"):
        session.subscribe([], "t")
    session.unsubscribe()
    session.assign([("t", 0)])
    wait_until(session.poll)
    session.close()


@pytest.mark.parametrize("fails", [False, True])
def test_what_others_may_have_read_meanwhile_is_not_committed(fails: bool) -> None:
    """Neither what was sent before the partition was taken away, nor what had just come."""
    consumer = Mock()
    consumer.commit.return_value = []
    consumer.assignment.return_value = [TopicPartition("t", 0), TopicPartition("t", 1)]

    def record(partition: int, offset: int, error: KafkaError | None = None) -> Any:
        facts = {"topic": "t", "partition": partition, "offset": offset, "key": b"", "error": error}
        return MagicMock(**{name: Mock(return_value=fact) for name, fact in facts.items()})

    def come() -> Iterator[list[Any]]:
        yield [record(0, 9), record(1, 9)]
        consumer.subscribe.call_args.kwargs["on_revoke"](consumer, [TopicPartition("t", 1)])
        error = record(0, -1, KafkaError(KafkaError._FAIL))
        yield [record(1, 10), record(0, 10), *[error] * fails]
        while True:
            yield []

    async def sent() -> list[int]:
        sessions = Sessions(kafka_of())
        await sessions.create(Given("g", "i", EmbeddedFormat.BINARY, "earliest", False, 1, 0))
        (session,) = sessions._sessions.values()
        session._connected, consumer.consume.side_effect = consumer, come()
        session.subscribe(["t"], None)
        session.passed([record(1, 5)])

        async def places(_: Session, messages: list[Any]) -> list[int]:
            return [each.partition() for each in messages]

        if fails:
            with pytest.raises(Refusal):
                await sessions.read("g", "i", timeout_ms=300, most_bytes=1, hand_over=places)
        found = await sessions.read("g", "i", timeout_ms=300, most_bytes=1, hand_over=places)
        session.commit(None)
        return found

    assert asyncio.run(sent()) == [0, 0]
    (committed,) = consumer.commit.call_args.kwargs["offsets"]
    assert (committed.partition, committed.offset) == (0, 11)


def test_no_offsets_commit_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(Session, "commit", lambda _, offsets: asked.append(offsets) or [])

    async def commit() -> None:
        async with StillProxy().client() as client:
            made = (await client.post("/consumers/g", json={"id": "a", "name": "b"})).json()
            assert made["instance_id"] == "a"  # as with Confluent
            await client.post(f"{made['base_uri']}/offsets", json={"offsets": []})
            await client.post(f"{made['base_uri']}/offsets")

    asyncio.run(commit())
    assert asked == [[], None]


def test_what_is_named_twice_is_read_once() -> None:
    session = session_of(kafka_of())
    session.subscribe(["a", "b", "a"], None)
    assert session.topics == ["a", "b"]
    session.unsubscribe()
    session.assign([("a", 0), ("a", 0)])
    assert session.assignment() == [("a", 0)]
    session.close()


def test_a_pattern_is_matched_to_all_topics_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("semel.proxy.consumers._MATCHES_FOR", -1)
    session = session_of(kafka_of())
    session._connected = Mock(**{"list_topics.return_value": Mock(topics={"a": 0, "b": 0})})
    with pytest.raises(Refusal, match="takes too long to match 2 topics"):
        session.subscribe([], "(?=a)a|b")


@pytest.mark.parametrize(
    "settings",
    [
        {"format": "xml"},
        {"auto.offset.reset": "bar"},
        {"auto.commit.enable": "perhaps"},
        {"fetch.min.bytes": "many"},
        {"fetch.min.bytes": "--5"},
        {"fetch.min.bytes": -2},
        {"consumer.request.timeout.ms": 10**400},
        {"no.such.setting": 1},
    ],
)
def test_a_setting_that_is_none_is_refused(proxy: httpx.Client, settings: dict[str, Any]) -> None:
    refused(proxy.post("/consumers/g", json=settings), 422, 42204)


def test_records_are_read_in_the_consumers_format(proxy: httpx.Client, topic: MakeTopic) -> None:
    name = topic()
    instance = Instance(proxy, format="json")
    instance.post("/assignments", {"partitions": [at(name)]})
    refused(instance.get("/records", embedded="binary"), 406, 40601)
    answer = instance.get("/records", timeout=0)
    assert answer.headers["content-type"] == v2("json")


def test_a_record_in_another_format_is_named_and_can_be_passed(
    proxy: httpx.Client, topic: MakeTopic
) -> None:
    name = topic(values=["1", "{", "3"])
    instance = Instance(proxy, format="json")
    instance.post("/assignments", {"partitions": [at(name)]})
    assert [each["value"] for each in instance.read(1)] == [1]
    for _ in range(2):
        assert f"{name}-0, offset 1" in refused(instance.get("/records", timeout=9000), 422, 42203)
    instance.post("/positions", {"offsets": [at(name, offset=2)]})
    assert [each["value"] for each in instance.read(1)] == [3]


def test_an_answer_has_no_more_bytes_than_wanted(proxy: httpx.Client, topic: MakeTopic) -> None:
    name = topic(values=[f'"{n}{"x" * 100}"' for n in range(9)])
    instance = Instance(proxy, format="json")
    instance.post("/assignments", {"partitions": [at(name)]})
    seen: list[Any] = []
    while len(seen) < 9:
        answer = instance.get("/records", max_bytes=250).json()
        assert len(answer) <= 2
        seen += answer
    assert [each["offset"] for each in seen] == [*range(9)]
    refused(instance.get("/records", max_bytes="x"), 400, 400)
    refused(instance.get("/records", timeout=10**400), 400, 400)


def test_a_consumer_has_no_client_until_it_is_used(own_proxy: OwnProxy, topic: MakeTopic) -> None:
    proxy, name = own_proxy(), topic()
    before = threads()
    instances = [Instance(proxy) for _ in range(3)]
    assert threads() <= before
    instances[0].post("/assignments", {"partitions": [at(name)]})
    assert threads() > before


def test_an_idle_consumer_ends(own_proxy: OwnProxy, topic: MakeTopic, produce: Produce) -> None:
    proxy, name = own_proxy(consumer_instance_timeout_ms="500"), topic()
    produce(name, ["1"])
    instance = Instance(proxy, format="json")
    instance.post("/subscription", {"topics": [name]})
    instance.read(1)
    wait_until(lambda: proxy.get("/metrics").text.count("semel_rest_consumers 0.0") == 1)
    refused(instance.get("/records"), 404, 40403)


def calls_abandoned(proxy: httpx.Client) -> int:
    found = re.search(r"^semel_rest_calls_abandoned (\d+)", proxy.get("/metrics").text, re.M)
    assert found is not None
    return int(found[1])


def test_a_consumer_that_cannot_be_closed_is_left_behind(
    own_proxy: OwnProxy, topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck = threading.Event()

    class Stuck(Consumer):
        """librdkafka may wait forever for an answer that it has dropped."""

        def close(self) -> None:
            stuck.wait()

    monkeypatch.setattr("semel.proxy.consumers.Consumer", Stuck)
    monkeypatch.setattr("semel.kafka.consumer._END", 0.2)
    instance = Instance(own_proxy())
    assert instance.post("/subscription", {"topics": [topic()]}).status_code == 204
    before = calls_abandoned(instance.proxy)
    assert instance.proxy.delete(instance.url).status_code == 204
    assert instance.get("/subscription").status_code == 404
    assert calls_abandoned(instance.proxy) == before + 1
    stuck.set()


def test_another_proxy_sends_clients_to_the_owner(
    own_proxy: OwnProxy, topic: MakeTopic, produce: Produce
) -> None:
    owner, name = own_proxy(), topic()
    produce(name, ["1"])
    other = own_proxy(semel_rest_peers=str(owner.base_url))
    instance = Instance(owner, format="json")
    path = instance.url.removeprefix(str(owner.base_url).rstrip("/"))
    answer = other.get(f"{path}/records", params={"timeout": 1})
    assert answer.status_code == 307
    assert answer.headers["location"] == f"{instance.url}/records?timeout=1"
    named = Instance(owner, name="named", format="json")
    named.post("/subscription", {"topics": [name]})
    named.read(1)
    answer = other.delete(f"/consumers/{named.group}/instances/named")
    assert answer.headers["location"] == named.url
    refused(other.get("/consumers/g/instances/none/records"), 404, 40403)


def test_a_client_that_has_gone_loses_no_records(
    proxy: httpx.Client, topic: MakeTopic, produce: Produce
) -> None:
    name = topic()
    instance = Instance(proxy, format="json")
    instance.post("/assignments", {"partitions": [at(name)]})
    with pytest.raises(httpx.ReadTimeout):
        proxy.get(f"{instance.url}/records", params={"timeout": 5000}, timeout=0.3)
    produce(name, ["1"])
    assert [each["value"] for each in instance.read(1)] == [1]
