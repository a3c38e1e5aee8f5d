"""Tables as Spark's own Iceberg reads them: another implementation, in Java."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from semel.core.records import Commit
from semel.spark.jars import resolve
from semel_lab.jars import ICEBERG_SPARK
from tests.processes import run_to_end
from tests.sinks.iceberg.conftest import Warehouse
from tests.sinks.target import advance, changes

pytestmark = pytest.mark.integration

_READ = """
import json, sys
from pyspark.sql import SparkSession
path, jars = sys.argv[1:]
spark = (
    SparkSession.builder.master("local[1]")
    .config("spark.jars", jars)
    .config("spark.ui.enabled", "false")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.sql.session.timeZone", "UTC")
    .getOrCreate()
)
table = spark.read.format("iceberg").load(path)
table.createOrReplaceTempView("t")
pruned = spark.sql("SELECT id FROM t WHERE kind = 'k1' AND id >= 1900")
print(json.dumps({
    "rows": {r.id: [r.v, r.kind, r.o and r.o.a] for r in table.collect()},
    "pruned": sorted(r.id for r in pruned.collect()),
    "types": dict(table.dtypes),
}))
"""


@pytest.mark.long
def test_spark_reads_rows_partitions_and_replaced_rows(tmp_path: Path) -> None:
    warehouse = Warehouse(tmp_path)
    keys = {
        "provenance": "true",
        "iceberg.tables.upsert-mode-enabled": "true",
        "iceberg.tables.default-id-columns": "id",
        "iceberg.tables.default-partition-by": "kind,bucket(id,4),day(__connect_timestamp)",
        "pk.mode": "record_key",
        "delete.enabled": "true",
    }
    sink = warehouse.sink(keys=keys)
    first = {i: {"v": i / 2, "kind": f"k{i % 3}", "o": {"a": f"é{i}"}} for i in range(2000)}
    sink.commit_staged([advance(0, 2000)], sink.stage(_commit(*first.items())))
    second = {i: {"v": -1.0, "kind": "k1", "o": None} for i in range(0, 2000, 500)}
    sink.commit_staged([advance(2000, 2010)], sink.stage(_commit(*second.items(), (7, None))))
    jars = ",".join(map(str, resolve(ICEBERG_SPARK)))
    path = warehouse.table().metadata_location
    read = run_to_end([sys.executable, "-c", _READ, path, jars])
    assert read.returncode == 0, read.stderr[-3000:]
    found = json.loads(read.stdout.splitlines()[-1])
    expected = {**first, **second}
    del expected[7]
    assert found["rows"] == {
        str(i): [r["v"], r["kind"], r["o"] and r["o"]["a"]] for i, r in expected.items()
    }
    wanted = [i for i, r in expected.items() if r["kind"] == "k1" and i >= 1900]
    assert found["pruned"] == sorted(wanted)
    assert found["types"]["__connect_timestamp"] == "timestamp"


def _commit(*steps: tuple[int, dict[str, Any] | None]) -> Commit:
    return Commit([changes(*steps)])
