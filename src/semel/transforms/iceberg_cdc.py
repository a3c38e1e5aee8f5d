"""Change events for Iceberg tables: ``iceberg.tables.cdc-field``, and the transforms of Iceberg's
project that make the field."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.config import NoKeys, key
from semel.transforms.base import Batch, Contents, Refused, Transform, reasons
from semel.transforms.change_events import are_change_events
from semel.transforms.debezium import either, valid
from semel.transforms.structs import Column, Columns, Opener, column, columns, struct
from semel.transforms.texts import java_text

FIELD = "iceberg.tables.cdc-field"
_CDC = "_cdc"
_PLACEHOLDER = re.compile(r"(\{db\}|\{table\})")


class Changes(Transform):
    """Turns records whose field says ``D`` into tombstones, and makes the whole value the key, from
    which the sink takes the id columns: so records become upserts and deletes by key. Records
    without a value are left out."""

    section = NoKeys

    def __init__(self, field: str) -> None:
        self._path = field.split(".")
        self._opener = Opener()

    @property
    def changes_key(self) -> bool:
        return True

    def apply(self, batch: Batch) -> Batch:
        there = valid(batch.values.array)
        if there.any() and not batch.values.is_struct:
            raise Refused(reasons(np.flatnonzero(there), "the value has no fields"))
        batch = batch if there.all() else batch.take(np.flatnonzero(there))
        if not len(batch):
            return batch
        rows = batch.values.array
        text = pc.utf8_upper(pc.utf8_trim_whitespace(self._operation(columns(rows))))
        gone = pc.fill_null(pc.starts_with(text, "D"), False)
        left = pc.if_else(gone, pa.scalar(None, rows.type), rows)
        return replace(batch, keys=batch.values, values=batch.values.holding(left))

    def _operation(self, found: Columns) -> pa.Array:
        count = len(next(iter(found.values())).array)
        for number, step in enumerate(self._path[:-1]):
            inside = found.get(step)
            where = ".".join(self._path[: number + 1])
            opened = inside and self._opener.opened(inside, where)
            if not opened:
                return pa.nulls(count, pa.string())
            found = columns(opened.array)
        held = found.get(self._path[-1])
        return (
            pa.nulls(count, pa.string()) if held is None else java_text(held.array, has_schema=True)
        )


@dataclass(frozen=True)
class DebeziumTransformConfig:
    """The keys of DebeziumTransform."""

    target: str = key("cdc.target.pattern", "{db}.{table}", "What _cdc.target is made of.")


class DebeziumTransform(Transform):
    """See the class of this name in Iceberg's project: the row of a change event, with ``_cdc``."""

    section = DebeziumTransformConfig

    def __init__(self, config: DebeziumTransformConfig) -> None:
        self._target = _PLACEHOLDER.split(config.target or "{db}.{table}")
        self._opener = Opener()

    @property
    def needs_key(self) -> bool:
        return True

    def apply(self, batch: Batch) -> Batch:
        events = batch.values.array
        there = valid(events)
        if not there.any():
            return batch
        if not are_change_events(events):
            raise Refused(reasons(np.flatnonzero(there), "the value is not a change event"))
        found = columns(events)
        before, after = (self._opened(found, state) for state in ("before", "after"))
        op = java_text(found["op"].array, has_schema=True)
        delete = np.asarray(pc.fill_null(pc.equal(op, "d"), False))
        rows = either(after, before, delete) if delete.any() else after
        missing = np.flatnonzero(there & ~valid(rows))
        if len(missing) and batch.values.has_schema:
            raise Refused(reasons(missing, "the change event has no row"))
        cdc = self._cdc(batch, found, op, events)
        made = struct({**columns(rows), _CDC: column(_CDC, cdc)}, rows)
        batch = replace(batch, values=Contents(made, batch.values.has_schema))
        return batch.take(np.flatnonzero(~there | valid(rows))) if len(missing) else batch

    def _opened(self, found: Columns, where: str) -> pa.Array:
        opened = self._opener.opened(found[where], where)
        return pa.nulls(len(found[where].array), pa.struct([])) if opened is None else opened.array

    def _cdc(self, batch: Batch, found: Columns, op: pa.Array, events: pa.Array) -> pa.Array:
        source = columns(self._opened(found, "source"))
        database = _text(source, "schema" if "schema" in source else "db", len(batch))
        table = _text(source, "table", len(batch))
        texts = {"{db}": database, "{table}": table}
        target = pc.binary_join_element_wise(*(texts.get(p, p) for p in self._target), "")
        letters = pc.case_when(
            pc.make_struct(pc.equal(op, "u"), pc.equal(op, "d")), "U", "D", pa.scalar("I")
        )
        parts = {
            "op": column("op", letters),
            "ts": self._time(batch, found),
            "source": column("source", pc.binary_join_element_wise(database, table, ".")),
            "target": column("target", target),
        }
        if batch.offsets is not None:
            parts["offset"] = column("offset", batch.offsets)
        if pa.types.is_struct(batch.keys.array.type):
            parts["key"] = column("key", batch.keys.array)
        return struct(parts, events)

    def _time(self, batch: Batch, found: Columns) -> Column:
        held = found.get("ts_ms")
        if held is None:
            return column("ts", pa.nulls(len(batch), pa.int64()))
        if batch.values.has_schema:
            return column("ts", held.array.cast(pa.timestamp("ms", "UTC")))
        return held.named("ts")


class DmsTransform(Transform):
    """See the class of this name in Iceberg's project: ``data`` of a record of AWS DMS, with
    ``_cdc``. Other records are left out."""

    section = NoKeys

    def __init__(self, config: NoKeys) -> None:
        self._opener = Opener()

    def apply(self, batch: Batch) -> Batch:
        given = batch.values.array
        there = valid(given)
        if not there.any():
            return batch
        found = columns(given) if batch.values.is_struct else {}
        data, facts = (self._opened(found, name) for name in ("data", "metadata"))
        if data is None or facts is None:
            return batch.take(np.flatnonzero(~there))
        known = columns(facts)
        count = len(batch)
        op = _text(known, "operation", count)
        letters = pc.case_when(
            pc.make_struct(pc.equal(op, "update"), pc.equal(op, "delete")),
            "U",
            "D",
            pa.scalar("I"),
        )
        names = [
            pc.fill_null(_text(known, f"{n}-name", count), "null") for n in ("schema", "table")
        ]
        at = known.get("timestamp")
        parts = {
            "op": column("op", letters),
            "ts": at.named("ts") if at else column("ts", pa.nulls(count, pa.string())),
            "source": column("source", pc.binary_join_element_wise(*names, ".")),
        }
        cdc = struct(parts, data)
        made = struct({**columns(data), _CDC: column(_CDC, cdc)}, data)
        whole = valid(data) & valid(facts)
        batch = replace(batch, values=Contents(made, batch.values.has_schema))
        return batch.take(np.flatnonzero(~there | whole))

    def _opened(self, found: Columns, where: str) -> pa.Array | None:
        inside = found.get(where)
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

    def __init__(self, config: CopyValueConfig) -> None:
        self._config = config

    def apply(self, batch: Batch) -> Batch:
        array = batch.values.array
        if not batch.values.is_struct:
            return batch
        found = columns(array)
        held = found.get(self._config.source) or column("", pa.nulls(len(batch)))
        found[self._config.target] = held.named(self._config.target)
        return replace(batch, values=batch.values.holding(struct(found, array)))


def _text(found: Columns, name: str, count: int) -> pa.Array:
    held = found.get(name)
    if held is None:
        return pa.nulls(count, pa.string())
    return java_text(held.array, has_schema=True)
