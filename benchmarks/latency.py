"""From handing a record to the producer until its row is committed and visible in PostgreSQL.

A procedure inside the server looks for new rows every few milliseconds, each time with a new
snapshot, and notes the clock; the record carries the clock of its producer, on the same machine.
A row is therefore seen half an interval late on average and never early, equally for both systems.

Both systems run all the time, each on a topic of its own, and are measured in turn: what else the
machine does meanwhile falls on both.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import benchmarks
from benchmarks.pace import SHIFT
from benchmarks.records import TABLE
from benchmarks.report import Column, Figures, count, milliseconds
from benchmarks.rig import Rig
from benchmarks.systems import ENVELOPE, Peer, Semel, System, connector
from semel_lab.embedded.connect import ConnectWorker

PARTITIONS = 4
TASKS = 2
LEAD = 3.0
"""Seconds at each rate before the measured ones."""

WARM_UP = (20_000, 5.0)
"""Records a second, and for how long, before anything is measured: the peer's JVM compiles."""

ARRIVAL = 120.0

BUSY = 500
"""The records per second from which to poll less often: polling costs both systems CPU time."""

PAUSE, LONG_PAUSE = 0.0005, 0.0025
"""Seconds from the end of one poll to the next."""

_WATCH = """CREATE PROCEDURE {name}(
    last bigint[], missing bigint, pause double precision, seconds double precision
)
LANGUAGE plpgsql AS $$
DECLARE
    found bigint[];
    fresh bigint;
    deadline timestamptz := clock_timestamp() + make_interval(secs => seconds);
BEGIN
    LOOP
        WITH rows AS (
            INSERT INTO seen_rows
            SELECT t.id, t.ts, 1e6 * extract(epoch FROM clock_timestamp())
            FROM unnest(last) WITH ORDINALITY AS l(id, place),
                LATERAL (
                    SELECT id, ts FROM {table} AS t
                    WHERE t.id > l.id AND t.id < l.place << {shift}
                    ORDER BY t.id
                ) AS t
            RETURNING id
        ), newest AS (SELECT id >> {shift} AS partition, max(id) AS id FROM rows GROUP BY 1)
        SELECT
            array_agg(coalesce(n.id, l.id) ORDER BY l.place),
            (SELECT count(*) FROM rows)
        INTO found, fresh
        FROM unnest(last) WITH ORDINALITY AS l(id, place)
        LEFT JOIN newest n ON n.partition = l.place - 1;
        last := found;
        missing := missing - fresh;
        INSERT INTO seen_polls VALUES (1e6 * extract(epoch FROM clock_timestamp()));
        COMMIT;
        EXIT WHEN missing <= 0 OR clock_timestamp() > deadline;
        PERFORM pg_sleep(pause);
    END LOOP;
END $$"""


@dataclass(frozen=True)
class Seen:
    """Latencies and intervals between polls in milliseconds, and the producer's own figures."""

    latencies: np.ndarray
    intervals: np.ndarray
    pace: dict[str, float]


class Watched:
    """One system's connector with its topic and table, at different rates one after another."""

    def __init__(self, rig: Rig, system: System) -> None:
        self._rig = rig
        self._system = system
        self._next = 0
        self._topic = rig.unique("paced")
        self._table = rig.unique("target")
        self._watch = f"watch_{self._table}"
        rig.kafka.create_topic(self._topic, PARTITIONS)
        rig.execute(
            TABLE.format(name=self._table),
            _WATCH.format(name=self._watch, table=self._table, shift=SHIFT),
        )

    def __enter__(self) -> Watched:
        config = connector(
            self._rig, self._topic, self._table, upsert=False, converter=ENVELOPE, tasks=TASKS
        )
        self._system.start(self._rig.unique("bench"), config)
        return self

    def __exit__(self, *_exc: object) -> None:
        self._system.stop()
        self._rig.execute(f"DROP PROCEDURE {self._watch}", f"DROP TABLE {self._table}")

    def pass_through(self, rate: float, seconds: float) -> Seen:
        """Produce at a rate and see every row arrive.

        Raises:
            RuntimeError: some did not.
        """
        first = self._next
        records = round(rate * seconds)
        self._next += -(-records // PARTITIONS)
        options = {
            "servers": self._rig.kafka.bootstrap_servers,
            "topic": self._topic,
            "partitions": PARTITIONS,
            "rate": rate,
            "seconds": seconds,
            "first": first,
        }
        producer = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.pace", *(f"--{k}={v}" for k, v in options.items())],
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(benchmarks.__path__[0]).parent,
        )
        try:
            pause = PAUSE if rate < BUSY else LONG_PAUSE
            rows, polls = self._see(first, records, pause, seconds + ARRIVAL)
            output, _ = producer.communicate(timeout=60)
        finally:
            producer.kill()
            producer.wait()
        self._system.check()
        if len(rows["ts"]) != records:
            raise RuntimeError(
                f"{self._system.name}: {len(rows['ts'])} of {records} rows seen at {rate}/s"
            )
        skipped = (
            rows["ts"] < rows["ts"].min() + LEAD * 1e6 if seconds > 2 * LEAD else rows["ts"] < 0
        )
        latencies = (rows["seen"] - rows["ts"])[~skipped] / 1000
        return Seen(latencies, np.diff(np.sort(polls)) / 1000, json.loads(output))

    def _see(
        self, first: int, records: int, pause: float, seconds: float
    ) -> tuple[dict[str, np.ndarray], np.ndarray]:
        last = ",".join(str((p << SHIFT) + first - 1) for p in range(PARTITIONS))
        with self._rig.connect() as connection, connection.cursor() as cursor:
            for statement in (
                "CREATE TEMPORARY TABLE seen_rows (id bigint, ts bigint, seen double precision)",
                "CREATE TEMPORARY TABLE seen_polls (at double precision)",
                "SET enable_seqscan = off",
                "SET enable_bitmapscan = off",
                "SET jit = off",
                f"CALL {self._watch}('{{{last}}}'::bigint[], {records}, {pause}, {seconds})",
            ):
                cursor.execute(statement)
            cursor.execute("SELECT ts, seen FROM seen_rows")
            seen_rows = cursor.fetch_arrow_table()
            cursor.execute("SELECT at FROM seen_polls")
            polls = cursor.fetch_arrow_table()
        rows = {n: seen_rows.column(n).to_numpy() for n in ("ts", "seen")}
        return rows, polls.column("at").to_numpy()


def latency(rig: Rig, rates: Sequence[int], seconds: float, repeats: int) -> Figures:
    """Both systems in turn at each rate; the very same records, with envelope."""
    taken: dict[tuple[int, str], list[dict[str, Any]]] = {}
    with ExitStack() as running:
        worker = running.enter_context(
            ConnectWorker(rig.directory / "connect-latency", rig.kafka.bootstrap_servers)
        )
        systems = [
            (s.name, running.enter_context(Watched(rig, s))) for s in (Peer(worker), Semel(rig))
        ]
        for name, watched in systems:
            rig.say(f"latency: {name}: warming up")
            watched.pass_through(*WARM_UP)
        for repeat in range(repeats):
            for rate in rates:
                for name, watched in systems if repeat % 2 == 0 else reversed(systems):
                    _settle(rig)
                    sample = _percentiles(watched.pass_through(rate, LEAD + seconds))
                    taken.setdefault((rate, name), []).append(sample)
                    rig.say(
                        f"latency: {name}: {rate}/s: {repeat + 1}/{repeats}, "
                        f"p50 {sample['p50']:.1f} ms, p99 {sample['p99']:.1f} ms"
                    )
    rows = [
        {"rate": rate, "system": name, **_median(samples), "samples": samples}
        for (rate, name), samples in taken.items()
    ]
    rows.sort(key=lambda row: row["rate"])
    looks = [[r["look_p50"] for r in rows if (r["rate"] < BUSY) == low] for low in (True, False)]
    often, seldom = (f"{np.median(x):.1f} ms" if x else "never" for x in looks)
    return Figures(
        name="latency",
        title="Produced to committed and visible in PostgreSQL, milliseconds "
        f"({seconds:.0f} s at each rate): medians of {repeats}",
        columns=[
            Column("rate", "records/s", count),
            Column("system", "system"),
            Column("p50", "p50", milliseconds),
            Column("p90", "p90", milliseconds),
            Column("p99", "p99", milliseconds),
            Column("max", "max", milliseconds),
        ],
        rows=rows,
        notes=[
            f"The table is polled every {often}, from {BUSY} records/s on every {seldom}, from "
            "inside the server, so a latency is too high by half of that on average, never too "
            "low. Producer: acks=all, linger.ms=0, lz4. The clock starts when the record is "
            "handed to the producer. Both systems run all the time and are measured in turn."
        ],
        facts={"seconds": seconds, "repeats": repeats, "tasks": TASKS, "partitions": PARTITIONS},
    )


def _percentiles(seen: Seen) -> dict[str, Any]:
    p50, p90, p99 = (float(v) for v in np.percentile(seen.latencies, [50, 90, 99]))
    return {
        "records": len(seen.latencies),
        "p50": p50,
        "p90": p90,
        "p99": p99,
        "max": float(seen.latencies.max()),
        "look_p50": float(np.percentile(seen.intervals, 50)),
        "look_p99": float(np.percentile(seen.intervals, 99)),
        **seen.pace,
    }


def _median(samples: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Each figure's median over the repeats."""
    return {name: float(np.median([s[name] for s in samples])) for name in samples[0]}


def _settle(rig: Rig) -> None:
    rig.execute("CHECKPOINT")
    time.sleep(1)
