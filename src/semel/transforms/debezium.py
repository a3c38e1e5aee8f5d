"""Debezium's change events, and its transforms: ExtractNewRecordState replaces events with their
rows, ExtractChangedRecordState tells in headers which fields an update changes, and HeaderToValue
makes fields of headers.

A change event holds a row before and after a change, and what happened to it: ``op`` is ``c``
(create), ``u`` (update), ``r`` (read by a snapshot), ``d`` (delete) or ``t`` (truncate).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.config import key
from semel.converters.base import Failure
from semel.converters.json.columns import CONNECT, JSON
from semel.converters.json.envelope import PayloadReaders
from semel.converters.json.facts import facts_as_whole, facts_in
from semel.converters.json.merge import Part, together
from semel.converters.json.numbers import changed, fractions
from semel.converters.json.text import place
from semel.core.errors import misconfigured
from semel.core.quoting import named
from semel.core.records import DATA_EXCEPTION
from semel.transforms.base import (
    Batch,
    Contents,
    Refused,
    Transform,
    flags,
    nulled,
    reasons,
    valid,
)
from semel.transforms.fields import Defaults
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
from semel.transforms.texts import java_text

_EVENT = frozenset({"before", "after", "source", "op"})
_WITH_A_ROW = ("c", "u", "r")
ENVELOPE_SUFFIX = ".Envelope"
"""How the names of their schemas end."""
_TRANSACTION = ("id", "data_collection_order", "total_order")
_AT_THE_TOP = ("op", "ts_ms", "ts_us", "ts_ns")
_DELETED = "__deleted"


@dataclass(frozen=True, slots=True)
class Reference:
    """A field of an event to add: where it is, and the name of the new field or header."""

    place: str
    field: str
    name: str


def references(prefix: str, texts: Sequence[str]) -> list[Reference]:
    """What ``add.fields`` or ``add.headers`` name.

    Raises:
        ValueError: one has two new names.
    """
    parsed = []
    for text in texts:
        path, *renamed = text.split(":")
        if len(renamed) > 1:
            raise ValueError(f"Unexpected field name: {text}")
        steps = path.split(".")
        field = steps[0] if len(steps) == 1 else steps[1]
        place = steps[0] if len(steps) > 1 else _place(field)
        own = field if len(steps) == 1 else f"{place}_{field}"
        parsed.append(Reference(place, field, prefix + (renamed[0] if renamed else own)))
    return parsed


def _place(field: str) -> str:
    if field in _AT_THE_TOP:
        return ""
    return "transaction" if field in _TRANSACTION else "source"


@dataclass(frozen=True)
class ExtractNewRecordStateConfig(Defaults):
    """The keys of ExtractNewRecordState, including those of Debezium 1 and 2."""

    mode: str = key(
        "delete.tombstone.handling.mode",
        "tombstone",
        "What happens to deletes and tombstones. drop: both are dropped; tombstone or "
        "delete-to-tombstone: a delete becomes a tombstone, and tombstones are dropped; rewrite: "
        "a delete becomes its last row with __deleted, and tombstones are dropped; "
        "rewrite-with-tombstone: like rewrite, but tombstones are kept.",
        choices=("drop", "tombstone", "rewrite", "rewrite-with-tombstone", "delete-to-tombstone"),
    )
    drop_tombstones: bool | None = key(
        "drop.tombstones", None, "Debezium 1 and 2: whether tombstones are dropped (the default)."
    )
    delete_mode: str = key(
        "delete.handling.mode",
        "",
        "Debezium 1 and 2: deletes are dropped (drop, the default), become tombstones (none) or "
        "rows with __deleted (rewrite).",
        choices=("", "drop", "rewrite", "none"),
    )
    add_fields: tuple[str, ...] = key(
        "add.fields", (), "Fields of the event to add, such as op,source.ts_ms,table:from_table."
    )
    fields_prefix: str = key(
        "add.fields.prefix", "__", "What their names begin with.", may_be_empty=True
    )
    add_headers: tuple[str, ...] = key("add.headers", (), "The same, as headers.")
    headers_prefix: str = key(
        "add.headers.prefix", "__", "What their names begin with.", may_be_empty=True
    )
    route_by: str = key(
        "route.by.field", "", "The field of the row that holds the topic to send the record to."
    )
    drop_header: str = key(
        "drop.fields.header.name", "", "The header that lists fields to drop from the row."
    )
    drop_from_key: bool = key(
        "drop.fields.from.key", False, "Whether they are dropped from the key, too."
    )
    drop_optional: bool = key(
        "drop.fields.keep.schema.compatible", True, "Whether only optional fields are dropped."
    )

    @property
    def is_legacy(self) -> bool:
        """Whether the keys of Debezium 1 and 2 decide."""
        return self.drop_tombstones is not None or bool(self.delete_mode)

    @property
    def keeps_tombstones(self) -> bool:
        """Whether tombstones pass."""
        if self.is_legacy:
            return self.drop_tombstones is False
        return self.mode == "rewrite-with-tombstone"

    @property
    def drops_deletes(self) -> bool:
        """Whether deletes are dropped."""
        return (self.delete_mode or "drop") == "drop" if self.is_legacy else self.mode == "drop"

    @property
    def rewrites(self) -> bool:
        """Whether deletes become rows, and all rows get ``__deleted``."""
        if self.is_legacy:
            return self.delete_mode == "rewrite"
        return self.mode.startswith("rewrite")


class ExtractNewRecordState(Transform):
    """See Debezium's class of this name. Records that are not change events pass unchanged."""

    section = ExtractNewRecordStateConfig
    config: ExtractNewRecordStateConfig
    changes_headers = True
    moves_numbers = True

    def __init__(self, config: ExtractNewRecordStateConfig) -> None:
        super().__init__(config)
        self._fields = references(config.fields_prefix, config.add_fields)
        self._headers = references(config.headers_prefix, config.add_headers)
        self._opener = Opener(keeps_numbers=True)

    @property
    def routes(self) -> bool:
        return bool(self.config.route_by)

    @property
    def needs_key(self) -> bool:
        return self.config.drop_from_key

    @property
    def changes_key(self) -> bool:
        return self.config.drop_from_key

    @property
    def needs_headers(self) -> bool:
        return bool(self.config.drop_header)

    def apply(self, batch: Batch) -> Batch:
        events = batch.values.array
        if not are_events(batch.values):
            stays = valid(events) | self.config.keeps_tombstones
            return self._with_headers(batch, {}).only(stays)
        event = columns(events)
        batch = self._with_headers(batch, event)
        after = self._opener.structs(event["after"], "after")
        before = self._opener.structs(event["before"], "before")
        there, was = valid(after), valid(before)
        tombstone = ~valid(events)
        delete = ~there & was
        keep = there | (delete & (not self.config.drops_deletes))
        keep |= tombstone & self.config.keeps_tombstones
        dropped = self._dropped(batch)
        rows = self._rows(batch.values, event, after, before, delete, dropped)
        batch = replace(batch, values=rows)
        if self.config.drop_from_key and batch.keys.is_struct:
            kept = self._without(columns(batch.keys.array), dropped)
            batch = replace(batch, keys=batch.keys.holding(struct(kept, batch.keys.array)))
        if self.config.route_by:
            batch = replace(batch, topics=self._routed(batch.topics, after, before, delete))
        return batch.only(keep)

    def _rows(
        self,
        contents: Contents,
        event: Columns,
        after: pa.Array,
        before: pa.Array,
        delete: np.ndarray,
        dropped: Mapping[str, np.ndarray],
    ) -> Contents:
        rows = after
        if self.config.rewrites and delete.any():
            rows = either(after, before, delete)
        fields = columns(rows, defaults=self.config.rewrites and self.config.replace_nulls)
        if self.config.rewrites:
            texts = pc.if_else(pa.array(delete), "true", "false")
            refuse_duplicate(_DELETED, fields, contents, rows)
            fields[_DELETED] = column(_DELETED, texts)
        for reference in self._fields:
            value = self._value(reference, event)
            if value is not None:
                refuse_duplicate(reference.name, fields, contents, rows)
                fields[reference.name] = value
        fields = self._without(fields, dropped)
        return Contents(
            struct(fields, rows),
            contents.has_schema,
            facts_as_whole(event["before" if delete.all() else "after"].field),
        )

    def _dropped(self, batch: Batch) -> Mapping[str, np.ndarray]:
        """The fields that headers list, and the records that lose each."""
        dropped: dict[str, np.ndarray] = {}
        if batch.headers is None or not self.config.drop_header:
            return dropped
        chosen = np.asarray(pc.equal(header_keys(batch.headers), self.config.drop_header))
        values = batch.headers.flatten().field("value").filter(pa.array(chosen))
        seen = np.zeros(len(batch), np.bool_)
        for row, text in zip(parents(batch.headers)[chosen], values.to_pylist(), strict=True):
            for name in () if seen[row] else listed(text):
                dropped.setdefault(name, np.zeros(len(batch), np.bool_))[row] = True
            seen[row] = True
        return dropped

    def _without(self, fields: Columns, dropped: Mapping[str, np.ndarray]) -> Columns:
        """The fields without those that are dropped."""
        kept = dict(fields)
        for name, rows in dropped.items():
            child = kept.get(name)
            if child is None or (self.config.drop_optional and not child.field.nullable):
                continue
            if rows.all():
                del kept[name]
            else:
                nullable = child.field.with_nullable(True)
                part = Column(nullable, nulled(child.array, rows), child.absent)
                kept[name] = part.lacked(pa.array(rows))
        return kept

    def _value(self, reference: Reference, event: Columns) -> Column | None:
        """A field of an event; one that other transforms have added may be at the top."""
        inside = event.get(reference.place) if reference.place else None
        opened = inside and self._opener.opened(inside, reference.place)
        value = columns(opened.array).get(reference.field) if opened else None
        value = value or event.get(reference.field)
        return value and Column(value.field.with_nullable(True), value.array)

    def _with_headers(self, batch: Batch, event: Columns) -> Batch:
        """Add fields of the events as headers. A tombstone gets only the operation."""
        headers = batch.headers
        if headers is None or not self._headers:
            return batch
        tombstone = ~valid(batch.values.array)
        nothing = pa.nulls(len(batch), pa.string())
        for reference in self._headers:
            value = self._value(reference, event)
            has = np.full(len(batch), value is not None) & ~tombstone
            text = nothing if value is None else java_text(value.array)
            if reference.field == "op":
                text = pc.if_else(pa.array(tombstone), "d", text)
                has |= tombstone
            if has.any():
                headers = where(has, added(headers, reference.name, text), headers)
        return replace(batch, headers=headers)

    def _routed(
        self, topics: pa.Array, after: pa.Array, before: pa.Array, delete: np.ndarray
    ) -> pa.Array:
        name = self.config.route_by
        children = [columns(state).get(name) for state in (after, before)]
        routed = topics
        for child, state, applies in zip(children, (after, before), (~delete, delete), strict=True):
            chosen = applies & valid(state)
            if not chosen.any():
                continue
            if child is None:
                why = f"{named(name)} is not a valid field name"
                raise Refused(reasons(np.flatnonzero(chosen), why))
            if not pa.types.is_string(child.type) and (chosen & valid(child.array)).any():
                why = f"Field '{name}' is not of type STRING"
                raise Refused(reasons(np.flatnonzero(chosen & valid(child.array)), why))
            texts = pc.fill_null(java_text(child.array), "")
            filled = pc.not_equal(pc.utf8_trim_whitespace(texts), "")
            routed = pc.if_else(pc.and_(pa.array(chosen), filled), texts, routed)
        return routed


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
                    _list_text([n for n, rows in differ.items() if rows[row] == expected])
                    for row in range(len(batch))
                ]
                some = added(headers, header, pa.array(lists, pa.string()))
                headers = where(updates, some, headers)
        return replace(batch, headers=headers)


def _list_text(names: Sequence[str]) -> str:
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
            has = array.is_valid()
            has = has if new.absent is None else pc.and_not(has, new.absent)
            refuse_duplicate(name, fields, of, pc.if_else(has, True, None))
            return {**fields, name: new.named(name).over(fields.get(name))}
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


def are_change_events(values: pa.Array) -> bool:
    return pa.types.is_struct(values.type) and {f.name for f in values.type} >= _EVENT


def are_events(contents: Contents) -> bool:
    """Whether values are change events, by the name of their schema or, without one, by fields."""
    by_name = (contents.name or ENVELOPE_SUFFIX).endswith(ENVELOPE_SUFFIX)
    return by_name and are_change_events(contents.array)


def listed(text: bytes | None) -> Sequence[str]:
    """The names in a header, as Kafka Connect's SimpleHeaderConverter writes a list of them."""
    try:
        names = json.loads(text or b"[]")
    except (ValueError, RecursionError):
        names = [name.strip() for name in (text or b"").decode(errors="replace").split(",")]
    return [str(name) for name in names] if isinstance(names, list) else [str(names)]


def either(after: pa.Array, before: pa.Array, delete: np.ndarray) -> pa.Array:
    """The row before a delete, the row after any other change."""
    after, before = (changed(state, fractions) for state in (after, before))
    parts = [
        Part(pa.array(np.flatnonzero(chosen)), state.take(pa.array(np.flatnonzero(chosen))))
        for state, chosen in ((after, ~delete), (before, delete))
        if chosen.any()
    ]
    rows, failures = together(parts, len(after), after.type, tells_absence=True)
    if failures:
        raise Refused({f.index: f.message for f in failures})
    return rows


class Unwrapper:
    """Makes rows and deletes of change events, for sinks that take them as Debezium's sink does: an
    event becomes the row after the change, or null after a delete, like the tombstone that usually
    follows. Truncations and events without a row become null, too. It remembers how the rows of a
    schema are read."""

    def __init__(self, connector: str) -> None:
        self._connector = connector
        self._readers = PayloadReaders()

    def unwrap(self, events: pa.StructArray) -> tuple[pa.Array, list[Failure]]:
        """The row after each change, null where there is none.

        Raises:
            ConfigError: the events have no schemas, so what a row consists of is not known.
        """
        fields = dict(zip([f.name for f in events.type], events.flatten(), strict=True))
        operations, after = fields["op"], fields["after"]
        metadata = events.type.field("after").metadata or {}
        has_types = pa.types.is_struct(after.type)
        if CONNECT not in metadata and not has_types:
            raise misconfigured(
                "value.converter.schemas.enable",
                f"connector {self._connector}: the values are Debezium change events (before, "
                "after, op) without schemas. Let the source write them with schemas "
                "(value.converter.schemas.enable=true there and here), or unwrap them there: "
                "transforms.unwrap.type=io.debezium.transforms.ExtractNewRecordState",
            )
        unknown = pc.indices_nonzero(pc.and_(events.is_valid(), operations.is_null()))
        why = "the change event has no op"
        failures = [Failure(row, DATA_EXCEPTION, why) for row in unknown.to_pylist()]
        text = after.storage if isinstance(after, pa.ExtensionArray) else after
        has_row = pc.and_(pc.is_in(operations, pa.array(_WITH_A_ROW)), text.is_valid())
        if has_types:
            return nulled(after, ~flags(has_row)), failures
        rows = pc.indices_nonzero(has_row)
        block, refused = self._readers[metadata[CONNECT]].read(text.take(rows).cast(pa.string()))
        at = rows.to_numpy()
        failures += [Failure(int(at[f.index]), f.exception, f"after: {f.message}") for f in refused]
        return place(block, rows, len(events)), sorted(failures, key=lambda f: f.index)
