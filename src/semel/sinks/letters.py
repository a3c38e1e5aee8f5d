"""Dead letters as rows."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc

from semel.core import formats
from semel.core.records import TIMESTAMP_TYPE, DeadLetter
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
        "headers": [json.dumps([[k, _text(v)] for k, v in x.headers]) for x in letters],
        "stage": [x.stage for x in letters],
        "exception": [x.exception for x in letters],
        "message": [_printable(x.message) for x in letters],
        "failed_at": [now for _ in letters],
        "format": [formats.LETTERS for _ in letters],
    }
    stamps = pa.array([x.timestamp for x in letters], TIMESTAMP_TYPE).cast(_TIME)
    arrays = {n: pa.array(v, SCHEMA.field(n).type) for n, v in columns.items()}
    return pa.table(arrays | {"timestamp": stamps}).select(SCHEMA.names)


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


def _text(value: bytes | None) -> str | None:
    return None if value is None else _printable(value.decode("utf-8", "backslashreplace"))


def _printable(text: str) -> str:
    """Without what databases' texts cannot hold."""
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")
