"""Datagen, which needs no system: its records come by themselves."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import pyarrow as pa

from semel.sources.base import SourceBatch
from semel.sources.datagen.source import DatagenSource
from semel.tasks.source.encoder import Encoder
from semel_lab.drill.source.system import OF_ANY, System
from semel_lab.drill.source.tally import Tally

_AHEAD = 50_000
"""The most records that may have been made but not seen."""
_MORE = 100


class Generator(System):
    """A pace that lets faults strike between records."""

    faults = OF_ANY

    def __init__(self, raw: Mapping[str, str]) -> None:
        schema_keys = {"quickstart", "schema.string", "schema.filename"} & raw.keys()
        self.keys = {
            **({} if schema_keys else {"quickstart": "orders"}),
            "tasks.max": "1",
            "max.interval": "5",
            "iterations": "-1",
        }

    def values(self, numbers: Sequence[int], dice: random.Random) -> pa.Array:
        raise NotImplementedError

    def write(self, values: pa.Array, dice: random.Random) -> None:
        raise NotImplementedError


class RecordNumbers(dict[bytes | None, int]):
    """The number of each record by its value: as many as are asked for, and some more."""

    def __init__(self, source: DatagenSource, encoder: Encoder) -> None:
        super().__init__()
        self._batches = _batches(source)
        self._encoder = encoder
        self._asked = 0
        self._next = 0

    def get(self, value: bytes | None, default: Any = None) -> Any:
        self._asked += 1
        while value not in self and self._next < self._asked + _AHEAD:
            for records in next(self._batches).records:
                _, _, encoded = self._encoder.encoded(records, [])
                values = encoded.to_pylist()
                self.update(zip(values, range(self._next, self._next + len(values)), strict=True))
                self._next += len(values)
        return super().get(value, default)


def _batches(source: DatagenSource) -> Iterator[SourceBatch]:
    (partition,) = source.partitions()
    return source.between(partition, 0, 1 << 60)


class Watcher:
    """Takes the place of a writer: what a consumer has seen counts as written."""

    trouble = ""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._held: int | None = None
        self._lock = threading.RLock()

    @property
    def sent(self) -> int:
        """While held, all records up to the newest one seen when it was held. Otherwise some more:
        only a connector that has recovered makes those, while records in flight prove nothing."""
        return self._tally.newest + 1 + _MORE if self._held is None else self._held

    def hold(self, held: bool) -> None:
        """Judge only the records seen so far, or all of them again."""
        self._held = self._tally.newest + 1 if held else None

    def no_burst(self) -> AbstractContextManager[object]:
        """Nobody writes."""
        return self._lock

    def start(self) -> None: ...

    def allow(self, records: int) -> None: ...

    def kick(self) -> None: ...

    def by_hand(self, count: int) -> None: ...

    def unwritten(self, count: int) -> pa.Array:
        raise NotImplementedError

    def stop(self, timeout: float = 300.0) -> bool:
        return True
