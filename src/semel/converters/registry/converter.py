"""Values whose schemas are in a registry: what all of their formats share."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.config import definitions
from semel.config.reading import given_names
from semel.converters.base import Converter, Decoded, Failure, Unwritable
from semel.converters.binary import Content, Longs
from semel.converters.json.merge import Part, apart, together
from semel.converters.json.read import NAME
from semel.converters.json.text import place
from semel.converters.registry import FramedMessages, framed, unframed
from semel.converters.registry.client import GREATEST_ID, Registry, Schema, UnknownSchema
from semel.converters.registry.config import AUTO, LATEST, STRATEGY, STRICT, RegistryKeys, registry
from semel.converters.semantic import as_sent
from semel.core.errors import ConfigError, SemelError, Unavailable, misconfigured
from semel.core.quoting import named
from semel.core.records import DATA_EXCEPTION, Facts, without_absence

_PACKAGE = "io.confluent.kafka.serializers.subject."
_STRATEGIES = ("TopicNameStrategy", "RecordNameStrategy", "TopicRecordNameStrategy")
_SERIALIZATION = "org.apache.kafka.common.errors.SerializationException"
_MOST_READERS = _MOST_WRITERS = 1000
_MACHINES = (OSError, MemoryError)
"""What a machine that lacks disk, memory or processes raises, Arrow's error among them."""


@dataclass(frozen=True, slots=True)
class Contents:
    """What messages of one schema hold: values, their indices among the messages if not all could
    be read, and why the others could not; and what the schema says of itself."""

    values: pa.Array
    rows: pa.Array | None = None
    refused: Mapping[int, str] | None = None
    facts: Facts = field(default_factory=dict)


Reader = Callable[[FramedMessages], Contents]
Writer = Callable[[pa.Array], pa.Array]
InColumns = Callable[[Content, Longs, Longs], tuple[pa.Array, Longs]]
"""Reads the values between these places; also returns the rows that it is not sure of."""
OneByOne = Callable[[Sequence[bytes]], tuple[pa.Array, list[int], dict[int, str]]]
"""Reads values; also returns the indices of those that it read, and why it did not read the
others."""


@dataclass(frozen=True, slots=True)
class Registration:
    """How writers find the id of their schema."""

    is_key: bool
    registers: bool = True
    latest: bool = False
    strict: bool = True
    strategy: str = _STRATEGIES[0]

    @classmethod
    def of(cls, keys: RegistryKeys, *, is_key: bool, where: str) -> Registration:
        """What the keys say.

        Raises:
            ConfigError: a strategy that is not available.
        """
        name = STRATEGY.format("key" if is_key else "value")
        chosen = keys.key_strategy if is_key else keys.value_strategy
        strategy = chosen.removeprefix(_PACKAGE)
        if strategy not in _STRATEGIES:
            raise misconfigured(
                f"{where}.{name}",
                f"{where}.{name}={chosen} must be one of "
                + ", ".join(_PACKAGE + option for option in _STRATEGIES),
            )
        return cls(is_key, keys.registers, keys.latest, keys.strict, strategy)

    def subject(self, topic: str, record: str) -> str:
        """The subject of a schema. ``record`` is its full name, if it has one.

        Raises:
            ConfigError: the strategy needs a name, and there is none.
        """
        if self.strategy == _STRATEGIES[0]:
            return f"{topic}-{'key' if self.is_key else 'value'}"
        if not record:
            raise ConfigError(
                f"{STRATEGY.format('key' if self.is_key else 'value')}={_PACKAGE}{self.strategy} "
                "uses the names of records, but what is written is not a record"
            )
        return record if self.strategy == _STRATEGIES[1] else f"{topic}-{record}"

    def latest_of(self, registry: Registry, subject: str) -> Schema | None:
        """The latest version, if the configuration says to write with that. Confluent's serializers
        look at that only if they do not register schemas themselves."""
        if self.registers or not self.latest:
            return None
        latest = registry.latest(subject)
        if latest is None:
            raise ConfigError(
                f"{LATEST}=true, but subject {named(subject)} has no version in {registry.url}: "
                "register one"
            )
        return latest

    def id_of(self, registry: Registry, subject: str, kind: str, text: str) -> int:
        """The id of a schema, which is registered if it is new.

        Raises:
            ConfigError: it is not registered, and may not be.
        """
        try:
            return registry.id_of(subject, kind, text, register=self.registers)
        except UnknownSchema:
            raise ConfigError(
                f"subject {named(subject)} in {registry.url} has no schema like {text}. Register "
                f"it, or set {AUTO}=true"
            ) from None


class RegistryConverter(Converter):
    """Decodes each value by the schema that it was written with. The schemas of one batch are
    merged: all their fields, with numbers widened."""

    format: str
    """What the registry calls it."""

    def __init__(
        self, registry: Registry, where: str, registration: Registration | None = None
    ) -> None:
        self._registry = registry
        self._where = where
        self._registration = registration or Registration(is_key=False)
        self._topic = ""
        self._topics: dict[str, RegistryConverter] = {}
        self._writers: dict[bytes, tuple[int, Writer]] = {}
        self._readers: dict[int, Reader | str] = {}
        self._last: pa.DataType = pa.null()
        self._facts: Facts = {}
        self._by_name = self._by_fields = False

    @classmethod
    def keys(cls, config: Mapping[str, str], where: str) -> Any:
        """See :meth:`Converter.keys`. If a key is given by several of its names, the first counts,
        as with Confluent's and Apicurio's converters."""
        settings = {name: value for name, value in config.items() if value.strip()}
        for definition in definitions(cls.section):
            for name in given_names(definition, settings)[1:]:
                del settings[name]
        return super().keys(settings, where)

    @classmethod
    def configured(
        cls, config: Mapping[str, str], *, is_key: bool, where: str, evolve: bool = False
    ) -> Converter:
        """See :meth:`Converter.configured`."""
        keys = cls.keys(config, where)
        own = cls._own(keys, where)
        registration = Registration.of(keys, is_key=is_key, where=where)
        return cls(registry(keys, where), where, registration=registration, **own)

    @classmethod
    @abstractmethod
    def _own(cls, keys: Any, where: str) -> dict[str, Any]:
        """The arguments of the format, from its keys. Raises ConfigError."""

    @abstractmethod
    def _reader(self, schema: Schema) -> Reader:
        """How values of a schema are read.

        Raises:
            ValueError: the schema cannot be used. Any other error means the same.
        """

    @abstractmethod
    def _derived(self, kind: pa.DataType) -> tuple[str, str]:
        """The text of a schema for values of a type, and the full name of its record, if it has
        one.

        Raises:
            ValueError: the format cannot represent them.
        """

    @abstractmethod
    def _writer(self, schema: Schema) -> Writer:
        """How values are written with a schema. Raises ValueError: it cannot be used."""

    @abstractmethod
    def _incompatible(self, latest: Schema, derived: str) -> Iterable[str]:
        """Why values of a derived schema cannot be written with the latest one, field by field."""

    def _split(self, group: FramedMessages) -> list[FramedMessages]:
        """Messages of one schema, split by type if they are of several."""
        return [group]

    def tell_names_apart(self) -> None:
        """See :meth:`Converter.tell_names_apart`."""
        self._by_name = True

    def tell_fields_apart(self) -> None:
        """See :meth:`Converter.tell_fields_apart`."""
        self._by_fields = True

    def for_topic(self, topic: str) -> Converter:
        """See :meth:`Converter.for_topic`."""
        if topic not in self._topics:
            bound = copy.copy(self)
            bound._topic, bound._writers = topic, {}
            self._topics[topic] = bound
        return self._topics[topic]

    def describing(self, facts: Facts) -> Converter:
        """See :meth:`Converter.describing`."""
        converter = copy.copy(self)
        converter._facts, converter._writers, converter._topics = facts, {}, {}
        return converter

    def encode(self, values: pa.Array) -> pa.Array:
        """See :meth:`Converter.encode`.

        Raises:
            Unwritable: neither the format nor the schema can hold the type.
            ConfigError: a value does not fit.
            Unavailable: the registry cannot be reached.
            ServiceError: it refuses the login.
        """
        if isinstance(values, pa.ChunkedArray):
            values = values.combine_chunks()
        values = as_sent(without_absence(values), self._facts)
        present = values.drop_null() if values.null_count else values
        if not len(present):
            return pa.nulls(len(values), pa.binary())
        try:
            schema_id, write = self._writer_of(present.type)
        except (ValueError, ConfigError) as error:
            at = "" if isinstance(error, ConfigError) else f"{self._where}: "
            raise Unwritable(f"{at}{error}") from None
        try:
            written = framed(schema_id, write(present))
        except ValueError as error:
            raise ConfigError(f"{self._where}: {error}") from None
        if len(present) == len(values):
            return written
        return place(written, pc.indices_nonzero(values.is_valid()), len(values))

    def _writer_of(self, kind: pa.DataType) -> tuple[int, Writer]:
        # Types are equal whatever the metadata of their fields says, but schemas are made of both.
        described = pa.schema([(NAME, kind)]).serialize().to_pybytes()
        if described not in self._writers:
            text, record = self._derived(kind)
            registration = self._registration
            subject = registration.subject(self._topic, record)
            schema = registration.latest_of(self._registry, subject)
            if schema is None:
                number = registration.id_of(self._registry, subject, self.format, text)
                schema = Schema(self.format, text, id=number)
            elif registration.strict and (wrong := [*self._incompatible(schema, text)]):
                raise ValueError(
                    f"schema {schema.id}, the latest, does not read what is written: "
                    f"{'; '.join(wrong)}. Set {STRICT}=false to try each record"
                )
            if len(self._writers) >= _MOST_WRITERS:
                self._writers.clear()
            self._writers[described] = schema.id, self._writer(schema)
        return self._writers[described]

    def decode(self, values: pa.Array, expected: pa.Schema | None = None) -> Decoded:
        """See :meth:`Converter.decode`.

        Raises:
            Unavailable: the registry cannot be reached.
            ServiceError: it refuses the login.
        """
        unsplit, others = unframed(values)
        groups = [part for group in unsplit for part in self._split(group)]
        failures = [self._foreign(row, values[row].as_py()) for row in others.tolist()]
        parts = []
        for group in groups:
            reader = self._reader_of(group.schema_id)
            if isinstance(reader, str):
                failures += [Failure(row, _SERIALIZATION, reader) for row in group.rows.tolist()]
                continue
            for part, contents in _read(reader, group):
                rows = part.rows if contents.rows is None else part.rows[np.asarray(contents.rows)]
                if len(rows):
                    parts.append(Part(pa.array(rows), contents.values, contents.facts))
                failures += [
                    Failure(int(part.rows[n]), DATA_EXCEPTION, f"schema {part.schema_id}: {why}")
                    for n, why in (contents.refused or {}).items()
                ]
        block, more = together(parts, len(values), self._last)
        self._last = block.type
        failures = sorted([*failures, *more], key=lambda f: f.index)
        labels = apart(parts, len(values), by_name=self._by_name, by_fields=self._by_fields)
        return Decoded(block, failures, labels, facts=parts[0].facts if parts else {})

    def _reader_of(self, schema_id: int) -> Reader | str:
        """The reader of a schema, or why there is none."""
        reader = self._readers.get(schema_id)
        if schema_id > GREATEST_ID:  # registries do not take it for an id
            return f"there is no schema id {schema_id}: {GREATEST_ID} is the greatest"
        if reader is None:
            try:
                reader = self._usable_reader(self._registry.schema(schema_id))
            except UnknownSchema as error:  # not remembered: it may be registered later
                return f"schema id {schema_id} is unknown to {self._registry.url}: {error}"
            if len(self._readers) >= _MOST_READERS:
                del self._readers[next(iter(self._readers))]
            self._readers[schema_id] = reader
        return reader

    def _usable_reader(self, schema: Schema) -> Reader | str:
        if schema.type != self.format:
            return (
                f"schema {schema.id} is of type {schema.type}, not {self.format}: set "
                f"{self._where} to the converter of {schema.type}"
            )
        try:
            return self._reader(schema)
        except SemelError:
            raise
        except ValueError as error:
            return f"schema {schema.id}: {error}"
        except _MACHINES as error:
            raise _unable(f"use schema {schema.id}", error) from None
        except Exception as error:  # whatever a foreign text breaks
            return f"schema {schema.id} cannot be used: {type(error).__name__}: {error}"

    def _foreign(self, row: int, value: bytes) -> Failure:
        if len(value) > 0 and value[0] == 0:
            why = f"{len(value)} bytes are too few for Schema Registry framing"
        else:
            begin = f"byte 0x{value[0]:02x}" if value else "nothing"
            why = (
                f"no Schema Registry framing: it begins with {begin}, not with a zero byte. If it "
                f"is JSON or text, set {self._where} to JsonConverter or StringConverter"
            )
        return Failure(row, _SERIALIZATION, why)


def _unable(task: str, error: BaseException) -> Unavailable:
    return Unavailable(f"this machine cannot {task}: {type(error).__name__}: {error}")


def _read(reader: Reader, group: FramedMessages) -> Iterator[tuple[FramedMessages, Contents]]:
    """What a group holds. If it cannot be read as a whole, it is halved, and so on: only a message
    that cannot be read alone is refused."""
    try:
        yield group, reader(group)
    except SemelError:
        raise
    except Exception as error:  # whatever foreign bytes break
        half = len(group.rows) // 2
        if not half:
            if isinstance(error, _MACHINES):
                raise _unable(f"read a record of schema {group.schema_id}", error) from None
            why = str(error).partition("\n")[0] if isinstance(error, ValueError) else ""
            why = why or f"it cannot be read: {type(error).__name__}: {error}"
            yield group, Contents(pa.nulls(0), pa.array([], pa.int64()), {0: why})
            return
        order = np.arange(len(group.rows))
        yield from _read(reader, group.only(order[:half]))
        yield from _read(reader, group.only(order[half:]))


def contents_of(
    group: FramedMessages, in_columns: InColumns | None, one_by_one: OneByOne
) -> Contents:
    """Values in columns, if the schema allows that; unsure ones are read one by one."""
    if in_columns is None:
        values, good, refused = one_by_one(group.contents())
        return Contents(values, pa.array(good, pa.int64()), refused)
    try:
        values, unsure = in_columns(Content(group.data), group.starts, group.ends)
    except pa.ArrowInvalid:  # a text that does not hold what its type says
        unsure = np.arange(len(group.rows))
    if not len(unsure):
        return Contents(values)
    alone, good, why = one_by_one(group.only(unsure).contents())
    refused = {int(unsure[row]): reason for row, reason in why.items()}
    at = unsure[np.array(good, np.int64)]
    if len(unsure) == len(group.rows):
        return Contents(alone, pa.array(at), refused)
    sure = np.delete(np.arange(len(group.rows)), unsure)
    both = pa.concat_arrays([values.take(pa.array(sure)), alone])
    where = np.concatenate([sure, at])
    order = np.argsort(where)
    return Contents(both.take(pa.array(order)), pa.array(where[order]), refused)
