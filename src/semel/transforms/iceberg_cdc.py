"""Change events for Iceberg tables: ``iceberg.tables.cdc-field``, and the transforms of Iceberg's
project that make the field."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.config import NoKeys, key
from semel.transforms.base import Batch, Contents, Transform, flags, nulled, refuse, valid
from semel.transforms.debezium import are_change_events, either
from semel.transforms.structs import Column, Columns, Opener, column, columns, refuse_all, struct
from semel.transforms.texts import java_text

FIELD = "iceberg.tables.cdc-field"
_CDC = "_cdc"
_PLACEHOLDER = re.compile(r"(\{db\}|\{table\})")


class Changes(Transform):
    """Turns records whose field says ``D`` into tombstones, and makes the whole value the key, from
    which the sink takes the id columns: so records become upserts and deletes by key. Records
    without a value are left out."""

    changes_key = True

    def __init__(self, field: str) -> None:
        self._path = field.split(".")
        self._opener = Opener()

    def apply(self, batch: Batch) -> Batch:
        there = valid(batch.values.array)
        if not batch.values.is_struct:
            refuse(there, "the value has no fields")
        batch = batch.only(there)
        if not len(batch):
            return batch
        rows = batch.values.array
        operation = _text(self._opener.field(rows, self._path), len(batch))
        text = pc.utf8_upper(pc.utf8_trim_whitespace(operation))
        gone = flags(pc.fill_null(pc.starts_with(text, "D"), False))
        remaining = nulled(rows, gone)
        return replace(batch, keys=batch.values, values=batch.values.holding(remaining))


@dataclass(frozen=True)
class DebeziumTransformConfig:
    """The keys of DebeziumTransform."""

    target: str = key("cdc.target.pattern", "{db}.{table}", "What _cdc.target is made of.")


class DebeziumTransform(Transform):
    """See the class of this name in Iceberg's project: the row of a change event, with ``_cdc``."""

    section = DebeziumTransformConfig
    needs_key = True

    def __init__(self, config: DebeziumTransformConfig) -> None:
        super().__init__(config)
        self._target = _PLACEHOLDER.split(config.target or "{db}.{table}")
        self._opener = Opener()

    def apply(self, batch: Batch) -> Batch:
        events = batch.values.array
        there = valid(events)
        if not there.any():
            return batch
        if not are_change_events(events):
            refuse(there, "the value is not a change event")
        event = columns(events)
        before, after, source = (
            self._opener.structs(event[name], name) for name in ("before", "after", "source")
        )
        op = java_text(event["op"].array)
        delete = np.asarray(pc.fill_null(pc.equal(op, "d"), False))
        rows = either(after, before, delete) if delete.any() else after
        if batch.values.has_schema:
            refuse(there & ~valid(rows), "the change event has no row")
        cdc = self._cdc(batch, event, columns(source), op)
        values = struct({**columns(rows), _CDC: column(_CDC, cdc)}, rows)
        batch = replace(batch, values=Contents(values, batch.values.has_schema))
        return batch.only(~there | valid(rows))

    def _cdc(self, batch: Batch, event: Columns, source: Columns, op: pa.Array) -> pa.Array:
        database = _text(source.get("schema") or source.get("db"), len(batch))
        table = _text(source.get("table"), len(batch))
        texts = {"{db}": database, "{table}": table}
        target = pc.binary_join_element_wise(*(texts.get(p, p) for p in self._target), "")
        parts = {
            "op": column("op", _letters(op, "u", "d")),
            "ts": self._time(batch, event),
            "source": column("source", pc.binary_join_element_wise(database, table, ".")),
            "target": column("target", target),
        }
        if batch.offsets is not None:
            parts["offset"] = column("offset", batch.offsets)
        if pa.types.is_struct(batch.keys.array.type):
            parts["key"] = column("key", batch.keys.array)
        return struct(parts, batch.values.array)

    def _time(self, batch: Batch, event: Columns) -> Column:
        child = event.get("ts_ms")
        if child is None:
            return column("ts", pa.nulls(len(batch), pa.int64()))
        if batch.values.has_schema:
            if not pa.types.is_int64(child.type):
                refuse_all(child.array, "Field 'ts_ms' is not of type INT64")
                return column("ts", pa.nulls(len(batch), pa.timestamp("ms", "UTC")))
            return column("ts", child.array.cast(pa.timestamp("ms", "UTC")))
        return child.named("ts")


class DmsTransform(Transform):
    """See the class of this name in Iceberg's project: ``data`` of a record of AWS DMS, with
    ``_cdc``. Other records are left out."""

    def __init__(self, config: NoKeys) -> None:
        super().__init__(config)
        self._opener = Opener()

    def apply(self, batch: Batch) -> Batch:
        array = batch.values.array
        there = valid(array)
        if not there.any():
            return batch
        fields = columns(array) if batch.values.is_struct else {}
        data, facts = (self._opened(fields, name) for name in ("data", "metadata"))
        if data is None or facts is None:
            return batch.only(~there)
        metadata = columns(facts)
        count = len(batch)
        op = _text(metadata.get("operation"), count)
        names = [_text(metadata.get(f"{n}-name"), count) for n in ("schema", "table")]
        names = [pc.fill_null(texts, "null") for texts in names]
        at = metadata.get("timestamp")
        parts = {
            "op": column("op", _letters(op, "update", "delete")),
            "ts": at.named("ts") if at else column("ts", pa.nulls(count, pa.string())),
            "source": column("source", pc.binary_join_element_wise(*names, ".")),
        }
        cdc = struct(parts, data)
        values = struct({**columns(data), _CDC: column(_CDC, cdc)}, data)
        batch = replace(batch, values=Contents(values, batch.values.has_schema))
        return batch.only(~there | (valid(data) & valid(facts)))

    def _opened(self, fields: Columns, where: str) -> pa.Array | None:
        inside = fields.get(where)
        opened = inside and self._opener.opened(inside, where)
        return opened.array if opened else None


@dataclass(frozen=True)
class CopyValueConfig:
    """The keys of CopyValue."""

    source: str = key("source.field", doc="The field to copy.")
    target: str = key("target.field", doc="The name of the copy.")


class CopyValue(Transform):
    """See the class of this name in Iceberg's project: a field under another name, too."""

    section = CopyValueConfig
    config: CopyValueConfig

    def apply(self, batch: Batch) -> Batch:
        array = batch.values.array
        if not batch.values.is_struct:
            return batch
        fields = columns(array)
        child = fields.get(self.config.source) or column("", pa.nulls(len(batch)))
        fields[self.config.target] = child.named(self.config.target).everywhere()
        return replace(batch, values=batch.values.holding(struct(fields, array)))


def _text(child: Column | None, count: int) -> pa.Array:
    return pa.nulls(count, pa.string()) if child is None else java_text(child.array)


def _letters(op: pa.Array, update: str, delete: str) -> pa.Array:
    """Iceberg's letters for operations."""
    cases = pc.make_struct(pc.equal(op, update), pc.equal(op, delete))
    return pc.case_when(cases, "U", "D", pa.scalar("I"))
