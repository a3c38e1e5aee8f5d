"""First contact with a Kafka cluster: a mistake in the configuration is reported at once, while a
cluster that is starting or unreachable is waited for."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from semel.core.errors import ServiceError
from semel.kafka.cluster import admin_client
from semel.kafka.errors import NO_LOGIN

_FIRST_WAIT, _LONGEST_WAIT = 0.25, 4.0
_SAY_AFTER = 1.0
_SILENT = 20.0
"""Seconds to wait for a cluster that is silent: the network may be slow."""
_UNKNOWN_HOST = {KafkaError._RESOLVE, KafkaError._ALL_BROKERS_DOWN}
"""What librdkafka reports if no host has an address: the second only once it has tried all."""


def wait_for_brokers(
    client: Mapping[str, Any],
    timeout: float = _SILENT,
    say: Callable[[str], None] = lambda _line: None,
    key: str = "bootstrap.servers",
) -> None:
    """Return once a broker answers.

    Args:
        client: librdkafka's configuration.
        timeout: seconds to wait for brokers that refuse connections; silent ones get at least 20.
        say: called once, with what it is waiting for.
        key: the configuration's key that names the brokers, for the message.

    Raises:
        ServiceError: no host has an address, a login is refused, or nobody answers in time.
    """
    servers = client["bootstrap.servers"]
    heard: list[KafkaError] = []
    admin = admin_client({**client, "error_cb": heard.append})
    began, wait, told = time.monotonic(), _FIRST_WAIT, False
    while True:
        try:
            admin.list_topics(timeout=wait)
            return
        except KafkaException as error:
            admin.poll(0)
            last = _reason([*heard, error.args[0]])
            mistake = _mistake(heard, key)
            if mistake:
                raise ServiceError(f"Kafka at {servers}: {mistake}") from None
            waited = time.monotonic() - began
            limit = timeout if heard else max(timeout, _SILENT)
            if waited > limit:
                raise ServiceError(
                    f"no Kafka broker answers at {servers}: {last}. Check {key}, the "
                    "security settings, and that the broker runs"
                ) from None
            if waited > _SAY_AFTER and not told:
                told = True
                say(f"no Kafka broker answers at {servers} yet: {last}. Retrying for {limit:.0f} s")
            wait = min(2 * wait, _LONGEST_WAIT, max(limit - waited, _FIRST_WAIT))


def _mistake(heard: Sequence[KafkaError], key: str) -> str:
    for error in heard:
        if error.code() in NO_LOGIN:
            return f"{_text(error)}. Check user, password and the security settings"
    codes = {e.code() for e in heard}
    passing = any("Temporary failure" in e.str() for e in heard)
    if codes == _UNKNOWN_HOST and not passing:
        return f"{_reason(heard)}. Check {key}"
    return ""


def _reason(heard: Sequence[KafkaError]) -> str:
    """The first error that is more specific than "all brokers down"."""
    telling = [e for e in heard if e.code() != KafkaError._ALL_BROKERS_DOWN]
    return _text(telling[0]) if telling else ""


def _text(error: KafkaError) -> str:
    """librdkafka's words without the broker's name before and the client's state after them."""
    text = re.sub(r"^\S+/(bootstrap|\d+): ", "", error.str())
    return re.sub(r" \(after \d+ms in state \w+.*?\)", "", text)
