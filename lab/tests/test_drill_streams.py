"""Drills of topologies."""

from __future__ import annotations

from pathlib import Path

import pytest

from semel.core.errors import ConfigError
from semel_lab.drill.plan import Kind
from semel_lab.drill.run import drill
from semel_lab.drill.stage import BUILT_IN, Stage

COMMON = {
    "key.converter": "org.apache.kafka.connect.storage.StringConverter",
    "value.converter.schemas.enable": "false",
    "tasks.max": "2",
}
TO_TABLE = {
    **COMMON,
    "name": "drill-streams",
    "topology": "buckets:to_table",
    "insert.mode": "upsert",
    "pk.mode": "record_key",
    "pk.fields": "bucket",
}
TO_TOPIC = {**COMMON, "name": "drill-streams-kafka", "topology": "buckets:to_topic"}


@pytest.fixture(autouse=True)
def module(monkeypatch: pytest.MonkeyPatch) -> None:
    """The module with the topologies is where all processes look for it."""
    folder = str(Path(__file__).parent)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", folder)


def test_a_topology_gets_the_faults_that_can_happen_to_it(tmp_path: Path) -> None:
    stage = Stage(TO_TABLE, tmp_path / "drill", tuple(Kind))
    assert {Kind.STATE_LOST, Kind.TASKS_CHANGED, Kind.ZOMBIE, Kind.STORE_KILL} <= set(stage.kinds)
    assert not {Kind.TIME_OUT, Kind.RETENTION, Kind.LOG_TRUNCATED} & set(stage.kinds)
    assert list(stage.topics) == ["drill"] and stage.planned.connector.state_dir
    to_topic = Stage(TO_TOPIC, tmp_path / "topic", tuple(Kind))
    assert Kind.TIME_OUT in to_topic.kinds and Kind.STORE_KILL not in to_topic.kinds
    other = Stage(BUILT_IN, tmp_path / "another", tuple(Kind))
    assert Kind.STATE_LOST not in other.kinds
    with pytest.raises(ConfigError):
        Stage(BUILT_IN, tmp_path / "third", [Kind.STATE_LOST])


@pytest.mark.integration
@pytest.mark.long
@pytest.mark.parametrize("config", [TO_TABLE, TO_TOPIC], ids=["postgresql", "kafka"])
def test_results_equal_a_recomputation_after_all_faults(
    config: dict[str, str], tmp_path: Path
) -> None:
    report = drill(config, 10, 7, directory=tmp_path / "drill")
    assert report.kept and not report.lost and not report.duplicated
    assert report.final is not None and report.final.records > 0
