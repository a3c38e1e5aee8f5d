"""Catalogs with their warehouses, and sinks that write into their tables."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from semel.sinks.iceberg.catalog import connect
from semel.sinks.iceberg.sink import IcebergSink
from tests.engine.harness import some
from tests.faults import Faults
from tests.hivemetastore import PATIENT, HiveMetastore
from tests.s3 import Bucket, glue
from tests.sinks.target import Place


class Warehouse(Place):
    """One catalog, in SQLite and with files in a directory unless it is told another one."""

    kind = IcebergSink

    def __init__(
        self, path: Path, properties: Mapping[str, str] | None = None, namespace: str = "db"
    ) -> None:
        self.path = path
        self.name = f"{namespace}.t"
        self.properties = dict(
            properties
            or {
                "type": "sql",
                "uri": f"sqlite:///{path}/catalog.db",
                "warehouse": f"file://{path}/warehouse",
            }
        )

    def config(self, name: str = "c", keys: Mapping[str, Any] | None = None) -> dict[str, str]:
        config = {
            "name": name,
            "connector.class": "iceberg",
            "bootstrap.servers": "nowhere:9092",
            "topics": "t",
            "iceberg.tables": self.name,
            "iceberg.tables.auto-create-enabled": "true",
            **{f"iceberg.catalog.{k}": v for k, v in self.properties.items()},
            **{k: None if v is None else str(v) for k, v in (keys or {}).items()},
        }
        return {k: v for k, v in config.items() if v is not None}

    @property
    def catalog(self) -> Catalog:
        return connect("iceberg", self.properties)  # PyIceberg's own does not know Hive 4

    def table(self, name: str = "") -> Table:
        return self.catalog.load_table(name or self.name)

    def arrow(self, name: str = "") -> pa.Table:
        found: pa.Table = self.table(name).scan().to_arrow()
        return found

    def rows(self, name: str = "") -> list[dict[str, Any]]:
        return sorted(self.arrow(name).to_pylist(), key=str)

    def files(self, pattern: str = "**/*.parquet") -> list[Path]:
        return sorted((self.path / "warehouse").glob(pattern))

    def stored(self, topic: str = "t", partition: int = 0, name: str = "c") -> int | None:
        """A position, straight from the table."""
        text = self.table().properties.get(f"semel:{name}:{topic}:{partition}")
        return None if text is None else int(json.loads(text)["position"])


@pytest.fixture
def warehouse(tmp_path: Path) -> Warehouse:
    return Warehouse(tmp_path)


def rest_warehouse(path: Path, faults: Faults) -> Warehouse:
    return Warehouse(path, {"type": "rest", "uri": faults.url}, f"n{uuid.uuid4().hex[:8]}")


def glue_warehouse(path: Path, faults: Faults) -> Warehouse:
    properties = glue(Bucket(faults.backend), faults.url)
    return Warehouse(path, properties, f"n{uuid.uuid4().hex[:8]}")


def hive_warehouse(path: Path, metastore: HiveMetastore) -> Warehouse:
    where = {"uri": metastore.uri, "warehouse": f"file://{path}/warehouse"}
    return Warehouse(path, {"type": "hive", **where, **PATIENT}, metastore.create_namespace())


@pytest.fixture(params=some(["rest", "glue"], {"rest"}))
def remote(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Warehouse, Faults]]:
    """A catalog that is reached over the wire, and what may happen there."""
    kinds = {"rest": (rest_warehouse, "faulty_rest"), "glue": (glue_warehouse, "faulty_aws")}
    make, named = kinds[request.param]
    faults: Faults = request.getfixturevalue(named)
    yield make(tmp_path, faults), faults
    faults.clear()


@pytest.fixture(params=some(["sqlite", "postgresql", "rest", "glue", "hive"], {"sqlite", "rest"}))
def anywhere(request: pytest.FixtureRequest, tmp_path: Path) -> Warehouse:
    """Each kind of catalog that can be had here."""
    if request.param == "sqlite":
        return Warehouse(tmp_path)
    if request.param == "postgresql":
        url = request.getfixturevalue("database").replace("postgresql:", "postgresql+psycopg2:")
        where = f"file://{tmp_path}/warehouse"
        return Warehouse(tmp_path, {"type": "sql", "uri": url, "warehouse": where})
    if request.param == "hive":
        return hive_warehouse(tmp_path, request.getfixturevalue("hive_metastore"))
    if request.param == "rest":
        return rest_warehouse(tmp_path, request.getfixturevalue("faulty_rest"))
    return glue_warehouse(tmp_path, request.getfixturevalue("faulty_aws"))
