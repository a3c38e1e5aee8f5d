"""What the same faults do to both systems: records lost, rows duplicated, triggers fired again."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from benchmarks.report import Column, Figures, count
from benchmarks.rig import Rig
from semel_lab.drill.peer.run import compare

SEED = 1


def peers(rig: Rig, faults: int) -> Figures:
    """A drill of each system and mode, on services of its own."""
    rig.say(f"peers: {faults} faults for each system and mode")
    results = compare(
        faults,
        SEED,
        observe=lambda system, mode, fault, _found: rig.say(
            f"peers: {system}, {mode}: {fault.number}/{faults}, {fault.kind.value}"
        ),
    )
    rows: list[dict[str, Any]] = [{**asdict(r), **asdict(r.findings)} for r in results]
    return Figures(
        name="peers",
        title=f"{faults} faults of seed {SEED}: kills, freezes, second instances, restarts",
        columns=[
            Column("system", "system"),
            Column("mode", "mode"),
            Column("records", "records", lambda n: f"{n:,}"),
            Column("lost", "lost", count),
            Column("duplicated", "duplicated", lambda n: f"{n:,}"),
            Column("fired_again", "fired again", lambda n: f"{n:,}"),
            Column("restarted", "restarted by hand", count),
        ],
        rows=rows,
        notes=["insert: a table without a key. upsert: a key, and a trigger that counts."],
        facts={"faults": faults, "seed": SEED},
    )
