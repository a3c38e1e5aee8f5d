"""A Kafka that requires SASL_SSL: each login, given once in the words of Java's client, serves all
of a connector's clients."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AclOperation, ResourceType

from semel.audit import audit
from semel.config import ConnectorConfig, read
from semel.core import keystores
from semel.core.errors import ConfigError, ServiceError
from semel.driver.planning import SourcePlan, plan_source
from semel.kafka.clients import client_config
from semel.kafka.cluster import Cluster, wait_for_brokers
from semel.sources.base import source_records
from semel.sources.offsets import SourceOffsets
from semel.tasks.commit import CommitCounter
from semel.tasks.source.commit import EncodedBatch, SourceCommitter
from semel.tasks.source.encoder import Encoder
from semel.tasks.source.topics import Topics
from tests.engine.harness import LocalSpark, caught_up, name, some, wait_until
from tests.kafka.secured import (
    MECHANISMS,
    PASSWORD,
    USER,
    OAuthServer,
    SecuredKafka,
    java_trust_store,
    login,
)
from tests.patience import PATIENCE
from tests.processes import run_to_end
from tests.rest.authority import Authority
from tests.rest.members import Inside

pytestmark = pytest.mark.integration
COUNT = 200


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def trust_store(authority: Authority) -> Path:
    return java_trust_store(authority)


@pytest.fixture(scope="module")
def secured(
    authority: Authority, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SecuredKafka]:
    with SecuredKafka(tmp_path_factory.mktemp("kafka"), authority) as kafka:
        kafka.add_user(USER, PASSWORD)
        yield kafka


@pytest.fixture(scope="module")
def tokens() -> Iterator[OAuthServer]:
    server = OAuthServer()
    yield server
    server.close()


def settings(trust_store: Path, security: dict[str, str]) -> dict[str, str]:
    return {
        "security.protocol": "SASL_SSL",
        "ssl.truststore.location": str(trust_store),
        "ssl.truststore.password": "changeit",
        **security,
    }


def config(
    kafka: SecuredKafka, trust_store: Path, security: dict[str, str], **keys: str
) -> dict[str, Any]:
    return {
        "name": name(),
        "bootstrap.servers": kafka.bootstrap_servers,
        "value.converter": "org.apache.kafka.connect.storage.StringConverter",
        **{f"consumer.override.{k}": v for k, v in settings(trust_store, security).items()},
        **keys,
    }


def fill(kafka: SecuredKafka, made: dict[str, Any], values: list[str]) -> None:
    kafka.create_topic(made["topics"], 2)
    producer = Producer(client_config(read(ConnectorConfig, made), "producer"))
    for value in values:
        producer.produce(made["topics"], value)
    assert producer.flush(PATIENCE) == 0


@pytest.mark.parametrize("mechanism", some(MECHANISMS, {"SCRAM-SHA-512", "OAUTHBEARER"}))
def test_a_login_serves_all_clients(
    mechanism: str, secured: SecuredKafka, tokens: OAuthServer, trust_store: Path, tmp_path: Path
) -> None:
    file = tmp_path / "lines.txt"
    made = config(
        secured,
        trust_store,
        dict(login(mechanism, tokens.url)),
        **{"connector.class": "FileStreamSink", "topics": name(), "file": str(file)},
    )
    lines = [f"line {n}" for n in range(COUNT)]
    fill(secured, made, lines)
    caught_up(made, spark=LocalSpark(tmp_path))
    assert sorted(file.read_text().splitlines()) == sorted(lines)
    assert audit(made).kept
    assert mechanism != "OAUTHBEARER" or tokens.given


@pytest.mark.long
def test_a_worker_shares_connectors_through_a_kafka_that_asks_for_a_login(
    secured: SecuredKafka, trust_store: Path, tmp_path: Path
) -> None:
    security = settings(trust_store, dict(login("SCRAM-SHA-512")))
    group, topic, file = name(), name(), tmp_path / "lines.txt"
    of_group = {
        "group.id": group,
        "config.storage.topic": f"{group}-configs",
        "status.storage.topic": f"{group}-statuses",
        "offset.storage.topic": f"{group}-offsets",
        **{f"{k}.storage.replication.factor": "1" for k in ("config", "status", "offset")},
    }
    of_connectors = {f"consumer.{k}": v for k, v in security.items()}
    servers = {"bootstrap.servers": secured.bootstrap_servers}
    member = Inside({**servers, **security, **of_connectors, **of_group})
    try:
        wait_until(lambda: member.api.get("/health").status_code == 200)
        sink = {"connector.class": "FileStreamSink", "topics": topic, "file": str(file)}
        fill(secured, config(secured, trust_store, dict(login("PLAIN")), **sink), ["line"])
        text = {"value.converter": "org.apache.kafka.connect.storage.StringConverter"}
        answer = member.api.put("/connectors/lines/config", json=sink | text)
        assert answer.status_code == 201, answer.text
        wait_until(lambda: file.exists() and file.read_text() == "line\n")
    finally:
        member.end()


@pytest.mark.long
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_a_login_serves_sparks_own_client(
    mechanism: str, secured: SecuredKafka, trust_store: Path, tmp_path: Path
) -> None:
    database = tmp_path / "rows.db"
    keys = {
        "connector.class": "JdbcSink",
        "topics": name(),
        "connection.url": f"jdbc:sqlite:{database}",
        "auto.create": "true",
        "engine": "micro-batch",
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter.schemas.enable": "false",
    }
    made = config(secured, trust_store, dict(login(mechanism)), **keys)
    fill(secured, made, [f'{{"id": {n}}}' for n in range(COUNT)])
    file = tmp_path / "connector.json"
    file.write_text(json.dumps(made))
    ended = run_to_end(
        [sys.executable, "-m", "semel", "run", "--until-caught-up", str(file)],
        stdin=subprocess.DEVNULL,
    )
    assert ended.returncode == 0, ended.stderr
    with sqlite3.connect(database) as connection:
        (count,) = connection.execute(f'SELECT count(*) FROM "{keys["topics"]}"').fetchone()
    assert count == COUNT


def test_a_wrong_password_is_reported(secured: SecuredKafka, trust_store: Path) -> None:
    given = dict(login("SCRAM-SHA-256"))
    wrong = given | {"sasl.jaas.config": given["sasl.jaas.config"].replace("cret", "CRET")}
    made = config(secured, trust_store, wrong, **{"connector.class": "FileStreamSink"})
    connector = read(ConnectorConfig, made | {"topics": "t"})
    with pytest.raises(ServiceError, match=r"(?i)authentication failed"):
        wait_for_brokers(client_config(connector, "admin"), 20.0)


def test_a_missing_topic_is_created_as_the_brokers_create_it_for_kafka_connect(
    secured: SecuredKafka, caplog: pytest.LogCaptureFixture
) -> None:
    """Kafka's own example of FileStreamSource runs as it is published."""
    topic = name()
    keys = {"connector.class": "FileStreamSource", "file": "test.txt", "topic": topic}
    servers = {"bootstrap.servers": secured.plain}
    cluster = Cluster(servers)
    Topics(plan_source({"name": "local-file-source", **servers, **keys}).connector, cluster).ensure(
        topic
    )
    assert cluster.topics()[topic] == 3
    assert f"topic {topic} was missing and is created with the brokers' defaults" in caplog.text


class TestRights:
    """A source connector whose user lacks a right is told the topic, the operation and the fix."""

    USER = "guest"

    @pytest.fixture(scope="class")
    @classmethod
    def guest(cls, secured: SecuredKafka) -> SecuredKafka:
        secured.add_user(cls.USER, PASSWORD)
        return secured

    @pytest.fixture
    def planned(self, guest: SecuredKafka, trust_store: Path) -> SourcePlan:
        made = config(
            guest,
            trust_store,
            dict(login("SCRAM-SHA-256", user=self.USER)),
            **{
                "connector.class": "FileStreamSource",
                "file": "test.txt",
                "topic": name(),
                "offsets.storage.topic": name(),
                "offset.storage.partitions": "1",
            },
        )
        mine = {k.replace("consumer.override", "producer.override"): v for k, v in made.items()}
        return plan_source(mine)

    @staticmethod
    def topic(planned: SourcePlan) -> str:
        return str(planned.connector.originals["topic"])

    @staticmethod
    def cluster(planned: SourcePlan) -> Cluster:
        return Cluster(client_config(planned.connector, "admin"))

    def topics(self, planned: SourcePlan) -> Topics:
        return Topics(planned.connector, self.cluster(planned))

    def test_to_describe_the_topic(self, guest: SecuredKafka, planned: SourcePlan) -> None:
        topic = self.topic(planned)
        guest.create_topic(topic, 1)
        with pytest.raises(ServiceError, match=f"describe topic {topic}, .* Grant DESCRIBE on it"):
            self.topics(planned).ensure(topic)

    def test_to_create_the_topic(self, guest: SecuredKafka, planned: SourcePlan) -> None:
        topic = self.topic(planned)
        guest.allow(self.USER, AclOperation.DESCRIBE, ResourceType.TOPIC, topic)
        with pytest.raises(ConfigError, match=f"topic {topic} .* may not ask whether"):
            self.topics(planned).ensure(topic)
        creation = {"partitions": "1", "replication.factor": "1"}
        given = {f"topic.creation.default.{k}": v for k, v in creation.items()}
        asked = plan_source({**planned.connector.originals, **given})
        with pytest.raises(ServiceError, match=f"create topic {topic} .* grant CREATE on"):
            self.topics(asked).ensure(topic)

    def test_to_read_the_offsets_topic(self, guest: SecuredKafka, planned: SourcePlan) -> None:
        topic = planned.connector.offsets_topic
        guest.create_topic(topic, 1, config={"cleanup.policy": "compact"})
        producer = Producer({"bootstrap.servers": guest.plain})
        producer.produce(topic, b"{}", b"[]")
        assert producer.flush(PATIENCE) == 0
        guest.allow(self.USER, AclOperation.DESCRIBE, ResourceType.TOPIC, topic)
        offsets = SourceOffsets(planned.connector, self.cluster(planned))
        with pytest.raises(ServiceError, match=f"offsets topic {topic}: .* Grant READ on it"):
            offsets.read()

    def test_to_write_transactions_and_records(
        self, guest: SecuredKafka, planned: SourcePlan
    ) -> None:
        connector, topic = planned.connector, self.topic(planned)
        guest.create_topic(topic, 1)
        for each in (topic, connector.offsets_topic):
            guest.allow(self.USER, AclOperation.DESCRIBE, ResourceType.TOPIC, each)
        offsets = SourceOffsets(connector, self.cluster(planned))
        with closing(
            SourceCommitter(connector, planned.guarantee, offsets, 0, CommitCounter())
        ) as commits:
            id_ = connector.transactional_id(0)
            with pytest.raises(ServiceError, match=f"{id_}. Grant DESCRIBE and WRITE on it"):
                commits.open()
            guest.allow(self.USER, AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, id_)
            commits.open()
            records = source_records(topic, pa.array(["line"]))
            work = EncodedBatch([Encoder(connector).messages(records, [])], records=1)
            commits.begin(work, [])
            with pytest.raises(ServiceError, match=f"topic {topic}. Grant WRITE on it"):
                commits.wait()


class TestTrustStores:
    def test_javas_stores_and_pem_hold_the_same(
        self, authority: Authority, trust_store: Path
    ) -> None:
        pem = authority.folder / "ca.pem"  # as it was when the store was made
        body = pem.read_text().split("-----")[2].split()
        for store in (trust_store, pem):
            assert keystores.authorities(str(store), "changeit").split("-----")[2].split() == body

    @pytest.mark.parametrize(
        ("password", "reason"), [("wrong", "password was incorrect"), ("", "password")]
    )
    def test_a_wrong_password_is_reported(
        self, password: str, reason: str, trust_store: Path
    ) -> None:
        with pytest.raises(ConfigError, match=rf"cannot be read with ssl\.trust.*{reason}"):
            keystores.authorities(str(trust_store), password)

    def test_a_store_that_is_missing_or_trusts_nobody_is_reported(
        self, authority: Authority
    ) -> None:
        with pytest.raises(ConfigError, match=r"location=/none cannot be read: No such file"):
            keystores.authorities("/none", "x")
        with pytest.raises(ConfigError, match="holds no trusted certificate"):
            keystores.authorities(str(authority.key_store("alone")), authority.password)
