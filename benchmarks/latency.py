"""From handing a record to the producer until its row is committed and visible in PostgreSQL.

A procedure inside the server looks for new rows about once a millisecond, each time with a new
snapshot, and notes the clock; the record carries the clock of its producer, on the same machine.
What is seen is therefore late by half a poll on average and never early, equally for both sides.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import benchmarks
from benchmarks.pace import SHIFT
from benchmarks.peer_connect import ConnectWorker
from benchmarks.records import TABLE
from benchmarks.report import Column, Figures, count, milliseconds
from benchmarks.rig import Rig
from benchmarks.sides import ENVELOPE, Peer, Semel, Side, connector

PARTITIONS = 4
TASKS = 2
LEAD = 3.0
"""Seconds at each rate before the measured ones."""

WARM_UP = (20_000, 5.0)
"""Records a second, and for how long, before anything is measured: the peer's JVM compiles."""

ARRIVAL = 120.0

_WATCH = """CREATE PROCEDURE {name}(last bigint[], missing bigint, seconds double precision)
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
        PERFORM pg_sleep(0.0005);
    END LOOP;
END $$"""


@dataclass(frozen=True)
class Seen:
    """Latencies in milliseconds, the pauses between two looks, and the producer's own figures."""

    latencies: np.ndarray
    looks: np.ndarray
    pace: dict[str, float]


class Watched:
    """One side's connector with its topic and table, at different rates one after another."""

    def __init__(self, rig: Rig, side: Side) -> None:
        self._rig = rig
        self._side = side
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
        self._side.start(self._rig.unique("bench"), config)
        return self

    def __exit__(self, *_exc: object) -> None:
        self._side.stop()
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
            rows, polls = self._see(first, records, seconds + ARRIVAL)
            output, _ = producer.communicate(timeout=60)
        finally:
            producer.kill()
            producer.wait()
        self._side.check()
        if len(rows["ts"]) != records:
            raise RuntimeError(
                f"{self._side.name}: {len(rows['ts'])} of {records} rows seen at {rate}/s"
            )
        skipped = (
            rows["ts"] < rows["ts"].min() + LEAD * 1e6 if seconds > 2 * LEAD else rows["ts"] < 0
        )
        latencies = (rows["seen"] - rows["ts"])[~skipped] / 1000
        return Seen(latencies, np.diff(np.sort(polls)) / 1000, json.loads(output))

    def _see(
        self, first: int, records: int, seconds: float
    ) -> tuple[dict[str, np.ndarray], np.ndarray]:
        last = ",".join(str((p << SHIFT) + first - 1) for p in range(PARTITIONS))
        with self._rig.connect() as connection, connection.cursor() as cursor:
            for statement in (
                "CREATE TEMPORARY TABLE seen_rows (id bigint, ts bigint, seen double precision)",
                "CREATE TEMPORARY TABLE seen_polls (at double precision)",
                "SET enable_seqscan = off",
                "SET enable_bitmapscan = off",
                "SET jit = off",
                f"CALL {self._watch}('{{{last}}}'::bigint[], {records}, {seconds})",
            ):
                cursor.execute(statement)
            cursor.execute("SELECT ts, seen FROM seen_rows")
            found = cursor.fetch_arrow_table()
            cursor.execute("SELECT at FROM seen_polls")
            polls = cursor.fetch_arrow_table()
        rows = {n: found.column(n).to_numpy() for n in ("ts", "seen")}
        return rows, polls.column("at").to_numpy()


def latency(rig: Rig, rates: Sequence[int], seconds: float) -> Figures:
    """Both sides, one after the other, at each rate; the very same records, with envelope."""
    rows: list[dict[str, Any]] = []
    with ConnectWorker(rig.directory / "connect-latency", rig.kafka.bootstrap_servers) as worker:
        for side in (Peer(worker), Semel(rig)):
            with Watched(rig, side) as watched:
                rig.say(f"latency: {side.name}: warming up")
                watched.pass_through(*WARM_UP)
                for rate in rates:
                    seen = watched.pass_through(rate, LEAD + seconds)
                    rows.append(_row(side.name, rate, seen))
                    rig.say(
                        f"latency: {side.name}: {rate}/s: p50 {rows[-1]['p50']:.1f} ms, "
                        f"p99 {rows[-1]['p99']:.1f} ms"
                    )
            _settle(rig)
    rows.sort(key=lambda row: row["rate"])
    look = float(np.median([row["look_p50"] for row in rows]))
    worst = max(row["look_p99"] for row in rows)
    return Figures(
        name="latency",
        title="Produced to committed and visible in PostgreSQL, milliseconds "
        f"({seconds:.0f} s at each rate)",
        columns=[
            Column("rate", "records/s", count),
            Column("side", "side"),
            Column("p50", "p50", milliseconds),
            Column("p90", "p90", milliseconds),
            Column("p99", "p99", milliseconds),
            Column("max", "max", milliseconds),
        ],
        rows=rows,
        notes=[
            f"The table is looked at every {look:.1f} ms (p99 {worst:.1f} ms), from inside the "
            "server, so a latency is too high by half of that on average, never too low. "
            "Producer: acks=all, linger.ms=0, lz4. The clock starts when the record is handed to "
            "the producer."
        ],
        facts={"seconds": seconds, "tasks": TASKS, "partitions": PARTITIONS},
    )


def _row(side: str, rate: int, seen: Seen) -> dict[str, Any]:
    p50, p90, p99 = (float(v) for v in np.percentile(seen.latencies, [50, 90, 99]))
    return {
        "side": side,
        "rate": rate,
        "records": len(seen.latencies),
        "p50": p50,
        "p90": p90,
        "p99": p99,
        "max": float(seen.latencies.max()),
        "look_p50": float(np.percentile(seen.looks, 50)),
        "look_p99": float(np.percentile(seen.looks, 99)),
        **seen.pace,
    }


def _settle(rig: Rig) -> None:
    rig.execute("CHECKPOINT")
    time.sleep(1)
