"""A file to Kafka: semel compared with Kafka Connect's FileStreamSource, both with exactly-once."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from benchmarks.records import FIRST_TS, template
from benchmarks.report import Figures, percent
from benchmarks.rig import Rig
from benchmarks.source_runs import TUNED, Contestant, Peer, Semel, columns, compared, take_turns
from semel_lab.embedded.connect import DistributedConnect

BLOCK = 100_000
PEER = "Kafka Connect"
PEER_TUNED = "Kafka Connect, tuned"
SEMEL = "semel"
AT_LEAST_ONCE = "semel, at-least-once"
KEYS: Mapping[str, Mapping[str, str]] = {
    PEER: {},
    PEER_TUNED: {"batch.size": "10000", **TUNED},
    SEMEL: {"producer.override.compression.type": "lz4"},
    AT_LEAST_ONCE: {"producer.override.compression.type": "lz4", "delivery": "at-least-once"},
}
"""What each system has besides the file and topic. The tuned settings were the fastest for Kafka
Connect when they were tried."""


def sources(rig: Rig, records: int, repeats: int) -> Figures:
    """All systems, ``repeats`` times each, in turn, into a new topic each time."""
    file = rig.directory / "lines.txt"
    size = round(_write(file, records) / records)
    rig.say(f"{records:,} lines of {size} bytes")

    def connector(system: str, topic: str) -> tuple[Mapping[str, str], str]:
        return {
            "connector.class": "FileStreamSource",
            "tasks.max": "1",
            "file": str(file),
            "topic": topic,
            "key.converter": "org.apache.kafka.connect.storage.StringConverter",
            "value.converter": "org.apache.kafka.connect.storage.StringConverter",
            **KEYS[system],
        }, topic

    worker = DistributedConnect(
        rig.directory / "connect", rig.kafka.bootstrap_servers, "bench", exactly_once=True
    )
    with worker:
        peer, semel = Peer(worker), Semel(rig)
        contestants = [
            Contestant(
                system, peer if system.startswith(PEER) else semel, partial(connector, system)
            )
            for system in KEYS
        ]
        samples = take_turns(rig, contestants, records, repeats)
    rows = compared(samples, {"ratio": PEER, "tuned": PEER_TUNED})
    rates = {row["system"]: row["rate"] for row in rows}
    cost = rates[AT_LEAST_ONCE] / rates[SEMEL] - 1
    return Figures(
        name="sources",
        title=f"A file to Kafka, {records:,} lines of {size} bytes, one partition, one task, "
        f"exactly-once: medians of {repeats}",
        columns=columns("lines", {"ratio": "ratio to Connect", "tuned": "ratio to it tuned"}),
        rows=rows,
        notes=[
            "lines/s and CPU: between 15 % and 85 % of the lines visible to a read_committed "
            "consumer. Kafka Connect's worker has exactly.once.source.support=enabled and stays "
            "warm from run to run; semel is started for each run, which counts where the start "
            "does.",
            f"Tuned: {', '.join(f'{k}={v}' for k, v in KEYS[PEER_TUNED].items())}. semel "
            "compresses with lz4, too, and has its defaults otherwise.",
            f"At-least-once against exactly-once: {percent(cost)}. It needs a delivery report for "
            "each record; a transaction does not.",
        ],
        facts={"repeats": repeats, "cost_of_exactly_once": cost},
    )


def _write(file: Path, lines: int) -> int:
    """Write the lines. Returns the size of the file."""
    form = template(envelope=False) + "\n"
    with file.open("w") as output:
        for first in range(0, lines, BLOCK):
            numbers = range(first, min(first + BLOCK, lines))
            output.write("".join(form % (i, i % 1000, i, i % 100, FIRST_TS + i) for i in numbers))
    return file.stat().st_size
