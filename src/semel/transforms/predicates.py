"""Kafka Connect's predicates."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.config import key
from semel.core.patterns import compiled
from semel.transforms.base import Batch, Predicate
from semel.transforms.headers import header_keys, parents


def _pattern(text: str) -> None:
    try:
        compiled(text)
    except ValueError as error:
        raise ValueError(f"entry must be a Java-compatible regular expression: {error}") from None


@dataclass(frozen=True)
class TopicNameMatchesConfig:
    """The keys of TopicNameMatches."""

    pattern: str = key("pattern", doc="Matches whole names of topics.", validator=_pattern)


class TopicNameMatches(Predicate):
    """True for records whose topic, as changed by earlier transforms, has such a name."""

    section = TopicNameMatchesConfig

    def __init__(self, config: TopicNameMatchesConfig) -> None:
        super().__init__(config)
        self._pattern = compiled(config.pattern)

    def matches(self, topic: str) -> bool:
        """Whether a topic has such a name."""
        return self._pattern.fullmatch(topic)

    def holds(self, batch: Batch) -> pa.Array:
        encoded = batch.topics.dictionary_encode()
        matching = [self.matches(t) for t in encoded.dictionary.to_pylist()]
        return pa.array(matching, pa.bool_()).take(encoded.indices)


class RecordIsTombstone(Predicate):
    """True for records whose value is null."""

    def holds(self, batch: Batch) -> pa.Array:
        return batch.values.array.is_null()


@dataclass(frozen=True)
class HasHeaderKeyConfig:
    """The keys of HasHeaderKey."""

    name: str = key("name", doc="The header's name.")


class HasHeaderKey(Predicate):
    """True for records with at least one header of this name."""

    section = HasHeaderKeyConfig
    config: HasHeaderKeyConfig
    reads_headers = True

    def holds(self, batch: Batch) -> pa.Array:
        has_header = np.zeros(len(batch), dtype=bool)
        if batch.headers is not None:
            is_named = pc.equal(header_keys(batch.headers), self.config.name)
            has_header[parents(batch.headers)[np.asarray(is_named)]] = True
        return pa.array(has_header)
