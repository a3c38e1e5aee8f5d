"""Predicates and transforms that can never see what they wait for."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from semel.core.quoting import all_named, named
from semel.transforms.base import Filter, KeyOrValue, Router
from semel.transforms.chain import Chain, Stage
from semel.transforms.fields import ExtractField, ValueToKey
from semel.transforms.predicates import HasHeaderKey, RecordIsTombstone, TopicNameMatches


@dataclass(frozen=True, slots=True)
class RecordFacts:
    """What is known of all records that a chain is given, before there are any; None if it is not.
    ``fields`` are those that values can have."""

    headers: Collection[str] | None = None
    topics: Sequence[str] | None = None
    fields: Collection[str] | None = None
    keyed: bool = True
    tombstones: bool = True


def unseen(chain: Chain, known: RecordFacts) -> list[str]:
    """A warning for each stage that waits for what no record has."""
    warnings: list[str] = []
    for stage in chain.stages:
        warnings += [
            f"{stage.where}: {why}" for why in (*_chosen(stage, known), *_unmet(stage, known))
        ]
        known = _after(stage, known)
    return warnings


def _chosen(stage: Stage, known: RecordFacts) -> Iterator[str]:
    """What its predicate waits for."""
    predicate, drops = stage.predicate, isinstance(stage.transform, Filter)
    if isinstance(predicate, HasHeaderKey) and known.headers is not None:
        name = predicate.config.name
        if name not in known.headers:
            yield (
                f"its predicate waits for the header {named(name)}, which no record has: the "
                f"source writes {all_named(known.headers) or 'no headers'}"
            )
    elif isinstance(predicate, RecordIsTombstone) and not known.tombstones:
        if drops or not stage.negate:
            yield _warning("no record is a tombstone", all_of_them=stage.negate)
    elif isinstance(predicate, TopicNameMatches) and known.topics:
        chosen = [t for t in known.topics if predicate.matches(t) is not stage.negate]
        why = f"the topics are {all_named(known.topics)}"
        if not chosen:
            yield _warning(why, all_of_them=False)
        elif drops and len(chosen) == len(known.topics):
            yield _warning(why, all_of_them=True)


def _warning(why: str, *, all_of_them: bool) -> str:
    if all_of_them:
        return f"its predicate selects every record, which Filter drops: {why}"
    return f"its predicate selects no record: {why}"


def _unmet(stage: Stage, known: RecordFacts) -> Iterator[str]:
    """What it needs of keys and values."""
    transform = stage.transform
    if isinstance(transform, KeyOrValue) and transform.of_key and not known.keyed:
        yield "it is for keys, but the source writes records without keys"
    fields: Sequence[str] = ()
    if isinstance(transform, ExtractField) and not transform.of_key:
        fields = transform.path[:1]
    elif isinstance(transform, ValueToKey):
        fields = transform.config.fields
    for name in fields:
        if known.fields is not None and name not in known.fields:
            yield (
                f"it takes the field {named(name)}, which no value has: the declared schema has "
                f"{all_named(known.fields)}"
            )


def _after(stage: Stage, known: RecordFacts) -> RecordFacts:
    """What is known of records after a stage."""
    transform = stage.transform
    module = type(transform).__module__
    if not module.startswith("semel.transforms.") or module in (
        "semel.transforms.python",
        "semel.transforms.sql",
    ):
        return RecordFacts()
    if transform.changes_headers:
        known = replace(known, headers=None)
    if transform.routes:
        by_topic = (
            known.topics is not None and isinstance(transform, Router) and stage.goes_by_topic
        )
        topics = [stage.route(t) for t in known.topics or ()] if by_topic else None
        known = replace(known, topics=topics)
    if transform.changes_key:
        known = replace(known, keyed=True)
    of_key = isinstance(transform, KeyOrValue) and transform.of_key
    if transform.changes_contents and not of_key and not isinstance(transform, ValueToKey):
        known = replace(known, fields=None, tombstones=True)
    return known
