"""Rows of DB-API cursors as Arrow."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa

BATCH = 16_384
"""Rows that are read from a database at a time, at most."""
BATCH_BYTES = 16 * 1024 * 1024
_FEW, _STEP = 4, 8
"""How many rows are fetched first, and the factor by which the number may grow each time."""


def fetched(cursor: Any) -> pa.Table:
    """All rows of a query that a cursor has run."""
    return _table(cursor, cursor.fetchall())


def fetched_batches(cursor: Any, schema: pa.Schema | None = None) -> Iterator[pa.RecordBatch]:
    """Rows of a query that a cursor has run, in the types of a schema. Without one, they are all
    texts and whole numbers."""
    for block in fetched_blocks(cursor, BATCH if schema is None else _FEW):
        if schema is None:
            kinds = [
                pa.int64() if pa.types.is_integer(t) else pa.string() for t in block.schema.types
            ]
            schema = pa.schema(list(zip(block.column_names, kinds, strict=True)))
        yield from block.cast(schema).to_batches()


def fetched_blocks(
    cursor: Any, count: int = _FEW, array: Callable[[str, Sequence[Any]], pa.Array] | None = None
) -> Iterator[pa.Table]:
    """Rows of a query that a cursor has run, in the types that their values have: ``count`` of them
    first, then as many as fit into a few megabytes if they are like those before. ``array`` makes
    a named column from its values."""
    while rows := cursor.fetchmany(count):
        block = _table(cursor, rows, array)
        yield block
        fitting = BATCH_BYTES * len(rows) // max(1, block.nbytes)
        count = max(1, min(fitting, _STEP * len(rows), BATCH))


def _table(
    cursor: Any,
    rows: Sequence[Sequence[Any]],
    array: Callable[[str, Sequence[Any]], pa.Array] | None = None,
) -> pa.Table:
    names = [d[0] for d in cursor.description]
    columns = list(zip(*rows, strict=True)) or [()] * len(names)
    make = array or (lambda _name, values: pa.array(values))
    return pa.table({n: make(n, v) for n, v in zip(names, columns, strict=True)})
