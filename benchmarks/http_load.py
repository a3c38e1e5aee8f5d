"""Sends requests over kept connections: as fast as they are answered, or at a steady rate.

At a rate, a request's time begins when it is due, whether or not a connection is free by then.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter, deque
from typing import Any

import numpy as np


class Connection(asyncio.Protocol):
    """One connection, with one request at a time."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._read = bytearray()
        self._whole = 0
        self.due = 0.0

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._load.free(self)

    def send(self, request: bytes, due: float) -> None:
        self.due = due
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._read += data
        if not self._whole:
            end = self._read.find(b"\r\n\r\n")
            if end < 0:
                return
            head = bytes(self._read[:end]).lower()
            length = head.partition(b"content-length:")[2].partition(b"\r\n")[0]
            self._whole = end + 4 + int(length)
        if len(self._read) >= self._whole:
            answer = bytes(self._read)
            self._read.clear()
            self._whole = 0
            self._load.answered(self, answer)

    def connection_lost(self, _: Exception | None) -> None:
        self._load.lost += 1


class Load:
    """What is sent, and what has come back."""

    def __init__(self, facts: dict[str, Any]) -> None:
        self._requests = [each.encode() for each in facts["requests"]]
        self._rate, self._seconds = facts["rate"], facts["seconds"]
        self._lead = facts["lead"]
        self._next = 0
        self._idle: deque[Connection] = deque()
        self._due: deque[float] = deque()
        self._begun = time.perf_counter()
        self.times: list[tuple[float, float]] = []
        self.records = 0
        self.statuses: Counter[str] = Counter()
        self.lost = 0

    @property
    def is_over(self) -> bool:
        return time.perf_counter() - self._begun > self._lead + self._seconds

    def _send(self, connection: Connection, due: float) -> None:
        connection.send(self._requests[self._next % len(self._requests)], due)
        self._next += 1

    def free(self, connection: Connection) -> None:
        if self.is_over:
            return
        if not self._rate:
            self._send(connection, time.perf_counter())
        elif self._due:
            self._send(connection, self._due.popleft())
        else:
            self._idle.append(connection)

    def answered(self, connection: Connection, answer: bytes) -> None:
        now = time.perf_counter()
        if self._begun + self._lead < now <= self._begun + self._lead + self._seconds:
            self.times.append((now, now - connection.due))
            self.statuses[answer[9:12].decode()] += 1
            self.records += answer.count(b'"offset":')
        self.free(connection)

    async def pace(self) -> None:
        """Let requests become due at the rate."""
        sent = 0
        while not self.is_over:
            now = time.perf_counter()
            while self._begun + sent / self._rate <= now:
                due = self._begun + sent / self._rate
                sent += 1
                if self._idle:
                    self._send(self._idle.popleft(), due)
                else:
                    self._due.append(due)
            await asyncio.sleep(0.0005)


async def run(facts: dict[str, Any]) -> dict[str, Any]:
    """The figures of one load."""
    loop, load = asyncio.get_running_loop(), Load(facts)
    for _ in range(facts["connections"]):
        await loop.create_connection(lambda: Connection(load), "127.0.0.1", facts["port"])
    if facts["rate"]:
        await load.pace()
    while not load.is_over:
        await asyncio.sleep(0.05)
    await asyncio.sleep(0.2)
    waits = 1000 * np.array([wait for _, wait in load.times])
    p50, p99 = np.percentile(waits, [50, 99]) if len(waits) else (float("nan"),) * 2
    return {
        "requests": len(waits) / facts["seconds"],
        "records": load.records / facts["seconds"],
        "p50": float(p50),
        "p99": float(p99),
        "statuses": dict(load.statuses),
        "late": len(load._due),
        "lost": load.lost,
    }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(run(json.load(sys.stdin)))))
