"""Who may use the proxy, access control lists, and what hostile clients meet."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import socket
import ssl
from concurrent.futures import Future
from pathlib import Path
from typing import Any, cast
from unittest.mock import AsyncMock, Mock

import httpx
import psutil
import pytest
from confluent_kafka import (
    ConsumerGroupState,
    ConsumerGroupType,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import ConfigEntry
from starlette.types import Receive, Scope, Send

from semel.config.rest import BASIC_AUTH
from semel.proxy.bodies import written
from semel.proxy.formats import Encoder
from semel.proxy.logins import Clients
from semel.proxy.reading import Readers, Slice
from semel.proxy.v3 import topics
from semel.worker.rest.guard import USER
from semel_lab.embedded import Kafka
from semel_lab.embedded.process import LOOPBACK, free_port
from tests.conftest import MakeTopic, Produce
from tests.engine.harness import wait_until
from tests.patience import PATIENCE
from tests.proxy.conftest import V2, OwnProxy, served, v2
from tests.proxy.still import CLUSTER, RECORDS, StillProxy
from tests.proxy.test_exactly_once import server
from tests.proxy.test_v2 import Instance, at, refused
from tests.proxy.test_v3 import Cluster
from tests.rest.authority import Authority

MODULE = "org.apache.kafka.connect.rest.basic.auth.extension.PropertyFileLoginModule"


def test_a_user_is_asked_for_and_readers_change_nothing(
    own_proxy: OwnProxy, topic: MakeTopic, tmp_path: Path
) -> None:
    tokens = tmp_path / "tokens.properties"
    tokens.write_text("web=s3cret\nlook=0nly\n")
    proxy = own_proxy(
        semel_rest_tokens_file=str(tokens),
        **{"semel.rest.read.only.users": "look"},
    )
    name = topic()
    path, body = f"/topics/{name}", {"records": [{"value": 1}]}

    def post(token: str, key: str = "") -> httpx.Response:
        headers = {"content-type": v2("json"), "authorization": f"Bearer {token}"}
        headers |= {"idempotency-key": key} if key else {}
        return proxy.post(path, json=body, headers=headers)

    assert proxy.get(path).status_code == 401
    assert post("wrong").status_code == 401
    assert post("0nly").status_code == 403
    read = proxy.get(f"{path}/partitions/0/records", headers={"authorization": "Bearer 0nly"})
    assert read.status_code == 200
    assert post("s3cret").status_code == 200


def test_a_consumer_belongs_to_its_user() -> None:
    """Whoever may only read could take its records otherwise, and have them committed."""
    proxy = StillProxy()

    async def with_user(scope: Scope, receive: Receive, send: Send) -> None:
        user = httpx.Headers(scope["headers"]).get("x-user")
        await proxy({**scope, "state": {USER: user}}, receive, send)

    async def statuses() -> list[int]:
        transport = httpx.ASGITransport(with_user)
        async with httpx.AsyncClient(transport=transport, base_url="http://proxy") as client:
            url = "/consumers/g/instances/one/subscription"
            mine, other = {"x-user": "ada"}, {"x-user": "grace"}
            await client.post("/consumers/g", json={"name": "one"}, headers=mine)
            return [(await client.get(url, headers=h)).status_code for h in (mine, other, {})]

    assert asyncio.run(statuses()) == [200, 404, 404]


def test_users_log_in_over_tls(kafka: Kafka, topic: MakeTopic, tmp_path: Path) -> None:
    authority, name, port = Authority(tmp_path), topic(), free_port()
    passwords, jaas = tmp_path / "users.properties", tmp_path / "jaas.conf"
    passwords.write_text("ada=lovelace\ngrace=hopper\n")
    jaas.write_text(f'KafkaConnect {{\n  {MODULE} required\n  file="{passwords}";\n}};\n')
    keys = {
        "listeners": f"https://{LOOPBACK}:{port}",
        "listeners.https.ssl.keystore.location": str(authority.key_store("proxy")),
        "listeners.https.ssl.keystore.password": authority.password,
        "rest.extension.classes": BASIC_AUTH,
        "semel.rest.jaas.file": str(jaas),
        "semel.rest.read.only.users": "grace",
        "semel.rest.anonymous.paths": "/health",
    }
    trusting = ssl.create_default_context(cafile=str(authority.pem))
    url, kind = f"https://{LOOPBACK}:{port}", {"content-type": v2("json")}
    record = {"records": [{"value": 1}]}
    with (
        served(kafka.bootstrap_servers, **keys),
        httpx.Client(base_url=url, verify=trusting, timeout=PATIENCE) as https,
    ):
        assert https.get("/health").status_code == 200
        ada, grace = ("ada", "lovelace"), ("grace", "hopper")
        for user, read, write in (
            (None, 401, 401),
            (("ada", "wrong"), 401, 401),
            (grace, 200, 403),
            (ada, 200, 200),
        ):
            given = {} if user is None else {"auth": user}
            assert https.get(f"/topics/{name}", **given).status_code == read
            answer = https.post(f"/topics/{name}", json=record, headers=kind, **given)
            assert answer.status_code == write
        made = https.post("/consumers/g", json={}, headers={"content-type": V2}, auth=ada)
        assert made.json()["base_uri"].startswith(f"{url}/consumers/g/instances/")
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{url}/health")


def test_a_page_of_another_origin_cannot_use_the_proxy(proxy: httpx.Client) -> None:
    evil = {"origin": "http://evil.example", "content-type": v2("json")}
    assert proxy.post("/topics/t", json={}, headers=evil).status_code == 403
    assert proxy.get("/topics", headers={"host": "evil.example"}).status_code == 403


@pytest.mark.parametrize(
    "path",
    [
        "/topics/%ff",
        "/topics/%00",
        "/topics/..%2f..",
        "/consumers/%00/instances/%0a/records",
        "/v3/clusters/%ed%a0%80",
        "/topics/t/partitions/99999999999999999999",
        "/topics/t/partitions/0/records?offset=99999999999999999999",
        "/topics/t/partitions/0/records?max_records=" + "9" * 5000,
    ],
)
def test_a_hostile_path_is_refused(proxy: httpx.Client, path: str) -> None:
    assert 400 <= proxy.get(path).status_code < 500


@pytest.mark.long
def test_a_consumer_that_does_not_read_on_holds_little(
    kafka: Kafka, topic: MakeTopic, produce: Produce, tmp_path: Path
) -> None:
    name, count = topic(), 8
    produce(name, [b"x" * 100_000] * 300)
    with (
        server(tmp_path, kafka.bootstrap_servers) as proxy,
        httpx.Client(base_url=proxy.url, timeout=PATIENCE) as client,
    ):
        assert proxy.process is not None
        process = psutil.Process(proxy.process.pid)
        client.get("/topics")
        before = process.memory_info().rss
        for _ in range(count):
            instance = Instance(client)
            instance.post("/assignments", {"partitions": [at(name)]})
            instance.read(1, max_bytes=1)
        again = instance.read(1, max_bytes=1)
        assert again[0]["offset"] == 1
        assert process.memory_info().rss - before < count * 6_000_000


def test_an_encoded_body_is_refused(proxy: httpx.Client, topic: MakeTopic) -> None:
    name, bomb = topic(), gzip.compress(b" " * 50_000_000)
    records = f"/v3/clusters/{Cluster(proxy).id}/topics/{name}/records"
    for path, kind in (
        (f"/topics/{name}", v2("json")),
        (records, "application/json"),
        (f"{records}:batch", "application/json"),
    ):
        headers = {"content-type": kind, "content-encoding": "gzip"}
        assert "gzip" in refused(proxy.post(path, content=bomb, headers=headers), 415, 415)


def test_a_request_that_is_half_sent_holds_nothing(
    proxy: httpx.Client, topic: MakeTopic, caplog: pytest.LogCaptureFixture
) -> None:
    name = topic()
    head = f"POST /topics/{name} HTTP/1.1\r\nhost: {LOOPBACK}\r\ncontent-type: {v2('json')}\r\n"
    for rest in ("content-length: 9999\r\n\r\n{", "transfer-encoding: chunked\r\n\r\n5\r\n{"):
        with socket.create_connection((LOOPBACK, proxy.base_url.port or 0)) as half:
            half.sendall((head + rest).encode())
    stream = f"/v3/clusters/{Cluster(proxy).id}/topics/{name}/records"
    with socket.create_connection((LOOPBACK, proxy.base_url.port or 0)) as half:
        half.sendall(
            f"POST {stream} HTTP/1.1\r\nhost: {LOOPBACK}\r\ncontent-type: application/json\r\n"
            "transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n5\r\n{".encode()
        )
        told = b""
        while b'"offset":0' not in told:
            part = half.recv(4096)
            assert part
            told += part
    assert proxy.get(f"/topics/{name}/partitions/0/offsets").json()["end_offset"] == 1
    wait_until(lambda: "semel_rest_requests_open 1.0" in proxy.get("/metrics").text)
    assert not [each for each in caplog.records if each.levelno >= logging.ERROR]


def test_deep_and_large_values_come_back_or_are_refused(
    proxy: httpx.Client, topic: MakeTopic
) -> None:
    name, headers = topic(), {"content-type": v2("json")}
    sent: list[Any] = []
    for value in ("[" * 90 + "]" * 90, "1" * 300, '"\\u0000\\ud83d\\ude00"', "-0.0", "1e-400"):
        body = f'{{"records": [{{"value": {value}}}]}}'
        answer = proxy.post(f"/topics/{name}", content=body.encode(), headers=headers)
        assert answer.status_code == 200, answer.text
        sent.append(json.loads(value))
    instance = Instance(proxy, format="json")
    instance.post("/assignments", {"partitions": [at(name)]})
    assert [each["value"] for each in instance.read(len(sent))] == sent


def test_a_body_with_a_length_and_chunks_is_not_held_whole() -> None:
    """The chunks count, whatever the length says (RFC 9112, 6.3)."""
    most, sent, told = 1 << 20, 0, bytearray()
    proxy = StillProxy(semel_rest_max_request_bytes=str(most))
    names = {b"content-type": b"application/json", b"content-length": b"2"}
    headers = [*names.items(), (b"transfer-encoding", b"chunked")]

    async def receive() -> dict[str, Any]:
        nonlocal sent
        sent += 65_536
        is_over = sent > 20 * most
        return {"type": "http.request", "body": b'{"value"' * 8192, "more_body": not is_over}

    async def send(message: dict[str, Any]) -> None:
        told.extend(message.get("body", b""))

    scope: dict[str, Any] = {"type": "http", "method": "POST", "path": RECORDS}
    scope |= {"query_string": b"", "raw_path": RECORDS.encode(), "headers": headers}
    asyncio.run(proxy(scope, receive, cast(Any, send)))
    assert json.loads(told)["error_code"] == 413
    assert sent < 3 * most


def test_a_batch_with_schemas_may_have_as_many_records_as_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def answered() -> Any:
        proxy = StillProxy(consumer_threads="1")
        monkeypatch.setattr(proxy.formats, "encoder", lambda *_, **__: Encoder(written, 7, "s"))
        entries = [{"id": str(n), "value": {"schema_id": 7, "data": n}} for n in range(100)]
        entries[3]["partition_id"] = 1
        async with proxy.client() as client:
            return (await client.post(f"{RECORDS}:batch", json={"entries": entries})).json()

    told = asyncio.run(answered())
    assert len(told["successes"]) == 99
    assert [(each["id"], each["error_code"]) for each in told["failures"]] == [("3", 40403)]


def test_a_stream_ends_whatever_goes_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    async def answered() -> list[Any]:
        proxy = StillProxy()
        monkeypatch.setattr(proxy.formats, "encoder", lambda *_, **__: 1 / 0)
        async with proxy.client() as client:
            body = b'{"value": {"type": "JSON", "data": 1}} {}'
            headers = {"content-type": "application/json"}
            answer = await asyncio.wait_for(
                client.post(RECORDS, content=body, headers=headers), PATIENCE
            )
            return [json.loads(line) for line in answer.text.splitlines()]

    (told,) = asyncio.run(answered())
    assert (told["error_code"], "ZeroDivisionError" in told["message"]) == (50002, True)


@pytest.mark.parametrize(
    "question", ["/t?include_authorized_operations=true", "?includeAuthorizedOperations=true"]
)
def test_a_question_about_topics_that_kafka_does_not_answer_is_unavailable(
    question: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy, admin = StillProxy(), Mock()
    admin.describe_topics.return_value = {"t": Future()}
    metadata = Mock(topic="t", partitions={}, error=None)
    described = AsyncMock(return_value=Mock(topics={"t": metadata}, cluster_id=CLUSTER))
    monkeypatch.setattr(proxy.kafka, "metadata", described)
    monkeypatch.setattr(Clients, "admin", admin)
    monkeypatch.setattr(topics, "ANSWERS_IN", 0.1)

    async def answer() -> httpx.Response:
        async with proxy.client() as client:
            return await client.get(f"/v3/clusters/{CLUSTER}/topics{question}")

    assert "not answered" in refused(asyncio.run(answer()), 503, 50003)


def still(method: str, path: str, body: Any = None, **headers: str) -> httpx.Response:
    """What a proxy without brokers answers."""

    async def answer() -> httpx.Response:
        async with StillProxy().client() as client:
            return await client.request(method, path, json=body, headers=headers)

    return asyncio.run(answer())


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/topics/t", "GET, POST"),
        (RECORDS, "POST"),
        (f"/v3/clusters/{CLUSTER}/topics/t", "DELETE, GET, PATCH"),
        ("/health", "GET"),
    ],
)
def test_a_refused_method_is_told_from_allowed_ones(path: str, allowed: str) -> None:
    answer = still("PUT", path)
    refused(answer, 405, 405)
    assert answer.headers["allow"] == allowed


@pytest.mark.parametrize(
    ("accept", "status"),
    [
        ("application/json", 200),
        ("text/html, */*;q=0.5", 200),
        ("text/html, image/gif, image/jpeg, *; q=.2, */*; q=.2", 200),
        ("text/html, *", 200),
        ("application/json; charset=UTF-8", 200),
        ("text/html", 406),
        ("a/b;q=0", 406),
    ],
)
def test_version_3_answers_in_json(accept: str, status: int) -> None:
    assert still("POST", RECORDS, {}, accept=accept).status_code == status


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ({"type": "STRING", "data": ""}, {"type": "STRING", "size": 0}),
        ({"type": "BINARY", "data": None}, {"type": "BINARY", "size": -1}),
        ({"type": "AVRO", "data": None}, {"type": "AVRO", "size": -1}),
        ({"data": None}, None),
        ({"type": "BINARY"}, "value.data: Field required"),
        ({"type": "XML", "data": None}, "value.type: XML is not one of"),
        ({"type": "STRING", "schema_id": 1, "data": "a"}, "value: STRING has no schema"),
        (
            {"type": "JSON", "subject_name_strategy": "TOPIC_NAME", "data": 1},
            "value: JSON has no schema",
        ),
    ],
)
def test_a_value_of_version_3_has_a_type_and_data(value: Any, told: Any) -> None:
    answer = still("POST", RECORDS, {"value": value})
    if isinstance(told, str):
        assert told in refused(answer, 400, 400)
    else:
        assert answer.json().get("value") == told


def test_accept_headers_are_one_list() -> None:
    async def answer() -> httpx.Response:
        async with StillProxy().client() as client:
            accept = [("accept", "text/html"), ("accept", "application/json")]
            body = {"records": [{"value": "YQ=="}]}
            return await client.post("/topics/t", json=body, headers=accept)

    assert asyncio.run(answer()).headers["content-type"] == "application/json"


def test_a_stream_of_reads_notices_a_log_that_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader that continues it may be another one than that which began it."""
    facts = {"offset": 0, "timestamp": (1, 5), "headers": None, "key": None, "value": b"1"}
    facts |= {"topic": "t", "partition": 0, "leader_epoch": 7}
    record = Mock(**{name: Mock(return_value=fact) for name, fact in facts.items()})
    reader = Mock()
    reader.read.side_effect = [Slice([record], 1, False), Slice([], 1, True)]
    monkeypatch.setattr(Readers, "_reader", AsyncMock(return_value=reader))

    async def read() -> None:
        async with StillProxy().client() as client:
            accept = {"accept": "application/x-ndjson"}
            path = "/topics/t/partitions/0/records?offset=0&follow=false&format=json"
            assert json.loads((await client.get(path, headers=accept)).text)["value"] == 1

    asyncio.run(read())
    assert [call.kwargs["epoch"] for call in reader.read.call_args_list] == [-1, 7]


def test_metrics_have_no_methods_that_clients_invent() -> None:
    async def text() -> str:
        async with StillProxy().client() as client:
            assert (await client.request("INVENTED", "/topics")).status_code == 405
            return (await client.get("/metrics")).text

    assert "INVENTED" not in asyncio.run(text())


def done(result: Any = None) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(result)
    return future


GROUP = Mock(
    group_id="g",
    state=ConsumerGroupState.PREPARING_REBALANCING,
    type=ConsumerGroupType.CLASSIC,
    members=[],
    coordinator=None,
    partition_assignor="range",
    is_simple_consumer_group=False,
)


@pytest.mark.parametrize(("committed", "lags"), [({"a": 5, "b": 1, "c": 5}, [8, 4, 4]), ({}, [])])
def test_the_largest_lag_comes_first(
    committed: dict[str, int], lags: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = [TopicPartition(name, 0, offset) for name, offset in committed.items()]
    admin = Mock(
        describe_consumer_groups=lambda *_, **__: {"g": done(GROUP)},
        list_consumer_group_offsets=lambda *_, **__: {"g": done(Mock(topic_partitions=stored))},
        list_offsets=lambda asked, **_: {place: done(Mock(offset=9)) for place in asked},
    )
    monkeypatch.setattr(Clients, "admin", admin)
    url = f"/v3/clusters/{CLUSTER}/consumer-groups/g"
    assert still("GET", url).json()["state"] == "PREPARING_REBALANCE"
    told, summary = still("GET", f"{url}/lags"), still("GET", f"{url}/lag-summary")
    if lags:
        assert [each["lag"] for each in told.json()["data"]] == lags
        assert (summary.json()["max_lag_topic_name"], summary.json()["total_lag"]) == ("b", 16)
    else:
        for answer in (told, summary):
            assert "committed nothing" in refused(answer, 404, 404)


def test_a_group_whose_topics_were_deleted_has_no_lag(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stored = [TopicPartition("gone", 0, 5)]
    admin = Mock(
        describe_consumer_groups=lambda *_, **__: {"g": done(GROUP)},
        list_consumer_group_offsets=lambda *_, **__: {"g": done(Mock(topic_partitions=stored))},
        list_offsets=lambda asked, **_: dict.fromkeys(
            asked, failed(KafkaError.UNKNOWN_TOPIC_OR_PART)
        ),
    )
    monkeypatch.setattr(Clients, "admin", admin)
    answer = still("GET", f"/v3/clusters/{CLUSTER}/consumer-groups/g/lags")
    assert "have been deleted" in refused(answer, 404, 404)


def failed(code: int) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_exception(KafkaException(KafkaError(code)))
    return future


def test_a_list_leaves_out_what_cannot_be_described(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group of share consumers is listed among the others; a topic may be deleted meanwhile."""
    groups = {"share": failed(KafkaError.GROUP_ID_NOT_FOUND), "g": done(GROUP)}
    setting = ConfigEntry("retention.ms", "1", synonyms=cast(Any, {}))
    settings = {"gone": failed(KafkaError.UNKNOWN_TOPIC_OR_PART), "t": done({"a": setting})}
    admin = Mock(
        list_consumer_groups=lambda **_: done(Mock(valid=[Mock(group_id=name) for name in groups])),
        describe_consumer_groups=lambda *_, **__: groups,
        describe_configs=lambda asked, **_: {asked[0]: settings[asked[0].name]},
    )
    monkeypatch.setattr(Clients, "admin", admin)
    metadata = AsyncMock(return_value=Mock(cluster_id=CLUSTER, topics=settings))
    monkeypatch.setattr("tests.proxy.still._Still.metadata", metadata)
    for path, name in {
        "/consumer-groups": "consumer_group_id",
        "/topics/-/configs": "name",
    }.items():
        (found,) = still("GET", f"/v3/clusters/{CLUSTER}{path}").json()["data"]
        assert found[name] in ("g", "retention.ms")


_PLACED = [{"partition_id": number, "broker_ids": [1, 2]} for number in range(3)]


@pytest.mark.parametrize(
    ("topic", "partitions", "replicas"),
    [
        ({"partitions_count": 2}, 2, 1),
        ({"partitions_count": 2, "replicas_assignments": []}, 2, 1),
        ({"replicas_assignments": _PLACED}, 3, 2),
    ],
)
def test_what_is_created_is_told_with_its_place(
    topic: dict[str, Any], partitions: int, replicas: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def created(things: list[Any], **_: Any) -> Any:
        return {getattr(things[0], "topic", things[0]): done()}

    monkeypatch.setattr(Clients, "admin", Mock(create_topics=created, create_acls=created))
    url = f"/v3/clusters/{CLUSTER}"
    answer = still("POST", f"{url}/topics", {"topic_name": "t", "validate_only": True, **topic})
    found = answer.json()
    assert (answer.status_code, answer.headers["location"]) == (200, found["metadata"]["self"])
    assert (found["partitions_count"], found["replication_factor"]) == (partitions, replicas)
    rule = {"resource_type": "topic", "resource_name": "a", "pattern_type": "LITERAL"}
    rule |= {"principal": "User:a", "operation": "READ", "permission": "ALLOW"}
    made = still("POST", f"{url}/acls", rule)
    assert made.status_code == 201
    assert f"{url}/acls?resource_type=TOPIC&resource_name=a&" in made.headers["location"]


@pytest.mark.long
def test_access_control_lists_are_made_found_and_deleted(services_directory: Path) -> None:
    settings = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    where = services_directory / "kafka-acls"
    rule = {
        "resource_type": "TOPIC",
        "resource_name": "orders-",
        "pattern_type": "PREFIXED",
        "principal": "User:alice",
        "host": "*",
        "operation": "READ",
        "permission": "ALLOW",
    }
    whole = {**rule, "resource_type": "CLUSTER", "resource_name": "kafka-cluster"}
    whole |= {"pattern_type": "LITERAL", "operation": "DESCRIBE"}
    with (
        Kafka(where, heap="256m", session=2, short_lived=True, settings=settings) as kafka,
        served(kafka.bootstrap_servers) as proxy,
    ):
        cluster = Cluster(proxy)
        assert cluster.send("POST", "/acls", rule).status_code == 201
        assert cluster.send("POST", "/acls:batch", {"data": [whole, rule]}).status_code == 201
        found = cluster.get("/acls?principal=User:alice").json()["data"]
        assert sorted(each["resource_type"] for each in found) == ["CLUSTER", "TOPIC"]
        assert {name: found[0][name] for name in rule} in (rule, whole)
        assert cluster.get("/acls?resource_type=group").json()["data"] == []
        for wrong in ({"resource_type": "UNKNOWN"}, {"operation": "FLY"}, {"permission": "ANY"}):
            refused(
                cluster.send("POST", "/acls", {**rule, **wrong}),
                400,
                40002 if (wrong == {"permission": "ANY"}) else 400,
            )
        refused(cluster.send("POST", "/acls", {**whole, "resource_name": "x"}), 400, 40002)
        every = "resource_type=TOPIC&pattern_type=ANY&operation=ANY&permission=ANY"
        gone = proxy.delete(f"{cluster.path}/acls?{every}").json()["data"]
        assert [each["resource_name"] for each in gone] == ["orders-"]
        refused(proxy.delete(f"{cluster.path}/acls"), 400, 400)
