"""Rows that do not fit: exactly these records are named, nothing is written, the rest continues."""

from __future__ import annotations

import pyarrow as pa
import pytest

from semel.core.errors import TransientError
from semel.core.ledger import Outcome, TopicPartition, firsts
from semel.core.records import Commit, Records, RowsRejected
from tests.sinks.target import Target, advance, changes, put, records, refused

KEYED = {"pk_mode": "record_key", "pk_fields": "id"}
UPSERT = {"insert_mode": "upsert", **KEYED}
BOTH = pytest.mark.parametrize("mode", ["insert", "upsert"])


def without(batch: Records, offsets: set[int]) -> Records:
    keep = [o not in offsets for o in batch.rows.column("__connect_offset").to_pylist()]
    gone = None
    if batch.tombstones is not None:
        stay = [o not in offsets for o in batch.tombstones.column("__connect_offset").to_pylist()]
        gone = batch.tombstones.filter(pa.array(stay))
    return Records(batch.topic, batch.rows.filter(pa.array(keep)), gone)


@BOTH
def test_rejected_rows_leave_rows_and_positions_as_they_were(target: Target, mode: str) -> None:
    target.execute("CREATE TABLE t (id int PRIMARY KEY, v int CHECK (v < 10))")
    sink = target.sink(**{**UPSERT, "insert_mode": mode}, errors_deadletterqueue_table="dead")
    sink.prepare(["t"])
    tp = TopicPartition("t", 0)
    sink.start(firsts({tp: 0}))
    batch = records([{"v": n} for n in (1, 11, 2, 12, 3)], keys=[1, 2, 3, 4, 5])
    with pytest.raises(RowsRejected) as caught:
        sink.commit([advance(0, 5)], Commit([batch]))
    assert [(r.topic, r.partition, r.offset) for r in caught.value.rejected] == [
        ("t", 0, 1),
        ("t", 0, 3),
    ]
    assert "t_v_check" in caught.value.rejected[0].message
    assert target.values("SELECT id FROM t") == []
    assert sink.start(firsts({tp: 99})) == {tp: 0}
    rest = without(batch, {1, 3})
    assert sink.commit([advance(0, 5)], Commit([rest])) is Outcome.APPLIED
    assert target.values("SELECT v FROM t ORDER BY id") == [1, 2, 3]


@BOTH
def test_not_null(target: Target, mode: str) -> None:
    target.execute("CREATE TABLE t (id int PRIMARY KEY, v int NOT NULL)")
    sink = target.sink(**{**UPSERT, "insert_mode": mode})
    found = refused(sink, records([{"v": 1}, {"v": None}], keys=[1, 2]))
    assert set(found) == {1}
    assert 'null value in column "v"' in found[1].message
    assert "23502" in found[1].message


def test_a_required_column_that_all_records_lack(target: Target) -> None:
    target.execute("CREATE TABLE t (id int, v int, required int NOT NULL)")
    found = refused(target.sink(), records([{"v": 1}, {"v": 2}]))
    assert set(found) == {0, 1}
    assert 'null value in column "required"' in found[0].message


@BOTH
def test_null_keys(target: Target, mode: str) -> None:
    target.execute("CREATE TABLE t (id int UNIQUE, v int)")
    sink = target.sink(**{**UPSERT, "insert_mode": mode})
    found = refused(sink, records([{"v": 1}, {"v": 2}], keys=pa.array([1, None])))
    assert set(found) == {1}
    assert found[1].message == "column id of the key is null"


def test_null_fields_of_struct_keys_and_null_structs(target: Target) -> None:
    target.execute("CREATE TABLE t (a int, b int, v int, PRIMARY KEY (a, b))")
    keys = pa.array([{"a": 1, "b": 1}, {"a": 1, "b": None}, None])
    sink = target.sink(insert_mode="upsert", pk_mode="record_key", key_converter="JsonConverter")
    found = refused(sink, records([{"v": 1}] * 3, keys=keys))
    assert set(found) == {1, 2}


def test_a_tombstone_without_a_key(target: Target) -> None:
    target.execute("CREATE TABLE t (id int PRIMARY KEY, v int)")
    sink = target.sink(delete_enabled="true", **UPSERT)
    found = refused(sink, changes((1, {"v": 1}), (None, None), (2, None)))
    assert set(found) == {1}


def test_a_tombstone_whose_key_does_not_fit(target: Target) -> None:
    target.execute("CREATE TABLE t (id int PRIMARY KEY, v int)")
    sink = target.sink(delete_enabled="true", **UPSERT)
    found = refused(sink, changes((1, {"v": 1}), (2**40, None), (2, None)))
    assert set(found) == {1}
    target.execute("INSERT INTO t VALUES (3, 3)")
    found = refused(sink, changes(("1", {"v": 1}), ("two", None), ("3", None)))
    assert set(found) == {1}


def test_unique_violations_name_the_later_row(target: Target) -> None:
    target.execute("CREATE TABLE t (id int PRIMARY KEY, v int)", "INSERT INTO t VALUES (1, 1)")
    batch = records([{"v": n} for n in range(5)], keys=[1, 2, 3, 2, 4])
    sink = target.sink(**KEYED)
    found = refused(sink, batch)
    assert set(found) == {0, 3}
    assert "Key (id)=(1) already exists" in found[0].message
    put(sink, without(batch, {0, 3}))
    assert target.tuples("SELECT * FROM t ORDER BY id") == [(1, 1), (2, 1), (3, 2), (4, 4)]


def test_another_unique_index_than_the_key(target: Target) -> None:
    target.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v int UNIQUE)", "INSERT INTO t VALUES (1, 1), (2, 2)"
    )
    sink = target.sink(**UPSERT)
    batch = records([{"v": 5}, {"v": 2}, {"v": 6}], keys=[1, 3, 4])
    assert set(refused(sink, batch)) == {1}
    put(sink, without(batch, {1}))
    assert target.tuples("SELECT * FROM t ORDER BY id") == [(1, 5), (2, 2), (4, 6)]


def test_foreign_keys_of_rows_and_of_tombstones(target: Target) -> None:
    target.execute(
        "CREATE TABLE parents (id int PRIMARY KEY)",
        "CREATE TABLE t (id int PRIMARY KEY, parent int REFERENCES parents)",
        "CREATE TABLE children (parent int REFERENCES t)",
        "INSERT INTO parents VALUES (1)",
        "INSERT INTO t VALUES (7, 1), (8, 1)",
        "INSERT INTO children VALUES (7)",
    )
    sink = target.sink(delete_enabled="true", **UPSERT)
    batch = changes((1, {"parent": 1}), (2, {"parent": 2}), (7, None), (8, None))
    found = refused(sink, batch)
    assert set(found) == {1, 2}
    assert all("23503" in r.message for r in found.values())
    put(sink, without(batch, {1, 2}))
    assert target.values("SELECT id FROM t ORDER BY id") == [1, 7]


def test_constraints_checked_at_commit(target: Target) -> None:
    target.execute(
        "CREATE TABLE t (id int PRIMARY KEY, next int REFERENCES t DEFERRABLE INITIALLY DEFERRED)"
    )
    sink = target.sink(**UPSERT)
    put(sink, records([{"next": 2}, {"next": 1}], keys=[1, 2]))  # fine together
    batch = records([{"next": 1}, {"next": 99}], keys=[3, 4])
    found = refused(sink, batch)
    assert set(found) == {1}
    put(sink, without(batch, {1}))
    assert target.values("SELECT id FROM t ORDER BY id") == [1, 2, 3]


def test_a_row_for_no_partition(target: Target) -> None:
    target.execute(
        "CREATE TABLE t (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE t_low PARTITION OF t FOR VALUES FROM (0) TO (10)",
    )
    found = refused(target.sink(**UPSERT), records(pa.table({"id": [1, 99]}), keys=[1, 99]))
    assert set(found) == {1}


@BOTH
def test_a_trigger_that_raises(target: Target, mode: str) -> None:
    target.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v int)",
        "CREATE FUNCTION judge() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "IF NEW.v > 10 THEN RAISE EXCEPTION 'v is %', NEW.v; END IF; RETURN NEW; END $$",
        "CREATE TRIGGER judge BEFORE INSERT OR UPDATE ON t FOR EACH ROW EXECUTE FUNCTION judge()",
    )
    sink = target.sink(**{**UPSERT, "insert_mode": mode})
    found = refused(sink, records([{"v": 1}, {"v": 11}], keys=[1, 2]))
    assert set(found) == {1}
    assert "v is 11" in found[1].message


def test_several_reasons_in_several_topics_are_found_at_once(target: Target) -> None:
    target.execute(
        "CREATE TABLE a (id int PRIMARY KEY, v int CHECK (v < 10), s text, ip inet)",
        "CREATE TABLE b (id int PRIMARY KEY, v varchar(3))",
    )
    rows = [
        {"v": 1, "s": "x", "ip": "10.0.0.1"},
        {"v": 11, "s": "x", "ip": None},
        {"v": 2, "s": "x\0", "ip": None},
        {"v": 3, "s": "x", "ip": "?"},
    ]
    one = records(rows, topic="a", keys=[1, 2, 3, 4])
    two = records([{"v": "abc"}, {"v": "abcd"}], topic="b", keys=[1, 2], offsets=[70, 71])
    with pytest.raises(RowsRejected) as caught:
        put(target.sink(**UPSERT), one, two)
    assert {(r.topic, r.offset) for r in caught.value.rejected} == {
        ("a", 1),
        ("a", 2),
        ("a", 3),
        ("b", 71),
    }


def test_rows_dropped_for_a_later_change_of_their_key_are_not_judged(target: Target) -> None:
    target.execute("CREATE TABLE t (id int PRIMARY KEY, v int CHECK (v < 10))")
    sink = target.sink(delete_enabled="true", **UPSERT)
    put(sink, changes((1, {"v": 11}), (1, {"v": 1}), (2, {"v": 12}), (2, None)))
    assert target.tuples("SELECT id, v FROM t") == [(1, 1)]


def test_updates_are_judged_too(target: Target) -> None:
    target.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v int CHECK (v < 10))",
        "INSERT INTO t VALUES (1, 1), (2, 2)",
    )
    sink = target.sink(insert_mode="update", **KEYED)
    assert set(refused(sink, records([{"v": 3}, {"v": 13}, {"v": 14}], keys=[1, 2, 3]))) == {1}


def test_provenance_and_tombstones_go_together(target: Target) -> None:
    sink = target.sink(delete_enabled="true", provenance="true", auto_create="true", **UPSERT)
    put(sink, changes((1, {"v": 1}), (2, {"v": 2}), (1, None), (2, {"v": 3})))
    assert target.tuples("SELECT id, v, __connect_offset FROM t") == [(2, 3, 3)]


def test_a_batch_of_nothing_but_bad_rows_is_judged_in_seconds(target: Target) -> None:
    target.execute("CREATE TABLE t (id int PRIMARY KEY, v int CHECK (v < 0), s text)")
    size = 20_000
    batch = records(
        pa.table({"v": list(range(size)), "s": [f"text {n}" for n in range(size)]}),
        keys=list(range(size)),
    )
    assert len(refused(target.sink(**UPSERT), batch)) == size


def test_a_rejection_that_is_gone_when_looked_for_may_be_tried_again(target: Target) -> None:
    """Another writer's row with the same key came and went."""
    target.execute(
        "CREATE TABLE t (id int)",
        "CREATE TABLE calls (n int)",
        "CREATE SEQUENCE attempts",
        "CREATE FUNCTION once() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "IF nextval('attempts') = 1 THEN RAISE unique_violation; END IF; RETURN NEW; END $$",
        "CREATE TRIGGER once BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION once()",
    )
    sink = target.sink()
    with pytest.raises(TransientError, match="23505"):
        put(sink, records([{"id": 1}]))
    put(sink, records([{"id": 1}]))
    assert target.values("SELECT id FROM t") == [1]


def test_a_views_check_option_refuses_its_rows_only(target: Target) -> None:
    target.execute("CREATE TABLE base (id int, v int)")
    target.execute("CREATE VIEW t AS SELECT * FROM base WHERE v < 10 WITH CHECK OPTION")
    found = refused(target.sink(), records([{"id": 1, "v": 1}, {"id": 2, "v": 11}]))
    assert set(found) == {1}
    assert "(44000)" in found[1].message


def test_nan_where_the_database_needs_a_whole_number_is_that_records_fault(target: Target) -> None:
    target.execute(
        "CREATE TABLE t (id int, f float8, "
        "n bigint GENERATED ALWAYS AS ((f::numeric)::bigint) STORED)"
    )
    found = refused(target.sink(), records([{"id": 1, "f": 1.0}, {"id": 2, "f": float("nan")}]))
    assert set(found) == {1}
    assert "cannot convert NaN to bigint" in found[1].message


def test_a_text_that_the_database_cannot_read_is_named_with_its_column(target: Target) -> None:
    target.execute("CREATE TABLE t (id int, address inet, words text)")
    rows = [
        {"id": 1, "address": "10.0.0.1", "words": "x"},
        {"id": 2, "address": "nowhere", "words": "x"},
        {"id": 3, "address": None, "words": "\0"},
    ]
    found = refused(target.sink(), records(rows))
    assert {n: r.message.partition(":")[0] for n, r in found.items()} == {
        1: "column address",
        2: "column words",
    }
