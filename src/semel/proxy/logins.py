"""Who asks Kafka: the proxy itself, or a user with a login of its own."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Mapping
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from semel.config import load, resolved
from semel.config.providers import PROVIDERS
from semel.config.proxy import LOGINS, ProxyConfig
from semel.core.errors import ConfigError, prefixed
from semel.kafka.clients import IDEMPOTENCE, QUIET, confirms_all, proxy_client
from semel.worker.rest.users import Users

_LINE = re.compile(r"(.+?)\.((?:security|sasl|ssl)\..+)")
_ENDS_IN = 5.0

_PRODUCER = {
    "partitioner": "murmur2_random",
    "linger.ms": 0,
    "allow.auto.create.topics": False,
    # Brokers decide whether a record is too large.
    "message.max.bytes": 67_108_864,
    "batch.size": 900_000,
    "queue.buffering.max.messages": 500_000,
    "queue.buffering.max.kbytes": 131_072,
    "log_level": 0,
}
"""librdkafka's settings; ``producer.*`` wins."""


class Clients:
    """The clients of one login: settings, and what is connected now."""

    def __init__(
        self, config: ProxyConfig, user: str = "", login: Mapping[str, str] | None = None
    ) -> None:
        self.user = user
        """Whose login it is; empty for the proxy's own."""
        self.client = proxy_client(config, "admin", login)
        self.consumer = proxy_client(config, "consumer", login)
        self.transactional = proxy_client(config, "producer", login)
        self._produces = {
            **_PRODUCER,
            "message.timeout.ms": config.produce_timeout_ms,
            IDEMPOTENCE: confirms_all(self.transactional),
            **self.transactional,
        }
        self.topics: dict[str, tuple[int, float]] = {}
        """Partitions of topics, and when that was."""
        self.requests, self.used = 0, 0.0
        self.in_flight = 0
        """Calls that wait for Kafka to take their records."""
        self.polling: asyncio.Task[None] | None = None
        self._lock = threading.Lock()
        self._admin: AdminClient | None = None
        self._producer: Producer | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a request needs these clients."""
        return bool(self.requests or self.in_flight)

    @property
    def admin(self) -> AdminClient:
        """The client for questions."""
        with self._lock:
            if self._admin is None:
                self._admin = AdminClient(
                    {**self.client, "allow.auto.create.topics": False, "log_level": 0}, logger=QUIET
                )
            return self._admin

    @property
    def producer(self) -> Producer:
        """The client for records without a key of their own."""
        with self._lock:
            if self._producer is None:
                self._producer = Producer(self._produces, logger=QUIET)
            return self._producer

    def forget_admin(self) -> None:
        """Ask the next question with a new client."""
        with self._lock:
            self._admin = None

    def close(self) -> None:
        """Send what is queued, and disconnect. The next use connects again."""
        with self._lock:
            producer = self._producer
            self._admin = self._producer = None
            self.topics = {}
        if producer is not None:
            producer.flush(_ENDS_IN)


def clients_of_users(config: ProxyConfig, known: Users) -> dict[str, Clients]:
    """The clients of the users in the file of logins.

    Raises:
        ConfigError: a login cannot be used, or no request could be recognised as the user's.
    """
    if not config.logins_file:
        return {}
    where = f"{LOGINS}={config.logins_file}"
    providers = {k: v for k, v in config.originals.items() if k.startswith(PROVIDERS)}
    entries = load(Path(config.logins_file))
    logins: dict[str, dict[str, str]] = {}
    for name, value in resolved({**providers, **entries}).items():
        line = _LINE.fullmatch(name)
        if line is not None:
            logins.setdefault(line[1], {})[line[2]] = value
        elif name in entries:
            raise ConfigError(f"{where}: {name} is not user.security.*, user.sasl.* or user.ssl.*")
    unknown = known.strangers(logins)
    if unknown or not logins:
        what = f"{min(unknown)} is no user of the proxy" if unknown else "names nobody"
        raise ConfigError(f"{where}: {what}, so no request could use a login of its own")
    return {user: _clients(config, user, login, where) for user, login in logins.items()}


def _clients(config: ProxyConfig, user: str, login: Mapping[str, str], where: str) -> Clients:
    try:
        return Clients(config, user, login)
    except ConfigError as error:
        raise prefixed(error.problems, f"{user}.", title=f"{where}: ") from None
