"""The keys of the REST Proxy, by Confluent's names."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import ClassVar

from semel.config.connector import is_topic
from semel.config.definition import HIGH, LOW, Type, key
from semel.config.rest import RestConfig, some_listeners

KEYS_TOPIC = "semel.rest.idempotency.topic"
KEYS_PARTITIONS = "semel.rest.idempotency.partitions"
KEYS_RETENTION = "semel.rest.idempotency.retention.ms"
LOGINS = "semel.rest.kafka.logins.file"
REGISTRY = "schema.registry.url"
_GROUP = "REST Proxy"
_MEBIBYTE = 1024 * 1024
_DAY = 24 * 60 * 60 * 1000


@dataclass(frozen=True)
class ProxyConfig(RestConfig):
    """The REST Proxy: its cluster, its limits, and what RestConfig says of every REST API."""

    listeners: tuple[str, ...] = key(
        "listeners",
        ("http://localhost:8082",),
        "Where the proxy listens: http://host:port or https://host:port, separated by commas. "
        "http://:8082 listens on all addresses.",
        importance=HIGH,
        group=_GROUP,
        validator=some_listeners,
    )
    advertised_host: str = key(
        "host.name",
        "",
        "The host in the URLs that the proxy gives to clients, such as those of consumers; by "
        "default that of the first listener, or this machine's address if that listens on all.",
        importance=LOW,
    )
    advertised_url: str = key(
        "advertised.listeners",
        "",
        "The URL by which clients reach this proxy, such as https://rest-1.example.com, if it is "
        "not that of a listener.",
        importance=LOW,
    )
    peers: tuple[str, ...] = key(
        "semel.rest.peers",
        (),
        "The URLs of the other proxies of this cluster, by their advertised.listeners. A request "
        "for a consumer that one of them has is redirected there.",
        importance=LOW,
    )
    proxy_id: str = key(
        "id",
        "",
        "The name of this proxy in the identifiers of consumers; needed by nobody but people who "
        "read them.",
        importance=LOW,
    )
    bootstrap_servers: str = key(
        "bootstrap.servers",
        "localhost:9092",
        "The brokers of the cluster.",
        type=Type.LIST,
        importance=HIGH,
    )
    logins_file: str = key(
        LOGINS,
        "",
        "A properties file with logins to Kafka for users of the proxy, such as "
        "alice.sasl.jaas.config=...; the requests of a user who has one use it, and those of "
        "others the proxy's own.",
    )
    registry_url: tuple[str, ...] = key(
        REGISTRY,
        (),
        "The schema registry for avro, jsonschema and protobuf, such as http://localhost:8081; "
        "keys below schema.registry. configure its client.",
        importance=HIGH,
    )
    max_request_bytes: int = key(
        "semel.rest.max.request.bytes",
        8 * _MEBIBYTE,
        "The largest body of a request, and the largest record of a stream; larger ones are "
        "refused with 413.",
        at_least=1024,
        type=Type.INT,
        importance=LOW,
    )
    max_records: int = key(
        "semel.rest.max.records",
        10_000,
        "The most records of a request; more are refused with 422.",
        at_least=1,
        type=Type.INT,
        importance=LOW,
    )
    produce_timeout_ms: int = key(
        "semel.rest.produce.timeout.ms",
        30_000,
        "How long brokers may take to confirm a record. A request waits that long, too, before it "
        "is answered with 429 because too much is waiting already.",
        at_least=1000,
        importance=LOW,
    )
    instance_timeout_ms: int = key(
        "consumer.instance.timeout.ms",
        300_000,
        "How long a consumer may stay idle before the proxy closes it.",
        at_least=1,
        importance=LOW,
    )
    request_timeout_ms: int = key(
        "consumer.request.timeout.ms",
        1000,
        "The longest that a request for records waits for some, unless the consumer or the "
        "request says otherwise.",
        at_least=0,
        importance=LOW,
    )
    max_wait_ms: int = key(
        "semel.rest.consumer.max.wait.ms",
        60_000,
        "The longest wait for records that a client may ask for.",
        at_least=1,
        importance=LOW,
    )
    request_max_bytes: int = key(
        "consumer.request.max.bytes",
        64 * _MEBIBYTE,
        "The most bytes of keys and values in an answer; a single larger record is still sent.",
        at_least=1,
        importance=LOW,
    )
    fetch_min_bytes: int = key(
        "fetch.min.bytes",
        -1,
        "The bytes that a request for records waits for, within its timeout; -1 for any records.",
        at_least=-1,
        importance=LOW,
        aliases=("proxy.fetch.min.bytes",),
    )
    max_consumers: int = key(
        "semel.rest.max.consumers",
        1000,
        "The consumers that the proxy keeps; one more is refused with 429.",
        at_least=1,
        type=Type.INT,
        importance=LOW,
    )
    max_readers: int = key(
        "simpleconsumer.pool.size.max",
        25,
        "The most clients that read for requests without a consumer.",
        at_least=1,
        type=Type.INT,
        importance=LOW,
    )
    reader_timeout_ms: int = key(
        "simpleconsumer.pool.timeout.ms",
        1000,
        "How long such a request waits for one of them; then it is refused with 429.",
        at_least=1,
        importance=LOW,
    )
    threads: int = key(
        "consumer.threads",
        50,
        "Threads for calls of Kafka's client that wait.",
        at_least=1,
        at_most=1000,
        type=Type.INT,
        importance=LOW,
    )
    keys_topic: str = key(
        KEYS_TOPIC,
        "_semel_rest_keys",
        "The compacted topic that keeps the keys and answers of requests with an Idempotency-Key. "
        "Proxies that share a cluster must name the same one.",
        validator=is_topic,
    )
    keys_partitions: int = key(
        KEYS_PARTITIONS,
        16,
        "Partitions of that topic, which must not change: each has a transactional.id of its own.",
        at_least=1,
        at_most=1000,
        type=Type.INT,
        importance=LOW,
    )
    keys_replication: int = key(
        "semel.rest.idempotency.replication.factor",
        -1,
        "Replication of that topic when it is created; -1 is the brokers' default.",
        at_least=-1,
        type=Type.SHORT,
        importance=LOW,
    )
    keys_retention_ms: int = key(
        KEYS_RETENTION,
        _DAY,
        "How long a key is kept: a request that is repeated later is carried out again.",
        at_least=60_000,
        importance=LOW,
    )

    changes_logged_at: ClassVar[int] = logging.DEBUG

    @property
    def url(self) -> str:
        """How clients reach this proxy."""
        return self.advertised_url.rstrip("/") or f"{self.scheme}://{self.id}"
