"""Each error of a database is a bad record, a service to wait for, or a mistake: the servers raise
them, and the table of their store says which."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import duckdb
import pytds
import pytest

from semel.config import ConnectorConfig, read
from semel.core.errors import ServiceError, TransientError
from semel.core.records import Commit, RowsRejected
from semel.databases.duckdb import NATURES as DUCKDB
from semel.databases.errors import Nature, SchemaChanged, by_code
from semel.databases.login import Login, Timeouts
from semel.databases.mysql import driver as mysql
from semel.databases.postgresql import connection as postgresql
from semel.databases.sqlserver import SqlServer
from semel.databases.sqlserver import client as sqlserver
from semel.sinks import sink_class
from semel.sinks.base import Sink
from tests import databases
from tests.sinks.target import Target, records

NAN = float("nan")
PLPGSQL = "LANGUAGE plpgsql AS $$ BEGIN "


def trigger(body: str) -> str:
    """Statements that give ``t`` a trigger for rows with 2 in ``v``."""
    return (
        f"CREATE FUNCTION f() RETURNS trigger {PLPGSQL} IF NEW.v = 2 THEN {body} END IF; "
        "RETURN NEW; END $$; CREATE TRIGGER g BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION f()"
    )


Case = tuple[str, str, Any, Any]
"""What the message says, the columns besides ``id`` and what follows, a good value and a bad one.
Statements are separated by ``;;``."""
POSTGRESQL: list[Case] = [
    ("column v.*22P02", "v inet)", "10.0.0.1", "nowhere"),
    ("column v.*22P02", "v mood)", "sad", "angry"),
    ("column v.*22P02", "v int[])", "{1}", "{x}"),
    ("column v", "v money)", "1", "much"),
    ("column v.*22P05", "v jsonb)", '"a"', '"\\u0000"'),
    ("column v.*22021", "v text)", "a", "\0"),
    ("column v.*22026", "v bit(3))", "101", "10"),
    ("column v.*22001", "v varchar(3))", "abc", "abcd"),
    ("column v.*22007", "v interval)", "1 day", "soon"),
    ("column v.*22008", "v tsrange)", "[2024-01-01,)", "[2024-13-01,)"),
    ("column v.*22000", "v int4range)", "[1,5]", "[5,1]"),
    ("column v.*23514", "v even)", 2, 3),
    ("22003", "v int, g smallint GENERATED ALWAYS AS (v) STORED)", 1, 99_999),
    ("22012", "v int, g int GENERATED ALWAYS AS (1 / v) STORED)", 1, 0),
    ("2201E", "v float8, g float8 GENERATED ALWAYS AS (ln(v)) STORED)", 1.0, 0.0),
    ("2201F", "v float8, g float8 GENERATED ALWAYS AS (sqrt(v)) STORED)", 1.0, -1.0),
    ("2201B", "v text, CHECK ('a' ~ v))", "a", "("),
    ("0A000", "v float8, g bigint GENERATED ALWAYS AS ((v::numeric)::bigint) STORED)", 1.0, NAN),
    ('"v".*23502', "v int NOT NULL)", 1, None),
    ("23503", "v int REFERENCES parents)", 1, 2),
    ("23505", "v int UNIQUE)", 1, 7),
    ("23514", "v int CHECK (v < 10))", 1, 10),
    ("23P01", "v int4range, EXCLUDE USING gist (v WITH &&))", "[1,2]", "[5,9]"),
    ("44000", "v int);; CREATE VIEW w AS SELECT * FROM t WHERE v < 2 WITH CHECK OPTION", 1, 2),
    ("54000", "v text UNIQUE)", "x", "".join(chr(n) for n in range(0x4E00, 0x7000))),
    ("P0001", "v int);; " + trigger("RAISE EXCEPTION 'no';"), 1, 2),
    ("ZZ001", "v int);; " + trigger("RAISE EXCEPTION 'no' USING ERRCODE = 'ZZ001';"), 1, 2),
    ("P0002", "v int);; " + trigger("SELECT id INTO STRICT NEW.v FROM t WHERE false;"), 1, 2),
    (
        "P0003",
        "v int);; " + trigger("SELECT 1 INTO STRICT NEW.v FROM unnest('{1,2}'::int[]);"),
        1,
        2,
    ),
    ("P0004", "v int);; " + trigger("ASSERT false, 'no';"), 1, 2),
    ("20000", "v int);; " + trigger("CASE NEW.v WHEN 1 THEN NULL; END CASE;"), 1, 2),
]
MARIADB: list[Case] = [
    ("1048", "v INT NOT NULL)", 1, None),
    ("1062", "v INT UNIQUE)", 1, 7),
    ("column v", "v TINYINT)", 1, 999),
    ("column 'v'.*1406", "v VARCHAR(3))", "abc", "abcd"),
    ("column v", "v ENUM('a', 'b'))", "a", "z"),
    ("column v", "v DATETIME)", "2024-01-01 00:00:00", "2024-02-30 00:00:00"),
    ("`v`.*1292", "v UUID)", "6ba7b810-9dad-11d1-80b4-00c04fd430c8", "x"),
    ("1365", "v INT, g INT AS (1 / v) STORED)", 1, 0),
    ("1264", "v INT, g TINYINT AS (v) STORED)", 1, 999),
    ("1690", "v BIGINT, g BIGINT AS (v * 4) STORED)", 1, 2**62),
    ("1452", "v INT, FOREIGN KEY (v) REFERENCES parents (id))", 1, 2),
    ("4025", "v INT CHECK (v < 10))", 1, 10),
    ("1369", "v INT);; CREATE VIEW w AS SELECT * FROM t WHERE v < 2 WITH CHECK OPTION", 1, 2),
    ("1526", "v INT) PARTITION BY RANGE (v) (PARTITION p VALUES LESS THAN (2))", 1, 2),
    (
        "1644",
        "v INT);; "
        "CREATE TRIGGER g BEFORE INSERT ON t FOR EACH ROW IF NEW.v = 2 THEN "
        "SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'no'; END IF",
        1,
        2,
    ),
    (
        "30001",
        "v INT);; CREATE TRIGGER g BEFORE INSERT ON t FOR EACH ROW IF NEW.v = 2 THEN "
        "SIGNAL SQLSTATE '45000' SET MYSQL_ERRNO = 30001; END IF",
        1,
        2,
    ),
    ("1416|column v", "v POINT)", None, "x"),
    ("1406|1118|column v", "v TINYTEXT)", "x", "x" * 300),
]
SQLITE: list[Case] = [
    ("NOT NULL constraint failed: t.v", "v INT NOT NULL)", 1, None),
    ("UNIQUE constraint failed: t.v", "v INT UNIQUE)", 1, 7),
    ("CHECK constraint failed", "v INT CHECK (v < 10))", 1, 10),
    ("malformed JSON", "v TEXT, g AS (json_extract(v, '$.a')) STORED)", "{}", "{"),
    ("integer overflow", "v INT, g AS (abs(v)) STORED)", 1, -(2**63)),
    (
        "Sundays",
        "v INT);; CREATE TRIGGER g BEFORE INSERT ON t WHEN NEW.v = 2 BEGIN "
        "SELECT RAISE(ABORT, 'not on Sundays'); END",
        1,
        2,
    ),
]
DUCKDB_CASES: list[Case] = [
    ("NOT NULL constraint failed: t.v", "v INT NOT NULL)", 1, None),
    ("duplicate key", "v INT UNIQUE)", 1, 7),
    ("CHECK constraint failed", "v INT CHECK (v < 10))", 1, 10),
    ("foreign key", "v INT REFERENCES parents (id))", 1, 2),
    ("boom", "v INT CHECK (CASE WHEN v > 3 THEN error('boom') ELSE true END))", 1, 4),
    ("Division by zero", "v INT, g INT GENERATED ALWAYS AS (1 // v))", 1, 0),
    ("enum|ENUM", "v ENUM ('a'))", "a", "z"),
    ("UUID", "v UUID)", "6ba7b810-9dad-11d1-80b4-00c04fd430c8", "x"),
    ("v", "v DECIMAL(5, 2))", 1, 99_999),
    ("v", "v INT[2])", [1, 2], [1]),
]
CASES = [
    (store, *case)
    for store, cases in {
        "postgresql": POSTGRESQL,
        "mariadb": MARIADB,
        "sqlite": SQLITE,
        "duckdb": DUCKDB_CASES,
    }.items()
    for case in cases
]


@dataclass
class Database:
    kind: str
    url: str
    execute: Callable[[str], Any]

    def sink(self, table: str) -> Sink:
        raw = {
            "name": "c",
            "connector.class": self.kind,
            "bootstrap.servers": "nowhere:9092",
            "topics": "t",
            "connection.url": self.url,
            "table.name.format": table,
        }
        return sink_class(self.kind)(read(ConnectorConfig, raw))


@pytest.fixture
def base(request: pytest.FixtureRequest, tmp_path: Any) -> Iterator[Callable[[str], Database]]:
    opened: list[Target] = []

    def make(kind: str) -> Database:
        if kind == "postgresql":
            opened.append(Target(request.getfixturevalue("database")))
            return Database(kind, opened[0].url, opened[0].execute)
        url = f"jdbc:{kind}:{tmp_path / 'db'}"
        if kind == "mariadb":
            url = request.getfixturevalue("mariadb").create_database(f"n{next(_fresh)}")
        return Database(kind, url, lambda sql: databases.query(url, sql))

    yield make
    for target in opened:
        target.close()


_fresh = itertools.count()


SHORT = ("22001", "22026", "44000", "P0004", "ZZ001", "1644", "30001", "Sundays", "boom")
"""What each `make test` tries; a server's every code is tried by its table below."""


@pytest.mark.parametrize(
    ("store", "said", "table", "good", "bad"),
    [
        pytest.param(*case, marks=() if case[1].endswith(SHORT) else pytest.mark.long)
        for case in CASES
    ],
)
def test_what_a_server_says_of_a_record_names_that_record(
    base: Callable[[str], Database], store: str, said: str, table: str, good: Any, bad: Any
) -> None:
    database = base(store)
    for statement in [
        "CREATE TABLE parents (id INT PRIMARY KEY)",
        "INSERT INTO parents VALUES (1)",
        *(
            [
                "CREATE TYPE mood AS ENUM ('sad')",
                "CREATE DOMAIN even AS int CHECK (VALUE % 2 = 0)",
            ]
            if store == "postgresql"
            else []
        ),
        *f"CREATE TABLE t (id INT, {table}".split(";; "),
    ]:
        database.execute(statement)
    sink = database.sink("w" if "VIEW w" in table else "t")
    again = bad in (7, "[5,9]")  # bad where the value is there already
    values = [good, bad, bad if again else good]
    if "UNIQUE" in table and not again:
        values.pop()
    try:
        sink.prepare(["t"])
        with pytest.raises(RowsRejected) as caught:
            sink.write(Commit([records([{"id": n, "v": v} for n, v in enumerate(values)])]))
    finally:
        sink.close()
    (found,) = caught.value.rejected
    assert (found.topic, found.partition, found.offset) == ("t", 0, 2 if again else 1)
    assert re.search(said, found.message), found.message


def raised(said: Exception | None) -> Nature:
    return next(n for kind in type(said).__mro__ for n in Nature if kind is n.value)


def judged(sink: Sink) -> Nature:
    """What the sink makes of an error that meets every row."""
    try:
        sink.prepare(["t"])
        sink.write(Commit([records([{"id": 1}])]))
    except RowsRejected:
        return Nature.DATA
    except (SchemaChanged, TransientError, ServiceError) as error:
        return raised(error)
    finally:
        sink.close()
    raise AssertionError("nothing was raised")


@pytest.mark.long
def test_postgresql_raises_each_state_and_each_has_the_nature_of_its_table(
    base: Callable[[str], Database],
) -> None:
    database = base("postgresql")
    wanted = {"ZZ001": Nature.DATA}
    wanted |= {(s if len(s) == 5 else f"{s}001"): n for s, n in postgresql.NATURES.items()}
    del wanted["00001"]  # PL/pgSQL takes a class that is no error for none
    found = {}
    for state in wanted:
        database.execute("DROP TABLE IF EXISTS t", "DROP FUNCTION IF EXISTS f")
        database.execute("CREATE TABLE t (id int)", *always(state).split(";; "))
        found[state] = judged(database.sink("t"))
    assert found == wanted


def always(state: str) -> str:
    return (
        f"CREATE FUNCTION f() RETURNS trigger {PLPGSQL} RAISE EXCEPTION 'no' USING ERRCODE = "
        f"'{state}'; END $$;; CREATE TRIGGER g BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION f()"
    )


@pytest.mark.long
def test_mariadb_raises_each_number_and_each_has_the_nature_of_its_table(
    base: Callable[[str], Database],
) -> None:
    database = base("mariadb")
    database.execute("CREATE TABLE t (id INT)")
    wanted = {30_001: Nature.DATA, **mysql.NATURES}
    found = {}
    for number in wanted:
        database.execute(
            "CREATE OR REPLACE TRIGGER g BEFORE INSERT ON t FOR EACH ROW "
            f"SIGNAL SQLSTATE '45000' SET MYSQL_ERRNO = {number}, MESSAGE_TEXT = 'no'"
        )
        found[number] = judged(database.sink("t"))
    assert found == wanted


def test_sql_servers_numbers_have_the_natures_of_its_table() -> None:
    server = SqlServer(Login("jdbc:sqlserver://h;databaseName=d"), "c", Timeouts())
    wanted, found = {50_001: Nature.DATA, **sqlserver.NATURES}, {}
    for number in wanted:
        error = pytds.OperationalError("no", None)
        error.number = number
        found[number] = raised(server._translated(error))
    assert found == wanted


def test_each_of_duckdbs_errors_has_a_nature() -> None:
    known = [
        e for e in vars(duckdb).values() if isinstance(e, type) and issubclass(e, duckdb.Error)
    ]
    leaves = {e for e in known if not e.__subclasses__()}
    assert leaves - DUCKDB.keys() == set()


def test_a_code_has_one_nature() -> None:
    with pytest.raises(ValueError, match="7 is both"):
        by_code({Nature.DATA: [7], Nature.AWAY: [7]})
