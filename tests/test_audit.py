"""The audit finds what is wrong, and only that."""

# ruff: noqa: F401, F811
from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame

from semel.audit import audit
from semel.core import failpoints
from semel.core.errors import ConfigError, NothingToAudit
from semel.kafka import reader
from semel_lab.embedded import Kafka
from tests.conftest import MakeTopic, Produce
from tests.engine.conftest import Config, Configure, Start, configure, points, start
from tests.engine.harness import LocalSpark, caught_up, records, some, sql

pytestmark = pytest.mark.integration

BY_VALUE = {"insert.mode": "upsert", "pk.mode": "record_value", "pk.fields": "id"}
BY_KEY = {
    "insert.mode": "upsert",
    "pk.mode": "record_key",
    "pk.fields": "k",
    "delete.enabled": "true",
}


def verdict(config: Config, transform: Any = None) -> tuple[int, int, bool]:
    report = audit(config, transform)
    return report.lost, report.duplicated, report.kept


@pytest.mark.parametrize(
    "mode",
    some(
        ["insert", "upsert by value", "upsert by key, with deletes"],
        {"insert"},
    ),
)
def test_exact_audit_finds_a_deleted_a_duplicated_and_a_stray_row(
    mode: str, topic: MakeTopic, produce: Produce, configure: Configure
) -> None:
    source = topic()
    if mode == "insert":
        keys, key = {}, "id"
        produce(source, records(20))
    elif mode == "upsert by value":
        keys, key = BY_VALUE, "id"
        produce(source, [*records(20), *records(10)])  # ten of them twice
    else:
        keys, key = BY_KEY, "k"
        numbers = [*range(20), *range(10)]
        produce(source, [*records(20), *records(10)], keys=[f"k{i}" for i in numbers])
    config = configure(source, keys)
    caught_up(config)
    if keys is BY_KEY:
        produce(source, [None, None], keys=["k3", "k15"])
        caught_up(config)
    url = config["connection.url"]
    assert verdict(config) == (0, 0, True)
    if mode != "insert":
        assert audit(config).partitions[0].replaced >= 10
    (picked,) = sql(url, f'SELECT {key}::text FROM "{source}" ORDER BY 1 LIMIT 1')
    sql(url, f"CREATE TABLE kept AS SELECT * FROM \"{source}\" WHERE {key}::text = '{picked}'")
    sql(url, f"DELETE FROM \"{source}\" WHERE {key}::text = '{picked}'")
    assert verdict(config) == (1, 0, False)
    sql(url, f'INSERT INTO "{source}" SELECT * FROM kept')
    assert verdict(config) == (0, 0, True)

    sql(url, f'ALTER TABLE "{source}" DROP CONSTRAINT IF EXISTS "{source}_pkey"')
    sql(url, f'INSERT INTO "{source}" SELECT * FROM kept')
    assert verdict(config) == (0, 1, False)
    sql(url, "UPDATE kept SET __connect_offset = 1000")
    sql(url, f'INSERT INTO "{source}" SELECT * FROM kept')
    assert verdict(config) == (0, 2, False)  # the second one is ahead of the ledger
    assert audit(config).ghosts == 1  # Kafka has never had it
    sql(url, "UPDATE kept SET __connect_offset = 3, __connect_partition = 7")
    sql(url, f'INSERT INTO "{source}" SELECT * FROM kept')
    assert (audit(config).duplicated, audit(config).ghosts) == (3, 2)


@pytest.mark.long
def test_upserted_rows_that_were_deleted_by_hand_are_lost_without_provenance_too(
    topic: MakeTopic, configure: Configure
) -> None:
    source = topic(partitions=2, values=[*records(50), *records(10)])
    config = configure(source, {**BY_VALUE, "provenance": "false"})
    with pytest.raises(NothingToAudit, match=r"ledger holds nothing.*under this name"):
        audit(config)
    caught_up(config)
    assert verdict(config) == (0, 0, True)
    url = config["connection.url"]
    sql(url, f'INSERT INTO "{source}" (id) VALUES (1000)')
    report = audit(config)
    assert (report.lost, report.unknown, report.kept) == (0, 1, False)
    assert "1 of its 51 rows have keys that no record in Kafka writes" in report.not_judged[0]
    sql(url, f'DELETE FROM "{source}"')
    assert verdict(config) == (50, 0, False)


def test_audit_by_counts_finds_a_deleted_and_a_duplicated_row(
    topic: MakeTopic, configure: Configure
) -> None:
    source = topic(partitions=2, values=records(20))
    config = configure(source, {"provenance": "false"})
    caught_up(config)
    url = config["connection.url"]
    assert verdict(config) == (0, 0, True)
    assert not audit(config).exact
    sql(url, f'DELETE FROM "{source}" WHERE id = 3')
    assert verdict(config) == (1, 0, False)
    sql(url, f'INSERT INTO "{source}" SELECT * FROM "{source}" WHERE id IN (4, 5, 6)')
    assert verdict(config) == (0, 2, False)


@pytest.mark.long
@pytest.mark.parametrize("mode", ["by value", "by key, with deletes"])
def test_without_provenance_keys_are_compared_where_rows_replace_each_other(
    mode: str, topic: MakeTopic, produce: Produce, configure: Configure
) -> None:
    by_key = mode != "by value"
    keys, key = (BY_KEY, "k") if by_key else (BY_VALUE, "id")
    names = [f"k{i}" for i in range(20)]
    source = topic(partitions=2, values=records(20), keys=names)
    produce(source, records(10), keys=names[:10])
    config = configure(source, {**keys, "provenance": "false"})
    if by_key:
        produce(source, [None], keys=["k3"])
    caught_up(config)
    url = config["connection.url"]
    assert verdict(config) == (0, 0, True)
    sql(url, f'DELETE FROM "{source}" WHERE id = 5')
    assert verdict(config) == (1, 0, False)
    stray = "'k99'" if by_key else "99"
    sql(url, f'INSERT INTO "{source}" ({key}) VALUES ({stray})')
    report = audit(config)
    assert (report.lost, report.duplicated, report.unknown) == (1, 0, 1)
    assert "rows have keys that no record in Kafka writes" in report.not_judged[0]


@pytest.mark.long
def test_a_row_of_another_time_than_its_record_is_a_ghost(
    topic: MakeTopic, configure: Configure
) -> None:
    source = topic(values=records(10))
    config = configure(source)
    caught_up(config)
    sql(
        config["connection.url"],
        f"UPDATE \"{source}\" SET __connect_timestamp = now() - interval '1 day' WHERE id = 3",
    )
    report = audit(config)
    assert (report.lost, report.duplicated, report.ghosts, report.kept) == (1, 1, 1, False)


def even(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.filter(pc.equal(pc.bit_wise_and(batch.column("id"), 1), 0))


def test_filtered_and_failed_records_are_accounted_for(
    topic: MakeTopic, configure: Configure
) -> None:
    source = topic(values=[*records(20), b"{"])
    config = configure(source, {"errors.tolerance": "all", "errors.deadletterqueue.table": "dead"})
    caught_up(config, even)
    report = audit(config, even)
    assert (report.lost, report.duplicated, report.kept) == (0, 0, True)
    assert (report.partitions[0].filtered, report.partitions[0].failed) == (10, 1)
    sql(config["connection.url"], f'DELETE FROM "{source}" WHERE id = 4')
    assert verdict(config, even) == (1, 0, False)


def test_records_that_retention_has_removed_after_they_were_read_are_not_lost(
    kafka: Kafka, topic: MakeTopic, configure: Configure
) -> None:
    source = topic(values=records(20))
    exact, counts = configure(source), configure(source, {"provenance": "false"})
    counts |= {"table.name.format": "other"}
    caught_up(exact)
    caught_up(counts)
    kafka.delete_records(source, {0: 12})
    for config in (exact, counts):
        assert verdict(config) == (0, 0, True)
        assert audit(config).records == 8
    sql(exact["connection.url"], f'DELETE FROM "{source}" WHERE id = 15')
    assert verdict(exact) == (1, 0, False)


@pytest.mark.long
def test_audit_may_run_while_the_connector_does(
    topic: MakeTopic, produce: Produce, configure: Configure, start: Start
) -> None:
    source = topic(partitions=2)
    config = configure(source, {"consumer.override.max.poll.records": 20})
    running = start(config)
    for batch in range(3):
        produce(source, records(300, start=300 * batch))
        running.until(lambda p, batch=batch: p.rows > 300 * batch)
        assert verdict(config) == (0, 0, True)
    running.stop()


@pytest.mark.long
def test_repeats_under_at_least_once_are_reported_and_the_guarantee_is_kept(
    topic: MakeTopic, configure: Configure, points: Path
) -> None:
    source = topic(values=records(20))
    config = configure(source, {"delivery": "at-least-once"})
    failpoints.arm(points, "deliver.between", "kill-worker")
    caught_up(config, spark=LocalSpark(points))
    assert verdict(config) == (0, 20, True)
    assert verdict({**config, "delivery": "exactly-once"}) == (0, 20, False)


def test_what_update_mode_has_found_no_row_for_is_unknown_not_lost(
    topic: MakeTopic, configure: Configure
) -> None:
    source = topic(values=records(10))
    config = configure(source, {**BY_VALUE, "insert.mode": "update"})
    url = config["connection.url"]
    sql(
        url,
        f'CREATE TABLE "{source}" (id bigint PRIMARY KEY, text text, __connect_topic text, '
        "__connect_partition int, __connect_offset bigint, __connect_timestamp timestamptz)",
    )
    sql(url, f'INSERT INTO "{source}" (id) SELECT generate_series(0, 5)')
    caught_up(config)
    report = audit(config)
    assert (report.lost, report.duplicated, report.unknown, report.kept) == (0, 0, 4, True)


@pytest.mark.long
def test_rows_from_before_provenance_was_switched_on_are_unknown_not_lost(
    topic: MakeTopic, produce: Produce, configure: Configure
) -> None:
    source = topic(partitions=2, values=records(10))
    config = configure(source, {"auto.evolve": "true"})
    caught_up({**config, "provenance": "false"})
    with pytest.raises(ConfigError, match=r"has no column __connect_topic.*provenance=false"):
        audit(config)
    produce(source, records(10, start=10))
    caught_up(config)
    report = audit(config)
    assert (report.lost, report.duplicated, report.unknown, report.kept) == (0, 0, 10, True)
    sql(config["connection.url"], f'DELETE FROM "{source}" WHERE id IN (3, 13)')
    report = audit(config)
    assert (report.lost, report.duplicated, report.unknown, report.kept) == (2, 0, 9, False)


def framed(df: DataFrame) -> DataFrame:
    return df


def test_with_a_dataframe_transform_counts_are_compared(
    topic: MakeTopic, configure: Configure
) -> None:
    source = topic(values=[*records(20), *records(10)])
    config = configure(source, BY_VALUE)
    caught_up(config)
    report = audit(config, framed)
    assert (report.exact, report.lost, report.duplicated, report.kept) == (False, 0, 0, False)
    assert "a DataFrame transform makes them" in report.not_judged[0]
    assert audit(config).exact


@pytest.mark.long
def test_rows_whose_records_compaction_may_have_removed_are_unknown_not_duplicated(
    topic: MakeTopic, produce: Produce, configure: Configure, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_offset_four(*arguments: Any, **named: Any) -> Iterator[Any]:
        for messages in reader.read_ranges(*arguments, **named):
            yield [m for m in messages if m.offset() != 4]

    monkeypatch.setattr("semel.audit.auditor.read_ranges", without_offset_four)
    compacted, plain = topic(config={"cleanup.policy": "compact"}), topic()
    for source, expected in ((compacted, (0, 0, 1, True)), (plain, (0, 1, 0, False))):
        produce(source, records(10), keys=["k"] * 10)
        config = configure(source)
        caught_up(config)
        report = audit(config)
        assert (report.lost, report.duplicated, report.unknown, report.kept) == expected


@pytest.mark.long
def test_a_key_in_several_partitions_is_not_reported_as_lost_or_duplicated(
    topic: MakeTopic, produce: Produce, configure: Configure
) -> None:
    source = topic(partitions=2)
    config = configure(source, BY_VALUE)
    produce(source, records(3), partition=1)
    produce(source, records(2, start=1), partition=1)
    caught_up(config)
    produce(source, records(3), partition=0)  # the newest, at smaller offsets
    caught_up(config)
    report = audit(config)
    assert (report.lost, report.duplicated, report.kept) == (0, 0, True)
    assert report.unknown == 6


def test_a_topic_that_is_no_longer_read_is_not_audited(
    topic: MakeTopic, configure: Configure
) -> None:
    first = topic(values=records(5))
    second = topic(values=records(5))
    config = configure(f"{first},{second}")
    caught_up(config)
    config["topics"] = first
    report = audit(config)
    assert [p.topic for p in report.partitions] == [first]
    assert (report.lost, report.duplicated) == (0, 0)
