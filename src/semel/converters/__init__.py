"""Converters: bytes in Kafka to typed Arrow columns. One module or folder per format."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib.metadata import EntryPoint

from semel.config import Definition, below, extras
from semel.config.extras import entries
from semel.converters.base import Converter, Decoded, Failure, Unwritable
from semel.core.errors import ConfigError, misconfigured

__all__ = [
    "GROUP",
    "Converter",
    "Decoded",
    "Failure",
    "Unwritable",
    "create",
    "declared",
    "find",
    "full_name",
    "names",
]

GROUP = "semel.converters"
"""The entry point group of third-party converters: name -> a :class:`Converter` class."""

_KAFKA, _CONFLUENT = "org.apache.kafka.connect.", "io.confluent.connect."
_APICURIO = "io.apicurio.registry.utils.converter."
_NUMBERS = ("Boolean", "Double", "Float", "Integer", "Long", "Short")
_OURS = {
    f"{_KAFKA}json.JsonConverter": "semel.converters.json.converter:JsonConverter",
    f"{_KAFKA}storage.StringConverter": "semel.converters.primitives:StringConverter",
    **{
        f"{_KAFKA}converters.{name}Converter": f"semel.converters.primitives:{name}Converter"
        for name in ("ByteArray", *_NUMBERS)
    },
    f"{_CONFLUENT}avro.AvroConverter": "semel.converters.avro:AvroConverter",
    f"{_APICURIO}AvroConverter": "semel.converters.avro:ApicurioAvroConverter",
    f"{_CONFLUENT}json.JsonSchemaConverter": "semel.converters.jsonschema:JsonSchemaConverter",
    f"{_CONFLUENT}protobuf.ProtobufConverter": "semel.converters.protobuf:ProtobufConverter",
    f"{_APICURIO}ProtobufConverter": "semel.converters.protobuf:ApicurioProtobufConverter",
}
_OWN_FORMAT = f"{_APICURIO}ExtJsonConverter"


def find(class_name: str, *, where: str) -> type[Converter]:
    """The converter class for a name: Kafka Connect's full class name, or the short one.

    Raises:
        ConfigError: no converter has this name, or it cannot be loaded.
    """
    paths, setting = _known(), f"{where}={class_name!r}"
    try:
        name = full_name(class_name)
    except ConfigError as error:
        raise misconfigured(where, f"{setting}: {error}") from None
    if name not in paths:
        raise misconfigured(where, f"{setting}: {_unknown(name, list(paths))}")
    entry = EntryPoint(name, paths[name], GROUP)
    try:
        loaded = entry.load()
    except (ImportError, AttributeError) as error:
        raise misconfigured(where, f"{setting}: cannot load {entry.value}: {error}") from error
    if not (isinstance(loaded, type) and issubclass(loaded, Converter)):
        raise misconfigured(where, f"{setting}: {entry.value} is not a semel Converter")
    return loaded


def _known() -> dict[str, str]:
    return {**entries(GROUP), **_OURS}


def declared(raw: Mapping[str, str]) -> Iterator[Definition]:
    """The keys of the converters that a configuration names."""
    for where in ("key.converter", "value.converter"):
        if raw.get(where, "").strip():
            with suppress(ConfigError):  # there is no such class
                yield from below(f"{where}.", None, find(raw[where], where=where).section)


def names() -> frozenset[str]:
    """The full names of all converters."""
    return frozenset(_known())


def full_name(class_name: str) -> str:
    """The full class name that a name stands for; for semel's own converters, Kafka Connect's.

    Raises:
        ConfigError: the name is ambiguous.
    """
    return extras.full_name(class_name.strip(), _known(), "Converter")


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
        config: the keys under ``value.converter.``, without that prefix; see ``section`` of the
            result for those it reads.
        is_key: whether it decodes keys.
        where: the setting, ``value.converter``, for error messages.
        evolve: whether fields that the sink does not know are wanted too.

    Raises:
        ConfigError: an unknown converter, or one that cannot be configured like this.
    """
    converter_class = find(class_name, where=where)
    return converter_class.configured(config, is_key=is_key, where=where, evolve=evolve)


def _unknown(name: str, known: list[str]) -> str:
    shorts = sorted({full.rpartition(".")[2] for full in known})
    listed = "available are " + ", ".join(shorts)
    if name == _OWN_FORMAT:
        return (
            "it stores Kafka Connect's own schemas in Apicurio, which no other converter reads. "
            "Write JSON with JsonSchemaConverter, or with JsonConverter"
        )
    near = difflib.get_close_matches(name, [*known, *shorts], n=1)
    return f"no such converter{f'; did you mean {near[0]}?' if near else ''}; {listed}"
