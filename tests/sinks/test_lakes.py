"""What the sinks of Delta Lake and Iceberg have in common, each in tables of its own."""

from __future__ import annotations

import datetime as dt
import decimal
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest

from semel.core.ledger import Outcome
from semel.core.records import Commit
from semel.sinks.delta import sink as delta
from semel.sinks.iceberg import sink as iceberg
from tests.sinks.delta.conftest import Lake
from tests.sinks.iceberg.conftest import Warehouse
from tests.sinks.target import advance, at_first, records, values

LAKES: dict[str, type[Lake] | type[Warehouse]] = {"delta": Lake, "iceberg": Warehouse}
EVOLVE = {"auto.evolve": "true", "iceberg.tables.evolve-schema-enabled": "true"}
NOW = dt.datetime(2024, 2, 29, 12, 30, 0, 123456, dt.UTC)


@pytest.fixture(params=LAKES)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake | Warehouse:
    return LAKES[request.param](tmp_path)


def test_a_column_that_was_made_for_json_takes_any_value_after_a_restart(
    lake: Lake | Warehouse,
) -> None:
    objects = pa.array(['{"deep": [1]}', None], pa.string()).cast(pa.json_())
    columns = {"o": objects, "s": ["a", "b"]}
    lake.sink().write(Commit([records(pa.table(columns))]))
    more = records(pa.table({**columns, "p": objects}), offsets=[2, 3])
    lake.sink(keys=EVOLVE).write(Commit([more]))
    schema = lake.sink().schema("t")
    assert schema is not None
    kinds = {"o": pa.json_(), "s": pa.string(), "p": pa.json_()}
    assert {f.name: f.type for f in schema} == kinds


COLUMNS: dict[str, tuple[Any, pa.DataType]] = {
    "i8": (1, pa.int8()),
    "u32": (4_000_000_000, pa.uint32()),
    "f": (1.5, pa.float32()),
    "d": (decimal.Decimal("12.34"), pa.decimal128(10, 2)),
    "b": (True, pa.bool_()),
    "s": ("é", pa.string()),
    "x": (b"\x00\xff", pa.binary()),
    "day": (NOW.date(), pa.date32()),
    "at": (NOW.replace(microsecond=123000), pa.timestamp("ms", "UTC")),
    "l": ([1, None], pa.list_(pa.int64())),
    "o": ({"a": "x", "n": 1}, pa.struct([("a", pa.string()), ("n", pa.int64())])),
    "m": ([("k", 1)], pa.map_(pa.string(), pa.int32())),
    "j": ('{"deep": [1]}', pa.json_()),
    "e": ("a", pa.dictionary(pa.int32(), pa.string())),
}
OF_ICEBERG = {"time": (NOW.time(), pa.time64("us")), "odd name.1": (1, pa.int64())}


def test_every_type_of_a_converter_has_a_column(lake: Lake | Warehouse) -> None:
    columns = COLUMNS | (OF_ICEBERG if isinstance(lake, Warehouse) else {})
    made = {
        name: pa.array([value, None], pa.string()).cast(kind)
        if isinstance(value, str)
        else pa.array([value, None], kind)
        for name, (value, kind) in columns.items()
    }
    lake.sink().write(Commit([records(pa.table(made))]))
    first, empty = sorted(lake.rows(), key=lambda r: r["i8"] is None)
    assert first == {name: value for name, (value, _) in columns.items()}
    assert set(empty.values()) == {None}


@pytest.mark.parametrize(
    ("lake", "module", "outcome"),
    [("delta", delta, Outcome.APPLIED), ("iceberg", iceberg, Outcome.REPLAYED)],
    indirect=["lake"],
)
def test_a_writer_that_wins_between_judgement_and_commit_is_noticed(
    lake: Lake | Warehouse, module: ModuleType, outcome: Outcome
) -> None:
    assert outcome_of_a_race(lake, module) is outcome


def outcome_of_a_race(lake: Lake | Warehouse, module: ModuleType) -> Outcome:
    """Two sinks commit the same; one overtakes the other between judgement and commit."""
    sink, other = lake.sink(), lake.sink()
    sink.commit([advance(0, 10)], values(0, 10))

    def overtake() -> None:
        other.commit([advance(10, 20)], values(10, 20))

    with at_first(module, "sink.before_commit", overtake):
        found: Outcome = sink.commit([advance(10, 20)], values(10, 20))
    assert sorted(r["id"] for r in lake.rows()) == list(range(20))
    return found
