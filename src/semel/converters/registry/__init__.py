"""What formats with a schema registry share: ``client`` asks the registry, ``config`` has the keys,
and ``converter`` is the base class of their converters.

This module has Confluent's wire format: a zero byte, the schema's id in four bytes, and the
payload.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from semel.converters.binary import Longs, elements

HEADER = 5
"""Bytes before the payload."""


@dataclass(frozen=True, slots=True)
class FramedMessages:
    """Messages of one schema: their rows, and where each begins and ends in ``data``. ``message``
    says which of the schema's messages they are, if it has several."""

    schema_id: int
    rows: Longs
    data: npt.NDArray[np.uint8]
    starts: Longs
    ends: Longs
    message: tuple[int, ...] | str = ()

    def column(self) -> pa.Array:
        """The payloads, as a column."""
        return elements(self.data, self.starts, self.ends)

    def contents(self) -> list[bytes]:
        """The payloads, one at a time."""
        data = self.data.tobytes() if len(self.rows) > 1 else self.data
        return [
            bytes(data[a:b]) for a, b in zip(self.starts.tolist(), self.ends.tolist(), strict=True)
        ]

    def only(self, which: Longs) -> FramedMessages:
        """Some of the messages."""
        return replace(
            self, rows=self.rows[which], starts=self.starts[which], ends=self.ends[which]
        )


def unframed(values: pa.Array) -> tuple[list[FramedMessages], Longs]:
    """The messages by schema, ordered by the first of each, and the rows of values that are not in
    this format. Nulls are in neither list."""
    valid = values.is_valid().to_numpy(zero_copy_only=False)
    _, offsets, data = values.buffers()
    if data is None or not len(values):
        return [], np.flatnonzero(valid)
    ends = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1]
    first = int(ends[0])
    content = np.frombuffer(data, np.uint8)[first : int(ends[-1])]
    places = ends.astype(np.int64) - first
    starts, stops = places[:-1], places[1:]
    framed = valid & (stops - starts >= HEADER)
    rows = np.flatnonzero(framed)
    framed[rows] = content[starts[rows]] == 0
    rows = np.flatnonzero(framed)
    ids = np.zeros(len(rows), np.int64)
    for byte in range(1, HEADER):
        ids = ids << 8 | content[starts[rows] + byte]
    distinct, firsts = np.unique(ids, return_index=True)
    groups = []
    for number in distinct[np.argsort(firsts)].tolist():
        chosen = rows if len(distinct) == 1 else rows[ids == number]
        groups.append(
            FramedMessages(number, chosen, content, starts[chosen] + HEADER, stops[chosen])
        )
    return groups, np.flatnonzero(valid & ~framed)


def framed(schema_id: int, values: pa.Array) -> pa.Array:
    """The payloads, after their schema's id; null stays null."""
    header = b"\0" + schema_id.to_bytes(4, "big")
    return pc.binary_join_element_wise(pa.scalar(header, pa.binary()), values, b"")
