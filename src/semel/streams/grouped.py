"""Groups of records, and the tables of what they add up to."""

from __future__ import annotations

import typing
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from semel.core.errors import ConfigError
from semel.streams import aggregates
from semel.streams.aggregates import Aggregate, Aggregation, Custom, Reduced, per_key
from semel.streams.expressions import Expression
from semel.streams.operators.aggregate import Aggregated
from semel.streams.operators.stateless import HasKey
from semel.streams.operators.table import Suppress
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
    from semel.streams.kstream import KStream
    from semel.streams.ktable import KTable


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
        from semel.streams.ktable import KTable

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
        from semel.streams.ktable import KTable

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
            counts = builder.add("KSTREAM-FILTER", HasKey(and_value=is_sliding), stream.node)
            final = Suppress(final_store, wait, of_windows=True, strict=True)
            node = builder.add("KTABLE-SUPPRESS", final, node, counts)
        return KTable(builder, node, stream.origins, windows=windows)


@dataclass(frozen=True)
class KGroupedTable(Groups):
    """The values of a table by other keys."""

    table: KTable

    def _table(self, aggregation: Aggregation, store: str | None) -> KTable:
        from semel.streams.ktable import KTable

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
