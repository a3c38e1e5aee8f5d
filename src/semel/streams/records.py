"""Records on their way through a topology, in columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.converters.json.columns import JSON
from semel.core.records import one_array
from semel.sinks.jsontext import text


@dataclass(frozen=True, slots=True)
class Records:
    """Records of one step, in the order in which they are processed.

    Keys and values may be of any type; structs have columns. A null value is a tombstone. ``times``
    are milliseconds (int64). ``order`` is the place of each record within the step: what an
    operator makes of a record has its place, so records of several inputs can be brought into order
    again. ``olds`` is there for the changes of a table: the values that they replace, and
    ``old_times`` the times of these.
    """

    keys: pa.Array
    values: pa.Array
    times: pa.Array
    headers: Any = None
    order: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    olds: Any = None
    old_times: Any = None

    def __post_init__(self) -> None:
        if len(self.order) != len(self.times):
            object.__setattr__(self, "order", np.arange(len(self.times)))

    def __len__(self) -> int:
        return len(self.times)

    def take(self, rows: np.ndarray) -> Records:
        """The records at these indices, in this order."""
        at = pa.array(rows)
        return Records(
            self.keys.take(at),
            self.values.take(at),
            self.times.take(at),
            None if self.headers is None else self.headers.take(at),
            self.order[rows],
            None if self.olds is None else self.olds.take(at),
            None if self.old_times is None else self.old_times.take(at),
        )

    def only(self, mask: np.ndarray) -> Records:
        """The records for which ``mask`` is true."""
        return self if mask.all() else self.take(np.flatnonzero(mask))

    def holding(self, **columns: Any) -> Records:
        """The same records with other columns."""
        return replace(self, **columns)


NONE = Records(pa.nulls(0), pa.nulls(0), pa.array([], pa.int64()))
"""No records."""


def whole(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """A column in one piece."""
    return one_array(column) if isinstance(column, pa.ChunkedArray) else column


def concatenated(arrays: Sequence[pa.Array]) -> pa.Array:
    """Arrays joined end to end. Their types may differ where one type holds all; what plain JSON
    calls by one name and has of several types (a number here, a text there) becomes JSON.

    Raises:
        ArrowException: no type holds all.
    """
    kinds = {array.type for array in arrays}
    if len(kinds) == 1:
        return pa.concat_arrays(list(arrays))
    tables = [pa.table({"": array}) for array in arrays]
    try:
        together = pa.concat_tables(tables, promote_options="permissive")
        return whole(together.column(0).combine_chunks())
    except (pa.ArrowTypeError, pa.ArrowInvalid):
        if all(pa.types.is_struct(kind) or pa.types.is_null(kind) for kind in kinds):
            return _structs(arrays)
        if not all(map(_is_plain_json, kinds)):
            raise
    documents = [pc.if_else(array.is_valid(), text(array), None) for array in arrays]
    storage = pa.concat_arrays([d.cast(JSON.storage_type) for d in documents])
    return pa.ExtensionArray.from_storage(JSON, storage)


def _structs(arrays: Sequence[pa.Array]) -> pa.Array:
    parts = [{} if pa.types.is_null(a.type) else _columns(a) for a in arrays]
    names = list(dict.fromkeys(name for part in parts for name in part))
    columns = [
        concatenated([p.get(n, pa.nulls(len(a))) for p, a in zip(parts, arrays, strict=True)])
        for n in names
    ]
    gone = pa.concat_arrays([array.is_null() for array in arrays])
    return pa.StructArray.from_arrays(columns, names=names, mask=gone)


def _columns(structs: pa.Array) -> dict[str, pa.Array]:
    return dict(zip([f.name for f in structs.type], structs.flatten(), strict=True))


def _is_plain_json(kind: pa.DataType) -> bool:
    """Whether documents without a schema have such values."""
    if pa.types.is_struct(kind):
        return all(_is_plain_json(field.type) for field in kind)
    if pa.types.is_list(kind):
        return _is_plain_json(kind.value_type)
    is_ = (pa.types.is_null, pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating)
    return kind == JSON or any(check(kind) for check in (*is_, pa.types.is_string))


def merged(parts: Sequence[Records]) -> Records:
    """The records of several inputs in their order; of one place, those of the first input."""
    parts = [part for part in parts if len(part)]
    if len(parts) < 2:
        return parts[0] if parts else NONE
    headers = None
    if any(part.headers is not None for part in parts):
        all_headers = [pa.nulls(len(p)) if p.headers is None else p.headers for p in parts]
        headers = concatenated(all_headers)
    olds = old_times = None
    if all(part.olds is not None for part in parts):
        olds = concatenated([part.olds for part in parts])
        old_times = concatenated([part.old_times for part in parts])
    together = Records(
        concatenated([part.keys for part in parts]),
        concatenated([part.values for part in parts]),
        pa.concat_arrays([part.times for part in parts]),
        headers,
        np.concatenate([part.order for part in parts]),
        olds,
        old_times,
    )
    return together.take(np.argsort(together.order, kind="stable"))


def in_turn(records: Mapping[str, Records]) -> dict[str, Records]:
    """Records of several topics with their places in one order: the topic whose next record is the
    oldest is always next, as in Kafka Streams; of equally old ones, that with the smaller name.
    Records of a topic stay in the order of their offsets."""
    names = sorted(records)
    counts = [len(records[name]) for name in names]
    # The smallest of several heads is next: that sorts by the latest time up to each record.
    latest = [np.maximum.accumulate(np.asarray(records[name].times)) for name in names]
    topics = np.repeat(np.arange(len(names)), counts)
    turn = np.lexsort((topics, np.concatenate(latest or [np.zeros(0)])))
    place = np.empty(len(turn), np.int64)
    place[turn] = np.arange(len(turn))
    pieces = np.split(place, np.cumsum(counts)[:-1])
    return {n: records[n].holding(order=p) for n, p in zip(names, pieces, strict=True)}
