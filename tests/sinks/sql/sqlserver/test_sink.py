"""What only SQL Server does."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest

from semel.core.errors import TransientError
from semel.core.ledger import Outcome, TopicPartition, firsts
from semel.core.records import Commit, RowsRejected
from semel.databases.sqlserver import SqlServer
from semel.sinks.sql.sink import SqlSink
from tests.sinks.sql.conftest import MakeSink, Query
from tests.sinks.target import advance, changes, found_running, records

pytestmark = pytest.mark.parametrize("sql_url", ["sqlserver"], indirect=True)

T0 = TopicPartition("t", 0)
UPSERT = {"insert_mode": "upsert", "pk_mode": "record_key", "pk_fields": "k"}
BY_ID = {"pk_mode": "record_value", "pk_fields": "id"}


def put(sink: SqlSink, values: Any, keys: list[Any] | None = None) -> None:
    sink.prepare(["t"])
    sink.write(Commit([records(values, keys=keys)]))


def of(sink: SqlSink) -> SqlServer:
    assert isinstance(sink._dialect, SqlServer)
    return sink._dialect


_UNFIT = [
    ("tinyint", [1, 256]),
    ("smallint", [1, 40000]),
    ("varchar(3)", ["abc", "abcd"]),
    ("varchar(3)", ["abc", "abc "]),
    ("nvarchar(3)", ["\u4e2d\u6587\u5b57", "abc "]),
    ("nvarchar(3)", ["a\U0001f600", "ab\U0001f600"]),
    ("decimal(4,2)", ["1.25", "1.255"]),
    ("money", ["1.2345", "1.23456"]),
    ("date", ["2024-01-01", "2024-02-30"]),
    ("datetime2", ["2024-01-01T00:00:00", "nonsense"]),
    ("uniqueidentifier", ["6f9619ff-8b86-d011-b42d-00c04fc964ff", "6f9619ff"]),
    ("uniqueidentifier", [f"6f9619ff-8b86-d011-b42d-00c04fc964ff{n}" for n in ("", "0")]),
    ("int CHECK (v < 5)", [1, 7]),
    ("int NOT NULL", [1, None]),
    ("float", [1.5, float("nan")]),
    ("varbinary(2)", [b"ab", b"ab\0"]),
    ("binary(2)", [b"ab", b"a"]),
]


@pytest.mark.parametrize(
    ("mode", "type_", "values"),
    [("insert", *c) for c in _UNFIT] + [(m, *c) for m in ("upsert", "update") for c in _UNFIT[:4]],
)
def test_a_value_that_does_not_fit_is_refused_and_nothing_is_changed_in_silence(
    mode: str, type_: str, values: list[Any], make: MakeSink, query: Query
) -> None:
    query(f"CREATE TABLE t (id int PRIMARY KEY, v {type_})")
    sink = make(insert_mode=mode, **BY_ID)
    if mode == "update":
        start = make(insert_mode="upsert", **BY_ID)
        put(start, {"id": pa.array([0, 1]), "v": pa.array([values[0]] * 2)})
    with pytest.raises(RowsRejected) as rejection:
        put(sink, {"id": pa.array([0, 1]), "v": pa.array(values)})
    assert [r.offset for r in rejection.value.rejected] == [1]
    put(sink, {"id": pa.array([0]), "v": pa.array(values[:1])})


@pytest.mark.parametrize("type_", ["varchar(9)", "char(9)"])
def test_characters_outside_the_code_page_are_refused_or_kept(
    type_: str, make: MakeSink, query: Query
) -> None:
    """Babelfish keeps them, and shows them where they are cast to NVARCHAR."""
    query(f"CREATE TABLE t (id int, v {type_} COLLATE Latin1_General_CI_AS)")
    sink = make()
    put(sink, {"id": pa.array([0]), "v": pa.array(["ä"])})
    with suppress(RowsRejected):
        put(sink, {"id": pa.array([1]), "v": pa.array(["\u4e2d"])})
    found = dict(query("SELECT id, CAST(v AS nvarchar(9)) FROM t"))
    assert found[0].rstrip() == "ä"
    assert found.get(1, "\u4e2d").rstrip() == "\u4e2d"


def test_a_key_that_differs_only_in_spaces_is_refused_not_mistaken_for_the_other(
    make: MakeSink, query: Query
) -> None:
    sink = make(**UPSERT, delete_enabled="true")
    put(sink, [{"v": 1}, {"v": 2}], ["a", "A"])
    for batch, refused in ((["a "], [0]), (["a ", "b", "b  "], [0, 2])):
        with pytest.raises(RowsRejected) as rejection:
            put(sink, [{"v": 9}] * len(batch), batch)
        assert [r.offset for r in rejection.value.rejected] == refused
    sink.write(Commit([changes(("a ", None))]))
    put(make(**{**UPSERT, "insert_mode": "update"}), [{"v": 9}], ["a "])
    put(sink, [{"v": 3}], ["a"])
    assert query("SELECT k, v FROM t ORDER BY v") == [("A", 2), ("a", 3)]


def test_keys_of_bytes_that_differ_in_zeros_at_the_end_are_not_one(
    make: MakeSink, query: Query
) -> None:
    sink = make(**UPSERT, key_converter="org.apache.kafka.connect.converters.ByteArrayConverter")
    put(sink, [{"v": 1}], [b"a"])
    with pytest.raises(RowsRejected) if _pads(query) else pytest.MonkeyPatch.context():
        put(sink, [{"v": 2}], [b"a\0"])
    assert (b"a", 1) in [(bytes(k), v) for k, v in query("SELECT k, v FROM t")]


def _pads(query: Query) -> bool:
    return query("SELECT CASE WHEN 0x61 = 0x6100 THEN 1 ELSE 0 END") == [(1,)]


def test_in_a_table_of_ones_own_keys_that_its_collation_treats_as_equal_are_told_apart(
    make: MakeSink, query: Query
) -> None:
    query("CREATE TABLE t (k nvarchar(9) COLLATE Latin1_General_CI_AS PRIMARY KEY, v int)")
    sink = make(**UPSERT)
    put(sink, [{"v": 1}], ["a"])
    with pytest.raises(RowsRejected) as rejection:
        put(sink, [{"v": 2}, {"v": 3}], ["b", "A"])
    assert [r.offset for r in rejection.value.rejected] == [1]
    put(sink, [{"v": 4}], ["a"])
    assert query("SELECT k, v FROM t") == [("a", 4)]


def test_keys_of_a_fixed_length_are_padded_on_both_sides(make: MakeSink, query: Query) -> None:
    query("CREATE TABLE t (k char(4) COLLATE Latin1_General_CS_AS PRIMARY KEY, v int)")
    sink = make(**UPSERT)
    put(sink, [{"v": 1}], ["a"])
    put(sink, [{"v": 2}], ["a"])
    assert query("SELECT k, v FROM t") == [("a   ", 2)]


def test_values_of_an_identity_column_are_kept_and_missing_ones_are_made(
    make: MakeSink, query: Query
) -> None:
    query("CREATE TABLE t (id int IDENTITY(1, 1) PRIMARY KEY, v int)")
    put(make(), [{"id": 7, "v": 1}, {"id": None, "v": 2}])
    ids = [i for (i,) in query("SELECT id FROM t ORDER BY v")]
    assert ids[0] == 7
    assert ids[1] != 7
    put(make(insert_mode="upsert", **BY_ID), [{"id": 7, "v": 3}, {"id": 20, "v": 4}])
    assert (7, 3) in query("SELECT id, v FROM t")
    assert (20, 4) in query("SELECT id, v FROM t")


def test_computed_columns_are_left_to_the_server(make: MakeSink, query: Query) -> None:
    query("CREATE TABLE t (id int, twice AS id * 2)")
    put(make(), [{"id": 2, "twice": 7}])
    assert query("SELECT id, twice FROM t") == [(2, 4)]


def test_what_a_trigger_refuses_is_a_bad_record(make: MakeSink, query: Query) -> None:
    query("CREATE TABLE t (id int)")
    query(
        "CREATE TRIGGER refuses ON t AFTER INSERT AS "
        "IF EXISTS (SELECT 1 FROM inserted WHERE id = 2) THROW 50001, N'not two', 1"
    )
    with pytest.raises(RowsRejected) as rejection:
        put(make(), [{"id": 1}, {"id": 2}, {"id": 3}])
    assert [r.offset for r in rejection.value.rejected] == [1]
    assert "not two" in rejection.value.rejected[0].message
    put(make(), [{"id": 1}, {"id": 3}])
    assert query("SELECT id FROM t ORDER BY id") == [(1,), (3,)]


def test_connectors_whose_names_no_code_page_has_are_apart(make: MakeSink) -> None:
    for position, name in enumerate(("\u4e2d", "\u6587")):
        sink = make(name)
        sink.prepare(["t"])
        assert sink.start(firsts({T0: position})) == {T0: position}


def test_tables_in_a_schema_of_their_own(make: MakeSink, query: Query) -> None:
    query("CREATE SCHEMA other")
    put(make(table_name_format="other.${topic}"), [{"id": 1}])
    put(make(table_name_format="other.${topic}"), [{"id": 2}])
    assert query("SELECT id FROM other.t ORDER BY id") == [(1,), (2,)]


def test_a_writer_that_waits_for_the_ledger_too_long_comes_again(make: MakeSink) -> None:
    first, second = make(), make(connection_lock_timeout_ms="200")
    first.prepare(["t"])
    first.start(firsts({T0: 0}))
    commit = Commit([records([{"id": 1}])])
    with first._dialect.transaction():
        first._ledger.advance([advance(0, 1)])
        with pytest.raises(TransientError, match="is frozen, end it"):
            second.commit([advance(0, 1)], commit)
    assert second.commit([advance(0, 1)], commit) is Outcome.REPLAYED


def test_a_run_that_begins_while_positions_are_changed_comes_again(make: MakeSink) -> None:
    run, other = make(connection_lock_timeout_ms="100"), make()
    run.prepare(["t"])
    with other._dialect.alone() as alone:
        assert alone
        with pytest.raises(TransientError, match="positions are being changed"):
            run.claim()
    run.claim()
    with found_running():
        other.set_positions(None)


def test_a_session_that_is_lost_between_commits_is_not_noticed(
    make: MakeSink, query: Query
) -> None:
    sink = make()
    sink.prepare(["t"])
    sink.claim()
    put(sink, [{"id": 1}])
    of(sink)._client._connection._tds_socket.sock.close()
    put(sink, [{"id": 2}])
    assert query("SELECT id FROM t ORDER BY id") == [(1,), (2,)]
    with found_running():
        make().set_positions(None)
