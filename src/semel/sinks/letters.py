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

from semel.core import formats
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
class ShowsLetters(Protocol):
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
        "format": [formats.LETTERS for _ in letters],
    }
    stamps = pa.array([x.timestamp for x in letters], TIMESTAMP_TYPE).cast(_TIME)
    arrays = {n: pa.array(v, SCHEMA.field(n).type) for n, v in columns.items()}
    return pa.table(arrays | {"timestamp": stamps}).select(SCHEMA.names)


def headers_text(headers: Iterable[Sequence[Any]]) -> str:
    """Headers as JSON. Values are texts: bytes that are none are escaped."""
    return json.dumps([[name, _text(value)] for name, value in headers])


def places_of(connector: str, found: pa.Table) -> dict[str, pa.Table]:
    """The partitions, offsets and times of a connector's letters, by topic; ``found`` has the
    columns ``PLACES``, with or without the times."""
    mine = found.filter(pc.equal(found.column("connector"), connector)).drop_columns("connector")
    mine = known(connector, mine)
    return {t: places(mine, t) for t in mine.column("topic").unique().to_pylist()}


def known(connector: str, found: pa.Table) -> pa.Table:
    """Letters of a connector without their ``format``.

    Raises:
        ServiceError: a later version of semel has written one.
    """
    newest = pc.max(found.column("format")).as_py()
    formats.check(f"connector {connector}: a dead letter", newest or 0, formats.LETTERS)
    return found.drop_columns("format")


def some_of(
    connector: str, found: pa.Table, beyond: Place | None, most: int, *, backwards: bool
) -> pa.Table:
    """What :meth:`ShowsLetters.letters` returns, chosen from all that a table holds."""
    names = ["connector", *(n for n in SHOWN.names if n in found.column_names), "format"]
    found = found.select(names)
    found = found.cast(pa.schema([SCHEMA.field(name) for name in names]))
    mine = known(connector, found.filter(pc.equal(found.column("connector"), connector)))
    order = "descending" if backwards else "ascending"
    places = ("topic", "partition", "offset")
    rows = pc.sort_indices(mine, [(name, order) for name in places])
    if beyond is not None:
        each = zip(*(mine.column(n).take(rows).to_pylist() for n in places), strict=True)
        further = [at < beyond if backwards else at > beyond for at in each]
        rows = rows.filter(pa.array(further, pa.bool_()))
    return shown(mine.take(rows.slice(0, most)))


def shown(found: pa.Table) -> pa.Table:
    """The columns of letters that are shown, in their types; columns that are missing are null. One
    that has only nulls may come in any type."""
    arrays = {}
    for each in SHOWN:
        values = one_array(found.column(each.name)) if each.name in found.column_names else None
        if values is None or values.null_count == len(values):
            arrays[each.name] = pa.nulls(found.num_rows, each.type)
        else:
            arrays[each.name] = values.cast(each.type)
    return pa.table(arrays, SHOWN)


def _text(value: bytes | None) -> str | None:
    return None if value is None else _printable(value.decode("utf-8", "backslashreplace"))


def _printable(text: str) -> str:
    """Without what databases' texts cannot hold."""
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")
