"""What sinks under test are given, and what they say of it; and a database under test: sinks that
write into it, and SQL to look at what they wrote."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest

from semel.config import ConnectorConfig, read
from semel.core.errors import ConfigError
from semel.core.ledger import Advance, LedgerEntry, OffsetRange, TopicPartition, firsts
from semel.core.records import (
    KEY,
    OFFSET,
    PARTITION,
    TIMESTAMP,
    TIMESTAMP_TYPE,
    TOPIC,
    Commit,
    Records,
    RejectedRecord,
    RowsRejected,
)
from semel.databases import base
from semel.databases.postgresql import driver
from semel.sinks.base import Sink
from semel.sinks.postgresql import PostgresSink
from semel.sinks.staging import StagingSink
from tests.patience import PATIENCE


@contextmanager
def found_running() -> Iterator[None]:
    """Positions are not set, and nobody waits for a run that does not end."""
    refused = pytest.raises(ConfigError, match="connector c is running: stop it before")
    with pytest.MonkeyPatch.context() as patch, refused:
        patch.setattr(base, "RELEASE_TIME", 0)
        yield


@contextmanager
def released_at_last() -> Iterator[None]:
    """Positions are set once a run has ended, however slow the machine is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(base, "RELEASE_TIME", PATIENCE)
        yield


@contextmanager
def at_first(module: ModuleType, place: str, act: Callable[[], object]) -> Iterator[None]:
    """Something happens when a module reaches a failpoint for the first time, as it must."""
    reached: list[str] = []

    def hit(name: str) -> None:
        if name == place and not reached:
            reached.append(name)
            act()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "hit", hit)
        yield
    assert reached, f"{place} was not reached"


FIRST = TopicPartition("t", 0)


class Place:
    """Where sinks of one kind write to."""

    kind: type[Any]

    def config(self, name: str = "c", keys: Mapping[str, Any] | None = None) -> dict[str, str]:
        raise NotImplementedError

    def made(self, name: str = "c", keys: Mapping[str, Any] | None = None) -> Any:
        """A sink that has not looked at the store yet."""
        return self.kind(read(ConnectorConfig, self.config(name, keys)))

    def sink(self, name: str = "c", keys: Mapping[str, Any] | None = None) -> Any:
        """A sink that has entered its first position."""
        made = self.made(name, keys)
        made.prepare(["t"])
        made.start(firsts({FIRST: 0}))
        return made


class Target:
    """One database."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._sinks: list[PostgresSink] = []
        self._connection = driver.connect(url)

    def config(self, name: str = "c", **keys: str) -> dict[str, str]:
        """A connector's configuration; ``insert_mode="upsert"`` stands for ``insert.mode``."""
        return {
            "name": name,
            "connector.class": "postgresql",
            "bootstrap.servers": "nowhere:9092",
            "topics": "t",
            "connection.url": self.url,
            "connection.loginTimeout": "600",
            **{k.replace("_", "."): v for k, v in keys.items()},
        }

    def sink(self, name: str = "c", **keys: str) -> PostgresSink:
        raw = self.config(name, **keys)
        made = PostgresSink(read(ConnectorConfig, raw))
        self._sinks.append(made)
        return made

    def close(self) -> None:
        for sink in self._sinks:
            sink.close()
        self._connection.close()

    def execute(self, *statements: str) -> None:
        with self._connection.cursor() as cursor:
            for statement in statements:
                cursor.executemany(statement, None)

    def query(self, sql: str) -> list[dict[str, Any]]:
        with self._connection.cursor() as cursor:
            cursor.execute(sql)
            rows: list[dict[str, Any]] = cursor.fetch_arrow_table().to_pylist()
            return rows

    def values(self, sql: str) -> list[Any]:
        """The first column."""
        return [next(iter(row.values())) for row in self.query(sql)]

    def tuples(self, sql: str) -> list[tuple[Any, ...]]:
        return [tuple(row.values()) for row in self.query(sql)]


def metadata(
    topic: str, offsets: Sequence[int], keys: pa.Array | None = None, partition: int = 0
) -> dict[str, pa.Array]:
    size = len(offsets)
    return {
        TOPIC: pa.array([topic] * size, pa.string()),
        PARTITION: pa.array([partition] * size, pa.int32()),
        OFFSET: pa.array(offsets, pa.int64()),
        TIMESTAMP: pa.array([1_700_000_000_000 + o for o in offsets], TIMESTAMP_TYPE),
        KEY: keys if keys is not None else pa.nulls(size, pa.string()),
    }


def records(
    values: pa.Table | Mapping[str, Any] | Sequence[Mapping[str, Any]],
    *,
    topic: str = "t",
    keys: pa.Array | Sequence[Any] | None = None,
    offsets: Sequence[int] | None = None,
    partition: int = 0,
) -> Records:
    """Records of one topic; values are columns, or one mapping a record."""
    if not isinstance(values, pa.Table):
        values = pa.table(values) if isinstance(values, Mapping) else pa.Table.from_pylist(values)
    offsets = list(offsets) if offsets is not None else list(range(values.num_rows))
    keys = pa.array(keys) if keys is not None and not isinstance(keys, pa.Array) else keys
    columns = dict(zip(values.column_names, values.columns, strict=True))
    return Records(topic, pa.table(columns | metadata(topic, offsets, keys, partition)))


def changes(*steps: tuple[Any, Mapping[str, Any] | None], topic: str = "t") -> Records:
    """Records in the order given, each a key and a value; None is a tombstone."""
    keys = pa.array([k for k, _ in steps])
    rows = [i for i, (_, v) in enumerate(steps) if v is not None]
    gone = [i for i, (_, v) in enumerate(steps) if v is None]
    tombstones = pa.table(metadata(topic, gone, keys.take(pa.array(gone, pa.int64()))))
    values = [steps[i][1] for i in rows]
    if not values:
        empty = pa.table(metadata(topic, [], keys.slice(0, 0)))
        return Records(topic, empty, tombstones)
    made = records(values, topic=topic, keys=keys.take(pa.array(rows, pa.int64())), offsets=rows)
    return Records(topic, made.rows, tombstones if gone else None)


def put(sink: PostgresSink, *batches: Records) -> None:
    """Write without a ledger."""
    sink.write(Commit(batches))


def refused(sink: Sink, *batches: Records) -> dict[int, RejectedRecord]:
    """What the sink rejects, by offset."""
    take = sink.stage if isinstance(sink, StagingSink) else sink.write  # type: ignore[attr-defined]
    try:
        take(Commit(batches))
    except RowsRejected as rejection:
        found = {r.offset: r for r in rejection.rejected}
        assert len(found) == len(rejection.rejected)
        return found
    raise AssertionError("nothing was rejected")


def backend(sink: PostgresSink) -> int:
    """The process that serves a sink's session."""
    with sink._connection.transaction():
        found = sink._connection.query("SELECT pg_backend_pid() AS pid")
    return int(found.column("pid")[0].as_py())


def held(sink: Sink) -> LedgerEntry:
    """The only entry of a ledger, without its time."""
    (entry,) = sink.entries()
    return replace(entry, updated_at="")


def values(first: int, until: int, topic: str = "t", **more: Any) -> Commit:
    """A commit of one row an offset, with the offset as its ``id``."""
    offsets = range(first, until)
    return Commit([records([{"id": i, **more} for i in offsets], offsets=offsets, topic=topic)])


def advance(
    from_offset: int, until_offset: int, *, topic: str = "t", partition: int = 0, lost: int = 0
) -> Advance:
    count = 0 if lost else until_offset - from_offset
    span = OffsetRange(topic, partition, from_offset, until_offset)
    return Advance(span, read=count, written=count, lost=lost)
