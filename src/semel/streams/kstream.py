"""``Streams``: where a topology begins. ``KStream``: a stream of records, and what can be made of
it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from semel.core.errors import ConfigError
from semel.core.quoting import named
from semel.streams.expressions import Expression
from semel.streams.ktable import GlobalKTable, KGroupedStream, KTable
from semel.streams.operators import stateless
from semel.streams.operators.aggregate import Aggregated
from semel.streams.operators.joins import StreamGlobal, StreamTable
from semel.streams.operators.process import Context, Process
from semel.streams.operators.stream_joins import StreamStream
from semel.streams.operators.table import Table
from semel.streams.operators.windowed import Windowed
from semel.streams.records import Records
from semel.streams.store import MemoryStore
from semel.streams.topology import Node, Operator, Sink, Source, Topology
from semel.streams.windows import JoinWindows, milliseconds


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
        """The topology as it is now. Raises ConfigError: two of its topics have the same name."""
        self._check_names()
        joined = self._joined_with_streams()
        nodes = tuple(
            replace(node, does=replace(node.does, each=True))
            if node.name in joined and isinstance(node.does, Aggregated | Windowed)
            else node
            for node in self._nodes.values()
        )
        return Topology(str(self.config["name"]), nodes, tuple(self._copartitioned))

    def _check_names(self) -> None:
        topics = [n.does for n in self._nodes.values() if isinstance(n.does, Source | Sink)]
        own = [t.topic for t in topics if isinstance(t, Sink) and t.is_repartition]
        others = {t.topic for t in topics if not t.is_repartition}
        for topic in own:
            if own.count(topic) > 1 or topic in others:
                raise ConfigError(
                    f"streams: a repartition topic and another topic are both called "
                    f"{named(str(topic))}. Give one of them another name"
                )

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


@dataclass(frozen=True)
class KStream:
    """A stream of records. Every operator returns another stream and leaves this as it is.

    ``origins`` are the topics whose partitions it has. If it is ``rekeyed``, equal keys may be in
    different partitions.
    """

    builder: Streams
    node: str
    origins: frozenset[str]
    rekeyed: bool = False

    def filter(self, condition: Expression) -> KStream:
        """Keep the records for which a condition is true."""
        return self._add("FILTER", stateless.Filter(condition))

    def filter_not(self, condition: Expression) -> KStream:
        """Keep the records for which a condition is not true."""
        return self._add("FILTER", stateless.Filter(condition, negated=True))

    def map(
        self,
        mapper: Callable[[Any, Any], tuple[Any, Any]] | None = None,
        *,
        key: Expression | None = None,
        value: Expression | None = None,
    ) -> KStream:
        """Give each record another key and value: two expressions, or a function of both that
        returns both."""
        if mapper is not None:
            return self._add("MAP", stateless.MapPairs(mapper), rekeyed=True)
        if key is None or value is None:
            raise ConfigError("map: give a function, or key= and value=")
        return self._add("MAP", stateless.Map(key, value), rekeyed=True)

    def map_values(self, mapper: Expression) -> KStream:
        """Give each record another value."""
        return self._add("MAPVALUES", stateless.MapValues(mapper))

    def flat_map(self, mapper: Callable[[Any, Any], Sequence[tuple[Any, Any]]]) -> KStream:
        """Give any number of records for each: the pairs that a function of key and value
        returns."""
        return self._add("FLATMAP", stateless.MapPairs(mapper, flat=True), rekeyed=True)

    def flat_map_values(self, mapper: Expression) -> KStream:
        """Give a record for each element of the list that an expression makes of a record."""
        return self._add("FLATMAPVALUES", stateless.FlatMapValues(mapper))

    def select_key(self, key: Expression) -> KStream:
        """Give each record another key."""
        return self._add("KEY-SELECT", stateless.Map(key), rekeyed=True)

    def peek(self, action: Callable[..., Any]) -> KStream:
        """Show each record to a function. It may see one again after a crash."""
        return self._add("PEEK", stateless.Peek(action))

    def apply(self, function: Callable[[Records], Records]) -> KStream:
        """Give the records that a function of Arrow batches returns. Each must depend on one
        record only: batches may be cut anywhere."""
        return self._add("TRANSFORM", stateless.Apply(function), rekeyed=True)

    def split(self) -> Branched:
        """Divide the stream: ``split().branch(condition, name)...default_branch(name)``."""
        return Branched(self)

    def merge(self, *others: KStream) -> KStream:
        """The records of several streams."""
        all_ = (self, *others)
        node = self.builder.add("KSTREAM-MERGE", stateless.Merge(), *(s.node for s in all_))
        origins = frozenset().union(*(s.origins for s in all_))
        return KStream(self.builder, node, origins, any(s.rekeyed for s in all_))

    def process(
        self,
        function: Callable[[Any, Any, Context], Any],
        stores: Sequence[str] = (),
        *,
        timers: Mapping[int, Callable[[int, Context], Any]] | None = None,
    ) -> KStream:
        """Call a function with each record's key and value, and a context with which it reads and
        writes stores and sends records on. ``timers`` are called when the time of the stream
        reaches a new multiple of so many milliseconds."""
        names = tuple(self.builder.store(name, "") for name in stores)
        every = tuple((milliseconds(t, "timer", 1), f) for t, f in (timers or {}).items())
        clock = self.builder.store(None, "KSTREAM-PROCESSOR-TIMERS")
        operator = Process(function, names, every, clock)
        node = self.builder.add("KSTREAM-PROCESSOR", operator, self.node, clock=bool(every))
        return replace(self, node=node, rekeyed=True)

    def repartition(self, *, name: str | None = None, partitions: int | None = None) -> KStream:
        """Send the records through a topic of their own, by their keys."""
        topic = self.builder.name("KSTREAM-REPARTITION") if name is None else name
        node = self.builder.repartition(topic, self.node, partitions)
        return KStream(self.builder, node, frozenset({topic}))

    def group_by_key(self, *, name: str | None = None) -> KGroupedStream:
        """Group records by their keys; through a topic of their own, called ``name``, if these have
        changed."""
        with_keys = self._add("FILTER", stateless.HasKey()) if self.rekeyed else self
        return KGroupedStream(with_keys.by_key(name))

    def group_by(self, key: Expression, *, name: str | None = None) -> KGroupedStream:
        """Group records by other keys, through a topic of their own."""
        return self.select_key(key).group_by_key(name=name)

    def to_table(self, *, store: str | None = None) -> KTable:
        """The latest value of each key."""
        stream = self.by_key(None)
        store_name = self.builder.store(store, "KSTREAM-TOTABLE-STORE")
        node = self.builder.add("KSTREAM-TOTABLE", Table(store_name), stream.node)
        return KTable(self.builder, node, stream.origins, store_name)

    def join(
        self,
        other: KStream | KTable | GlobalKTable,
        joiner: Expression | None = None,
        *,
        windows: JoinWindows | None = None,
        key: Expression | None = None,
    ) -> KStream:
        """Join with the other side's records of the same key: a stream's within windows, a table's
        value at the time, or a global table's value of a ``key`` that each record names.

        The joiner is an expression of ``this`` and ``other``, or a function of both; without one,
        the result has the fields of both.
        """
        return self._joined(other, joiner, windows, key, "inner")

    def left_join(
        self,
        other: KStream | KTable | GlobalKTable,
        joiner: Expression | None = None,
        *,
        windows: JoinWindows | None = None,
        key: Expression | None = None,
    ) -> KStream:
        """Like :meth:`join`, but a record that finds nothing goes on with a null on the other
        side."""
        return self._joined(other, joiner, windows, key, "left")

    def outer_join(
        self, other: KStream, joiner: Expression | None = None, *, windows: JoinWindows
    ) -> KStream:
        """Like :meth:`left_join` for both streams."""
        if not isinstance(other, KStream):
            raise ConfigError("outer_join: a stream has outer joins only with streams")
        return self._joined(other, joiner, windows, None, "outer")

    def to(self, config: Mapping[str, Any], *, name: str | None = None) -> None:
        """Write the records to the store of a sink connector, with its configuration. ``name``
        stands for ``${topic}`` there: it is the name of the table, if nothing else says it."""
        if "connector.class" not in config:
            raise ConfigError("to: the configuration of a sink needs connector.class")
        self.builder.sink(Sink(config=dict(config)), self.node, name=name)

    def to_topic(self, topic: str, config: Mapping[str, Any] | None = None) -> None:
        """Write the records to a topic. ``config`` has its converters' keys, where they differ."""
        self.builder.sink(Sink(topic, dict(config or {})), self.node)

    def by_key(self, name: str | None) -> KStream:
        """The stream with equal keys in one partition."""
        return self.repartition(name=name) if self.rekeyed else self

    def _add(self, kind: str, operator: Operator, *, rekeyed: bool = False) -> KStream:
        node = self.builder.add(f"KSTREAM-{kind}", operator, self.node)
        return replace(self, node=node, rekeyed=self.rekeyed or rekeyed)

    def _joined(
        self,
        other: KStream | KTable | GlobalKTable,
        joiner: Expression | None,
        windows: JoinWindows | None,
        key: Expression | None,
        kind: str,
    ) -> KStream:
        if isinstance(other, GlobalKTable):
            if key is None:
                raise ConfigError("join: a join with a global table needs key=")
            operator: Operator = StreamGlobal(other.store, key, joiner, kind == "left")
            node = self.builder.add("KSTREAM-JOIN", operator, self.node, reads=[other.store])
            return replace(self, node=node)
        if isinstance(other, KTable):
            this, table = self.by_key(None), other.materialized()
            operator = StreamTable(table.store_name, joiner, kind == "left")
            reads = [table.store_name]
            node = self.builder.add("KSTREAM-JOIN", operator, this.node, table.node, reads=reads)
            self.builder.copartition(this.origins, table.origins)
            return replace(this, node=node)
        if windows is None:
            raise ConfigError("join: a join of streams needs windows=within(...)")
        this, that = self.by_key(None), other.by_key(None)
        stores = [
            self.builder.store(None, f"KSTREAM-{side}-STORE")
            for side in ("JOINTHIS", "JOINOTHER", "OUTERSHARED")
        ]
        operator = StreamStream(stores[0], stores[1], stores[2], joiner, windows, kind)
        node = self.builder.add("KSTREAM-JOIN", operator, this.node, that.node)
        self.builder.copartition(this.origins, that.origins)
        return KStream(self.builder, node, this.origins | that.origins)


class Branched:
    """A stream that is being divided. Each record goes to the first branch that takes it."""

    def __init__(self, stream: KStream) -> None:
        self._stream = stream
        self._conditions: list[Expression] = []
        self._branches: dict[str, KStream] = {}

    def branch(self, condition: Expression, name: str) -> Branched:
        """Add a branch for the records for which a condition is true."""
        self._add(name, condition)
        self._conditions.append(condition)
        return self

    def default_branch(self, name: str) -> dict[str, KStream]:
        """All branches by their names, with one for the records that no other took."""
        self._add(name, None)
        return self._branches

    def no_default_branch(self) -> dict[str, KStream]:
        """All branches by their names. Records that none took are dropped."""
        return self._branches

    def _add(self, name: str, condition: Expression | None) -> None:
        if name in self._branches:
            raise ConfigError(f"split: there are two branches called {name}")
        operator = stateless.Branch(tuple(self._conditions), condition)
        node = self._stream.builder.add("KSTREAM-BRANCH", operator, self._stream.node)
        self._branches[name] = replace(self._stream, node=node)
