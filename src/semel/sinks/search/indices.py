"""Finds, creates and extends the indices that documents go to, and maps their fields."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.types as is_

from semel.converters.json.infer import DATE, TIMESTAMP, kind_of
from semel.core.errors import ConfigError
from semel.core.quoting import named
from semel.core.records import members
from semel.sinks.search.client import Client

GC_DELETES = 60.0
"""Seconds for which a server remembers the version of what was deleted, unless told otherwise."""
_SECONDS = {"nanos": 1e-9, "micros": 1e-6, "ms": 1e-3, "s": 1, "m": 60, "h": 3600, "d": 86400}
_PROVENANCE = {
    "__connect_topic": {"type": "keyword"},
    "__connect_partition": {"type": "integer"},
    "__connect_offset": {"type": "long"},
    "__connect_timestamp": {"type": "date"},
}


@dataclass(slots=True)
class Index:
    """An index by its own name, not an alias; ``fields`` are those it maps."""

    name: str
    fields: set[str] = field(default_factory=set)
    settings: Mapping[str, Any] = field(default_factory=dict)
    aliases: Collection[str] = ()

    @property
    def uuid(self) -> str:
        """An id that changes when the index is deleted and created again, or restored from a
        snapshot."""
        return str(self.settings.get("index.uuid", ""))

    @property
    def names(self) -> set[str]:
        """Its own name and its aliases."""
        return {self.name, *self.aliases}


def find(client: Client, name: str, where: str, *, stream: bool = False) -> Index | None:
    """Look an index up, or a data ``stream``.

    Raises:
        ConfigError: the name is an alias of several indices, or names an index instead of a data
            stream, or the reverse.
    """
    answer = client.request("GET", f"/{name}", expected=(404,), flat_settings="true")
    if answer.status == 404:
        return None
    if stream:
        return _stream(name, answer.body, where)
    if len(answer.body) != 1:
        raise ConfigError(
            f"{where}: {name} is an alias of {len(answer.body)} indices: a document's id is unique "
            "within one index only. Name one in topic.to.external.resource.mapping"
        )
    ((own, facts),) = answer.body.items()
    if facts.get("data_stream"):
        raise ConfigError(
            f"{where}: {name} is a data stream. Name an index in topic.to.external.resource."
            "mapping, or set data.stream.type and data.stream.dataset"
        )
    mapped = facts.get("mappings", {}).get("properties", {})
    return Index(own, set(mapped), facts.get("settings", {}), tuple(facts.get("aliases", ())))


def _stream(name: str, backing: Mapping[str, Any], where: str) -> Index:
    """A data stream by its backing indices. It has no id of its own."""
    fields: set[str] = set()
    newest: Mapping[str, Any] = {}
    for index, facts in sorted(backing.items()):
        if facts.get("data_stream") != name:
            raise ConfigError(
                f"{where}: {index} is an index, but data streams are to be written. Set "
                "data.stream.type=none, or give the stream another name"
            )
        fields |= facts.get("mappings", {}).get("properties", {}).keys()
        newest = facts.get("settings", {})
    return Index(name, fields, {k: v for k, v in newest.items() if k != "index.uuid"})


class MappingRefused(ConfigError):
    """The server does not take an index's mapping."""


def create(client: Client, name: str, mapping: Mapping[str, Any], where: str) -> None:
    """Create an index; the server's templates apply. Another task may be faster.

    Raises:
        MappingRefused: nothing has been done.
        ConfigError: the index cannot be created.
    """
    body = {"mappings": {"properties": dict(mapping)}}
    answer = client.request("PUT", f"/{name}", body, expected=(400,))
    if answer.status == 400 and answer.kind != "resource_already_exists_exception":
        of_mapping = answer.kind == "mapper_parsing_exception" or _is_full(answer.reason)
        kind = MappingRefused if of_mapping else ConfigError
        raise kind(f"{where}: index {named(name)} cannot be created: {answer.reason}")


def create_stream(client: Client, name: str, mapping: Mapping[str, Any], where: str) -> None:
    """Create a data stream from the server's template, and map its fields. Another task may be
    faster.

    Raises:
        ConfigError: there is no template.
    """
    answer = client.request("PUT", f"/_data_stream/{name}", expected=(400,))
    if answer.status == 400 and answer.kind != "resource_already_exists_exception":
        raise ConfigError(
            f"{where}: data stream {named(name)} cannot be created: {answer.reason}. Create an "
            "index "
            'template with "data_stream": {} whose index_patterns match it'
        )
    if mapping:
        body = {"properties": dict(mapping)}
        client.request("PUT", f"/{name}/_mapping", body, expected=(400,))


def extend(client: Client, index: Index, mapping: Mapping[str, Any]) -> None:
    """Add fields; one by one if the server refuses them together, because another task may have
    mapped some of them differently, or there is not room for all. Then the server judges each
    document."""

    def refusal(fields: Mapping[str, Any]) -> str | None:
        path, body = f"/{index.name}/_mapping", {"properties": dict(fields)}
        answer = client.request("PUT", path, body, expected=(400,))
        return answer.reason if answer.status == 400 else None

    if refusal(mapping) is None:
        index.fields |= mapping.keys()
        return
    for name, kind in mapping.items():
        if _is_full(refusal({name: kind}) or ""):
            return  # the others are tried again with later records: there may be room by then
        index.fields.add(name)


def _is_full(reason: str) -> bool:
    return "limit of total fields" in reason.lower()


def check(index: Index, where: str, *, durable: bool, deletes: bool) -> None:
    """Check that the index keeps what the guarantee relies on.

    Raises:
        ConfigError: it may forget acknowledged documents, or the versions of deleted ones.
    """
    if durable and index.settings.get("index.translog.durability") == "async":
        raise ConfigError(
            f"{where}: index {named(index.name)} has index.translog.durability=async: a crash of "
            "the server could lose documents that it has acknowledged. Set it to request, or "
            "declare delivery=at-most-once"
        )
    kept = index.settings.get("index.gc_deletes")
    if deletes and kept is not None and _seconds(kept) < GC_DELETES:
        raise ConfigError(
            f"{where}: index {named(index.name)} has index.gc_deletes={kept}, so that an older "
            "version could be written again soon after a delete. Set it to 60s or more, or set "
            "behavior.on.null.values=ignore"
        )


def _seconds(text: str) -> float:
    match = re.fullmatch(r"(-?\d+)([a-z]*)", text.strip().lower())
    return int(match[1]) * _SECONDS.get(match[2], 1) if match else GC_DELETES


# The mapping of fields

_TIME = re.compile(r"[0-9-]{10}(T[0-9:.]+(Z|[+-]\d\d:\d\d)?)?")
_LOOKED_AT = 100
"""How many texts decide about the type of their field."""
_SIMPLE = {
    pa.int8(): "byte",
    pa.uint8(): "short",
    pa.int16(): "short",
    pa.uint16(): "integer",
    pa.int32(): "integer",
    pa.uint32(): "long",
    pa.int64(): "long",
    pa.uint64(): "unsigned_long",
    pa.bool_(): "boolean",
    pa.float16(): "float",
    pa.float32(): "float",
}
_TEXT = {"type": "text", "fields": {"keyword": {"type": "keyword", "ignore_above": 256}}}


def mapping(
    columns: Mapping[str, pa.DataType], provenance: Mapping[str, str], *, derive: bool
) -> dict[str, Any]:
    """The mapping of a topic's fields: of all, or (without ``derive``) of provenance alone, which
    comes first: an index may not have room for all."""
    fields = properties(pa.schema(list(columns.items()))) if derive else {}
    own = {name: _PROVENANCE[metadata] for metadata, name in provenance.items()}
    return own | fields | own


def properties(fields: Iterable[pa.Field]) -> dict[str, Any]:
    """The mapping of fields; the server chooses the types of those whose Arrow type does not decide
    it."""
    kinds = {f.name: _property(f.type) for f in fields}
    return {name: kind for name, kind in kinds.items() if kind}


def told(values: pa.Array) -> pa.DataType:
    """The type of values without a schema: a field that has only been null has none yet, and texts
    may all be times that a date field takes."""
    if values.null_count == len(values):
        return pa.null()
    if is_.is_string(values.type):
        texts = values.drop_null()[:_LOOKED_AT].to_pylist()
        dates = all(_TIME.fullmatch(t) and kind_of(t) in (DATE, TIMESTAMP) for t in texts)
        return pa.timestamp("ms") if dates else values.type
    if not is_.is_struct(values.type):
        return values.type
    return pa.struct([(field.name, told(inner)) for field, inner, _ in members(values)])


def _property(kind: pa.DataType) -> dict[str, Any] | None:
    if kind in _SIMPLE:
        return {"type": _SIMPLE[kind]}
    if isinstance(kind, pa.BaseExtensionType):
        return {"type": "keyword"} if isinstance(kind, pa.UuidType) else None
    if is_.is_dictionary(kind):
        return _property(kind.value_type)
    if is_.is_floating(kind) or is_.is_decimal(kind):
        return {"type": "double"}
    if is_.is_string(kind) or is_.is_large_string(kind):
        return dict(_TEXT)
    if is_.is_timestamp(kind) or is_.is_date(kind):
        return {"type": "date"}
    if is_.is_time(kind):
        return {"type": "keyword"}
    if is_.is_binary(kind) or is_.is_large_binary(kind) or is_.is_fixed_size_binary(kind):
        return {"type": "binary"}
    if is_.is_struct(kind):
        return {"properties": properties(kind)}
    if is_.is_map(kind):
        return {"type": "object"}
    return _property(kind.value_type) if is_.is_nested(kind) else None
