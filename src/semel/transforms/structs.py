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
from semel.converters.json.infer import of_one_kind
from semel.converters.json.plain import PlainReader
from semel.converters.json.text import place
from semel.converters.json.write import Writer
from semel.converters.semantic import schema_in
from semel.core.quoting import named
from semel.core.records import DATA_EXCEPTION, Facts, absence, members
from semel.transforms.base import Contents, Refused, flags, reasons, refuse, valid

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
            place = np.arange(len(lacks)) + np.where(flags(lacks), len(lacks), 0)
            array = pa.concat_arrays([self.array, other.array]).take(pa.array(place))
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
    fields = {f.name: Column(f, *values) for f, *values in members(array)}
    if defaults:
        there = array.is_valid()
        fields = {name: _without_nulls(child, there) for name, child in fields.items()}
    return fields


def _without_nulls(child: Column, there: pa.Array) -> Column:
    default = default_of(child.field) if child.array.null_count else None
    if default is None:
        return child
    absent = pc.and_(there, child.array.is_null())
    if child.type == JSON:
        filled = pc.if_else(absent, default.value, child.array.storage)
        return child.holding(pa.ExtensionArray.from_storage(JSON, filled))
    return child.holding(pc.if_else(absent, default, child.array))


def struct(fields: Mapping[str, Column], like: pa.Array) -> pa.Array:
    """A struct array of these fields, null where ``like`` is."""
    if not fields:
        empty = pa.array([{}] * len(like), pa.struct([]))
        return pc.if_else(like.is_valid(), empty, None) if like.null_count else empty
    mask = like.is_null() if like.null_count else None
    arrow_fields = [c.field.with_name(name) for name, c in fields.items()]
    arrays = [c.array for c in fields.values()]
    lacking = {absence(n): c.absent for n, c in fields.items() if c.absent is not None}
    arrow_fields += [pa.field(name, pa.bool_()) for name in lacking]
    return pa.StructArray.from_arrays([*arrays, *lacking.values()], fields=arrow_fields, mask=mask)


def of_one_type(array: pa.Array, names: Sequence[str]) -> list[tuple[np.ndarray, pa.Array]]:
    """Structs of plain JSON in parts in which these fields have values of one type each, with their
    rows."""
    parts = [(np.arange(len(array)), array)]
    for name in names if pa.types.is_struct(array.type) else ():
        parts = [(rows[at], part) for rows, whole in parts for at, part in _of_types(whole, name)]
    return parts


def _of_types(array: pa.Array, name: str) -> list[tuple[np.ndarray, pa.Array]]:
    """The parts for one field."""
    child = columns(array).get(name)
    if child is None or child.type != JSON or schema_in(child.field):
        return [(np.arange(len(array)), array)]
    kinds = of_one_kind(child.array.storage)
    nulls = pc.indices_nonzero(child.array.is_null())
    parts = []
    for unsorted, values in [*kinds, (nulls, pa.nulls(len(nulls)))]:
        order = pc.sort_indices(unsorted)
        rows, typed = unsorted.take(order), values.take(order)
        part = array.take(rows)
        fields = columns(part)
        fields[name] = Column(pa.field(name, typed.type), typed, fields[name].absent)
        parts.append((rows.to_numpy(), struct(fields, part)))
    return [part for part in parts if len(part[0])]


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
        refused = reasons(np.flatnonzero(there), _not_a_struct(contents.has_schema, purpose, kind))
        if not nulls:
            refused |= reasons(np.flatnonzero(~there), _not_a_struct(False, purpose, "null"))
        if refused:
            raise Refused(refused)
        return pa.nulls(len(array), pa.struct([]))
    if not nulls and array.null_count:
        refuse(~valid(array), _not_a_struct(False, purpose, "null"))
    return array


def _not_a_struct(has_schema: bool, purpose: str, kind: str) -> str:
    if has_schema:
        return f"Only Struct objects supported for [{purpose}], found: {kind}"
    return f"Only Map objects supported in absence of schema for [{purpose}], found: {kind}"


def connect_type(child: Column, *, has_schema: bool) -> str | None:
    """Kafka Connect's name for the type of a nested field; None for other fields."""
    if child.type == JSON:
        schema = schema_in(child.field)
        if schema.get("type") in ("struct", "array", "map"):
            return str(schema["type"]).upper()
        if schema:
            return None  # text that holds JSON
        text = pc.ascii_ltrim_whitespace(child.array.storage.drop_null()[:1])
        return "ARRAY" if pc.any(pc.starts_with(text, "[")).as_py() else "MAP"
    if pa.types.is_list(child.type):
        return "ARRAY"
    if pa.types.is_struct(child.type):
        return "STRUCT" if has_schema else "MAP"
    return "MAP" if pa.types.is_map(child.type) else None


def refuse_all(array: pa.Array, message: str, exception: str = DATA_EXCEPTION) -> None:
    """Refuse every record that is not null, if there are any.

    Raises:
        Refused: names them.
    """
    refuse(valid(array), message, exception)


def refuse_duplicate(name: str, fields: Columns, contents: Contents, array: pa.Array) -> None:
    """Refuse two fields of one name in a schema; in a map the later one replaces the other."""
    if contents.has_schema and name in fields:
        message = f"Cannot create field because of field name duplication {named(name)}"
        refuse_all(array, message, SCHEMA_BUILDER)


class Opener:
    """Makes structs of the objects that converters keep as JSON text, and finds what is in them. It
    remembers their fields. With ``keeps_numbers``, whole numbers stay whole beside fractions."""

    def __init__(self, *, keeps_numbers: bool = False) -> None:
        self._keeps_numbers = keeps_numbers
        self._typed = PayloadReaders()
        self._plain: dict[str, PlainReader] = {}

    def opened(self, child: Column, where: str) -> Column | None:
        """The objects of a field as structs, null where it holds none; None if it never does.

        ``where`` is the place of the field in the records.
        """
        if pa.types.is_struct(child.type):
            return child
        if child.type != JSON:
            return None
        text = child.array.storage
        metadata = child.field.metadata or {}
        if CONNECT in metadata and connect_type(child, has_schema=True) != "STRUCT":
            return None
        objects = pc.starts_with(pc.ascii_ltrim_whitespace(text), "{")
        rows = pc.indices_nonzero(pc.fill_null(objects, False))
        if CONNECT not in metadata and not len(rows):
            return None
        array = place(self._read(text.take(rows), metadata, where), rows, len(text))
        opened = column(child.field.name, array, facts=facts_in(child.field))
        return replace(opened, absent=child.absent)

    def structs(self, child: Column, where: str) -> pa.Array:
        """The objects of a field as structs, null where it holds none."""
        opened = self.opened(child, where)
        return pa.nulls(len(child.array), pa.struct([])) if opened is None else opened.array

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

    def _read(self, text: pa.Array, metadata: Mapping[bytes, bytes], where: str) -> pa.Array:
        if CONNECT in metadata:
            return self._typed[metadata[CONNECT]].read(text)[0]
        if where in self._plain:
            block, failures = self._plain[where].read(text, None)
            if not failures:
                return block
        # Types are inferred anew for values that do not fit those of earlier ones.
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
