"""The audit finds a cell that was changed by hand, and no row that semel wrote, of any records."""

from __future__ import annotations

import itertools
import json
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from semel.audit.report import PartitionAudit
from semel.audit.values import ValueFindings, Values
from semel.audit.workspace import Workspace
from semel.config import ConnectorConfig, read
from semel.core.records import Commit
from semel.sinks import sink_class
from semel.sinks.base import Sink
from semel.sinks.rereading import Viewable
from semel.tasks.pipeline import Pipeline
from tests import databases
from tests.engine.harness import some
from tests.polled import polled

Change = tuple[str, dict[str, Any] | None]
"""A key, and a value or none."""
KEYS = ["a", "A", "a ", "b", "ä", ""]
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "n": st.integers(-3, 3) | st.integers(-(2**63), 2**63 - 1),
    "x": st.sampled_from([0.0, -1.5, 0.1, 1e300, 5e-324]),
    "s": st.sampled_from(["", "a", "a ", "A", "null", "0", "\n'\"\\", "ä\U0001f600"]),
    "flag": st.booleans(),
    "o": st.fixed_dictionaries(
        {"a": st.none() | st.integers(0, 2), "b": st.lists(st.sampled_from(["x", "[y]"]))}
    ),
}
FULL = {"n": 1, "x": 0.5, "s": "first", "flag": True, "o": {"a": 1, "b": ["x"]}}
OTHERS: Mapping[str, Sequence[tuple[Any, str]]] = {
    "n": [(None, "NULL"), (0, "0"), (-7, "-7")],
    "x": [(None, "NULL"), (0.0, "0.0"), (-7.5, "-7.5")],
    "s": [(None, "NULL"), ("", "''"), ("z", "'z'")],
    "flag": [(None, "NULL"), (True, "true"), (False, "false")],
    "o": [(None, "NULL")],
}
"""Values to put into a cell by hand."""

values = st.fixed_dictionaries({}, optional={n: st.none() | kind for n, kind in FIELDS.items()})
changes = st.tuples(st.sampled_from(KEYS), st.none() | values)
batches = st.lists(st.lists(changes, min_size=1, max_size=8), max_size=4)
MODES = {
    "insert": {},
    "upsert": {
        "insert.mode": "upsert",
        "pk.mode": "record_key",
        "pk.fields": "k",
        "delete.enabled": "true",
    },
}


class Store:
    """One table in a directory, of a connector that runs, or is audited, when it is told to."""

    def __init__(self, system: str, directory: Path, keys: Mapping[str, str]) -> None:
        self.system = system
        where = {"connection.url": f"jdbc:{system}:{directory / 'database'}"}
        if system == "delta":
            where = {"delta.table.path": str(directory)}
        self.url = where.get("connection.url", f"{directory}/t")
        self.raw = {
            "name": "c",
            "connector.class": system,
            "bootstrap.servers": "nowhere:9092",
            "topics": "t",
            "auto.create": "true",
            "value.converter": "org.apache.kafka.connect.json.JsonConverter",
            "value.converter.schemas.enable": "false",
            "key.converter": "org.apache.kafka.connect.storage.StringConverter",
            **where,
            **keys,
        }
        self.connector = read(ConnectorConfig, self.raw)

    def sink(self) -> Sink:
        return sink_class(self.system)(self.connector)

    def write(self, parts: Sequence[pa.Table]) -> None:
        """Write as a task does, a part in each commit."""
        with closing(self.sink()) as sink:
            sink.prepare(["t"])
            pipeline = Pipeline(self.connector, sink, target=sink.schema)
            pipeline.infer("t", parts[0])
            for part in parts:
                converted = pipeline.convert("t", part)
                assert not converted.failed
                sink.accommodate(converted.records)
                sink.write(Commit([converted.records]))

    def audit(self, parts: Sequence[pa.Table]) -> ValueFindings:
        """Compare values as the audit does that reads these parts."""
        with closing(self.sink()) as sink, closing(Workspace()) as workspace:
            assert isinstance(sink, Viewable)
            pipeline = Pipeline(self.connector, sink, target=sink.schema)
            with sink.viewing(["t"]) as (view,):
                judged = Values(
                    sink,
                    view,
                    view.snapshot(["t"]),
                    workspace,
                    exact=self.connector.provenance,
                    progress=lambda *_: None,
                )
                for part in parts:
                    judged.add("t", part, pipeline.convert("t", part))
                return judged.judge([PartitionAudit("t", 0, 0, 0, 0, 0)], ())

    def rows(self) -> dict[int, dict[str, Any]]:
        """The table's rows by their ids."""
        if self.system == "delta":
            found = DeltaTable(self.url).to_pyarrow_table().to_pylist()
        else:
            names = ["id", *FIELDS]
            rows = databases.query(self.url, f"SELECT {', '.join(names)} FROM t")
            found = [dict(zip(names, row, strict=True)) for row in rows]
        return {row["id"]: row for row in found}

    def change(self, row: int, column: str, value: str) -> None:
        if self.system == "delta":
            DeltaTable(self.url).update(updates={column: value}, predicate=f"id = {row}")
        else:
            databases.query(self.url, f"UPDATE t SET {column} = {value} WHERE id = {row}")


def raw(history: Sequence[Change], first: int = 0) -> pa.Table:
    """Records of one partition as they come from Kafka, each value with the record's offset."""
    offsets = range(first, first + len(history))
    told = [
        None if value is None else json.dumps({"id": offset, **value}).encode()
        for offset, (_, value) in zip(offsets, history, strict=True)
    ]
    keys = [key.encode() for key, _ in history]
    return polled(told, keys, offsets=offsets, timestamps=offsets)


def check(
    system: str, mode: str, provenance: bool, history: Sequence[Sequence[Change]], data: Any
) -> None:
    keys = {**MODES[mode], "provenance": str(provenance).lower()}
    parts = [[("first", FULL)], *history]
    starts = [0, *itertools.accumulate(map(len, parts))]
    written = [raw(part, start) for part, start in zip(parts, starts, strict=False)]
    everything = [pa.concat_tables(written)]
    with tempfile.TemporaryDirectory() as directory:
        store = Store(system, Path(directory), keys)
        store.write(written)
        read_again = data.draw(st.sampled_from([written, everything]))
        found = store.audit(read_again)
        rows = store.rows()
        assert (found.partitions[0].changed, found.not_judged) == (0, [])
        assert found.compared == len(rows)
        row = data.draw(st.sampled_from(sorted(rows)))
        column = data.draw(st.sampled_from(sorted(FIELDS)))
        others = [sql for value, sql in OTHERS[column] if value != rows[row][column]]
        if not others:
            return
        store.change(row, column, data.draw(st.sampled_from(others)))
        found = store.audit(read_again)
        assert found.partitions[0].changed == 1, (row, column, found)
        if mode == "upsert" or provenance:
            assert [r.columns for r in found.rows] == [(column,)]


def check_generated(system: str, mode: str, provenance: bool, examples: int) -> None:
    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))
    @given(batches, st.data())
    def check_one(history: Sequence[Sequence[Change]], data: Any) -> None:
        check(system, mode, provenance, history, data)

    check_one()


SHORT = [("sqlite", "upsert", True), ("delta", "upsert", True)]


@pytest.mark.parametrize(
    ("system", "mode", "provenance"),
    some(itertools.product(["sqlite", "duckdb", "delta"], MODES, [True, False]), SHORT),
)
def test_what_semel_wrote_is_unchanged_and_one_changed_cell_is_found(
    system: str, mode: str, provenance: bool
) -> None:
    check_generated(system, mode, provenance, examples=6)


@pytest.mark.long
@pytest.mark.parametrize("provenance", [True, False], ids=["provenance", "no provenance"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("system", ["sqlite", "duckdb", "delta"])
def test_of_any_records_too(system: str, mode: str, provenance: bool) -> None:
    check_generated(system, mode, provenance, examples=100)
