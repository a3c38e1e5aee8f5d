"""The keys of a worker, by Kafka Connect's names, and what connectors inherit from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from semel.config.definition import HIGH, LOW, MEDIUM, Type, key
from semel.config.loading import under
from semel.config.providers import PROVIDERS, Resolved
from semel.config.rest import RestConfig

_CLIENTS = ("consumer", "producer", "admin")
_INHERITED = ("bootstrap.servers", "key.converter", "value.converter")


@dataclass(frozen=True)
class WorkerConfig(RestConfig):
    """A worker that runs alone, as ``connect-standalone`` does."""

    bootstrap_servers: str = key(
        "bootstrap.servers",
        "localhost:9092",
        "Kafka brokers of connectors that name none.",
        importance=HIGH,
        group="Common",
    )
    key_converter: str = key(
        "key.converter",
        "",
        "Decodes keys, where a connector does not say how.",
        type=Type.CLASS,
        importance=HIGH,
        group="Common",
    )
    value_converter: str = key(
        "value.converter",
        "",
        "Decodes values, where a connector does not say how.",
        type=Type.CLASS,
        importance=HIGH,
        group="Common",
    )
    override_policy: str = key(
        "connector.client.config.override.policy",
        "All",
        "Which client settings connectors may override: All, None, or Principal (their login).",
        choices=("all", "none", "principal"),
        importance=MEDIUM,
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

        A converter's settings come with the converter: they are the worker's only if that is.
        Config providers are the worker's alone.
        """
        given = self.originals
        given = given.given if isinstance(given, Resolved) else given
        own = {n: v for n, v in connector.items() if not n.startswith(PROVIDERS)}
        found: dict[str, str] = {PROVIDERS: ""}  # a request may read what this worker says, no more
        for name, value in given.items():
            root = next((n for n in _INHERITED if name == n or name.startswith(f"{n}.")), "")
            if (root and root not in connector) or name.startswith(("spark.", PROVIDERS)):
                found[name] = value
        for client in _CLIENTS:
            for name, value in under(given, f"{client}.").items():
                if not name.startswith("listeners"):  # admin.listeners is the REST API's
                    found[f"{client}.override.{name}"] = value
        return {"bootstrap.servers": self.bootstrap_servers, **found, **own}

    def forbidden(self, connector: Mapping[str, str]) -> list[str]:
        """The client settings that a connector overrides although it may not (KIP-458)."""
        given = [
            (name, name.split(".override.", 1)[1])
            for name in connector
            if name.startswith(tuple(f"{client}.override." for client in _CLIENTS))
        ]
        policy = self.override_policy.lower()
        if policy == "all":
            return []
        allowed = _LOGIN if policy == "principal" else frozenset()
        return [name for name, setting in given if setting not in allowed]


_LOGIN = frozenset({"sasl.jaas.config", "sasl.mechanism", "security.protocol"})
"""What the policy Principal lets connectors override."""
