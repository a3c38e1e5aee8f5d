"""The keys of a worker, by Kafka Connect's names, and what connectors inherit from it."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from semel.config.allowed import PATHS, PLUGINS, TRUSTED, outside, unlisted
from semel.config.clients import is_from_outside
from semel.config.definition import HIGH, LOW, Type, key
from semel.config.loading import under
from semel.config.providers import PROVIDERS, ResolvedConfig
from semel.config.rest import RestConfig, well_formed
from semel.config.source_connector import TOPIC_CREATION
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
        # The client that reads a sink's topics, or writes a source's, may have other brokers.
        main = "consumer" if {"topics", "topics.regex"} & own.keys() else "producer"
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
