"""What DuckDB's own readers make of the lakes' tables: ``delta_scan`` and ``iceberg_scan``."""

from __future__ import annotations

import datetime as dt
import pickle
import shutil
import subprocess
import sys
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from semel.core.records import Commit, Records
from semel.spark.jars import cache_directory
from tests.patience import PATIENCE
from tests.processes import run_to_end
from tests.sinks.delta.conftest import Lake
from tests.sinks.iceberg.conftest import Warehouse
from tests.sinks.target import advance, metadata, records

pytestmark = pytest.mark.integration

VERSION = "1.5.5"
"""The newest DuckDB whose extensions are packages; they belong to one version each."""
EXTENSIONS = ("avro", "delta", "iceberg")
SCRIPT = f"""
import pickle, pathlib, sys
home, query = sys.argv[1:]
sys.path.insert(0, home)
import duckdb
assert duckdb.__version__ == "{VERSION}"
own = {{"extension_directory": home + "/installed", "autoinstall_known_extensions": "false"}}
with duckdb.connect(config=own) as connection:
    connection.execute("SET enable_progress_bar = false")  # a slow query would print it
    for name in {EXTENSIONS}:
        (file,) = pathlib.Path(home).glob(f"duckdb_extension_{{name}}/**/*.duckdb_extension")
        connection.execute(f"LOAD '{{file}}'")
    sys.stdout.buffer.write(pickle.dumps(connection.execute(query).fetchall()))
"""
AT = dt.datetime(2024, 5, 1, 12, 30, 0, 1500, dt.UTC)
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("name", pa.string()),
        ("price", pa.decimal128(10, 2)),
        ("at", pa.timestamp("us", "UTC")),
        ("day", pa.date32()),
        ("yes", pa.bool_()),
        ("tags", pa.list_(pa.string())),
    ]
)
QUERY = 'SELECT id, name, price, epoch_us("at"), day, yes, tags, more FROM {} ORDER BY id'
KEYED = {"pk.mode": "record_key", "pk.fields": "id", "delete.enabled": "true"}


@pytest.fixture(scope="module")
def home() -> Path:
    """Where a DuckDB with its extensions is, beside the tests' own; pip brings it once."""
    found = cache_directory() / f"duckdb-{VERSION}"
    if not found.exists():
        made = found.with_name(f"{found.name}-{uuid.uuid4().hex[:8]}")
        packages = ["duckdb", *(f"duckdb-extension-{name}" for name in EXTENSIONS)]
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        options = ["--no-deps", "--target", str(made), *(f"{p}=={VERSION}" for p in packages)]
        run = run_to_end([*pip, *options])
        assert run.returncode == 0, run.stderr
        try:
            made.rename(found)
        except OSError:  # another process of the tests was first
            shutil.rmtree(made)
    return found


def read(home: Path, source: str) -> list[tuple[Any, ...]]:
    """By another program, in another process."""
    command = [sys.executable, "-c", SCRIPT, str(home), QUERY.format(source)]
    run = subprocess.run(command, capture_output=True, check=False, timeout=PATIENCE)
    assert run.returncode == 0, run.stderr.decode()
    found: list[tuple[Any, ...]] = pickle.loads(run.stdout)
    return found


def row(number: int, day: int, **more: Any) -> dict[str, Any]:
    name, price = f"n{number}", Decimal(f"{number}.25")
    tags = ["a", name]
    return {
        "id": number,
        "name": name,
        "price": price,
        "at": AT,
        "day": dt.date(2024, 5, day),
        "yes": number % 2 == 0,
        "tags": tags,
        **more,
    }


def commits() -> list[tuple[int, Records]]:
    """Rows in two partitions; some that replace them, with a new field; and one that is deleted."""
    first = [row(i, 1 + i % 2) for i in range(6)]
    keys = pa.array(range(6))
    later = [row(3, 1, name="again", more="x"), row(7, 2, name=None, more=None)]
    wider = SCHEMA.append(pa.field("more", pa.string()))
    gone = pa.table(metadata("t", [8], pa.array([4])))
    changed = records(
        pa.Table.from_pylist(later, schema=wider), keys=pa.array([3, 7]), offsets=[6, 7]
    )
    return [
        (6, records(pa.Table.from_pylist(first, schema=SCHEMA), keys=keys)),
        (9, Records("t", changed.rows, gone)),
    ]


def expected() -> list[tuple[Any, ...]]:
    rows = {i: row(i, 1 + i % 2) for i in (0, 1, 2, 5)}
    rows |= {3: row(3, 1, name="again", more="x"), 7: row(7, 2, name=None)}
    micros = int(AT.timestamp()) * 1_000_000 + AT.microsecond
    return [
        (i, r["name"], r["price"], micros, r["day"], r["yes"], r["tags"], r.get("more"))
        for i, r in sorted(rows.items())
    ]


def write(sink: Any) -> None:
    position = 0
    for until, batch in commits():
        sink.commit([advance(position, until)], Commit([batch]))
        position = until


def test_delta(home: Path, tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    keys = {**KEYED, "insert.mode": "upsert", "auto.evolve": "true", "partition.by": "day"}
    write(lake.sink(keys=keys))
    assert read(home, f"delta_scan('file://{lake.path}/t')") == expected()


def test_iceberg(home: Path, tmp_path: Path) -> None:
    warehouse = Warehouse(tmp_path)
    keys = {
        **KEYED,
        "iceberg.tables.upsert-mode-enabled": "true",
        "iceberg.tables.evolve-schema-enabled": "true",
        "iceberg.tables.default-partition-by": "day(day)",
    }
    write(warehouse.sink(keys=keys))
    metadata_file = warehouse.table().metadata_location
    assert read(home, f"iceberg_scan('{metadata_file}')") == expected()
