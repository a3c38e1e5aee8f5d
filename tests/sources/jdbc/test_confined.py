"""A query reads its own database, and nothing else of the machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from semel.config import read
from semel.core.errors import SemelError
from semel.sources.jdbc.config import JdbcSourceConfig
from semel.sources.jdbc.database import database_of
from semel.sources.jdbc.queries import Unreadable
from tests.sources.jdbc.conftest import executed

_OPENS = "1 AS a) AS q; {}; SELECT * FROM (SELECT 1 AS a"
"""Ends the query that it is put into, and begins another one."""
_STATEMENTS = [
    "DROP TABLE t",
    "DELETE FROM t",
    "ATTACH '{folder}/new.db' AS n",
    "ATTACH '{folder}/other.db' AS n",
]
QUERIES = {
    "sqlite": [
        "load_extension('{folder}/secret.csv') AS a",
        "readfile('{folder}/secret.csv') AS a",
        "writefile('{folder}/new', 'x') AS a",
        "fts3_tokenizer('simple', x'0102030405060708') AS a",
        *map(_OPENS.format, [*_STATEMENTS, "VACUUM INTO '{folder}/new.db'"]),
    ],
    "duckdb": [
        "* FROM read_text('{folder}/secret.csv')",
        "* FROM read_blob('{folder}/secret.csv')",
        "* FROM '{folder}/secret.csv'",
        "* FROM glob('{folder}/*')",
        "* FROM read_csv('http://127.0.0.1:1/x.csv')",
        *map(
            _OPENS.format,
            [
                *_STATEMENTS,
                "COPY t TO '{folder}/new.csv'",
                "COPY t FROM '{folder}/secret.csv'",
                "EXPORT DATABASE '{folder}/new'",
                "INSTALL httpfs",
                "LOAD '{folder}/secret.csv'",
                "SET enable_external_access = true",
                "SET profiling_output = '{folder}/new'",
            ],
        ),
    ],
}


@pytest.mark.parametrize(
    ("system", "query"), [(system, query) for system, each in QUERIES.items() for query in each]
)
def test_a_query_reaches_nothing_but_its_database(system: str, query: str, tmp_path: Path) -> None:
    for name in ("source", "other"):
        executed(
            f"jdbc:{system}:{tmp_path / name}.db",
            "CREATE TABLE t (v VARCHAR(9))",
            f"INSERT INTO t VALUES ('{name}')",
        )
    (tmp_path / "secret.csv").write_text("top secret\n")
    before = {f: f.read_bytes() for f in tmp_path.iterdir()}
    keys = {
        "connection.url": f"jdbc:{system}:{tmp_path / 'source.db'}",
        "mode": "bulk",
        "query": "SELECT " + query.format(folder=tmp_path),
        "topic.prefix": "t",
    }
    database = database_of(read(JdbcSourceConfig, keys), "c")
    try:
        found = [column.name for column in database.columns_of(keys["query"])]
    except (SemelError, Unreadable) as error:
        assert "top secret" not in str(error)
    else:
        assert system == "sqlite" and found == ["a"], "only the first statement runs"
    finally:
        database.close()
    assert {f: f.read_bytes() for f in tmp_path.iterdir() if not f.name.startswith(".")} == before
