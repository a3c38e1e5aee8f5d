"""JSON that carries its schema, ``{"schema": ..., "payload": ...}``: ``schemas.enable=true``."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from json import JSONDecodeError
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.converters.base import Failure
from semel.converters.json.connect_schema import translate
from semel.converters.json.merge import Part, apart, together
from semel.converters.json.read import NAME, ObjectReader, ScalarReader
from semel.converters.json.text import (
    WHITESPACE,
    kind,
    members,
    moved,
    place,
    shown,
    sort,
    spans,
    syntax_error,
)
from semel.core.records import DATA_EXCEPTION

NO_ENVELOPE = (
    'JsonConverter with schemas.enable requires "schema" and "payload" fields and may not contain '
    "additional fields. For plain JSON set value.converter.schemas.enable=false "
    "(key.converter.schemas.enable for keys)."
)
NO_SCHEMA = (
    'the envelope has no schema ("schema": null). For JSON without schemas set '
    "value.converter.schemas.enable=false (key.converter.schemas.enable for keys)."
)
SCHEMA, PAYLOAD = "schema", "payload"
MOST_PREFIXES = 32
MOST_SCHEMAS = 1000


_NO_SCHEMA = (ValueError, TypeError, KeyError, AttributeError, ArithmeticError)
"""What a text that is no schema of Kafka Connect's may lead to."""


class PayloadReader:
    """Reads the payloads of one schema. ``facts`` is what the schema says of itself."""

    def __init__(self, schema: str, *, defaults: bool = True) -> None:
        translated = translate(schema, NAME, defaults=defaults)
        self.facts = translated.facts
        self._required = self.facts.get("optional") is not True and "default" not in self.facts
        self._kind = str(json.loads(schema)["type"])
        self._objects = None if translated.fields is None else ObjectReader(translated.fields)
        self._scalars = ScalarReader(translated.value) if translated.value else None
        reader = self._objects or self._scalars
        assert reader is not None
        self.type = reader.type

    def read(self, text: pa.Array) -> tuple[pa.Array, list[Failure]]:
        """Read a string array without nulls; a payload ``null`` is null, or a failure if the schema
        is required."""
        block, failures = self._read(text)
        if self._required and block.null_count:
            absent = pc.and_(block.is_null(), pc.equal(pc.utf8_trim(text, WHITESPACE), "null"))
            why = f"the payload is null, but its schema is a required {self._kind}"
            rows = pc.indices_nonzero(absent).to_pylist()
            failures = [*failures, *(Failure(row, DATA_EXCEPTION, why) for row in rows)]
        return block, failures

    def _read(self, text: pa.Array) -> tuple[pa.Array, list[Failure]]:
        if self._scalars is not None:
            return self._scalars.read(text)
        assert self._objects is not None
        values = sort(text)
        block, failures = self._objects.read(values.objects)
        failures = moved(failures, values.object_rows)
        for row, value in values.others:
            if value == "null":
                continue
            reason = syntax_error(value) or f"payload {shown(value)} is {kind(value)}, not a struct"
            failures.append(Failure(row, DATA_EXCEPTION, reason))
        return place(block, values.object_rows, len(text)), failures


def _begin_with(text: pa.Array, prefix: str) -> pa.Array:
    return pc.and_(pc.starts_with(text, prefix), pc.ends_with(text, "}"))


def _between(text: pa.Array, prefix: str) -> pa.Array:
    """The text between the prefix and the closing brace of each value."""
    inner = pc.binary_slice(text.cast(pa.binary()), len(prefix.encode()), -1)
    return inner.cast(pa.string())


class PayloadReaders(dict[bytes, PayloadReader]):
    """Readers of payloads by their schemas, each made when it is first needed."""

    def __missing__(self, schema: bytes) -> PayloadReader:
        reader = self[schema] = PayloadReader(schema.decode())
        return reader


class EnvelopeReader:
    """Reads enveloped values.

    A producer writes the same schema again and again, so values are grouped by the text before
    their payload, and only a new text is parsed as JSON.

    Args:
        defaults: a null stands for the default, if there is one.
    """

    def __init__(self, *, defaults: bool = True) -> None:
        self._defaults = defaults
        self._by_schema: dict[str, PayloadReader | str] = {}
        self._by_prefix: dict[str, PayloadReader] = {}
        self._last: pa.DataType = pa.null()
        self.apart: np.ndarray | None = None
        """What :attr:`~semel.converters.base.Decoded.apart` is for the values that were read
        last."""
        self.facts: Mapping[str, Any] = {}
        """What the schemas of the values that were read last say of themselves."""
        self.by_name = False
        """Whether values whose schemas differ in name or version are to be taken apart."""
        self.by_fields = False
        """The same for those whose schemas have other fields."""

    def read(self, text: pa.Array) -> tuple[pa.Array, list[Failure]]:
        """Read a string array; null where null or failed."""
        self.apart, self.facts = None, {}
        present = text.drop_null() if text.null_count else text
        block = self._read_alike(present)
        if block is not None:
            rows = pc.indices_nonzero(text.is_valid()) if text.null_count else None
            return place(block, rows, len(text)), []
        values = sort(text)
        failures = [
            Failure(row, DATA_EXCEPTION, syntax_error(value) or NO_ENVELOPE)
            for row, value in values.others
        ]
        block, more = self._read_objects(values.objects)
        failures += moved(more, values.object_rows)
        if self.apart is not None and values.object_rows is not None:
            labels = np.zeros(len(text), np.int64)
            labels[values.object_rows.to_numpy()] = self.apart
            self.apart = labels
        return place(block, values.object_rows, len(text)), failures

    def payloads(self, text: pa.Array) -> pa.Array:
        """The text of each payload, null where the value is null. Only for values that
        :meth:`read` has just found good."""
        values = sort(text)
        rest, payloads = values.objects, pa.nulls(len(values.objects), pa.string())
        for prefix in self._by_prefix:
            if not payloads.null_count and len(payloads):
                break
            alike = _begin_with(rest, prefix)
            if pc.any(alike).as_py():
                matching = pc.if_else(alike, rest, pa.scalar(None, rest.type))
                payloads = pc.coalesce(payloads, _between(matching, prefix))
        odd = payloads.is_null()
        if pc.any(odd).as_py():
            odd_payloads = [members(value)[0][PAYLOAD] for value in rest.filter(odd).to_pylist()]
            payloads = pc.replace_with_mask(payloads, odd, pa.array(odd_payloads, pa.string()))
        payloads = pc.ascii_rtrim(payloads, characters=WHITESPACE)
        return place(payloads, values.object_rows, len(text))

    def _read_alike(self, text: pa.Array) -> pa.Array | None:
        """Read values that all spell one schema the same way; None if any does not, or is bad."""
        if not len(text):
            return None
        prefix = self._prefix(text[0].as_py())
        if prefix is None or not pc.all(_begin_with(text, prefix)).as_py():
            return None
        block, failures = self._read_payloads(text, prefix)
        if failures:
            return None
        self._last, self.facts = block.type, self._by_prefix[prefix].facts
        return block

    def _read_payloads(self, text: pa.Array, prefix: str) -> tuple[pa.Array, list[Failure]]:
        """Read the payload between the prefix and the closing brace of the envelope."""
        return self._by_prefix[prefix].read(_between(text, prefix))

    def _read_objects(self, text: pa.Array) -> tuple[pa.Array, list[Failure]]:
        """Peel off the values that begin as the first one does, until none is left."""
        parts: list[Part] = []
        odd: list[int] = []
        rest, rows = text, pc.indices_nonzero(pc.is_valid(text))
        while len(rest):
            prefix = None if len(parts) >= MOST_PREFIXES else self._prefix(rest[0].as_py())
            if prefix is None and len(odd) >= MOST_PREFIXES:
                odd += rows.to_pylist()
                break
            if prefix is None:
                odd.append(rows[0].as_py())
                rest, rows = rest[1:], rows[1:]
                continue
            same = pc.starts_with(rest, prefix)
            all_same = pc.all(same).as_py()
            group, group_rows = (rest, rows) if all_same else (rest.filter(same), rows.filter(same))
            block, failed = self._read_payloads(group, prefix)
            if failed:
                bad = {f.index for f in failed}
                odd += [group_rows[i].as_py() for i in bad]
                good = pa.array([i for i in range(len(block)) if i not in bad], pa.int64())
                block, group_rows = block.take(good), group_rows.take(good)
            parts.append(Part(group_rows, block, self._by_prefix[prefix].facts))
            if all_same:
                break
            different = pc.invert(same)
            rest, rows = rest.filter(different), rows.filter(different)
        failures: list[Failure] = []
        if odd:
            odd_parts, failures = self._read_one_by_one(text, odd)
            parts += odd_parts
        block, conflicts = together(parts, len(text), self._last)
        self._last = block.type
        self.apart = apart(parts, len(text), by_name=self.by_name, by_fields=self.by_fields)
        self.facts = parts[0].facts if parts else {}
        unread = {failure.index for failure in failures}
        return block, [*failures, *(c for c in conflicts if c.index not in unread)]

    def _prefix(self, value: str) -> str | None:
        """The text before the payload, if the schema comes first and can be read."""
        for prefix in self._by_prefix:
            if value.startswith(prefix):
                return prefix
        try:
            fields = spans(value)
        except (JSONDecodeError, RecursionError):
            return None
        if [name for name, _, _ in fields] != [SCHEMA, PAYLOAD]:
            return None
        reader = self._reader(value[slice(*fields[0][1:])])
        if isinstance(reader, str):
            return None
        prefix = value[: fields[1][1]]
        if len(self._by_prefix) >= MOST_PREFIXES:
            self._by_prefix.clear()
        self._by_prefix[prefix] = reader
        return prefix

    def _reader(self, schema: str) -> PayloadReader | str:
        """The reader for a schema, or why there is none."""
        reader = self._by_schema.get(schema)
        if reader is None:
            if len(self._by_schema) >= MOST_SCHEMAS:
                self._by_schema.clear()
            try:
                reader = PayloadReader(schema, defaults=self._defaults)
            except _NO_SCHEMA as error:
                reader = f"not a Kafka Connect schema: {error}"
            self._by_schema[schema] = reader
        return reader

    def _read_one_by_one(
        self, text: pa.Array, rows: Sequence[int]
    ) -> tuple[list[Part], list[Failure]]:
        """Any spelling of the envelope; payloads of the same schema are read together."""
        failures: dict[int, str] = {}
        groups: dict[str, list[tuple[int, str]]] = defaultdict(list)
        for row in sorted(rows):
            value = text[row].as_py()
            try:
                fields, _ = members(value)
            except (JSONDecodeError, RecursionError):
                failures[row] = f"{syntax_error(value)}"
                continue
            if fields.keys() != {SCHEMA, PAYLOAD}:
                failures[row] = NO_ENVELOPE
            elif fields[SCHEMA] != "null":
                groups[fields[SCHEMA]].append((row, fields[PAYLOAD]))
            elif fields[PAYLOAD] != "null":
                failures[row] = NO_SCHEMA
        parts = []
        for schema, group in groups.items():
            group_rows = [row for row, _ in group]
            reader = self._reader(schema)
            if isinstance(reader, str):
                failures |= dict.fromkeys(group_rows, reader)
                continue
            block, failed = reader.read(pa.array([payload for _, payload in group], pa.string()))
            failures |= {group_rows[f.index]: f.message for f in failed}
            parts.append(Part(pa.array(group_rows, pa.uint64()), block, reader.facts))
        return parts, [Failure(row, DATA_EXCEPTION, why) for row, why in failures.items()]
