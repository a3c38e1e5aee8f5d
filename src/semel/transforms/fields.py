"""Kafka Connect's transforms of fields: ExtractField, Flatten, HoistField, InsertField, MaskField,
ReplaceField, SetSchemaMetadata and ValueToKey; and what they share, such as paths (KIP-821)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.config import Type, key
from semel.converters.json.columns import JSON
from semel.converters.json.facts import described, facts_as_whole, facts_in
from semel.converters.json.infer import of_one_kind
from semel.converters.json.text import place
from semel.converters.json.write import Writer
from semel.converters.semantic import counts
from semel.core.errors import misconfigured
from semel.core.quoting import named
from semel.core.records import TIMESTAMP_TYPE
from semel.transforms.base import (
    ILLEGAL_ARGUMENT,
    Batch,
    Contents,
    ContentsTransform,
    Refused,
    Transform,
    reasons,
)
from semel.transforms.structs import (
    Column,
    Columns,
    Opener,
    column,
    columns,
    connect_type,
    java_class,
    refuse_all,
    refuse_duplicate,
    required,
    struct,
)

_WRITER = Writer(embedded=True, numeric=True)
_MOST_DIGITS = 38
"""Those of Arrow's usual decimals."""


@dataclass(frozen=True)
class Defaults:
    """What becomes of the null fields that a converter has left (KIP-1040)."""

    replace_nulls: bool = key(
        "replace.null.with.default",
        True,
        "Whether a null field takes the default of its schema, if there is one.",
    )


@dataclass(frozen=True)
class FieldSyntax:
    """How fields are named."""

    syntax: str = key(
        "field.syntax.version",
        "v1",
        "V1: names of fields at the top. V2: paths such as a.b, with backticks around names that "
        "contain dots.",
        choices=("v1", "v2"),
    )

    def path(self, text: str) -> tuple[str, ...]:
        """The steps to a field."""
        return (text,) if self.syntax.lower() == "v1" else steps(text)


def steps(path: str) -> tuple[str, ...]:
    """The names in a path of version 2.

    Raises:
        ConfigError: a backtick is not closed.
    """
    names: list[str] = []
    at = 0
    while at < len(path):
        if path[at] == "`":
            name, at = _quoted(path, at)
        else:
            dot = path.find(".", at)
            end = len(path) if dot < 0 else dot
            name, at = path[at:end], end + 1
        names.append(name)
    if path.endswith("."):
        names.append("")
    return tuple(names)


def _quoted(path: str, begin: int) -> tuple[str, int]:
    """The name between backticks that begins here, and where the next one begins."""
    name, start, at = "", begin + 1, begin + 1
    while True:
        at = path.find("`", at)
        if at < 0 or (at >= len(path) - 1 and path[at - 1] == "\\"):
            raise misconfigured(
                "field",
                f"Incomplete backtick pair in path: [{path}], consider adding a backslash before "
                f"backtick at position {begin} to escape it",
            )
        if at >= len(path) - 1:
            return name + path[start:at], at + 1
        if path[at + 1] != ".":
            at += 1
        elif path[at - 1] == "\\":
            name += path[start : at - 1] + "`"
            at += 1
            start = at
        else:
            return name + path[start:at], at + 2


@dataclass(frozen=True)
class ExtractFieldConfig(Defaults, FieldSyntax):
    """The keys of ExtractField."""

    field: str = key("field", doc="The field to extract.")


class ExtractField(ContentsTransform):
    """See Kafka Connect's ExtractField. Without a schema, a missing field is null."""

    section = ExtractFieldConfig
    config: ExtractFieldConfig

    def __init__(self, config: ExtractFieldConfig, *, of_key: bool) -> None:
        super().__init__(config, of_key=of_key)
        self.path = config.path(config.field)
        self._opener = Opener(keeps_numbers=True)

    def changed(self, batch: Batch, contents: Contents) -> Contents:
        array = required(contents, "field extraction", nulls=True)
        name, defaults = self.config.field, self.config.replace_nulls
        child = self._opener.field(array, self.path, defaults=defaults)
        if child is None:
            if contents.has_schema:
                refuse_all(array, f"Unknown field: {named(name)}", ILLEGAL_ARGUMENT)
            return Contents(pa.nulls(len(array)), contents.has_schema)
        opened = self._opener.opened(child, name)
        if opened is not None and opened.array.null_count == child.array.null_count:
            child = opened
        return Contents(child.array, contents.has_schema, facts_as_whole(child.field))


@dataclass(frozen=True)
class FlattenConfig:
    """The keys of Flatten."""

    delimiter: str = key(
        "delimiter", ".", "The separator between the names of two levels.", may_be_empty=True
    )


class Flatten(ContentsTransform):
    """See Kafka Connect's Flatten. Arrays stay as they are."""

    section = FlattenConfig
    config: FlattenConfig
    moves_numbers = True

    def __init__(self, config: FlattenConfig, *, of_key: bool) -> None:
        super().__init__(config, of_key=of_key)
        self._opener = Opener(keeps_numbers=True)

    def changed(self, batch: Batch, contents: Contents) -> Contents:
        array = required(contents, "flattening", nulls=True)
        flat: Columns = {}
        self._flatten(column("", array), "", contents, flat, array, contents.facts.get("default"))
        own = {n: v for n, v in contents.facts.items() if n not in ("optional", "default")}
        return Contents(struct(flat, array), contents.has_schema, own)

    def _flatten(
        self,
        outer: Column,
        before: str,
        contents: Contents,
        flat: Columns,
        top: pa.Array,
        default: Mapping[str, Any] | None,
    ) -> None:
        """``default`` is that of the whole struct. What is not in a map lacks its fields."""
        inside_map = before and not contents.has_schema and outer.array.null_count
        for name, child in columns(outer.array, defaults=True).items():
            inside = child.lacked(outer.array.is_null()) if inside_map else child
            whole = f"{before}{self.config.delimiter}{name}" if before else name
            if contents.has_schema and connect_type(inside, has_schema=True) == "MAP":
                refuse_all(
                    top,
                    "Flatten transformation does not support MAP for record with schemas (for "
                    f"field {named(whole)}).",
                )
            opened = self._opener.opened(inside, whole)
            if opened is None:
                new = _with_default(inside.named(whole), (default or {}).get(name))
                _add(new, whole, contents, flat, top)
                continue
            own = facts_in(inside.field).get("default") or (default or {}).get(name)
            self._flatten(opened, whole, contents, flat, top, own)
            others = inside.lacked(opened.array.is_valid())
            rest = pc.and_not(top.is_valid(), others.absent)
            if contents.has_schema:
                rest = pc.and_(rest, inside.array.is_valid())
            if pc.any(rest).as_py():  # other values than objects
                new = others.holding(_without(inside.array, others.absent)).named(whole)
                _add(new, whole, contents, flat, top)


def _add(new: Column, name: str, contents: Contents, flat: Columns, top: pa.Array) -> None:
    """Add a field whose name another one may have, as ``a_b`` and the ``b`` of ``a`` may."""
    refuse_duplicate(name, flat, contents, top)
    flat[name] = new.over(flat.get(name))


def _without(array: pa.Array, rows: pa.Array) -> pa.Array:
    """What is left of JSON and structs without the objects in some rows."""
    if array.type != JSON or pc.all(pc.or_(rows, array.is_null())).as_py():
        return pa.nulls(len(array))
    return pa.ExtensionArray.from_storage(JSON, pc.if_else(rows, None, array.storage))


def _with_default(child: Column, default: Any) -> Column:
    """A field that takes its default from the struct around it, if it has none of its own."""
    facts = facts_in(child.field)
    if default is None or "default" in facts or child.type == JSON:
        return child
    return replace(child, field=described(child.field, {**facts, "default": default}))


@dataclass(frozen=True)
class HoistFieldConfig:
    """The keys of HoistField."""

    field: str = key("field", doc="The name of the field.")


class HoistField(ContentsTransform):
    """See Kafka Connect's HoistField. A null becomes a field that is null, too."""

    section = HoistFieldConfig
    config: HoistFieldConfig
    moves_numbers = True

    def changed(self, batch: Batch, contents: Contents) -> Contents:
        whole = pa.array(np.zeros(len(contents.array), np.int8))
        facts, array, name = contents.facts, contents.array, self.config.field
        nullable = not contents.has_schema or bool(facts.get("optional") or array.null_count)
        inside = column(name, array, nullable=nullable, facts=facts)
        return Contents(struct({name: inside}, whole), contents.has_schema)


_OPTIONALITY = "A name that ends with ! makes the field required, with ? optional (the default)."


@dataclass(frozen=True)
class InsertFieldConfig(Defaults):
    """The keys of InsertField."""

    topic: str = key("topic.field", "", f"Field for the Kafka topic. {_OPTIONALITY}")
    partition: str = key("partition.field", "", f"Field for the Kafka partition. {_OPTIONALITY}")
    offset: str = key("offset.field", "", f"Field for the Kafka offset. {_OPTIONALITY}")
    timestamp: str = key("timestamp.field", "", f"Field for the timestamp. {_OPTIONALITY}")
    static: str = key("static.field", "", f"Field for a constant. {_OPTIONALITY}")
    value: str | None = key("static.value", None, "The constant.")

    def __post_init__(self) -> None:
        names = (self.topic, self.partition, self.offset, self.timestamp, self.static)
        if not any(names):
            raise misconfigured("topic.field", "No field insertion configured")
        if self.static and self.value is None:
            why = f"No value specified for static field: {self.static}"
            raise misconfigured("static.value", why)


class InsertField(ContentsTransform):
    """See Kafka Connect's InsertField."""

    section = InsertFieldConfig
    config: InsertFieldConfig
    moves_numbers = True

    @property
    def needs_timestamp(self) -> bool:
        return bool(self.config.timestamp)

    def changed(self, batch: Batch, contents: Contents) -> Contents:
        config = self.config
        array = required(contents, "field insertion", nulls=True)
        fields = columns(array, defaults=config.replace_nulls)
        inserted: Sequence[tuple[str, Callable[[], pa.Array]]] = (
            (config.topic, lambda: batch.topics),
            (config.partition, lambda: batch.partitions),
            (config.offset, lambda: self._offsets(batch, array)),
            (config.timestamp, lambda: self._timestamps(batch, contents)),
            (config.static, lambda: pa.repeat(pa.scalar(config.value, pa.string()), len(batch))),
        )
        for spec, values in inserted:
            if spec:
                name = spec[:-1] if spec[-1] in "?!" else spec
                refuse_duplicate(name, fields, contents, array)
                content = values()
                new = column(name, content, nullable=not spec.endswith("!"))
                if contents.has_schema:
                    fields[name] = new
                elif content.null_count < len(content):  # a map gets no null
                    absent = content.is_null() if content.null_count else None
                    fields[name] = replace(new, absent=absent).over(fields.get(name))
        return contents.holding(struct(fields, array))

    def _offsets(self, batch: Batch, array: pa.Array) -> pa.Array:
        if batch.offsets is not None:
            return batch.offsets
        refuse_all(
            array,
            "Only SinkRecord supported for [field insertion], found: "
            "org.apache.kafka.connect.source.SourceRecord",
        )
        return pa.nulls(len(batch), pa.int64())

    def _timestamps(self, batch: Batch, contents: Contents) -> pa.Array:
        stamps = batch.timestamps.cast(TIMESTAMP_TYPE)
        return stamps if contents.has_schema else stamps.cast(pa.int64())


@dataclass(frozen=True)
class MaskFieldConfig(Defaults):
    """The keys of MaskField."""

    fields: tuple[str, ...] = key("fields", doc="The fields to mask.")
    replacement: str | None = key(
        "replacement", None, "The replacement for numbers and text; by default 0 and empty text."
    )

    def __post_init__(self) -> None:
        if self.replacement is not None and not self.replacement:
            raise misconfigured("replacement", "replacement must not be empty")


class MaskField(ContentsTransform):
    """See Kafka Connect's MaskField. It refuses null keys and values."""

    section = MaskFieldConfig
    config: MaskFieldConfig
    moves_numbers = True

    def changed(self, batch: Batch, contents: Contents) -> Contents:
        array = required(contents, "mask fields", nulls=False)
        fields = columns(array, defaults=self.config.replace_nulls)
        for name in self.config.fields:
            if name in fields:
                masked = self._masked(fields[name], contents.has_schema)
                fields[name] = masked if contents.has_schema else masked.everywhere()
            elif not contents.has_schema:
                fields[name] = column(name, pa.nulls(len(array)))
        return contents.holding(struct(fields, array))

    def _masked(self, child: Column, has_schema: bool) -> Column:
        array = child.array
        if array.type == JSON and not has_schema:
            masked = self._masked_json(array)
            return replace(child, array=masked)
        is_struct = connect_type(child, has_schema=has_schema) == "STRUCT"
        masked = None if is_struct else self._filled(array)
        if masked is not None:
            return Column(child.field.with_type(masked.type), masked, child.absent)
        kind = java_class(pa.struct([]) if is_struct else array.type, has_schema=has_schema)
        refuse_all(array, self._unmaskable(kind))
        return child

    def _filled(self, array: pa.Array) -> pa.Array | None:
        text = self.config.replacement
        return _nothing(array) if text is None else _replaced(array, text)

    def _masked_json(self, array: pa.Array) -> pa.Array:
        """Values of several kinds, each masked as its own."""
        places, texts = [], []
        for rows, values in of_one_kind(array.storage):
            masked = self._filled(values)
            if masked is None:
                kind = java_class(values.type, has_schema=False)
                raise Refused(reasons(rows, self._unmaskable(kind)))
            places.append(rows)
            texts.append(_WRITER.texts(masked))
        if not texts:
            return array
        masked = place(pa.concat_arrays(texts), pa.concat_arrays(places), len(array))
        return pa.ExtensionArray.from_storage(JSON, masked)

    def _unmaskable(self, kind: str) -> str:
        custom = self.config.replacement is not None
        what = f" class {kind} with custom replacement." if custom else f": class {kind}"
        return f"Cannot mask value of type{what}"


def _filled(array: pa.Array, value: Any) -> pa.Array:
    """The given value in place of every value that is not null."""
    return pc.if_else(array.is_valid(), pa.scalar(value, array.type), pa.scalar(None, array.type))


def _nothing(array: pa.Array) -> pa.Array | None:
    """The empty value of a type; None if it has none."""
    kind, kinds = array.type, pa.types
    if kinds.is_boolean(kind):
        return _filled(array, False)
    if kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_decimal(kind):
        return _filled(array, 0)
    if kinds.is_string(kind) or kinds.is_large_string(kind):
        return _filled(array, "")
    if kinds.is_temporal(kind):
        return _filled(counts(array), 0).cast(kind)
    if kinds.is_list(kind):
        return _filled(array, [])
    if kinds.is_struct(kind):  # a map
        return struct({}, array)
    if kind == JSON:
        text = array.storage
        first = pc.utf8_slice_codeunits(pc.ascii_ltrim_whitespace(text), 0, 1)
        empty = pc.if_else(pc.equal(first, "["), "[]", pc.if_else(pc.equal(first, "{"), "{}", "0"))
        return pa.ExtensionArray.from_storage(JSON, empty)
    return array if kinds.is_null(kind) else None


def _replaced(array: pa.Array, text: str) -> pa.Array | None:
    """The text, or the number in it; None for values that are neither."""
    kind, kinds = array.type, pa.types
    if kinds.is_null(kind):
        return array
    if kinds.is_string(kind) or kinds.is_large_string(kind):
        return _filled(array, text)
    if not (kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_decimal(kind)):
        return None
    try:
        number = _number(text, kind)
    except (ArithmeticError, ValueError):
        what = "number" if kinds.is_decimal(kind) else "a number"
        refuse_all(array, f"Unable to convert {text} (class java.lang.String) to {what}")
        return array
    return pc.if_else(array.is_valid(), number, pa.scalar(None, number.type))


def _number(text: str, kind: pa.DataType) -> pa.Scalar:
    """A number of a type; of integers, the lowest bits, as in Java.

    Raises:
        ArithmeticError, ValueError: there is none.
    """
    if not re.fullmatch(r"[+-]?[\d.]+(e[+-]?\d+)?", text, re.IGNORECASE):
        raise ValueError("not a number")  # Decimal also takes 1_000, inf and spaces
    number = Decimal(text)
    if pa.types.is_floating(kind):
        return pa.scalar(float(number), kind)
    if pa.types.is_decimal(kind):
        if not -_MOST_DIGITS <= number.adjusted() < _MOST_DIGITS:  # Arrow may crash
            raise ValueError("too many digits")
        scale = max(kind.scale, -int(number.normalize().as_tuple().exponent))
        return pa.scalar(number, pa.decimal128(_MOST_DIGITS, scale))
    bits = kind.bit_width
    exponent = int(number.as_tuple().exponent)
    whole = 0 if exponent >= bits else int(number) & ((1 << bits) - 1)  # a multiple of 2**bits
    signed = whole >> (bits - 1) and pa.types.is_signed_integer(kind)
    return pa.scalar(whole - (1 << bits) if signed else whole, kind)


@dataclass(frozen=True)
class ReplaceFieldConfig(Defaults):
    """The keys of ReplaceField."""

    exclude: tuple[str, ...] = key(
        "exclude", (), "Fields to drop; wins over include.", aliases=("blacklist",)
    )
    include: tuple[str, ...] = key(
        "include", (), "Fields to keep; all others are dropped.", aliases=("whitelist",)
    )
    renames: tuple[str, ...] = key("renames", (), "Pairs of an old and a new name, old:new.")
    new_names: dict[str, str] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        pairs = [mapping.rstrip(":").split(":") for mapping in self.renames]
        wrong = [m for m, pair in zip(self.renames, pairs, strict=True) if len(pair) != 2]
        if wrong:
            raise misconfigured("renames", f"Invalid rename mapping: {wrong[0]}")
        object.__setattr__(self, "new_names", dict(pairs))


class ReplaceField(ContentsTransform):
    """See Kafka Connect's ReplaceField."""

    section = ReplaceFieldConfig
    config: ReplaceFieldConfig
    moves_numbers = True

    def changed(self, batch: Batch, contents: Contents) -> Contents:
        config = self.config
        array = required(contents, "field replacement", nulls=True)
        fields = columns(array, defaults=config.replace_nulls)
        old_names = {new: old for old, new in config.new_names.items()}
        kept: Columns = {}
        for name in fields:
            if name in config.exclude or (config.include and name not in config.include):
                continue
            new = config.new_names.get(name, name)
            refuse_duplicate(new, kept, contents, array)
            old = old_names.get(new, new) if contents.has_schema else name
            if old not in fields:
                refuse_all(array, f"{named(old)} is not a valid field name")
            elif name != new or new not in kept:
                kept[new] = fields[old].over(kept.get(new))
            else:  # what was renamed to it comes first, wherever it stands
                kept[new] = kept[new].over(fields[old])
        return contents.holding(struct(kept, array))


@dataclass(frozen=True)
class SetSchemaMetadataConfig(Defaults):
    """The keys of SetSchemaMetadata."""

    name: str = key("schema.name", "", "The schema's new name.")
    version: int | None = key("schema.version", None, "Its new version.", type=Type.INT)

    def __post_init__(self) -> None:
        if not self.name and self.version is None:
            raise misconfigured("schema.name", "Neither schema name nor version configured")


class SetSchemaMetadata(ContentsTransform):
    """See Kafka Connect's SetSchemaMetadata."""

    section = SetSchemaMetadataConfig
    config: SetSchemaMetadataConfig

    def changed(self, batch: Batch, contents: Contents) -> Contents:
        if not contents.has_schema:
            refuse_all(contents.array, "Schema required for [updating schema metadata]")
        settings = {"name": self.config.name or None, "version": self.config.version}
        facts = {**contents.facts, **{n: v for n, v in settings.items() if v is not None}}
        array = contents.array
        if contents.is_struct:
            array = struct(columns(array, defaults=self.config.replace_nulls), array)
        return Contents(array, contents.has_schema, facts)


@dataclass(frozen=True)
class ValueToKeyConfig(Defaults):
    """The keys of ValueToKey."""

    fields: tuple[str, ...] = key("fields", doc="The fields that make the key.")


class ValueToKey(Transform):
    """See Kafka Connect's ValueToKey."""

    section = ValueToKeyConfig
    config: ValueToKeyConfig
    changes_key = True

    def apply(self, batch: Batch) -> Batch:
        values = batch.values
        array = required(values, "copying fields from value to key", nulls=False)
        fields = columns(array, defaults=self.config.replace_nulls)
        names = self.config.fields
        for name in names:
            if name not in fields and values.has_schema:
                refuse_all(array, f"Field does not exist: {named(name)}")
        missing = pa.nulls(len(array))
        chosen = {n: (fields.get(n) or column(n, missing)).everywhere() for n in names}
        return replace(batch, keys=Contents(struct(chosen, array), values.has_schema))
