"""A topology: operators and what flows between them, cut into sub-topologies where records go
through Kafka."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import cached_property, partial
from types import CodeType, FunctionType
from typing import Any, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.core.errors import ConfigError, SemelError
from semel.core.quoting import named
from semel.streams.records import NONE, Records, in_turn
from semel.streams.store import INTERNAL, Store, StoreSpec
from semel.streams.windows import EntryKeys

Run = Callable[..., Records]
"""An operator at work: takes the records of each input, returns what it makes of them."""


_PLAIN = (str, bytes, int, float, Decimal, timedelta, date, time, pc.Expression)
"""Values whose ``repr`` is the same in every process."""


class Operator(Protocol):
    """The plan of an operator: a frozen dataclass.

    What it makes must depend on nothing but its stores and the records, one by one: not on how they
    are cut into steps, except that a table may leave out values that its step replaces. Between
    steps, it may keep only what its stores could tell.
    """

    @property
    def stores(self) -> Sequence[StoreSpec]:
        """The stores that it keeps."""

    def start(self, stores: Mapping[str, Store]) -> Run:
        """Begin to work on a partition, with all stores of its sub-topology."""


@runtime_checkable
class Queryable(Protocol):
    """An operator whose stores people may ask. Entries are those that are not internal."""

    def named(self, keys: pa.Array) -> EntryKeys:
        """What entries of its stores are about."""

    def shown(self, keys: pa.Array, values: pa.Array) -> Records:
        """What entries of its stores mean: keys, with their windows, values and times."""


@dataclass(frozen=True)
class Source:
    """A topic whose records enter: with the converters' keys of ``config`` or, if it is a
    repartition topic, as :mod:`semel.streams.codec` packs them. ``is_global``: every partition of
    it is read everywhere."""

    topic: str
    config: Mapping[str, Any] = field(default_factory=dict)
    is_repartition: bool = False
    is_global: bool = False


@dataclass(frozen=True)
class Sink:
    """Where records leave: a topic or, with the configuration of a sink connector, its store.

    ``is_repartition``: a topic of the topology's own, which some sub-topology reads; it gets as
    many partitions as the topics that are read along with it, else ``partitions``, else as many as
    the topics that are read here.
    """

    topic: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    is_repartition: bool = False
    partitions: int | None = None


@dataclass(frozen=True)
class Node:
    """A place in the topology. ``wants_clock``: the operator also gets the places and times of all
    records of the step, as a last input. ``reads`` are the stores of others that it reads."""

    name: str
    inputs: tuple[str, ...]
    does: Source | Sink | Operator
    wants_clock: bool = False
    reads: tuple[str, ...] = ()

    @property
    def stores(self) -> Sequence[StoreSpec]:
        return () if isinstance(self.does, Source | Sink) else self.does.stores


@dataclass(frozen=True)
class SubTopology:
    """What one group of tasks does: task ``p`` reads partition ``p`` of all ``topics``, and has a
    store of each spec for it. ``globals`` are the names of stores that all tasks share."""

    number: int
    nodes: tuple[Node, ...]
    globals: tuple[str, ...] = ()

    @cached_property
    def sources(self) -> dict[str, Source]:
        """What it reads, by topic."""
        sources = [n.does for n in self.nodes if isinstance(n.does, Source)]
        return {source.topic: source for source in sources}

    @property
    def topics(self) -> tuple[str, ...]:
        return tuple(self.sources)

    @cached_property
    def sinks(self) -> dict[str, Sink]:
        """Where it writes, by the names that :meth:`Processor.finish` uses."""
        return {n.name: n.does for n in self.nodes if isinstance(n.does, Sink)}

    @property
    def stores(self) -> tuple[StoreSpec, ...]:
        return tuple(spec for node in self.nodes for spec in node.stores)

    @property
    def is_global(self) -> bool:
        """Whether it fills the stores of global tables, from all partitions of their topics."""
        return any(source.is_global for source in self.sources.values())

    @property
    def records_per_step(self) -> int | None:
        """The most records of a step, or None. Steps are limited where each record may give a large
        value or be in many windows, since everything of a step is in memory."""
        limits = [getattr(node.does, "records_per_step", None) for node in self.nodes]
        return min((limit for limit in limits if limit is not None), default=None)

    def processor(self, stores: Mapping[str, Store]) -> Processor:
        """Begin to work on one partition."""
        return Processor(self, stores)


class Processor:
    """A sub-topology at work on one partition. What must survive is in its stores. It remembers
    some of that: where stores go back to what they were, another processor must go on."""

    def __init__(self, sub: SubTopology, stores: Mapping[str, Store]) -> None:
        self._nodes = [
            (node, None if isinstance(node.does, Source | Sink) else node.does.start(stores))
            for node in sub.nodes
        ]
        self._outputs: dict[str, list[Records]] = defaultdict(list)

    def process(self, records: Mapping[str, Records]) -> None:
        """Process the records of a step, by topic, each in the order of offsets. They are brought
        into the order of time (:func:`~semel.streams.records.in_turn`)."""
        by_topic = in_turn({topic: part for topic, part in records.items() if len(part)})
        if not by_topic:
            return
        clock = _clock(by_topic.values())
        outputs: dict[str, Records] = {}
        for node, run in self._nodes:
            inputs = [outputs[name] for name in node.inputs]
            if isinstance(node.does, Source):
                outputs[node.name] = by_topic.get(node.does.topic, NONE)
            elif run is None:
                self._outputs[node.name] += [part for part in inputs if len(part)]
            elif node.wants_clock or any(map(len, inputs)):
                outputs[node.name] = _run(node, run, [*inputs, *([clock] * node.wants_clock)])
            else:
                outputs[node.name] = NONE

    def finish(self) -> dict[str, list[Records]]:
        """What has been made since the last call, by sink."""
        outputs, self._outputs = self._outputs, defaultdict(list)
        return dict(outputs)


def _run(node: Node, run: Run, inputs: Sequence[Records]) -> Records:
    try:
        return run(*inputs)
    except pa.ArrowException as error:  # values that do not fit together, or numbers too large
        raise SemelError(f"streams, {node.name}: {error}") from None


def _clock(records: Iterable[Records]) -> Records:
    parts = list(records)
    order = np.concatenate([part.order for part in parts])
    times = np.concatenate([np.asarray(part.times) for part in parts])
    turn = np.argsort(order)
    return NONE.holding(
        keys=pa.nulls(len(turn)),
        values=pa.nulls(len(turn)),
        times=pa.array(times[turn]),
        order=order[turn],
    )


@dataclass(frozen=True)
class Topology:
    """All nodes, each after its inputs, and the sets of topics that must be read together:
    partition ``p`` of one with partition ``p`` of the others."""

    name: str
    nodes: tuple[Node, ...]
    copartitioned: tuple[frozenset[str], ...] = ()

    @cached_property
    def subs(self) -> tuple[SubTopology, ...]:
        """The sub-topologies: nodes that are connected, or that use the same store."""
        owner = {spec.name: node.name for node in self.nodes for spec in node.stores}
        is_global = self._global_nodes
        group = {node.name: node.name for node in self.nodes}

        def root(name: str) -> str:
            while group[name] != name:
                name = group[name]
            return name

        for node in self.nodes:
            near = [*node.inputs, *(owner[store] for store in node.reads)]
            for other in near:
                if (other in is_global) == (node.name in is_global):
                    group[root(node.name)] = root(other)
        for topics in self.copartitioned:
            first, *others = [
                n.name for n in self.nodes if isinstance(n.does, Source) and n.does.topic in topics
            ]
            for other in others:
                group[root(other)] = root(first)
        parts: dict[str, list[Node]] = {}
        for node in self.nodes:
            parts.setdefault(root(node.name), []).append(node)
        return tuple(
            SubTopology(number, tuple(nodes), self._globals_read(nodes, owner, is_global))
            for number, nodes in enumerate(parts.values())
        )

    @cached_property
    def _global_nodes(self) -> set[str]:
        names: set[str] = set()
        for node in self.nodes:
            from_global = names & set(node.inputs)
            if from_global or (isinstance(node.does, Source) and node.does.is_global):
                names.add(node.name)
        return names

    @staticmethod
    def _globals_read(
        nodes: Sequence[Node], owner: Mapping[str, str], is_global: set[str]
    ) -> tuple[str, ...]:
        read = {s for n in nodes for s in n.reads if owner[s] in is_global}
        return () if nodes[0].name in is_global else tuple(sorted(read))

    @cached_property
    def results(self) -> frozenset[str]:
        """The sinks whose records are results: those of the target or, if that is Kafka, those of
        topics."""
        sinks = {name: sink for sub in self.subs for name, sink in sub.sinks.items()}
        target = frozenset(name for name, sink in sinks.items() if sink.topic is None)
        topics = frozenset(name for name, sink in sinks.items() if not sink.is_repartition)
        return target or topics

    def partitions(self, counts: Mapping[str, int]) -> dict[str, int]:
        """The partitions that each repartition topic needs, given those of the other topics.

        Raises:
            ConfigError: topics that are joined have different numbers of partitions.
        """
        numbers = {t: n for t, n in counts.items() if n}
        writers = {
            node.does.topic: (sub, node.does)
            for sub in self.subs
            for node in sub.nodes
            if isinstance(node.does, Sink) and node.does.is_repartition and node.does.topic
        }
        chosen = {topic: sink.partitions for topic, (_, sink) in writers.items()}
        numbers |= {topic: n for topic, n in chosen.items() if n}
        while missing := [topic for topic in writers if topic not in numbers]:
            beside = {t: [numbers[o] for o in self._beside(t) if o in numbers] for t in missing}
            above = {t: [numbers[o] for o in writers[t][0].topics if o in numbers] for t in missing}
            derived = {t: max(beside[t]) for t in missing if beside[t]}
            if not derived:
                alone = [t for t in missing if above[t] and not self._beside(t)]
                derived = {t: max(above[t]) for t in alone or missing if above[t]}
            numbers |= derived or dict.fromkeys(missing, 1)
        for topics in self.copartitioned:
            there = {t: numbers[t] for t in sorted(topics) if t in numbers}
            if len(set(there.values())) > 1:
                text = ", ".join(f"{topic} has {n}" for topic, n in there.items())
                raise ConfigError(
                    f"{self.name}: topics that are joined need equal numbers of partitions, but "
                    f"{text}. Repartition one of them: .repartition(partitions=...)"
                )
        return {topic: numbers[topic] for topic in writers}

    def _beside(self, topic: str) -> set[str]:
        return {t for topics in self.copartitioned if topic in topics for t in topics} - {topic}

    def describe(self) -> str:
        """The topology as Kafka Streams describes one."""
        lines = ["Topologies:"]
        below: dict[str, list[str]] = defaultdict(list)
        for node in self.nodes:
            for name in node.inputs:
                below[name].append(node.name)
        for sub in self.subs:
            what = " for global store (will not generate tasks)" if sub.is_global else ""
            lines.append(f"   Sub-topology: {sub.number}{what}")
            for node in sub.nodes:
                lines += _described(node, below[node.name])
        return "\n".join(lines)

    @cached_property
    def asked(self) -> dict[str, tuple[SubTopology, StoreSpec, Queryable]]:
        """The stores that people may ask, and the operators that know what they hold."""
        return {
            spec.name: (sub, spec, node.does)
            for sub in self.subs
            for node in sub.nodes
            if isinstance(node.does, Queryable)
            for spec in node.stores
            if spec.kind != INTERNAL
        }

    def shown(self, store: str, keys: pa.Array, values: pa.Array) -> Records:
        """What entries of a store mean, for people who ask.

        Raises:
            ConfigError: nobody may ask this store, or there is none.
        """
        if store not in self.asked:
            raise ConfigError(f"{self.name}: there is no store {named(store)} that one may ask")
        return self.asked[store][2].shown(keys, values)

    @property
    def digest(self) -> str:
        """A text that changes with the plan. Markers keep it. Operators count by the names of their
        classes, functions by their names and by the names and constants in them."""
        text = "\n".join(f"{n.name} {n.inputs} {_plan(n.does)}" for n in self.nodes)
        return hashlib.sha256(text.encode()).hexdigest()[:32]


def _described(node: Node, below: Sequence[str]) -> list[str]:
    does = node.does
    if isinstance(does, Source):
        head = f"Source: {node.name} (topics: [{does.topic}])"
    elif isinstance(does, Sink):
        where = f"topic: {does.topic}" if does.topic else f"sink: {does.config['connector.class']}"
        head = f"Sink: {node.name} ({where})"
    else:
        names = ", ".join([*(spec.name for spec in node.stores), *node.reads])
        head = f"Processor: {node.name} (stores: [{names}])"
    lines = [f"    {head}"]
    if not isinstance(does, Sink):
        lines.append(f"      --> {', '.join(below) or 'none'}")
    if node.inputs:
        lines.append(f"      <-- {', '.join(node.inputs)}")
    return lines


def _plan(thing: Any, depth: int = 8) -> str:
    """A text about a part of the plan that stays the same in another process."""

    def parts(of: Iterable[Any]) -> str:
        return ", ".join(_plan(item, depth - 1) for item in of) if depth else ""

    if is_dataclass(thing) and not isinstance(thing, type):
        values = (getattr(thing, f.name) for f in fields(thing) if f.compare)
        return f"{type(thing).__name__}({parts(values)})"
    if isinstance(thing, Mapping):
        return f"{{{parts(pair for name in sorted(thing) for pair in (name, thing[name]))}}}"
    if isinstance(thing, tuple | list | frozenset | set):
        return f"[{parts(sorted(thing, key=str) if isinstance(thing, frozenset | set) else thing)}]"
    if isinstance(thing, FunctionType):
        cells = [cell.cell_contents for cell in thing.__closure__ or ()]
        return f"{thing.__qualname__} {parts([thing.__code__, cells, thing.__defaults__])}"
    if isinstance(thing, CodeType):  # the instructions themselves differ between Pythons
        return f"{parts([thing.co_names, thing.co_consts])}"
    if isinstance(thing, partial):
        return f"partial({parts([thing.func, thing.args, thing.keywords])})"
    if callable(thing) and not isinstance(thing, pc.Expression):
        name = getattr(thing, "__qualname__", type(thing).__qualname__)
        return f"{name} {parts([getattr(thing, '__self__', None)])}"
    if isinstance(thing, Enum):
        return f"{type(thing).__qualname__}.{thing.name} {parts([thing.value])}"
    if isinstance(thing, _PLAIN) or thing is None:
        return f"{thing!r}"
    return type(thing).__qualname__
