"""A commit whose process is killed leaves all of it or nothing. Needs neither Kafka nor Spark."""

from __future__ import annotations

import multiprocessing
import signal
from pathlib import Path

import pyarrow as pa
import pytest

from semel.config import ConnectorConfig, read
from semel.core import failpoints
from semel.core.errors import LedgerConflict
from semel.core.ledger import Advance, OffsetRange, Outcome, TopicPartition, firsts
from semel.core.records import KEY, OFFSET, PARTITION, TOPIC, Commit, Records
from semel_lmdb import LmdbSink

PROCESSES = multiprocessing.get_context("spawn")
AT_T = TopicPartition("t", 0)


def sink(directory: Path) -> LmdbSink:
    raw = {
        "name": "c",
        "connector.class": "lmdb",
        "topics": "t",
        "bootstrap.servers": "nowhere:9092",
        "lmdb.path": str(directory / "store"),
        "provenance": "true",
    }
    return LmdbSink(read(ConnectorConfig, raw))


def records(*changes: tuple[bytes, bytes | None], start: int = 0) -> Records:
    """Changes of keys; None is a tombstone."""
    rows = [(start + n, k, v) for n, (k, v) in enumerate(changes) if v is not None]
    gone = [(start + n, k) for n, (k, v) in enumerate(changes) if v is None]

    def columns(offsets: list[int], keys: list[bytes]) -> dict[str, pa.Array]:
        return {
            TOPIC: pa.array(["t"] * len(offsets), pa.string()),
            PARTITION: pa.array([0] * len(offsets), pa.int32()),
            OFFSET: pa.array(offsets, pa.int64()),
            KEY: pa.array(keys, pa.binary()),
        }

    values = {"value": pa.array([v for _, _, v in rows], pa.binary())}
    written = pa.table(values | columns([o for o, _, _ in rows], [k for _, k, _ in rows]))
    tombstones = pa.table(columns([o for o, _ in gone], [k for _, k in gone]))
    return Records("t", written, tombstones if gone else None)


def advance(start: int, end: int) -> list[Advance]:
    return [Advance(OffsetRange("t", 0, start, end), read=end - start, written=end - start)]


def stored(store: LmdbSink) -> dict[bytes, bytes]:
    with store.transaction(writing=False) as transaction:
        return dict(transaction.cursor(store._database(transaction, "t")))


FIRST = records((b"a", b"1"), (b"b", b"2"), (b"a", b"3"))
SECOND = records((b"b", None), (b"c", b"4"), start=3)


def commit_second(directory: Path) -> None:
    sink(directory).commit(advance(3, 5), Commit([SECOND]))


@pytest.mark.parametrize("place", [p for p in failpoints.PLACES if p.startswith("sink.")])
def test_killed_at(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = sink(tmp_path)
    store.start(firsts({AT_T: 0}))
    store.commit(advance(0, 3), Commit([FIRST]))
    monkeypatch.setenv(failpoints.DIRECTORY, str(tmp_path))  # for processes that are started now
    failpoints.arm(tmp_path, place, "kill-worker")
    process = PROCESSES.Process(target=commit_second, args=(tmp_path,))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    committed = place == "sink.after_commit"
    (entry,) = store.entries()
    assert entry.position == (5 if committed else 3)
    assert stored(store) == (
        {b"a": b"3", b"c": b"4"} if committed else {b"a": b"3", b"b": b"2"}
    )  # fmt: skip
    again = store.commit(advance(3, 5), Commit([SECOND]))
    assert again is (Outcome.REPLAYED if committed else Outcome.APPLIED)
    assert stored(store) == {b"a": b"3", b"c": b"4"}


def test_a_gap_writes_nothing(tmp_path: Path) -> None:
    store = sink(tmp_path)
    store.start(firsts({AT_T: 0}))
    with pytest.raises(LedgerConflict, match="is at 0"):
        store.commit(advance(3, 5), Commit([SECOND]))
    (entry,) = store.entries()
    assert entry.position == 0
