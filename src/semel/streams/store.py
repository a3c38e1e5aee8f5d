"""The state of one partition: ordered maps from bytes to bytes, which operators read and write by
the column."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

INTERNAL = "internal"


class Store(Protocol):
    """An ordered map of one partition. Keys are ordered bytewise."""

    def get(self, keys: pa.Array) -> pa.Array:
        """The values of keys, both binary; null for keys that are absent."""

    def put(self, keys: pa.Array, values: pa.Array) -> None:
        """Store values. A null deletes its key; of equal keys, the last one counts."""

    def range(self, start: bytes, stop: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        """The entries from ``start`` up to, but not including, ``stop``, in the order of their
        keys. The store may change while they are read: the iterator may or may not show that."""


@dataclass(frozen=True, slots=True)
class StoreSpec:
    """A store that an operator needs.

    Operators delete what has expired, so changelogs are compacted and nothing else. A store that
    can be computed again from its source (``logged`` is false) needs none. ``kind`` says what the
    keys are: those of a table (``keys``), or keys and windows (``windows``, ``sessions``), which
    people may ask for with :meth:`~semel.streams.topology.Topology.shown`, or anything else
    (``internal``). Entries begin at ``b"\\x01"``: what is before is an operator's own.
    """

    name: str
    kind: str = "keys"
    retention_ms: int | None = None
    logged: bool = True


class MemoryStore:
    """A store that is forgotten with its process."""

    def __init__(self) -> None:
        self._values: dict[bytes, bytes] = {}
        self._order: list[bytes] = []
        self._new: list[bytes] = []

    def get(self, keys: pa.Array) -> pa.Array:
        return pa.array([self._values.get(key) for key in keys.to_pylist()], pa.binary())

    def put(self, keys: pa.Array, values: pa.Array) -> None:
        for key, value in zip(keys.to_pylist(), values.to_pylist(), strict=True):
            if value is None:
                self._values.pop(key, None)
            else:
                if key not in self._values:
                    self._new.append(key)
                self._values[key] = value

    def range(self, start: bytes, stop: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        if self._new or len(self._order) > len(self._values):
            self._order, self._new = sorted(self._values), []
        low = bisect_left(self._order, start)
        high = len(self._order) if stop is None else bisect_left(self._order, stop)
        for key in self._order[low:high]:
            if key in self._values:
                yield key, self._values[key]

    def __len__(self) -> int:
        return len(self._values)
