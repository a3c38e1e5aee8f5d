"""What query may hold, and columns that other statements and odd names would confuse."""

from __future__ import annotations

import pytest

from semel.core.errors import ConfigError
from semel.sources.jdbc.sqlserver import _is_balanced
from tests.engine.harness import some
from tests.sources.jdbc.conftest import Execute, Make, rows
from tests.sources.jdbc.test_unfit import read

ONCE = {"poll_interval_ms": "600000"}
ALL = ["postgresql", "sqlite", "duckdb", "mariadb"]
NOT_ONE = (
    "SELECT 1 AS a; SELECT 2 AS b",
    "SELECT 1 AS a; DELETE FROM t",
    "SELECT id FROM t) AS x; DELETE FROM t; --",
    "SELECT id FROM t) AS semel_rows; DELETE FROM t; SELECT * FROM (SELECT 2 AS b",
    "SELECT id FROM t) AS x /*",
    "SELECT id FROM t) AS x --",
    "-- only a comment",
    "/* only a comment */",
    "DELETE FROM t",
    "DELETE FROM t RETURNING id",
    "SELECT 'a",
    "SELECT id, id FROM t",
    "SELECT nope('x') FROM t",
)


@pytest.mark.integration
@pytest.mark.parametrize("url", some(ALL, {"postgresql", "sqlite"}), indirect=True)
def test_a_query_is_one_statement_and_nothing_else_runs(make: Make, execute: Execute) -> None:
    execute("CREATE TABLE t (id INT PRIMARY KEY, v INT)", "INSERT INTO t VALUES (1, 2), (3, 4)")
    for query in NOT_ONE:
        with pytest.raises(ConfigError, match=r"connector rows: query( must be a SELECT|: )"):
            make(query=query, mode="bulk").check()
    source = make(
        query="SELECT id, ';' AS v FROM t; ; -- all\n/* of; them */",
        mode="bulk",
        query_suffix="WHERE ';' <> '-- ;' LIMIT 9; -- nine",
        **ONCE,
    )
    source.check()
    assert rows(source)[0] == [{"id": 1, "v": ";"}, {"id": 3, "v": ";"}]


@pytest.mark.integration
@pytest.mark.parametrize("url", some(["postgresql", "mariadb"], {"postgresql"}), indirect=True)
def test_a_query_that_would_lock_rows_is_a_mistake_and_not_waited_for(
    make: Make, execute: Execute
) -> None:
    execute("CREATE TABLE t (id INT PRIMARY KEY, v INT)")
    with pytest.raises(ConfigError, match=r"query must be a SELECT.*(?i:read.only transaction)"):
        make(query="SELECT id FROM t FOR UPDATE", mode="bulk").check()


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"query": ";;"}, "query holds no statement"),
        ({"query.masked": " ; "}, "query.masked holds no statement"),
        ({"query": "; -- nothing"}, "query holds no statement"),
        ({"query.suffix": "LIMIT 1; DELETE FROM t"}, "query.suffix must not hold a semicolon"),
        ({"query.suffix": r"AND v = '\'; DELETE FROM t; --'"}, "must not hold a semicolon"),
        ({"query.suffix": "AND v = $a$; DELETE FROM t; --$a$"}, "must not hold a semicolon"),
    ],
)
def test_what_is_no_query_is_refused(make: Make, keys: dict[str, str], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        make(mode="bulk", **keys)


@pytest.mark.parametrize(
    ("query", "fits"),
    [
        ("SELECT (1) AS a, ')' AS b, [)] AS c, \")\" AS d /* ) */ -- )\n", True),
        ("SELECT 'it''s (' AS a", True),
        ("SELECT 1 AS a) AS x; DELETE FROM t; SELECT * FROM (SELECT 2 AS b", False),
        ("SELECT (1", False),
        ("SELECT 1)", False),
    ],
)
def test_a_query_of_sql_server_stays_within_its_parentheses(query: str, fits: bool) -> None:
    assert _is_balanced(query) is fits


@pytest.mark.integration
@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
@pytest.mark.parametrize("name", ["x" * 63, "é" * 31, "v is unfit", 'a"b.c\n{d} %s'])
def test_a_value_that_does_not_fit_is_named_whatever_its_column_is_called(
    make: Make, execute: Execute, name: str
) -> None:
    quoted = '"' + name.replace('"', '""') + '"'
    execute(
        f'CREATE TABLE t (id int PRIMARY KEY, {quoted} int[], v int[], "v is null" text)',
        "INSERT INTO t VALUES (1, '{1}', '{1}', 'a'), (2, '{{1,2}}', '{1}', 'b')",
        "INSERT INTO t VALUES (3, '{}', NULL, NULL)",
    )
    found, told, _ = read(make(mode="incrementing", incrementing_column_name="id"))
    assert found == [1, 3]
    assert len(told) == 1
    assert "the row with id=2: column" in told[0]


@pytest.mark.integration
@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_columns_that_sqlite_computes_are_read_and_names_are_free(
    make: Make, execute: Execute
) -> None:
    execute(
        'CREATE TABLE t (id INTEGER PRIMARY KEY, v TEXT, "v is null" TEXT, "v is unfit" TEXT, '
        "twice INTEGER AS (id * 2), text TEXT AS (id || 'x') STORED)",
        "INSERT INTO t VALUES (4, NULL, 'a', 'b')",
    )
    (row,) = rows(make(mode="bulk", table_whitelist="t", **ONCE))[0]
    assert row == {
        **{"id": 4, "v": None, "v is null": "a", "v is unfit": "b"},
        **{"twice": 8, "text": "4x"},
    }


@pytest.mark.integration
@pytest.mark.parametrize("url", ["duckdb"], indirect=True)
def test_a_list_that_does_not_fit_harms_no_other_row(make: Make, execute: Execute) -> None:
    execute(
        "CREATE TABLE t (id INTEGER PRIMARY KEY, v TIME[])",
        "INSERT INTO t VALUES (1, NULL), (2, ['24:00:00'::TIME]), (3, ['12:00'::TIME]), (4, [])",
    )
    found, told, _ = read(make(mode="bulk", table_whitelist="t", **ONCE))
    assert found == [1, 3, 4]
    assert [("id=2" in message) for message in told] == [True]
