"""docs/guarantees.md says what the audit compares, and the audit does what each line says."""

# ruff: noqa: F401, F811
from __future__ import annotations

import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog import load_catalog

from semel.audit import AuditReport, audit
from tests import matrix
from tests.conftest import MakeTopic, Produce
from tests.databases import query
from tests.engine.conftest import Config, Configure, configure
from tests.engine.harness import caught_up, name, records, sql
from tests.patience import PATIENCE
from tests.searching import ask, documents

pytestmark = pytest.mark.integration

UPSERT = {"insert.mode": "upsert", "pk.mode": "record_value", "pk.fields": "id"}
BY_KEY = {"pk.mode": "record_key", "pk.fields": "k", "delete.enabled": "true"}
SQL_MODES = {
    "insert": {},
    "upsert": UPSERT,
    "delete": {**BY_KEY, "insert.mode": "upsert"},
    "update": {**UPSERT, "insert.mode": "update"},
}
ICEBERG_UPSERT = {"iceberg.tables.upsert-mode-enabled": "true"}
ICEBERG_MODES = {
    "insert": {},
    "upsert": {**ICEBERG_UPSERT, "iceberg.tables.default-id-columns": "id"},
    "delete": {
        **ICEBERG_UPSERT,
        "iceberg.tables.default-id-columns": "k",
        "pk.mode": "record_key",
        "delete.enabled": "true",
    },
}
SEARCH_MODES = {
    "insert": {"key.ignore": "true"},
    "upsert": {"key.ignore": "false"},
    "delete": {"key.ignore": "false", "behavior.on.null.values": "delete"},
}
LACKS = {"connection.url": None, "connection.loginTimeout": None}
LAKE = {**LACKS, "processingTime": "0 seconds", "tasks.max": "1"}
ODD = 1000
"""The id of a row that no record makes."""
COUNT = 10


class Store:
    """A target that somebody else changes, too."""

    def __init__(self, request: pytest.FixtureRequest, directory: Path) -> None:
        self.request = request
        self.directory = directory
        self.config: Config = {}

    def keys(self) -> dict[str, Any]:
        return {}

    @property
    def table(self) -> str:
        return self.config["topics"]

    def remove(self, row: int) -> None:
        raise NotImplementedError

    def add(self) -> None:
        raise NotImplementedError

    def change(self, row: int) -> None:
        raise NotImplementedError


class Database(Store):
    system = "postgresql"

    def keys(self) -> dict[str, Any]:
        if self.system == "postgresql":
            return {}
        url = f"jdbc:{self.system}:{self.directory / 'database'}"
        if self.system == "mariadb":
            server = self.request.getfixturevalue("mariadb")
            url = server.create_database(name())
        kind = "mysql" if self.system == "mariadb" else self.system
        return {"connector.class": kind, "connection.url": url, "connection.loginTimeout": None}

    def run(self, statement: str) -> None:
        ask_it = sql if self.system == "postgresql" else query
        ask_it(self.config["connection.url"], statement.format(t=f'"{self.table}"'))

    def remove(self, row: int) -> None:
        self.run(f"DELETE FROM {{t}} WHERE id = {row}")

    def add(self) -> None:
        by_key = self.config.get("pk.fields") == "k"
        columns, values = ("k, id", f"'k{ODD}', {ODD}") if by_key else ("id", str(ODD))
        self.run(f"INSERT INTO {{t}} ({columns}) VALUES ({values})")

    def change(self, row: int) -> None:
        self.run(f"UPDATE {{t}} SET text = 'other' WHERE id = {row}")


class Sqlite(Database):
    system = "sqlite"

    def run(self, statement: str) -> None:
        """In a process of its own: two SQLite libraries in one undo each other's locks."""
        path = self.config["connection.url"].removeprefix("jdbc:sqlite:")
        program = (
            "import sqlite3, sys\n"
            "with sqlite3.connect(sys.argv[1]) as connection: connection.execute(sys.argv[2])"
        )
        command = [sys.executable, "-c", program, path, statement.format(t=f'"{self.table}"')]
        subprocess.run(command, check=True, timeout=PATIENCE)


class DuckDb(Database):
    system = "duckdb"


class MariaDb(Database):
    system = "mariadb"


def odd(rows: pa.Table) -> pa.Table:
    """A row as these are, without provenance, that no record makes."""
    row = {n: None if n.startswith("__") else v for n, v in rows.slice(0, 1).to_pylist()[0].items()}
    row |= {"id": ODD} | ({"k": f"k{ODD}"} if "k" in row else {})
    return pa.Table.from_pylist([row], rows.schema)


class Delta(Store):
    def keys(self) -> dict[str, Any]:
        return {**LAKE, "connector.class": "delta", "delta.table.path": str(self.directory)}

    @property
    def delta(self) -> DeltaTable:
        return DeltaTable(f"{self.directory}/{self.table}")

    def remove(self, row: int) -> None:
        self.delta.delete(f"id = {row}")

    def add(self) -> None:
        write_deltalake(self.delta, odd(pa.table(self.delta.to_pyarrow_table())), mode="append")

    def change(self, row: int) -> None:
        self.delta.update(updates={"text": "'other'"}, predicate=f"id = {row}")


class Iceberg(Store):
    tables = "db.t"

    def keys(self) -> dict[str, Any]:
        return {
            **LAKE,
            "connector.class": "iceberg",
            "auto.create": None,
            "iceberg.catalog.type": "sql",
            "iceberg.catalog.uri": f"sqlite:///{self.directory}/catalog.db",
            "iceberg.catalog.warehouse": f"file://{self.directory}/warehouse",
            "iceberg.tables": self.tables,
            "iceberg.tables.auto-create-enabled": "true",
        }

    @property
    def iceberg(self) -> Any:
        catalog = load_catalog("iceberg", type="sql", uri=self.config["iceberg.catalog.uri"])
        return catalog.load_table("db.t")

    def remove(self, row: int) -> None:
        self.iceberg.delete(f"id = {row}")

    def add(self) -> None:
        table = self.iceberg
        table.append(odd(table.scan().to_arrow()))

    def change(self, row: int) -> None:
        table = self.iceberg
        rows = table.scan().to_arrow()
        at = rows.schema.get_field_index("text")
        texts = pc.if_else(pc.equal(rows.column("id"), row), "other", rows.column("text"))
        table.overwrite(rows.set_column(at, rows.schema.field(at), texts))


class SeveralIceberg(Iceberg):
    tables = "db.t,db.u"


class Files(Store):
    def keys(self) -> dict[str, Any]:
        path = str(self.directory / "files")
        return {**LAKE, "connector.class": "files", "auto.create": None, "path": path}

    def rewrite(self, made: Callable[[pa.Table], pa.Table]) -> None:
        (file,) = Path(self.config["path"], self.table).rglob("*.parquet")
        pq.write_table(made(pq.read_table(file, partitioning=None)), file)

    def remove(self, row: int) -> None:
        self.rewrite(lambda rows: rows.filter(pc.not_equal(rows.column("id"), row)))

    def add(self) -> None:
        self.rewrite(lambda rows: pa.concat_tables([rows, odd(rows)]))

    def change(self, row: int) -> None:
        """Its values are not looked at."""


class Search(Store):
    def keys(self) -> dict[str, Any]:
        self.url = self.request.getfixturevalue("opensearch").url
        where = {"connection.url": self.url, "connection.loginTimeout": None}
        return {**where, "connector.class": "opensearch", "auto.create": None}

    def found(self, row: int) -> tuple[str, dict[str, Any]]:
        """Where a document is, and what it holds."""
        (found,) = (d for d in documents(self.url, self.table) if d["id"] == row)
        place = urllib.parse.quote(found.pop("_id"), safe="")
        return f"{self.url}/{self.table}/_doc/{place}?refresh=true", found

    def remove(self, row: int) -> None:
        request = urllib.request.Request(self.found(row)[0], method="DELETE")
        urllib.request.urlopen(request).close()

    def add(self) -> None:
        ask(self.url, f"/{self.table}/_doc?refresh=true", {"id": ODD})

    def change(self, row: int) -> None:
        place, found = self.found(row)
        ask(place, "", {**found, "text": "other"})


STORES: dict[str, tuple[type[Store], Mapping[str, Mapping[str, str]]]] = {
    "PostgreSQL": (Database, SQL_MODES),
    "SQLite": (Sqlite, SQL_MODES),
    "DuckDB": (DuckDb, SQL_MODES),
    "MariaDB and MySQL": (
        MariaDb,
        {"text key" if mode == "delete" else mode: keys for mode, keys in SQL_MODES.items()},
    ),
    "Delta Lake": (Delta, {mode: SQL_MODES[mode] for mode in ("insert", "upsert", "delete")}),
    "Iceberg": (Iceberg, ICEBERG_MODES),
    "Iceberg with several tables": (SeveralIceberg, {"insert": {}}),
    "files": (Files, {"insert": {}}),
    "Elasticsearch and OpenSearch": (Search, SEARCH_MODES),
}
"""By the names in the table. A topic's records cannot be changed by hand, and SQL Server is not
available here: what the table says about these two is not tested."""
UNTRIED = {"Kafka", "SQL Server"}
QUICK = {
    ("PostgreSQL", "upsert", True),
    ("SQLite", "insert", False),
    ("Iceberg", "delete", False),
    ("files", "insert", True),
}
"""Store, mode, and whether with provenance."""


@dataclass(frozen=True)
class Line:
    """What the table says of one store in one mode."""

    store: str
    mode: str
    traced: str
    untraced: str


def said() -> list[Line]:
    _, _, section = matrix.PAGE.read_text().partition("## What the audit compares\n")
    table = section.partition("| store | mode |")[2].partition("\n\n")[0].splitlines()[2:]
    found = []
    for row in table:
        stores, modes, *cells = (cell.strip() for cell in row.strip("|").split("|"))
        found += [
            Line(store, mode, *cells)  # with provenance, and without
            for store in stores.split(", ")
            for mode in modes.replace("`", "").split(", ")
        ]
    return found


def test_the_table_has_each_store_in_each_mode_once() -> None:
    lines = [(line.store, line.mode) for line in said()]
    assert len(lines) == len(set(lines))
    tried = {(s, m) for s, (_, modes) in STORES.items() for m in modes}
    assert {line for line in lines if line[0] not in UNTRIED} == tried
    assert {store for store, _ in lines} - set(STORES) == UNTRIED


def cases() -> list[Any]:
    return [
        pytest.param(
            line,
            provenance,
            id=f"{line.store}-{line.mode}-{'traced' if provenance else 'untraced'}",
            marks=[] if (line.store, line.mode, provenance) in QUICK else [pytest.mark.long],
        )
        for line in said()
        if line.store in STORES
        for provenance in (True, False)
    ]


@pytest.mark.parametrize(("line", "provenance"), cases())
def test_the_audit_compares_what_the_table_says(
    line: Line,
    provenance: bool,
    request: pytest.FixtureRequest,
    topic: MakeTopic,
    configure: Configure,
    tmp_path: Path,
) -> None:
    source = topic(values=records(COUNT), keys=[f"k{n}" for n in range(COUNT)])
    kind, modes = STORES[line.store]
    store = kind(request, tmp_path)
    keys = {**store.keys(), **modes[line.mode]}
    if not provenance:
        keys["provenance"] = "false"
    store.config = configure(source, keys)
    if line.mode == "update":  # of rows that are there
        caught_up({**store.config, "name": name(), "insert.mode": "upsert"})
    caught_up(store.config)

    report = audit(store.config, values=True)
    assert (report.lost, report.duplicated, report.changed) == (0, 0, 0)
    values = not any("values: " in why for why in report.not_judged)
    store.change(7)
    assert audit(store.config, values=True).changed == values
    assert not audit(store.config).changed

    store.add()
    added = audit(store.config)
    store.remove(5)
    swapped = audit(store.config)
    store.remove(6)
    removed = audit(store.config)
    found = compared(line.mode, swapped, removed)
    told = " + ".join(found + ["values"] * values) or "not judged"
    assert told == (line.traced if provenance else line.untraced)
    if line.mode != "update" or not found:
        assert not added.complete or added.duplicated
        assert removed.lost or not removed.complete


def compared(mode: str, swapped: AuditReport, removed: AuditReport) -> list[str]:
    """What the audit has compared, if this is what it found after a row without provenance was
    added and another one removed, and then after one more was removed."""
    if removed.exact:  # the row that was added may be the one that is missing
        assert (swapped.unknown, removed.lost) == ((1, 1) if mode != "update" else (1, 0))
        return ["coordinates"]
    if swapped.lost:
        return ["keys"]
    if removed.lost:
        return ["number of rows" if mode == "insert" else "number of keys"]
    return []
