"""insert, upsert and update; keys; tombstones."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest
from adbc_driver_postgresql import dbapi

from semel.core.errors import ConfigError
from semel.core.ledger import TopicPartition, firsts
from semel.core.records import Commit, Records
from semel.sinks.postgresql import writer
from tests.engine.harness import some, wait_until
from tests.patience import PATIENCE
from tests.sinks.target import Target, changes, metadata, put, records, refused

KEYED = {"pk_mode": "record_key", "pk_fields": "id"}
UPSERT = {"insert_mode": "upsert", **KEYED}
TABLE = "CREATE TABLE t (id bigint PRIMARY KEY, v text, n int)"


MERGES, IDS = [1, writer.MERGE_FROM], ["merge", "on-conflict"]
by_both = pytest.mark.parametrize("statement", MERGES, ids=IDS, indirect=True)


@pytest.fixture(autouse=True, params=some(MERGES, {1}), ids=IDS)
def statement(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few rows are upserted by another statement than many.

    Other files' rows are few; here the short tests use the statement for many, some of them both.
    """
    monkeypatch.setattr(writer, "MERGE_FROM", request.param)


def test_inserts_go_into_the_table(target: Target) -> None:
    target.execute("CREATE TABLE t (a int, b text)")
    put(target.sink(), records([{"a": 1, "b": "x"}, {"a": 2, "b": None}]))
    assert target.tuples("SELECT a, b FROM t ORDER BY a") == [(1, "x"), (2, None)]


@by_both
def test_upsert_inserts_and_overwrites(target: Target) -> None:
    target.execute(TABLE, "INSERT INTO t VALUES (1, 'old', 1), (3, 'other', 3)")
    put(target.sink(**UPSERT), records([{"v": "new"}, {"v": "two"}], keys=[1, 2]))
    assert target.tuples("SELECT id, v, n FROM t ORDER BY id") == [
        (1, "new", 1),  # columns that the records lack keep their values
        (2, "two", None),
        (3, "other", 3),
    ]


def test_upsert_applied_again_changes_nothing(target: Target) -> None:
    target.execute(TABLE)
    sink = target.sink(**UPSERT)
    batch = changes((1, {"v": "a"}), (2, {"v": "b"}), (1, {"v": "c"}))
    put(sink, batch)
    before = target.tuples("SELECT * FROM t ORDER BY id")
    put(sink, batch)
    put(target.sink(**UPSERT), batch)
    assert (
        target.tuples("SELECT * FROM t ORDER BY id") == before == [(1, "c", None), (2, "b", None)]
    )


def test_update_changes_only_rows_that_are_there(target: Target) -> None:
    target.execute(TABLE, "INSERT INTO t VALUES (1, 'old', 1)")
    sink = target.sink(insert_mode="update", **KEYED)
    put(sink, records([{"v": "new"}, {"v": "nobody"}], keys=[1, 2]))
    assert target.tuples("SELECT id, v, n FROM t") == [(1, "new", 1)]


def test_update_needs_no_unique_key(target: Target) -> None:
    target.execute("CREATE TABLE t (id bigint, v text)", "INSERT INTO t VALUES (1, 'a'), (1, 'b')")
    sink = target.sink(insert_mode="update", **KEYED)
    sink.prepare(["t"])
    put(sink, records([{"v": "new"}], keys=[1]))
    assert target.values("SELECT v FROM t") == ["new", "new"]


def test_update_of_nothing_but_the_key_changes_nothing(target: Target) -> None:
    target.execute(TABLE, "INSERT INTO t VALUES (1, 'a', 1)")
    put(target.sink(insert_mode="update", **KEYED), records(pa.table({"id": [1]}), keys=[1]))
    assert target.tuples("SELECT * FROM t") == [(1, "a", 1)]


@by_both
def test_upsert_of_nothing_but_the_key_inserts_what_is_missing(target: Target) -> None:
    target.execute(TABLE, "INSERT INTO t VALUES (1, 'a', 1)")
    put(target.sink(**UPSERT), records(pa.table({"id": [1, 2]}), keys=[1, 2]))
    assert target.tuples("SELECT id, v FROM t ORDER BY id") == [(1, "a"), (2, None)]


def test_the_last_change_of_a_key_by_offset_wins_whatever_the_order_of_rows(target: Target) -> None:
    target.execute(TABLE)
    batch = records([{"v": "last"}, {"v": "first"}], keys=[1, 1], offsets=[8, 7])
    put(target.sink(**UPSERT), batch)
    assert target.values("SELECT v FROM t") == ["last"]


def test_rows_of_one_record_end_as_its_last(target: Target) -> None:
    target.execute(TABLE)
    batch = records([{"v": "a"}, {"v": "b"}, {"v": "c"}], keys=[1, 1, 1], offsets=[5, 5, 5])
    put(target.sink(**UPSERT), batch)
    assert target.values("SELECT v FROM t") == ["c"]


@pytest.mark.parametrize("existing", some([False, True], {True}))
@by_both
def test_tombstones_and_rows_of_one_key_take_effect_in_order(
    target: Target, existing: bool
) -> None:
    target.execute(TABLE)
    if existing:
        target.execute("INSERT INTO t SELECT g, 'old', 0 FROM generate_series(1, 5) g")
    put(
        target.sink(delete_enabled="true", **UPSERT),
        changes(
            (1, {"v": "a"}),
            (1, None),
            (2, None),
            (2, {"v": "b"}),
            (3, {"v": "c"}),
            (3, None),
            (3, {"v": "d"}),
            (4, None),
            (9, None),
        ),
    )
    expected = [(2, "b"), (3, "d"), *([(5, "old")] if existing else [])]
    assert target.tuples("SELECT id, v FROM t ORDER BY id") == expected


def test_a_row_after_a_tombstone_of_its_key_starts_anew(target: Target) -> None:
    """Columns that the record lacks do not keep what the deleted row held."""
    target.execute(TABLE, "INSERT INTO t VALUES (1, 'old', 7)")
    put(target.sink(delete_enabled="true", **UPSERT), changes((1, None), (1, {"v": "new"})))
    assert target.tuples("SELECT id, v, n FROM t") == [(1, "new", None)]


def test_tombstones_delete_with_plain_inserts_too(target: Target) -> None:
    target.execute(TABLE, "INSERT INTO t VALUES (1, 'old', 1), (2, 'old', 2)")
    sink = target.sink(delete_enabled="true", **KEYED)
    put(sink, changes((1, None), (1, {"v": "new"}), (3, {"v": "gone"}), (3, None), (2, None)))
    assert target.tuples("SELECT id, v FROM t") == [(1, "new")]


def test_tombstones_alone_delete(target: Target) -> None:
    target.execute(TABLE, "INSERT INTO t VALUES (1, 'old', 1), (2, 'old', 2)")
    put(target.sink(delete_enabled="true", **UPSERT), changes((1, None)))
    assert target.values("SELECT id FROM t") == [2]


def test_tombstones_delete_nothing_unless_enabled(target: Target) -> None:
    target.execute(TABLE, "INSERT INTO t VALUES (1, 'old', 1)")
    put(target.sink(**UPSERT), changes((1, None), (2, {"v": "x"})))
    assert target.values("SELECT id FROM t ORDER BY id") == [1, 2]


def test_deletes_reach_rows_with_json_and_arrays(target: Target) -> None:
    target.execute("CREATE TABLE t (id text PRIMARY KEY, j jsonb, a int[])")
    sink = target.sink(delete_enabled="true", **UPSERT)
    put(
        sink,
        changes(
            ("a", {"j": {"x": 1}, "a": [1, 2]}),
            ("b", {"j": {"x": 2}, "a": []}),
            ("a", None),
            ("b", None),
            ("b", {"j": {"x": 3}, "a": [3]}),
        ),
    )
    assert target.tuples("SELECT id, j->>'x', a::text FROM t") == [("b", "3", "{3}")]


# Keys


def test_fields_of_a_struct_key_become_columns(target: Target) -> None:
    target.execute("CREATE TABLE t (a int, b text, v text, PRIMARY KEY (a, b))")
    keys = pa.array([{"a": 1, "b": "x"}, {"a": 1, "b": "y"}, {"a": 1, "b": "x"}])
    sink = target.sink(insert_mode="upsert", pk_mode="record_key", key_converter="JsonConverter")
    put(sink, records([{"v": "1"}, {"v": "2"}, {"v": "3"}], keys=keys))
    assert target.tuples("SELECT a, b, v FROM t ORDER BY b") == [(1, "x", "3"), (1, "y", "2")]


def test_pk_fields_choose_fields_of_a_struct_key(target: Target) -> None:
    target.execute(TABLE)
    keys = pa.array([{"tenant": 9, "id": 1}])
    put(target.sink(**UPSERT), records([{"v": "x"}], keys=keys))
    assert target.tuples("SELECT id, v FROM t") == [(1, "x")]


def test_a_key_field_that_keys_lack_is_named(target: Target) -> None:
    target.execute(TABLE)
    keys = pa.array([{"tenant": 9, "ident": 1}])
    with pytest.raises(
        ConfigError, match=r"connector c: pk.fields=id: .*no field id.*tenant, ident"
    ):
        put(target.sink(**UPSERT), records([{"v": "x"}], keys=keys))


def test_a_primitive_key_needs_one_column_name(target: Target) -> None:
    target.execute(TABLE)
    sink = target.sink(insert_mode="upsert", pk_mode="record_key", key_converter="JsonConverter")
    with pytest.raises(ConfigError, match=r"pk.fields must name exactly one column"):
        put(sink, records([{"v": "x"}], keys=[1]))


def test_text_keys_become_numbers_where_the_column_is_one(target: Target) -> None:
    target.execute(TABLE)
    sink = target.sink(delete_enabled="true", **UPSERT)
    put(sink, changes(("1", {"v": "a"}), ("2", {"v": "b"}), ("1", None)))
    assert target.tuples("SELECT id, v FROM t") == [(2, "b")]


def test_the_key_column_comes_from_the_key_not_the_value(target: Target) -> None:
    target.execute(TABLE)
    put(target.sink(**UPSERT), records([{"id": 99, "v": "x"}], keys=[1]))
    assert target.values("SELECT id FROM t") == [1]


def test_kafka_coordinates_as_key(target: Target) -> None:
    target.execute(
        "CREATE TABLE t (__connect_topic text, __connect_partition int, __connect_offset bigint, "
        "v text, PRIMARY KEY (__connect_topic, __connect_partition, __connect_offset))"
    )
    sink = target.sink(insert_mode="upsert", pk_mode="kafka")
    sink.prepare(["t"])
    for _ in range(2):
        put(sink, records([{"v": "a"}, {"v": "b"}], offsets=[5, 6], partition=3))
    found = target.tuples("SELECT * FROM t ORDER BY __connect_offset")
    assert found == [("t", 3, 5, "a"), ("t", 3, 6, "b")]


def test_kafka_coordinates_under_other_names(target: Target) -> None:
    target.execute("CREATE TABLE t (tp text, p int, o bigint, v text, PRIMARY KEY (o, p, tp))")
    sink = target.sink(insert_mode="upsert", pk_mode="kafka", pk_fields="tp,p,o")
    put(sink, records([{"v": "a"}], offsets=[5]))
    assert target.tuples("SELECT * FROM t") == [("t", 0, 5, "a")]


def test_value_fields_as_key(target: Target) -> None:
    target.execute("CREATE TABLE t (a int, b int, v text, UNIQUE (b, a))")
    sink = target.sink(insert_mode="upsert", pk_mode="record_value", pk_fields="a,b")
    sink.prepare(["t"])
    rows = [{"a": 1, "b": 1, "v": "x"}, {"a": 1, "b": 2, "v": "y"}, {"a": 1, "b": 1, "v": "z"}]
    put(sink, records(rows))
    assert target.tuples("SELECT a, b, v FROM t ORDER BY b") == [(1, 1, "z"), (1, 2, "y")]


def test_all_value_fields_are_the_key_where_none_are_named(target: Target) -> None:
    target.execute("CREATE TABLE t (a int, b int, PRIMARY KEY (a, b))")
    sink = target.sink(insert_mode="upsert", pk_mode="record_value")
    put(sink, records([{"a": 1, "b": 1}, {"a": 1, "b": 1}, {"a": 2, "b": 1}]))
    assert target.tuples("SELECT a, b FROM t ORDER BY a") == [(1, 1), (2, 1)]


def test_a_key_field_that_neither_values_nor_their_table_have_is_named(target: Target) -> None:
    target.execute(TABLE)
    sink = target.sink(insert_mode="upsert", pk_mode="record_value", pk_fields="nr")
    with pytest.raises(ConfigError, match=r"connector c: .*values of topic t have no field nr"):
        put(sink, records([{"v": "x"}]))


def test_a_record_that_lacks_the_key_of_its_table_is_a_bad_one(target: Target) -> None:
    target.execute(TABLE)
    sink = target.sink(insert_mode="upsert", pk_mode="record_value", pk_fields="id")
    (rejected,) = refused(sink, records([{"v": "x"}])).values()
    assert "column id of the key is null" in rejected.message


KEY_TYPES: Mapping[str, tuple[str, list[Any]]] = {
    "uuid": (
        "uuid",
        ["0c2b3d5e-8f6a-4b1c-9d7e-0123456789ab", "FC2B3D5E-8F6A-4B1C-9D7E-0123456789AB"],
    ),
    "uuid in other forms": ("uuid", ["{0c2b3d5e8f6a4b1c9d7e0123456789ab}", "f" * 32]),
    "text": ("text", ["ä", "z"]),
    "numeric": ("numeric(10, 2)", [pa.scalar(1).as_py(), 2]),
    "double": ("double precision", [1.5, -2.5]),
    "timestamptz": ("timestamptz", ["2024-01-01T00:00:00Z", "2025-01-01T00:00:00Z"]),
    "inet": ("inet", ["10.0.0.1", "10.0.0.2"]),
    "bytea": ("bytea", [b"\x00", b"\xff"]),
    "boolean": ("boolean", [True, False]),
    "varchar": ("varchar(5)", ["a", "b"]),
}


@pytest.mark.parametrize(
    "case", some(KEY_TYPES, {"uuid in other forms", "numeric", "timestamptz", "bytea"})
)
def test_keys_of_any_type_upsert_and_delete(target: Target, case: str) -> None:
    kind, (one, two) = KEY_TYPES[case]
    target.execute(f"CREATE TABLE t (id {kind} PRIMARY KEY, v text)")
    sink = target.sink(delete_enabled="true", **UPSERT)
    put(sink, changes((one, {"v": "a"}), (two, {"v": "b"})))
    put(sink, changes((two, {"v": "c"}), (one, None), (two, {"v": "d"})))
    assert target.values("SELECT v FROM t") == ["d"]


@by_both
def test_keys_that_only_the_server_knows_to_be_equal_end_as_the_last(target: Target) -> None:
    """char(3) ignores spaces at the end."""
    target.execute("CREATE TABLE t (id char(3) PRIMARY KEY, v text)")
    sink = target.sink(**UPSERT)
    batch = changes(("a", {"v": "1"}), ("a ", {"v": "2"}), ("b", {"v": "3"}), ("a", {"v": "4"}))
    put(sink, batch)
    assert sorted(target.values("SELECT v FROM t")) == ["3", "4"]
    put(sink, changes(("a ", {"v": "5"}), ("a", {"v": "6"}), ("b ", {"v": "7"})))
    assert sorted(target.values("SELECT v FROM t")) == ["6", "7"]


def test_an_update_after_a_tombstone_of_its_key_finds_nothing(target: Target) -> None:
    target.execute(TABLE, "INSERT INTO t VALUES (1, 'old', 7), (2, 'old', 8)")
    sink = target.sink(insert_mode="update", delete_enabled="true", **KEYED)
    put(sink, changes((1, None), (1, {"v": "new"}), (2, {"v": "new"})))
    assert target.tuples("SELECT id, v, n FROM t") == [(2, "new", 8)]


# Several topics, several batches


def test_two_topics_into_one_table(target: Target) -> None:
    target.execute(TABLE)
    for keys in (UPSERT, {"insert_mode": "update", **KEYED}):
        sink = target.sink(table_name_format="t", **keys)
        put(
            sink,
            records([{"v": "a"}, {"v": "b"}], topic="one", keys=[1, 2]),
            records([{"v": "c"}, {"v": "d"}], topic="two", keys=[2, 3]),
        )
    assert target.tuples("SELECT id, v FROM t ORDER BY id") == [(1, "a"), (2, "c"), (3, "d")]


def test_staged_inserts_of_two_topics_do_not_mix(target: Target) -> None:
    target.execute("CREATE TABLE t (ip inet, n int)")
    sink = target.sink(table_name_format="t")
    one = records([{"ip": "10.0.0.1", "n": 1}], topic="one")
    two = records([{"ip": "10.0.0.2", "n": 2}], topic="two")
    for _ in range(2):
        put(sink, one, two)
    assert target.values("SELECT n FROM t ORDER BY n") == [1, 1, 2, 2]


def test_batches_with_other_columns_follow_each_other(target: Target) -> None:
    target.execute(TABLE)
    sink = target.sink(**UPSERT)
    put(sink, records([{"v": "a"}], keys=[1]))
    put(sink, records([{"n": 7}], keys=[1]))
    put(sink, records([{"v": "b", "n": 8}], keys=[2]))
    put(sink, records([{"n": 9, "v": "c"}], keys=[2]))
    assert target.tuples("SELECT * FROM t ORDER BY id") == [(1, "a", 7), (2, "c", 9)]


@pytest.mark.long
def test_many_small_upserts_leave_the_staging_table_small(target: Target) -> None:
    target.execute(TABLE, "INSERT INTO t VALUES (1, 'x', 1)")
    sink = target.sink(**UPSERT)
    for n in range(1, 1300):
        put(sink, records([{"n": n}], keys=[1]))
    assert target.values("SELECT n FROM t") == [1299]
    with sink._connection.transaction():
        size = sink._connection.query(
            "SELECT sum(pg_relation_size(oid))::bigint AS size FROM pg_class "
            "WHERE relname LIKE 'semel_stage_%'"
        )
    assert size.column("size")[0].as_py() < 200_000


def test_an_empty_commit_writes_nothing(target: Target) -> None:
    target.execute(TABLE)
    put(target.sink(**UPSERT))
    empty = Records("t", pa.table(metadata("t", [])), None)
    put(target.sink(**UPSERT), empty)
    target.sink(**UPSERT).write(Commit([]))
    assert target.values("SELECT id FROM t") == []


def test_keys_there_already_are_upserted_after_new_ones_and_before(target: Target) -> None:
    """Upserts are first tried as plain inserts; whether that works must not show."""
    target.execute(TABLE)
    sink = target.sink(**UPSERT)
    sink.prepare(["t"])
    sink.start(firsts({TopicPartition("t", 0): 0}))
    put(sink, records([{"v": "a"}, {"v": "b"}], keys=[1, 2]))
    put(sink, records([{"v": "c"}, {"v": "d"}], keys=[2, 3]))
    put(sink, records([{"v": "e"}, {"v": "f"}], keys=[4, 5]))
    for n in range(40):
        put(sink, records([{"n": n}, {"n": n}], keys=[1, 100 + n]))
    assert target.tuples("SELECT id, v, n FROM t WHERE id < 100 ORDER BY id") == [
        (1, "a", 39),
        (2, "c", None),
        (3, "d", None),
        (4, "e", None),
        (5, "f", None),
    ]
    assert target.values("SELECT count(*) FROM t WHERE id >= 100") == [40]


@by_both
def test_a_key_that_somebody_else_inserts_meanwhile_is_upserted_all_the_same(
    target: Target,
) -> None:
    target.execute(TABLE, "INSERT INTO t VALUES (1, 'old', 1)")
    sink = target.sink(**UPSERT)
    put(sink, records([{"v": "new"}], keys=[1]))  # after this one, keys are not taken to be new
    with dbapi.connect(target.url) as other, ThreadPoolExecutor(1) as pool:
        with other.cursor() as cursor:
            cursor.execute("INSERT INTO t VALUES (2, 'theirs', 2)")
        done = pool.submit(put, sink, records([{"v": "ours"}], keys=[2]))
        waiting = (
            "SELECT count(*) FROM pg_stat_activity "
            "WHERE wait_event_type = 'Lock' AND datname = current_database()"
        )
        wait_until(lambda: done.done() or target.values(waiting)[0])
        assert not done.done()
        other.commit()
        done.result(PATIENCE)
    assert target.tuples("SELECT * FROM t ORDER BY id") == [(1, "new", 1), (2, "ours", 2)]


def test_large_upserts_look_keys_up_in_the_index(target: Target) -> None:
    target.execute(
        "CREATE TABLE t (a int, b text, v int, PRIMARY KEY (a, b))",
        "INSERT INTO t SELECT n, 'b' || n, 0 FROM generate_series(1, 20000) AS n",
        "ANALYZE t",
    )
    sink = target.sink(insert_mode="upsert", pk_mode="record_value", pk_fields="a,b")
    put(sink, records([{"a": 1, "b": "b1", "v": 0}]))
    before = target.values("SELECT pg_stat_get_tuples_returned('t'::regclass)")[0]
    size = 2000
    put(sink, records([{"a": n, "b": f"b{n}", "v": n} for n in range(19_001, 19_001 + size)]))
    sink.close()  # statistics are sent at the end of a session
    inserted = "SELECT pg_stat_get_tuples_inserted('t'::regclass)"
    wait_until(lambda: target.values(inserted)[0] >= 21_000)
    after = target.values("SELECT pg_stat_get_tuples_returned('t'::regclass)")[0]
    assert after - before <= size  # a scan would have read them all
    assert target.values("SELECT sum(v)::bigint FROM t") == [sum(range(19_001, 21_001))]
