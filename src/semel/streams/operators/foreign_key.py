"""Joins of tables by a foreign key, in three operators with topics between them: the left table
subscribes to keys of the right one, this answers, and the left joins what it still waits for.
Subscriptions are gone through one by one."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.streams.codec import behind, joined, pack, pack_keys, unpack
from semel.streams.expressions import Expression, compiled
from semel.streams.operators.joins import joiner_of
from semel.streams.operators.state import Entries, taken
from semel.streams.operators.stateless import Stateless, mapped
from semel.streams.operators.table import as_of
from semel.streams.records import NONE, Records
from semel.streams.store import Store, StoreSpec
from semel.streams.topology import Run

DROP, DROP_AND_TELL, TELL_IF_THERE, TELL = range(4)
"""What a subscription asks for: to end, to end and be told so, to begin and be told the value if
there is one, to begin and be told in any case."""


def _hashes(values: pa.Array) -> pa.Array:
    return _digests(pack(values).to_pylist())


def _digests(packed: Sequence[bytes | None]) -> pa.Array:
    hashes = [None if p is None else hashlib.blake2b(p, digest_size=16).digest() for p in packed]
    return pa.array(hashes, pa.binary())


class _Hashed:
    """The values of a table's store as their hashes. They are those of the stored bytes: values
    that are decoded together may get another type."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def get(self, keys: pa.Array) -> pa.Array:
        stored = self._store.get(keys)
        times, values = pc.binary_slice(stored, 0, 8), behind(stored, 8)
        return joined(times, pack(_digests(values.to_pylist())))


@dataclass(frozen=True)
class Subscribe(Stateless):
    """Makes subscriptions of the left table's changes: by the foreign key, the key, a hash of the
    value and what is asked for."""

    foreign_key: Expression
    left: bool

    def start(self, stores: Mapping[str, Store]) -> Run:
        evaluate = compiled(self.foreign_key, "foreign key")

        def run(changes: Records) -> Records:
            olds, news = (mapped(evaluate, changes, v) for v in (changes.olds, changes.values))
            packed = zip(pack_keys(olds).to_pylist(), pack_keys(news).to_pylist(), strict=True)
            there = zip(
                changes.olds.is_valid().to_pylist(),
                changes.values.is_valid().to_pylist(),
                strict=True,
            )
            rows: list[int] = []
            keys: list[bytes | None] = []
            asks: list[int] = []
            for row, ((old, new), (had, has)) in enumerate(zip(packed, there, strict=True)):
                for key, ask in self._asked(old, new, had, has):
                    rows.append(row)
                    keys.append(key)
                    asks.append(ask)
            if not rows:
                return NONE
            requests = changes.take(np.array(rows))
            hashes = _hashes(changes.values).take(pa.array(rows))
            values = pa.StructArray.from_arrays(
                [requests.keys, hashes, pa.array(asks, pa.int8())],
                names=["key", "hash", "asks"],
            )
            foreign = unpack(pa.array(keys, pa.binary()))
            return requests.holding(keys=foreign, values=values, olds=None, old_times=None)

        return run

    def _asked(
        self, old: bytes | None, new: bytes | None, had: bool, has: bool
    ) -> list[tuple[bytes | None, int]]:
        if self.left:
            if not had and not has:
                return []
            ends = [(old, DROP)] if old is not None and old != new else []
            return [*ends, (new, TELL)]
        if new is None:
            return [] if old is None else [(old, DROP_AND_TELL)]
        if old is not None and old != new:
            return [(old, DROP), (new, TELL)]
        return [(new, TELL_IF_THERE)]


@dataclass(frozen=True)
class Answer:
    """Keeps the subscriptions to the right table's keys, and answers to them and to its changes."""

    store: str
    right: str

    @property
    def stores(self) -> Sequence[StoreSpec]:
        return (StoreSpec(self.store, "internal"),)

    def start(self, stores: Mapping[str, Store]) -> Run:
        store, right = stores[self.store], stores[self.right]

        def run(asked: Records, changes: Records) -> Records:
            current = as_of(right, changes, asked, asked.keys)
            foreign = [pack_keys(records.keys).to_pylist() for records in (asked, changes)]
            entries = Entries(store)
            entries.load((key, key + b"\xff") for key in set(foreign[1]) if key is not None)
            subscriptions = _subscriptions(asked)
            there = current.values.is_valid().to_pylist()
            matches: list[tuple[int, int, int, bytes, bytes | None]] = []
            for place, side, row in sorted(
                (int(place), side, row)
                for side, records in enumerate((asked, changes))
                for row, place in enumerate(records.order)
            ):
                key = foreign[side][row]
                if side == 1:
                    for name, hashed in entries.range(key, key + b"\xff"):
                        matches.append((place, side, row, name[len(key) :], hashed or None))
                    continue
                primary, hashed, asks = subscriptions[row]
                if key is None and asks != TELL:
                    continue
                if key is not None:
                    ends = asks in (DROP, DROP_AND_TELL)
                    entries.put(key + primary, None if ends else hashed or b"")
                if asks in (DROP_AND_TELL, TELL) or (asks == TELL_IF_THERE and there[row]):
                    matches.append((place, 2 if asks == DROP_AND_TELL else 0, row, primary, hashed))
            entries.flush()
            return self._answers(matches, asked, changes, current.values, current.times)

        return run

    @staticmethod
    def _answers(
        matches: Sequence[tuple[int, int, int, bytes, bytes | None]],
        asked: Records,
        changes: Records,
        values: pa.Array,
        times: pa.Array,
    ) -> Records:
        if not matches:
            return NONE
        places, sides, rows, keys, hashes = zip(*matches, strict=True)
        side, row = np.array(sides), np.array(rows)
        at = np.where(side == 1, len(asked) + row, np.where(side == 2, -1, row))
        latest = np.maximum(np.asarray(asked.times), np.asarray(times.fill_null(-1)))
        both = np.concatenate([latest, np.asarray(changes.times)])
        answered = pa.StructArray.from_arrays(
            [pa.array(hashes, pa.binary()), taken([values, changes.values], at)],
            names=["hash", "value"],
        )
        return Records(
            unpack(pa.array(keys, pa.binary())),
            answered,
            pa.array(both[np.where(side == 1, len(asked) + row, row)]),
            order=np.array(places, np.int64),
        )


def _subscriptions(asked: Records) -> list[tuple[bytes, bytes | None, int]]:
    if not len(asked):
        return []
    keys, hashes, asks = (asked.values.field(name) for name in ("key", "hash", "asks"))
    return list(zip(pack_keys(keys).to_pylist(), hashes.to_pylist(), asks.to_pylist(), strict=True))


@dataclass(frozen=True)
class Respond:
    """Joins an answer with the left table's value, if that is still the one that asked."""

    table: str
    joiner: Expression | None
    left: bool
    stores: Sequence[StoreSpec] = field(default=(), init=False)

    def start(self, stores: Mapping[str, Store]) -> Run:
        join = joiner_of(self.joiner)
        table = stores[self.table]

        def run(answers: Records, changes: Records) -> Records:
            if not len(answers):
                return NONE
            current = as_of(table, changes, answers, answers.keys)
            hashed = changes
            if len(changes):
                hashed = changes.holding(values=_hashes(changes.values), olds=_hashes(changes.olds))
            hashes = as_of(_Hashed(table), hashed, answers, answers.keys).values.to_pylist()
            asked = answers.values.field("hash").to_pylist()
            rows = np.flatnonzero([one == other for one, other in zip(asked, hashes, strict=True)])
            result = answers.take(rows)
            this, other = current.values.take(pa.array(rows)), result.values.field("value")
            there = pc.or_(other.is_valid(), pc.and_(this.is_valid(), self.left))
            at = np.flatnonzero(np.asarray(there))
            values = pa.nulls(len(result))
            if len(at):
                both = join(result.take(at), this.take(pa.array(at)), other.take(pa.array(at)))
                place = np.full(len(result), -1)
                place[at] = np.arange(len(at))
                values = both.take(pa.array(place, mask=place < 0))
            return result.holding(values=values)

        return run
