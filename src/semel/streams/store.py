"""The state of one partition: ordered maps from bytes to bytes, which operators read and write by
the column.

A task keeps the stores of a partition of a sub-topology in one RocksDB. What operators write stands
in memory, in front of the database, until the commit that it belongs to has ended. A commit writes
all of it, with the position that it reaches, in one batch. There is no write-ahead log: what a
crash takes away is a suffix of the batches, and the position goes with it.
"""

from __future__ import annotations

import heapq
import threading
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from semel.core.errors import ServiceError

INTERNAL = "internal"

Values = dict[bytes, bytes | None]
"""The last value of each key; None where it was deleted."""
Changes = Mapping[str, Values]
"""What a commit changes, by the name of the store."""

_HOT = 32 * 1024 * 1024
"""The most bytes of each store that stay in memory without having been read or written lately."""
_ENTRY = 150
"""What an entry takes in memory, besides its key and value."""
_BUFFER = 16 * 1024 * 1024
"""What a database collects in memory before it writes a file, as in Kafka Streams."""
_MARKER = b"\0marker"
_RESTORED = "Delete the folder: the state is restored from its changelog"
_TRIES = 100


class Readable(Protocol):
    """Something that has values of keys."""

    def get(self, keys: pa.Array) -> pa.Array:
        """The values of keys, both binary; null for keys that are absent."""


class Store(Readable, Protocol):
    """An ordered map of one partition. Keys are ordered bytewise."""

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


class State:
    """The stores of one partition, in RocksDB. Operators use it in one thread; :meth:`keep` may run
    in another.

    The database is in the first subfolder of ``directory`` that no other process holds: one that
    was frozen, and has lost the partition, may hold another.
    """

    def __init__(self, directory: Path, stores: Collection[str]) -> None:
        self._db = _opened(directory)
        # One thread appends and another deletes, so it is changed in place, each time in one go.
        self._waiting: list[Changes] = []
        self.stores: dict[str, RocksStore] = {name: RocksStore(self, name) for name in stores}

    @property
    def path(self) -> str:
        return str(self._db.path())

    @property
    def marker(self) -> bytes | None:
        """What :meth:`keep` has noted last; it says how far the state has come."""
        (value,) = self.get([_MARKER])
        return value

    def cut(self) -> Changes:
        """What the stores have changed since the last cut: a commit's share. It is read from memory
        until :meth:`keep` has written it."""
        changes = {name: store.cut() for name, store in self.stores.items()}
        self._waiting.append(changes)
        return changes

    def keep(self, changes: Changes, marker: bytes) -> None:
        """Write what a commit has changed, the oldest cut first, and how far the state has come."""
        self.write(changes, marker)
        for name, values in changes.items():
            self.stores[name].warm(values)
        waiting = self._waiting  # another thread may begin anew
        for place, other in enumerate(waiting):
            if other is changes:
                del waiting[place]
                break

    def write(self, changes: Changes, marker: bytes | None) -> None:
        """Write changes in one batch; without a marker, they may be a part of what leads to one."""
        from rocksdict import WriteBatch

        batch = WriteBatch(raw_mode=True)
        for name, values in changes.items():
            prefix = _prefix_of(name)
            for key, value in values.items():
                if value is None:
                    batch.delete(prefix + key)
                else:
                    batch.put(prefix + key, value)
        if marker is not None:
            batch.put(_MARKER, marker)
        with self._usable("written", "Make room, or correct the permissions"):
            self._db.write(batch)

    def waiting(self, name: str) -> list[Values]:
        """What cuts that are not written yet have changed in a store, the newest first."""
        return [changes[name] for changes in self._waiting[::-1]]

    def drop(self) -> None:
        """Forget everything that is not written."""
        self._waiting = []
        for store in self.stores.values():
            store.forget()

    def flush(self, *, wait: bool = True) -> None:
        """Make what was written survive the end of this process."""
        with self._usable("written", "Make room, or correct the permissions"):
            self._db.flush(wait)

    def clear(self) -> None:
        """Delete everything."""
        self._db.delete_range(b"", b"\xff" * 64)
        self._db.flush(True)

    def close(self) -> None:
        """Close the database; what was written survives."""
        self.drop()
        self._db.flush(True)
        self._db.close()

    def get(self, keys: list[bytes]) -> list[bytes | None]:
        """The written values of these keys of the database."""
        with self._usable("read", _RESTORED):
            values: list[bytes | None] = self._db.get(keys)
        return values

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The written entries from a key of the database up to another."""
        iterator = self._db.iter()
        iterator.seek(start)
        while iterator.valid() and (key := iterator.key()) < stop:
            yield key, iterator.value()
            iterator.next()
        with self._usable("read", _RESTORED):
            iterator.status()  # damage looks like the end

    @contextmanager
    def _usable(self, what: str, remedy: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # RocksDB has no other type
            raise ServiceError(
                f"state in {self.path} cannot be {what}: {error}. {remedy}"
            ) from None


class RocksStore(Store):
    """One store: an ordered map of bytes."""

    def __init__(self, state: State, name: str) -> None:
        self._state = state
        self._name = name
        self._prefix = _prefix_of(name)
        self._new: Values = {}
        self._hot: Values = {}
        self._cooling: Values = {}
        self._hot_bytes = 0
        self._warming = threading.Lock()

    def get(self, keys: pa.Array) -> pa.Array:
        """The values of keys; null where there is none."""
        key_list: list[bytes] = keys.to_pylist()
        values = self._known(key_list)
        return pa.array([values[key] for key in key_list], pa.binary())

    def put(self, keys: pa.Array, values: pa.Array) -> None:
        """Set the values of keys; null deletes."""
        self._new.update(zip(keys.to_pylist(), values.to_pylist(), strict=True))

    def range(self, start: bytes, stop: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        """The entries from one key up to another, in the order of their keys, as they are now."""
        newer: Values = {}
        for layer in (*reversed(self._state.waiting(self._name)), self._new):
            newer |= {
                key: value
                for key, value in layer.items()
                if start <= key and (stop is None or key < stop)
            }
        prefix = self._prefix
        end = prefix + stop if stop is not None else prefix[:-1] + b"\1"
        written = self._state.scan(prefix + start, end)
        cut = len(prefix)
        older = ((k[cut:], v) for k, v in written if k[cut:] not in newer)
        fresh = ((k, v) for k, v in sorted(newer.items()) if v is not None)
        return heapq.merge(older, fresh, key=itemgetter(0))

    def _known(self, keys: Iterable[bytes]) -> Values:
        """The value of each key: from what is not written yet, from memory, from the database."""
        layers = [self._new, *self._state.waiting(self._name), self._hot, self._cooling]
        by_key: Values = {}
        missing = []
        for key in dict.fromkeys(keys):
            for layer in layers:
                if key in layer:
                    by_key[key] = layer[key]
                    break
            else:
                missing.append(key)
        if missing:
            prefix = self._prefix
            read = self._state.get([prefix + key for key in missing])
            by_key |= (values := dict(zip(missing, read, strict=True)))
            self.warm(values)
        return by_key

    def warm(self, values: Values) -> None:
        """Keep values in memory. Those not used lately leave it once there are many others."""
        with self._warming:
            replaced = {key: self._hot[key] for key in self._hot.keys() & values.keys()}
            self._hot.update(values)
            self._hot_bytes += _size(values) - _size(replaced)
            if self._hot_bytes > _HOT:
                self._cooling, self._hot, self._hot_bytes = self._hot, {}, 0

    def cut(self) -> Values:
        """What was changed since the last cut."""
        new, self._new = self._new, {}
        return new

    def forget(self) -> None:
        """Forget everything in memory."""
        with self._warming:
            self._new, self._hot, self._cooling, self._hot_bytes = {}, {}, {}, 0


def _size(values: Values) -> int:
    """What they take in memory, in bytes."""
    return sum(_ENTRY + len(key) + len(value or b"") for key, value in values.items())


def _prefix_of(name: str) -> bytes:
    """What a store's keys begin with in the database."""
    return name.encode() + b"\0"


def _opened(directory: Path) -> Any:
    from rocksdict import Options, Rdict, WriteOptions

    directory.mkdir(parents=True, exist_ok=True)
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_max_open_files(256)
    options.set_write_buffer_size(_BUFFER)
    options.set_keep_log_file_num(1)
    unlogged = WriteOptions()
    unlogged.disable_wal = True  # type: ignore[method-assign,assignment]
    for number in range(_TRIES):
        path = directory / str(number)
        try:
            db = Rdict(str(path), options)
        except Exception as error:
            if "lock" in str(error).lower():
                continue
            raise ServiceError(f"state in {path} cannot be opened: {error}. {_RESTORED}") from None
        db.set_write_options(unlogged)
        return db
    raise ServiceError(f"{_TRIES} processes hold the state in {directory}. End those that hang")
