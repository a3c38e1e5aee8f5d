"""Produces records at an even pace, in a process of its own: ``python -m benchmarks.pace``.

Each record is handed to the producer on its own, at its scheduled time, and carries the wall clock
of that moment. Lateness is reported, not hidden.
"""

from __future__ import annotations

import argparse
import json
import time

from confluent_kafka import Producer

from benchmarks.records import template

SHIFT = 40
"""Record n of partition p has the id (p << SHIFT) + n: ids rise within a partition."""


def pace(
    servers: str, topic: str, partitions: int, rate: float, seconds: float, first: int
) -> dict[str, float]:
    """Produce for some seconds; returns how late records were handed over, in milliseconds."""
    producer = Producer(
        {
            "bootstrap.servers": servers,
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": 0,
            "compression.type": "lz4",
            "log_level": 0,
        }
    )
    producer.list_topics(topic, timeout=20)
    form = template(envelope=True)
    total = round(rate * seconds)
    late = []
    start = time.perf_counter() + 0.05
    for i in range(total):
        due = start + i / rate
        while (now := time.perf_counter()) < due:
            producer.poll(0)
            time.sleep(min(due - now, 0.005))
        late.append(now - due)
        partition, number = i % partitions, first + i // partitions
        key = (partition << SHIFT) + number
        sent = time.time_ns() // 1000
        value = form % (key, i % 1000, number, i % 100, sent)
        producer.produce(topic, value, partition=partition)
    producer.flush(30)
    late.sort()
    return {
        "records": total,
        "late_p50_ms": 1000 * late[len(late) // 2],
        "late_p99_ms": 1000 * late[int(len(late) * 0.99)],
        "late_max_ms": 1000 * late[-1],
    }


def main() -> None:
    """Read the arguments, produce, print the figures as JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--servers", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--partitions", type=int, required=True)
    parser.add_argument("--rate", type=float, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--first", type=int, required=True)
    arguments = vars(parser.parse_args())
    print(json.dumps(pace(**arguments)))


if __name__ == "__main__":
    main()
