"""Drills of connectors with a query over streams."""

from __future__ import annotations

from pathlib import Path

import pytest

from semel.core.errors import ConfigError
from semel_lab.drill.plan import Kind
from semel_lab.drill.run import drill
from semel_lab.drill.stage import BUILT_IN, Stage

QUERY = {
    **BUILT_IN,
    "name": "drill-query",
    "provenance": "false",
    "query": "SELECT id % 20 AS bucket, count(*) AS n, max(id) AS latest FROM drill GROUP BY 1",
    "checkpoint.location": "elsewhere",
    "insert.mode": "upsert",
    "pk.mode": "record_value",
    "pk.fields": "bucket",
    "maxOffsetsPerTrigger": "2000",
}
TO_DELTA = {
    **{key: value for key, value in QUERY.items() if not key.startswith("connection.")},
    "name": "drill-query-delta",
    "connector.class": "delta",
    "delta.table.path": "elsewhere",
}


def test_a_query_gets_the_faults_that_can_happen_to_it(tmp_path: Path) -> None:
    stage = Stage(QUERY, tmp_path / "drill", tuple(Kind))
    assert {Kind.CHECKPOINT_LOST, Kind.DRIVER_KILL} <= set(stage.kinds)
    assert not {Kind.ZOMBIE, Kind.RETENTION} & set(stage.kinds)
    assert stage.planned.connector.checkpoint_location == f"file:{stage.checkpoint}"
    other = Stage(BUILT_IN, tmp_path / "another", tuple(Kind))
    assert Kind.CHECKPOINT_LOST not in other.kinds
    with pytest.raises(ConfigError):
        Stage(BUILT_IN, tmp_path / "third", [Kind.CHECKPOINT_LOST])


@pytest.mark.integration
@pytest.mark.long
@pytest.mark.parametrize(
    ("config", "kinds"),
    [
        (QUERY, [Kind.DRIVER_KILL, Kind.ERROR]),
        (QUERY, [Kind.CHECKPOINT_LOST, Kind.STORE_KILL]),
        (QUERY, [Kind.BROKER_KILL, Kind.SECOND_DRIVER]),
        (TO_DELTA, [Kind.DRIVER_KILL, Kind.ERROR]),
    ],
)
def test_rows_equal_a_recomputation_after_all_faults(
    config: dict[str, str], kinds: list[Kind], tmp_path: Path
) -> None:
    report = drill(config, 4, 7, kinds=kinds, directory=tmp_path / "drill")
    assert report.kept and not report.lost and not report.duplicated
    assert report.final is not None and report.final.records > 0
