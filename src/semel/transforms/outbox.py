"""Debezium's EventRouter: turns the rows of an outbox table into messages."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.config import key
from semel.converters.json.plain import PlainReader
from semel.errors import ConfigError, Problem
from semel.patterns import check, compiled
from semel.records import TIMESTAMP_TYPE
from semel.transforms.base import Batch, Contents, Refused, Transform, each, reasons
from semel.transforms.debezium import ENVELOPE, valid
from semel.transforms.headers import added
from semel.transforms.structs import Column, Columns, Opener, column, columns, refuse_all, struct
from semel.transforms.texts import java_text

log = logging.getLogger(__name__)

_CONNECT = "org.apache.kafka.connect.errors.ConnectException"
_NULL = "java.lang.NullPointerException"
_PAYLOAD = "payload"
_PLACEMENT = "table.fields.additional.placement"
_UNITS = {"s": 1000, "ms": 1, "us": 1000, "ns": 1_000_000}


def _placements(texts: tuple[str, ...]) -> None:
    for text in texts:
        parts = [part.strip() for part in text.split(":")]
        if len(parts) not in (2, 3) or parts[1].lower() not in ("header", "envelope", "partition"):
            raise ValueError(
                f"{text} must be field:header or field:envelope, and :alias may follow"
            )
        if parts[1].lower() == "partition":
            raise ValueError(f"{text}: a field cannot choose the partition here. Remove it")


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
        "in the envelope makes the value an object, in which payload is the payload.",
        validator=_placements,
    )
    missing: str = key(
        "table.field.additional.missing",
        "error",
        "Whether an event without such a field is a bad record, or passes without it.",
        choices=("error", "ignore"),
    )
    version: str = key("table.field.event.schema.version", "", "Has no effect here.")
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
        "table.json.payload.null.behavior", "ignore", "Only ignore.", choices=("ignore",)
    )
    empty: str = key(
        "table.json.payload.empty.array.behavior", "ignore", "Only ignore.", choices=("ignore",)
    )


@dataclass(frozen=True, slots=True)
class _Addition:
    field: str
    to_header: bool
    name: str


class EventRouter(Transform):
    """See Debezium's class of this name. Records that are not change events pass unchanged."""

    section = EventRouterConfig

    def __init__(self, config: EventRouterConfig) -> None:
        self._config = config
        self._regex = compiled(config.regex)
        try:
            self._topic = self._regex.template(config.topic)
        except ValueError as error:
            where = "route.topic.replacement"
            raise ConfigError(Problem(where, f"{where}={config.topic}: {error}")) from None
        self._additions = [_addition(text) for text in config.placement]
        self._opener = Opener()
        self._payloads = PlainReader(None, evolve=True, dates=False)

    @property
    def routes(self) -> bool:
        return True

    @property
    def changes_key(self) -> bool:
        return True

    @property
    def sets_timestamp(self) -> bool:
        return True

    def apply(self, batch: Batch) -> Batch:
        there = valid(batch.values.array)
        values = batch.values
        if not values.is_struct or not {f.name for f in values.array.type} >= ENVELOPE:
            return batch if there.all() else batch.take(np.flatnonzero(there))
        inserted = np.flatnonzero(there & self._inserts(values.array, there))
        try:
            return self._messages(batch.take(inserted)) if len(inserted) else batch.take(inserted)
        except Refused as error:
            mapped = {int(inserted[i]): why for i, why in error.reasons.items()}
            raise Refused(mapped, error.exception) from None

    def _inserts(self, events: pa.Array, there: np.ndarray) -> np.ndarray:
        """Which events are neither deletes nor updates."""
        ops = columns(events)["op"].array.cast(pa.string())
        unknown = np.flatnonzero(there & ~valid(ops))
        if len(unknown):
            raise Refused(reasons(unknown, "the change event has no op"), _NULL)
        updates = np.flatnonzero(np.asarray(pc.fill_null(pc.equal(ops, "u"), False)))
        if len(updates) and self._config.invalid.lower() == "fatal":
            why = "Unexpected update message received: rows of an outbox are only inserted, fail."
            raise Refused(reasons(updates, why), "java.lang.IllegalStateException")
        if len(updates):
            level = logging.WARNING if self._config.invalid.lower() == "warn" else logging.ERROR
            log.log(level, "%d unexpected updates of an outbox table were ignored", len(updates))
        return ~np.asarray(pc.is_in(ops, pa.array(["d", "u"])))

    def _messages(self, batch: Batch) -> Batch:
        found = columns(batch.values.array)
        row = self._opener.opened(found["after"], "after")
        gone = np.arange(len(batch)) if row is None else np.flatnonzero(~valid(row.array))
        if len(gone) or row is None:
            why = "Only Struct objects supported for [Read Outbox Event], found: null"
            raise Refused(reasons(gone, why))
        return self._routed(batch, found, row.array)

    def _routed(self, batch: Batch, event: Columns, rows: pa.Array) -> Batch:
        config, fields = self._config, columns(rows)
        if config.payload not in fields:
            refuse_all(rows, f"Unable to find payload field {config.payload} in event", _CONNECT)
        times = self._times(event, fields, rows)
        wanted = [config.event_id, config.route_by, config.event_key]
        additions = [a for a in self._additions if a.field in fields or config.missing != "ignore"]
        wanted += [a.field for a in additions if a.to_header]
        for name in wanted:
            if name not in fields:
                refuse_all(rows, f"{name} is not a valid field name")
        for addition in additions:
            if addition.field not in fields:
                refuse_all(rows, f"Unable to find field {addition.field} in event", _CONNECT)
        topics = self._topics(fields[config.route_by].array)
        payload = fields[config.payload].array
        empty = _empty(payload)
        if config.expand:
            payload = self._expanded(payload)
        has_schema = batch.values.has_schema
        headers = batch.headers
        if headers is not None:
            shown = [
                ("id", config.event_id),
                *((a.name, a.field) for a in additions if a.to_header),
            ]
            for name, field in shown:
                text = java_text(fields[field].array, has_schema=has_schema)
                headers = added(headers, name, text)
        inside = {a.name: fields[a.field].named(a.name) for a in additions if not a.to_header}
        values = payload
        if any(not a.to_header for a in self._additions):
            values = struct({_PAYLOAD: _like(fields[config.payload], payload), **inside}, rows)
        if config.tombstones:
            values = values.take(pa.array(np.arange(len(values)), mask=empty))
        return replace(
            batch,
            keys=Contents(fields[config.event_key].array, has_schema),
            values=Contents(values, has_schema),
            topics=topics,
            headers=headers,
            times=times,
        )

    def _times(self, event: Columns, fields: Columns, rows: pa.Array) -> pa.Array:
        given = event.get("ts_ms")
        times = pa.nulls(len(rows), pa.int64()) if given is None else given.array.cast(pa.int64())
        name = self._config.timestamp
        if not name:
            return times.cast(TIMESTAMP_TYPE)
        found = fields.get(name)
        if found is None:
            refuse_all(rows, f"Unable to find timestamp field {name} in event", _CONNECT)
        elif pa.types.is_timestamp(found.type):
            own = found.array.cast(pa.int64())
            unit = _UNITS[found.type.unit]
            own = pc.multiply(own, unit) if found.type.unit == "s" else pc.divide(own, unit)
            return pc.coalesce(own, times).cast(TIMESTAMP_TYPE)
        elif pa.types.is_int64(found.type):
            why = "Unsupported field type INT64 (without logical schema name) for event timestamp"
            refuse_all(found.array, why, _CONNECT)
        else:
            refuse_all(found.array, f"Field '{name}' is not of type INT64")
        return times.cast(TIMESTAMP_TYPE)

    def _topics(self, names: pa.Array) -> pa.Array:
        if not pa.types.is_string(names.type):
            refuse_all(names, f"Field '{self._config.route_by}' is not of type STRING")
        unnamed = np.flatnonzero(~valid(names))
        if len(unnamed):
            why = f"field {self._config.route_by}, which is to name the topic, is null"
            raise Refused(reasons(unnamed, why), _NULL)
        return each(names, self._named)

    def _named(self, name: str) -> str:
        if not self._regex.fullmatch(name):
            return name
        return self._regex.first_replaced(self._topic, name)

    def _expanded(self, payload: pa.Array) -> pa.Array:
        """The objects that payloads of text hold."""
        if not pa.types.is_string(payload.type):
            return payload
        text = payload
        if self._config.tombstones:
            text = pc.if_else(pa.array(_empty(payload)), pa.scalar(None, pa.string()), payload)
        objects = pc.fill_null(pc.starts_with(text, "{"), True)
        others = np.flatnonzero(~np.asarray(objects))
        why = f"field {self._config.payload} holds no JSON object, but expand.json.payload=true"
        wrong = reasons(others, why)
        if not wrong and text.null_count == len(text):
            return pa.nulls(len(text), pa.struct([]))
        if not wrong:
            made, failures = self._payloads.read(text, None)
            wrong = {f.index: f"field {self._config.payload}: {f.message}" for f in failures}
        if wrong:
            raise Refused(wrong)
        return made


def _addition(text: str) -> _Addition:
    field, place, *alias = (part.strip() for part in text.split(":"))
    return _Addition(field, place.lower() == "header", alias[0] if alias else field)


def _like(given: Column, payload: pa.Array) -> Column:
    """The payload's column, which keeps what is known of its field unless it was expanded."""
    same = payload.type == given.type
    return given.named(_PAYLOAD) if same else column(_PAYLOAD, payload)


def _empty(payload: pa.Array) -> np.ndarray:
    """Which payloads are null, or blank text."""
    if not pa.types.is_string(payload.type):
        return ~valid(payload)
    blank = pc.equal(pc.ascii_trim_whitespace(payload), "")
    return np.asarray(pc.fill_null(blank, True).to_numpy(zero_copy_only=False))
