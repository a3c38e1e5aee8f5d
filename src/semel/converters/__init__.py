"""Converters: bytes in Kafka to typed Arrow columns. One module a format."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points

from semel.converters.base import Converter, Decoded, Failure
from semel.errors import ConfigError

__all__ = ["GROUP", "Converter", "Decoded", "Failure", "create", "find", "full_name"]

GROUP = "semel.converters"
"""The entry point group of converters from elsewhere: name -> a :class:`Converter` class."""

_OURS = {
    "org.apache.kafka.connect.json.JsonConverter": "semel.converters.json:JsonConverter",
    "org.apache.kafka.connect.storage.StringConverter": "semel.converters.string:StringConverter",
    "org.apache.kafka.connect.converters.ByteArrayConverter": (
        "semel.converters.bytearray:ByteArrayConverter"
    ),
}

_MISSING = ("avro", "protobuf", "jsonschema")


def find(class_name: str, *, where: str) -> type[Converter]:
    """The converter of a class name, Kafka Connect's full one or the short one.

    Raises:
        ConfigError: there is none, or it cannot be loaded.
    """
    name = class_name.strip()
    others = {entry.name: entry for entry in entry_points(group=GROUP)}
    ours = {full: EntryPoint(full, path, GROUP) for full, path in _OURS.items()}
    ours |= {full.rpartition(".")[2]: entry for full, entry in ours.items()}
    entry = ours.get(name) or others.get(name)
    if entry is None:
        raise ConfigError(f"{where}={class_name!r}: {_unknown(name, [*ours, *others])}")
    try:
        found = entry.load()
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{where}={class_name!r}: cannot load {entry.value}: {error}") from error
    if not (isinstance(found, type) and issubclass(found, Converter)):
        raise ConfigError(f"{where}={class_name!r}: {entry.value} is not a semel Converter")
    return found


def full_name(class_name: str) -> str:
    """The class that a name means: of our own, Kafka Connect's full one."""
    name = class_name.strip()
    return next((full for full in _OURS if full.rpartition(".")[2] == name), name)


def create(
    class_name: str,
    config: Mapping[str, str],
    *,
    is_key: bool,
    where: str,
    evolve: bool = False,
) -> Converter:
    """Build a converter.

    Args:
        class_name: as in ``value.converter``.
        config: what stands under ``value.converter.``, without that prefix; see ``KEYS`` of the
            result for what it reads.
        is_key: whether it decodes keys.
        where: the setting, ``value.converter``, for error messages.
        evolve: whether fields that the sink does not know are wanted too.

    Raises:
        ConfigError: an unknown converter, or one that cannot be configured like this.
    """
    found = find(class_name, where=where)
    return found.configured(config, is_key=is_key, where=where, evolve=evolve)


def _unknown(name: str, known: list[str]) -> str:
    listed = "available are " + ", ".join(sorted({k.rpartition(".")[2] for k in known}))
    short = name.rpartition(".")[2].lower()
    if any(format_ in short for format_ in _MISSING):
        return f"this format is not available yet; {listed}"
    near = difflib.get_close_matches(name, known, n=1)
    return f"no such converter{f'; did you mean {near[0]}?' if near else ''}; {listed}"
