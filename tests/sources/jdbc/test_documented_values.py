"""What docs/jdbc-source.md says that values become: each row of its tables is a test."""

from __future__ import annotations

import itertools
import json
import re
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pytest

from semel.converters.json import write
from tests.sources.jdbc.conftest import Execute, Make

pytestmark = pytest.mark.integration

PAGE = Path(__file__).parents[3] / "docs" / "jdbc-source.md"
SYSTEMS = {
    "PostgreSQL": "postgresql",
    "MariaDB and MySQL": "mariadb",
    "SQLite": "sqlite",
    "DuckDB": "duckdb",
    "SQL Server": "sqlserver",
}
BEFORE = {
    "postgresql": (
        "CREATE TYPE mood AS ENUM ('well', 'ill')",
        "CREATE TYPE pair AS (a int, b text)",
        "CREATE DOMAIN ids AS int[]",
    )
}
REFUSED = "refused"


class Cell(NamedTuple):
    """A column's type, a value as SQL, and the record's type and value."""

    type: str
    value: str
    record: str


def cells(heading: str) -> list[Cell]:
    section = re.search(rf"^### {heading}\n(.*?)(?=^##)", PAGE.read_text(), re.M | re.S)
    assert section is not None, heading
    rows = re.findall(r"^\| `(.+)` \| `(.*)` \| (.+) \|$", section[1], re.M)
    assert rows, heading
    return [Cell(type_, value, record.replace("`", "")) for type_, value, record in rows]


def shown(value: pa.Scalar) -> str:
    """A record's value with its type, as the page shows it."""
    kind = value.type
    said = write.encode(pa.array([value], kind), envelope=True, numeric=True)[0].as_py()
    schema, payload = (json.loads(said)[k] for k in ("schema", "payload"))
    name = schema.get("name", schema["type"]).rpartition(".")[2]
    if pa.types.is_temporal(kind):
        payload = str(value.cast(pa.string()))
    elif pa.types.is_binary(kind):
        payload = value.as_py().hex()
    elif pa.types.is_decimal(kind):
        payload = str(value.as_py())
    elif pa.types.is_map(kind) or not isinstance(payload, str):
        payload = json.dumps(payload, ensure_ascii=False)
    return f"{name} {payload}".replace("\0", "\\u0000")


def read(make: Make, table: str) -> dict[int, str]:
    """What each row of a table becomes, by its number."""
    source = make(mode="bulk", poll_interval_ms="600000", table_whitelist=table)
    (partition,) = source.partitions()
    found: dict[int, str] = {}
    with closing(source.read(partition, None)) as reading:  # type: ignore[type-var]
        while (batch := next(reading)) is not None:
            for records in batch.records:
                numbers, values = (records.values.field(n) for n in ("id", "v"))
                found |= {n.as_py(): shown(v) for n, v in zip(numbers, values, strict=True)}
            for unread in batch.unread:
                named = re.search(
                    r"table (?:\w+\.)*t\d+: the row with id=(\d+): column v of", unread.message
                )
                assert named, unread.message
                found[int(named[1])] = REFUSED
    source.close()
    return found


@pytest.mark.parametrize(
    ("heading", "url"),
    [
        pytest.param(h, s, marks=[] if s in ("postgresql", "sqlite") else pytest.mark.long)
        for h, s in SYSTEMS.items()
    ],
    indirect=["url"],
)
def test_each_value_becomes_what_its_table_says(
    heading: str, url: str, make: Make, execute: Execute
) -> None:
    execute(*BEFORE.get(SYSTEMS[heading], ()))
    wrong = []
    for number, (type_, group) in enumerate(itertools.groupby(cells(heading), lambda c: c.type)):
        given = list(group)
        execute(f"CREATE TABLE t{number} (id INTEGER PRIMARY KEY, v {type_})")
        for row, cell in enumerate(given):
            execute(f"INSERT INTO t{number} (id, v) VALUES ({row}, {cell.value})")
        found = read(make, f"t{number}")
        wrong += [
            (cell, found.get(row))
            for row, cell in enumerate(given)
            if found.get(row) != cell.record
        ]
    assert wrong == []
