"""``semel.run()`` as a library."""

# ruff: noqa: F401, F811
from __future__ import annotations

import threading

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame

import semel
from semel.core.errors import ConfigError
from semel.driver.base import Progress
from semel.driver.planning import plan
from tests.conftest import MakeTopic, Produce
from tests.engine.conftest import Configure, Start, configure, start
from tests.engine.harness import LocalSpark, assert_nothing_lost_nothing_twice, records, sql

pytestmark = pytest.mark.integration


def halves(batch: pa.RecordBatch) -> pa.Table:
    """Adds a column, drops one, and drops every second row."""
    table = pa.Table.from_batches([batch])
    table = table.filter(pc.equal(pc.bit_wise_and(table.column("id"), 1), 0))
    half = pc.divide(table.column("id"), 2)
    return table.drop_columns(["text"]).append_column("half", half)


def without_metadata(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.select(["id"])


def repeated(batch: pa.RecordBatch) -> pa.Table:
    return pa.Table.from_batches([batch, batch])


def a_list(batch: pa.RecordBatch) -> list[int]:
    return [batch.num_rows]


def test_a_transform_may_add_and_drop_columns_and_drop_rows(
    topic: MakeTopic, configure: Configure
) -> None:
    source = topic(values=records(20))
    config = configure(source)
    stop = threading.Event()
    progress = semel.run(config, halves, spark=LocalSpark(), until_caught_up=True, stop=stop)
    assert (progress.records, progress.rows) == (20, 10)
    assert not stop.is_set(), "the caller may run it again"
    assert sql(config["connection.url"], f'SELECT id, half FROM "{source}" ORDER BY id') == [
        (2 * i, i) for i in range(10)
    ]
    assert_nothing_lost_nothing_twice(config, range(0, 20, 2), halves)


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (without_metadata, "dropped the metadata column __connect_topic"),
        (repeated, "repeats a record"),
        (a_list, "must return a pyarrow RecordBatch or Table, not list"),
    ],
)
def test_a_transform_that_breaks_its_contract_is_refused(
    transform: object, message: str, topic: MakeTopic, configure: Configure
) -> None:
    source = topic(values=records(5))
    with pytest.raises(ConfigError, match=message):
        semel.run(configure(source), transform, spark=LocalSpark(), until_caught_up=True)


def test_a_run_ends_by_its_stop_event_and_can_be_observed(
    topic: MakeTopic, configure: Configure
) -> None:
    source = topic(values=records(20))
    stop = threading.Event()
    seen: list[int] = []

    def observe(progress: Progress) -> None:
        seen.append(progress.rows)
        if progress.rows == 20:
            stop.set()

    progress = semel.run(configure(source), spark=LocalSpark(), stop=stop, observe=observe)
    assert progress.rows == 20
    assert seen == sorted(seen)


def test_what_an_observer_raises_ends_the_run(topic: MakeTopic, configure: Configure) -> None:
    source = topic(values=records(20))

    def observe(progress: Progress) -> None:
        if progress.rows:
            raise LookupError("nothing to see")

    with pytest.raises(LookupError, match="nothing to see"):
        semel.run(configure(source), spark=LocalSpark(), observe=observe)


def test_the_direct_engine_refuses_a_dataframe_transform(configure: Configure) -> None:
    def transform(frame: DataFrame) -> DataFrame:
        return frame

    with pytest.raises(ConfigError, match="engine=direct gives Arrow batches"):
        plan(configure("anything", {"engine": "direct"}), transform)
    assert plan(configure("anything"), transform).engine == "micro-batch"
