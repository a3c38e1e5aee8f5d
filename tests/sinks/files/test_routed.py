"""Files of topics that transforms send to other folders."""

from __future__ import annotations

from dataclasses import replace

import pytest

from semel.core.errors import ConfigError
from semel.core.ledger import TopicPartition, firsts
from semel.core.records import Commit, Records, RowsRejected
from semel.sinks.files.writer import Naming
from tests.sinks.files.conftest import Folder
from tests.sinks.target import advance, records

KAFKA = "org.apache.kafka.connect.transforms."
TO_ONE = {
    "topics": "a,b",
    "transforms": "r",
    "transforms.r.type": f"{KAFKA}RegexRouter",
    "transforms.r.regex": "[ab]",
    "transforms.r.replacement": "t",
}
BY_RECORD = {"topics": "a", "transforms": "r", "transforms.r.type": f"{KAFKA}TimestampRouter"}
A, B = TopicPartition("a", 0), TopicPartition("b", 0)


def routed(to: str, first: int, *ids: int) -> Records:
    """Records of topic a, from an offset on, that go to another one."""
    offsets = range(first, first + len(ids))
    return replace(records([{"id": i} for i in ids], topic="a", offsets=offsets), topic=to)


def test_files_of_several_topics_are_in_one_folder_and_each_is_counted(folder: Folder) -> None:
    sink = folder.made(keys=TO_ONE | {"provenance": "false"})
    sink.prepare(["a", "b"])
    sink.start(firsts({A: 0, B: 0}))
    given = [
        records([{"id": i, topic: i} for i in range(n)], topic=topic)
        for topic, n in (("a", 2), ("b", 3))
    ]
    moved = [advance(0, 2, topic="a"), advance(0, 3, topic="b")]
    sink.commit(moved, Commit(given))
    assert {f.partition("/")[0] for f in folder.files()} == {"t"}
    snapshot = sink.snapshot(["a", "b"])
    assert [snapshot.rows[snapshot.targets[t]] for t in ("a", "b")] == [2, 3]
    found = sink.schema("b")
    assert found is not None
    assert {"id", "a", "b"} <= set(found.names)


def test_files_of_one_topic_are_found_in_all_folders(folder: Folder) -> None:
    letters = {"errors.tolerance": "all", "errors.deadletterqueue.table": "dead"}
    sink = folder.made(keys=BY_RECORD | letters | {"provenance": "true"})
    sink.prepare(["a"])
    sink.start(firsts({A: 0}))
    sink.commit([advance(0, 3, topic="a")], Commit([routed("x", 0, 1, 2), routed("y.z", 2, 3)]))
    assert {f.partition("/")[0] for f in folder.files()} == {"x", "y.z"}
    snapshot = sink.gathered(["a"], lambda _: ())
    assert sorted(snapshot.records["a"].column("offset").to_pylist()) == [0, 1, 2]


@pytest.mark.parametrize(
    ("to", "why"),
    [
        ("", "1 to 249 characters"),
        ("x" * 250, "1 to 249 characters"),
        ("é" * 240, "too many for a folder's name"),
        ("dead", "holds dead letters"),
    ],
)
def test_a_record_that_names_no_folder_is_rejected(folder: Folder, to: str, why: str) -> None:
    letters = {"errors.tolerance": "all", "errors.deadletterqueue.table": "dead"}
    sink = folder.made(keys=BY_RECORD | letters)
    sink.prepare(["a"])
    sink.start(firsts({A: 0}))
    with pytest.raises(RowsRejected) as refusal:
        sink.stage(Commit([routed("x", 0, 1), routed(to, 1, 2)]))
    assert [(r.topic, r.offset) for r in refusal.value.rejected] == [("a", 1)]
    assert why in refusal.value.rejected[0].message


def test_a_tombstone_that_names_no_folder_is_rejected(folder: Folder) -> None:
    sink = folder.made(keys=BY_RECORD | {"behavior.on.null.values": "fail"})
    gone = routed("x" * 250, 1, 2, 3)
    tombstones = replace(gone, rows=gone.rows.slice(0, 0), tombstones=gone.rows)
    with pytest.raises(RowsRejected) as refusal:
        sink.stage(Commit([tombstones]))
    assert [r.offset for r in refusal.value.rejected] == [1, 2]


def test_a_folder_without_room_for_its_files_is_the_fault_of_the_record(bucket: Folder) -> None:
    sink = bucket.made(keys=BY_RECORD)
    sink.prepare(["a"])
    sink.start(firsts({A: 0}))
    long = "é" * 161  # six bytes each, in a name
    with pytest.raises(RowsRejected) as refusal:
        sink.stage(Commit([routed("x", 0, 1), routed(long, 1, 2)]))
    assert [r.offset for r in refusal.value.rejected] == [1]
    assert "too many for an object's name" in refusal.value.rejected[0].message


def test_a_sample_with_a_record_that_names_no_folder_is_taken(folder: Folder) -> None:
    sink = folder.made(keys=BY_RECORD)
    sink.accommodate(routed("x" * 250, 0, 1))
    sink.accommodate(routed("y", 1, 2))


def test_dead_letters_are_not_in_the_folder_that_a_router_names(folder: Folder) -> None:
    with pytest.raises(ConfigError, match="is the folder of topic a too"):
        folder.made(keys=TO_ONE | {"errors.deadletterqueue.table": "t"})


def test_names_tell_topics_apart_whatever_the_delimiter() -> None:
    naming = Naming("-", 10, 0, 0, 1)
    name = naming.name("a-1", 2, 0, 9, ".json")
    assert naming.pattern("a-1", ".json").fullmatch(name)
    assert not naming.pattern("a", ".json").fullmatch(name)
