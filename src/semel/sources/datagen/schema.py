"""Turns an Avro schema with ``arg.properties`` into a maker of records."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from semel.core.answers import content_of
from semel.core.problems import check_read
from semel.core.quoting import named
from semel.sources.datagen import values
from semel.sources.datagen.values import Iteration, Lengths, Maker, salt

_SIZES = {"int": 32, "long": 64}
_SIMPLE = {
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
_CONNECT = "org.apache.kafka.connect.data."
_LOGICAL = {
    ("int", "date"): pa.date32(),
    ("int", _CONNECT + "Date"): pa.date32(),
    ("int", "time-millis"): pa.time32("ms"),
    ("int", _CONNECT + "Time"): pa.time32("ms"),
    ("long", "time-micros"): pa.time64("us"),
    ("long", "timestamp-millis"): pa.timestamp("ms", "UTC"),
    ("long", _CONNECT + "Timestamp"): pa.timestamp("ms", "UTC"),
    ("long", "timestamp-micros"): pa.timestamp("us", "UTC"),
    ("long", "local-timestamp-millis"): pa.timestamp("ms"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
}
_DAY = {pa.time32("ms"): 86_400_000, pa.time64("us"): 86_400_000_000}
_COMMENT = re.compile(r'("(?:\\.|[^"\\])*(?:"|\\?\Z))|//[^\n]*|/\*.*?(?:\*/|\Z)', re.S)
_LENGTHS = {"min": 8, "max": 16}
_DEEPEST = 32
_LARGEST = 1 << 24
"""The most characters, bytes and members of a record."""
_LARGEST_FLOAT = {pa.float32(): 3.4028234663852886e38, pa.float64(): 1.7976931348623157e308}


class Unusable(ValueError):
    """No records can be generated from a schema; says why."""


def records_of(text: str) -> values.Records | values.Choices:
    """The maker of records for a schema in JSON, which may have Java's comments.

    Raises:
        Unusable: the schema is wrong, or asks for something that is not supported.
    """
    try:
        schema, _end = json.JSONDecoder(parse_constant=_no_number).raw_decode(
            _COMMENT.sub(r"\1", text).strip()
        )
        maker = _Reader().maker(schema, ())
    except json.JSONDecodeError as error:
        raise Unusable(
            f"is not JSON: {error.msg} at line {error.lineno}, column {error.colno}"
        ) from None
    except Unusable:
        raise
    except (AttributeError, OverflowError, RecursionError, TypeError, ValueError) as error:
        raise Unusable(f"cannot be read: {error}") from None
    if not isinstance(maker, (values.Records, values.Choices)) or not pa.types.is_struct(
        maker.type
    ):
        raise Unusable("must be a record")
    if maker.most > _LARGEST:
        raise Unusable(
            f"makes records of up to {maker.most:,} characters, bytes and members: limit the "
            f"lengths, to {_LARGEST:,} in all"
        )
    return maker


class _Reader:
    """Reads one schema; remembers the types that have a name."""

    def __init__(self) -> None:
        self._named: dict[str, Mapping[str, Any]] = {}

    def maker(self, schema: Any, path: tuple[str, ...], *, repeated: bool = False) -> Maker:
        """The maker of a place's values; a place within an array is ``repeated``."""
        if len(path) > _DEEPEST:
            raise Unusable(f"field {named(path[0])}: contains itself endlessly")
        if isinstance(schema, list):
            return self._union(schema, path, repeated)
        if isinstance(schema, str):
            schema = self._named.get(schema) or {"type": schema}
        if not isinstance(schema, dict) or "type" not in schema:
            raise _wrong(path, f"{json.dumps(schema)} is not a schema")
        type_ = schema["type"]
        if not isinstance(type_, str):  # a type around a type
            outer = {k: v for k, v in schema.items() if k not in ("type", "name")}
            inner = outer | type_ if isinstance(type_, dict) else type_
            return self.maker(inner, path, repeated=repeated)
        if type_ not in (*_SIMPLE, "null", "record", "enum", "fixed", "array", "map"):
            if type_ not in self._named:
                raise _wrong(path, f"{type_} is not a type")
            return self.maker(type_, path, repeated=repeated)
        self._note(schema)
        rules = schema.get("arg.properties", {})
        if not isinstance(rules, dict):
            raise _wrong(path, f"arg.properties={json.dumps(rules)} must be an object")
        return self._ruled(schema, rules, path, repeated)

    def _note(self, schema: Mapping[str, Any]) -> None:
        name = schema.get("name")
        if name and schema["type"] in ("record", "enum", "fixed"):
            space = schema.get("namespace")
            self._named[str(name)] = schema
            self._named[f"{space}.{name}" if space else str(name)] = schema

    def _ruled(
        self,
        schema: Mapping[str, Any],
        rules: Mapping[str, Any],
        path: tuple[str, ...],
        repeated: bool,
    ) -> Maker:
        options = rules.get("options")
        if options is not None:
            for other in ("length", "regex", "iteration", "range"):
                if other in rules:
                    raise _wrong(path, f"options and {other} exclude each other: set one")
            return self._chosen(schema, options, path)
        if "iteration" in rules and repeated:
            raise _wrong(
                path,
                "iteration within an array or a map depends on all records before: use range or "
                "options",
            )
        match schema["type"]:
            case "record":
                return self._record(schema, path, repeated)
            case "enum":
                symbols = schema.get("symbols")
                if not isinstance(symbols, list) or not symbols:
                    raise _wrong(path, "an enum must have symbols")
                return values.Symbols(values.Texts(_no_text), salt(*path, "option"), symbols)
            case "array":
                inner = self.maker(schema.get("items"), (*path, "[]"), repeated=True)
                return values.Arrays(inner, _lengths(rules, path))
            case "map":
                if rules.get("keys"):
                    raise _wrong(path, "keys of maps are random: remove keys, or set options")
                inner = self.maker(schema.get("values"), (*path, "{}"), repeated=True)
                keys = _simple({"type": "string"}, {}, (*path, "key"))
                return values.Maps(keys, inner, _lengths(rules, path))
            case "null":
                return values.Nulls()
            case _:
                return _simple(schema, rules, path)

    def _chosen(self, schema: Mapping[str, Any], options: Any, path: tuple[str, ...]) -> Maker:
        if isinstance(options, dict):
            options = _of_file(options, path, is_array=schema["type"] == "array")
        if not isinstance(options, list) or not options:
            raise _wrong(path, "options must be a list that is not empty")
        plain = {k: v for k, v in schema.items() if k != "arg.properties"}
        inner = self.maker(plain, path)
        try:
            return values.Choices(inner, salt(*path, "option"), options)
        except (
            *(KeyError, TypeError, ValueError),
            *(AttributeError, ArithmeticError, pa.ArrowException),
        ) as error:
            raise _wrong(path, f"an option is not of type {schema['type']}: {error}") from None

    def _record(self, schema: Mapping[str, Any], path: tuple[str, ...], repeated: bool) -> Maker:
        fields = schema.get("fields")
        if not isinstance(fields, list) or not all(isinstance(f, dict) for f in fields):
            raise _wrong(path, "a record must have fields")
        makers = {}
        for field in fields:
            name = str(field.get("name", ""))
            if not name or name in makers:
                raise _wrong(path, f"field {named(name)} must have a name of its own")
            makers[name] = self.maker(field.get("type"), (*path, name), repeated=repeated)
        return values.Records(makers)

    def _union(self, branches: list[Any], path: tuple[str, ...], repeated: bool) -> Maker:
        others = [b for b in branches if b not in ("null", {"type": "null"})]
        if not others:
            return values.Nulls()
        if len(others) > 1:
            raise _wrong(path, "a union may be of null and one type only")
        inner = self.maker(others[0], path, repeated=repeated)
        if len(others) == len(branches):
            return inner
        return values.OptionalValues(inner, salt(*path, "null"))


def _simple(schema: Mapping[str, Any], rules: Mapping[str, Any], path: tuple[str, ...]) -> Maker:
    kind = _type(schema, path)
    if "iteration" in rules:
        return values.IterationValues(kind, _iteration(rules["iteration"], kind, path))
    place = salt(*path)
    if pa.types.is_string(kind):
        return _string(rules, path)
    if pa.types.is_boolean(kind):
        odds = _number(rules.get("odds", 0.5), "odds", path)
        if not 0 <= odds <= 1:
            raise _wrong(path, f"odds={odds} must be from 0 to 1")
        return values.Booleans(place, odds)
    if pa.types.is_floating(kind):
        least, most = _range(rules, path, 0.0, 1.0)
        if max(-least, most, most - least) > _LARGEST_FLOAT[kind]:
            raise _wrong(path, f"range {least} to {most} is beyond {schema['type']}")
        return values.Floats(kind, place, least, most)
    if pa.types.is_decimal(kind):
        least, most = _range(rules, path, 0, 10 ** (kind.precision - kind.scale))
        unit = 10**kind.scale
        lowest, highest = round(least * unit), min(round(most * unit), 10**kind.precision)
        return values.Integers(kind, place, lowest, _span(lowest, highest, path))
    if pa.types.is_binary(kind):
        length = schema.get("size")
        is_fixed = schema["type"] == "fixed"
        sizes = _lengths({"length": length} if is_fixed else rules, path)
        return values.Bytes(kind, place, sizes, length if is_fixed else None)
    size = 1 << (_SIZES[schema["type"]] - 1)
    low, high = (0, _DAY[kind]) if kind in _DAY else (-size, size)
    least, most = _range(rules, path, low, high, whole=True)
    if least < low or most > high:
        raise _wrong(path, f"range {least} to {most} is beyond {schema['type']}")
    return values.Integers(kind, place, int(least), _span(int(least), int(most), path))


def _string(rules: Mapping[str, Any], path: tuple[str, ...]) -> Maker:
    pattern = rules.get("regex")
    if pattern is None:
        maker: Maker = values.Bytes(pa.string(), salt(*path), _lengths(rules, path))
    elif "length" in rules:
        raise _wrong(path, "regex and length exclude each other: bound the repetitions in regex")
    else:
        try:
            maker = values.matching(str(pattern), *path)
        except ValueError as error:
            raise _wrong(path, f"regex {pattern!r} {error}") from None
    prefix, suffix = str(rules.get("prefix", "")), str(rules.get("suffix", ""))
    for name, text in (("prefix", prefix), ("suffix", suffix)):
        if re.search("[\ud800-\udfff]", text):
            raise _wrong(path, f"{name}={text!r} has half of a character")
    return values.SurroundedTexts(maker, prefix, suffix) if prefix or suffix else maker


def _type(schema: Mapping[str, Any], path: tuple[str, ...]) -> pa.DataType:
    base = schema["type"]
    for name in (str(schema.get("logicalType")), str(schema.get("connect.name"))):
        if name in ("decimal", _CONNECT + "Decimal") and base in ("bytes", "fixed"):
            return _decimal(schema, path)
        if (base, name) in _LOGICAL:
            return _LOGICAL[base, name]
    return pa.binary() if base == "fixed" else _SIMPLE[base]


def _decimal(schema: Mapping[str, Any], path: tuple[str, ...]) -> pa.DataType:
    parameters = schema.get("connect.parameters", {})
    precision = schema.get("precision", parameters.get("connect.decimal.precision", 18))
    scale = schema.get("scale", parameters.get("scale", 0))
    try:
        kind = pa.decimal128(int(precision), int(scale))
    except (TypeError, ValueError):
        kind = None
    if kind is None or not 0 <= int(scale) <= int(precision) <= 18:
        raise _wrong(
            path,
            f"a decimal({precision}, {scale}) cannot be made: at most 18 digits",
        )
    return kind


def _iteration(iteration: Any, kind: pa.DataType, path: tuple[str, ...]) -> Iteration:
    if not isinstance(iteration, dict) or "start" not in iteration:
        raise _wrong(path, "iteration must have a start")
    if pa.types.is_boolean(kind):
        return Iteration(bool(iteration["start"]), 1, 0, None)
    if pa.types.is_decimal(kind) or pa.types.is_binary(kind):
        raise _wrong(path, "iteration is for numbers and text: use range")
    number = {
        name: _number(value, f"iteration.{name}", path, whole=not pa.types.is_floating(kind))
        for name, value in iteration.items()
        if name in ("start", "restart", "step", "initial")
    }
    start, restart = number["start"], number.get("restart")
    if restart == start:
        raise _wrong(path, f"iteration.restart={restart} must not be its start")
    step = number.get("step", -1 if restart is not None and restart < start else 1)
    if not step or (restart is not None and (restart > start) != (step > 0)):
        raise _wrong(path, f"iteration.step={step} never leads from {start} to {restart}")
    initial = number.get("initial", start)
    if pa.types.is_floating(kind):
        return Iteration(start, step, initial, restart)
    largest = 1 << (63 if pa.types.is_string(kind) or kind.bit_width == 64 else 31)
    for name, value in number.items():
        if not -largest <= value < largest:
            raise _wrong(path, f"iteration.{name}={value} is too large for {kind}")
    if restart is None and largest == 1 << 31 and step > 0 and start <= initial < largest - 1:
        restart = largest - 1
        if start == restart - 1:
            raise _wrong(path, f"iteration.start={start} leaves one int only: set a smaller one")
    elif restart is not None and abs(restart - start) + abs(initial - start) >= 1 << 63:
        raise _wrong(path, f"iteration.restart={restart} is too far from {start}")
    return Iteration(start, step, initial, restart)


def _range(
    rules: Mapping[str, Any],
    path: tuple[str, ...],
    least: float,
    most: float,
    *,
    whole: bool = False,
) -> tuple[float, float]:
    limits = rules.get("range")
    if limits is None:
        return least, most
    if not isinstance(limits, dict) or not {"min", "max"} & limits.keys():
        raise _wrong(path, "range must have min, max or both")
    bounds = (
        _number(limits.get("min", least), "range.min", path, whole=whole),
        _number(limits.get("max", most), "range.max", path, whole=whole),
    )
    if bounds[0] >= bounds[1]:
        raise _wrong(path, f"range.max={bounds[1]} must be more than range.min={bounds[0]}")
    return bounds


def _span(least: int, most: int, path: tuple[str, ...]) -> int:
    if most <= least:
        raise _wrong(path, f"range from {least} to less than {most} holds no value")
    return most - least


def _lengths(rules: Mapping[str, Any], path: tuple[str, ...]) -> Lengths:
    length = rules.get("length", _LENGTHS)
    if isinstance(length, dict):
        least = _number(length.get("min", 0), "length.min", path, whole=True)
        most = _number(length.get("max", least + 1), "length.max", path, whole=True)
    else:
        least = _number(length, "length", path, whole=True)
        most = least + 1
    if not 0 <= least < most <= 1 << 20:
        raise _wrong(path, f"length from {least} to less than {most} holds no length up to 1 MiB")
    return Lengths(salt(*path, "length"), int(least), int(most))


def _number(value: Any, name: str, path: tuple[str, ...], *, whole: bool = False) -> Any:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _wrong(path, f"{name}={json.dumps(value)} must be a number")
    try:
        is_finite = math.isfinite(value)
    except OverflowError:
        is_finite = False
    if not is_finite:
        raise _wrong(path, f"{name} is too large")
    if whole and value != int(value):
        raise _wrong(path, f"{name}={value} must be a whole number")
    return int(value) if whole else value


def _of_file(given: Mapping[str, Any], path: tuple[str, ...], *, is_array: bool) -> Sequence[Any]:
    """The options of a file: JSON values one after another, or a list of them."""
    if given.get("encoding") != "json":
        raise _wrong(path, "options of a file must have the encoding json")
    check_read("schema.string")
    name = Path(str(given.get("file", "")))
    options: list[Any] = []
    try:
        text, decoder = content_of(name).decode().strip(), json.JSONDecoder()
        while text:
            option, end = decoder.raw_decode(text)
            options.append(option)
            text = text[end:].lstrip()
    except (OSError, ValueError) as error:
        raise _wrong(path, f"options of file {named(name)} cannot be read: {error}") from None
    is_list = len(options) == 1 and isinstance(options[0], list) and not is_array
    return options[0] if is_list else options


def _no_text(_block: Any) -> pa.Array:
    raise AssertionError("an enum has options")


def _no_number(name: str) -> None:
    raise Unusable(f"is not JSON: {name} is no number")


def _wrong(path: tuple[str, ...], why: str) -> Unusable:
    return Unusable(f"field {named('.'.join(path))}: {why}" if path else why)
