"""``KTable``: the latest value of each key, and what can be made of its changes. Groups of records
or values, and the tables that these add up to."""

from __future__ import annotations

import typing
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from semel.core.errors import ConfigError
from semel.streams import aggregates
from semel.streams.aggregates import Aggregate, Aggregation, Custom, Reduced, per_key
from semel.streams.expressions import Expression
from semel.streams.operators import stateless
from semel.streams.operators.aggregate import Aggregated
from semel.streams.operators.foreign_key import Answer, Respond, Subscribe
from semel.streams.operators.joins import TableTable
from semel.streams.operators.table import Suppress, Table
from semel.streams.operators.windowed import Sessions, Sliding, Windowed
from semel.streams.topology import Operator
from semel.streams.windows import (
    Duration,
    SessionWindows,
    SlidingWindows,
    TimeWindows,
    milliseconds,
)

if typing.TYPE_CHECKING:
    from semel.streams.kstream import KStream, Streams


@dataclass(frozen=True)
class GlobalKTable:
    """The latest value of each key of all partitions, for joins with streams."""

    store: str


@dataclass(frozen=True)
class KTable:
    """A table. Its changes are records with the values that they replace; a null value deletes.

    ``store`` has its values, if some store has them as they are.
    """

    builder: Streams
    node: str
    origins: frozenset[str]
    store: str | None = None
    windows: TimeWindows | SlidingWindows | SessionWindows | None = None

    @property
    def store_name(self) -> str:
        """The name of its store. It must have one."""
        assert self.store is not None
        return self.store

    def filter(self, condition: Expression) -> KTable:
        """Keep the keys for whose values a condition is true; others are deleted."""
        return self._add("FILTER", stateless.Filter(condition))

    def filter_not(self, condition: Expression) -> KTable:
        """Keep the keys for whose values a condition is not true; others are deleted."""
        return self._add("FILTER", stateless.Filter(condition, negated=True))

    def map_values(self, mapper: Expression) -> KTable:
        """Give each key another value."""
        return self._add("MAPVALUES", stateless.MapValues(mapper))

    def to_stream(self) -> KStream:
        """The changes as a stream; a deletion is a record with a null value."""
        from semel.streams.kstream import KStream

        node = self.builder.add("KTABLE-TOSTREAM", stateless.ToStream(), self.node)
        return KStream(self.builder, node, self.origins)

    def materialized(self, store: str | None = None) -> KTable:
        """The table with a store of its values, called ``store`` or as it likes."""
        if self.store is not None and store in (None, self.store):
            return self
        name = self.builder.store(store, "KTABLE-STORE")
        node = self.builder.add("KTABLE-MATERIALIZED", Table(name), self.node)
        return replace(self, node=node, store=name)

    def group_by(
        self, key: Expression, value: Expression | None = None, *, name: str | None = None
    ) -> KGroupedTable:
        """Group the values by other keys, through a topic of their own, called ``name``. When a
        value changes, what it was is taken back from its group."""
        selected = self._add("SELECT", stateless.Regroup(key, value))
        packed = self.builder.add("KTABLE-PACK", stateless.PackChange(), selected.node)
        topic = self.builder.name("KTABLE-REPARTITION") if name is None else name
        source = self.builder.repartition(topic, packed)
        node = self.builder.add("KTABLE-UNPACK", stateless.UnpackChange(), source)
        return KGroupedTable(replace(selected, node=node, origins=frozenset({topic}), windows=None))

    def suppress(
        self,
        until: Duration | None = None,
        *,
        max_records: int | None = None,
        when_full: str = "emit",
    ) -> KTable:
        """Hold changes back, and let only the last of each key go on: when its window closes or,
        with ``until``, that long after the first. With more than ``max_records`` keys, the oldest
        go on early (``when_full="emit"``), or the connector fails (``"stop"``)."""
        if when_full not in ("emit", "stop"):
            raise ConfigError(f'suppress: when_full must be "emit" or "stop", not {when_full}')
        if until is not None:
            wait = milliseconds(until, "until")
        elif self.windows is None:
            raise ConfigError("suppress: a table without windows needs until=")
        elif max_records is not None and when_full == "emit":
            raise ConfigError(
                'suppress: a window that goes on early is not final. Use when_full="stop"'
            )
        else:
            wait = self.windows.grace
            if isinstance(self.windows, SessionWindows):
                wait += self.windows.gap
        name = self.builder.store(None, "KTABLE-SUPPRESS-STORE")
        stops = when_full == "stop"
        operator = Suppress(name, wait, until is None, most=max_records, overflow=stops)
        return self._add("SUPPRESS", operator)

    def join(
        self,
        other: KTable,
        joiner: Expression | None = None,
        *,
        foreign_key: Expression | None = None,
    ) -> KTable:
        """Join with a table that has the same keys or, with ``foreign_key``, with the value of the
        key that each value names.

        The joiner is an expression of ``this`` and ``other``, or a function of both; without one,
        the result has the fields of both.
        """
        return self._joined(other, joiner, foreign_key, "inner")

    def left_join(
        self,
        other: KTable,
        joiner: Expression | None = None,
        *,
        foreign_key: Expression | None = None,
    ) -> KTable:
        """Like :meth:`join`, with a null for what the other table does not have."""
        return self._joined(other, joiner, foreign_key, "left")

    def outer_join(self, other: KTable, joiner: Expression | None = None) -> KTable:
        """Like :meth:`left_join` for both tables."""
        return self._joined(other, joiner, None, "outer")

    def to(self, config: Mapping[str, Any], *, name: str | None = None) -> None:
        """Write the changes to the store of a sink connector, with its configuration. ``name``
        stands for ``${topic}`` there: it is the name of the table, if nothing else says it."""
        self.to_stream().to(config, name=name)

    def to_topic(self, topic: str, config: Mapping[str, Any] | None = None) -> None:
        """Write the changes to a topic."""
        self.to_stream().to_topic(topic, config)

    def _add(self, kind: str, operator: Operator) -> KTable:
        node = self.builder.add(f"KTABLE-{kind}", operator, self.node)
        return replace(self, node=node, store=None)

    def _joined(
        self, other: KTable, joiner: Expression | None, foreign_key: Expression | None, kind: str
    ) -> KTable:
        this, that = self.materialized(), other.materialized()
        if foreign_key is not None:
            return self._by_foreign_key(this, that, joiner, foreign_key, kind == "left")
        reads = [this.store_name, that.store_name]
        operator = TableTable(reads[0], reads[1], joiner, kind)
        node = self.builder.add("KTABLE-JOIN", operator, this.node, that.node, reads=reads)
        self.builder.copartition(this.origins, that.origins)
        return KTable(self.builder, node, this.origins | that.origins, windows=this.windows)

    def _by_foreign_key(
        self, this: KTable, that: KTable, joiner: Expression | None, key: Expression, left: bool
    ) -> KTable:
        builder = self.builder
        asked = builder.add("KTABLE-FK-JOIN-SUBSCRIPTION", Subscribe(key, left), this.node)
        topic = builder.name("KTABLE-FK-JOIN-SUBSCRIPTION-REGISTRATION")
        came = builder.repartition(topic, asked)
        builder.copartition(frozenset({topic}), that.origins)
        store = builder.store(None, "KTABLE-FK-JOIN-SUBSCRIPTION-STATE-STORE")
        answer = Answer(store, that.store_name)
        answered = builder.add("KTABLE-FK-JOIN", answer, came, that.node, reads=[that.store_name])
        topic = builder.name("KTABLE-FK-JOIN-SUBSCRIPTION-RESPONSE")
        came = builder.repartition(topic, answered)
        builder.copartition(frozenset({topic}), this.origins)
        respond = Respond(this.store_name, joiner, left)
        node = builder.add("KTABLE-FK-JOIN", respond, came, this.node, reads=[this.store_name])
        name = builder.store(None, "KTABLE-FK-JOIN-STORE")
        node = builder.add("KTABLE-SOURCE", Table(name), node)
        return KTable(builder, node, this.origins, name)


class Groups(ABC):
    """What can be made of groups. ``store`` names the store that has the result."""

    @abstractmethod
    def _table(self, aggregation: Aggregation, store: str | None) -> KTable:
        """The table of an aggregation."""

    def count(self, *, store: str | None = None) -> KTable:
        """The number of records."""
        return self._single(aggregates.count(), store)

    def sum(self, of: Expression, *, store: str | None = None) -> KTable:
        """The sum of an expression."""
        return self._single(aggregates.sum(of), store)

    def min(self, of: Expression, *, store: str | None = None) -> KTable:
        """The smallest value of an expression."""
        return self._single(aggregates.min(of), store)

    def max(self, of: Expression, *, store: str | None = None) -> KTable:
        """The greatest value of an expression."""
        return self._single(aggregates.max(of), store)

    def avg(self, of: Expression, *, store: str | None = None) -> KTable:
        """The mean of an expression."""
        return self._single(aggregates.avg(of), store)

    def first(self, of: Expression, *, store: str | None = None) -> KTable:
        """The value of an expression for the record that was processed first."""
        return self._single(aggregates.first(of), store)

    def last(self, of: Expression, *, store: str | None = None) -> KTable:
        """The value of an expression for the record that was processed last."""
        return self._single(aggregates.last(of), store)

    def collect(self, of: Expression, *, store: str | None = None) -> KTable:
        """All values of an expression as a list, which grows with every record."""
        return self._single(aggregates.collect(of), store)

    def reduce(
        self,
        adder: Callable[[Any, Any], Any],
        subtractor: Callable[[Any, Any], Any] | None = None,
        *,
        store: str | None = None,
    ) -> KTable:
        """What a function makes of the value so far and the next. Groups of a table need a
        ``subtractor`` too. It is the slow path: record by record."""
        return self._table(Reduced(adder, subtractor), store)

    def aggregate(
        self,
        initializer: Callable[[], Any] | None = None,
        adder: Callable[..., Any] | None = None,
        subtractor: Callable[..., Any] | None = None,
        merger: Callable[..., Any] | None = None,
        *,
        store: str | None = None,
        **columns: Aggregate,
    ) -> KTable:
        """Several aggregates as columns: ``aggregate(orders=count(), revenue=sum("amount"))``.

        Or what functions make of it, record by record: ``initializer()``, ``adder(key, value,
        aggregate)``; ``subtractor``, the same, for groups of a table; ``merger(key, one, other)``
        for sessions. The key may be left out.
        """
        if initializer is None and columns:
            return self._table(aggregates.by_column(columns), store)
        if initializer is None or adder is None or columns:
            raise ConfigError(
                "aggregate: give columns such as total=sum(...), or an initializer and an adder"
            )
        custom = Custom(
            initializer,
            per_key(adder, 2),
            None if subtractor is None else per_key(subtractor, 2),
            None if merger is None else per_key(merger, 2),
        )
        return self._table(custom, store)

    def _single(self, aggregate: Aggregate, store: str | None) -> KTable:
        return self._table(aggregates.single(aggregate), store)


@dataclass(frozen=True)
class KGroupedStream(Groups):
    """The records of a stream by their keys."""

    stream: KStream

    def windowed_by(
        self,
        windows: TimeWindows | SlidingWindows | SessionWindows,
        *,
        emit: str = "updates",
        retention: Duration | None = None,
    ) -> WindowedKStream:
        """Group the records by windows, too. ``emit="final"``: a window gives one record, when it
        closes. ``retention`` keeps closed windows in the store for longer, so that people may ask
        for them."""
        return WindowedKStream(self.stream, windows, emit, retention)

    def _table(self, aggregation: Aggregation, store: str | None) -> KTable:
        builder = self.stream.builder
        name = builder.store(store, "KSTREAM-AGGREGATE-STATE-STORE")
        node = builder.add("KSTREAM-AGGREGATE", Aggregated(name, aggregation), self.stream.node)
        return KTable(builder, node, self.stream.origins)


@dataclass(frozen=True)
class WindowedKStream(Groups):
    """The records of a stream by their keys and windows."""

    stream: KStream
    windows: TimeWindows | SlidingWindows | SessionWindows
    emit: str
    retention: Duration | None

    def __post_init__(self) -> None:
        if self.emit not in ("updates", "final"):
            raise ConfigError(f'windowed_by: emit must be "updates" or "final", not {self.emit}')

    def _table(self, aggregation: Aggregation, store: str | None) -> KTable:
        builder, stream = self.stream.builder, self.stream
        name = builder.store(store, "KSTREAM-AGGREGATE-STATE-STORE")
        windows, is_final = self.windows, self.emit == "final"
        kept = windows.retention
        if self.retention is not None:
            kept = milliseconds(self.retention, "retention", kept)
        operator: Operator
        if isinstance(windows, TimeWindows):
            operator = Windowed(name, aggregation, windows, kept, is_final)
        elif isinstance(windows, SlidingWindows):
            operator = Sliding(name, aggregation, windows, kept)
        else:
            operator = Sessions(name, aggregation, windows, kept)
        node = builder.add("KSTREAM-AGGREGATE", operator, stream.node)
        if is_final and not isinstance(windows, TimeWindows):  # Windowed does it by itself
            is_sliding = isinstance(windows, SlidingWindows)
            wait = windows.grace if is_sliding else windows.retention
            final_store = builder.store(None, "KSTREAM-AGGREGATE-FINAL-STORE")
            keyed = stateless.HasKey(and_value=is_sliding)
            counts = builder.add("KSTREAM-FILTER", keyed, stream.node)
            final = Suppress(final_store, wait, of_windows=True, strict=True)
            node = builder.add("KTABLE-SUPPRESS", final, node, counts)
        return KTable(builder, node, stream.origins, windows=windows)


@dataclass(frozen=True)
class KGroupedTable(Groups):
    """The values of a table by other keys."""

    table: KTable

    def _table(self, aggregation: Aggregation, store: str | None) -> KTable:
        if not aggregation.subtracts:
            raise ConfigError(
                "aggregate: when a value of a table changes, what it was is taken back. That works "
                "for count, sum and avg, and for reduce and aggregate with a subtractor"
            )
        builder = self.table.builder
        name = builder.store(store, "KTABLE-AGGREGATE-STATE-STORE")
        operator = Aggregated(name, aggregation, of_table=True)
        node = builder.add("KTABLE-AGGREGATE", operator, self.table.node)
        return KTable(builder, node, self.table.origins)
