"""Asks the stores of an application, whether it runs or not.

The answers come from the stores' changelogs, so they are those of the application's last commit. A
changelog is read from its beginning, within bounded memory: a page keeps only the first entries
that were asked for.
"""

from __future__ import annotations

import json
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from semel.config import ConnectorConfig, load, read, with_brokers
from semel.core.errors import ConfigError, TransientError
from semel.core.ledger import TopicPartition
from semel.core.quoting import all_named, named
from semel.kafka.clients import client_config
from semel.kafka.cluster import Cluster
from semel.kafka.reader import read_ranges
from semel.sinks.jsontext import text
from semel.streams.changelog import Topics
from semel.streams.kstream import Streams
from semel.streams.operators.state import FIRST
from semel.streams.store import StoreSpec
from semel.streams.topology import Queryable, SubTopology, Topology

LIMIT, MOST = 100, 10_000
"""How many entries a page has by default, and at most."""
_BYTES = 16 * 1024 * 1024
"""The size of what a page keeps; one entry may be larger."""
_PATIENCE = 20.0

T = TypeVar("T")
Item = TypeVar("Item")
Show = Callable[[pa.Array], Sequence[Any]]
Rank = tuple[Any, ...]
"""A key in the order of all keys. Its first part is what kind of key it is."""


class NoStore(ConfigError):
    """There is no such store, or nothing has been written to it yet."""


@dataclass(frozen=True, slots=True)
class StoreInfo:
    """A store that can be asked. ``kind``: its entries are ``keys``, or keys with ``windows`` or
    ``sessions``. ``changelog`` is the topic that has its changes."""

    name: str
    kind: str
    changelog: str
    sub_topology: int


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of a store. ``window`` is its start and end, in milliseconds since 1970, if the
    store has windows. ``timestamp`` is that of the last record that changed it; None in stores of
    ``process()``."""

    key: Any
    value: Any
    timestamp: int | None
    window: tuple[int, int] | None
    partition: int


@dataclass(frozen=True, slots=True)
class Page:
    """Entries in the order of their keys. ``after`` asks for those behind them; None if there are
    none."""

    entries: Sequence[Entry]
    after: str | None


@dataclass(frozen=True, slots=True)
class EntryFilter:
    """Which entries are asked for: of a key, or from a key to another, or all; and those whose
    windows begin between two times. A key stands for what it may mean, by kind."""

    key: Mapping[str, Rank] | None = None
    first: Mapping[str, Rank] | None = None
    last: Mapping[str, Rank] | None = None
    since: int | None = None
    until: int | None = None

    @property
    def kinds(self) -> set[str]:
        """The kinds of keys that are asked for; none stands for all."""
        return {kind for rank in (self.key, self.first, self.last) for kind in rank or ()}

    def windows(self, starts: np.ndarray) -> np.ndarray:
        """Which windows are wanted."""
        least = np.iinfo(np.int64).min if self.since is None else self.since
        most = np.iinfo(np.int64).max if self.until is None else self.until
        fits: np.ndarray = (starts >= least) & (starts <= most)
        return fits

    def has(self, rank: Rank) -> bool:
        """Whether a key is wanted."""
        kind = rank[0]
        if self.key is not None:
            return self.key.get(kind) == rank
        for bound, fits in ((self.first, Rank.__ge__), (self.last, Rank.__le__)):
            if bound is not None and (kind not in bound or not fits(rank, bound[kind])):
                return False
        return True


def stores(streams: Streams, config: str | Path | Mapping[str, Any] | None = None) -> Stores:
    """The stores of an application.

    Args:
        streams: its topology.
        config: the connector's configuration, if it has more than that of ``streams``.

    Raises:
        ConfigError: the configuration cannot be used.
    """
    raw = load(streams.config) | ({} if config is None else load(config))
    topology = streams.topology()
    topics = ",".join(Topics(raw["name"], topology).read)
    raw = {"connector.class": "kafka", **with_brokers(raw), "topics": topics}
    return Stores(read(ConnectorConfig, raw), topology)


class Stores:
    """The stores of an application, by its connector's configuration and topology."""

    def __init__(self, connector: ConnectorConfig, topology: Topology) -> None:
        self._connector = connector
        self._topology = topology
        self._topics = Topics(connector.name, topology)

    def listed(self) -> list[StoreInfo]:
        """The stores that can be asked."""
        return [
            StoreInfo(name, spec.kind, self._topics.changelogs(sub)[name], sub.number)
            for name, (sub, spec, _) in self._topology.asked.items()
            if spec.logged
        ]

    def get(self, store: str, key: Any, *, patience: float = _PATIENCE) -> Any:
        """The value of a key; None if it is absent. Of several windows, the last one's, which is
        found within ``patience`` seconds.

        Raises: see :meth:`entries`.
        """
        value = after = None
        until = time.monotonic() + patience
        while True:  # of many or large windows a page has only the first
            rest = until - time.monotonic()
            page = self.entries(store, key=key, limit=MOST, after=after, patience=rest)
            value = page.entries[-1].value if page.entries else value
            if (after := page.after) is None:
                return value
            if time.monotonic() >= until:
                raise TransientError(
                    f"connector {self._connector.name}: store {named(store)}: the windows of the "
                    f"key were not all read in {patience:.0f} s. Ask for entries since a time"
                )

    def entries(
        self,
        store: str,
        *,
        key: Any = None,
        first: Any = None,
        last: Any = None,
        since: datetime | int | None = None,
        until: datetime | int | None = None,
        limit: int = LIMIT,
        after: str | None = None,
        patience: float = _PATIENCE,
    ) -> Page:
        """Entries of a store, in the order of their keys, and of their windows' starts.

        Args:
            store: its name.
            key: only the entries of this key. A key with several fields is a mapping.
            first: only those whose keys are not before this one.
            last: only those whose keys are not behind this one.
            since: only those whose windows do not begin before this time, which is given in
                milliseconds since 1970 or as a datetime.
            until: only those whose windows do not begin after it.
            limit: how many at most. A page may have fewer, although there are more.
            after: where to continue, from the page before.
            patience: how many seconds it may take to read the changelog.

        Raises:
            NoStore: there is no such store, or the application has never run.
            ConfigError: the store has no such keys, or no windows.
            TransientError: Kafka does not answer, or the changelog is too long for ``patience``.
        """
        of, low, high = (None if bound is None else meaning(bound) for bound in (key, first, last))
        begin, end = (None if bound is None else _milliseconds(bound) for bound in (since, until))
        wanted = EntryFilter(of, low, high, begin, end)
        return self.page(
            store, wanted, limit=limit, after=after, patience=patience, show=pa.Array.to_pylist
        )

    def page(
        self,
        store: str,
        wanted: EntryFilter,
        *,
        limit: int = LIMIT,
        after: str | None = None,
        patience: float = _PATIENCE,
        show: Show,
    ) -> Page:
        """What :meth:`entries` finds; ``show`` makes what is shown of columns."""
        sub, spec, operator = self._known(store)
        where = f"connector {self._connector.name}: store {named(store)}"
        if wanted.key is not None and (wanted.first is not None or wanted.last is not None):
            raise ConfigError(f"{where}: ask for a key, or for those from one to another, not both")
        if spec.kind == "keys" and not (wanted.since is None and wanted.until is None):
            raise ConfigError(f"{where} has no windows: do not ask since or until when they begin")
        if not 1 <= limit <= MOST:
            raise ConfigError(f"limit={limit} must be from 1 to {MOST}")
        kept = _FirstEntries(limit, _place(after))
        seen: dict[str, str] = {}
        for partition, changes in self._changes(where, sub, store, patience):
            _take(kept, seen, operator, wanted, partition, changes)
        if seen and wanted.kinds and wanted.kinds.isdisjoint(seen):
            example = next(iter(seen.values()))
            raise ConfigError(f"{where} has no keys of this kind: they are like {named(example)}")
        return Page(list(_shown(operator, kept.entries(), show)), kept.after)

    def _known(self, store: str) -> tuple[SubTopology, StoreSpec, Queryable]:
        names = [info.name for info in self.listed()]
        if store not in names:
            those = f"it has {all_named(names)}" if names else "it has none"
            raise NoStore(
                f"connector {self._connector.name}: there is no store {named(store)} that one may "
                f"ask; {those}"
            )
        return self._topology.asked[store]

    def _changes(
        self, where: str, sub: SubTopology, store: str, patience: float
    ) -> Iterator[tuple[int, dict[bytes, bytes | None]]]:
        """What the changelog has, a poll at a time and by partition."""
        over = time.monotonic() + patience
        topic = self._topics.changelogs(sub)[store]
        cluster = Cluster(client_config(self._connector, "admin"))
        count = cluster.topics(patience).get(topic)
        if count is None:
            raise NoStore(f"{where} has no changelog {named(topic)}: the connector has not run yet")
        places = [TopicPartition(topic, partition) for partition in range(count)]
        starts, ends = cluster.earliest(places), cluster.latest(places)
        done, total = 0, sum(ends[place] - starts[place] for place in places)
        for messages in read_ranges(self._connector, starts, ends, timeout=patience):
            changes: dict[int, dict[bytes, bytes | None]] = {}
            for message in messages:
                key: Any = message.key() or b""
                if key >= FIRST:
                    changes.setdefault(int(message.partition() or 0), {})[key] = message.value()
            yield from changes.items()
            done += len(messages)
            if time.monotonic() > over:
                raise TransientError(
                    f"{where}: {done} of {total} changes were read in {patience:.0f} s, and no "
                    "answer is right before all are. Ask the target of the topology, or wait "
                    f"until Kafka has compacted {named(topic)}"
                )


def meaning(key: Any) -> dict[str, Rank]:
    """A key in Python's values, as it is asked for.

    Raises:
        ConfigError: a store has no such keys.
    """
    try:
        rank = _rank(_loaded(text(pa.array([key]))[0].as_py()))
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise ConfigError(f"key {key!r}: {error}") from None
    return {rank[0]: rank}


def entry_filter(
    key: str | None, first: str | None, last: str | None, since: str | None, until: str | None
) -> EntryFilter:
    """What a request asks for, see :meth:`Stores.entries`. A key is meant as a text and, if it is
    JSON, as that; a time is in milliseconds since 1970, or in ISO 8601.

    Raises:
        ConfigError: a time is neither.
    """
    return EntryFilter(
        _meanings(key), _meanings(first), _meanings(last), _moment(since), _moment(until)
    )


def _meanings(key: str | None) -> dict[str, Rank] | None:
    if key is None:
        return None
    ranks = [_rank(key)]
    with suppress(ValueError, RecursionError):
        ranks.append(_rank(_loaded(key)))
    return {rank[0]: rank for rank in ranks}


def json_texts(column: pa.Array) -> Sequence[str]:
    """A column as JSON."""
    texts: list[str] = text(column).to_pylist()
    return texts


def _moment(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        is_number = text.removeprefix("-").isdecimal()
        return _milliseconds(int(text) if is_number else datetime.fromisoformat(text))
    except (ValueError, OverflowError):
        raise ConfigError(
            f"{named(text)} is no time: write milliseconds since 1970, or ISO 8601"
        ) from None


def _milliseconds(moment: datetime | int) -> int:
    if isinstance(moment, datetime):
        zoned = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return round(zoned.timestamp() * 1000)
    return max(min(moment, np.iinfo(np.int64).max), np.iinfo(np.int64).min)


def _loaded(document: str) -> Any:
    return json.loads(document, parse_float=Decimal)


def _rank(key: Any) -> Rank:
    """The place of a key in the order of all keys, as JSON has it, and by kind. A field that is
    null counts as absent: keys that are decoded together have the fields of all."""
    if isinstance(key, dict):
        there = sorted(name for name, value in key.items() if value is not None)
        return "object", *((name, _rank(key[name])) for name in there)
    if isinstance(key, list):
        return "array", *map(_rank, key)
    if isinstance(key, bool) or key is None:
        return "boolean", key is not None, bool(key)
    return "text" if isinstance(key, str) else "number", key


Place = tuple[Rank, int, bytes, int]
"""The place of an entry: its key, its window's start, its name in the store and its partition."""


class _FirstEntries:
    """The first entries from a place on, of those that are told of."""

    def __init__(self, limit: int, start: Place | None) -> None:
        self._limit = limit
        self._start = start
        self._order: list[Place] = []
        self._held: dict[Place, tuple[str, bytes]] = {}
        self._size = 0
        self._stop: tuple[Place, str] | None = None
        """An entry that was too much, and its key: what is kept is all that is before it."""

    def put(self, place: Place, key: str, value: bytes | None) -> None:
        """An entry has changed."""
        if self._start is not None and place < self._start:
            return
        if self._stop is not None and place >= self._stop[0]:
            return
        if place in self._held:
            self._size -= len(self._held.pop(place)[1])
            if value is None:
                del self._order[bisect_left(self._order, place)]
        elif value is not None:
            insort(self._order, place)
        if value is not None:
            self._held[place] = key, value
            self._size += len(value)
        while len(self._order) > self._limit or (self._size > _BYTES and len(self._order) > 1):
            last = self._order.pop()
            text, dropped = self._held.pop(last)
            self._size -= len(dropped)
            self._stop = last, text

    def entries(self) -> list[tuple[Place, bytes]]:
        return [(place, self._held[place][1]) for place in self._order]

    @property
    def after(self) -> str | None:
        """Where to continue."""
        if self._stop is None:
            return None
        (_, start, name, partition), key = self._stop
        return urlsafe_b64encode(json.dumps([key, start, name.hex(), partition]).encode()).decode()


def _place(after: str | None) -> Place | None:
    """The place that a page has named.

    Raises:
        ConfigError: it has not.
    """
    if after is None:
        return None
    try:
        key, start, name, partition = json.loads(urlsafe_b64decode(after.encode()))
        return _rank(_loaded(key)), int(start), bytes.fromhex(name), int(partition)
    except (ValueError, TypeError, OverflowError, RecursionError):
        raise ConfigError(f"after={named(after)} is not what a page has named") from None


def _take(
    kept: _FirstEntries,
    seen: dict[str, str],
    operator: Queryable,
    wanted: EntryFilter,
    partition: int,
    changes: Mapping[bytes, bytes | None],
) -> None:
    """Keep what is wanted of some changes; ``seen`` has a key of each kind."""

    def decode(names: Sequence[bytes]) -> tuple[Sequence[str], np.ndarray | None]:
        about = operator.named(pa.array(names, pa.binary()))
        return text(about.keys).to_pylist(), about.starts

    for (keys, starts), names in _decoded(decode, list(changes)):
        rows = np.arange(len(names))
        loaded = _loaded(f"[{','.join(keys)}]")
        for row in (rows if starts is None else rows[wanted.windows(starts)]).tolist():
            rank = _rank(loaded[row])
            seen.setdefault(rank[0], keys[row])
            if wanted.has(rank):
                start = 0 if starts is None else int(starts[row])
                place = rank, start, names[row], partition
                kept.put(place, keys[row], changes[names[row]])


def _shown(
    operator: Queryable, entries: Sequence[tuple[Place, bytes]], show: Show
) -> Iterator[Entry]:
    """What entries mean."""
    by_place = dict(entries)

    def decode(places: Sequence[Place]) -> Iterable[Entry]:
        names = pa.array([name for _, _, name, _ in places], pa.binary())
        values = pa.array([by_place[place] for place in places], pa.binary())
        about, records = operator.named(names), operator.shown(names, values)
        windows: Iterable[tuple[int, int] | None] = [None] * len(places)
        if about.starts is not None and about.ends is not None:
            windows = zip(about.starts.tolist(), about.ends.tolist(), strict=True)
        columns = show(about.keys), show(records.values), records.times.to_pylist(), windows
        partitions = [partition for *_, partition in places]
        return [Entry(*facts) for facts in zip(*columns, partitions, strict=True)]

    for part, _ in _decoded(decode, [place for place, _ in entries]):
        yield from part


def _decoded(
    decode: Callable[[Any], T], items: Sequence[Item]
) -> Iterator[tuple[T, Sequence[Item]]]:
    """What is decoded of items, in parts where their types do not fit together."""
    if not items:
        return
    try:
        decoded = decode(items)
    except pa.ArrowException:
        if len(items) == 1:
            raise
        half = len(items) // 2
        yield from _decoded(decode, items[:half])
        yield from _decoded(decode, items[half:])
        return
    yield decoded, items
