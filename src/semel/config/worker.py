"""The keys of a worker, by Kafka Connect's names, and what connectors inherit from it."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from semel.config.clients import is_from_outside
from semel.config.definition import HIGH, LOW, MEDIUM, Type, key
from semel.config.loading import under
from semel.config.providers import PROVIDERS, Resolved
from semel.config.rest import RestConfig
from semel.config.topic_creation import PREFIX as TOPIC_CREATION
from semel.errors import ConfigError, Problem

POLICY = "connector.client.config.override.policy"
ALLOWED = "connector.client.config.override.allowlist"
MODULES = "semel.python.modules"
"""Also the key by which connectors inherit it."""
_CLIENTS = ("consumer", "producer", "admin")
_INHERITED = ("key.converter", "value.converter")
_LOGIN = frozenset({"sasl.jaas.config", "sasl.mechanism", "security.protocol"})
"""What the policy Principal lets connectors override."""
_POLICIES = ("All", "None", "Principal", "Allowlist")


def _short(policy: str) -> str:
    """A policy's short name: Kafka Connect takes the name of the Java class, too."""
    return policy.rpartition(".")[2].removesuffix("ConnectorClientConfigOverridePolicy")


def _policy(given: str) -> None:
    if _short(given).lower() not in {name.lower() for name in _POLICIES}:
        raise ValueError(f"is not one of {', '.join(_POLICIES)}; others are Java classes")


_IMPORTS = re.compile(r"iceberg\..*\b(?:py-[\w-]+[.-]impl|retry-strategy-impl|auth\.impl)")
"""Properties of catalogs that name Python classes."""


def may_import(name: str, modules: Collection[str]) -> bool:
    """Whether a module or class is one of these, or below one."""
    return any(name == module or name.startswith(f"{module}.") for module in modules)


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
        group="Common",
    )
    value_converter: str = key(
        "value.converter",
        "",
        "Converter of values for connectors that name none.",
        type=Type.CLASS,
        importance=HIGH,
        group="Common",
    )
    override_policy: str = key(
        POLICY,
        "All",
        "Which consumer.override.*, producer.override.* and admin.override.* keys connectors may "
        f"set: All, None, Allowlist (those in {ALLOWED}) or Principal (login only).",
        importance=MEDIUM,
        group="Common",
        recommended=_POLICIES,
        validator=_policy,
    )
    override_allowlist: tuple[str, ...] = key(
        ALLOWED,
        (),
        "Client settings that the policy Allowlist lets connectors override, such as "
        "max.poll.records,fetch.min.bytes.",
        importance=MEDIUM,
        group="Common",
    )
    modules: tuple[str, ...] = key(
        MODULES,
        (),
        "Python modules and packages that connectors may name, such as acme.transforms for a "
        "transform with type=python: these and the modules below them. None by default.",
        importance=MEDIUM,
        group="Common",
    )
    allowed_paths: tuple[str, ...] = key(
        "semel.allowed.paths",
        (),
        "Folders whose files the client settings of connectors may name, as in "
        "consumer.override.ssl.ca.location. None by default.",
        importance=MEDIUM,
        group="Common",
    )
    topic_creation: bool = key(
        f"{TOPIC_CREATION}enable",
        True,
        "Whether source connectors may create topics, by their topic.creation.* keys or with "
        "the brokers' defaults.",
        importance=LOW,
        group="Common",
    )
    graceful_timeout_ms: int = key(
        "task.shutdown.graceful.timeout.ms",
        5000,
        "How long a worker that stops waits for its connectors to finish their current work.",
        at_least=0,
        importance=LOW,
        group="Common",
    )

    def inherited(self, connector: Mapping[str, str]) -> dict[str, str]:
        """The configuration that a connector runs with: its own keys, and the worker's where it has
        none.

        A converter's settings come with the converter: they are taken from the worker only if the
        converter is. Config providers are the worker's alone.
        """
        given = self.originals
        given = given.given if isinstance(given, Resolved) else given
        own = {n: v for n, v in connector.items() if not n.startswith((PROVIDERS, MODULES))}
        # A request may read and import only what the worker allows.
        found: dict[str, str] = {PROVIDERS: "", MODULES: ",".join(self.modules)}
        for name, value in given.items():
            root = next((n for n in _INHERITED if name == n or name.startswith(f"{n}.")), "")
            if (root and root not in connector) or name.startswith(("spark.", PROVIDERS)):
                found[name] = value
        for client in _CLIENTS:
            for name, value in under(given, f"{client}.").items():
                if not name.startswith("listeners"):  # admin.listeners is the REST API's
                    found[f"{client}.override.{name}"] = value
        if not self.topic_creation:
            own[f"{TOPIC_CREATION}enable"] = "false"
        # The client that reads a sink's topics, or writes a source's, may have other brokers.
        client = "consumer" if {"topics", "topics.regex"} & own.keys() else "producer"
        if f"{client}.override.bootstrap.servers" not in {**found, **own}:
            found["bootstrap.servers"] = given.get("bootstrap.servers", self.bootstrap_servers)
        return {**found, **own}

    def forbidden(self, connector: Mapping[str, str]) -> list[Problem]:
        """What a connector may not set, but does: client settings by the policy (KIP-458,
        KIP-1188), those that are the worker's alone, and modules that the worker does not allow."""
        policy = _short(self.override_policy).capitalize()
        allowed = {"Principal": _LOGIN, "Allowlist": frozenset(self.override_allowlist)}
        found = []
        for name, value in connector.items():
            client, _, setting = name.partition(".override.")
            is_setting = client in _CLIENTS and bool(setting)
            if is_setting and policy != "All" and setting not in allowed.get(policy, ()):
                message = (
                    f"The '{policy}' policy does not allow '{setting}' to be overridden in the "
                    "connector configuration."
                )
                found.append(Problem(name, message, value))
            elif is_setting and not is_from_outside(setting, value, self.allowed_paths):
                message = (
                    f"{name} cannot be set for a connector of this worker: connectors may set "
                    "nothing that loads or runs something, that names a file outside of "
                    f"semel.allowed.paths, or that the client lacks. Set {client}.{setting} in the "
                    "worker's file, for all its connectors"
                )
                found.append(Problem(name, message, value))
            elif _IMPORTS.fullmatch(name) and not may_import(value, self.modules):
                message = (
                    f"{name}={value} is not among the modules that the worker's {MODULES} names"
                )
                found.append(Problem(name, message, value))
        return found

    def permitted(self, connector: Mapping[str, str]) -> Mapping[str, str]:
        """The connector, if it overrides no more than it may.

        Raises:
            ConfigError: names each key that it may not set.
        """
        problems = self.forbidden(connector)
        if problems:
            raise ConfigError(*problems, title=f"connector {connector.get('name', '')}: ")
        return connector
