"""Each route that Confluent describes, and Karapace for version 2: its success, its shape, and each
error that is documented for it.

A line is a request: its method, its path, its body by name, and the status and the code of its
answer. ``none`` is what is not there. Requests are sent from top to bottom.
"""

from __future__ import annotations

import asyncio
import json
import re
import uuid
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import httpx
import pytest

from semel.config import read
from semel.config.proxy import ProxyConfig
from semel.proxy import kafka as clients
from semel.proxy.app import Proxy, application
from semel.proxy.formats import Formats
from semel_lab.embedded.process import LOOPBACK, free_port
from tests.conftest import MakeTopic
from tests.proxy.conftest import V2, v2
from tests.proxy.test_v2 import AVRO, JSON_SCHEMA, ORDER, PROTOBUF, Instance, at, refused
from tests.proxy.test_v3 import Cluster

TOPICS = """\
GET / - 200
GET /topics - 200
GET /topics/ - 200
GET /topics/{t} - 200
GET /topics/none - 404 40401
POST /topics/{t} json 200
POST /topics/{t} binary 200
POST /topics/{t} avro 200
POST /topics/{t} jsonschema 200
POST /topics/{t} protobuf 200
POST /topics/none json 404 40401
POST /topics/{t} keyless 422 42201
POST /topics/{t} valueless 422 42202
POST /topics/{t} malformed 422 42205
POST /topics/{t} unregistered 408 40801
POST /topics/{t} empty 422 42206
POST /topics/{t} text 415 415
GET /topics/{t}/partitions - 200
GET /topics/none/partitions - 404 40401
GET /topics/{t}/partitions/0 - 200
GET /topics/none/partitions/0 - 404 40401
GET /topics/{t}/partitions/9 - 404 40402
GET /topics/{t}/partitions/0/offsets - 200
GET /topics/none/partitions/0/offsets - 404 40401
GET /topics/{t}/partitions/9/offsets - 404 40402
POST /topics/{t}/partitions/0 json 200
POST /topics/none/partitions/0 json 404 40401
POST /topics/{t}/partitions/9 json 404 40402
POST /topics/{t}/partitions/0 keyless 422 42201
POST /topics/{t}/partitions/0 valueless 422 42202
POST /topics/{t}/partitions/0 malformed 422 42205
POST /topics/{t}/partitions/0 unregistered 408 40801
GET /topics/{t}/partitions/0/messages?offset=0 - 200
GET /topics/none/partitions/0/messages?offset=0 - 404 40401
GET /topics/{t}/partitions/9/messages?offset=0 - 404 40402
GET /brokers - 200
"""
CONSUMERS = """\
POST /consumers/{g} settings 200
POST /consumers/{g} settings 409 40902
POST /consumers/{g} unknown 422 42204
GET {none}/records - 404 40403
GET {none}/topics/{t} - 404 40403
GET {none}/subscription - 404 40403
POST {none}/subscription topics 404 40403
DELETE {none}/subscription - 404 40403
GET {none}/assignments - 404 40403
POST {none}/assignments places 404 40403
POST {none}/positions offsets 404 40403
POST {none}/positions/beginning places 404 40403
POST {none}/positions/end places 404 40403
GET {none}/offsets places 404 40403
POST {none}/offsets - 404 40403
DELETE {none} - 404 40403
GET {i}/subscription - 200
POST {i}/subscription topics 204
POST {i}/subscription both 409 40903
POST {i}/assignments places 409 40903
GET {i}/records - 200
GET {i}/records avro 406 40601
GET {i}/topics/{r} - 200
GET {i}/topics/{r} avro 406 40601
GET {i}/topics/none - 404 40401
GET {i}/topics/{other} - 409 40901
POST {i}/offsets - 200
POST {i}/offsets offsets 200
GET {i}/offsets places 200
GET {i}/offsets - 404 40402
DELETE {i}/subscription - 204
POST {i}/assignments places 204
POST {i}/subscription topics 409 40903
GET {i}/assignments - 200
POST {i}/positions offsets 204
POST {i}/positions times 204
POST {i}/positions/beginning places 204
POST {i}/positions/end places 204
DELETE {i} - 204
"""
V3 = """\
GET /clusters - 200
GET {c} - 200
GET {c}/ - 200
GET {c}/brokers - 200
GET {c}/brokers/{b} - 200
GET {c}/brokers/{b}/partition-replicas - 200
GET {c}/brokers/{b}/configs - 200
GET {c}/brokers/-/configs - 200
GET {c}/brokers/{b}/configs/log.cleaner.threads - 200
PUT {c}/brokers/{b}/configs/log.cleaner.threads one 204
POST {c}/brokers/{b}/configs:alter cleaner 204
DELETE {c}/brokers/{b}/configs/log.cleaner.threads - 204
GET {c}/broker-configs - 200
GET {c}/broker-configs/none - 404 404
POST {c}/topics checked 200
POST {c}/topics new 201
POST {c}/topics new 400 40002
POST {c}/topics replicated 400 40002
POST {c}/topics letter 400 400
GET {c}/topics - 200
GET {c}/topics?include_authorized_operations=true - 200
GET {c}/topics/-/configs - 200
GET {c}/topics/{n} - 200
GET {c}/topics/{n}?include_authorized_operations=true - 200
GET {c}/topics/{n}?include_authorized_operations=x - 400 400
PATCH {c}/topics/{n} two 200
PATCH {c}/topics/{n} two 400 40002
PATCH {c}/topics/{n} letter 400 400
GET {c}/topics/{n}/partitions - 200
GET {c}/topics/{n}/partitions/1 - 200
GET {c}/topics/{n}/partitions/1/offset - 200
GET {c}/topics/{n}/partitions/1/replicas - 200
GET {c}/topics/{n}/partitions/1/replicas/{b} - 200
GET {c}/topics/{n}/configs - 200
GET {c}/topics/{n}/configs/retention.ms - 200
PUT {c}/topics/{n}/configs/retention.ms one 204
POST {c}/topics/{n}/configs:alter retention 204
DELETE {c}/topics/{n}/configs/retention.ms - 204
POST {c}/topics/{n}/records record 200
POST {c}/topics/{n}/records header 400 400
POST {c}/topics/{n}/records letter 400 400
POST {c}/topics/{n}/records number 400 400
POST {c}/topics/{n}/records nothing 422 422
POST {c}/topics/{n}/records large 413 413
POST {c}/topics/{n}/records:batch batch 207
POST {c}/topics/{n}/records:batch headers 400 400
GET {c}/consumer-groups - 200
GET {c}/consumer-groups/{g} - 200
GET {c}/consumer-groups/{g}/consumers - 200
GET {c}/consumer-groups/{g}/consumers/{m} - 200
GET {c}/consumer-groups/{g}/consumers/{m}/assignments - 200
GET {c}/consumer-groups/{g}/consumers/{m}/assignments/{t}/partitions/0 - 200
GET {c}/consumer-groups/{g}/lags - 200
GET {c}/consumer-groups/{g}/lags/{t}/partitions/0 - 200
GET {c}/consumer-groups/{g}/lag-summary - 200
GET {c}/acls - 400 40002
POST {c}/acls rule 400 40002
POST {c}/acls:batch rules 400 40002
POST {c}/acls cluster 400 40002
DELETE {c}/acls?{every} - 400 40002
DELETE {c}/acls - 400 400
DELETE {c}/topics/{n} - 204
"""
"""Of access control lists, only the refusals: tests/proxy/test_limits.py has an authorizer."""

V3_BODIES: dict[str, Any] = {
    "one": {"value": "1"},
    "cleaner": {"data": [{"name": "log.cleaner.threads", "value": "1"}]},
    "retention": {"data": [{"name": "retention.ms", "operation": "DELETE"}]},
    "new": {
        "topic_name": "{n}",
        "partitions_count": 1,
        "configs": [{"name": "max.message.bytes", "value": "1000"}],
    },
    "checked": {"topic_name": "{n}", "partitions_count": 1, "validate_only": True},
    "replicated": {"topic_name": "{n}-2", "partitions_count": 1, "replication_factor": 2},
    "letter": {"topic_name": "{n}-2", "partitions_count": "A"},
    "two": {"partitions_count": 2},
    "record": {"value": {"type": "JSON", "data": 1}},
    "header": {"headers": [{"name": "h", "value": "YQ"}]},
    "number": {"value": {"type": "STRING", "data": 1}},
    "large": {"value": {"type": "STRING", "data": "x" * 2000}},
    "batch": {"entries": [{"id": "1"}, {"id": "2", "value": {"type": "BINARY", "data": 1}}]},
    "headers": {"entries": [{"id": "1"}, {"id": "2", "headers": [{"name": "h", "value": "YQ"}]}]},
    "rule": {
        **{"resource_type": "TOPIC", "resource_name": "t", "pattern_type": "LITERAL"},
        **{"principal": "User:a", "host": "*", "operation": "READ", "permission": "ALLOW"},
    },
}
V3_BODIES["rules"] = {"data": [V3_BODIES["rule"]]}
V3_BODIES["cluster"] = {**V3_BODIES["rule"], "resource_type": "CLUSTER"}

EVERY = "resource_type=TOPIC&pattern_type=ANY&operation=ANY&permission=ANY"

V2_SHAPES = {
    "/topics/{}": "configs name partitions",
    "/topics/{}/partitions": "leader partition replicas",
    "/topics/{}/partitions/{}": "leader partition replicas",
    "/topics/{}/partitions/{}/offsets": "beginning_offset end_offset",
    "/brokers": "brokers",
    "/consumers/{}": "base_uri instance_id",
    "/consumers/{}/instances/{}/subscription": "topics",
    "/consumers/{}/instances/{}/assignments": "partitions",
    "/consumers/{}/instances/{}/offsets": "offsets",
}
PRODUCED = "key_schema_id offsets value_schema_id"
CONFIG = "name value is_default is_read_only is_sensitive source synonyms"
V3_SHAPES = {
    "Cluster": "acls brokers broker_configs consumer_groups topics partition_reassignments",
    "Broker": "broker_id host port configs partition_replicas",
    "BrokerConfig": f"broker_id {CONFIG}",
    "TopicConfig": f"topic_name {CONFIG}",
    "Topic": "topic_name is_internal replication_factor partitions_count partitions configs"
    " partition_reassignments authorized_operations",
    "Partition": "topic_name partition_id leader replicas reassignment",
    "PartitionWithOffsets": "topic_name partition_id earliest_offset latest_offset",
    "Replica": "topic_name partition_id broker_id is_leader is_in_sync broker",
    "ConsumerGroup": "consumer_group_id is_simple partition_assignor state type"
    " is_mixed_consumer_group coordinator consumers lag_summary",
    "Consumer": "consumer_group_id consumer_id client_id assignments",
    "ConsumerAssignment": "consumer_group_id consumer_id topic_name partition_id partition lag",
    "ConsumerLag": "consumer_group_id topic_name partition_id current_offset log_end_offset lag"
    " consumer_id client_id",
    "ConsumerGroupLagSummary": "consumer_group_id max_lag_consumer_id max_lag_client_id"
    " max_lag_topic_name max_lag_partition_id max_lag total_lag max_lag_consumer max_lag_partition",
}
"""The fields that each resource must have, beside those of all resources."""


class Line(NamedTuple):
    """A request and its answer."""

    method: str
    path: str
    body: str
    status: int
    code: int


def lines(table: str, **names: Any) -> Iterator[Line]:
    """The requests of a table, about these names."""
    for line in table.splitlines():
        method, path, body, status, *code = line.format_map(names).split()
        yield Line(method, path, body, int(status), int(code[0]) if code else 0)


def template(path: str, names: dict[str, Any]) -> str:
    """A path without names."""
    for each in sorted((str(value) for value in names.values()), key=len, reverse=True):
        path = re.sub(rf"(?<=/){re.escape(each)}(?=/|$)", "{}", path)
    return re.sub(r"/\d+(?=/|$)", "/{}", path)


def sent(proxy: httpx.Client, line: Line, bodies: dict[str, tuple[str, bytes]]) -> httpx.Response:
    """What a request is answered with, which is as documented."""
    kind, body = bodies.get(line.body, ("", b""))
    headers = {"content-type": kind} if kind else {}
    if line.body == "avro" and line.method == "GET":
        headers, body = {"accept": v2("avro")}, b""
    answer = proxy.request(line.method, line.path, content=body, headers=headers)
    assert answer.status_code == line.status, (line, answer.text)
    if line.code:
        refused(answer, line.status, line.code)
    return answer


def test_each_route_of_v2_answers_as_documented(proxy: httpx.Client, topic: MakeTopic) -> None:
    name, group = topic(), f"group-{uuid.uuid4().hex[:8]}"
    instance = f"/consumers/{group}/instances/one"
    names = {"t": name, "r": topic(), "other": topic(), "g": group, "i": instance}
    names["none"] = f"/consumers/{group}/instances/none"

    def body(given: Any, kind: str = V2) -> tuple[str, bytes]:
        return kind, json.dumps(given).encode()

    bodies = {
        "json": body({"records": [{"key": "k", "value": 1}]}, v2("json")),
        "binary": body({"records": [{"value": "YQ=="}, {"value": "YQ"}]}),
        "keyless": body({"records": [{"key": 1}]}, v2("avro")),
        "valueless": body({"records": [{"value": 1}]}, v2("avro")),
        "malformed": body({"value_schema": "{", "records": [{"value": 1}]}, v2("avro")),
        "unregistered": body({"value_schema_id": 2**31 - 1, "records": [{"value": 1}]}, v2("avro")),
        "empty": (v2("json"), b""),
        "text": ("text/plain", b"{}"),
        "settings": body({"name": "one", "format": "json", "auto.offset.reset": "earliest"}),
        "unknown": body({"auto.offset.reset": "none of these"}),
        "topics": body({"topics": [names["r"]]}),
        "both": body({"topics": ["t"], "topic_pattern": ".*"}),
        "places": body({"partitions": [at(names["r"])]}),
        "offsets": body({"offsets": [at(names["r"], offset=0)]}),
        "times": body({"timestamps": [at(names["r"], timestamp="2026-01-31T12:00:00Z")]}),
    }
    for each, schema, value in (
        ("avro", AVRO, ORDER),
        ("jsonschema", JSON_SCHEMA, {"id": 1}),
        ("protobuf", PROTOBUF, {"id": 1}),
    ):
        bodies[each] = body({"value_schema": schema, "records": [{"value": value}]}, v2(each))
    succeeded = set()
    for line in lines(TOPICS + CONSUMERS, **names):
        answer = sent(proxy, line, bodies)
        path = template(line.path, {**names, "i": "one"})
        if line.status < 300:
            succeeded.add((line.method, path.partition("?")[0].rstrip("/")))
            if line.status == 200 and line.method == "POST" and path.startswith("/topics"):
                assert " ".join(sorted(answer.json())) == PRODUCED, line
            elif line.status == 200 and path in V2_SHAPES:
                found = answer.json()
                found = found[0] if isinstance(found, list) else found
                assert " ".join(sorted(found)) == V2_SHAPES[path], line
    assert {*routes("v2")} <= succeeded


def test_each_route_of_v3_answers_as_documented(proxy: httpx.Client, topic: MakeTopic) -> None:
    cluster, name = Cluster(proxy), topic()
    (broker,) = (each["broker_id"] for each in cluster.data("/brokers"))
    instance = Instance(proxy, format="json")
    instance.post("/subscription", {"topics": [name]})
    proxy.post(
        f"/topics/{name}", json={"records": [{"value": 1}]}, headers={"content-type": v2("json")}
    )
    instance.read(1)
    instance.post("/offsets")
    (member,) = cluster.data(f"/consumer-groups/{instance.group}/consumers")
    names = {"c": f"/clusters/{cluster.id}", "b": broker, "t": name, "every": EVERY}
    names |= {"n": f"{name}-new", "g": instance.group, "m": member["consumer_id"]}
    kind = "application/json"
    bodies = {
        each: (kind, json.dumps(body).replace("{n}", f"{name}-new").encode())
        for each, body in V3_BODIES.items()
    } | {"nothing": (kind, b"")}
    seen = set()
    for line in lines(V3, **names):
        answer = sent(proxy, line._replace(path=f"/v3{line.path}"), bodies)
        path = line.path.partition("?")[0].rstrip("/")
        seen.add((line.method, template(f"/v3{path}", {**names, "c": cluster.id})))
        if line.status in (200, 201) and line.body != "record":
            found = answer.json()
            for each in found.get("data", [found]):
                wanted = V3_SHAPES[each["kind"].removeprefix("Kafka")].split()
                assert {*wanted, "kind", "metadata", "cluster_id"} <= each.keys(), line
                assert each["metadata"]["self"].startswith(str(proxy.base_url)), line
    fields = re.compile(r"/configs/[\w.]+|/broker-configs/\w+")
    seen = {(m, fields.sub(lambda found: found[0].rpartition("/")[0] + "/{}", p)) for m, p in seen}
    left = {route for route in routes("v3") if "broker-configs" not in route[1]} - seen
    assert not left


@cache
def routes(version: str) -> list[tuple[str, str]]:
    """The methods and paths of a version."""
    config = read(ProxyConfig, {})
    document = application(Proxy(clients.Kafka(config), Formats(config))).openapi()
    return [
        (method.upper(), re.sub(r"\{\w+\}", "{}", path).rstrip("/"))
        for path, methods in document["paths"].items()
        for method, described in methods.items()
        if version in described.get("tags", ())
    ]


def filled(path: str, *names: str) -> str:
    """A path with these names, and then with zeros."""
    for name in names:
        path = path.replace("{}", name, 1)
    return path.replace("{}", "0")


BODIES = {
    "POST /records": V3_BODIES["record"],
    "POST /records:batch": V3_BODIES["batch"],
    "POST /acls": V3_BODIES["rule"],
    "POST /acls:batch": V3_BODIES["rules"],
    "POST /topics": {"topic_name": "new", "partitions_count": 1},
    "POST :alter": V3_BODIES["retention"],
    "PUT /configs/{}": V3_BODIES["one"],
    "PATCH /topics/{}": V3_BODIES["two"],
    "POST /topics/{}": {"records": [{"value": "YQ=="}]},
    "POST /partitions/{}": {"records": [{"value": "YQ=="}]},
    "POST /subscription": {"topics": ["t"]},
    "POST /assignments": {"partitions": [at("t")]},
    "POST /positions": {"offsets": [at("t", offset=0)]},
    "POST /positions/beginning": {"partitions": [at("t")]},
    "POST /positions/end": {"partitions": [at("t")]},
    "GET /instances/{}/offsets": {"partitions": [at("t")]},
}
"""Bodies that are accepted, by the end of the path."""


def body_of(method: str, path: str) -> Any:
    route = f"{method} {path}"
    return next((body for end, body in BODIES.items() if _ends(route, *end.split())), None)


def _ends(route: str, method: str, end: str) -> bool:
    return route.startswith(f"{method} ") and route.endswith(end)


def path_of(method: str, path: str, *names: str) -> str:
    """A path about these names, with the parameters that it must have."""
    if path.endswith("/messages"):
        return f"{filled(path, *names)}?offset=0"
    must = (method, path[-5:]) == ("DELETE", "/acls")
    return f"{filled(path, *names)}{f'?{EVERY}' if must else ''}"


GROUP, INSTANCE = "/consumers/{}", "/consumers/{}/instances/{}"
ASK_NOBODY = {("GET", ""), ("POST", GROUP), ("DELETE", INSTANCE)}
"""Routes that ask Kafka nothing, or that would be in the way of the others."""


def test_another_cluster_is_found_nowhere(proxy: httpx.Client) -> None:
    for method, path in routes("v3"):
        if path != "/v3/clusters":
            answer = proxy.request(method, path_of(method, path, "x"), json=body_of(method, path))
            refused(answer, 404, 404)
            assert answer.json()["message"] == "Cluster x cannot be found.", (method, path)


def test_an_unknown_topic_is_found_nowhere(proxy: httpx.Client) -> None:
    cluster = Cluster(proxy)
    for method, path in routes("v3"):
        if path.startswith("/v3/clusters/{}/topics/{}"):
            body = body_of(method, path)
            answer = proxy.request(method, filled(path, cluster.id, "none"), json=body)
            refused(answer, 404, 40403)


@pytest.mark.parametrize(
    ("kind", "body", "status"),
    [("application/json", b"{", 400), ("application/json", b"[]", 400), ("text/plain", b"{}", 415)],
)
def test_a_body_of_v3_is_a_json_object(
    proxy: httpx.Client, topic: MakeTopic, kind: str, body: bytes, status: int
) -> None:
    cluster, name = Cluster(proxy), topic()
    bodies = [(m, p) for m, p in routes("v3") if m in ("POST", "PUT", "PATCH")]
    for method, path in bodies:
        where = filled(path, cluster.id, name if "/topics/{}" in path else "1")
        if "/broker-configs" not in path:
            answer = proxy.request(method, where, content=body, headers={"content-type": kind})
            refused(answer, status, status)


async def asked(proxy: Proxy, left_out: str = "-") -> dict[tuple[str, str], httpx.Response]:
    """What a proxy answers to a request of each route that needs something of Kafka, but for those
    that are ``left_out``."""
    transport = httpx.ASGITransport(application(proxy), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://proxy") as client:
        await client.post(filled(GROUP, "x"), json={"name": "0"})
        wanted = [
            route
            for route in (*routes("v2"), *routes("v3"))
            if route not in ASK_NOBODY and not route[1].startswith(left_out)
        ]
        found = [client.request(m, path_of(m, p, "x"), json=body_of(m, p)) for m, p in wanted]
        return dict(zip(wanted, await asyncio.gather(*found), strict=True))


def test_too_many_waiting_requests_are_told_by_each_route() -> None:
    config = read(ProxyConfig, {})
    kafka = clients.Kafka(config)
    kafka._most_waiting = 0
    found = asyncio.run(asked(Proxy(kafka, Formats(config))))
    for route, answer in found.items():
        assert (answer.status_code, answer.json()["error_code"]) == (429, 429), route
        assert answer.headers["retry-after"], route


def test_a_consumer_whose_deletion_was_refused_is_still_there() -> None:
    config = read(ProxyConfig, {})
    kafka = clients.Kafka(config)
    most, kafka._most_waiting = kafka._most_waiting, 0

    async def deleted() -> list[int]:
        transport = httpx.ASGITransport(application(Proxy(kafka, Formats(config))))
        async with httpx.AsyncClient(transport=transport, base_url="http://proxy") as client:
            await client.post(filled(GROUP, "x"), json={"name": "0"})
            first = await client.delete(filled(INSTANCE, "x"))
            kafka._most_waiting = most
            again = [await client.delete(filled(INSTANCE, "x")) for _ in range(2)]
            return [each.status_code for each in (first, *again)]

    assert asyncio.run(deleted()) == [429, 204, 404]


def test_brokers_that_do_not_answer_are_told_by_each_route(monkeypatch: pytest.MonkeyPatch) -> None:
    """The status of version 2 is 503, too, where Confluent's is 500: both say that it may pass."""
    monkeypatch.setattr(clients, "ANSWERS_IN", 0.2)
    config = read(ProxyConfig, {"bootstrap.servers": f"{LOOPBACK}:{free_port()}"})
    kafka = clients.Kafka(config)
    found = asyncio.run(asked(Proxy(kafka, Formats(config)), INSTANCE))
    for route, answer in found.items():
        assert (answer.status_code, answer.json()["error_code"]) == (503, 50003), route
    kafka.close()
