"""``semel drill --own-store``: what is the user's stays as it is."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

import deltalake
import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import load_catalog

from semel.audit import AuditReport, PartitionAudit
from semel.core.errors import ConfigError, ServiceError
from semel.core.ledger import TRUNCATED, Hole, TopicPartition, firsts
from semel.driver.planning import plan
from semel_lab.drill.own import check_empty, without_letters
from semel_lab.drill.stage import BUILT_IN, Stage

COMMON = {
    **{k: v for k, v in BUILT_IN.items() if not k.startswith("connection.")},
    "bootstrap.servers": "localhost:1",
    "auto.create": "true",
}
ROWS = pa.table({"id": [1, 2]})
Given = Callable[[Path], Mapping[str, str]]


def sqlite(path: Path, *statements: str) -> Mapping[str, str]:
    with sqlite3.connect(path / "mine.db") as mine:
        for statement in statements:
            mine.execute(statement)
    return {"connector.class": "sqlite", "connection.url": f"jdbc:sqlite:{path / 'mine.db'}"}


def sqlite_rows(path: Path) -> Mapping[str, str]:
    return sqlite(path, "CREATE TABLE drill (id INT)", "INSERT INTO drill VALUES (1)")


def sqlite_positions(path: Path) -> Mapping[str, str]:
    keys = sqlite(path)
    _prepared(keys, {"drill": 5})
    return keys


def duckdb_rows(path: Path) -> Mapping[str, str]:
    with duckdb.connect(path / "mine.duckdb") as mine:
        mine.execute("CREATE TABLE drill AS SELECT 1 AS id")
    return {"connector.class": "duckdb", "connection.url": f"jdbc:duckdb:{path / 'mine.duckdb'}"}


def delta_rows(path: Path) -> Mapping[str, str]:
    deltalake.write_deltalake(str(path / "drill"), ROWS)
    return {"connector.class": "delta", "delta.table.path": str(path)}


def iceberg_rows(path: Path) -> Mapping[str, str]:
    keys = {"type": "sql", "uri": f"sqlite:///{path}/catalog.db", "warehouse": f"file://{path}"}
    catalog = load_catalog("mine", **keys)
    catalog.create_namespace("db")
    catalog.create_table("db.mine", ROWS.schema).append(ROWS)
    return {
        "connector.class": "iceberg",
        "iceberg.catalog": "mine",
        **{f"iceberg.catalog.{k}": v for k, v in keys.items()},
        "iceberg.tables": "db.new,db.mine",
        "iceberg.tables.auto-create-enabled": "true",
    }


def parquet_rows(path: Path) -> Mapping[str, str]:
    (path / "drill").mkdir()
    pq.write_table(ROWS, path / "drill" / "mine.parquet")
    return {"connector.class": "files", "path": str(path)}


def foreign_files(path: Path, **keys: str) -> Mapping[str, str]:
    (path / "drill").mkdir()
    (path / "drill" / "mine.txt").write_text("none of any format's")
    return {"connector.class": "files", "path": str(path), **keys}


def _prepared(keys: Mapping[str, str], positions: Mapping[str, int]) -> None:
    sink = plan({**COMMON, **keys}).sink
    sink.prepare(positions)
    sink.start(firsts({TopicPartition(topic, 0): at for topic, at in positions.items()}))
    sink.close()


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (sqlite_rows, "drill has rows"),
        (sqlite_positions, "its ledger knows the connector"),
        (duckdb_rows, "drill has rows"),
        (delta_rows, "drill has rows"),
        (iceberg_rows, "db.mine has rows"),
        (parquet_rows, "drill has rows"),
        (foreign_files, "its contents cannot be read"),
        (lambda path: foreign_files(path, format="json"), "its contents cannot be read"),
        (lambda path: foreign_files(path, format="avro"), "its contents cannot be read"),
    ],
)
def test_a_store_that_is_not_empty_is_refused(given: Given, why: str, tmp_path: Path) -> None:
    keys = {**COMMON, **given(tmp_path)}
    with pytest.raises(ConfigError, match=f"needs an empty store, but .*{why}.* Name another"):
        check_empty(keys, ["drill"])


@pytest.mark.parametrize("given", [sqlite_rows, delta_rows])
def test_nothing_is_created_beside_what_is_there(given: Given, tmp_path: Path) -> None:
    keys = {**COMMON, **given(tmp_path)}
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    with pytest.raises(ConfigError, match="has rows"):
        check_empty(keys, ["drill"])
    if keys["connector.class"] == "sqlite":
        with sqlite3.connect(tmp_path / "mine.db") as mine:
            names = mine.execute("SELECT name FROM sqlite_master").fetchall()
        assert names == [("drill",)]
    else:
        assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before


@pytest.mark.parametrize(
    "given",
    [
        lambda path: sqlite(path, "CREATE TABLE drill (id INT)"),
        lambda path: sqlite(path, "CREATE TABLE other (id INT)", "INSERT INTO other VALUES (1)"),
        lambda path: {"connector.class": "duckdb", "connection.url": f"jdbc:duckdb:{path}/new"},
        lambda path: {"connector.class": "delta", "delta.table.path": f"{path}/new"},
        lambda path: {"connector.class": "files", "path": f"{path}/new"},
    ],
)
def test_an_empty_store_is_taken(given: Given, tmp_path: Path) -> None:
    check_empty({**COMMON, **given(tmp_path)}, ["drill"])


def test_a_file_that_is_no_database_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "mine.db"
    file.write_text("a text of mine" * 100)
    keys = {"connector.class": "sqlite", "connection.url": f"jdbc:sqlite:{file}"}
    with pytest.raises(ServiceError, match="not a database"):
        check_empty({**COMMON, **keys}, ["drill"])
    assert file.read_text() == "a text of mine" * 100


def test_dead_letters_go_nowhere() -> None:
    letters = {"errors.tolerance": "all", "errors.deadletterqueue.table": "of_all_connectors"}
    assert without_letters({**COMMON, **letters, "errors.log.enable": "true"}) == {
        **COMMON,
        "errors.log.enable": "true",
    }


class TestStage:
    SECURED = MappingProxyType(
        {
            "connector.class": "opensearch",
            "connection.url": "https://mine:9200",
            "connection.username": "me",
            "connection.password": "secret",
            "auto.create.indices.at.start": "false",
            "spark.master": "spark://mine:7077",
            "consumer.override.security.protocol": "SSL",
            "consumer.override.ssl.ca.location": "/none.pem",
            "errors.tolerance": "all",
            "errors.deadletterqueue.table": "letters",
        }
    )

    @pytest.mark.parametrize(("unknown", "kept"), [(5, True), (6, False)])
    def test_only_so_much_is_doubtful_as_the_drill_has_made_so(
        self, unknown: int, kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        found = PartitionAudit("t", 0, kafka=9, rows=3, lost=0, duplicated=0, unknown=unknown)
        hole = Hole("t", 0, 0, 5, TRUNCATED)
        report = AuditReport("c", "", True, [found], False, ("x",), gaps=("x",), holes=(hole,))
        monkeypatch.setattr("semel_lab.drill.stage.audit", lambda *_, **__: report)
        assert Stage(BUILT_IN, tmp_path / "drill").audit().kept is kept

    @pytest.mark.parametrize("own", [True, False])
    def test_kafka_is_the_drills_and_the_store_the_users(self, own: bool, tmp_path: Path) -> None:
        stage = Stage({**COMMON, **self.SECURED}, tmp_path / "drill", own_store=own)
        raw = stage.raw
        assert raw["bootstrap.servers"] == stage.kafka.bootstrap_servers
        secured = ("consumer.override.security.", "consumer.override.ssl.", "spark.master")
        assert not [k for k in raw if k.startswith(secured)]
        assert (raw["connection.url"] == "https://mine:9200") is own
        assert (raw["connection.username"] == "me") is own
        assert (raw["connection.password"] == "secret") is own
        assert ("errors.deadletterqueue.table" in raw) is not own
        assert ("errors.tolerance" in raw) is not own


class TestPlaces:
    """Executors have a working directory of their own: a relative path is the driver's."""

    @pytest.mark.parametrize(
        ("name", "key", "given", "expected"),
        [
            ("sqlite", "connection.url", "jdbc:sqlite:x.db", "jdbc:sqlite:{here}/x.db"),
            ("duckdb", "connection.url", "duckdb:below/x", "jdbc:duckdb:{here}/below/x"),
            ("delta", "delta.table.path", "lake", "{here}/lake"),
            ("files", "path", "./files", "{here}/files"),
            ("iceberg", "iceberg.catalog.uri", "sqlite:///c.db", "sqlite:///{here}/c.db"),
            ("sqlite", "connection.url", "jdbc:sqlite:/x.db", "jdbc:sqlite:/x.db"),
            ("delta", "delta.table.path", "s3://lake", "s3://lake"),
            ("files", "path", "/files", "/files"),
            ("iceberg", "iceberg.catalog.uri", "http://catalog", "http://catalog"),
            ("iceberg", "iceberg.catalog.uri", "sqlite:////c.db", "sqlite:////c.db"),
        ],
    )
    def test_a_relative_path_is_made_absolute(
        self,
        name: str,
        key: str,
        given: str,
        expected: str,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.chdir(tmp_path)
        raw = {"connector.class": name, key: given}
        if name == "iceberg":
            raw |= {"iceberg.catalog.type": "rest", "iceberg.tables": "db.t"}
            if "sqlite" in given:
                raw |= {"iceberg.catalog.type": "sql", "iceberg.catalog.warehouse": "/w"}
        planned = plan({**COMMON, **raw})
        assert planned.connector.originals[key] == expected.format(here=tmp_path)
