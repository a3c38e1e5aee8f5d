"""Finds, creates and extends the indices that documents go to."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from semel.core.errors import ConfigError
from semel.core.quoting import named
from semel.sinks.search.client import Client
from semel.sinks.search.documents import properties

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


def create(client: Client, name: str, mapping: Mapping[str, Any], where: str) -> None:
    """Create an index; the server's templates apply. Another task may be faster."""
    body = {"mappings": {"properties": dict(mapping)}}
    answer = client.request("PUT", f"/{name}", body, expected=(400,))
    if answer.status == 400 and answer.kind != "resource_already_exists_exception":
        raise ConfigError(f"{where}: index {named(name)} cannot be created: {answer.reason}")


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
    mapped some of them differently. Then the server judges each document."""
    path = f"/{index.name}/_mapping"
    answer = client.request("PUT", path, {"properties": dict(mapping)}, expected=(400,))
    if answer.status == 400 and len(mapping) > 1:
        for name, kind in mapping.items():
            client.request("PUT", path, {"properties": {name: kind}}, expected=(400,))
    index.fields |= mapping.keys()


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


def mapping(
    columns: Mapping[str, pa.DataType], provenance: Mapping[str, str], *, derive: bool
) -> dict[str, Any]:
    """The mapping of a topic's fields: of all, or (without ``derive``) of provenance alone."""
    fields = properties(_fields(columns)) if derive else {}
    return fields | {name: _PROVENANCE[metadata] for metadata, name in provenance.items()}


def _fields(columns: Mapping[str, pa.DataType]) -> Iterable[pa.Field]:
    return [pa.field(name, kind) for name, kind in columns.items()]
