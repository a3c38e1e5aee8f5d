"""The bounded direct engine on files: nothing lost, nothing twice, whatever dies when."""

from __future__ import annotations

import json
import resource
import time
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path

import duckdb
import fastavro
import fsspec
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from semel.audit import AuditReport, audit
from semel.core import failpoints
from semel.core.errors import BadRecord, ConfigError, ServiceError
from semel.core.ledger import TopicPartition
from semel.driver.planning import plan
from semel.storage import drivers
from tests.conftest import MakeTopic, Produce
from tests.engine.conftest import Config, Configure, Start
from tests.engine.harness import (
    InlineSpark,
    assert_each_exactly_once,
    caught_up,
    drive,
    name,
    positions,
    records,
    some,
)
from tests.s3 import Bucket, server

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("small_shares")]

COUNT = 300


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An object store in this process: no folders, no renaming."""
    monkeypatch.setattr(drivers, "_EXCLUSIVE", drivers._EXCLUSIVE | {"memory"})
    where = f"memory://bucket-{uuid.uuid4().hex}"
    yield where
    filesystem, root = fsspec.url_to_fs(where)
    filesystem.rm(root, recursive=True)


def visible(config: Config, topic: str) -> list[Path]:
    return sorted(Path(config["path"], topic).rglob("*.parquet"))


def ids(config: Config) -> list[int]:
    """Straight from the files, by a reader that knows nothing of semel."""
    found: list[int] = []
    for topic in config["topics"].split(","):
        for file in visible(config, topic):
            found += pq.read_table(file, partitioning=None).column("id").to_pylist()
    return sorted(found)


def assert_nothing_lost_nothing_twice(config: Config, expected: Iterable[int]) -> AuditReport:
    """Checked twice: by the audit, and straight from the files."""
    return assert_each_exactly_once(config, ids(config), expected)


def test_no_reader_ever_sees_a_file_that_is_not_whole(
    topic: MakeTopic, files: Configure, start: Start
) -> None:
    source = topic(partitions=2, values=records(1000))
    config = files(source)
    running = start(config, until_caught_up=True)
    seen: set[Path] = set()
    while running.alive:
        for file in set(Path(config["path"]).rglob("*.parquet")) - seen:
            assert pq.read_table(file, partitioning=None).num_rows
            seen.add(file)
        time.sleep(0.01)
    running.wait()
    assert seen
    assert_nothing_lost_nothing_twice(config, range(1000))
    shown = [p.name for p in Path(config["path"], source).rglob("*") if p.is_file()]
    assert all(n.startswith(f"{source}+") and n.endswith(".parquet") for n in shown)


@pytest.mark.long
def test_a_replay_may_cut_the_records_into_other_files(
    topic: MakeTopic, produce: Produce, files: Configure, points: Path
) -> None:
    source = topic(partitions=2, values=records(200))
    config = files(source)
    for place in ("sink.before_commit", "sink.after_commit"):
        failpoints.arm(points, place, "kill-worker", skip=1)
        assert drive(config, points) == -9
        produce(source, records(50, start=200 if place == "sink.before_commit" else 250))
        config = {**config, "maxOffsetsPerTrigger": "33", "flush.size": "7"}
    caught_up(config)
    assert_nothing_lost_nothing_twice(config, range(300))


def test_another_folder_is_refused_until_it_is_allowed(
    topic: MakeTopic, produce: Produce, files: Configure, tmp_path: Path
) -> None:
    """The ledger lies beside the files, so it is not there; but the group has a copy of it."""
    source = topic(values=records(20))
    config = files(source)
    caught_up(config, spark=InlineSpark())
    elsewhere = {**config, "path": str(tmp_path / "elsewhere")}
    with pytest.raises(ConfigError, match=rf"copy of a ledger that was at 20 .*{config['path']}"):
        caught_up(elsewhere, spark=InlineSpark())
    produce(source, records(10, start=20))
    caught_up({**elsewhere, "target.changed": "continue"}, spark=InlineSpark())
    assert ids(elsewhere) == [*range(20, 30)]
    report = audit(elsewhere)
    assert (report.lost, report.duplicated, report.complete) == (0, 0, False)
    assert f"{source}-0: offsets 0 to 19 were read before this ledger" in report.not_judged[0]


def test_a_disk_that_fills_up_is_tried_again_and_then_named(
    topic: MakeTopic, produce: Produce, files: Configure
) -> None:
    source = topic(values=records(100))
    config = files(source, {"max.retries": "1", "flush.size": "0"})
    caught_up(config, spark=InlineSpark())
    produce(source, records(100, start=100))
    before = visible(config, source)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (400, limits[1]))
    try:
        with pytest.raises(ServiceError, match=r"gave up after 1 retries.*File too large"):
            caught_up(config, spark=InlineSpark())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert visible(config, source) == before
    caught_up(config)
    assert_nothing_lost_nothing_twice(config, range(200))


@pytest.mark.long
def test_the_disk_is_full_when_the_entry_is_to_be_written(
    topic: MakeTopic, files: Configure, points: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = topic(values=records(100))
    config = files(source, {"max.retries": "20"})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    failed = []

    from semel.sinks.files import sink

    def fill(place: str) -> None:
        if place == "sink.before_commit":
            failed.append(place)
            soft = 10 if len(failed) < 4 else limits[0]
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, limits[1]))

    monkeypatch.setattr(sink, "hit", fill)
    try:
        caught_up(config)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert len(failed) >= 4
    assert_nothing_lost_nothing_twice(config, range(100))


def test_an_object_store_that_copies_instead_of_renaming(
    topic: MakeTopic, files: Configure, bucket: str, points: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = topic(partitions=2, values=records(COUNT))
    config = files(source, {"path": bucket})
    monkeypatch.setattr(failpoints, "_directory", str(points))
    for place in (*failpoints.PLACES, *failpoints.OF_FILES):
        if place.startswith(("sink.", "staging.", "files.")):
            failpoints.arm(points, place, "raise", skip=1)
    caught_up(config, spark=InlineSpark())
    assert len(failpoints.fired(points)) == 5
    filesystem, root = fsspec.url_to_fs(bucket)
    paths = [f for f in filesystem.find(f"{root}/{source}") if f.endswith(".parquet")]
    found = [i for p in paths for i in ds.dataset(p, filesystem=filesystem).to_table()["id"]]
    assert sorted(i.as_py() for i in found) == list(range(COUNT))
    report = audit(config)
    assert (report.lost, report.duplicated, report.exact) == (0, 0, True)


@pytest.mark.parametrize("place", some(["sink.before_commit", "files.between_renames"], ()))
def test_killed_while_it_writes_to_s3(
    place: str, topic: MakeTopic, files: Configure, points: Path
) -> None:
    source = topic(partitions=2, values=records(COUNT))
    with server() as endpoint:
        bucket = Bucket(endpoint)
        config = files(source, {**bucket.options, "path": bucket.where, "flush.size": "30"})
        failpoints.arm(points, place, "kill-worker", skip=2)
        assert drive(config, points) == -9
        caught_up(config, spark=InlineSpark())
        assert bucket.ids() == list(range(COUNT))
        report = audit(config)
    assert (report.lost, report.duplicated, report.exact) == (0, 0, True)


@pytest.mark.parametrize("kind", some(["json", "csv", "avro"], ()))
def test_other_formats_are_exactly_once_too(
    kind: str, topic: MakeTopic, files: Configure, points: Path
) -> None:
    source = topic(partitions=2, values=records(COUNT))
    config = files(source, {"format": kind, "partitioner.class": "none"})
    failpoints.arm(points, "files.between_renames", "kill-worker", skip=2)
    assert drive(config, points) == -9
    caught_up(config)
    report = audit(config)
    assert (report.lost, report.duplicated, report.exact) == (0, 0, True)
    pattern = f"{config['path']}/{source}/*.{kind}"
    if kind == "avro":
        found = []
        for file in Path(config["path"], source).iterdir():
            with file.open("rb") as stream:
                found += [r["id"] for r in fastavro.reader(stream)]  # type: ignore[index,call-overload]
    else:
        with duckdb.connect() as connection:
            query = f"SELECT id FROM read_{kind}('{pattern}', union_by_name=true)"
            found = [row[0] for row in connection.execute(query).fetchall()]
    assert sorted(found) == list(range(COUNT))


@pytest.mark.long
def test_a_bad_record_ends_the_connector_after_everything_before_it(
    topic: MakeTopic, files: Configure
) -> None:
    source = topic(values=[*records(95), b"{not JSON", *records(50, start=95)])
    config = files(source)
    with pytest.raises(BadRecord, match=rf"{source}-0 offset 95 failed in VALUE_CONVERTER"):
        caught_up(config)
    assert positions(config) == {TopicPartition(source, 0): 95}
    assert ids(config) == list(range(95))


def test_a_value_that_does_not_fit_is_a_bad_record(
    topic: MakeTopic, produce: Produce, files: Configure
) -> None:
    source = topic(values=records(10))
    keys = {"errors.tolerance": "all", "errors.deadletterqueue.table": "dead"}
    config = files(source, keys)
    caught_up(config)
    produce(source, [b'{"id": "eleven", "text": "x"}', *records(5, start=10)])
    caught_up(config)
    assert_nothing_lost_nothing_twice(config, range(15))
    letters = ds.dataset(f"{config['path']}/dead", partitioning=None).to_table()
    (letter,) = letters.to_pylist()
    assert letter["offset"] == 10
    assert "cannot" in letter["message"] or "eleven" in letter["message"]


@pytest.mark.long
def test_tombstones_that_fail_are_bad_records(topic: MakeTopic, files: Configure) -> None:
    source = topic(values=[*records(3), None, *records(3, start=3)], keys=list("abcdefg"))
    config = files(source, {"behavior.on.null.values": "fail"})
    with pytest.raises(BadRecord, match=r"offset 3 failed in TASK_PUT: the value is null"):
        caught_up(config)
    assert ids(config) == [0, 1, 2]
    caught_up({**config, "errors.tolerance": "all"})
    report = assert_nothing_lost_nothing_twice(config, range(6))
    assert [p.failed for p in report.partitions] == [1]


@pytest.mark.long
def test_topics_that_match_the_pattern_are_picked_up_while_it_runs(
    topic: MakeTopic, produce: Produce, files: Configure, start: Start
) -> None:
    prefix = name()
    first = topic(prefix=f"{prefix}-a", values=records(20))
    config = files(None, {"topics.regex": f"{prefix}-[ab].*"})
    running = start(config)
    running.until(lambda p: p.rows >= 20)
    second = topic(prefix=f"{prefix}-b", partitions=2, values=records(20, start=20))
    produce(topic(prefix=f"{prefix}-c"), records(5))
    running.stop_when(lambda p: p.rows >= 40)
    assert {e.topic for e in plan(config).sink.entries()} == {first, second}
    named = {k: v for k, v in config.items() if k != "topics.regex"}
    assert_nothing_lost_nothing_twice({**named, "topics": f"{first},{second}"}, range(40))


@pytest.mark.long
def test_fields_that_appear_are_in_the_files_that_follow(
    topic: MakeTopic, produce: Produce, files: Configure
) -> None:
    source = topic(partitions=2, values=records(50))
    config = files(source)
    caught_up(config)
    produce(source, [json.dumps({"id": i, "more": i / 2}).encode() for i in range(50, 200)])
    caught_up(config)
    assert_nothing_lost_nothing_twice(config, range(200))
    query = (
        f"SELECT id, more FROM read_parquet('{config['path']}/{source}/**/*.parquet', "
        "union_by_name=true) ORDER BY id"
    )
    with duckdb.connect() as connection:
        found = connection.execute(query).fetchall()
    assert found == [(i, i / 2 if i >= 50 else None) for i in range(200)]


def test_tombstones_are_left_out_and_counted(topic: MakeTopic, files: Configure) -> None:
    source = topic(values=[*records(10), None, *records(10, start=10)], keys=[b"k"] * 21)
    config = files(source)
    caught_up(config)
    report = assert_nothing_lost_nothing_twice(config, range(20))
    assert sum(p.filtered for p in report.partitions) == 1
    counted = audit({**config, "provenance": "false"})
    assert (counted.lost, counted.duplicated, counted.exact) == (0, 0, False)


def test_folders_by_the_records_time(topic: MakeTopic, files: Configure) -> None:
    source = topic(partitions=2, values=records(100))
    keys = {"partitioner.class": "hourly", "timestamp.extractor": "Record"}
    config = files(source, keys)
    caught_up(config)
    assert_nothing_lost_nothing_twice(config, range(100))
    parts = {p.parent.relative_to(Path(config["path"], source)) for p in visible(config, source)}
    assert all(len(p.parts) == 4 and p.parts[3].startswith("hour=") for p in parts)
