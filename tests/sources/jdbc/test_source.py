"""The JDBC source without Kafka: what is read from real databases, and the offsets after it."""

from __future__ import annotations

import datetime
import itertools
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar

import pytest

from semel.config import read
from semel.core.errors import BadRecord, ConfigError, TransientError
from semel.driver.planning import plan_source
from semel.sources.base import Measurable, Source, SourceBatch
from semel.sources.jdbc import sqlite
from semel.sources.jdbc.config import JdbcSourceConfig
from semel.sources.jdbc.offsets import Position
from semel.sources.jdbc.queries import Query, shape
from semel_lab.embedded import Postgres
from tests.engine.harness import some
from tests.sources.jdbc.conftest import DATABASES, Execute, Make, executed, rows, taken, values

pytestmark = pytest.mark.integration

ORDERS = (
    "CREATE TABLE orders (id INTEGER PRIMARY KEY, text VARCHAR(9), changed TIMESTAMP(6) NOT NULL)"
)
OTHERS = ("sqlite", "duckdb", "mariadb", "sqlserver")
EARLY, LATER = "2024-01-01 00:00:00.250", "2024-01-01 00:00:01"


def insert(*rows: tuple[int, str, str]) -> str:
    return f"INSERT INTO orders VALUES {', '.join(map(str, rows))}"


def ids(found: Sequence[dict[str, Any]]) -> list[int]:
    return [row["id"] for row in found]


@pytest.mark.parametrize("url", some(DATABASES, DATABASES[:4]), indirect=True)
def test_incrementing_reads_new_rows_once_in_their_order(make: Make, execute: Execute) -> None:
    execute(ORDERS, insert((2, "b", EARLY), (1, "a", EARLY)))
    source = make(mode="incrementing", incrementing_column_name="id", table_whitelist="orders")
    found, offset = rows(source)
    assert ids(found) == [1, 2]
    assert found[0]["text"] == "a"
    assert offset == {"incrementing": 2}
    execute(insert((3, "c", EARLY)))
    assert ids(rows(source, offset)[0]) == [3]
    assert rows(source, {"incrementing": 3}) == ([], None)


@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
@pytest.mark.parametrize("ranges", ["0", "2"])
def test_a_number_beyond_64_bits_is_named_at_once(
    ranges: str, make: Make, execute: Execute
) -> None:
    execute(
        "CREATE TABLE t (id numeric(20) PRIMARY KEY, at timestamptz NOT NULL)",
        "INSERT INTO t SELECT n, now() - interval '1 day' "
        f"FROM unnest(ARRAY[1, 2, {2**63 - 1}, {2**63}]) n",
    )
    keys = {"incrementing_column_name": "id", "first_load_range_rows": ranges}
    told = r"table public\.t: column id of type .* has the value 9223372036854775808, but source"
    with pytest.raises(ConfigError, match=told):
        rows(make(mode="incrementing", **keys))
    with pytest.raises(ConfigError, match=told):
        rows(make(mode="timestamp+incrementing", timestamp_column_name="at", **keys))


@pytest.mark.parametrize("url", some(["postgresql", *OTHERS], {"postgresql"}), indirect=True)
def test_a_table_whose_numbers_begin_again_is_reported_once(
    make: Make, execute: Execute, caplog: pytest.LogCaptureFixture
) -> None:
    keys = {"mode": "incrementing", "incrementing_column_name": "id", "table_whitelist": "orders"}
    execute(ORDERS, insert((1, "a", EARLY), (9, "b", EARLY)))
    source = make(**keys)
    assert rows(source)[1] == {"incrementing": 9}
    execute("DELETE FROM orders", insert((1, "new", EARLY)))
    assert rows(source, {"incrementing": 9}) == ([], None)
    told = "orders: the largest id is 1, but rows were read up to 9."
    assert told not in caplog.text  # the table was looked at a moment ago
    source.close()
    again = make(**keys)
    for _ in range(2):
        assert rows(again, {"incrementing": 9}) == ([], None)
    assert caplog.text.count(told) == 1


@pytest.mark.parametrize(
    "url", ["postgresql", *(pytest.param(d, marks=pytest.mark.long) for d in OTHERS)], indirect=True
)
def test_the_numbers_after_an_offset_are_left(make: Make, execute: Execute) -> None:
    def lag(source: Source, offset: dict[str, int] | None = None) -> list[int | None]:
        assert isinstance(source, Measurable)
        assert source.unit == "ids"
        return [count for _, count in source.lag(lambda _: offset)]

    keys = {"mode": "incrementing", "incrementing_column_name": "id", "table_whitelist": "orders"}
    source = make(**keys)
    execute("CREATE TABLE others (id INTEGER)")
    assert lag(source) == [], "there is no table yet"
    execute(ORDERS)
    assert lag(source) == [0]
    execute(insert((101, "a", EARLY), (103, "b", EARLY), (110, "c", EARLY)))
    source.close()  # it continues with another connection
    assert lag(source) == [10]
    assert lag(source, {"incrementing": 103}) == [7]
    assert lag(source, {"incrementing": 999}) == [0]
    assert lag(make(**keys, incrementing_initial="105")) == [5]
    with pytest.raises(ConfigError, match=r"orders: has no column none"):
        lag(make(**{**keys, "incrementing_column_name": "none"}))


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_other_modes_cannot_count_what_is_left(make: Make) -> None:
    by_time = {"timestamp_column_name": "changed"}
    both = {"mode": "timestamp+incrementing", **by_time}
    query = {"query": "SELECT 1 AS id", "mode": "incrementing", "incrementing_column_name": "id"}
    for keys in ({"mode": "bulk"}, {"mode": "timestamp", **by_time}, both, query):
        source = make(**keys)
        assert isinstance(source, Measurable)
        assert source.unit is None


def test_a_reader_goes_on_with_rows_that_come_later(make: Make, execute: Execute) -> None:
    execute(ORDERS)
    source = make(mode="incrementing", incrementing_column_name="id")
    (partition,) = source.partitions()
    reading = source.read(partition, None)
    assert taken(reading) == ([], None)
    execute(insert((1, "a", EARLY)))
    assert ids(taken(reading)[0]) == [1]
    assert taken(reading) == ([], None)


def test_timestamp_reads_rows_that_changed_since(make: Make, execute: Execute) -> None:
    execute(ORDERS, insert((1, "a", EARLY), (2, "b", EARLY), (3, "c", LATER)))
    source = make(mode="timestamp", timestamp_column_name="changed")
    found, offset = rows(source)
    assert ids(found) == [1, 2, 3]
    assert offset == {"timestamp": 1_704_067_201_000, "timestamp_nanos": 0}
    assert found[0]["changed"] == datetime.datetime(2024, 1, 1, 0, 0, 0, 250_000, datetime.UTC)
    execute("UPDATE orders SET text = 'z', changed = '2024-01-01 00:00:02' WHERE id = 2")
    assert [(r["id"], r["text"]) for r in rows(source, offset)[0]] == [(2, "z")]


def test_timestamp_and_number_go_on_among_rows_of_one_time(make: Make, execute: Execute) -> None:
    execute(ORDERS, insert((1, "a", EARLY), (2, "b", EARLY), (3, "c", LATER)))
    source = make(
        mode="timestamp+incrementing",
        timestamp_column_name="changed",
        incrementing_column_name="id",
    )
    inside = {"timestamp": 1_704_067_200_250, "timestamp_nanos": 250_000_000, "incrementing": 1}
    found, offset = rows(source, inside)
    assert ids(found) == [2, 3]
    assert offset == {"timestamp": 1_704_067_201_000, "timestamp_nanos": 0, "incrementing": 3}


def test_rows_younger_than_the_delay_are_left_for_later(make: Make, execute: Execute) -> None:
    execute(ORDERS, "INSERT INTO orders VALUES (1, 'a', CURRENT_TIMESTAMP)")
    keys = {"mode": "timestamp", "timestamp_column_name": "changed"}
    assert rows(make(timestamp_delay_interval_ms="3600000", **keys)) == ([], None)


def test_a_row_that_commits_after_the_snapshot_began_is_not_passed_over(
    make: Make, execute: Execute, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time that bounds a query is not later than its snapshot: else a later row of the snapshot
    would be read, and the earlier one never."""
    if url.startswith("jdbc:duckdb:"):
        pytest.skip("nobody writes while the file is open")
    if url.startswith("jdbc:sqlite:"):
        execute("PRAGMA journal_mode = WAL")  # else nobody writes while rows are read
    source = make(mode="timestamp", timestamp_column_name="changed")
    database = source._database  # type: ignore[attr-defined]
    described = database.columns
    execute(ORDERS)
    (partition,) = source.partitions()
    reading = source.read(partition, None)
    assert taken(reading) == ([], None)
    moment = datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)
    earlier = moment - datetime.timedelta(milliseconds=100)
    clock = [moment - datetime.timedelta(seconds=1)]
    monkeypatch.setattr(database, "now", lambda: int(clock[-1].timestamp() * 1_000_000))

    def late(table: Any) -> Any:
        found = described(table)
        monkeypatch.setattr(database, "columns", described)
        execute(insert((1, "late", written(earlier))))
        clock.append(moment + datetime.timedelta(seconds=1))
        return found

    execute(insert((2, "there", written(moment))))
    monkeypatch.setattr(database, "columns", late)
    with closing(reading):  # type: ignore[type-var]
        assert [n for _ in range(2) for n in ids(taken(reading)[0])] == [1, 2]


def written(moment: datetime.datetime) -> str:
    return moment.replace(tzinfo=None).isoformat(" ", "milliseconds")


def test_timestamp_initial_is_stored_so_that_a_restart_begins_there_too(
    make: Make, execute: Execute
) -> None:
    execute(ORDERS, insert((1, "a", EARLY), (2, "b", LATER)))
    keys = {"mode": "timestamp", "timestamp_column_name": "changed"}
    assert ids(rows(make(timestamp_initial="1704067200500", **keys))[0]) == [2]
    found, offset = rows(make(timestamp_initial="-1", **keys))
    assert found == []
    assert offset is not None
    assert offset["timestamp"] > 1_704_067_201_000


def test_bulk_reads_all_rows_together_at_each_poll(make: Make, execute: Execute) -> None:
    execute(ORDERS, insert((1, "a", EARLY), (2, "b", EARLY)))
    source = make(mode="bulk")
    (partition,) = source.partitions()
    reading = source.read(partition, None)
    first, second = next(reading), next(reading)
    assert isinstance(first, SourceBatch)
    assert isinstance(second, SourceBatch)
    assert ids(values(first)) == ids(values(second)) == [1, 2]
    assert first.offset.keys() == {"bulk"}


def test_a_query_goes_to_the_topic_of_the_prefix(make: Make, execute: Execute) -> None:
    execute(ORDERS, insert((1, "a", EARLY), (2, "b", EARLY)))
    source = make(
        query="SELECT id, upper(text) AS text FROM orders WHERE text <> 'x'; ",
        mode="incrementing",
        incrementing_column_name="id",
        topic_prefix="chosen",
    )
    assert source.partitions() == [{"query": "query"}]
    assert source.topics() == [source.topic_of(p) for p in source.partitions()] == ["chosen"]
    assert rows(source) == (
        [{"id": 1, "text": "A"}, {"id": 2, "text": "B"}],
        {"incrementing": 2},
    )
    assert ids(rows(source, {"incrementing": 1})[0]) == [2]


def test_tables_and_views_are_chosen(make: Make, execute: Execute) -> None:
    execute(ORDERS, "CREATE TABLE other (id INTEGER)", "CREATE VIEW seen AS SELECT * FROM orders")

    def tables(**keys: str) -> list[str]:
        return [p["table"].rpartition(".")[2] for p in make(mode="bulk", **keys).partitions()]

    source = make(mode="bulk")
    assert [source.topic_of(p) for p in source.partitions()] == ["t-orders", "t-other"]
    assert tables() == ["orders", "other"]
    assert tables(table_blacklist="other, third") == ["orders"]
    assert tables(table_types=" view, table") == ["orders", "other", "seen"]
    with pytest.raises(ConfigError, match=r"table\.types=SYNONYM must be one of TABLE.*, VIEW"):
        tables(table_types="SYNONYM")


def test_null_in_an_incrementing_column_is_refused_or_left_out_with_a_warning(
    make: Make, execute: Execute, caplog: pytest.LogCaptureFixture
) -> None:
    execute("CREATE TABLE t (id BIGINT)", "INSERT INTO t VALUES (1), (NULL), (2)")
    keys = {"mode": "incrementing", "incrementing_column_name": "id"}
    with pytest.raises(
        ConfigError, match=r"t: incrementing column id may be null.*non\.null=false"
    ):
        rows(make(**keys))
    with caplog.at_level(logging.WARNING):
        assert ids(rows(make(validate_non_null="false", **keys))[0]) == [1, 2]
    assert "rows with null in id are not read" in caplog.text


def test_a_table_without_the_declared_column_is_refused(make: Make, execute: Execute) -> None:
    execute("CREATE TABLE t (id BIGINT NOT NULL, text TEXT)")
    with pytest.raises(ConfigError, match=r"table .*t: has no column number.*It has id, text"):
        rows(make(mode="incrementing", incrementing_column_name="number"))


def test_a_column_that_is_added_comes_along(make: Make, execute: Execute) -> None:
    execute("CREATE TABLE t (id INTEGER PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    source = make(mode="incrementing", incrementing_column_name="id")
    (partition,) = source.partitions()
    reading = source.read(partition, None)
    assert taken(reading)[0] == [{"id": 1}]
    execute("ALTER TABLE t ADD COLUMN more TEXT", "INSERT INTO t VALUES (2, 'x')")
    assert taken(reading)[0] == [{"id": 2, "more": "x"}]


def test_a_column_that_is_dropped_or_becomes_wider_is_read_as_it_is_now(
    make: Make, execute: Execute, url: str
) -> None:
    execute(
        "CREATE TABLE t (id INTEGER NOT NULL, gone TEXT, wide SMALLINT)",
        "INSERT INTO t VALUES (1, 'x', 7)",
    )
    source = make(mode="incrementing", incrementing_column_name="id")
    (partition,) = source.partitions()
    reading = source.read(partition, None)
    assert taken(reading)[0] == [{"id": 1, "gone": "x", "wide": 7}]
    execute("ALTER TABLE t DROP COLUMN gone", *widened(url), f"INSERT INTO t VALUES (2, {2**40})")
    assert taken(reading)[0] == [{"id": 2, "wide": 2**40}]
    execute("ALTER TABLE t RENAME COLUMN id TO number")
    with pytest.raises(ConfigError, match=r"t: has no column id, .*It has number, wide"):
        taken(reading)


def widened(url: str) -> list[str]:
    """Statements that make a larger number fit; SQLite's columns take any."""
    if url.startswith("jdbc:sqlite"):
        return []
    if url.startswith(("jdbc:mariadb", "jdbc:mysql")):
        return ["ALTER TABLE t MODIFY wide BIGINT"]
    if url.startswith("jdbc:sqlserver"):
        return ["ALTER TABLE t ALTER COLUMN wide BIGINT"]
    return ["ALTER TABLE t ALTER COLUMN wide TYPE BIGINT"]


def test_a_table_that_is_not_there_any_more_is_waited_for(
    make: Make, execute: Execute, caplog: pytest.LogCaptureFixture
) -> None:
    execute("CREATE TABLE t (id INTEGER PRIMARY KEY)")
    source = make(mode="incrementing", incrementing_column_name="id")
    (partition,) = source.partitions()
    reading = source.read(partition, None)
    execute("DROP TABLE t")
    assert taken(reading) == ([], None)
    assert "t is not there, or has no columns: waiting for it" in caplog.text
    execute("CREATE TABLE t (id INTEGER PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    assert ids(taken(reading)[0]) == [1]


@pytest.mark.parametrize("mapping", ["none", "best_fit"])
def test_values_keep_their_type(make: Make, execute: Execute, mapping: str) -> None:
    execute(
        "CREATE TABLE t (id INTEGER PRIMARY KEY, whole NUMERIC(5,0), part NUMERIC(7,2), "
        "ratio DOUBLE PRECISION, yes BOOLEAN, day DATE, text TEXT)",
        "INSERT INTO t VALUES (1, 12, 3.25, 0.5, TRUE, '2024-02-29', 'ü'), "
        "(2, NULL, NULL, NULL, NULL, NULL, NULL)",
    )
    found, _ = rows(
        make(mode="incrementing", incrementing_column_name="id", numeric_mapping=mapping)
    )
    best = mapping == "best_fit"
    assert found == [
        {
            "id": 1,
            "whole": 12 if best else Decimal(12),
            "part": 3.25 if best else Decimal("3.25"),
            "ratio": 0.5,
            "yes": True,
            "day": datetime.date(2024, 2, 29),
            "text": "ü",
        },
        {
            "id": 2,
            **dict.fromkeys(("whole", "part", "ratio", "yes", "day", "text")),
        },
    ]


@pytest.mark.parametrize("url", ["postgresql", "duckdb"], indirect=True)
def test_times_without_a_zone_are_of_the_databases(make: Make, execute: Execute) -> None:
    execute(ORDERS, insert((1, "a", "2024-07-01 12:00:00"), (2, "b", "2024-07-01 13:00:00")))
    source = make(mode="timestamp", timestamp_column_name="changed", db_timezone="Europe/Berlin")
    found, offset = rows(source)
    assert [r["changed"].astimezone(datetime.UTC).hour for r in found] == [10, 11]
    assert offset == {"timestamp": 1_719_831_600_000, "timestamp_nanos": 0}
    assert ids(rows(source, {"timestamp": 1_719_828_000_000})[0]) == [2]


@pytest.mark.parametrize("url", ["postgresql", "duckdb"], indirect=True)
def test_a_table_whose_schema_has_a_dot_in_its_name_is_left_out_or_refused_if_it_is_asked_for(
    make: Make, execute: Execute, caplog: pytest.LogCaptureFixture
) -> None:
    execute('CREATE SCHEMA "a.b"', "CREATE SCHEMA other", 'CREATE TABLE other."c.d" (id INT)')
    execute('CREATE TABLE "a.b".t (id INT)', "CREATE TABLE other.t (id INT)")
    source = make(mode="bulk")
    for _ in range(2):
        assert {p["table"] for p in source.partitions()} == {"other.c.d", "other.t"}
    assert caplog.text.count("left out: table a.b.t of ") == 1
    asked = [("table_whitelist", "a.b.t"), ("table_include_list", ".*"), ("schema_pattern", "a.b")]
    for key, value in asked:
        with pytest.raises(ConfigError, match=r"table a\.b\.t of .* schema\.pattern"):
            make(mode="bulk", **{key: value}).partitions()


@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
def test_a_time_that_its_zone_does_not_have_is_refused_where_it_is_a_position(
    make: Make, execute: Execute
) -> None:
    execute(ORDERS, insert((1, "a", "2024-03-31 02:30:00")))
    source = make(mode="timestamp", timestamp_column_name="changed", db_timezone="Europe/Berlin")
    with pytest.raises(ConfigError, match=r"column changed .*doesn't exist in timezone"):
        rows(source)


@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
@pytest.mark.parametrize("kind", ["timestamptz", "timestamp", "date"])
@pytest.mark.parametrize("value", ["infinity", "-infinity"])
def test_a_time_that_is_infinite_is_refused(
    kind: str, value: str, make: Make, execute: Execute
) -> None:
    execute(f"CREATE TABLE t (id int, day {kind})", "INSERT INTO t VALUES (1, '0001-01-01')")
    assert len(rows(make(mode="bulk", poll_interval_ms="60000"))[0]) == 1
    execute(f"INSERT INTO t VALUES (2, '{value}')")
    with pytest.raises(BadRecord, match=r"column day .* it is infinity.*with query"):
        rows(make(mode="bulk"))


@pytest.mark.long
def test_a_server_that_dies_within_a_query_is_waited_for_and_read_on(
    own_postgres: Callable[[], Postgres],
) -> None:
    server = own_postgres()
    executed(
        server.url,
        "CREATE TABLE t (id int PRIMARY KEY, text text)",
        f"INSERT INTO t SELECT i, '{'x' * 200}' FROM generate_series(1, 300000) i",
    )
    keys = {"mode": "incrementing", "incrementing.column.name": "id", "topic.prefix": "t-"}
    raw = {"name": "rows", "connector.class": "JdbcSource", "bootstrap.servers": "localhost:1"}
    with closing(plan_source({**raw, **keys, "connection.url": server.url}).source) as source:
        (partition,) = source.partitions()
        reading = source.read(partition, None)
        first = next(reading)
        assert isinstance(first, SourceBatch)
        server.kill()
        with pytest.raises(TransientError):
            list(itertools.takewhile(bool, reading))
            rows(source)
        server.start()
        rest = rows(source, first.offset)[0]
    assert 0 < len(first) < 300_000
    assert len(first) + len(rest) == 300_000


def test_large_rows_of_sqlite_come_a_few_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"jdbc:sqlite:{tmp_path / 'rows.db'}"
    executed(url, "CREATE TABLE t (id integer PRIMARY KEY, text varchar)")
    for number in range(30):
        executed(url, f"INSERT INTO t VALUES ({number}, '{'x' * (5000 if number == 20 else 500)}')")
    monkeypatch.setattr(sqlite, "_BATCH_BYTES", 10_000)
    config = read(JdbcSourceConfig, {"connection.url": url, "topic.prefix": "", "mode": "bulk"})
    database = sqlite.Sqlite(config, "c")
    with database.snapshot():
        found = shape(config, database.columns(database.table("t")), of_query=False)
        query = Query(config, database, database.table("t"), found, Position(), None)
        sizes = [b.nbytes for b in database.stream(query.sql, query.widest)]
        whole = [b.num_rows for b in database.stream(query.sql)]
    database.close()
    assert max(sizes) < 10_000 + 2 * 5000
    assert len(sizes) > 1
    assert whole == [30]


def test_sqlite_reads_by_the_index_of_the_incrementing_column(tmp_path: Path) -> None:
    url = f"jdbc:sqlite:{tmp_path / 'rows.db'}"
    executed(url, "CREATE TABLE t (id integer PRIMARY KEY, text varchar)")
    keys = {"connection.url": url, "topic.prefix": "", "mode": "incrementing"}
    config = read(JdbcSourceConfig, keys)
    database = sqlite.Sqlite(config, "c")
    with database.snapshot():
        found = shape(config, database.columns(database.table("t")), of_query=False)
        query = Query(config, database, database.table("t"), found, Position(5), None)
        plan = [
            r["detail"]
            for b in database.stream(f"EXPLAIN QUERY PLAN {query.sql}")
            for r in b.to_pylist()
        ]
    database.close()
    assert plan == ["SEARCH t USING INTEGER PRIMARY KEY (rowid>?)"]


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_the_time_of_a_query_of_sqlite_may_be_text(make: Make, execute: Execute) -> None:
    execute(
        "CREATE TABLE t (id INTEGER, at TEXT)",
        "INSERT INTO t VALUES (1, '2024-01-01 00:00:00.5'), (2, '2024-01-02T00:00:00Z')",
    )
    source = make(query="SELECT * FROM t", mode="timestamp", timestamp_column_name="At")
    found, offset = taken(source.read({"query": "query"}, None))
    utc = datetime.UTC
    times = [
        datetime.datetime(2024, 1, 1, 0, 0, 0, 500_000, utc),
        datetime.datetime(2024, 1, 2, tzinfo=utc),
    ]
    assert [(v["id"], v["at"]) for v in found] == [*zip((1, 2), times, strict=True)]
    execute("INSERT INTO t VALUES (3, '2024-01-03')")
    found, _ = taken(source.read({"query": "query"}, offset))
    assert [v["id"] for v in found] == [3]


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_sqlite_has_no_time_zones(make: Make) -> None:
    with pytest.raises(ConfigError, match=r"db\.timezone=Europe/Berlin must be UTC with SQLite"):
        make(mode="bulk", db_timezone="Europe/Berlin")


@pytest.mark.parametrize("url", ["mariadb"], indirect=True)
def test_mysql_tells_times_with_a_zone_from_those_without(make: Make, execute: Execute) -> None:
    execute(
        "CREATE TABLE t (id BIGINT UNSIGNED AUTO_INCREMENT PRIMARY KEY, "
        "wall DATETIME(3) NOT NULL, real_time TIMESTAMP NOT NULL, taken TIME, bits BLOB)",
        "INSERT INTO t VALUES (1, '2024-07-01 12:00:00.5', '2024-07-01 12:00:00', '99:00:00', 'a')",
    )
    keys = {"mode": "timestamp+incrementing", "db_timezone": "Europe/Berlin"}
    (row,), offset = rows(make(timestamp_column_name="wall", **keys))
    assert row["wall"] == datetime.datetime(2024, 7, 1, 10, 0, 0, 500_000, datetime.UTC)
    assert row["real_time"] == datetime.datetime(2024, 7, 1, 12, tzinfo=datetime.UTC)
    assert (row["taken"], row["bits"]) == ("99:00:00", b"a")
    assert rows(make(timestamp_column_name="wall", **keys), offset) == ([], None)
    _, offset = rows(make(timestamp_column_name="real_time", **keys))
    assert rows(make(timestamp_column_name="real_time", **keys), offset) == ([], None)


@pytest.mark.parametrize("url", ["mariadb"], indirect=True)
class TestMysql:
    """What MySQL's columns may hold."""

    KEYS: ClassVar[dict[str, str]] = {"mode": "incrementing", "incrementing_column_name": "id"}

    def test_bits_and_small_numbers_are_those_of_confluents_connector(
        self, make: Make, execute: Execute
    ) -> None:
        execute(
            "CREATE TABLE t (id BIGINT PRIMARY KEY, one BIT(1), more BIT(9), yes TINYINT(1), "
            "small TINYINT UNSIGNED, y YEAR)",
            "INSERT INTO t VALUES (1, b'1', b'100000001', 1, 255, 2024), "
            "(2, NULL, NULL, NULL, NULL, NULL)",
        )
        found, _ = rows(make(**self.KEYS))
        assert found == [
            {"id": 1, "one": 1, "more": b"\x01\x01", "yes": 1, "small": 255, "y": 2024},
            {"id": 2, "one": None, "more": None, "yes": None, "small": None, "y": None},
        ]

    @pytest.mark.parametrize(
        "values", ["(1, 18446744073709551615)", "(1, 1), (2, 9223372036854775808)"]
    )
    def test_a_number_that_no_record_can_have_is_refused(
        self, values: str, make: Make, execute: Execute
    ) -> None:
        execute(
            "CREATE TABLE t (id BIGINT PRIMARY KEY, v BIGINT UNSIGNED)",
            f"INSERT INTO t VALUES {values}",
        )
        with pytest.raises(BadRecord, match=r"id=\d: column v .* not of type int64: \d{19}"):
            rows(make(**self.KEYS))

    @pytest.mark.parametrize("kind", ["DATE", "DATETIME(6)", "TIMESTAMP"])
    def test_a_date_of_zeros_is_refused_or_null(
        self, kind: str, make: Make, execute: Execute, url: str
    ) -> None:
        execute(
            f"CREATE TABLE t (id BIGINT PRIMARY KEY, at {kind} NOT NULL)",
            "INSERT IGNORE INTO t VALUES (1, '2024-01-01'), (2, '0000-00-00')",
        )
        with pytest.raises(
            BadRecord, match=r"id=2: column at .*: 0000-00-00.* is not a date .*=convertToNull"
        ):
            rows(make(**self.KEYS))
        nulls = {"connection_url": f"{url}&zeroDateTimeBehavior=convertToNull"}
        found, _ = rows(make(**self.KEYS, **nulls))
        assert [row["at"] is None for row in found] == [False, True]
        if kind != "DATE":
            by_time = {"mode": "timestamp", "timestamp_column_name": "at"}
            with pytest.raises(ConfigError, match="column at has a time that does not exist"):
                rows(make(**by_time, **nulls))

    @pytest.mark.parametrize("mode", ["timestamp", "timestamp+incrementing"])
    def test_a_time_of_zeros_gives_way_to_the_next_column(
        self, mode: str, make: Make, execute: Execute, url: str
    ) -> None:
        """In the order of the database's own COALESCE, row 3 would come first, with a position
        that the others are before."""
        execute(
            "CREATE TABLE t (id BIGINT PRIMARY KEY, changed DATETIME(3) NOT NULL, "
            "made DATETIME(3) NOT NULL)",
            "INSERT IGNORE INTO t VALUES (1, '2024-01-02', '2024-01-01'), "
            "(2, '2024-01-03', '2024-01-01'), (3, '0000-00-00', '2024-01-04')",
        )
        keys = {
            "mode": mode,
            "incrementing_column_name": "id",
            "timestamp_column_name": "changed,made",
            "connection_url": f"{url}&zeroDateTimeBehavior=convertToNull",
        }
        found, offset = rows(make(**keys))
        assert [row["id"] for row in found] == [1, 2, 3]
        execute("INSERT IGNORE INTO t VALUES (4, '0000-00-00', '2024-01-05')")
        found, offset = rows(make(**keys), offset)
        assert [row["id"] for row in found] == [4]
        execute("INSERT IGNORE INTO t VALUES (5, '0000-00-00', '0000-00-00')")
        with pytest.raises(ConfigError, match="column changed has a time that does not exist"):
            rows(make(**keys))


@pytest.mark.parametrize("url", some(["postgresql", *OTHERS], {"postgresql"}), indirect=True)
def test_a_large_table_that_is_left_in_the_middle_is_read_on_from_there(
    make: Make, execute: Execute
) -> None:
    execute(
        "CREATE TABLE t (id INTEGER PRIMARY KEY, text VARCHAR(99))",
        "INSERT INTO t WITH RECURSIVE n (i) AS "
        "(SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 600) "
        f"SELECT (a.i - 1) * 600 + b.i, '{'x' * 60}' FROM n a, n b",
    )
    source = make(mode="incrementing", incrementing_column_name="id")
    (partition,) = source.partitions()
    reading = source.read(partition, None)
    first = next(reading)
    assert isinstance(first, SourceBatch)
    reading.close()  # type: ignore[attr-defined]
    assert 0 < len(first) < 360_000
    assert len(first) + len(rows(source, first.offset)[0]) == 360_000


def test_an_offset_that_makes_no_sense_is_refused(make: Make, execute: Execute) -> None:
    execute(ORDERS)
    source = make(mode="incrementing", incrementing_column_name="id")
    with pytest.raises(ConfigError, match=r"incrementing must be a whole number.*offsets set"):
        rows(source, {"incrementing": "x"})


def test_an_offset_of_another_mode_is_reported(
    make: Make, execute: Execute, caplog: pytest.LogCaptureFixture
) -> None:
    execute(ORDERS, insert((1, "a", EARLY)))
    keys = {"incrementing_column_name": "id", "timestamp_column_name": "changed"}
    source = make(mode="timestamp", **keys)
    (partition,) = source.partitions()
    with pytest.raises(ConfigError, match=r"lacks timestamp, which mode=timestamp needs to resume"):
        source.check_offset(partition, {"incrementing": 1})
    assert ids(rows(source, {"incrementing": 1})[0]) == [1]
    assert "lacks timestamp, which mode=timestamp needs to resume: reading from" in caplog.text
    load = {"loaded": 1, "load_until": 9, "load_timestamp_us": 1, "load_incrementing": 9}
    with pytest.raises(ConfigError, match=r"is of a first load in ranges.*, not mode=incrementing"):
        rows(make(mode="incrementing", **keys), load)
    (partition,) = make(mode="timestamp+incrementing", **keys).partitions()
    make(mode="timestamp+incrementing", **keys).check_offset(partition, load)


def test_a_query_has_the_columns_that_there_are_now(make: Make, execute: Execute, url: str) -> None:
    execute("CREATE TABLE t (id INTEGER NOT NULL, gone TEXT)", "INSERT INTO t VALUES (1, 'x')")
    source = make(
        query="SELECT * FROM t",
        mode="incrementing",
        incrementing_column_name="id",
        table_poll_interval_ms="1",
    )
    reading = source.read({"query": "query"}, None)
    assert taken(reading)[0] == [{"id": 1, "gone": "x"}]
    execute("ALTER TABLE t ADD COLUMN more INTEGER", "INSERT INTO t VALUES (2, 'y', 3)")
    time.sleep(0.002)
    assert taken(reading)[0] == [{"id": 2, "gone": "y", "more": 3}]
    with closing(reading):  # type: ignore[type-var]
        pass
    slow = make(query="SELECT * FROM t", mode="incrementing", incrementing_column_name="id")
    reading = slow.read({"query": "query"}, {"incrementing": 2})
    assert taken(reading) == ([], None)
    execute("ALTER TABLE t DROP COLUMN gone", "INSERT INTO t VALUES (3, 4)")
    if not url.startswith("jdbc:sqlite"):  # it would mistake the name for a text
        with pytest.raises(TransientError, match="query: "):
            taken(reading)
    assert taken(slow.read({"query": "query"}, {"incrementing": 2}))[0] == [{"id": 3, "more": 4}]


def test_describe_says_what_is_not_read_in_timestamp_mode(make: Make) -> None:
    source = make(
        mode="timestamp", timestamp_column_name="changed", timestamp_delay_interval_ms="5000"
    )
    found = source.describe()
    assert "rows that commit more than 5000 ms" in found["not read"]
    assert "which nothing can tell" in found["not read"]
    assert source.exactly_once().kept


def moved(ids: str, at: str) -> str:
    return f"UPDATE orders SET changed = '{at}', text = 'new' WHERE id IN ({ids})"


def test_a_large_first_load_is_read_in_ranges_and_goes_on_in_each(
    make: Make, execute: Execute
) -> None:
    """By number, up to the last row by time; what changes meanwhile comes once, afterwards."""
    late = "2024-02-01 00:00:00.500"
    execute(ORDERS, insert(*((n, f"r{n}", EARLY) for n in range(10, 0, -1)), (11, "r11", LATER)))
    keys = {
        "mode": "timestamp+incrementing",
        "timestamp_column_name": "changed",
        "incrementing_column_name": "id",
        "first_load_range_rows": "4",
    }
    (partition,) = make(**keys).partitions()
    offset, seen, offsets = None, [], []
    while True:  # a new source after each batch: as after a crash
        source = make(**keys)
        reading = source.read(partition, offset)
        with closing(reading):  # type: ignore[type-var]
            batch = next(reading)
        source.close()
        if batch is None:
            break
        seen += [(row["id"], row["text"]) for row in values(batch)]
        offset = batch.offset
        offsets.append(dict(offset))
        if (4, "r4") in seen and len(seen) < 8:
            execute(moved("2, 7", late), insert((12, "r12", "2024-01-01 00:00:03")))
    old = [(n, f"r{n}") for n in (1, 2, 3, 4, 5, 6, 8, 9, 10, 11)]
    assert seen == [*old, (12, "r12"), (2, "new"), (7, "new")]
    assert offsets[0]["loaded"] <= 4
    assert "incrementing" not in offsets[0]
    assert offset == {
        "incrementing": 7,
        "timestamp": 1_706_745_600_500,
        "timestamp_nanos": 500_000_000,
    }
    last = {"incrementing": 11, "timestamp": 1_704_067_201_000, "timestamp_nanos": 0}
    assert last in offsets  # as if the rows had been read in the order of their times


@pytest.mark.parametrize("url", ["postgresql", "mariadb"], indirect=True)
def test_what_changed_during_a_load_is_read_before_the_next_pause(
    make: Make, execute: Execute
) -> None:
    execute(ORDERS, insert((1, "a", EARLY), (2, "b", EARLY), (3, "c", EARLY)))
    source = make(
        mode="timestamp+incrementing",
        timestamp_column_name="changed",
        incrementing_column_name="id",
        first_load_range_rows="2",
        poll_interval_ms="3600000",
    )
    (partition,) = source.partitions()
    reading = source.read(partition, None)
    first = next(reading)
    assert isinstance(first, SourceBatch)
    execute(moved("3", LATER))
    found, offset = taken(reading)
    assert [(r["id"], r["text"]) for r in [*values(first), *found]][-1] == (3, "new")
    assert offset is not None
    assert offset["incrementing"] == 3


def test_a_table_of_one_range_is_read_in_the_order_of_times(make: Make, execute: Execute) -> None:
    execute(ORDERS, insert((1, "a", LATER), (2, "b", EARLY)))
    keys = {"timestamp_column_name": "changed", "incrementing_column_name": "id"}
    source = make(mode="timestamp+incrementing", first_load_range_rows="3", **keys)
    assert ids(rows(source)[0]) == [2, 1]


def test_numbers_are_read_in_ranges_that_do_not_divide_rows_of_one_number(
    make: Make, execute: Execute
) -> None:
    execute(
        "CREATE TABLE t (id BIGINT NOT NULL)",
        "INSERT INTO t VALUES (1), (2), (2), (2), (5), (9), (9)",
    )
    keys = {"incrementing_column_name": "id", "first_load_range_rows": "2"}
    source = make(mode="incrementing", **keys)
    assert ids(rows(source)[0]) == [1, 2, 2, 2, 5, 9, 9]
    assert ids(rows(source, {"incrementing": 2})[0]) == [5, 9, 9]


def test_columns_are_named_for_each_table(make: Make, execute: Execute) -> None:
    execute(
        "CREATE TABLE a (id BIGINT NOT NULL, moment TIMESTAMP(6) NOT NULL)",
        "CREATE TABLE b (number BIGINT NOT NULL, made TIMESTAMP(6), changed TIMESTAMP(6) NOT NULL)",
        f"INSERT INTO a VALUES (1, '{EARLY}')",
        f"INSERT INTO b VALUES (7, NULL, '{EARLY}')",
    )
    mapping = {
        "mode": "timestamp+incrementing",
        "incrementing.column.mapping": r".*\ba:id, .*\bb : number",
        "timestamp.columns.mapping": r".*\ba:[moment], .*\bb:[made | changed]",
    }
    source = make(**mapping)
    found = []
    for partition in source.partitions():
        with closing(source.read(partition, None)) as reading:  # type: ignore[type-var]
            found.append(taken(reading))
    time = {"timestamp": 1_704_067_200_250, "timestamp_nanos": 250_000_000}
    assert [offset for _, offset in found] == [{"incrementing": n, **time} for n in (1, 7)]
    source = make(**{**mapping, "incrementing.column.mapping": r".*\ba:id,.*:id"})
    with pytest.raises(ConfigError, match=r"a: matches 2 entries of incrementing\.column\.mapping"):
        for partition in source.partitions():
            list(itertools.takewhile(bool, source.read(partition, None)))


def test_a_query_with_two_columns_of_one_name_is_refused(make: Make, execute: Execute) -> None:
    execute("CREATE TABLE t (id INT PRIMARY KEY, v INT)")
    source = make(query="SELECT id, v AS id FROM t", mode="bulk")
    with pytest.raises(ConfigError, match=r"query.*: .*(column|name).*\bid\b"):
        source.check()
