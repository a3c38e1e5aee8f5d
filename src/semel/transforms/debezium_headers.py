"""Debezium's HeaderToValue and ExtractChangedRecordState: fields from headers, and headers that say
which fields an update changes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.config import key
from semel.converters.json.columns import JSON
from semel.converters.json.facts import facts_in
from semel.core.errors import misconfigured
from semel.core.quoting import named
from semel.transforms.base import Batch, Contents, Refused, Transform, valid
from semel.transforms.debezium import are_events
from semel.transforms.headers import added, header_keys, parents, where, without
from semel.transforms.structs import (
    Column,
    Columns,
    Opener,
    column,
    columns,
    refuse_duplicate,
    required,
    struct,
)


@dataclass(frozen=True)
class HeaderToValueConfig:
    """The keys of HeaderToValue."""

    headers: tuple[str, ...] = key("headers", doc="The headers to take.")
    fields: tuple[str, ...] = key(
        "fields", doc="The fields they become, in the same order; a.b is field b within a."
    )
    operation: str = key(
        "operation",
        doc="move: the headers are dropped; copy: they are kept.",
        choices=("move", "copy"),
    )

    def __post_init__(self) -> None:
        if len(self.fields) != len(self.headers):
            raise misconfigured(
                "fields",
                "'fields' config must have the same number of elements as 'headers' config.",
            )


class HeaderToValue(Transform):
    """See Debezium's class of this name. The fields hold what the headers hold as text."""

    section = HeaderToValueConfig
    config: HeaderToValueConfig
    needs_headers = True

    def __init__(self, config: HeaderToValueConfig) -> None:
        super().__init__(config)
        self._opener = Opener()

    def apply(self, batch: Batch) -> Batch:
        contents, headers = batch.values, batch.headers
        if headers is None:
            return batch
        array = required(contents, "Header field insertion", nulls=True)
        there, fields = valid(array), columns(array)
        for name, field in zip(self.config.headers, self.config.fields, strict=True):
            has, texts = _taken(headers, name)
            if (has & there).any():
                child = Column(
                    pa.field(field, texts.type), texts, None if has.all() else pa.array(~has)
                )
                fields = self._with(fields, field.split("."), child, contents, array)
        if self.config.operation == "move":
            headers = where(there, without(headers, self.config.headers), headers)
        return replace(batch, values=contents.holding(struct(fields, array)), headers=headers)

    def _with(
        self, fields: Columns, path: Sequence[str], new: Column, of: Contents, array: pa.Array
    ) -> Columns:
        """The fields with one more, unless what it is to be in is missing."""
        name, *rest = path
        if not rest:
            refuse_duplicate(name, fields, of, array)
            return {**fields, name: new.named(name)}
        outer = self._opener.opened(fields[name], name) if name in fields else None
        if outer is None:
            return fields
        inside = self._with(columns(outer.array), rest, new, of, outer.array)
        inner, field = struct(inside, outer.array), outer.field
        whole = column(name, inner, nullable=field.nullable, facts=facts_in(field))
        return {**fields, name: replace(whole, absent=outer.absent)}


def _taken(headers: pa.Array, name: str) -> tuple[np.ndarray, pa.Array]:
    """Which records have a header, and its text, null for the others.

    Raises:
        Refused: names those that have several, or one that is no text.
    """
    chosen = np.asarray(pc.fill_null(pc.equal(header_keys(headers), name), False))
    rows = parents(headers)[chosen]
    texts: list[str | None] = [None] * len(headers)
    refused: dict[int, str] = {}
    has = np.zeros(len(headers), np.bool_)
    values = headers.flatten().field("value").filter(pa.array(chosen)).to_pylist()
    for row, value in zip(rows.tolist(), values, strict=True):
        if has[row]:
            refused[row] = f"Duplicate key {named(name)}"
        has[row] = True
        try:
            texts[row] = None if value is None else value.decode()
        except UnicodeDecodeError:
            refused[row] = f"header {named(name)} is not UTF-8"
    if refused:
        raise Refused(refused)
    return has, pa.array(texts, pa.string())


@dataclass(frozen=True)
class ExtractChangedRecordStateConfig:
    """The keys of ExtractChangedRecordState."""

    changed: str = key("header.changed.name", "", "The header that lists the changed fields.")
    unchanged: str = key("header.unchanged.name", "", "The header that lists the others.")


class ExtractChangedRecordState(Transform):
    """See Debezium's class of this name. Records that are no updates pass unchanged."""

    section = ExtractChangedRecordStateConfig
    config: ExtractChangedRecordStateConfig
    changes_headers = True
    changes_contents = False
    reads_contents = True

    def __init__(self, config: ExtractChangedRecordStateConfig) -> None:
        super().__init__(config)
        self._opener = Opener()

    def apply(self, batch: Batch) -> Batch:
        headers = batch.headers
        if headers is None or not are_events(batch.values):
            return batch
        event = columns(batch.values.array)
        after, before = (self._opener.opened(event[n], n) for n in ("after", "before"))
        if after is None or before is None:
            return batch
        updates = valid(after.array) & valid(before.array)
        was, nothing = columns(before.array), pa.nulls(len(batch))
        differ = {
            name: _differ(now.array, was[name].array if name in was else nothing)
            for name, now in columns(after.array).items()
        }
        for header, expected in ((self.config.changed, True), (self.config.unchanged, False)):
            if header.strip() and updates.any():
                lists = [
                    _listed([n for n, rows in differ.items() if rows[row] == expected])
                    for row in range(len(batch))
                ]
                some = added(headers, header, pa.array(lists, pa.string()))
                headers = where(updates, some, headers)
        return replace(batch, headers=headers)


def _listed(names: Sequence[str]) -> str:
    """As Kafka Connect's SimpleHeaderConverter writes a list."""
    return json.dumps(names, separators=(",", ":"), ensure_ascii=False)


def _differ(now: pa.Array, was: pa.Array) -> np.ndarray:
    """Where values differ, as Java compares them: NaN is equal to itself."""
    pairs = zip(_plain(now).to_pylist(), _plain(was).to_pylist(), strict=True)
    return np.array([repr(a) != repr(b) for a, b in pairs], np.bool_)


def _plain(array: pa.Array) -> pa.Array:
    """JSON as text, and times, which Python may lack, as numbers."""
    if array.type == JSON:
        return array.storage
    if pa.types.is_temporal(array.type):
        return array.view(pa.int32() if array.type.bit_width == 32 else pa.int64())
    return array
