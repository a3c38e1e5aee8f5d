"""Records of several files that are committed together."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import groupby

import pyarrow as pa

from semel.core.records import ConnectRecords
from semel.sources.base import SourceBatch, SourceOffset, SourcePartition

_BYTES = 8 * 1024 * 1024
_FILES = 1000


@dataclass(slots=True)
class Gathered:
    """What was read since the last batch."""

    most: int
    records: list[ConnectRecords] = field(default_factory=list)
    reached: dict[str, tuple[SourcePartition, SourceOffset]] = field(default_factory=dict)
    size: int = 0
    count: int = 0

    def add(
        self, records: ConnectRecords | None, partition: SourcePartition, offset: SourceOffset
    ) -> None:
        if records is not None and len(records):
            self.records.append(records)
            self.size += int(records.values.nbytes)
            self.count += len(records)
        self.reached[str(partition)] = partition, offset

    @property
    def is_full(self) -> bool:
        many = len(self.reached) >= _FILES
        return many or self.size >= _BYTES or self.count >= self.most

    def batch(self) -> SourceBatch:
        """Everything, in as few columns as types allow."""
        made = [_joined(list(g)) for _, g in groupby(self.records, _kind)]
        return SourceBatch(made, {}, reached=tuple(self.reached.values()))


def _kind(records: ConnectRecords) -> tuple[pa.DataType, pa.DataType, pa.Schema]:
    return records.values.type, records.keys.type, records.origin.schema


def _joined(several: list[ConnectRecords]) -> ConnectRecords:
    first = several[0]
    if len(several) == 1:
        return first
    return ConnectRecords(
        first.topic,
        pa.concat_tables([r.origin for r in several]),
        pa.concat_arrays([r.keys for r in several]),
        pa.concat_arrays([r.values for r in several]),
        None if first.headers is None else pa.concat_arrays([r.headers for r in several]),
    )
