"""The event time of records, from whatever a field holds."""

from __future__ import annotations

import datetime
from typing import Any

import pyarrow as pa
import pytest

from semel.core.records import METADATA_TYPES
from semel.tasks.microbatch.streams import EVENT_TIME, may_be_time, timed

NOON = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)
MS = int(NOON.timestamp() * 1000)


def rows(values: pa.Array) -> pa.Table:
    n = len(values)
    origin = {"__connect_topic": ["t"] * n, "__connect_partition": [0] * n}
    origin |= {"__connect_offset": list(range(n)), "__connect_timestamp": [0] * n}
    columns = {k: pa.array(v).cast(METADATA_TYPES[k]) for k, v in origin.items()}
    return pa.table({"at": values, **columns})


@pytest.mark.parametrize(
    "values",
    [
        pa.array([MS]),
        pa.array(["2026-01-01T12:00:00Z"]),
        pa.array(["2026-01-01T13:00:00+01:00"]),
        pa.array(["2026-01-01 12:00:00"]),
        pa.array([NOON], pa.timestamp("ns", "UTC")),
        pa.array([NOON.replace(tzinfo=None)], pa.timestamp("ms")),
    ],
)
def test_times_of_every_kind_are_the_same_moment(values: pa.Array) -> None:
    assert may_be_time(values.type)
    found, bad = timed(rows(values), "at")
    assert found.column("at").to_pylist() == [NOON] and not bad
    assert found.column("at").type == EVENT_TIME


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (pa.array(["2026-01-01T12:00:00Z", "noon"]), "is no time: 'noon'"),
        (pa.array([MS, None]), "is missing"),
        (pa.array([MS, 2**62]), "is no time"),
        (pa.array([NOON, None], pa.timestamp("us", "UTC")), "is missing"),
    ],
)
def test_a_record_without_a_time_is_a_bad_one(values: Any, says: str) -> None:
    found, bad = timed(rows(values), "at")
    assert found.column("at").to_pylist()[0] == NOON
    assert [(k, says in b.message) for k, b in bad.items()] == [(("t", 0, 1), True)]


def test_a_batch_whose_records_all_lack_the_field_is_bad() -> None:
    _, bad = timed(rows(pa.array([1])).drop_columns(["at"]), "at")
    assert list(bad) == [("t", 0, 0)]
