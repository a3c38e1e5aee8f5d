"""librdkafka's own judgement of settings, without a client.

A client would start threads, read files and load libraries. Setting a value in a configuration
object of librdkafka's only parses it, except for the settings that are never tried here.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterator, Mapping
from typing import Any

from confluent_kafka import cimpl

from semel.config.clients import WORKERS

_OK = 0
_MOST = 512
_POINTERS = ("_cb", "opaque", "default_topic_conf", "_conf")
_PAIRS = {
    "consumer": (
        ("session.timeout.ms", 45_000, "max.poll.interval.ms", 300_000),
        ("message.max.bytes", 1_000_000, "fetch.max.bytes", 52_428_800),
    ),
    "producer": (("linger.ms", 5, "message.timeout.ms", 300_000),),
}
"""Settings that must be no more than others, each with its default, by kind of client."""
_EVERY = (("reconnect.backoff.ms", 100, "reconnect.backoff.max.ms", 10_000),)
_IDEMPOTENT = {
    "max.in.flight.requests.per.connection": (range(1, 6), "must be set <= 5"),
    "retries": (range(1, 2**31), "must be set >= 1"),
    "acks": (("all", "-1"), "must be set to `all`"),
    "queuing.strategy": (("fifo",), "must be set to `fifo`"),
}
"""What these must be with ``enable.idempotence=true``."""
_NO_KERBEROS = "which this librdkafka was built without. Set another one, such as SCRAM-SHA-512"
_NAMES = {
    "delivery.timeout.ms": "message.timeout.ms",
    "max.in.flight": "max.in.flight.requests.per.connection",
    "message.send.max.retries": "retries",
    "queue.buffering.max.ms": "linger.ms",
    "request.required.acks": "acks",
}
"""Two names of one setting."""


def judged(kind: str, config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The settings of a ``consumer``, ``producer`` or ``admin`` client that librdkafka refuses, and
    why."""
    for name, value in config.items():
        if name in WORKERS:
            continue
        reason = _reason(name, "true" if value is True else str(value))
        if reason:
            yield name, reason
    yield from _conflicts(kind, {_NAMES.get(k, k): (k, v) for k, v in config.items()})


def _conflicts(kind: str, config: Mapping[str, tuple[str, Any]]) -> Iterator[tuple[str, str]]:
    for less, its_default, more, other_default in (*_PAIRS.get(kind, ()), *_EVERY):
        given = next((config[n][0] for n in (more, less) if n in config), None)
        smaller, larger = (
            _number(config[n][1] if n in config else default)
            for n, default in ((less, its_default), (more, other_default))
        )
        if given and smaller is not None and larger is not None and smaller > larger:
            yield given, f"`{more}` must be >= `{less}`"
    protocol, mechanism = (
        str(next((config[n][1] for n in names if n in config), default)).upper()
        for names, default in (
            (("security.protocol",), ""),
            (("sasl.mechanism", "sasl.mechanisms"), "GSSAPI"),
        )
    )
    if protocol.startswith("SASL_") and mechanism == "GSSAPI" and not _has_kerberos():
        yield "security.protocol", f"`sasl.mechanism` is GSSAPI, {_NO_KERBEROS}"
    if kind != "producer" or str(config["enable.idempotence"][1]).lower() not in ("true", "1", "t"):
        return
    for name, (allowed, wrong) in _IDEMPOTENT.items():
        if name not in config:
            continue
        given, value = config[name]
        found = _number(value) if isinstance(allowed, range) else str(value).strip().lower()
        if found is not None and found not in allowed:
            yield given, f"`{given}` {wrong} when `enable.idempotence` is true"


def _number(value: Any) -> int | None:
    """A number; None for a value that is refused as such."""
    text = str(value).strip()
    return int(text) if text.isdecimal() and len(text) < 12 else None


def _reason(name: str, value: str) -> str:
    """Why librdkafka refuses a value; empty if it does not, or if it cannot be asked."""
    if name.endswith(_POINTERS) or "\0" in name + value:
        return f'No such configuration property: "{name}"'
    library = _library()
    if library is None:
        return ""
    said = ctypes.create_string_buffer(_MOST)
    made = library.rd_kafka_conf_new()
    try:
        given = name.encode("utf-8", "replace"), value.encode("utf-8", "replace")
        code = library.rd_kafka_conf_set(made, *given, said, _MOST)
    finally:
        library.rd_kafka_conf_destroy(made)
    return "" if code == _OK else said.value.decode("utf-8", "replace").strip()


@functools.cache
def _has_kerberos() -> bool:
    library = _library()
    if library is None:
        return True
    features, size = ctypes.create_string_buffer(_MOST), ctypes.c_size_t(_MOST)
    made = library.rd_kafka_conf_new()
    try:
        library.rd_kafka_conf_get(made, b"builtin.features", features, ctypes.byref(size))
    finally:
        library.rd_kafka_conf_destroy(made)
    return b"sasl_gssapi" in features.value


@functools.cache
def _library() -> Any:
    """The client's librdkafka; None if it is linked in another way."""
    try:
        found = ctypes.CDLL(cimpl.__file__)  # with the libraries that it is linked to
        found.rd_kafka_conf_new.restype = ctypes.c_void_p
        found.rd_kafka_conf_destroy.restype = None
        found.rd_kafka_conf_destroy.argtypes = [ctypes.c_void_p]
        found.rd_kafka_conf_get.argtypes = [
            *(ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_void_p),
        ]
        found.rd_kafka_conf_set.argtypes = [
            *(ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t),
        ]
    except (AttributeError, OSError):
        return None
    return found
