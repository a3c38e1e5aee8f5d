"""What every SQL database keeps: the ledger rule, ways of writing, tables, bad rows."""

from __future__ import annotations

import datetime
import decimal
import json
import re
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import FrameType
from typing import Any

import pyarrow as pa
import pytest

from semel.core import failpoints
from semel.core.errors import ConfigError, LedgerConflict, ServiceError, TransientError
from semel.core.ledger import (
    RECREATED,
    RETENTION,
    TRUNCATED,
    Hole,
    Outcome,
    Rebase,
    TopicPartition,
    firsts,
)
from semel.core.records import Commit, DeadLetter, RowsRejected
from semel.databases.files import LockFile
from semel.sinks.sql.sink import SqlSink
from tests.databases import SYSTEMS
from tests.engine.harness import some, wait_until
from tests.patience import PATIENCE
from tests.sinks.sql.conftest import MakeSink, Query
from tests.sinks.target import advance, changes, found_running, records, released_at_last

T0 = TopicPartition("t", 0)
UPSERT = {"insert_mode": "upsert", "pk_mode": "record_key", "pk_fields": "k"}


def put(sink: SqlSink, *batches: Any) -> None:
    sink.prepare([])
    sink.write(Commit(batches))


def started(sink: SqlSink) -> SqlSink:
    sink.prepare(["t"])
    assert sink.start(firsts({T0: 0})) == {T0: 0}
    return sink


# The ledger


@pytest.mark.parametrize("sql_url", SYSTEMS, indirect=True)
def test_a_batch_is_applied_as_a_whole_or_conflicts(make: MakeSink, query: Query) -> None:
    sink = make()
    sink.prepare(["t"])
    sink.start(firsts({T0: 0, TopicPartition("t", 1): 5}))
    sink.commit([advance(0, 2)], Commit([records([{"id": 1}, {"id": 2}])]))
    with pytest.raises(LedgerConflict):
        sink.commit([advance(0, 2), advance(5, 6, partition=1)], Commit([records([{"id": 3}])]))
    assert [e.position for e in sink.entries()] == [2, 5]
    assert query("SELECT count(*) FROM t") == [(2,)]


BLOCKED = {
    "mysql": "SELECT count(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'",
    "sqlserver": "SELECT count(*) FROM sys.sysprocesses WHERE blocked <> 0",
}
"""How many transactions wait for another one, as the server knows."""


@pytest.fixture
def is_waiting(sql_url: str, query: Query) -> Callable[[threading.Thread], bool]:
    """Whether a thread waits for another one's transaction to end."""
    system = sql_url.split(":")[1].replace("mariadb", "mysql")

    def frames(thread: threading.Thread) -> Iterator[FrameType]:
        frame = sys._current_frames().get(thread.ident or 0)
        while frame is not None:
            yield frame
            frame = frame.f_back

    def is_waiting(thread: threading.Thread) -> bool:
        if system == "duckdb":
            return any(f.f_code is LockFile.acquire.__code__ for f in frames(thread))
        if system == "sqlite":
            return any(f.f_locals.get("sql") == "BEGIN IMMEDIATE" for f in frames(thread))
        return bool(query(BLOCKED[system])[0][0])

    return is_waiting


def test_whoever_has_waited_for_a_commit_sees_what_it_has_done(
    make: MakeSink,
    query: Query,
    is_waiting: Callable[[threading.Thread], bool],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A zombie commits while its successor waits for the ledger."""
    patient = {"connection_lock_timeout_ms": "600000"}
    zombie, successor = started(make(**patient)), started(make(**patient))
    rows = Commit([records([{"id": 1}, {"id": 2}])])
    outcomes: list[Outcome] = []
    waiting = threading.Thread(
        target=lambda: outcomes.append(successor.commit([advance(0, 2)], rows))
    )

    def hit(place: str) -> None:
        if place == "sink.before_commit" and threading.current_thread() is not waiting:
            waiting.start()
            wait_until(lambda: is_waiting(waiting) or not waiting.is_alive())

    monkeypatch.setattr(failpoints, "hit", hit)
    assert zombie.commit([advance(0, 2)], rows) is Outcome.APPLIED
    waiting.join(PATIENCE)
    assert outcomes == [Outcome.REPLAYED]
    assert query("SELECT id FROM t ORDER BY id") == [(1,), (2,)]


def test_holes_with_one_first_offset_keep_their_reasons(make: MakeSink) -> None:
    sink = started(make())
    sink.commit([advance(0, 7)], Commit([]))
    (old,) = sink.entries()
    former = Hole("t", 0, 0, 7, RECREATED)
    sink.rebase([Rebase(old, replace(old, position=0, topic_id="other"), former)])
    assert sink.commit([advance(0, 3, lost=3)], Commit([])) is Outcome.APPLIED
    assert list(sink.snapshot([]).holes) == [Hole("t", 0, 0, 3), former]
    (entry,) = sink.entries()
    assert (entry.position, entry.records_lost) == (3, 3)
    again = replace(entry, topic_id="third", position=0)
    sink.rebase([Rebase(entry, again, Hole("t", 0, 0, 3, TRUNCATED))])
    assert [h.reason for h in sink.holes()] == [RETENTION, TRUNCATED, RECREATED]


def test_a_guarded_write_obeys_the_rule_without_moving_the_position(
    make: MakeSink, query: Query
) -> None:
    sink = started(make(**UPSERT))
    rows = records([{"v": 1}], keys=["a"])
    assert sink.write(Commit([rows]), [advance(0, 1)]) is Outcome.APPLIED
    assert sink.advance([advance(0, 1)]) is Outcome.APPLIED
    assert sink.write(Commit([rows]), [advance(0, 1)]) is Outcome.REPLAYED
    with pytest.raises(LedgerConflict):
        sink.write(Commit([records([{"v": 0}], keys=["a"])]), [advance(4, 5)])
    assert query("SELECT v FROM t") == [(1,)]


def test_positions_are_changed_by_hand_only_while_no_run_is_alive(make: MakeSink) -> None:
    run, other = started(make()), make()
    run.claim()
    with found_running():
        other.set_positions(firsts({T0: 3}))
    make("d").set_positions(firsts({T0: 1}))
    threading.Timer(0.2, run.close).start()  # whose lock a server lets go of later than that
    with released_at_last():
        other.set_positions(firsts({T0: 3}))
    assert [e.position for e in other.entries()] == [3]
    other.set_positions(None)
    assert other.entries() == []


def test_several_holes_may_begin_at_one_offset(make: MakeSink) -> None:
    sink = started(make())
    sink.commit([advance(0, 9, lost=9)], Commit([]))
    (old,) = sink.entries()
    for reason in (TRUNCATED, RECREATED):
        new = replace(old, topic_id=reason)
        sink.rebase([Rebase(old, new, Hole("t", 0, 0, 9, reason))])
        old = new
    assert sorted(h.reason for h in sink.holes()) == sorted([RETENTION, TRUNCATED, RECREATED])


def test_two_runs_may_be_alive_at_once(make: MakeSink) -> None:
    first, second = started(make()), make()
    first.claim()
    second.claim()
    first.close()
    with found_running():
        make().set_positions(None)
    assert second.entries()


# Writing


@pytest.mark.parametrize("sql_url", SYSTEMS, indirect=True)
def test_upserts_end_as_the_last_change_of_each_key(make: MakeSink, query: Query) -> None:
    sink = make(**UPSERT, delete_enabled="true")
    put(
        sink,
        changes(("a", {"v": 1}), ("A", {"v": 2}), ("a", {"v": 3}), ("b", {"v": 4}), ("b", None)),
    )
    assert query("SELECT k, v FROM t ORDER BY v") == [("A", 2), ("a", 3)]
    put(sink, changes(("a", None), ("a", {"v": 9}), ("A", None), ("c", {"v": 7})))
    assert query("SELECT k, v FROM t ORDER BY v") == [("c", 7), ("a", 9)]


def test_keys_of_spaces_and_of_other_letters_are_keys_of_their_own(
    make: MakeSink, query: Query, sql_url: str
) -> None:
    keys = ["a", "a ", "á", "A", "", "'", '"', "\\", "a\tb\n"]
    if "sqlserver" in sql_url:
        keys.remove("a ")  # which is refused there
    sink = make(**UPSERT)
    put(sink, records([{"v": i} for i in range(len(keys))], keys=keys))
    put(sink, records([{"v": 10 + i} for i in range(len(keys))], keys=keys))
    assert query("SELECT k FROM t ORDER BY v") == [(k,) for k in keys]


@pytest.mark.parametrize("sql_url", SYSTEMS, indirect=True)
def test_updates_change_what_is_there_and_insert_nothing(make: MakeSink, query: Query) -> None:
    put(make(**UPSERT), records([{"v": 1, "w": 1}], keys=["a"]))
    put(make(**{**UPSERT, "insert_mode": "update"}), records([{"v": 2}, {"v": 2}], keys=["a", "b"]))
    assert query("SELECT k, v, w FROM t") == [("a", 2, 1)]


def test_a_null_in_a_column_with_a_default_means_not_given(make: MakeSink, query: Query) -> None:
    query("CREATE TABLE t (id int, v varchar(9) DEFAULT 'new')")
    put(make(), records([{"id": 1, "v": None}, {"id": 2, "v": "x"}]))
    assert sorted(query("SELECT id, v FROM t")) == [(1, "new"), (2, "x")]


@pytest.mark.parametrize("sql_url", SYSTEMS, indirect=True)
def test_a_null_that_a_record_holds_is_written_where_the_column_allows_it(
    make: MakeSink, query: Query
) -> None:
    query(
        "CREATE TABLE t (k int NOT NULL PRIMARY KEY, v varchar(9) DEFAULT 'new', "
        "w int DEFAULT 7 NOT NULL)"
    )
    sink = make(**UPSERT)
    put(sink, records([{"v": "x", "w": 1}], keys=[1]))
    rows = records([{"v": None, "w": None}] * 2, keys=[1, 2])
    put(sink, replace(rows, tells_nulls=True))
    assert sorted(query("SELECT k, v, w FROM t")) == [(1, None, 1), (2, None, 7)]


@pytest.mark.long
@pytest.mark.parametrize("sql_url", SYSTEMS, indirect=True)
def test_a_commit_larger_than_a_packet_goes_in_pieces(
    make: MakeSink, query: Query, sql_url: str
) -> None:
    sink = make(**UPSERT)
    values = [{"v": str(i) * 300_000} for i in range(100)]
    put(sink, records(values, keys=[str(i) for i in range(100)]))
    length = "len" if "sqlserver" in sql_url else "length"
    (found,) = query(f"SELECT count(*), sum({length}(v)) FROM t")
    assert found == (100, 10 * 300_000 + 90 * 600_000)


# Types

MOMENT = datetime.datetime(2024, 2, 29, 23, 59, 59, 123456)
VALUES = {
    "i": pa.array([-(2**63), None], pa.int64()),
    "f": pa.array([0.1, None], pa.float64()),
    "d": pa.array([decimal.Decimal("-12345678901234567890.123"), None], pa.decimal128(38, 3)),
    "e": pa.array([decimal.Decimal("1.10"), None], pa.decimal128(10, 2)),
    "b": pa.array([True, None], pa.bool_()),
    "s": pa.array(['it\'s \\N "ü" \t\n\x1a', None], pa.string()),
    "x": pa.array([bytes(range(256)), None], pa.binary()),
    "y": pa.array([datetime.date(2024, 2, 29), None], pa.date32()),
    "z": pa.array([MOMENT, None], pa.timestamp("us")),
    "u": pa.array([MOMENT, None], pa.timestamp("us", "UTC")),
    "l": pa.array([[1, None], None], pa.list_(pa.int64())),
    "n": pa.array([{"q": '\\ "'}, None], pa.struct([("q", pa.string())])),
}


@pytest.mark.parametrize("sql_url", SYSTEMS, indirect=True)
@pytest.mark.parametrize("mode", some(["insert", "upsert", "update"], {"insert", "update"}))
def test_values_of_every_type_come_back_as_they_were(
    mode: str, make: MakeSink, query: Query
) -> None:
    key = {"pk_mode": "record_value", "pk_fields": "k"}
    rows = pa.table({"k": pa.array([1, 2]), **VALUES})
    if mode == "update":
        put(make(insert_mode="upsert", **key), records(rows.set_column(1, "i", pa.array([5, 5]))))
    put(make(insert_mode=mode, **key), records(rows))
    names = ["CAST(u AS char(40))" if n == "u" else n for n in VALUES]
    first, second = query(f"SELECT {', '.join(names)} FROM t ORDER BY k")
    assert second == (None,) * len(VALUES)
    found = dict(zip(VALUES, first, strict=True))
    assert (found["i"], found["f"], bool(found["b"])) == (-(2**63), 0.1, True)
    assert decimal.Decimal(found["d"]) == decimal.Decimal("-12345678901234567890.123")
    assert decimal.Decimal(str(found["e"])) == decimal.Decimal("1.10")
    assert found["s"] == 'it\'s \\N "ü" \t\n\x1a'
    assert bytes(found["x"]) == bytes(range(256))
    assert str(found["y"]) == "2024-02-29"
    for name in ("z", "u"):
        assert str(found[name]).startswith("2024-02-29 23:59:59.123456")
    assert json.loads(found["l"]) == [1, None]
    assert json.loads(found["n"]) == {"q": '\\ "'}


def test_a_tables_columns_say_what_values_are_read_as(make: MakeSink) -> None:
    sink = make()
    put(sink, records(pa.table(VALUES)))
    schema = sink.schema("t")
    assert schema is not None
    kinds = {n: schema.field(n).type for n in VALUES}
    assert kinds["i"] == pa.int64()
    assert kinds["f"] == pa.float64()
    assert kinds["b"] == pa.bool_()
    assert kinds["s"] == pa.string()
    assert kinds["x"] == pa.binary()
    assert kinds["y"] == pa.date32()
    assert kinds["e"] == pa.decimal128(10, 2)
    assert pa.types.is_timestamp(kinds["u"])
    assert kinds["l"] == kinds["n"] == pa.json_()


# Tables


def test_a_missing_table_is_an_error_unless_it_may_be_created(make: MakeSink) -> None:
    sink = make(auto_create="false")
    with pytest.raises(ConfigError, match=r"table t for topic t does not exist .*auto\.create"):
        sink.prepare(["t"])


@pytest.mark.parametrize("sql_url", SYSTEMS, indirect=True)
def test_new_fields_become_columns_with_auto_evolve_only(make: MakeSink, query: Query) -> None:
    put(make(), records([{"id": 1}]))
    with pytest.raises(ConfigError, match=r"has no column more.*auto\.evolve=true"):
        put(make(), records([{"id": 2, "more": "x"}]))
    put(make(auto_evolve="true"), records([{"id": 2, "more": "x"}]))
    assert query("SELECT id, more FROM t ORDER BY id") == [(1, None), (2, "x")]


@pytest.mark.long
def test_records_that_need_more_columns_than_a_table_can_have_are_refused(
    make: MakeSink, query: Query
) -> None:
    sink = make(auto_evolve="true")
    most = sink.database_class.most_columns
    if most is None:
        pytest.skip("a table may have any number of columns")
    fields = {f"k{n}": [1, None, None] for n in range(most - 1)}
    some_more = {"id": [None, 1, 2], "x": [None, None, 1]}
    with pytest.raises(RowsRejected) as rejection:
        put(sink, records({**fields, "k_last": [1, None, None], "k_more": [1, None, None]}))
    assert [r.offset for r in rejection.value.rejected] == [0]
    message = rejection.value.rejected[0].message
    assert "field k_more does not fit into table t: " in message
    assert f" allows at most {most} columns" in message
    put(sink, records({n: v[1:] for n, v in some_more.items()}))
    with pytest.raises(RowsRejected) as rejection:  # each needs few columns, but all together many
        put(sink, records({f"k{n}": [None] * n + [1] + [None] * (most - n) for n in range(most)}))
    assert [r.offset for r in rejection.value.rejected] == [most - 2, most - 1]
    assert query("SELECT id, x FROM t ORDER BY id") == [(1, None), (2, 1)]


def test_a_field_whose_name_is_too_long_for_a_column_makes_a_bad_record(
    make: MakeSink, query: Query
) -> None:
    sink = make(auto_evolve="true")
    longest = sink.database_class.longest_name
    if longest is None:
        pytest.skip("a name may have any length")
    with pytest.raises(RowsRejected) as rejection:
        put(sink, records([{"id": 1, "n" * (longest + 1): None}, {"n" * (longest + 1): 2}]))
    assert [r.offset for r in rejection.value.rejected] == [1]
    assert f"is longer than the {longest}" in rejection.value.rejected[0].message
    put(sink, records([{"id": 1, "n" * longest: 1}]))
    assert query(f"SELECT {'n' * longest} FROM t") == [(1,)]


def test_fields_that_differ_only_in_case_are_refused(make: MakeSink, query: Query) -> None:
    said = r"fields id and ID of topic t are one column to [\w ]+\. .*field\.exclude\.list"
    with pytest.raises(ConfigError, match=said):
        put(make(), records([{"id": 1, "ID": 2}]))
    put(make(), records([{"id": 1}]))
    for evolve in ("true", "false"):
        with pytest.raises(ConfigError, match=said):
            put(make(auto_evolve=evolve), records([{"id": 2, "ID": 2}]))
    put(make(field_exclude_list="ID"), records([{"id": 2, "ID": 2}]))
    assert query("SELECT id FROM t ORDER BY id") == [(1,), (2,)]


def test_without_quotes_a_field_goes_to_its_column_in_any_case(
    make: MakeSink, query: Query
) -> None:
    query("CREATE TABLE t (Id varchar(9) PRIMARY KEY, UserName varchar(9))")
    step = changes(("a", {"USERNAME": "x"}), ("b", {"USERNAME": "y"}), ("a", None))
    keys = {**UPSERT, "pk_fields": "ID", "delete_enabled": "true"}
    with pytest.raises(ConfigError, match=r"quote\.sql\.identifiers=never"):
        put(make(), records([{"USERNAME": "x"}]))
    sink = make(**keys, quote_sql_identifiers="never")
    sink.prepare(["t"])
    assert sink.lacking("t", ["UserName", "USERNAME", "x"]) == ["x"]
    put(sink, step)
    assert query("SELECT Id, UserName FROM t") == [("b", "y")]
    assert [key.column_names for key in sink.key_of(step) if key is not None] == [["Id"], ["Id"]]
    with pytest.raises(ConfigError, match="fields username and USERNAME of topic t are one column"):
        put(sink, records([{"username": 1, "USERNAME": 2}], keys=["c"]))


def test_a_field_that_no_column_can_be_called_by_makes_a_bad_record(
    make: MakeSink, query: Query
) -> None:
    for sink in (make(), make(auto_evolve="true")):
        for name in ("", "a\0b"):
            with pytest.raises(RowsRejected) as rejection:
                put(sink, records([{"id": 1, name: None}, {name: 2}]))
            (refused,) = rejection.value.rejected
            assert (refused.offset, "name that no column" in refused.message) == (1, True)
        put(sink, records([{"id": 1, "": None}]))
    assert query("SELECT * FROM t") == [(1,), (1,)]


def test_two_sinks_may_add_the_same_column(make: MakeSink, query: Query) -> None:
    first, second = make(auto_evolve="true"), make(auto_evolve="true")
    put(first, records([{"id": 1}]))
    put(second, records([{"id": 2}]))
    put(first, records([{"id": 3, "more": 1}]))
    put(second, records([{"id": 4, "more": 2}]))
    assert query("SELECT more FROM t WHERE id > 2 ORDER BY id") == [(1,), (2,)]


def test_an_upsert_needs_a_unique_key(make: MakeSink, query: Query) -> None:
    query("CREATE TABLE t (k varchar(9), v int)")
    with pytest.raises(ConfigError, match=r"needs a primary key or unique index on \(k\)"):
        make(**UPSERT).prepare(["t"])
    query("CREATE UNIQUE INDEX one ON t (k)")
    put(make(**UPSERT), records([{"v": 1}], keys=["a"]))
    put(make(**UPSERT), records([{"v": 2}], keys=["a"]))
    assert query("SELECT v FROM t") == [(2,)]


def test_an_upsert_does_not_touch_the_row_of_another_unique_key(
    make: MakeSink, query: Query
) -> None:
    query("CREATE TABLE t (k varchar(9) PRIMARY KEY, v int UNIQUE)")
    put(make(**UPSERT), records([{"v": 1}], keys=["a"]))
    with pytest.raises(RowsRejected) as rejection:
        put(make(**UPSERT), records([{"v": 2}, {"v": 1}], keys=["c", "b"]))
    assert [r.offset for r in rejection.value.rejected] == [1]
    put(make(**UPSERT), records([{"v": 3}], keys=["a"]))
    assert query("SELECT k, v FROM t") == [("a", 3)]


@pytest.mark.parametrize("sql_url", ["sqlite", "duckdb"], indirect=True)
def test_a_table_is_found_in_any_case(make: MakeSink, query: Query) -> None:
    collation = "COLLATE NOCASE" if "sqlite" in make().describe()["writes"].lower() else ""
    query(f"CREATE TABLE T (k varchar {collation} PRIMARY KEY, v int)")
    sink = make(**UPSERT, delete_enabled="true")
    put(sink, changes(("a", {"v": 1}), ("A" if collation else "a", None), ("b", {"v": 2})))
    assert query("SELECT k, v FROM t") == [("b", 2)]


@pytest.mark.parametrize("sql_url", ["sqlite", "duckdb"], indirect=True)
def test_a_computed_column_takes_no_values(make: MakeSink, query: Query) -> None:
    query("CREATE TABLE t (a int, twice int GENERATED ALWAYS AS (2 * a))")
    sink = make()
    assert sink.lacking("t", ["a", "twice"]) == ["twice"]
    put(sink, records([{"a": 1, "twice": 7}]))
    assert query("SELECT a, twice FROM t") == [(1, 2)]


def test_names_are_taken_as_they_are(make: MakeSink, query: Query) -> None:
    put(make(table_name_format="My`${topic}"), records([{"select": 1, "a`'b": 2}]))
    assert query('SELECT "select", "a`\'b" FROM "My`t"') == [(1, 2)]


# Bad rows and dead letters


@pytest.mark.parametrize("sql_url", SYSTEMS, indirect=True)
def test_rows_that_the_database_refuses_are_named_and_the_others_can_be_committed(
    make: MakeSink, query: Query
) -> None:
    sink = make(pk_mode="record_value", pk_fields="id")
    started(sink).commit([advance(0, 1)], Commit([records([{"id": 2}])]))
    batch = [{"id": i} for i in (3, 2, 4, 3)]
    with pytest.raises(RowsRejected) as rejection:
        sink.commit([advance(1, 5)], Commit([records(batch, offsets=[1, 2, 3, 4])]))
    assert [(r.topic, r.partition, r.offset) for r in rejection.value.rejected] == [
        ("t", 0, 2),
        ("t", 0, 4),
    ]
    assert re.search("(?i)unique|duplicate", rejection.value.rejected[0].message)
    assert sink.entries()[0].position == 1
    sink.commit([advance(1, 5)], Commit([records([{"id": 3}, {"id": 4}], offsets=[1, 3])]))
    assert query("SELECT id FROM t ORDER BY id") == [(2,), (3,), (4,)]


def test_values_that_do_not_fit_a_column_are_refused_not_changed(
    make: MakeSink, query: Query
) -> None:
    query("CREATE TABLE t (id integer, v decimal(4, 2))")
    sink = make()
    with pytest.raises(RowsRejected) as rejection:
        put(
            sink,
            records({"id": pa.array([1, 2, 3]), "v": pa.array(["1.25", "1.255", "100.00"])}),
        )
    assert [r.offset for r in rejection.value.rejected] == [1, 2]
    with pytest.raises(RowsRejected, match="1 records"):
        put(sink, records({"id": pa.array([1.5]), "v": pa.array(["1"])}))
    assert query("SELECT count(*) FROM t") == [(0,)]


def test_a_null_in_the_key_is_refused(make: MakeSink) -> None:
    with pytest.raises(RowsRejected) as rejection:
        put(make(**UPSERT), records([{"v": 1}, {"v": 2}], keys=["a", None]))
    assert [r.offset for r in rejection.value.rejected] == [1]


def test_dead_letters_are_written_with_the_position_and_the_last_failure_stays(
    make: MakeSink, query: Query
) -> None:
    sink = started(make(**{"errors_deadletterqueue_table": "letters"}))

    def letter(message: str) -> DeadLetter:
        headers = [("h", b"\xff"), ("n", None)]
        return DeadLetter("t", 0, 0, b"\0k", None, headers, 1, "VALUE_CONVERTER", "E", message)

    sink.commit([advance(0, 1)], Commit([], [letter("first")]))
    sink.close()
    make().set_positions(firsts({T0: 0}))
    sink.commit([advance(0, 1)], Commit([], [letter("it's \\ the last")]))
    ((key, value, headers, message),) = query('SELECT "key", value, headers, message FROM letters')
    assert (bytes(key), value, message) == (b"\0k", None, "it's \\ the last")
    assert json.loads(headers) == [["h", "\\xff"], ["n", None]]
    assert sink.snapshot(["t"]).dead["t"].to_pylist() == [{"partition": 0, "offset": 0}]


# Configuration


def test_the_guarantee_names_the_system(make: MakeSink) -> None:
    support = make().support()
    assert all(s.reason for s in support.values())
    assert [s.kept for s in support.values()] == [True, False]
    assert all(s.kept for s in make(**UPSERT).support().values())


@pytest.mark.parametrize("url", ["jdbc:oracle:thin:@x", "nonsense", ""])
def test_a_url_of_another_system_is_refused(url: str, make: MakeSink) -> None:
    with pytest.raises(ConfigError, match=r"connection\.url"):
        make(connection_url=url)


def test_a_database_that_cannot_be_reached_is_named(make: MakeSink, sql_url: str) -> None:
    system = sql_url.split(":")[1]
    servers = {
        **dict.fromkeys(("mariadb", "mysql"), "//127.0.0.1:9/x"),
        "sqlserver": "//127.0.0.1:9;databaseName=x",
    }
    nowhere = servers.get(system, "/nowhere/at/all")
    expected = TransientError if system in servers else (ConfigError, ServiceError)
    with pytest.raises(expected, match=r"127\.0\.0\.1:9|/nowhere/at"):
        make(connection_url=f"jdbc:{system}:{nowhere}").prepare(["t"])
