"""The interface of converters: they turn bytes in Kafka into typed Arrow columns, many at a time.
The limit on the size of schemas is here, too: all formats have it."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

import numpy as np
import pyarrow as pa

from semel.config import NoKeys, section_of
from semel.core.errors import ConfigError
from semel.core.records import Facts, is_absence

_MOST_SCHEMAS = 1000
MOST_FIELDS, _DEEPEST = 10_000, 100
"""The most fields of a schema, and how deeply they may be nested."""

_Node = TypeVar("_Node")


@dataclass(frozen=True, slots=True)
class Failure:
    """One value that could not be decoded, by its index in the input."""

    index: int
    exception: str
    message: str


@dataclass(frozen=True, slots=True)
class Decoded:
    """The result of decoding: as long as the input, null where the input was null or failed.

    ``apart`` has a number for each value if their schemas contradict each other: values of one
    number go together. Values that cannot be in one array with those before them are among the
    failures, too, for a caller that does not take them apart.
    ``unread`` counts the values that were left out, by field, see :meth:`Converter.count_unread`.
    ``facts`` is what the values' schema says of itself, in the words of Kafka Connect's JSON.
    """

    values: pa.Array
    failures: Sequence[Failure] = field(default=())
    apart: np.ndarray | None = None
    unread: Mapping[str, int] = field(default_factory=dict)
    facts: Facts = field(default_factory=dict)


class Unwritable(ConfigError):
    """Values of this type cannot be written; only nulls can."""


class Converter(ABC):
    """Decodes the keys or the values of one topic.

    A converter never raises for a bad value: it reports a :class:`Failure` and decodes the others.
    One task uses it, and it may remember what it has seen (schemas, the last successful way to
    parse).
    """

    section: ClassVar[type] = NoKeys
    """The dataclass that declares the keys under ``value.converter.`` that this converter reads."""

    @abstractmethod
    def decode(self, values: pa.Array, expected: pa.Schema | None = None) -> Decoded:
        """Decode a binary array.

        Args:
            values: binary; null for a tombstone or an absent key.
            expected: the fields the sink wants and their types, or None to find them in the data.
                A format that carries its own schema ignores it.

        Returns:
            a struct array for objects, or an array of a primitive type.
        """

    def as_written(self, values: pa.Array, decoded: pa.Array) -> pa.Array:
        """Good values for a sink that takes text: JSON as it was written, but without its schema,
        and anything else as it was decoded.

        Args:
            values: what :meth:`decode` was given, without those that failed.
            decoded: the values that it decoded from them.
        """
        return decoded

    @classmethod
    def configured(
        cls, config: Mapping[str, str], *, is_key: bool, where: str, evolve: bool = False
    ) -> Converter:
        """Build one from its configuration.

        Args:
            config: the keys under ``value.converter.``, without that prefix.
            is_key: whether it decodes keys.
            where: names the configuration in error messages.
            evolve: also decode fields that are not in ``expected``.

        Raises:
            ConfigError: a value that cannot be used.
        """
        return cls()

    @classmethod
    def keys(cls, config: Mapping[str, str], where: str) -> Any:
        """The ``section``, read from what :meth:`configured` is given. A key with a blank
        value has its default.

        Raises:
            ConfigError: every value that cannot be used, by its whole key.
        """
        settings = {name: value for name, value in config.items() if value.strip()}
        return section_of(cls.section, settings, f"{where}.", otherwise=where)

    def encode(self, values: pa.Array) -> pa.Array:
        """The inverse of :meth:`decode`, for a sink that writes bytes: a struct array, or an array
        of a primitive type, to a binary array.

        Raises:
            Unwritable: the converter only reads, or cannot write values of this type.
            ConfigError: it cannot write one of these.
        """
        raise Unwritable(
            f"{type(self).__name__} cannot write what a transform returns. Use JsonConverter, or "
            "let the transform return one column of bytes, named value"
        )

    def for_topic(self, topic: str) -> Converter:
        """The converter for writing to a topic, for formats whose schemas are registered by
        topic."""
        return self

    def describing(self, facts: Facts) -> Converter:
        """The converter that writes with a schema that says this of itself, for formats whose
        schemas do."""
        return self

    @property
    def has_schemas(self) -> bool:
        """Whether values come with a schema: Kafka Connect's transforms then see structs, otherwise
        maps."""
        return True

    @property
    def fills_fields(self) -> bool:
        """Whether values without a schema get the fields of a declared one, null where they lack
        them."""
        return False

    def keep_text(self) -> None:
        """Do not infer dates from text, because transforms that follow must see what was
        written."""
        return

    def keep_numbers(self) -> None:
        """Tell whole numbers from fractions, even if a field holds both."""
        return

    def expect_others(self) -> None:
        """What ``expected`` says is from a sample: values of other types are good, too."""
        return

    def take_any(self) -> None:
        """Values without a schema are good even if they are no objects, whatever is expected, and
        are taken apart from these."""
        return

    def tell_names_apart(self) -> None:
        """Take values apart, see :class:`Decoded`, whose schemas differ in name or version."""
        return

    def tell_fields_apart(self) -> None:
        """Take values apart whose schemas have different fields, at any depth."""
        return

    def tell_absence(self) -> None:
        """Tell fields that a value without a schema lacks from those that are null, see
        :func:`semel.core.records.absence`."""
        return

    def count_unread(self) -> None:
        """From now on, count the values of fields that ``expected`` lacks, if they are left out.
        Fields that a declared schema lacks are meant to be."""
        return

    def infer(self, values: pa.Array) -> pa.Schema | None:
        """The fields found in a sample, or None when values are not objects."""
        decoded = self.decode(values).values.type
        if not pa.types.is_struct(decoded):
            return None
        return pa.schema([f for f in decoded if not is_absence(f.name)])


class Writers:
    """What a converter writes with: a converter for each topic, and each kind of schema."""

    def __init__(self, converter: Converter) -> None:
        self._converter = converter
        self._describing: dict[str, Converter] = {}

    def of(self, topic: str, facts: Facts) -> Converter:
        """The converter for values of a schema that says this of itself."""
        if not facts:
            return self._converter.for_topic(topic)
        described = json.dumps(facts, sort_keys=True)
        if described not in self._describing:
            if len(self._describing) >= _MOST_SCHEMAS:
                self._describing.clear()
            self._describing[described] = self._converter.describing(facts)
        return self._describing[described].for_topic(topic)


def check_size(root: _Node, parts: Callable[[_Node], Iterable[_Node]]) -> None:
    """Check how many fields a schema has, counting those of a type wherever it is referred to, and
    how deeply they are nested. A few names that each refer to another twice describe more fields
    than fit into memory.

    Raises:
        ValueError: there are too many.
    """
    sizes: dict[int, tuple[int, _Node]] = {}

    def count(node: _Node, depth: int) -> int:
        if depth > _DEEPEST:
            raise ValueError(f"its fields are nested more than {_DEEPEST} levels deep")
        if id(node) not in sizes:
            size = 1 + sum(count(part, depth + 1) for part in parts(node))
            if size > MOST_FIELDS:
                raise ValueError(f"it has more than {MOST_FIELDS} fields, with those it refers to")
            sizes[id(node)] = size, node  # the node keeps its id from being used again
        return sizes[id(node)][0]

    count(root, 0)
