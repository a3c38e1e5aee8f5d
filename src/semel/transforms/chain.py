"""Applies a connector's transforms in order, each to the records that its predicate selects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from semel.converters.json.merge import Part, apart, together
from semel.converters.json.numbers import changed, fractions, mixed, of_one_kind, patterns
from semel.core.records import DATA_EXCEPTION
from semel.transforms.base import (
    Batch,
    Contents,
    KeyOrValue,
    Predicate,
    Refused,
    Router,
    Transform,
)
from semel.transforms.predicates import TopicNameMatches
from semel.transforms.structs import of_one_type

_MOST_MIXTURES = 16
"""Into how many batches the records of one are divided by which of their numbers are whole, or by
the types of fields."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A transform with its name in the configuration, and the predicate that selects its records.
    ``key`` is the configuration key that asks for it, if that is not its ``type``."""

    alias: str
    transform: Transform
    predicate: Predicate | None = None
    negate: bool = False
    key: str = ""

    @property
    def where(self) -> str:
        """The key that asks for it."""
        return self.key or f"transforms.{self.alias}.type"

    @property
    def goes_by_topic(self) -> bool:
        """Whether the topic alone decides where records go."""
        by_topic = self.predicate is None or isinstance(self.predicate, TopicNameMatches)
        return not self.transform.routes or (by_topic and isinstance(self.transform, Router))

    def route(self, topic: str) -> str:
        """The topic that a topic's records go to, if their topic alone decides it."""
        if not isinstance(self.transform, Router):
            return topic
        predicate = self.predicate
        if isinstance(predicate, TopicNameMatches) and predicate.matches(topic) is self.negate:
            return topic
        return self.transform.route(topic)


@dataclass(frozen=True, slots=True)
class Refusal:
    """A record that a transform refuses, by its index in what the chain was given."""

    index: int
    exception: str
    message: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a chain: the remaining records, in order, and the refused ones."""

    batch: Batch
    refused: Sequence[Refusal]


class Mixed(Exception):
    """What stages have made of a batch has types that contradict each other. ``labels`` has a
    number for each record that the chain was given: records of one number go together."""

    def __init__(self, labels: np.ndarray) -> None:
        super().__init__()
        self.labels = labels


class Chain:
    """The stages of one connector, for one topic at a time."""

    def __init__(self, stages: Sequence[Stage]) -> None:
        self.stages = tuple(stages)

    def __bool__(self) -> bool:
        return bool(self.stages)

    @property
    def needs_key(self) -> bool:
        """Whether keys must be decoded even if the sink takes none."""
        return any(s.transform.needs_key for s in self.stages)

    @property
    def needs_headers(self) -> bool:
        """Whether headers affect records."""
        return any(
            s.transform.needs_headers or (s.predicate is not None and s.predicate.reads_headers)
            for s in self.stages
        )

    @property
    def needs_timestamp(self) -> bool:
        """Whether the records' times are used."""
        return any(s.transform.needs_timestamp or s.transform.sets_timestamp for s in self.stages)

    @property
    def changes_key(self) -> bool:
        """Whether it changes keys."""
        return any(s.transform.changes_key for s in self.stages)

    @property
    def changes_contents(self) -> bool:
        """Whether it changes keys or values."""
        return any(s.transform.changes_contents for s in self.stages)

    @property
    def reads_contents(self) -> bool:
        """Whether it looks at keys or values."""
        return any(s.transform.reads_contents for s in self.stages)

    @property
    def fills_fields(self) -> bool:
        """Whether records get the fields of others, null where they lack them."""
        return any(s.transform.fills_fields for s in self.stages)

    @property
    def routers(self) -> Sequence[Stage]:
        """The stages that change where records go."""
        return [s for s in self.stages if s.transform.routes]

    @property
    def goes_by_topic(self) -> bool:
        """Whether all records of a topic go to one place, which its name decides."""
        return all(stage.goes_by_topic for stage in self.stages)

    def route(self, topic: str) -> str:
        """Where the records of a topic go; for a chain whose routers all go by topic."""
        for stage in self.stages:
            topic = stage.route(topic)
        return topic

    def apply(
        self,
        batch: Batch,
        *,
        takes_apart: bool = False,
        by_fields: bool = False,
        by_number: bool = False,
    ) -> Outcome:
        """Run all stages.

        Args:
            batch: records of one topic.
            takes_apart: whether the caller gives records again, in batches of their own, if
                predicates have led to types that contradict each other. Otherwise, those that
                differ from the first ones are refused.
            by_fields: whether values with schemas must also have the same fields; keys with schemas
                always must.
            by_number: whether whole numbers and fractions in one field also contradict each other
                where a transform looks at them; otherwise it gets fractions.

        Raises:
            Mixed: they contradict each other; nothing is refused yet.
        """
        refused: list[Refusal] = []
        parts = [batch]
        for stage in self.stages:
            if not stage.transform.moves_numbers:
                parts = [_of_one_kind(part, len(batch), by_number) for part in parts]
            parts = [done for part in parts if len(part) for done in _staged(stage, part, refused)]
        parts = [p for p in parts if len(p)] or [*parts, batch.take(np.arange(0))][:1]
        if takes_apart and _contradict(parts, by_fields):
            labels = np.zeros(len(batch), np.int64)
            for number, part in enumerate(parts):
                labels[part.rows] = number
            raise Mixed(labels)
        return Outcome(_together(parts, refused), refused)


def _of_one_kind(batch: Batch, length: int, by_number: bool) -> Batch:
    """The batch with fields that hold either whole numbers or fractions; fractions, if there are
    too many mixtures.

    Raises:
        Mixed: see :meth:`Chain.apply`.
    """
    arrays = [a for contents in (batch.keys, batch.values) for a in mixed(contents.array)]
    if not arrays:
        return batch
    labels = patterns(arrays, most=_MOST_MIXTURES) if by_number else None
    if labels is not None and labels.any():
        every = np.zeros(length, np.int64)
        every[batch.rows] = labels
        raise Mixed(every)
    change = fractions if labels is None else of_one_kind
    keys, values = (
        contents.holding(changed(contents.array, change)) for contents in (batch.keys, batch.values)
    )
    return replace(batch, keys=keys, values=values)


def _staged(stage: Stage, batch: Batch, refused: list[Refusal]) -> list[Batch]:
    """The records that a stage applies to, and those that it leaves alone."""
    if stage.predicate is None:
        return _by_type(stage, batch, refused)
    holds = np.asarray(stage.predicate.holds(batch).to_numpy(zero_copy_only=False), dtype=bool)
    chosen = np.flatnonzero(holds != stage.negate)
    if len(chosen) == len(batch):
        return _by_type(stage, batch, refused)
    if not len(chosen):
        return [batch]
    others = np.flatnonzero(holds == stage.negate)
    return [*_by_type(stage, batch.take(chosen), refused), batch.take(others)]


def _by_type(stage: Stage, batch: Batch, refused: list[Refusal]) -> list[Batch]:
    """Apply a transform to the records of each type, see :attr:`Transform.fields_by_type`."""
    transform = stage.transform
    of_key = isinstance(transform, KeyOrValue) and transform.needs_key
    contents = batch.contents(of_key)
    names = () if contents.has_schema else transform.fields_by_type
    parts = of_one_type(contents.array, names)
    if parts[0][1] is contents.array or len(parts) > _MOST_MIXTURES:
        return [_applied(stage, batch, refused)]
    done = []
    for rows, array in parts:
        part = batch.take(rows).with_contents(of_key, contents.holding(array))
        part = _applied(stage, part, refused)
        if not transform.changes_contents:  # they have one type again
            at = pa.array(np.searchsorted(batch.rows, part.rows))
            part = part.with_contents(of_key, contents.holding(contents.array.take(at)))
        done.append(part)
    return done


def _applied(stage: Stage, batch: Batch, refused: list[Refusal]) -> Batch:
    """Apply a transform, and repeat it without the records that it refuses."""
    while len(batch):
        try:
            return stage.transform.apply(batch)
        except Refused as error:
            refused += [
                Refusal(
                    int(batch.rows[i]),
                    error.exception,
                    f"{stage.where.removesuffix('.type')}: {why}",
                )
                for i, why in error.reasons.items()
            ]
            batch = batch.take(np.delete(np.arange(len(batch)), list(error.reasons)))
    return batch


def _contradict(parts: Sequence[Batch], by_fields: bool) -> bool:
    """Whether keys or values of the parts are not what they would be if each had come alone."""
    if len(parts) < 2:
        return False
    ends = np.cumsum([len(part) for part in parts])
    at = [pa.array(rows) for rows in np.split(np.arange(ends[-1]), ends[:-1])]
    keys, values = [part.keys for part in parts], [part.values for part in parts]
    for contents, strict in ((keys, True), (values, by_fields)):
        pieces = [Part(rows, content.array) for rows, content in zip(at, contents, strict=True)]
        same_fields = strict and any(content.has_schema for content in contents)
        if apart(pieces, int(ends[-1]), by_fields=same_fields) is not None:
            return True
    return False


def _together(parts: Sequence[Batch], refused: list[Refusal]) -> Batch:
    """The records of all parts in their order."""
    if len(parts) == 1:
        return parts[0]
    rows = np.concatenate([part.rows for part in parts])
    order = np.argsort(rows, kind="stable")
    places = np.empty_like(order)
    places[order] = np.arange(len(order))
    at = np.split(places, np.cumsum([len(part) for part in parts])[:-1])
    wrong: dict[int, str] = {}
    take = pa.array(order)
    headers = [part.headers for part in parts if part.headers is not None]
    timed = any(part.times is not None for part in parts)
    times = [part.timestamps for part in parts] if timed else []
    placed = any(part.places is not None for part in parts)
    chosen = [part.partitions for part in parts] if placed else []
    merged = Batch(
        pa.concat_tables([part.origin for part in parts]).take(take),
        _merged([part.keys for part in parts], at, len(rows), wrong),
        _merged([part.values for part in parts], at, len(rows), wrong),
        pa.concat_arrays([part.topics for part in parts]).take(take),
        rows[order],
        pa.concat_arrays(headers).take(take) if headers else None,
        pa.concat_arrays(times).take(take) if timed else None,
        pa.concat_arrays(chosen).take(take) if placed else None,
    )
    if wrong:
        refused += [Refusal(int(merged.rows[i]), DATA_EXCEPTION, why) for i, why in wrong.items()]
        merged = merged.take(np.delete(np.arange(len(merged)), list(wrong)))
    return merged


def _merged(
    parts: Sequence[Contents], at: Sequence[np.ndarray], length: int, wrong: dict[int, str]
) -> Contents:
    present = [
        (contents, rows)
        for contents, rows in zip(parts, at, strict=True)
        if contents.array.null_count < len(contents.array)
    ]
    if not present:
        return parts[0].holding(pa.nulls(length, parts[0].array.type))
    pieces = [Part(pa.array(rows), contents.array) for contents, rows in present]
    array, failures = together(pieces, length, pa.null(), tells_absence=True)
    wrong |= {f.index: f.message for f in failures}
    first = present[0][0]
    shared = {
        name: fact
        for name, fact in first.facts.items()
        if all(contents.facts.get(name) == fact for contents, _ in present)
    }
    return Contents(array, first.has_schema, shared)
