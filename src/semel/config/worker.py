"""The keys of a worker that runs alone, and of one in a cluster, by Kafka Connect's names; what
connectors inherit from it, and what they may set."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from semel.config.allowed import PATHS, PLUGINS, TRUSTED, is_from_outside, outside, unlisted
from semel.config.connector import group_of, is_topic, not_zero
from semel.config.definition import HIGH, LOW, Type, key
from semel.config.loading import under
from semel.config.providers import PROVIDERS, ResolvedConfig
from semel.config.rest import RestConfig, well_formed
from semel.config.source_connector import (
    OFFSETS,
    TOPIC_CREATION,
    offsets_on_one_machine,
    topic_settings,
)
from semel.core.errors import ConfigError, Problem, misconfigured

POLICY = "connector.client.config.override.policy"
ALLOWED = "connector.client.config.override.allowlist"
MODULES = "semel.python.modules"
"""Also the key by which connectors inherit it."""
SERVERS = "bootstrap.servers"
PROXY = "rest.proxy."
"""The prefix of the keys of the REST Proxy that runs beside a worker."""
SECURITY = ("security.", "sasl.", "ssl.")
"""Prefixes of what a Kafka client logs in with."""
_TARGETS = {f"dest.kafka.{SERVERS}", f"target.cluster.{SERVERS}"}
"""The keys of the Kafka sink that name other brokers for its producer."""
_TOKENS = ".override.sasl.oauthbearer.token.endpoint.url"
_CLIENTS = ("consumer", "producer", "admin")
_READS = {"topics", "topics.regex", "topology"}
"""The keys of connectors that read topics: sinks and topologies."""
_INHERITED = ("key.converter", "value.converter")
_NOT_THE_PROXYS = (
    *(f"{client}." for client in _CLIENTS),
    *("listeners", "rest.advertised.", "semel.rest.max."),
)
"""What keys begin with that are about a worker, or its connectors, and not about the proxy."""
_LOGIN = frozenset({"sasl.jaas.config", "sasl.mechanism", "security.protocol"})
"""What the policy Principal lets connectors override."""
_POLICIES = ("All", "None", "Principal", "Allowlist")


def _short(policy: str) -> str:
    """A policy's short name: Kafka Connect takes the name of the Java class, too."""
    return policy.rpartition(".")[2].removesuffix("ConnectorClientConfigOverridePolicy")


def _policy(policy: str) -> None:
    if _short(policy).lower() not in {name.lower() for name in _POLICIES}:
        raise ValueError(f"is not one of {', '.join(_POLICIES)}; others are Java classes")


_IMPORTS = re.compile(r"iceberg\..*\b(?:py-[\w-]+[.-]impl|retry-strategy-impl|auth\.impl)")
"""Properties of catalogs that name Python classes."""


def may_import(name: str, modules: Collection[str]) -> bool:
    """Whether a module or class is one of these, or below one."""
    return any(name == module or name.startswith(f"{module}.") for module in modules)


def _folders(values: tuple[str, ...]) -> None:
    for value in values:
        if not os.path.isabs(value) or not os.path.isdir(value):  # noqa: PTH112, PTH117
            raise ValueError(f"has {value}, which is not the absolute path of a folder")


@dataclass(frozen=True)
class WorkerConfig(RestConfig):
    """A worker that runs alone, as ``connect-standalone`` does."""

    bootstrap_servers: str = key(
        "bootstrap.servers",
        "localhost:9092",
        "Kafka brokers of connectors that name none.",
        type=Type.LIST,
        importance=HIGH,
        group="Common",
    )
    key_converter: str = key(
        "key.converter",
        "",
        "Converter of keys for connectors that name none.",
        type=Type.CLASS,
        importance=HIGH,
    )
    value_converter: str = key(
        "value.converter",
        "",
        "Converter of values for connectors that name none.",
        type=Type.CLASS,
        importance=HIGH,
    )
    override_policy: str = key(
        POLICY,
        "All",
        "Which consumer.override.*, producer.override.* and admin.override.* keys connectors may "
        f"set: All, None, Allowlist (those in {ALLOWED}) or Principal (login only).",
        recommended=_POLICIES,
        validator=_policy,
    )
    override_allowlist: tuple[str, ...] = key(
        ALLOWED,
        (),
        "Client settings that the policy Allowlist lets connectors override, such as "
        "max.poll.records,fetch.min.bytes.",
    )
    modules: tuple[str, ...] = key(
        MODULES,
        (),
        "Python modules and packages that connectors may name, such as acme.transforms for a "
        "transform with type=python: these and the modules below them. None by default.",
    )
    topic_creation: bool = key(
        f"{TOPIC_CREATION}enable",
        True,
        "Whether source connectors may create topics, by their topic.creation.* keys or with "
        "the brokers' defaults.",
        importance=LOW,
    )
    allowed_paths: tuple[str, ...] = key(
        PATHS,
        (),
        "Folders of this machine that connectors may read and write; by default any that the "
        "worker may. If set, spark.* keys are the worker's alone. Only if set may client settings "
        "of connectors name files, in these folders, as in consumer.override.ssl.ca.location.",
        validator=_folders,
    )
    allowed_plugins: tuple[str, ...] = key(
        PLUGINS,
        (),
        "Classes that connectors may name as connector, converter, transform or predicate, by the "
        "names that they use; by default any.",
    )
    topic_tracking: bool = key(
        "topic.tracking.enable",
        True,
        "Whether GET /connectors/{name}/topics answers.",
        importance=LOW,
    )
    topic_tracking_reset: bool = key(
        "topic.tracking.allow.reset",
        True,
        "Whether PUT /connectors/{name}/topics/reset is allowed.",
        importance=LOW,
    )
    proxy_listeners: tuple[str, ...] = key(
        f"{PROXY}listeners",
        (),
        "Where a REST Proxy beside the worker listens: Kafka over HTTP, as semel rest serves it. "
        f"None by default. Its other keys are below {PROXY}, too.",
        importance=LOW,
        validator=well_formed,
    )
    graceful_timeout_ms: int = key(
        "task.shutdown.graceful.timeout.ms",
        5000,
        "How long a worker that stops waits for its connectors to finish their current work.",
        at_least=0,
        importance=LOW,
    )

    @property
    def proxy(self) -> dict[str, str] | None:
        """What the REST Proxy beside this worker runs with: its own keys, and the worker's brokers,
        login, users and certificates. None if there is no proxy.

        Raises:
            ConfigError: it has keys, but listens nowhere.
        """
        own = under(self.originals, PROXY)
        if not self.proxy_listeners:
            if own:
                name = f"{PROXY}{min(own)}"
                raise misconfigured(name, f"{name} has no effect: {PROXY}listeners is not set")
            return None
        https = "listeners.https."
        return {
            name: value
            for name, value in self.originals.items()
            if name.startswith(https) or not name.startswith((PROXY, *_NOT_THE_PROXYS))
        } | own

    def inherited(self, connector: Mapping[str, str]) -> dict[str, str]:
        """The configuration that a connector runs with: its own keys, and the worker's where it has
        none.

        A converter's settings come with the converter: they are taken from the worker only if the
        converter is, and not if the connector sets a URL of its own. Config providers are the
        worker's alone. So is a client's login if the connector names other brokers for it: the
        worker's password must not be sent wherever a connector says.
        """
        raw = self.originals
        raw = raw.given if isinstance(raw, ResolvedConfig) else raw
        alone = (PROVIDERS, MODULES, PATHS, TRUSTED)
        own = {n: v for n, v in connector.items() if not n.startswith(alone)}
        # A request may read and import only what the worker allows.
        inherited: dict[str, str] = {PROVIDERS: "", MODULES: ",".join(self.modules)}
        for name, value in raw.items():
            root = next((n for n in _INHERITED if name == n or name.startswith(f"{n}.")), "")
            moved = name != root and any(n.endswith(".url") for n in under(own, f"{root}."))
            if (root and root not in own and not moved) or name.startswith(("spark.", PROVIDERS)):
                inherited[name] = value
        # The client that reads topics, or writes a source's, may have other brokers.
        main = "consumer" if _READS & own.keys() else "producer"
        for client in _CLIENTS:
            elsewhere = self._is_elsewhere(own, client)
            for name, value in under(raw, f"{client}.").items():
                if elsewhere and name.startswith(SECURITY):
                    continue
                if not name.startswith("listeners"):  # admin.listeners is the REST API's
                    inherited[f"{client}.override.{name}"] = value
        if self.allowed_paths:
            inherited[PATHS] = ",".join(self.allowed_paths)
            inherited[TRUSTED] = ",".join(inherited.keys() - own.keys())
        if not self.topic_creation:
            own[f"{TOPIC_CREATION}enable"] = "false"
        if f"{main}.override.bootstrap.servers" not in {**inherited, **own}:
            inherited["bootstrap.servers"] = raw.get("bootstrap.servers", self.bootstrap_servers)
        return {**inherited, **own}

    def _is_elsewhere(self, own: Mapping[str, str], client: str) -> bool:
        """Whether a connector sends a client, or what it logs in with, to other servers than the
        worker's."""
        names = {SERVERS, f"kafka.{SERVERS}", *(f"{c}.override.{SERVERS}" for c in _CLIENTS)}
        if client == "producer":
            names |= _TARGETS
        elif own.get("connector.class", "").strip() == "kafka":  # what it writes to
            names.remove(f"producer.override.{SERVERS}")
        named = {part.strip() for n in names for part in own.get(n, "").split(",")} - {""}
        servers = under(self.originals, f"{client}.").get(SERVERS) or self.bootstrap_servers
        elsewhere = not named <= {part.strip() for part in servers.split(",")}
        return elsewhere or any(name.endswith(_TOKENS) for name in own)

    def forbidden(self, connector: Mapping[str, str]) -> list[Problem]:
        """What a connector may not set, but does: client settings by the policy (KIP-458,
        KIP-1188), those that are the worker's alone, and paths, classes and modules that the worker
        does not allow."""
        policy = _short(self.override_policy).capitalize()
        allowed = {"Principal": _LOGIN, "Allowlist": frozenset(self.override_allowlist)}
        problems: list[Problem] = []
        if self.allowed_paths:
            problems += outside(connector, self.allowed_paths)
        if self.allowed_plugins:
            problems += unlisted(connector, self.allowed_plugins)
        judged = {problem.key for problem in problems}
        for name, value in connector.items():
            client, _, setting = name.partition(".override.")
            is_setting = client in _CLIENTS and bool(setting) and name not in judged
            if is_setting and policy != "All" and setting not in allowed.get(policy, ()):
                message = (
                    f"The '{policy}' policy does not allow '{setting}' to be overridden in the "
                    "connector configuration."
                )
                problems.append(Problem(name, message, value))
            elif is_setting and not is_from_outside(setting, value, self.allowed_paths):
                message = (
                    f"{name} cannot be set for a connector of this worker: connectors may set "
                    "nothing that loads or runs something, that names a file outside of "
                    f"{PATHS}, or that the client lacks. Set {client}.{setting} in the "
                    "worker's file, for all its connectors"
                )
                problems.append(Problem(name, message, value))
            elif _IMPORTS.fullmatch(name) and not may_import(value, self.modules):
                message = (
                    f"{name}={value} is not among the modules that the worker's {MODULES} names"
                )
                problems.append(Problem(name, message, value))
        return problems

    def permitted(self, connector: Mapping[str, str]) -> Mapping[str, str]:
        """The connector, if it sets no more than it may.

        Raises:
            ConfigError: names each key that it may not set.
        """
        problems = self.forbidden(connector)
        if problems:
            raise ConfigError(*problems, title=f"connector {connector.get('name', '')}: ")
        return connector


CONFIGS, STATUSES = "config.storage.", "status.storage."
"""The prefixes of the keys about two of a cluster's topics; the third is :data:`OFFSETS`."""
_CLUSTER = "Cluster"
_REQUIRED = {
    "config.storage.topic": "a topic for the configurations of its cluster's connectors",
    "status.storage.topic": "a topic for the states of its cluster's connectors",
    "offset.storage.topic": "a topic for source offsets",
}


@dataclass(frozen=True)
class ClusterConfig(WorkerConfig):
    """A worker of a cluster, as ``connect-distributed`` starts them."""

    group_id: str = key(
        "group.id",
        "",
        "The cluster's name: workers with the same name share their connectors.",
        importance=HIGH,
        group=_CLUSTER,
    )
    config_topic: str = key(
        "config.storage.topic",
        "",
        "The topic that holds the configurations and target states of connectors, and which "
        "worker runs what. It has one partition.",
        validator=is_topic,
        importance=HIGH,
    )
    config_replication: int = key(
        "config.storage.replication.factor",
        3,
        "Replication of the topic when it is created; -1 is the brokers' default.",
        at_least=-1,
        validator=not_zero,
        type=Type.SHORT,
        importance=LOW,
    )
    status_topic: str = key(
        "status.storage.topic",
        "",
        "The topic that holds the states of connectors and tasks.",
        validator=is_topic,
        importance=HIGH,
    )
    status_partitions: int = key(
        "status.storage.partitions",
        5,
        "Partitions of the topic when it is created; -1 is the brokers' default.",
        at_least=-1,
        validator=not_zero,
        type=Type.INT,
        importance=LOW,
    )
    status_replication: int = key(
        "status.storage.replication.factor",
        3,
        "Replication of the topic when it is created; -1 is the brokers' default.",
        at_least=-1,
        validator=not_zero,
        type=Type.SHORT,
        importance=LOW,
    )
    offset_topic: str = key(
        "offset.storage.topic",
        "",
        "The topic that holds the source offsets of connectors that name none.",
        validator=is_topic,
        importance=HIGH,
    )
    offset_partitions: int = key(
        "offset.storage.partitions",
        25,
        "Partitions of the topic when it is created; -1 is the brokers' default.",
        at_least=-1,
        validator=not_zero,
        type=Type.INT,
        importance=LOW,
    )
    offset_replication: int = key(
        "offset.storage.replication.factor",
        3,
        "Replication of the topic when it is created; -1 is the brokers' default.",
        at_least=-1,
        validator=not_zero,
        type=Type.SHORT,
        importance=LOW,
    )
    session_timeout_ms: int = key(
        "session.timeout.ms",
        10_000,
        "A worker that gives no sign of life for this long loses its connectors to others.",
        at_least=1000,
        at_most=3_600_000,
        type=Type.INT,
        importance=HIGH,
    )
    heartbeat_interval_ms: int = key(
        "heartbeat.interval.ms",
        1000,
        "Time between two heartbeats, and the longest time until a worker hears that another "
        "one has joined or left; at most a third of session.timeout.ms.",
        at_least=100,
        type=Type.INT,
        importance=HIGH,
    )
    rebalance_timeout_ms: int = key(
        "rebalance.timeout.ms",
        60_000,
        "How long a worker waits for the previous worker of a connector to release it.",
        at_least=1000,
        at_most=86_400_000,
        type=Type.INT,
        importance=HIGH,
    )
    rebalance_delay_ms: int = key(
        "scheduled.rebalance.max.delay.ms",
        300_000,
        "How long the connectors of a worker that was shut down cleanly wait for it to come back. "
        "Those of a worker that died do not wait.",
        at_least=0,
        type=Type.INT,
        importance=LOW,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        missing = [name for name in _REQUIRED if not self.originals.get(name, "").strip()]
        if missing:
            raise ConfigError(
                *(
                    Problem(name, f"{name} is missing: a worker with group.id needs {what}")
                    for name, what in _REQUIRED.items()
                    if name in missing
                )
            )
        if self.heartbeat_interval_ms >= self.session_timeout_ms:
            raise misconfigured(
                "heartbeat.interval.ms",
                f"heartbeat.interval.ms={self.heartbeat_interval_ms} must be less than "
                f"session.timeout.ms={self.session_timeout_ms}: the group would take this worker "
                "for dead between two heartbeats",
            )

    @property
    def url(self) -> str:
        """The URL of this worker's REST API for other workers; also its name among them."""
        return f"{self.scheme}://{self.id}"

    def forbidden(self, connector: Mapping[str, str]) -> list[Problem]:
        problems = super().forbidden(connector)
        for name, value in offsets_on_one_machine(connector).items():
            message = (
                f"{name}={value} is on one machine, and workers of a cluster may be on several. "
                f"Remove {name}: the cluster keeps source offsets in its offset.storage.topic"
            )
            problems.append(Problem(name, message, value))
        name = connector.get("name", "")
        reads = not _READS.isdisjoint(connector)
        if reads and group_of(name) == self.group_id:
            # Its tasks would be members of the workers' group.
            message = (
                f"Consumer group for sink connector named {name} conflicts with Connect worker "
                f"group {self.group_id}. Give it another name"
            )
            problems.append(Problem("name", message, name))
        return problems

    def inherited(self, connector: Mapping[str, str]) -> dict[str, str]:
        """Sources keep their offsets in the cluster's topic, and their producers carry its name."""
        own = {
            "offsets.storage.topic": self.offset_topic,
            "offset.storage.partitions": str(self.offset_partitions),
            "offset.storage.replication.factor": str(self.offset_replication),
            "group.id": self.group_id,
        }
        settings = topic_settings(self.originals, OFFSETS)
        own |= {f"{OFFSETS}{name}": value for name, value in settings.items()}
        return super().inherited({**own, **connector})
