"""Debezium's EventRouter: turns the rows of an outbox table into messages."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.config import key
from semel.converters.json.columns import CONNECT, JSON
from semel.converters.json.facts import facts_as_whole, facts_in
from semel.converters.json.plain import PlainReader
from semel.core.errors import misconfigured
from semel.core.patterns import check, compiled
from semel.core.quoting import named
from semel.core.records import TIMESTAMP_TYPE, Facts
from semel.transforms.base import (
    NULL_POINTER,
    Batch,
    Contents,
    Refused,
    Transform,
    each,
    flags,
    nulled,
    refuse,
    valid,
)
from semel.transforms.debezium import ENVELOPE_SUFFIX, are_events
from semel.transforms.headers import added
from semel.transforms.structs import Column, Columns, Opener, column, columns, refuse_all, struct
from semel.transforms.texts import java_text, java_texts

log = logging.getLogger(__name__)

_CONNECT = "org.apache.kafka.connect.errors.ConnectException"
_PAYLOAD = "payload"
_PLACEMENT = "table.fields.additional.placement"
_UNITS = {"s": 1000, "ms": 1, "us": 1000, "ns": 1_000_000}


def _placements(texts: tuple[str, ...]) -> None:
    if not texts:
        raise ValueError("must list fields, such as type:header. Remove it if there are none")
    for text in texts:
        parts = [part.strip() for part in text.split(":")]
        if len(parts) not in (2, 3) or parts[1].lower() not in ("header", "envelope", "partition"):
            raise ValueError(
                f"{text} must be field:header, field:envelope or field:partition, and :alias may "
                "follow"
            )


@dataclass(frozen=True)
class EventRouterConfig:
    """The keys of EventRouter."""

    invalid: str = key(
        "table.op.invalid.behavior",
        "warn",
        "What happens to updates of the table. warn, error: they are dropped, and the log says so; "
        "fatal: they are bad records.",
        choices=("warn", "error", "fatal"),
        aliases=("debezium.op.invalid.behavior",),
    )
    event_id: str = key("table.field.event.id", "id", "The field that becomes the header id.")
    event_key: str = key("table.field.event.key", "aggregateid", "The field that becomes the key.")
    event_type: str = key("table.field.event.type", "type", "Has no effect, as in Debezium.")
    timestamp: str = key(
        "table.field.event.timestamp", "", "The field that holds the time; else the event's ts_ms."
    )
    payload: str = key("table.field.event.payload", _PAYLOAD, "The field that becomes the value.")
    placement: tuple[str, ...] = key(
        _PLACEMENT,
        (),
        "Fields to add to the headers or to the value, such as type:header,type:envelope:kind. One "
        "in the envelope makes the value an object, in which payload is the payload. A field of "
        "the partition chooses that, in a source.",
        validator=_placements,
    )
    missing: str = key(
        "table.field.additional.missing",
        "error",
        "Whether an event without such a field is a bad record, or passes without it.",
        choices=("error", "ignore"),
    )
    version: str = key(
        "table.field.event.schema.version",
        "",
        "The field that holds the version of the schema, if the value has fields in the envelope.",
    )
    route_by: str = key("route.by.field", "aggregatetype", "The field that names the topic.")
    regex: str = key(
        "route.topic.regex", "(?<routedByValue>.*)", "Matches its value.", validator=check
    )
    topic: str = key(
        "route.topic.replacement", "outbox.event.${routedByValue}", "The topic, as in RegexRouter."
    )
    tombstones: bool = key(
        "route.tombstone.on.empty.payload", False, "Whether an empty payload is a tombstone."
    )
    expand: bool = key(
        "table.expand.json.payload", False, "Whether the payload is JSON that becomes an object."
    )
    nulls: str = key(
        "table.json.payload.null.behavior",
        "ignore",
        "What happens to null fields of such an object: ignore drops them, optional_bytes makes "
        "them optional bytes.",
        choices=("ignore", "optional_bytes"),
    )
    empty: str = key(
        "table.json.payload.empty.array.behavior", "ignore", "Only ignore.", choices=("ignore",)
    )


@dataclass(frozen=True, slots=True)
class _Addition:
    field: str
    place: str
    name: str


class EventRouter(Transform):
    """See Debezium's class of this name. Records that are not change events pass unchanged."""

    section = EventRouterConfig
    config: EventRouterConfig
    routes = True
    changes_headers = True
    changes_key = True
    sets_timestamp = True

    def __init__(self, config: EventRouterConfig) -> None:
        super().__init__(config)
        self._regex = compiled(config.regex)
        try:
            self._topic = self._regex.template(config.topic)
        except ValueError as error:
            where = "route.topic.replacement"
            raise misconfigured(where, f"{where}={config.topic}: {error}") from None
        self._additions = [_addition(text) for text in config.placement]
        self._opener = Opener()
        self._payloads = PlainReader(None, evolve=True, dates=False)
        self._payloads.tells_absence = True

    def apply(self, batch: Batch) -> Batch:
        there = valid(batch.values.array)
        values = batch.values
        if not are_events(values):
            self._refuse_others(values)
            return batch.only(there)
        inserted = np.flatnonzero(there & self._inserts(batch, there))
        try:
            return self._messages(batch.take(inserted)) if len(inserted) else batch.take(inserted)
        except Refused as error:
            mapped = {int(inserted[i]): why for i, why in error.reasons.items()}
            raise Refused(mapped, error.exception) from None

    def _refuse_others(self, values: Contents) -> None:
        """Refuse what is a change event by the name of its schema, but has no operation."""
        if (values.name or "").endswith(ENVELOPE_SUFFIX) and "op" not in columns(values.array):
            refuse_all(values.array, "op is not a valid field name")

    def _inserts(self, batch: Batch, there: np.ndarray) -> np.ndarray:
        """Which events are neither deletes nor updates."""
        ops = java_text(columns(batch.values.array)["op"].array)
        refuse(there & ~valid(ops), "the change event has no op", NULL_POINTER)
        updates = np.flatnonzero(np.asarray(pc.fill_null(pc.equal(ops, "u"), False)))
        if len(updates) and self.config.invalid.lower() == "fatal":
            keys = batch.keys.array.take(pa.array(updates)).to_pylist()
            why = "Unexpected update message received {}, fail."
            raise Refused(
                {int(at): why.format(key) for at, key in zip(updates, keys, strict=True)},
                "java.lang.IllegalStateException",
            )
        if len(updates):
            level = logging.WARNING if self.config.invalid.lower() == "warn" else logging.ERROR
            log.log(level, "%d unexpected updates of an outbox table were ignored", len(updates))
        return ~np.asarray(pc.is_in(ops, pa.array(["d", "u"])))

    def _messages(self, batch: Batch) -> Batch:
        event = columns(batch.values.array)
        row = self._opener.opened(event["after"], "after")
        rows = pa.nulls(len(batch)) if row is None else row.array
        why = "Only Struct objects supported for [Read Outbox Event], found: null"
        refuse(~valid(rows), why)
        return self._routed(batch, event, rows)

    def _routed(self, batch: Batch, event: Columns, rows: pa.Array) -> Batch:
        config, fields = self.config, columns(rows)
        if config.payload not in fields:
            why = f"Unable to find payload field {named(config.payload)} in event"
            refuse_all(rows, why, _CONNECT)
        times = self._times(event, fields, rows)
        needed = [config.event_id, config.route_by, config.event_key]
        additions = [a for a in self._additions if a.field in fields or config.missing != "ignore"]
        needed += [a.field for a in additions if a.place != "envelope"]
        for name in needed:
            if name not in fields:
                refuse_all(rows, f"{named(name)} is not a valid field name")
        for addition in additions:
            if addition.field not in fields:
                refuse_all(rows, f"Unable to find field {named(addition.field)} in event", _CONNECT)
        topics = self._topics(fields[config.route_by].array)
        payload = fields[config.payload]
        empty = _empty(payload.array)
        if config.expand:
            payload = self._expanded(payload)
        has_schema = batch.values.has_schema
        headers = batch.headers
        if headers is not None:
            shown = [(a.name, a.field) for a in additions if a.place == "header"]
            for name, field in [("id", config.event_id), *shown]:
                taken = fields[field].array
                text = java_text(taken) if has_schema else java_texts(taken)
                headers = added(headers, name, text)
        values, facts = payload.array, facts_as_whole(payload.field)
        if any(a.place == "envelope" for a in self._additions):
            shown = [(a.name, a.field) for a in additions if a.place == "envelope"]
            inside = {_PAYLOAD: payload.named(_PAYLOAD)}
            inside |= {name: fields[field].named(name) for name, field in shown}
            values, facts = struct(inside, rows), self._facts(event, fields)
        if config.tombstones:
            values = nulled(values, empty)
        places = [_int32(fields, a.field) for a in additions if a.place == "partition"]
        event_key = fields[config.event_key]
        return replace(
            batch,
            keys=Contents(event_key.array, has_schema, facts_as_whole(event_key.field)),
            values=Contents(values, has_schema, facts),
            topics=topics,
            headers=headers,
            times=times,
            places=places[-1] if places else batch.places,
        )

    def _facts(self, event: Columns, fields: Columns) -> Facts:
        """The name and version of the schema of values with fields in the envelope, if all of them
        have the same."""
        routed = pc.unique(fields[self.config.route_by].array).to_pylist()
        version = fields.get(self.config.version)
        versions = (
            [] if version is None else pc.unique(_int32(fields, self.config.version)).to_pylist()
        )
        name = facts_in(event["after"].field).get("name")
        facts: dict[str, Any] = {}
        if len(routed) == 1:
            before, dot, last = (name or "").rpartition(".")
            facts["name"] = f"{before}{dot}{routed[0]}.{last}" if name else routed[0]
        if len(versions) == 1:
            facts["version"] = versions[0]
        return facts

    def _times(self, event: Columns, fields: Columns, rows: pa.Array) -> pa.Array:
        stamp = event.get("ts_ms")
        times = pa.nulls(len(rows), pa.int64())
        if stamp is not None and pa.types.is_int64(stamp.type):
            times = stamp.array
        elif stamp is not None:
            refuse_all(stamp.array, "Field 'ts_ms' is not of type INT64")
        name = self.config.timestamp
        if not name:
            return times.cast(TIMESTAMP_TYPE)
        child = fields.get(name)
        if child is None:
            refuse_all(rows, f"Unable to find timestamp field {named(name)} in event", _CONNECT)
        elif pa.types.is_timestamp(child.type):
            own = child.array.cast(pa.int64())
            unit = _UNITS[child.type.unit]
            own = pc.multiply(own, unit) if child.type.unit == "s" else pc.divide(own, unit)
            return pc.coalesce(own, times).cast(TIMESTAMP_TYPE)
        elif pa.types.is_int64(child.type):
            why = "Unsupported field type INT64 (without logical schema name) for event timestamp"
            refuse_all(child.array, why, _CONNECT)
        else:
            refuse_all(child.array, f"Field '{name}' is not of type INT64")
        return times.cast(TIMESTAMP_TYPE)

    def _topics(self, names: pa.Array) -> pa.Array:
        if not pa.types.is_string(names.type):
            refuse_all(names, f"Field '{self.config.route_by}' is not of type STRING")
        why = f"field {named(self.config.route_by)}, which is to name the topic, is null"
        refuse(~valid(names), why, NULL_POINTER)
        return each(names, self._named)

    def _named(self, name: str) -> str:
        if not self._regex.fullmatch(name):
            return name
        return self._regex.first_replaced(self._topic, name)

    def _expanded(self, payload: Column) -> Column:
        """The objects that payloads of text hold."""
        if not pa.types.is_string(payload.type):
            return payload
        text = payload.array
        if self.config.tombstones:
            text = pc.if_else(pa.array(_empty(text)), pa.scalar(None, pa.string()), text)
        objects = pc.fill_null(pc.starts_with(text, "{"), True)
        name = self.config.payload
        why = f"field {named(name)} holds no JSON object, but expand.json.payload=true"
        refuse(~flags(objects), why)
        if text.null_count == len(text):
            return column(_PAYLOAD, pa.nulls(len(text), pa.struct([])))
        block, failures = self._payloads.read(text, None)
        if failures:
            raise Refused({f.index: f"field {named(name)}: {f.message}" for f in failures})
        inside = columns(block)
        typed = {n: self._typed(c, f"{name}.{n}") for n, c in inside.items()}
        kept = {n: c for n, c in typed.items() if c is not None}
        return column(_PAYLOAD, struct(kept, block), facts={"name": name})

    def _typed(self, child: Column, name: str) -> Column | None:
        """A field of an object with the schema that Debezium finds in its values; None if it finds
        none."""
        as_bytes, array = self.config.nulls == "optional_bytes", child.array
        if array.null_count == len(array):
            nothing = column(child.field.name, pa.nulls(len(array), pa.binary()))
            return replace(nothing, absent=child.absent) if as_bytes else None
        if pa.types.is_list(array.type):
            return child if pc.any(pc.greater(pc.list_value_length(array), 0)).as_py() else None
        if array.type != JSON:
            return child
        documents = array.storage.to_pylist()
        try:
            values = [None if text is None else json.loads(text) for text in documents]
            schema = _schema_of(name, values, nulls_as_bytes=as_bytes)
            if schema is None:
                return None
            fitted = [_fitted(value, schema) for value in values]
            texts = [
                text if fitting == value else json.dumps(fitting, ensure_ascii=False)
                for text, value, fitting in zip(documents, values, fitted, strict=True)
            ]
        except (ValueError, RecursionError):  # of several types, or nested too deeply
            return child
        field = child.field.with_metadata({CONNECT: json.dumps(schema)})
        array = pa.ExtensionArray.from_storage(JSON, pa.array(texts, pa.string()))
        return Column(field, array, child.absent)


def _addition(text: str) -> _Addition:
    field, place, *alias = (part.strip() for part in text.split(":"))
    return _Addition(field, place.lower(), alias[0] if alias else field)


def _int32(fields: Columns, name: str) -> pa.Array:
    """A field that must hold whole numbers. Raises Refused."""
    array = fields[name].array
    if not pa.types.is_integer(array.type):
        refuse_all(array, f"Field '{name}' is not of type INT32")
        return pa.nulls(len(array), pa.int32())
    numbers = array.cast(pa.int32(), safe=False)
    whole = pa.decimal128(20)  # holds any integer
    other = pc.not_equal(numbers.cast(whole), array.cast(whole))
    refuse(flags(pc.fill_null(other, False)), f"Field '{name}' is too large")
    return numbers


def _empty(payload: pa.Array) -> np.ndarray:
    """Which payloads are null, or blank text."""
    if not pa.types.is_string(payload.type):
        return ~valid(payload)
    blank = pc.equal(pc.ascii_trim_whitespace(payload), "")
    return np.asarray(pc.fill_null(blank, True).to_numpy(zero_copy_only=False))


def _schema_of(name: str, values: Sequence[Any], *, nulls_as_bytes: bool) -> dict[str, Any] | None:
    """Kafka Connect's schema that fits all values; None if they are null, or empty arrays.

    Raises:
        ValueError: they are of several types.
    """
    present = [v for v in values if v is not None]
    if not present:
        return {"type": "bytes", "optional": True} if nulls_as_bytes else None
    kinds = {_kind(v) for v in present}
    if len(kinds) > 1 and kinds != {"int32", "int64"}:
        raise ValueError(f"{name} is {' and '.join(sorted(kinds))}")
    kind = max(kinds)
    schema: dict[str, Any] = {"type": kind, "optional": True}
    if kind == "array":
        items = [item for value in present for item in value]
        inside = _schema_of(name, items, nulls_as_bytes=nulls_as_bytes) if items else None
        return inside and {**schema, "items": inside}
    if kind == "struct":
        names = dict.fromkeys(n for value in present for n in value)
        fields = []
        for n in names:
            nested_values = [value.get(n) for value in present if n in value]
            inside = _schema_of(f"{name}.{n}", nested_values, nulls_as_bytes=nulls_as_bytes)
            if inside is not None:
                fields.append({**inside, "field": n})
        return {**schema, "name": name, "fields": fields}
    return schema


def _fitted(value: Any, schema: Mapping[str, Any]) -> Any:
    """A value without the fields that its schema lacks."""
    if isinstance(value, list):
        return [_fitted(item, schema["items"]) for item in value]
    if isinstance(value, dict):
        fields = {f["field"]: f for f in schema["fields"]}
        return {n: _fitted(v, fields[n]) for n, v in value.items() if n in fields}
    return value


def _kind(value: Any) -> str:
    match value:
        case bool():
            return "boolean"
        case int():
            return "int32" if -(2**31) <= value < 2**31 else "int64"
        case float():
            return "double"
        case str():
            return "string"
        case list():
            return "array"
    return "struct"
