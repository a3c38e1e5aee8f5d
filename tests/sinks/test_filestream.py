"""FileStreamSink: lines, and the ledger that says which of them count."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from semel.audit import audit
from semel.config import ConnectorConfig, read
from semel.core import failpoints
from semel.core.errors import ConfigError, ServiceError, Unavailable
from semel.core.ledger import (
    TAKEN_OVER,
    Advance,
    Hole,
    OffsetRange,
    Outcome,
    Rebase,
    TopicPartition,
    firsts,
)
from semel.core.records import OFFSET, PARTITION, TOPIC, Commit, Records
from semel.driver.planning import plan
from semel.sinks.filestream import FileStreamSink
from semel_lab.embedded import Kafka
from tests import matrix
from tests.conftest import MakeTopic, Produce
from tests.engine.conftest import points  # noqa: F401
from tests.engine.harness import (
    LocalSpark,
    assert_promise_kept,
    caught_up,
    recreate,
    some,
    wait_until,
)
from tests.patience import PATIENCE

PROCESSES = multiprocessing.get_context("spawn")
LINES = "org.apache.kafka.connect.file.FileStreamSinkConnector"
COUNT = 400
PLACES = ["deliver.between", "filestream.appended", "sink.before_commit", "sink.after_commit"]
CASES = [
    (delivery, place)
    for delivery in ("at-most-once", "at-least-once", "transactional")
    for place in PLACES
    if (delivery, place) != ("transactional", "deliver.between")  # a transaction has no between
]
SHORT = [
    (d, p) for d, p in CASES if p == "deliver.between" or (d, p) == ("transactional", PLACES[1])
]


def config(directory: Path, **keys: str) -> dict[str, str]:
    return {
        "name": "c",
        "connector.class": "FileStreamSink",
        "topics": "t",
        "bootstrap.servers": "nowhere:9092",
        "file": str(directory / "lines.txt"),
        **keys,
    }


def sink(directory: Path, **keys: str) -> FileStreamSink:
    return FileStreamSink(read(ConnectorConfig, config(directory, **keys)))


def records(start: int, *values: bytes | None) -> Records:
    """Records of one partition; None is a tombstone."""
    rows = [start + n for n, value in enumerate(values) if value is not None]
    gone = [start + n for n, value in enumerate(values) if value is None]

    def columns(offsets: list[int]) -> dict[str, pa.Array]:
        return {
            TOPIC: pa.array(["t"] * len(offsets), pa.string()),
            PARTITION: pa.array([0] * len(offsets), pa.int32()),
            OFFSET: pa.array(offsets, pa.int64()),
        }

    written = {"value": pa.array([v for v in values if v is not None], pa.binary())}
    tombstones = pa.table(columns(gone)) if gone else None
    return Records("t", pa.table(written | columns(rows)), tombstones)


def advance(start: int, end: int) -> list[Advance]:
    return [Advance(OffsetRange("t", 0, start, end), read=end - start, written=end - start)]


def lines(directory: Path) -> bytes:
    return (directory / "lines.txt").read_bytes()


@pytest.fixture
def started(tmp_path: Path) -> FileStreamSink:
    """A sink that has written two lines."""
    made = sink(tmp_path)
    made.start(firsts({TopicPartition("t", 0): 0}))
    made.commit(advance(0, 2), Commit([records(0, b"a", b"b")]))
    return made


def commit_more(directory: Path) -> None:
    sink(directory).commit(advance(2, 4), Commit([records(2, b"c", b"d")]))


def test_values_become_lines_and_tombstones_null(started: FileStreamSink, tmp_path: Path) -> None:
    started.commit(advance(2, 6), Commit([records(2, None, "ü".encode(), None, b"")]))
    assert lines(tmp_path).decode() == "a\nb\nnull\nü\nnull\n\n"


def test_a_batch_without_good_records_writes_no_byte(
    started: FileStreamSink, tmp_path: Path
) -> None:
    started.commit(advance(2, 4), Commit([records(2)]))
    assert lines(tmp_path) == b"a\nb\n"


@pytest.mark.parametrize(
    "place",
    some(
        ["sink.after_positions", "sink.before_commit", "filestream.appended", "sink.after_commit"],
        {"filestream.appended"},
    ),
)
def test_a_commit_whose_process_is_killed_leaves_all_of_it_or_nothing(
    place: str, started: FileStreamSink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(failpoints.DIRECTORY, str(tmp_path))  # for processes that are started now
    failpoints.arm(tmp_path, place, "kill-worker")
    process = PROCESSES.Process(target=commit_more, args=(tmp_path,))
    process.start()
    process.join(PATIENCE)
    assert process.exitcode == -signal.SIGKILL
    committed = place == "sink.after_commit"
    [entry] = started.entries()
    assert entry.position == (4 if committed else 2)
    again = started.commit(advance(2, 4), Commit([records(2, b"c", b"d")]))
    assert again is (Outcome.REPLAYED if committed else Outcome.APPLIED)
    assert lines(tmp_path) == b"a\nb\nc\nd\n"


def test_what_lies_beyond_the_ledger_is_cut_off(started: FileStreamSink, tmp_path: Path) -> None:
    with (tmp_path / "lines.txt").open("ab") as file:
        file.write(b"half a li")
    started.commit(advance(2, 3), Commit([records(2, b"c")]))
    assert lines(tmp_path) == b"a\nb\nc\n"


def test_lines_that_were_there_before_the_ledger_stay(tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_bytes(b"of\nanother\n")
    made = sink(tmp_path)
    made.start(firsts({TopicPartition("t", 0): 2}))
    with (tmp_path / "lines.txt").open("ab") as file:
        file.write(b"half a li")
    made.commit(advance(2, 3), Commit([records(2, b"c")]))
    assert lines(tmp_path) == b"of\nanother\nc\n"


def adopt(sink: FileStreamSink, position: int) -> None:
    (entry,) = sink.entries()
    hole = Hole(*entry.topic_partition, entry.position, position, TAKEN_OVER)
    sink.adopt([Rebase(entry, replace(entry, position=position), hole)])


def test_lines_of_another_program_stay_if_it_has_continued_the_connector(
    started: FileStreamSink, tmp_path: Path
) -> None:
    with (tmp_path / "lines.txt").open("ab") as file:
        file.write(b"c\nd\n")
    adopt(started, 4)
    started.commit(advance(4, 5), Commit([records(4, b"e")]))
    assert lines(tmp_path) == b"a\nb\nc\nd\ne\n"
    with (tmp_path / "lines.txt").open("ab") as file:
        file.write(b"half a li")
    started.set_positions(firsts({TopicPartition("t", 0): 4}))
    started.commit(advance(4, 5), Commit([records(4, b"e")]))
    assert lines(tmp_path) == b"a\nb\nc\nd\ne\ne\n"


def test_lines_from_before_another_program_continued_stay_counted(
    started: FileStreamSink, tmp_path: Path
) -> None:
    other = sink(tmp_path, name="other")
    other.start(firsts({TopicPartition("t", 1): 0}))
    move = Advance(OffsetRange("t", 1, 0, 1), read=1, written=1)
    other.commit([move], Commit([records(0, b"x")]))
    for first in (4, 6):
        before = started.snapshot({"t"}).rows["t"]
        adopt(started, first)
        assert started.snapshot({"t"}).rows == {"t": before}
        started.commit(advance(first, first + 1), Commit([records(first, b"e")]))
        assert started.snapshot({"t"}).rows == {"t": before + 1}
    assert [(h.from_offset, h.until_offset) for h in started.holes()] == [(2, 4), (5, 6)]


def test_lines_that_a_killed_commit_has_left_go_if_a_user_sets_the_positions(
    started: FileStreamSink, tmp_path: Path
) -> None:
    with (tmp_path / "lines.txt").open("ab") as file:
        file.write(b"c\nd\n")
    started.set_positions(firsts({TopicPartition("t", 0): 3}))
    started.commit(advance(3, 4), Commit([records(3, b"d")]))
    assert lines(tmp_path) == b"a\nb\nd\n"


def test_a_file_that_has_lost_lines_is_refused(started: FileStreamSink, tmp_path: Path) -> None:
    os.truncate(tmp_path / "lines.txt", 2)
    with pytest.raises(
        ServiceError, match="has 2 bytes, and the ledger knows of 4: lines are missing"
    ):
        started.commit(advance(2, 3), Commit([records(2, b"c")]))


def test_a_file_that_has_taken_the_place_of_another_must_begin_with_its_lines(
    started: FileStreamSink, tmp_path: Path
) -> None:
    path = tmp_path / "lines.txt"
    path.rename(tmp_path / "moved")  # its inode number is not free
    path.write_bytes(b"a\nb\n")
    started.commit(advance(2, 3), Commit([records(2, b"c")]))
    assert lines(tmp_path) == b"a\nb\nc\n"
    path.rename(tmp_path / "moved again")
    path.write_bytes(b"something else\n")
    with pytest.raises(ServiceError, match="has taken the place of the one that the ledger knows"):
        started.commit(advance(3, 4), Commit([records(3, b"d")]))


def test_connectors_may_share_a_file(started: FileStreamSink, tmp_path: Path) -> None:
    other = sink(tmp_path, name="other")
    other.start(firsts({TopicPartition("t", 0): 0}))
    other.commit(advance(0, 1), Commit([records(0, b"x")]))
    started.commit(advance(2, 3), Commit([records(2, b"c")]))
    assert lines(tmp_path) == b"a\nb\nx\nc\n"
    assert [e.position for e in started.entries()] == [3]
    started.set_positions(None)
    assert started.entries() == []
    assert [e.position for e in other.entries()] == [1]


def hold(directory: Path, ready: Any) -> None:
    with sink(directory)._locked():
        ready.set()
        signal.pause()


@pytest.mark.long
def test_a_process_that_is_frozen_while_it_writes_is_reported(
    started: FileStreamSink, tmp_path: Path
) -> None:
    ready = PROCESSES.Event()
    process = PROCESSES.Process(target=hold, args=(tmp_path, ready))
    process.start()
    try:
        assert ready.wait(PATIENCE)
        late = sink(tmp_path, **{"store.timeout.ms": "1000"})
        with pytest.raises(Unavailable, match="another process holds"):
            late.commit(advance(2, 3), Commit([records(2, b"c")]))
    finally:
        process.kill()
        process.join(PATIENCE)
    started.commit(advance(2, 3), Commit([records(2, b"c")]))


def test_provenance_is_refused_because_lines_have_no_room_for_it(tmp_path: Path) -> None:
    assert plan(config(tmp_path)).facts()["audit"] == "by counts"
    with pytest.raises(ConfigError, match=r"provenance=true: .* has no room .*Remove provenance"):
        plan(config(tmp_path, provenance="true"))


def test_a_ledger_of_a_newer_version_is_refused(started: FileStreamSink, tmp_path: Path) -> None:
    ledger = tmp_path / "lines.txt.semel-ledger"
    ledger.write_text(json.dumps({**json.loads(ledger.read_text()), "version": 2}))
    with pytest.raises(ServiceError, match=r"ledger .* by a later version of semel \(format 2"):
        started.entries()


def test_a_directory_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(ServiceError, match="Check file, and that its directory exists"):
        sink(tmp_path / "none").start(firsts({TopicPartition("t", 0): 0}))


def test_other_machines_cannot_write_to_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"spark\.master=spark://far:7077 runs tasks on others"):
        sink(tmp_path, **{"spark.master": "spark://far:7077"})


def test_kafka_connects_configuration_is_taken_as_it_is(tmp_path: Path) -> None:
    connects = {"connector.class": LINES, "tasks.max": "1", "topics": "connect-test"}
    planned = plan(config(tmp_path, **connects))
    assert str(planned.guarantee) == "exactly-once (transactional)"


@pytest.mark.integration
@pytest.mark.cell(sink=LINES, mode="direct", delivery="delivery")
@pytest.mark.parametrize(("delivery", "place"), some(CASES, SHORT))
def test_killed_at(
    delivery: str,
    place: str,
    topic: MakeTopic,
    kafka: Kafka,
    tmp_path: Path,
    points: Path,  # noqa: F811
) -> None:
    source = topic(partitions=2, values=[str(n) for n in range(COUNT)])
    keys = {
        "topics": source,
        "bootstrap.servers": kafka.bootstrap_servers,
        "tasks.max": "2",
        "consumer.override.max.poll.records": "20",
        "value.converter": "org.apache.kafka.connect.storage.StringConverter",
        **matrix.DELIVERIES[delivery],
    }
    made = config(tmp_path, **keys)
    failpoints.arm(points, place, "kill-worker", skip=3)
    caught_up(made, spark=LocalSpark(points))
    wait_until(lambda: bool(failpoints.fired(points)))
    found = [int(line) for line in lines(tmp_path).splitlines()]
    assert_promise_kept(made, points, found, COUNT, exact=False)


@pytest.mark.long
@pytest.mark.integration
def test_the_audit_refuses_lines_that_another_program_has_changed(
    topic: MakeTopic, kafka: Kafka, tmp_path: Path
) -> None:
    source = topic(values=["line"])
    keys = {
        "topics": source,
        "bootstrap.servers": kafka.bootstrap_servers,
        "value.converter": "org.apache.kafka.connect.storage.StringConverter",
    }
    made = config(tmp_path, **keys)
    caught_up(made)
    with (tmp_path / "lines.txt").open("r+b") as file:
        file.write(b"L")
    with pytest.raises(ServiceError, match="another program has changed its lines"):
        audit(made)


@pytest.mark.long
@pytest.mark.integration
def test_the_audit_knows_lines_of_a_former_topic_and_offsets_that_were_never_read(
    topic: MakeTopic, produce: Produce, kafka: Kafka, tmp_path: Path
) -> None:
    source = topic(values=["former"] * 5)
    keys = {
        "topics": source,
        "bootstrap.servers": kafka.bootstrap_servers,
        "value.converter": "org.apache.kafka.connect.storage.StringConverter",
        "topic.recreated": "earliest",
        "offset.out.of.range": "earliest",
    }
    made = config(tmp_path, **keys)
    caught_up(made)
    recreate(kafka, source)
    produce(source, ["present"] * 3)
    caught_up(made)
    kafka.delete_records(source, {0: 3})
    produce(source, ["more"] * 4)
    kafka.delete_records(source, {0: 5})
    caught_up(made)
    assert lines(tmp_path) == b"former\n" * 5 + b"present\n" * 3 + b"more\n" * 2
    report = audit(made)
    assert (report.lost, report.duplicated) == (0, 0)
    (found,) = report.partitions
    assert found.unknown == 3  # beyond what the removed offsets may have held
    stored = json.loads((tmp_path / "lines.txt.semel-ledger").read_text())["holes"]["c"]
    assert [(h["from_offset"], h["until_offset"], h["reason"]) for h in stored] == [
        (0, 5, "topic created again"),
        (3, 5, "removed by retention"),
    ]
