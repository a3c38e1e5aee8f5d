"""Structs by their fields, and the names that Java has for types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.converters.json.columns import CONNECT, JSON
from semel.converters.json.envelope import PayloadReaders
from semel.converters.json.facts import default_of, described, facts_in
from semel.converters.json.plain import PlainReader
from semel.converters.json.text import place
from semel.converters.json.write import Writer
from semel.converters.semantic import schema_in
from semel.core.quoting import named
from semel.core.records import DATA_EXCEPTION, Facts, absence, members
from semel.transforms.base import Contents, Refused, reasons, refuse, valid

SCHEMA_BUILDER = "org.apache.kafka.connect.errors.SchemaBuilderException"


@dataclass(frozen=True, slots=True)
class Column:
    """A field of a struct and its values, which are null where the struct is. ``absent`` says which
    structs lack the field; None if none does."""

    field: pa.Field
    array: pa.Array
    absent: pa.Array | None = None

    @property
    def type(self) -> pa.DataType:
        return self.array.type

    def named(self, name: str) -> Column:
        return replace(self, field=self.field.with_name(name).with_type(self.array.type))

    def holding(self, array: pa.Array) -> Column:
        """The field with these values; structs that lack it still do."""
        return replace(self, array=array)

    def over(self, other: Column | None) -> Column:
        """The field in a map that may hold another value of the same name: that one stays where
        there is none to replace it."""
        if other is None or self.absent is None:
            return self
        lacks = pc.fill_null(self.absent, False)
        if self.type == other.type != JSON:
            array = pc.if_else(lacks, other.array, self.array)
        else:
            texts = pc.if_else(lacks, *(_WRITER.texts(c.array) for c in (other, self)))
            array = pa.ExtensionArray.from_storage(JSON, texts)
        absent = other.absent and pc.and_(lacks, pc.fill_null(other.absent, False))
        return Column(pa.field(self.field.name, array.type), array, absent)

    def lacked(self, rows: pa.Array) -> Column:
        """The field, which these structs lack, too."""
        if self.absent is not None:
            rows = pc.or_(rows, pc.fill_null(self.absent, False))
        return replace(self, absent=rows)

    def everywhere(self) -> Column:
        """The field in all structs, null in those that lack it."""
        return replace(self, absent=None)


Columns = dict[str, Column]
_WRITER = Writer(embedded=True, numeric=True)


def column(
    name: str, array: pa.Array, *, nullable: bool = True, facts: Facts | None = None
) -> Column:
    """A column of a new field; ``facts`` is what its schema says of itself."""
    return Column(described(pa.field(name, array.type, nullable), facts or {}), array)


def columns(array: pa.Array, *, defaults: bool = False) -> Columns:
    """The fields of a struct array, in their order; ``defaults`` replace the nulls in fields that
    declare one."""
    found = {f.name: Column(f, *held) for f, *held in members(array)}
    if defaults:
        there = array.is_valid()
        found = {name: _without_nulls(each, there) for name, each in found.items()}
    return found


def _without_nulls(found: Column, there: pa.Array) -> Column:
    default = default_of(found.field) if found.array.null_count else None
    if default is None:
        return found
    absent = pc.and_(there, found.array.is_null())
    if found.type == JSON:
        filled = pc.if_else(absent, default.value, found.array.storage)
        return found.holding(pa.ExtensionArray.from_storage(JSON, filled))
    return found.holding(pc.if_else(absent, default, found.array))


def struct(found: Mapping[str, Column], like: pa.Array) -> pa.Array:
    """A struct array of these fields, null where ``like`` is."""
    if not found:
        empty = pa.array([{}] * len(like), pa.struct([]))
        return pc.if_else(like.is_valid(), empty, None) if like.null_count else empty
    mask = like.is_null() if like.null_count else None
    fields = [c.field.with_name(name) for name, c in found.items()]
    arrays = [c.array for c in found.values()]
    lacking = {absence(n): c.absent for n, c in found.items() if c.absent is not None}
    fields += [pa.field(name, pa.bool_()) for name in lacking]
    return pa.StructArray.from_arrays([*arrays, *lacking.values()], fields=fields, mask=mask)


def required(contents: Contents, purpose: str, *, nulls: bool) -> pa.Array:
    """The structs of keys or values.

    Args:
        contents: keys or values.
        purpose: what they are needed for, in the words of Kafka Connect's transform.
        nulls: whether a null is skipped instead of refused.

    Raises:
        Refused: names the records that are not structs.
    """
    array = contents.array
    if pa.types.is_null(array.type):
        array = pa.nulls(len(array), pa.struct([]))
    if not pa.types.is_struct(array.type):
        there = valid(array)
        kind = java_class(array.type, has_schema=contents.has_schema)
        found = reasons(np.flatnonzero(there), _not_a_struct(contents.has_schema, purpose, kind))
        if not nulls:
            found |= reasons(np.flatnonzero(~there), _not_a_struct(False, purpose, "null"))
        if found:
            raise Refused(found)
        return pa.nulls(len(array), pa.struct([]))
    if not nulls and array.null_count:
        refuse(~valid(array), _not_a_struct(False, purpose, "null"))
    return array


def _not_a_struct(has_schema: bool, purpose: str, kind: str) -> str:
    if has_schema:
        return f"Only Struct objects supported for [{purpose}], found: {kind}"
    return f"Only Map objects supported in absence of schema for [{purpose}], found: {kind}"


def connect_type(found: Column, *, has_schema: bool) -> str | None:
    """Kafka Connect's name for the type of a nested field; None for other fields."""
    if found.type == JSON:
        known = schema_in(found.field)
        if known.get("type") in ("struct", "array", "map"):
            return str(known["type"]).upper()
        if known:
            return None  # text that holds JSON
        text = pc.ascii_ltrim_whitespace(found.array.storage.drop_null()[:1])
        return "ARRAY" if pc.any(pc.starts_with(text, "[")).as_py() else "MAP"
    if pa.types.is_list(found.type):
        return "ARRAY"
    if pa.types.is_struct(found.type):
        return "STRUCT" if has_schema else "MAP"
    return "MAP" if pa.types.is_map(found.type) else None


def refuse_all(array: pa.Array, message: str, exception: str = DATA_EXCEPTION) -> None:
    """Refuse every record that is not null, if there are any.

    Raises:
        Refused: names them.
    """
    refuse(valid(array), message, exception)


def refuse_duplicate(name: str, found: Columns, contents: Contents, array: pa.Array) -> None:
    """Refuse two fields of one name in a schema; in a map the later one replaces the other."""
    if contents.has_schema and name in found:
        message = f"Cannot create field because of field name duplication {named(name)}"
        refuse_all(array, message, SCHEMA_BUILDER)


class Opener:
    """Makes structs of the objects that converters keep as JSON text, and finds what is in them. It
    remembers their fields. With ``keeps_numbers``, whole numbers stay whole beside fractions."""

    def __init__(self, *, keeps_numbers: bool = False) -> None:
        self._keeps_numbers = keeps_numbers
        self._typed = PayloadReaders()
        self._plain: dict[str, PlainReader] = {}

    def opened(self, found: Column, where: str) -> Column | None:
        """The objects of a field as structs, null where it holds none; None if it never does.

        ``where`` is the place of the field in the records.
        """
        if pa.types.is_struct(found.type):
            return found
        if found.type != JSON:
            return None
        text = found.array.storage
        known = found.field.metadata or {}
        if CONNECT in known and connect_type(found, has_schema=True) != "STRUCT":
            return None
        objects = pc.starts_with(pc.ascii_ltrim_whitespace(text), "{")
        rows = pc.indices_nonzero(pc.fill_null(objects, False))
        if CONNECT not in known and not len(rows):
            return None
        array = place(self._read(text.take(rows), known, where), rows, len(text))
        made = column(found.field.name, array, facts=facts_in(found.field))
        return replace(made, absent=found.absent)

    def structs(self, found: Column, where: str) -> pa.Array:
        """The objects of a field as structs, null where it holds none."""
        opened = self.opened(found, where)
        return pa.nulls(len(found.array), pa.struct([])) if opened is None else opened.array

    def field(
        self, array: pa.Array, path: Sequence[str], *, defaults: bool = False
    ) -> Column | None:
        """The field at a path in structs; None if there is none."""
        *before, last = path
        for number, step in enumerate(before, start=1):
            inside = columns(array).get(step)
            opened = inside and self.opened(inside, ".".join(path[:number]))
            if not opened:
                return None
            array = opened.array
        return columns(array, defaults=defaults).get(last)

    def _read(self, text: pa.Array, known: Mapping[bytes, bytes], where: str) -> pa.Array:
        if CONNECT in known:
            return self._typed[known[CONNECT]].read(text)[0]
        if where in self._plain:
            found, failures = self._plain[where].read(text, None)
            if not failures:
                return found
        # Types are found anew for values that do not fit those of earlier ones.
        self._plain[where] = reader = PlainReader(None, evolve=True, dates=False)
        reader.tells_absence, reader.keeps_numbers = True, self._keeps_numbers
        return reader.read(text, None)[0]


_JAVA = {
    pa.int8(): "java.lang.Byte",
    pa.int16(): "java.lang.Short",
    pa.int32(): "java.lang.Integer",
    pa.int64(): "java.lang.Long",
    pa.float32(): "java.lang.Float",
    pa.float64(): "java.lang.Double",
    pa.bool_(): "java.lang.Boolean",
    pa.string(): "java.lang.String",
    pa.large_string(): "java.lang.String",
    pa.binary(): "[B",
}


def java_class(kind: pa.DataType, *, has_schema: bool) -> str:
    """The Java class that Kafka Connect uses for a value."""
    if kind in _JAVA:
        return _JAVA[kind]
    if pa.types.is_temporal(kind):
        return "java.util.Date"
    if pa.types.is_decimal(kind):
        return "java.math.BigDecimal"
    if pa.types.is_list(kind):
        return "java.util.ArrayList"
    if pa.types.is_struct(kind) and has_schema:
        return "org.apache.kafka.connect.data.Struct"
    return "java.util.HashMap"
