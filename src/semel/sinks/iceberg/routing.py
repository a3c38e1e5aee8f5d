"""Routes records to a connector's tables: all of them, or those that a field names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as is_

from semel.core.errors import ConfigError
from semel.core.ledger import Advance, OffsetRange, TopicPartition
from semel.core.patterns import Pattern
from semel.core.quoting import named, typed
from semel.core.records import METADATA, PARTITION, TOPIC, Records
from semel.sinks.iceberg.files import StagedFile

Counts = Counter[TopicPartition]

_BYTES = (
    is_.is_binary,
    is_.is_large_binary,
    is_.is_binary_view,
    is_.is_fixed_size_binary,
)


@dataclass(frozen=True, slots=True)
class StagedRows:
    """The number of staged rows of a table; without a table, of rows that go nowhere."""

    table: str
    counts: Counts


def by_regex(
    field: str, routes: Mapping[str, Pattern | None], records: Records
) -> tuple[list[tuple[str, Records]], Counts]:
    """The records of each table that gets some, and how many records go to no table."""
    codes, named = _encoded(records.rows, field)
    values = pa.array(named, pa.string())
    taken = np.zeros(records.rows.num_rows, dtype=bool)
    parts = []
    for name, route in routes.items():
        assert route is not None
        fits = pc.fill_null(route.matches(values), False).to_numpy(zero_copy_only=False)
        mask = fits[codes]
        taken |= mask
        parts += [(name, part) for part in _part(records, mask)]
    return parts, counted(records.rows.filter(pa.array(~taken)))


def by_name(field: str, records: Records) -> tuple[list[tuple[str, Records]], Counts]:
    """The records of each table that is named, and how many name none."""
    codes, values = _encoded(records.rows, field)
    names: dict[str, list[int]] = {}
    for code, value in enumerate(values):
        if value is not None:
            names.setdefault(value.lower(), []).append(code)
    parts = [
        (name, part)
        for name, same in names.items()
        for part in _part(records, np.isin(codes, same))
    ]
    null = np.array([v is None for v in values], dtype=bool)[codes]
    return parts, counted(records.rows.filter(pa.array(null)))


def _part(records: Records, mask: np.ndarray) -> list[Records]:
    """The chosen records, if there are any."""
    if not mask.any():
        return []
    if mask.all():
        return [records]
    return [replace(records, rows=records.rows.filter(pa.array(mask)), tombstones=None)]


def _encoded(rows: pa.Table, field: str) -> tuple[np.ndarray, list[str | None]]:
    """The route-field as codes, and what each code stands for."""
    first, *rest = field.split(".")
    if first not in rows.column_names:
        return np.zeros(rows.num_rows, dtype=np.int64), [None]
    values = rows.column(first)
    for part in rest:
        if not is_.is_struct(values.type):
            raise ConfigError(
                f"iceberg.tables.route-field={field!r}: {named(first)} is {typed(values.type)} "
                f"here, which has no field {named(part)}. Use a converter with schemas, or lift "
                "the field in a transform"
            )
        if part not in [f.name for f in values.type]:
            return np.zeros(rows.num_rows, dtype=np.int64), [None]
        values = pc.struct_field(values, part)
    if is_.is_nested(values.type) or any(kind(values.type) for kind in _BYTES):
        raise ConfigError(
            f"iceberg.tables.route-field={field!r} is {typed(values.type)}, which cannot be matched"
        )
    text = values.cast(pa.string()).combine_chunks()
    encoded = pc.dictionary_encode(text, null_encoding="encode")
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
    return encoded.indices.to_numpy(), encoded.dictionary.to_pylist()


def counted(rows: pa.Table) -> Counts:
    """How many rows were read from each topic-partition."""
    by = rows.group_by([TOPIC, PARTITION], use_threads=False).aggregate([([], "count_all")])
    topics, partitions, counts = by.to_pydict().values()
    return Counter(dict(zip(map(TopicPartition, topics, partitions), counts, strict=True)))


def narrowed(records: Records, columns: pa.Schema, *, grows: bool) -> Records:
    """Drop the fields of other tables: fields that the table lacks and may not get, or that hold
    only nulls."""
    rows = records.rows
    kept = [
        name
        for name, values in zip(rows.column_names, rows.columns, strict=True)
        if name in METADATA
        or name in columns.names
        or (grows and values.null_count < rows.num_rows)
    ]
    return replace(records, rows=rows.select(kept))


@dataclass(frozen=True, slots=True)
class Parts:
    """What was staged, by table; ``ranges`` are those that it comes from, if they are known."""

    files: Mapping[str, list[StagedFile]] = field(default_factory=dict)
    shares: Mapping[str, Counts] = field(default_factory=dict)
    ranges: Sequence[OffsetRange] = ()

    @staticmethod
    def of(staged: Sequence[Any]) -> Parts:
        files: dict[str, list[StagedFile]] = {}
        shares: dict[str, Counts] = {}
        for part in staged:
            if isinstance(part, StagedRows):
                shares.setdefault(part.table, Counter()).update(part.counts)
            else:
                files.setdefault(part.table, []).append(part)
        return Parts(files, shares)

    @property
    def tables(self) -> set[str]:
        """The tables that got rows."""
        return {*self.files, *(name for name, counts in self.shares.items() if name and counts)}

    def share(self, table: str | None, advance: Advance) -> Advance:
        """The counts of a range for one table, or for all of them together."""
        if not self.shares:
            return advance
        tp = advance.range.topic_partition
        nowhere = self._count("", tp)
        written = advance.written - nowhere if table is None else self._count(table, tp)
        return replace(advance, written=written, filtered=advance.filtered + nowhere)

    def elsewhere(self, table: str, advances: Sequence[Advance]) -> Counts:
        """The number of records of each range that belong only to other tables."""
        if not self.shares:
            return Counter()
        counts: Counts = Counter()
        for a in advances:
            tp = a.range.topic_partition
            counts[tp] = a.written - self._count(table, tp) - self._count("", tp)
        return counts

    def _count(self, table: str, tp: TopicPartition) -> int:
        return self.shares.get(table, Counter())[tp]
