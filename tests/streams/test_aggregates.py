"""The state after each record is what single records leave behind, one by one."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from semel.streams.aggregates import (
    Aggregation,
    Custom,
    Reduced,
    avg,
    by_column,
    collect,
    count,
    first,
    last,
    max,
    min,
    per_key,
    single,
    sum,
)
from semel.streams.records import Records


def appended(value: Any, state: list[Any]) -> list[Any]:
    state.append(value["a"])
    return state


SUBTRACTING = {
    "sums": by_column({"n": count(), "a": sum("a"), "d": sum("d"), "mean": avg("a")}),
    "reduce": Reduced(
        lambda one, other: {**one, "a": (one["a"] or 0) + (other["a"] or 0)},
        lambda one, other: {**one, "a": (one["a"] or 0) - (other["a"] or 0)},
    ),
}
AGGREGATIONS = SUBTRACTING | {
    "count": single(count()),
    "columns": by_column(
        {"least": min("a"), "most": max("d"), "first": first("a"), "last": last("d")}
    ),
    "structs": by_column({"first": first("s"), "last": last("s"), "all": collect("s")}),
    "instants": by_column({"least": min("t"), "most": max("t"), "all": min("b"), "any": max("b")}),
    "list": single(collect("a")),
    "in place": Custom(list, per_key(appended, 2)),
}


def values(draw: random.Random, number: int, nulls: float) -> pa.Array:
    def value() -> Any:
        if draw.random() < nulls:
            return None
        return {
            "a": None if draw.random() < 0.2 else draw.randrange(10),
            "d": None if draw.random() < 0.2 else Decimal(draw.randrange(1000)) / 100,
            "t": None if draw.random() < 0.2 else datetime.fromtimestamp(draw.randrange(9), UTC),
            "b": None if draw.random() < 0.2 else draw.random() < 0.5,
            "s": None if draw.random() < 0.2 else {"x": [draw.randrange(10)]},
        }

    kind = pa.struct(
        {
            "a": pa.int64(),
            "d": pa.decimal128(9, 2),
            "t": pa.timestamp("us", "UTC"),
            "b": pa.bool_(),
            "s": pa.struct({"x": pa.list_(pa.int64())}),
        }
    )
    return pa.array([value() for _ in range(number)], kind)


def one_by_one(
    aggregation: Aggregation, codes: np.ndarray, records: Records, before: pa.Array, table: bool
) -> list[Any]:
    states = [before.slice(n, 1) for n in range(len(before))]
    after = []
    for row, group in enumerate(codes):
        fold = aggregation.replace if table else aggregation.fold
        states[group] = fold(np.array([0]), 1, records.take(np.array([row])), states[group])
        after.append(aggregation.result(states[group])[0].as_py())
    return after


@pytest.mark.parametrize("name", AGGREGATIONS)
def test_the_state_after_each_record(name: str) -> None:
    aggregation, draw = AGGREGATIONS[name], random.Random(name)
    for number in (1, 2, 60):
        drawn = [draw.choice((0, 0, 1, 2)) for _ in range(number)]
        codes = np.unique(drawn, return_inverse=True)[1]
        groups = int(codes.max()) + 1
        records = Records(
            pa.array([f"k{c}" for c in codes]), values(draw, number, 0), times(number)
        )
        earlier = Records(pa.array(["k0"]), values(draw, 1, 0), times(1))
        for before in (
            pa.nulls(groups),
            aggregation.fold(np.array([0]), groups, earlier, pa.nulls(groups)),
        ):
            after = aggregation.result(aggregation.running(codes, records, before)).to_pylist()
            assert after == one_by_one(aggregation, codes, records, before, False)


@pytest.mark.parametrize("name", SUBTRACTING)
def test_the_state_after_each_change_of_a_table(name: str) -> None:
    aggregation, draw = SUBTRACTING[name], random.Random(name)
    number, rows = 60, 5
    codes = np.array([draw.randrange(3) for _ in range(number)])
    codes[:3] = range(3)
    # What a change takes back was added before.
    news, held = values(draw, number, 0.3).to_pylist(), dict[tuple[int, int], Any]()
    olds = []
    for code, new in zip(codes.tolist(), news, strict=True):
        row = (code, draw.randrange(rows))
        olds.append(held.get(row))
        held[row] = new
    kind = values(draw, 0, 0).type
    changes = Records(
        pa.array([f"k{c}" for c in codes]),
        pa.array(news, kind),
        times(number),
        olds=pa.array(olds, kind),
    )
    before = pa.nulls(3)
    after = aggregation.result(aggregation.running(codes, changes, before, of_table=True))
    assert after.to_pylist() == one_by_one(aggregation, codes, changes, before, True)


def times(number: int) -> pa.Array:
    return pa.array(range(number), pa.int64())


def test_values_of_any_kind_are_kept_from_step_to_step() -> None:
    """A field may be null in all records of a step, and a struct may gain a field."""
    aggregation = by_column({"first": first("a"), "last": last("a"), "all": collect("a")})
    steps = [[None], [{"x": 1}, None], [{"x": 2, "y": "z"}], [None]]
    state = pa.nulls(1)
    for step in steps:
        records = Records(
            pa.array(["k"] * len(step)), pa.array([{"a": a} for a in step]), times(len(step))
        )
        state = aggregation.fold(np.zeros(len(step), int), 1, records, state)
    first_, last_ = {"x": 1, "y": None}, {"x": 2, "y": "z"}
    assert aggregation.result(state).to_pylist() == [
        {"first": first_, "last": last_, "all": [None, first_, None, last_, None]}
    ]


def test_the_least_decimal_of_several_scales() -> None:
    aggregation = by_column({"least": min("a"), "most": max("a")})
    state = pa.nulls(1)
    for value in ("1.5", "100.25", "-3"):
        records = Records(pa.array(["k"]), pa.array([{"a": Decimal(value)}]), times(1))
        state = aggregation.fold(np.zeros(1, int), 1, records, state)
    assert aggregation.result(state).to_pylist() == [
        {"least": Decimal("-3"), "most": Decimal("100.25")}
    ]


def test_a_decimal_takes_a_fraction_as_it_is_written() -> None:
    aggregation = by_column({"total": sum("a")})
    states = [aggregation.begin()]
    for value in (Decimal("2.5"), 0.1):
        states.append(aggregation.add("k", {"total": value}, states[-1]))
    assert aggregation.states(states[2:]).to_pylist() == [{"total": Decimal("2.6")}]


HALF = 2**62
MOST = Decimal("9" * 38)


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize(
    ("numbers", "total"),
    [
        ([-HALF, HALF, HALF], HALF),
        ([-HALF, -HALF, HALF, HALF], 0),
        ([HALF, HALF], None),
        ([MOST, MOST.copy_negate(), MOST], MOST),
        ([MOST, MOST], None),
    ],
)
def test_only_a_state_may_overflow(numbers: list[Any], total: Any, at_once: bool) -> None:
    """Sums of some records in between may be larger than any state."""
    aggregation = single(sum("a"))
    records = Records(
        pa.array(["k"] * len(numbers)),
        pa.array([{"a": number} for number in numbers]),
        times(len(numbers)),
    )

    def sums() -> pa.Array:
        codes, before = np.zeros(len(numbers), int), pa.nulls(1)
        if at_once:
            return aggregation.result(aggregation.fold(codes, 1, records, before))
        return aggregation.result(aggregation.running(codes, records, before))

    if total is not None:
        assert sums()[-1].as_py() == total
    else:
        with pytest.raises(pa.ArrowInvalid, match=r"overflow|does not fit"):
            sums()


def test_the_mean_of_large_whole_numbers() -> None:
    """Their sum has more digits than a float."""
    aggregation, now = single(avg("a")), 1_796_000_000_000_001
    values_ = pa.array([{"a": now}, {"a": now + 2}] * 5)
    records = Records(pa.array(["k"] * 10), values_, times(10))
    (mean,) = aggregation.result(aggregation.fold(np.zeros(10, int), 1, records, pa.nulls(1)))
    assert mean.as_py() == now + 1
