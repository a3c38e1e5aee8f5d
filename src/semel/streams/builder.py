"""``Streams``: where a topology begins."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from semel.core.errors import ConfigError
from semel.core.quoting import named
from semel.streams.kstream import KStream
from semel.streams.ktable import GlobalKTable, KTable
from semel.streams.operators.aggregate import Aggregated
from semel.streams.operators.joins import StreamTable
from semel.streams.operators.table import Table
from semel.streams.operators.windowed import Windowed
from semel.streams.store import MemoryStore
from semel.streams.topology import Node, Operator, Sink, Source, Topology


class Streams:
    """A topology that is being built, in the words of Kafka Streams.

    Args:
        config: the configuration of the connector that runs it: its ``name``, and the converters of
            all topics that are not given others.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        if not config.get("name"):
            raise ConfigError("streams: the configuration needs a name")
        self.config = dict(config)
        self._nodes: dict[str, Node] = {}
        self._sources: dict[str, str] = {}
        self._copartitioned: list[frozenset[str]] = []
        self._store_names: set[str] = set()

    def stream(self, topic: str, config: Mapping[str, Any] | None = None) -> KStream:
        """The records of a topic. ``config`` has its converters' keys, where they differ."""
        return KStream(self, self._source(topic, config or {}), frozenset({topic}))

    def table(
        self, topic: str, config: Mapping[str, Any] | None = None, *, store: str | None = None
    ) -> KTable:
        """The latest value of each key of a topic; ``store`` names the store that has them."""
        source = self._source(topic, config or {})
        name, node = self.store(store, "KTABLE-SOURCE-STORE"), "KTABLE-SOURCE"
        added = self.add(node, Table(name), source)
        return KTable(self, added, frozenset({topic}), name)

    def global_table(
        self, topic: str, config: Mapping[str, Any] | None = None, *, store: str | None = None
    ) -> GlobalKTable:
        """The latest value of each key of all partitions of a topic, for every task."""
        source = self._source(topic, config or {}, is_global=True)
        name = self.store(store, "GLOBAL-TABLE-STORE")
        self.add("KTABLE-SOURCE", Table(name, logged=False), source)
        return GlobalKTable(name)

    def topology(self) -> Topology:
        """The topology as it is now."""
        joined = self._joined_with_streams()
        nodes = tuple(
            replace(node, does=replace(node.does, each=True))
            if node.name in joined and isinstance(node.does, Aggregated | Windowed)
            else node
            for node in self._nodes.values()
        )
        return Topology(str(self.config["name"]), nodes, tuple(self._copartitioned))

    def _joined_with_streams(self) -> set[str]:
        """The nodes that make tables with which streams are joined: a stream must see each change
        of them in its place."""
        joins = (node for node in self._nodes.values() if isinstance(node.does, StreamTable))
        left, names = [node.inputs[1] for node in joins], set[str]()
        while left:
            name = left.pop()
            if name not in names:
                names.add(name)
                left += self._nodes[name].inputs
        return names

    def describe(self) -> str:
        """The topology as Kafka Streams describes one."""
        return self.topology().describe()

    # What streams and tables add nodes with.

    def add(
        self,
        kind: str,
        operator: Operator,
        *inputs: str,
        reads: Sequence[str] = (),
        clock: bool = False,
    ) -> str:
        """Add an operator, and return its name. Raises ConfigError: it cannot be started."""
        operator.start(defaultdict(MemoryStore))  # says what is wrong with its expressions
        return self._node(kind, inputs, operator, wants_clock=clock, reads=tuple(reads))

    def sink(self, sink: Sink, *inputs: str, name: str | None = None) -> str:
        """Add a place where records leave."""
        if name in self._nodes:
            raise ConfigError(f"streams: there are two sinks called {named(str(name))}")
        return self._node("KSTREAM-SINK", inputs, sink, name=name)

    def repartition(self, topic: str, source: str, partitions: int | None = None) -> str:
        """Send records through a topic of their own, and return the node that reads it."""
        self.sink(Sink(topic, is_repartition=True, partitions=partitions), source)
        return self._node("KSTREAM-SOURCE", (), Source(topic, is_repartition=True))

    def copartition(self, *origins: frozenset[str]) -> None:
        """Note topics whose partitions must be read together."""
        together = frozenset().union(*origins)
        if len(together) > 1:
            self._copartitioned.append(together)

    def store(self, name: str | None, kind: str) -> str:
        """The name of a store: the given one, or one of its own."""
        store_name = self.name(kind) if name is None else name
        if store_name in self._store_names:
            raise ConfigError(f"streams: there are two stores called {named(store_name)}")
        self._store_names.add(store_name)
        return store_name

    def name(self, kind: str) -> str:
        return f"{kind}-{len(self._nodes) + len(self._store_names):010}"

    def _source(self, topic: str, config: Mapping[str, Any], *, is_global: bool = False) -> str:
        source = Source(topic, config, is_global=is_global)
        if topic not in self._sources:
            self._sources[topic] = self._node("KSTREAM-SOURCE", (), source)
        elif self._nodes[self._sources[topic]].does != source:
            raise ConfigError(
                f"streams: topic {named(topic)} is read twice, with different converters or also "
                "as a global table"
            )
        return self._sources[topic]

    def _node(
        self,
        kind: str,
        inputs: Sequence[str],
        does: Source | Sink | Operator,
        *,
        name: str | None = None,
        **facts: Any,
    ) -> str:
        name = self.name(kind) if name is None else name
        self._nodes[name] = Node(name, tuple(inputs), does, **facts)
        return name
