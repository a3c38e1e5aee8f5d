"""The parts of the benchmarks that need no services."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from benchmarks import delta, iceberg, sources
from benchmarks.measure import Sample
from benchmarks.meter import Meter
from benchmarks.progress import Curve
from benchmarks.records import FIRST_TS, Workload
from benchmarks.report import Column, Figures, count
from benchmarks.systems import Peer, Semel
from benchmarks.throughput import CONTESTS, _figures
from benchmarks.visible import Warm
from tests.patience import PATIENCE


def test_every_key_of_an_update_workload_is_written_twice_in_one_partition() -> None:
    workload = Workload.of(1000, 4, updates=True, envelope=False)
    each = workload.records // 4
    seen: dict[int, list[tuple[int, int]]] = {}
    for partition in range(4):
        for index in range(each):
            key, ts = workload.record(partition, index)
            seen.setdefault(key, []).append((partition, ts))
    assert set(seen) == set(range(500))
    assert all(len(writes) == 2 and writes[0][0] == writes[1][0] for writes in seen.values())
    assert max(ts for writes in seen.values() for _, ts in writes) == FIRST_TS + 999


def test_a_curve_counts_only_what_is_committed() -> None:
    workload = Workload.of(400, 2, updates=False, envelope=False)
    # partition 0 commits 100 at 1 s and 100 at 3 s, partition 1 all 200 at 2 s
    curve = Curve(
        workload,
        0.0,
        [[0, 1, 1, 3, 3], [0, 2, 2, 2, 2]],
        [[0, 1, 100, 101, 200], [0, 1, 50, 100, 200]],
    )
    assert curve.committed(1 + 1e-6) == pytest.approx(100 + 0.5, abs=1)
    assert curve.committed(2 + 1e-6) == pytest.approx(300, abs=1)
    assert curve.reached(0.7) == 2
    assert curve.ended == 3
    assert curve.first == 1


def test_the_warm_window_of_a_topic_lies_between_shares_of_what_is_visible() -> None:
    window = Warm.of([0, 10, 12, 30], [0, 0, 1000, 1000])
    assert (window.since, window.until) == pytest.approx((10.3, 11.7))
    assert window.rate(800) == pytest.approx(0.7 * 800 / 1.4)
    with pytest.raises(RuntimeError, match="take more --records"):
        Warm.of([0, 10, 10], [0, 0, 1000])


def test_lines_of_a_file_are_those_of_the_topics(tmp_path: Path) -> None:
    file = tmp_path / "lines.txt"
    assert sources._write(file, 1500) == file.stat().st_size
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["id"] for line in lines] == list(range(1500))


def test_the_meter_counts_this_process() -> None:
    with Meter({"me": os.getpid()}, weigh=("me",), every=0.05, weigh_every=0.05) as meter:
        began, usage = time.monotonic(), meter.usage["me"]
        while not (usage.peak_pss and len(usage.times) > 9 and usage.cpu[-1] > usage.cpu[0]):
            assert time.monotonic() - began < PATIENCE
            np.sort(np.random.default_rng(0).random(10_000))
        ended = time.monotonic()
    assert 0 < usage.between(began, ended) <= (ended - began) * (os.cpu_count() or 1) + 0.1
    assert usage.peak_rss >= usage.peak_pss > 1_000_000


def test_a_table_in_markdown_shows_three_digits() -> None:
    figures = Figures("x", "X", [Column("n", "name"), Column("v", "rows/s", count)], [])
    figures = Figures("x", "X", figures.columns, [{"n": "a", "v": 123456.7}])
    assert "| a | 123,000 |" in figures.markdown()
    assert "| --- | --: |" in figures.markdown()


def test_ratios_are_taken_to_the_peer_on_the_same_topic() -> None:
    def sample(rate: float) -> Sample:
        return Sample(1000, rate, rate / 2, 1.0, 2.0, 1e6 / rate, 1.0, 0.5, 2**30, 2**29)

    rates = dict(zip(CONTESTS, (100.0, 200.0, 150.0, 450.0), strict=True))
    samples = {
        (mode, contest): [sample(rate), sample(rate)]
        for mode in ("upsert", "insert")
        for contest, rate in rates.items()
    }
    figures = _figures(samples, {"peer": Peer, "semel": Semel}, 2, 1000, 2, 3.0)  # type: ignore[dict-item]
    inserts = [row for row in figures.rows if row["mode"] == "insert"]
    assert [row["ratio"] for row in inserts] == [1.0, 2.0, 1.0, 3.0]
    assert [row["cpu_ratio"] for row in inserts] == pytest.approx([1.0, 2.0, 1.0, 3.0])
    assert figures.facts["headline"] == {"insert": 4.5, "upsert": 4.5}
    assert "| insert | semel | plain | 450 |" in figures.markdown()


def test_a_lake_is_measured_by_the_commits_that_hold_data(tmp_path: Path) -> None:
    workload = Workload.of(1000, 4, updates=False, envelope=False)
    rows = pa.table({"id": np.arange(workload.records)})
    each = workload.records // delta.TRIGGERS
    for n in range(delta.TRIGGERS):
        write_deltalake(str(tmp_path), rows.slice(n * each, each), mode="append")
        time.sleep(0.01)
    table = DeltaTable(str(tmp_path))
    table.optimize.compact()
    sample = delta._measured(DeltaTable(str(tmp_path)), workload, 2.0, "semel")
    assert sample.overall_rate == workload.records / 2
    assert sample.files == 1
    assert 0 < sample.rate < 0.8 * workload.records / 0.04
    samples = {
        (mode, system): [sample] for mode in ("append", "upsert") for system in delta.SYSTEMS
    }
    figures = delta._figures(samples, 1000, 2, 1)
    assert [row["ratio"] for row in figures.rows] == [1.0] * 4


def test_the_window_leaves_out_the_first_commit_and_the_last_one() -> None:
    append = Workload.of(1000, 4, updates=False, envelope=False)
    commits = [(10.0, 0), (12.0, 100), (14.0, 300), (16.0, 700), (20.0, 1000)]
    assert iceberg.window(commits, append) == (12.0, 16.0, 600)
    assert iceberg.window([(10.0, 0), (12.0, 1000)], append) == (10.0, 12.0, 1000)
    upsert = Workload.of(1000, 4, updates=True, envelope=False)
    commits = [(10.0, 0), (12.0, 250), (14.0, 500), (16.0, 500), (18.0, 500)]
    assert iceberg.window(commits, upsert) == (12.0, 16.0, 500)


def test_a_mode_without_a_peer_has_no_ratio() -> None:
    def sample(rate: float) -> iceberg.Sample:
        return iceberg.Sample(1000, rate, rate / 2, 5, 10, 2**20, 1e6 / rate, 1.0, 2**30)

    samples = {
        ("append", "Kafka Connect"): [sample(100.0)],
        ("append", "semel"): [sample(300.0)],
        ("upsert", "semel"): [sample(50.0)],
    }
    figures = iceberg._figures(samples, 1000, 2, 1)
    assert [row["ratio"] for row in figures.rows] == [1.0, 3.0, None]
    assert "| upsert | semel | 50 | 50 to 50 |  |" in figures.markdown()
