"""What the same faults do to both sides: records lost, doubled, and triggers fired again."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from benchmarks.report import Column, Figures, count
from benchmarks.rig import Rig
from semel.lab.drill.peer.run import compare

SEED = 1


def peers(rig: Rig, faults: int) -> Figures:
    """A drill of each side and mode, on services of its own."""
    rig.say(f"peers: {faults} faults for each side and mode")
    results = compare(
        faults,
        SEED,
        observe=lambda side, mode, fault, _found: rig.say(
            f"peers: {side}, {mode}: {fault.number}/{faults}, {fault.kind.value}"
        ),
    )
    rows: list[dict[str, Any]] = [{**asdict(r), **asdict(r.findings)} for r in results]
    return Figures(
        name="peers",
        title=f"{faults} faults of seed {SEED}: kills, freezes, second copies, restarts",
        columns=[
            Column("side", "side"),
            Column("mode", "mode"),
            Column("records", "records", lambda n: f"{n:,}"),
            Column("lost", "lost", count),
            Column("doubled", "doubled", lambda n: f"{n:,}"),
            Column("fired_again", "fired again", lambda n: f"{n:,}"),
            Column("nursed", "restarted by hand", count),
        ],
        rows=rows,
        notes=["insert: a table without a key. upsert: a key, and a trigger that counts."],
        facts={"faults": faults, "seed": SEED},
    )
