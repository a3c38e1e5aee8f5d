"""Dead letters as rows."""

from __future__ import annotations

import json
import time
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa
import pyarrow.compute as pc

from semel.core.ledger import LETTERS_FORMAT, check_format
from semel.core.records import TIMESTAMP_TYPE, DeadLetter, one_array
from semel.sinks.rows import places

_TIME = pa.timestamp("us", "UTC")
SCHEMA = pa.schema(
    [
        ("connector", pa.string()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", _TIME),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.string()),
        ("stage", pa.string()),
        ("exception", pa.string()),
        ("message", pa.string()),
        ("failed_at", _TIME),
        ("format", pa.int32()),
    ]
)

PLACES = ["connector", "topic", "partition", "offset", "timestamp", "format"]
SHOWN = pa.schema([f for f in SCHEMA if f.name not in ("connector", "failed_at", "format")])
"""What a letter shows."""
Place = tuple[str, int, int]
"""The topic, partition and offset of a letter's record."""


@runtime_checkable
class LetterStore(Protocol):
    """A sink whose table of dead letters can be read."""

    @abstractmethod
    def letters(self, beyond: Place | None, most: int, *, backwards: bool = False) -> pa.Table:
        """Some of the connector's letters, with the columns ``SHOWN``, in the order of their
        places: the first ``most`` after a place or, with ``backwards``, the last ones before it, in
        reverse.

        Raises:
            ServiceError: a later version of semel has written one.
        """


def rows(connector: str, letters: Sequence[DeadLetter]) -> pa.Table:
    """One row per dead letter."""
    now = datetime.fromtimestamp(time.time(), UTC)
    columns = {
        "connector": [connector for _ in letters],
        "topic": [x.topic for x in letters],
        "partition": [x.partition for x in letters],
        "offset": [x.offset for x in letters],
        "key": [x.key for x in letters],
        "value": [x.value for x in letters],
        "headers": [headers_text(x.headers) for x in letters],
        "stage": [x.stage for x in letters],
        "exception": [x.exception for x in letters],
        "message": [_printable(x.message) for x in letters],
        "failed_at": [now for _ in letters],
        "format": [LETTERS_FORMAT for _ in letters],
    }
    stamps = pa.array([x.timestamp for x in letters], TIMESTAMP_TYPE).cast(_TIME)
    arrays = {n: pa.array(v, SCHEMA.field(n).type) for n, v in columns.items()}
    return pa.table(arrays | {"timestamp": stamps}).select(SCHEMA.names)


def headers_text(headers: Iterable[Sequence[Any]]) -> str:
    """Headers as JSON. Values are texts: bytes that are none are escaped."""
    return json.dumps([[name, _text(value)] for name, value in headers])


def places_of(connector: str, table: pa.Table) -> dict[str, pa.Table]:
    """The partitions, offsets and times of a connector's letters, by topic; ``table`` has the
    columns ``PLACES``, with or without the times."""
    letters = table.filter(pc.equal(table.column("connector"), connector)).drop_columns("connector")
    letters = known(connector, letters)
    return {t: places(letters, t) for t in letters.column("topic").unique().to_pylist()}


def known(connector: str, letters: pa.Table) -> pa.Table:
    """Letters of a connector without their ``format``.

    Raises:
        ServiceError: a later version of semel has written one.
    """
    newest = pc.max(letters.column("format")).as_py()
    check_format(f"connector {connector}: a dead letter", newest or 0, LETTERS_FORMAT)
    return letters.drop_columns("format")


def some_of(
    connector: str, table: pa.Table, beyond: Place | None, most: int, *, backwards: bool
) -> pa.Table:
    """What :meth:`LetterStore.letters` returns, chosen from all that a table holds."""
    names = ["connector", *(n for n in SHOWN.names if n in table.column_names), "format"]
    table = table.select(names)
    table = table.cast(pa.schema([SCHEMA.field(name) for name in names]))
    letters = known(connector, table.filter(pc.equal(table.column("connector"), connector)))
    order = "descending" if backwards else "ascending"
    places = ("topic", "partition", "offset")
    rows = pc.sort_indices(letters, [(name, order) for name in places])
    if beyond is not None:
        positions = zip(*(letters.column(n).take(rows).to_pylist() for n in places), strict=True)
        further = [at < beyond if backwards else at > beyond for at in positions]
        rows = rows.filter(pa.array(further, pa.bool_()))
    return shown(letters.take(rows.slice(0, most)))


def shown(letters: pa.Table) -> pa.Table:
    """The columns of letters that are shown, in their types; columns that are missing are null. One
    that has only nulls may come in any type."""
    arrays = {}
    for f in SHOWN:
        values = one_array(letters.column(f.name)) if f.name in letters.column_names else None
        if values is None or values.null_count == len(values):
            arrays[f.name] = pa.nulls(letters.num_rows, f.type)
        else:
            arrays[f.name] = values.cast(f.type)
    return pa.table(arrays, SHOWN)


def _text(value: bytes | None) -> str | None:
    return None if value is None else _printable(value.decode("utf-8", "backslashreplace"))


def _printable(text: str) -> str:
    """The text without what databases' texts cannot hold."""
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")
