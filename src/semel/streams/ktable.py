"""KTable: the latest value of each key, and what can be made of its changes."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from semel.core.errors import ConfigError
from semel.streams.expressions import Expression
from semel.streams.grouped import KGroupedTable
from semel.streams.operators import stateless
from semel.streams.operators.foreign_key import Answer, Respond, Subscribe
from semel.streams.operators.joins import TableTable
from semel.streams.operators.table import Suppress, Table
from semel.streams.topology import Operator
from semel.streams.windows import (
    Duration,
    SessionWindows,
    SlidingWindows,
    TimeWindows,
    milliseconds,
)

if typing.TYPE_CHECKING:
    from semel.streams.builder import Streams
    from semel.streams.kstream import KStream


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
