"""The keys of a worker: all of Kafka Connect's are accepted, and have their effect."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from confluent_kafka import Consumer

from semel.cli.worker import IGNORED, PASSED_ON, met
from semel.config import SourceConnectorConfig, check_keys, read
from semel.config.worker import ClusterConfig, WorkerConfig
from semel.core.errors import ConfigError, ServiceError
from semel.kafka.clients import worker_client
from semel.kafka.cluster import Cluster
from semel.sources.offsets import SourceOffsets
from semel.spark import jars
from semel.worker.cluster.store import Store
from semel_lab.embedded.java import find_java
from semel_lab.jars import CONNECT
from tests.processes import run_to_end

NOWHERE = "127.0.0.1:1"
CLUSTER = {
    "bootstrap.servers": NOWHERE,
    "group.id": "g",
    "config.storage.topic": "configs",
    "offset.storage.topic": "offsets",
    "status.storage.topic": "states",
}
CLUSTER_CLASS = "org.apache.kafka.connect.runtime.distributed.DistributedConfig"


def worker(**keys: str) -> WorkerConfig:
    return read(WorkerConfig, {k.replace("_", "."): v for k, v in keys.items()})


def accepted(raw: Mapping[str, str]) -> list[str]:
    """The warnings about a worker's configuration that librdkafka takes."""
    config = read(ClusterConfig, {**CLUSTER, **raw})
    Consumer({**worker_client(config), "group.id": "g", "log_level": 0}).close()
    return check_keys(raw, [ClusterConfig], IGNORED, PASSED_ON)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("admin.listeners", "http://localhost:8084"),
        ("ssl.client.auth", "required"),
        ("receive.buffer.bytes", "-1"),
        ("socket.connection.setup.timeout.ms", "5000"),
        ("ssl.endpoint.identification.algorithm", ""),
    ],
)
def test_keys_of_the_worker_do_not_disturb_its_client(key: str, value: str) -> None:
    assert accepted({key: value}) == []


def test_the_topics_of_a_cluster_are_created_as_configured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: dict[str, tuple[int, Mapping[str, str]]] = {}

    def create(
        _cluster: Cluster, name: str, partitions: int, _replication: int, config: Mapping[str, str]
    ) -> None:
        made[name] = partitions, config
        raise ServiceError("that is all")

    monkeypatch.setattr(Cluster, "create_topic", create)
    raw = {
        "status.storage.partitions": "-1",
        "offset.storage.partitions": "-1",
        "config.storage.min.insync.replicas": "2",
        "status.storage.max.message.bytes": "1000",
        "offset.storage.segment.bytes": "5000",
    }
    config, client = read(ClusterConfig, {**CLUSTER, **raw}), {"bootstrap.servers": NOWHERE}
    store = Store(config, client)
    source = {"name": "a", "connector.class": "FileStreamSource", "topic": "t", "file": "f"}
    connector = read(SourceConnectorConfig, config.inherited(source))
    for prepare in (store.start, SourceOffsets(connector, Cluster(client)).prepare):
        with pytest.raises(ServiceError, match="Create it with cleanup"):
            prepare()
    compacted = {"cleanup.policy": "compact"}
    assert made["configs"] == (1, {**compacted, "min.insync.replicas": "2"})
    assert made["offsets"] == (-1, {**compacted, "segment.bytes": "5000"})
    assert accepted(raw) == []
    [warning] = accepted({"config.storage.cleanup.policy": "delete"})
    assert (
        warning == "config.storage.cleanup.policy has no effect: the topic is compacted in any case"
    )
    with pytest.raises(ConfigError, match=r"factor='0' must be -1, or at least 1"):
        accepted({"config.storage.replication.factor": "0"})


@pytest.mark.parametrize(
    "key",
    ["sasl.login.refresh.window.factor", "client.id", "metric.reporters", "inter.worker.key.size"],
)
def test_keys_without_effect_are_reported_with_the_reason(key: str) -> None:
    [warning] = accepted({key: "1"})
    assert warning.startswith(f"{key} has no effect: ")


def test_settings_of_the_workers_own_client_reach_it() -> None:
    client = worker_client(worker(reconnect_backoff_ms="70", connections_max_idle_ms="-1"))
    assert client["reconnect.backoff.ms"] == "70"
    assert worker_client(worker())["reconnect.backoff.ms"] == 20
    assert worker_client(worker())["reconnect.backoff.max.ms"] == 1000
    longer = worker_client(worker(reconnect_backoff_ms="2000"))
    assert longer["reconnect.backoff.max.ms"] == 2000  # librdkafka wants it to be no less
    assert worker_client(worker(reconnect_backoff_max_ms="10"))["reconnect.backoff.ms"] == 10
    assert client["connections.max.idle.ms"] == "0"


def test_a_java_class_that_logs_in_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"ssl\.engine\.factory\.class=com\.example\.F is a"):
        worker_client(worker(ssl_engine_factory_class="com.example.F"))


@pytest.mark.integration
@pytest.mark.long
def test_each_documented_key_of_kafka_connect_is_accepted_with_its_default() -> None:
    classpath = jars.classpath(CONNECT)
    command = [find_java(), "-cp", classpath, CLUSTER_CLASS]
    done = run_to_end(command, check=True, timeout=120)
    page = done.stdout
    pattern = r'<h4><a id="([^"]*)"></a>.*?<th>Default:</th><td>(.*?)</td>'
    found = {
        key: html.unescape(re.sub(r"\s*\(.*\)$", "", default.strip()))
        for key, default in re.findall(pattern, page, re.DOTALL)
    }
    assert len(found) > 100
    for key, default in found.items():
        if default and default not in ("null", '""'):
            warnings = accepted({key: default})
            assert not any("unknown" in warning for warning in warnings), key
        else:
            warnings = check_keys({key: "x"}, [ClusterConfig], IGNORED, PASSED_ON)
            assert not any("unknown" in warning for warning in warnings), key


@pytest.mark.parametrize(
    ("policy", "refused"),
    [
        ("All", []),
        ("None", ["sasl.mechanism", "fetch.min.bytes", "linger.ms"]),
        ("Principal", ["fetch.min.bytes", "linger.ms"]),
        ("allowlist", ["sasl.mechanism", "linger.ms"]),
        (
            "org.apache.kafka.connect.connector.policy.NoneConnectorClientConfigOverridePolicy",
            ["sasl.mechanism", "fetch.min.bytes", "linger.ms"],
        ),
    ],
)
def test_a_policy_says_what_connectors_may_override(policy: str, refused: list[str]) -> None:
    config = worker(
        connector_client_config_override_policy=policy,
        connector_client_config_override_allowlist="fetch.min.bytes, max.poll.records",
    )
    connector = {
        "name": "c",
        "consumer.override.sasl.mechanism": "PLAIN",
        "consumer.override.fetch.min.bytes": "1",
        "producer.override.linger.ms": "1",
    }
    found = [problem.key.split(".override.")[1] for problem in config.forbidden(connector)]
    assert found == refused
    if refused:
        with pytest.raises(ConfigError, match=f"policy does not allow '{refused[0]}' to be over"):
            config.permitted(connector)


def test_a_policy_that_is_not_here_is_refused() -> None:
    with pytest.raises(ConfigError, match="is not one of All, None, Principal, Allowlist"):
        worker(connector_client_config_override_policy="com.example.Policy")


@pytest.mark.parametrize(
    ("given", "inherits"),
    [
        ({"topics": "t"}, True),
        ({"topics": "t", "producer.override.bootstrap.servers": "target:1"}, True),
        ({"topics": "t", "consumer.override.bootstrap.servers": "other:1"}, False),
        ({"topics.regex": "t.*", "consumer.override.bootstrap.servers": "other:1"}, False),
        ({"topology": "app.py:make", "consumer.override.bootstrap.servers": "other:1"}, False),
        ({"producer.override.bootstrap.servers": "other:1"}, False),
    ],
)
def test_a_connector_may_override_the_brokers_of_its_worker(
    given: dict[str, str], inherits: bool
) -> None:
    for config in (worker(), worker(bootstrap_servers="mine:1")):
        assert ("bootstrap.servers" in config.inherited({"name": "c", **given})) is inherits


SINK = {"name": "c", "connector.class": "postgresql", "topics": "t"}
SOURCE = {"name": "c", "connector.class": "filestream", "topic": "t"}
COPY = {**SINK, "connector.class": "kafka"}
EVIL = "evil:9092"


@pytest.mark.parametrize(
    ("given", "keep"),
    [
        ({**SINK, "consumer.override.bootstrap.servers": EVIL}, ""),
        ({**SINK, "bootstrap.servers": EVIL}, ""),
        ({**SINK, "kafka.bootstrap.servers": f"mine:1,{EVIL}"}, ""),
        ({**SINK, "consumer.override.sasl.oauthbearer.token.endpoint.url": "http://evil"}, ""),
        ({**SOURCE, "producer.override.bootstrap.servers": EVIL}, ""),
        ({**SOURCE, "topics": "t", "producer.override.bootstrap.servers": EVIL}, ""),
        ({**SOURCE, "bootstrap.servers": EVIL}, ""),
        ({**COPY, "producer.override.bootstrap.servers": EVIL}, "consumer admin"),
        ({**COPY, "dest.kafka.bootstrap.servers": EVIL}, "consumer admin"),
        ({**COPY, "target.cluster.bootstrap.servers": EVIL}, "consumer admin"),
        ({**COPY, "consumer.override.bootstrap.servers": EVIL}, ""),
        ({**SINK, "consumer.override.bootstrap.servers": "mine:1"}, "consumer producer admin"),
        (SINK, "consumer producer admin"),
        (SOURCE, "consumer producer admin"),
    ],
)
def test_a_login_is_not_sent_to_brokers_that_a_connector_names(
    given: dict[str, str], keep: str
) -> None:
    clients = ("consumer", "producer", "admin")
    logins = {f"{c}.{n}": "x" for c in clients for n in ("sasl.jaas.config", "ssl.key.pem")}
    config = worker(
        **{"bootstrap.servers": "mine:1,mine:2", "consumer.fetch.min.bytes": "2", **logins}
    )
    found = config.inherited(given)
    assert found["consumer.override.fetch.min.bytes"] == "2"
    assert {n.partition(".")[0] for n in found if ".sasl.jaas" in n} == set(keep.split())
    assert {n.partition(".")[0] for n in found if ".ssl." in n} == set(keep.split())


def test_a_login_of_its_own_goes_to_the_brokers_that_a_connector_names() -> None:
    own = {
        "consumer.override.bootstrap.servers": EVIL,
        "consumer.override.sasl.jaas.config": "own",
    }
    config = worker(bootstrap_servers="mine:1", **{"consumer.sasl.jaas.config": "worker's"})
    assert config.inherited({**SINK, **own})["consumer.override.sasl.jaas.config"] == "own"


def test_a_login_is_not_sent_to_a_registry_that_a_connector_names() -> None:
    config = worker(
        **{
            "value.converter": "avro",
            "value.converter.schema.registry.url": "http://mine",
            "value.converter.basic.auth.user.info": "me:secret",
        }
    )
    url = "value.converter.schema.registry.url"
    assert "value.converter.basic.auth.user.info" in config.inherited(SINK)
    found = config.inherited({**SINK, url: "http://evil"})
    assert found["value.converter"] == "avro" and found[url] == "http://evil"
    assert "value.converter.basic.auth.user.info" not in found


def test_a_worker_may_have_other_brokers_for_the_clients_of_its_connectors() -> None:
    servers = {"bootstrap.servers": "mine:1", "consumer.bootstrap.servers": "other:1"}
    inherited = worker(**servers).inherited
    assert "bootstrap.servers" not in inherited({"name": "c", "topics": "t"})
    assert "bootstrap.servers" in inherited({"name": "c"})


def test_a_worker_may_forbid_that_connectors_create_topics() -> None:
    made = {"name": "c", "topic.creation.default.partitions": "1"}
    assert "topic.creation.enable" not in worker().inherited(made)
    closed = worker(topic_creation_enable="false")
    assert closed.inherited(made)["topic.creation.enable"] == "false"
    assert closed.inherited({"name": "c"})["topic.creation.enable"] == "false"


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"listeners": "https://localhost:0"}, "ssl.keystore.location"),
        (
            {
                "listeners": "https://localhost:0",
                "listeners.https.ssl.keystore.location": "/nowhere.p12",
            },
            "/nowhere.p12",
        ),
        ({"semel.rest.tokens.file": "/nowhere.tokens"}, "/nowhere.tokens"),
        ({"value.converter": "org.apache.kafka.connect.json.JsnConverter"}, "JsnConverter"),
        (
            {
                "key.converter": "org.apache.kafka.connect.json.JsonConverter",
                "key.converter.schemas.enable": "perhaps",
            },
            "key.converter.schemas.enable",
        ),
    ],
)
def test_what_is_wrong_with_a_worker_is_said_before_kafka_is_asked(
    keys: dict[str, str], said: str, tmp_path: Path
) -> None:
    config = read(WorkerConfig, {"bootstrap.servers": NOWHERE, **keys})
    with pytest.raises(ConfigError, match=re.escape(said)):
        met(config)


def test_a_heartbeat_comes_before_the_session_ends() -> None:
    times = {"heartbeat.interval.ms": "10000", "session.timeout.ms": "10000"}
    with pytest.raises(ConfigError, match="must be less than session"):
        read(ClusterConfig, {**CLUSTER, **times})


def test_a_sink_may_not_join_the_group_of_its_workers() -> None:
    config = read(ClusterConfig, {**CLUSTER, "group.id": "connect-cluster"})
    sink = {"name": "cluster", "topics": "t"}
    (problem,) = config.forbidden(sink)
    assert problem.key == "name"
    assert problem.message == (
        "Consumer group for sink connector named cluster conflicts with Connect worker group "
        "connect-cluster. Give it another name"
    )
    (problem,) = config.forbidden({"name": "cluster", "topology": "shop:cities"})
    assert problem.key == "name"
    assert not config.forbidden({**sink, "name": "orders"})
    assert not config.forbidden({"name": "cluster", "topic": "t"})


def test_a_cluster_refuses_source_offsets_in_a_file() -> None:
    config = read(ClusterConfig, CLUSTER)
    assert config.forbidden({"name": "c"}) == []
    (problem,) = config.forbidden({"name": "c", "offset.storage.file.filename": "/tmp/offsets"})
    assert "workers of a cluster may be on several" in problem.message
    (problem,) = config.forbidden({"name": "c", "offset.storage.jdbc.url": "jdbc:sqlite:/tmp/o"})
    assert "workers of a cluster may be on several" in problem.message
    server = {"name": "c", "offset.storage.jdbc.connection.url": "jdbc:postgresql://h/db"}
    assert config.forbidden(server) == []
