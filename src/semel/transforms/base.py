"""The contract of transforms and predicates: functions of a batch of records, in Arrow.

Kafka Connect passes a transform one record at a time. Here it gets a :class:`Batch`, and returns a
batch of the same records in the same order, or of some of them. It names records that it cannot
transform in :class:`Refused`: the chain sets them aside as bad records and applies the transform
again to the others.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from semel.config import NoKeys
from semel.core.records import (
    DATA_EXCEPTION,
    METADATA_TYPES,
    OFFSET,
    PARTITION,
    TIMESTAMP,
    Facts,
    known_times,
    one_array,
)

ILLEGAL_ARGUMENT = "java.lang.IllegalArgumentException"
NULL_POINTER = "java.lang.NullPointerException"


@dataclass(frozen=True, slots=True)
class Contents:
    """The keys or the values of records.

    ``has_schema`` says that they come with a schema, as those of JSON with ``schemas.enable=true``
    do: Kafka Connect's transforms treat them as structs then, otherwise as maps. A null has none.
    ``facts`` is what the schema says of itself, see :class:`~semel.core.records.ConnectRecords`.
    """

    array: pa.Array
    has_schema: bool = True
    facts: Facts = field(default_factory=dict)

    @property
    def name(self) -> str | None:
        """The name of the schema."""
        return self.facts.get("name")

    @property
    def version(self) -> int | None:
        """The version of the schema."""
        return self.facts.get("version")

    @property
    def is_struct(self) -> bool:
        return bool(pa.types.is_struct(self.array.type))

    def holding(self, array: pa.Array) -> Contents:
        """A copy that holds these keys or values instead."""
        return replace(self, array=array)


@dataclass(frozen=True, slots=True)
class Batch:
    """Records of one topic in Kafka on their way through a chain.

    ``origin`` says where they were read (see :class:`~semel.core.records.ConnectRecords`) and never
    changes. ``topics`` says where each record goes. ``headers`` is None if nothing needs them.
    ``rows`` are the indices of the records in what the chain was given. ``times`` and ``places``
    are the times and partitions that a transform has set.
    """

    origin: pa.Table
    keys: Contents
    values: Contents
    topics: pa.Array
    rows: np.ndarray
    headers: pa.Array | None = None
    times: pa.Array | None = None
    places: pa.Array | None = None

    def __len__(self) -> int:
        return int(self.origin.num_rows)

    @property
    def partitions(self) -> pa.Array:
        """The partitions that records were read from, or that a source or a transform chose; null
        for others."""
        return self._origin(PARTITION) if self.places is None else self.places

    @property
    def offsets(self) -> pa.Array | None:
        """The offsets in Kafka; None for records of a source."""
        return self._origin(OFFSET) if OFFSET in self.origin.column_names else None

    @property
    def timestamps(self) -> pa.Array:
        """The records' times; null for those that have none."""
        return known_times(self._origin(TIMESTAMP)) if self.times is None else self.times

    def _origin(self, name: str) -> pa.Array:
        if name not in self.origin.column_names:
            return pa.nulls(len(self), METADATA_TYPES[name])
        return one_array(self.origin.column(name))

    def contents(self, of_key: bool) -> Contents:
        return self.keys if of_key else self.values

    def with_contents(self, of_key: bool, contents: Contents) -> Batch:
        return replace(self, keys=contents) if of_key else replace(self, values=contents)

    def take(self, indices: np.ndarray) -> Batch:
        """The records at these indices, in this order."""
        at = pa.array(indices)
        return Batch(
            self.origin.take(at),
            self.keys.holding(self.keys.array.take(at)),
            self.values.holding(self.values.array.take(at)),
            self.topics.take(at),
            self.rows[indices],
            None if self.headers is None else self.headers.take(at),
            None if self.times is None else self.times.take(at),
            None if self.places is None else self.places.take(at),
        )

    def only(self, mask: np.ndarray) -> Batch:
        """The records for which ``mask`` is true."""
        return self if mask.all() else self.take(np.flatnonzero(mask))


class Refused(Exception):
    """Raised by a transform: these records, by their index, cannot be transformed."""

    def __init__(self, reasons: Mapping[int, str], exception: str = DATA_EXCEPTION) -> None:
        super().__init__(f"{len(reasons)} records cannot be transformed")
        self.reasons = dict(reasons)
        self.exception = exception


class Transform(ABC):
    """One stage of a chain. It lives in one task and may remember what it has seen."""

    section: ClassVar[type] = NoKeys
    """The dataclass of its configuration keys."""
    moves_numbers: ClassVar[bool] = False
    """It takes fields that are :mod:`semel.converters.json.numbers`. Others get whole numbers and
    fractions in batches of their own."""
    fills_fields: ClassVar[bool] = False
    """Records get the fields of others in their batch, null where they lack them."""
    config: Any
    """An instance of ``section``."""

    def __init__(self, config: Any) -> None:
        """Take an instance of ``section``. Raises ConfigError."""
        self.config = config

    @abstractmethod
    def apply(self, batch: Batch) -> Batch:
        """Transform all records.

        Raises:
            Refused: names those that cannot be transformed.
        """

    @property
    def needs_key(self) -> bool:
        """Whether keys must be decoded for it, even if the sink takes none."""
        return False

    @property
    def needs_headers(self) -> bool:
        """Whether it must see headers, even if the sink takes none."""
        return False

    @property
    def needs_timestamp(self) -> bool:
        """Whether it uses the records' times."""
        return False

    @property
    def sets_timestamp(self) -> bool:
        """Whether it changes the records' times."""
        return False

    @property
    def changes_key(self) -> bool:
        """Whether it changes keys."""
        return False

    @property
    def changes_headers(self) -> bool:
        """Whether it adds headers."""
        return False

    @property
    def changes_contents(self) -> bool:
        """Whether it changes keys or values."""
        return True

    @property
    def reads_contents(self) -> bool:
        """Whether it looks at keys or values."""
        return self.changes_contents

    @property
    def routes(self) -> bool:
        """Whether it changes where records go."""
        return False

    @property
    def fields_by_type(self) -> Sequence[str]:
        """The fields whose type decides what it does. In plain JSON, a field may have values of
        several types: the records of each type come in a batch of their own then."""
        return ()


class KeyOrValue(Transform):
    """A transform with variants for keys and for values: ``Class$Key`` and ``Class$Value``."""

    def __init__(self, config: Any, *, of_key: bool) -> None:
        """Take an instance of ``section``, and whether it is for keys. Raises ConfigError."""
        super().__init__(config)
        self.of_key = of_key

    @property
    def needs_key(self) -> bool:
        return self.of_key

    @property
    def changes_key(self) -> bool:
        return self.of_key


class ReadingTransform(KeyOrValue):
    """A transform that looks at keys or values, and changes neither."""

    changes_key = False
    changes_contents = False
    reads_contents = True


class ContentsTransform(KeyOrValue):
    """A transform that changes only keys, or only values."""

    def apply(self, batch: Batch) -> Batch:
        return batch.with_contents(self.of_key, self.changed(batch, batch.contents(self.of_key)))

    @abstractmethod
    def changed(self, batch: Batch, contents: Contents) -> Contents:
        """The keys or values after the transform. Raises Refused."""


class Router(Transform):
    """A transform that only changes where records go, by the name of their topic alone."""

    routes = True
    moves_numbers = True

    @property
    def changes_contents(self) -> bool:
        return False

    @abstractmethod
    def route(self, topic: str) -> str:
        """Where the records of a topic go."""

    def apply(self, batch: Batch) -> Batch:
        return replace(batch, topics=each(batch.topics, self.route))


class Filter(Transform):
    """Kafka Connect's Filter: drops every record that its predicate selects."""

    changes_contents = False
    moves_numbers = True

    def apply(self, batch: Batch) -> Batch:
        return batch.take(np.arange(0))


class Predicate(ABC):
    """Selects the records that a transform is applied to."""

    section: ClassVar[type] = NoKeys
    reads_headers: ClassVar[bool] = False

    def __init__(self, config: Any) -> None:
        """Take an instance of ``section``. Raises ConfigError."""
        self.config = config

    @abstractmethod
    def holds(self, batch: Batch) -> pa.Array:
        """For each record, whether the predicate is true; boolean without nulls."""


def each(texts: pa.Array, change: Callable[[str], str | None]) -> pa.Array:
    """Transform strings, each distinct one only once."""
    encoded = texts.dictionary_encode()
    changed = [change(t) for t in encoded.dictionary.to_pylist()]
    return pa.array(changed, pa.string()).take(encoded.indices)


def bisected(run: Callable[[pa.Table], pa.Table], records: pa.Table) -> pa.Table:
    """What ``run`` makes of records, whose first column has their indices. If it refuses them,
    halving finds those that it refuses alone.

    Raises:
        Refused: names those that are refused by the same exception as the first of them.
    """
    refused: dict[int, tuple[str, str]] = {}

    def parts(of: pa.Table) -> list[pa.Table]:
        try:
            return [run(of)]
        except Refused as error:
            if of.num_rows == 1:
                refused[of.column(0)[0].as_py()] = (error.exception, error.reasons[0])
                return []
        middle = of.num_rows // 2
        return parts(of.slice(0, middle)) + parts(of.slice(middle))

    tables = parts(records)
    if refused:
        first = next(iter(refused.values()))[0]
        raise Refused({row: why for row, (kind, why) in refused.items() if kind == first}, first)
    return tables[0] if len(tables) == 1 else pa.concat_tables(tables, promote_options="permissive")


def flags(array: pa.Array) -> np.ndarray:
    """Booleans without nulls, for numpy."""
    return np.asarray(array.to_numpy(zero_copy_only=False), dtype=bool)


def valid(array: pa.Array) -> np.ndarray:
    """For each value, whether it is not null."""
    return flags(array.is_valid())


def nulled(array: pa.Array, rows: np.ndarray) -> pa.Array:
    """The values, null in these rows; of any type, also of those that hold JSON."""
    return array.take(pa.array(np.arange(len(array)), mask=rows))


def refuse(wrong: np.ndarray, why: str, exception: str = DATA_EXCEPTION) -> None:
    """Refuse the records for which ``wrong`` is true, if there are any.

    Raises:
        Refused: names them.
    """
    if wrong.any():
        raise Refused(reasons(np.flatnonzero(wrong), why), exception)


def reasons(indices: Sequence[int] | np.ndarray, message: str) -> dict[int, str]:
    """The same reason for several records."""
    return dict.fromkeys(map(int, indices), message)
