"""Users of the proxy with logins of their own to a Kafka that lets nobody in without one."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from confluent_kafka import KafkaError
from confluent_kafka.admin import AclOperation, ResourceType

from semel.config import read
from semel.config.proxy import LOGINS, ProxyConfig
from semel.core.errors import ConfigError
from semel.proxy import kafka as clients
from semel.proxy.logins import Clients, clients_of_users
from semel.worker.rest.users import users
from tests.engine.harness import wait_until
from tests.kafka.secured import PASSWORD, USER, SecuredKafka, login
from tests.patience import PATIENCE
from tests.proxy.conftest import served, threads, v2
from tests.proxy.test_documented import body_of, path_of, routes
from tests.proxy.test_exactly_once import REPLAYED
from tests.proxy.test_v2 import refused
from tests.rest.authority import Authority

SCRAM = "SCRAM-SHA-512"
KEYS = "keys"
TOKENS = {name: f"token-of-{name}" for name in ("alice", "bob", "carol", "mallory")}


def test_a_login_is_not_closed_while_kafka_has_yet_to_take_its_records() -> None:
    raw = {"bootstrap.servers": "127.0.0.1:1", "semel.rest.produce.timeout.ms": "1000"}
    config = read(ProxyConfig, raw)
    kafka = clients.Kafka(config, {"alice": Clients(config, "alice")})

    async def produced() -> list[clients.Outcome]:
        kafka._greetings["alice"] = asyncio.get_running_loop().create_future()
        kafka._greetings["alice"].set_result(None)
        async with kafka.acting_as("alice"):
            waits = asyncio.create_task(kafka.produce("t", [clients.OutgoingRecord(b"k", b"v")]))
            await asyncio.sleep(0)
        # The request has ended, as if its client had left, and the login looks idle.
        await kafka.close_idle(math.inf)
        return await waits

    [outcome] = asyncio.run(asyncio.wait_for(produced(), PATIENCE))
    assert isinstance(outcome, KafkaError) and outcome.code() == KafkaError._MSG_TIMED_OUT
    kafka.close()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


class Creating(SecuredKafka):
    """Creates the topics that are asked for, as Kafka does unless it is told not to."""

    def _settings(self) -> dict[str, Any]:
        return super()._settings() | {"auto.create.topics.enable": "true"}


@pytest.fixture(scope="module")
def secured(
    authority: Authority, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SecuredKafka]:
    """alice may use ``orders`` and the topic of the keys, and bob only write to ``orders``."""
    with Creating(tmp_path_factory.mktemp("kafka"), authority) as kafka:
        for name in (USER, "alice", "bob"):
            kafka.add_user(name, PASSWORD)
        for topic in ("orders", "others"):
            kafka.create_topic(topic, 1)
        topics, groups = ResourceType.TOPIC, ResourceType.GROUP
        for user, operation, kind, name in (
            ("alice", AclOperation.READ, topics, "orders"),
            ("alice", AclOperation.WRITE, topics, "orders"),
            ("alice", AclOperation.READ, groups, "readers"),
            ("alice", AclOperation.WRITE, topics, KEYS),
            ("alice", AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, f"{KEYS}-0"),
            ("bob", AclOperation.WRITE, topics, "orders"),
        ):
            kafka.allow(user, operation, kind, name)
        yield kafka


class Users:
    """Sends requests to one proxy as its users. carol has no login of her own."""

    def __init__(self, proxy: httpx.Client) -> None:
        self._proxy = proxy

    def send(self, user: str, method: str, path: str, body: Any = None, **headers: str) -> Any:
        given = {k.replace("_", "-"): v for k, v in headers.items()}
        given["authorization"] = f"Bearer {TOKENS[user]}"
        return self._proxy.request(method, path, json=body, headers=given)

    def produce(self, user: str, topic: str, value: Any, key: str = "") -> httpx.Response:
        headers = {"content_type": v2("json")} | ({"idempotency_key": key} if key else {})
        answer: httpx.Response = self.send(
            user, "POST", f"/topics/{topic}", {"records": [{"value": value}]}, **headers
        )
        return answer


def keys_of(directory: Path, kafka: SecuredKafka, authority: Authority) -> dict[str, str]:
    """A proxy's keys, with the files that they name."""
    tokens = directory / "tokens.properties"
    tokens.write_text("".join(f"{name}={token}\n" for name, token in TOKENS.items()))
    own = {
        "security.protocol": "SASL_SSL",
        "ssl.truststore.location": str(authority.trust_store),
        "ssl.truststore.password": authority.password,
        **login("PLAIN"),
    }
    lines = []
    for user in ("alice", "bob", "mallory"):
        for name, value in login(SCRAM, user=user).items():
            written = value.replace("\\", "\\\\")
            lines.append(f"{user}.{name}={written}\n")
    logins = directory / "logins.properties"
    logins.write_text("".join(lines))
    return {
        "bootstrap.servers": kafka.bootstrap_servers,
        "semel.rest.tokens.file": str(tokens),
        LOGINS: str(logins),
        "semel.rest.idempotency.topic": KEYS,
        "semel.rest.idempotency.partitions": "1",
        **{f"client.{name}": value for name, value in own.items()},
    }


@pytest.fixture
def as_users(secured: SecuredKafka, authority: Authority, tmp_path: Path) -> Iterator[Any]:
    """Starts a proxy with these keys too."""
    with ExitStack() as ends:
        given = keys_of(tmp_path, secured, authority)
        servers = given.pop("bootstrap.servers")
        yield lambda **keys: Users(ends.enter_context(served(servers, **given, **keys)))


@pytest.mark.integration
def test_requests_use_the_login_of_their_user(as_users: Any) -> None:
    proxy = as_users()
    assert proxy.produce("alice", "orders", 1).status_code == 200
    refused(proxy.produce("alice", "others", 1), 403, 40301)
    assert {"orders", "others"} & {*proxy.send("alice", "GET", "/topics").json()} == {"orders"}
    assert "others" in proxy.send("carol", "GET", "/topics").json()
    path = "/topics/orders/partitions/0/records?format=json"
    assert proxy.send("alice", "GET", path).json()["records"][0]["value"] == 1
    assert proxy.produce("bob", "orders", 2).status_code == 200
    refused(proxy.send("bob", "GET", path), 403, 40301)
    made = proxy.send("alice", "POST", "/consumers/readers", {"name": "a", "format": "json"})
    instance = made.json()["base_uri"].partition("/consumers")[2]
    asked = {"topics": ["orders"]}
    answer = proxy.send("alice", "POST", f"/consumers{instance}/subscription", asked)
    assert answer.status_code == 204
    for other in ("bob", "carol"):
        refused(proxy.send(other, "GET", f"/consumers{instance}/subscription"), 404, 40403)
    cluster = proxy.send("alice", "GET", "/v3/clusters").json()["data"][0]["cluster_id"]
    topics, new = f"/v3/clusters/{cluster}/topics", {"topic_name": "new", "partitions_count": 1}
    refused(proxy.send("alice", "POST", topics, new), 403, 40301)
    may = proxy.send("bob", "GET", f"{topics}/orders?include_authorized_operations=true").json()
    assert may["authorized_operations"] == ["DESCRIBE", "WRITE"]
    refused(proxy.send("bob", "GET", f"/v3/clusters/{cluster}/acls"), 403, 40301)
    assert proxy.send("carol", "POST", topics, new).status_code == 201
    message = refused(proxy.produce("mallory", "orders", 3), 401, 40101)
    assert "mallory" in message
    assert PASSWORD not in message


@pytest.mark.integration
def test_asking_for_a_topic_does_not_create_it(as_users: Any) -> None:
    proxy = as_users()
    for path in ("", "/partitions", "/partitions/0/offsets", "/partitions/0/records"):
        refused(proxy.send("carol", "GET", f"/topics/asked{path}"), 404, 40401)
    for key in ("", "k"):
        refused(proxy.produce("carol", "asked", 1, key), 404, 40401)
    assert "asked" not in proxy.send("carol", "GET", "/topics").json()


@pytest.mark.integration
@pytest.mark.long
def test_what_kafka_denies_and_whom_it_does_not_know_is_told_by_each_route(as_users: Any) -> None:
    """bob may do nothing but write to ``orders``. Lists leave out what he may not see."""
    proxy = as_users()
    cluster = proxy.send("carol", "GET", "/v3/clusters").json()["data"][0]["cluster_id"]
    base = "/v3/clusters/{}"
    open_to_all = {"", "/brokers", "/brokers/{}", "/brokers/{}/partition-replicas", "/topics"}
    for method, path in routes("v3"):
        names = (cluster, "others" if "/topics/{}" in path else "1")
        where, body = path_of(method, path, *names), body_of(method, path)
        refused(proxy.send("mallory", method, where, body), 401, 40101)
        answer = proxy.send("bob", method, where, body)
        rest = path.removeprefix(base)
        if path == "/v3/clusters" or (method == "GET" and rest in open_to_all):
            assert answer.status_code == 200, path
        elif rest == "/consumer-groups":
            assert answer.json()["data"] == []
        elif rest.startswith("/broker-configs") and method != "GET":
            refused(answer, 501, 501)
        else:
            refused(answer, 403, 40301)


@pytest.mark.integration
def test_a_key_belongs_to_its_user_whoever_writes(as_users: Any) -> None:
    one, two = as_users(), as_users()
    first = {}
    for turn in range(2):
        for proxy in (one, two):
            for user in ("alice", "carol"):
                answer = proxy.produce(user, "orders", user, key="same")
                assert answer.status_code == 200, answer.text
                assert first.setdefault(user, answer.content) == answer.content
                assert (REPLAYED in answer.headers) == (turn > 0 or proxy is two)
    assert first["alice"] != first["carol"]
    message = refused(one.produce("bob", "orders", 1, key="bobs"), 403, 40301)
    assert f"transactional.id {KEYS}-0" in message
    assert one.produce("alice", "orders", 1, key="next").status_code == 200


@pytest.mark.integration
def test_an_idle_user_is_disconnected(as_users: Any) -> None:
    proxy = as_users(consumer_instance_timeout_ms="500")
    assert proxy.produce("carol", "orders", 1).status_code == 200
    before = threads()
    path = "/topics/orders/partitions/0/records?format=json"
    assert proxy.produce("alice", "orders", 1).status_code == 200
    assert proxy.send("alice", "GET", path).status_code == 200
    assert threads() > before
    wait_until(lambda: threads() <= before)
    assert proxy.produce("alice", "orders", 1).status_code == 200


@pytest.mark.long
@pytest.mark.integration
def test_so_many_users_are_connected_at_once(
    as_users: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "_MOST_LOGINS", 1)
    proxy = as_users()
    for user in ("alice", "bob", "alice"):
        assert proxy.produce(user, "orders", 1).status_code == 200
    path = "/topics/orders/partitions/0/records?format=json"
    headers = {"authorization": f"Bearer {TOKENS['alice']}", "accept": "application/x-ndjson"}
    with proxy._proxy.stream("GET", path, headers=headers, timeout=PATIENCE) as followed:
        assert followed.status_code == 200
        answer = proxy.produce("bob", "orders", 1)
        refused(answer, 429, 429)
        assert answer.headers["retry-after"]


@pytest.mark.parametrize(
    ("lines", "protocol", "message"),
    [
        ("", "SASL_SSL", "names nobody"),
        ("zoe.sasl.jaas.config=x", "SASL_SSL", "zoe is no user of the proxy"),
        ("alice.linger.ms=1", "SASL_SSL", "alice.linger.ms is not user.security.*"),
        ("alice.sasl.mechanism=PLAIN", "SASL_SSL", "alice.sasl.jaas.config is missing"),
        ("alice.sasl.jaas.config=", "SASL_SSL", "alice.sasl.jaas.config is missing"),
        ("alice.ssl.keystore.location=x.p12", "SASL_SSL", "alice.sasl.jaas.config is missing"),
        ("alice.sasl.username=a", "SSL", "alice.ssl.keystore.location is missing"),
        ("alice.sasl.username=a", "", "alice.security.protocol=PLAINTEXT has no login"),
        ("alice.sasl.jaas.config=x", "SASL_SSL", "alice.sasl.jaas.config names no username"),
    ],
)
def test_a_login_that_would_be_none_is_refused(
    tmp_path: Path, lines: str, protocol: str, message: str
) -> None:
    tokens, file = tmp_path / "tokens.properties", tmp_path / "logins.properties"
    tokens.write_text("alice=secret\n")
    file.write_text(lines)
    own = {"client.security.protocol": protocol, **{f"client.{k}": v for k, v in LOGIN.items()}}
    keys = {"semel.rest.tokens.file": str(tokens), LOGINS: str(file)}
    config = read(ProxyConfig, keys | (own if protocol else {}))
    with pytest.raises(ConfigError) as error:
        clients_of_users(config, users(config))
    assert message in str(error.value)
    assert str(file) in str(error.value)


LOGIN = {"sasl.mechanism": "PLAIN", "sasl.username": "proxy", "sasl.password": "own"}


def test_nothing_of_the_proxys_own_login_is_left_in_a_users(tmp_path: Path) -> None:
    tokens, file = tmp_path / "tokens.properties", tmp_path / "logins.properties"
    tokens.write_text("alice=secret\n")
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    file.write_text(f'alice.sasl.jaas.config={module} required username="a" password="b";\n')
    own = {"client.security.protocol": "SASL_SSL", **{f"client.{k}": v for k, v in LOGIN.items()}}
    own["producer.sasl.password"] = "own too"
    keys = {"semel.rest.tokens.file": str(tokens), LOGINS: str(file), **own}
    config = read(ProxyConfig, keys)
    found = clients_of_users(config, users(config))["alice"]
    for client in (found.client, found.consumer, found.transactional):
        assert (client["sasl.username"], client["sasl.password"]) == ("a", "b")
        assert client["sasl.mechanism"] == "PLAIN"
