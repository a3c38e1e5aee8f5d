"""Shows the first records of a sink connector as it would write them. Nothing is written: the store
is asked for its columns at most, and no consumer group is joined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa

from semel.config import ConnectorConfig, read
from semel.core.errors import ConfigError
from semel.core.ledger import TopicPartition
from semel.core.quoting import typed
from semel.core.records import KEY, OFFSET, PARTITION, TOPIC, Records, one_array, value_columns
from semel.driver import sampler
from semel.driver.planning.sink import Plan
from semel.kafka.cluster import Cluster
from semel.sinks.base import Sink
from semel.sinks.jsontext import text
from semel.sinks.layout import layout
from semel.tasks.pipeline import Pipeline
from semel.tasks.unplaced import sentence

_BYTES = 4 * 1024 * 1024
_PATIENCE = 30.0
_GAPS = 10
"""How many offsets are looked at for each record: some hold none."""


class Column(NamedTuple):
    """A column of rows, with its type in Arrow's words."""

    name: str
    type: str


@dataclass(frozen=True, slots=True)
class Row:
    """A record, and its values in the order of the columns; None is null. A record that deletes
    has none."""

    place: str
    values: Sequence[str | None] = ()


@dataclass(frozen=True, slots=True)
class TargetRows:
    """Rows with the same columns of one target."""

    target: str
    columns: Sequence[Column]
    rows: Sequence[Row]
    deletes: Sequence[Row] = ()


@dataclass(frozen=True, slots=True)
class RefusedRecord:
    """A record that would be set aside, or end the connector."""

    place: str
    stage: str
    message: str


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """What becomes of the first ``count`` records. Transforms leave ``filtered`` of them out;
    ``unplaced`` names the fields that reach no column."""

    count: int = 0
    written: Sequence[TargetRows] = ()
    bad: Sequence[RefusedRecord] = ()
    filtered: int = 0
    unplaced: Sequence[str] = ()


def rehearse(planned: Any, most: int) -> Rehearsal:
    """What becomes of the first records that the connector would read from an empty ledger.

    Raises:
        ConfigError: they cannot be shown.
    """
    connector, sink = _checked(planned), planned.sink
    pipeline = Pipeline(connector, sink, target=sink.schema)
    count, filtered = 0, 0
    written: list[TargetRows] = []
    bad: list[RefusedRecord] = []
    unplaced: set[str] = set()
    for topic, raw in _first(connector, Cluster(planned.offsets.client), most).items():
        if pipeline.needs_fields and pipeline.schema(topic) is None:
            pipeline.infer(topic, raw)
        converted = pipeline.convert(topic, raw)
        places = _places(topic, raw.column("partition"), raw.column("offset"))
        written += [_written(connector, sink, part) for part in converted.parts if part.count]
        bad += [
            RefusedRecord(places[failure.index], failure.stage, failure.message)
            for failure in converted.failed
        ]
        unplaced |= {sentence(sink, *pair) for pair in converted.unplaced}
        count += raw.num_rows
        filtered += converted.filtered
    return Rehearsal(count, written, bad, filtered, sorted(unplaced))


def _checked(planned: Any) -> ConnectorConfig:
    name = planned.connector.name
    if planned.is_source:
        raise ConfigError(
            f"connector {name}: its records are in a source, which is not read before it runs. "
            "Only the first records of sink connectors can be shown"
        )
    plan: Plan = planned
    if plan.query is not None or plan.topology is not None:
        raise ConfigError(
            f"connector {name}: each of its rows comes from many records, so the first few do not "
            "show what it would write"
        )
    return plan.connector


def _first(connector: ConnectorConfig, cluster: Cluster, most: int) -> Mapping[str, pa.Table]:
    """The first records of each topic, or the newest where the connector would begin at the end."""
    topics = cluster.matching(connector)
    places = [TopicPartition(topic, p) for topic, count in topics.items() for p in range(count)]
    first, ends = cluster.earliest(places), cluster.latest(places)
    filled = [tp for tp in sorted(places, key=lambda tp: tp[::-1]) if first[tp] < ends[tp]][:most]
    if not filled:
        return {}
    looked, share = _GAPS * most, -(-most // len(filled))
    if connector.offset_reset == "latest":
        starts = {tp: max(first[tp], ends[tp] - looked) for tp in filled}
    else:
        starts = {tp: first[tp] for tp in filled}
    until = {tp: min(ends[tp], at + looked) for tp, at in starts.items()}
    tables = sampler.read(connector, starts, until, _BYTES, _PATIENCE).tables
    newest = connector.offset_reset == "latest"
    chosen = {t: _some(raw, share, newest=newest) for t, raw in sorted(tables.items())}
    remaining, kept = most, {}
    for topic, raw in chosen.items():
        kept[topic] = raw.slice(0, remaining)
        remaining -= kept[topic].num_rows
    return {topic: raw for topic, raw in kept.items() if raw.num_rows}


def _some(raw: pa.Table, share: int, *, newest: bool) -> pa.Table:
    """As many records of each partition, in their order."""
    at: dict[int, list[int]] = {}
    for row, partition in enumerate(raw.column("partition").to_pylist()):
        at.setdefault(partition, []).append(row)
    rows = [r for indices in at.values() for r in (indices[-share:] if newest else indices[:share])]
    return raw.take(pa.array(sorted(rows)))


def _written(connector: ConnectorConfig, sink: Sink, part: Records) -> TargetRows:
    columns = _columns(connector, sink, part)
    texts = [_texts(values) for values in columns.values()]
    named = [Column(name, typed(values.type)) for name, values in columns.items()]
    places = _places_of(part.rows)
    rows = [Row(place, [column[n] for column in texts]) for n, place in enumerate(places)]
    gone = [Row(place) for place in _places_of(part.tombstones)]
    return TargetRows(part.topic, named, rows, gone)


def _columns(connector: ConnectorConfig, sink: Sink, part: Records) -> dict[str, pa.Array]:
    """The columns of rows in their target."""
    config: Any = read(sink.section, connector.originals)
    rows = part.rows
    if hasattr(config, "pk_mode") and part.has_fields:
        columns = layout(config, connector.provenance_columns, part, deletes=False).columns
        return {name: one_array(values) for name, values in columns.items()}
    names = value_columns(rows.column_names)
    columns = {name: one_array(rows.column(name)) for name in names}
    if KEY in rows.column_names and sink.capabilities.takes_bytes:
        columns = {"key": one_array(rows.column(KEY)), **columns}
    return columns


def _texts(values: pa.Array) -> list[str | None]:
    kind = values.type
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return [None if v is None else as_text(v) for v in values.to_pylist()]
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return [None if v is None else str(v) for v in values.to_pylist()]
    there = values.is_valid().to_pylist()
    return [t if v else None for t, v in zip(text(values).to_pylist(), there, strict=True)]


def as_text(value: bytes) -> str:
    """Bytes as people read them: as text, or in hexadecimal."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.hex(" ")


def _places_of(rows: pa.Table | None) -> list[str]:
    if rows is None or not rows.num_rows:
        return []
    topic = rows.column(TOPIC)[0].as_py()
    return _places(topic, rows.column(PARTITION), rows.column(OFFSET))


def _places(topic: str, partitions: pa.ChunkedArray, offsets: pa.ChunkedArray) -> list[str]:
    pairs = zip(partitions.to_pylist(), offsets.to_pylist(), strict=True)
    return [f"{topic}-{partition}@{offset}" for partition, offset in pairs]
