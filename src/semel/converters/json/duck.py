"""Functions that Arrow lacks, run by DuckDB: JSON text of a field, base64, UUIDs."""

from __future__ import annotations

import json
import re
import typing
from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import cache

import pyarrow as pa
import pyarrow.compute as pc

from semel.converters.json.text import array_elements, content, members, spans

if typing.TYPE_CHECKING:
    import duckdb

_LONG_NUMBER = r"[0-9][0-9.]{16}"
_NOT_A_NUMBER = r"(^|[:\[,])-?(NaN|Inf)"
_LENIENT = r"(^|[:\[,])\s*-?(?i:nan|inf)|,\s*[}\]]"
_QUOTED = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"')
_EXPONENT = r"[0-9][eE][+-]?[0-9]"
_AT_ONCE = 100
_SMALL_NUMBER = r"[0-9][eE]-[0-9]{3}"


@cache
def errors() -> tuple[type[Exception], ...]:
    """The errors raised if values cannot be read. DuckDB is imported where it is used, so a command
    that reads no records starts without it."""
    import duckdb

    return (ValueError, RecursionError, pa.ArrowException, duckdb.Error)


@cache
def _database() -> duckdb.DuckDBPyConnection:
    import duckdb

    # One thread: a Spark task has one core. Made at first use, so after the worker has forked.
    return duckdb.connect(config={"threads": 1})


def _query(expressions: Sequence[str], values: pa.Array) -> pa.Table:
    connection = _database().cursor()
    rows = connection.from_arrow(pa.table({"v": values}))
    return rows.project(", ".join(expressions)).to_arrow_table()


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _pointer(name: str) -> str:
    return "/" + name.replace("~", "~0").replace("/", "~1")


def quoted(name: str) -> str:
    """A field's name as it is usually written in JSON."""
    return json.dumps(name, ensure_ascii=False)


def keys(text: pa.Array) -> set[str]:
    """The names of all top-level fields in valid JSON objects."""
    table = _query(["unnest(CASE WHEN json_valid(v) THEN json_keys(v) END) AS k"], text)
    return set(pc.unique(table["k"]).to_pylist())


def names(text: pa.Array) -> pa.ListArray:
    """The names of the top-level fields of each JSON object; null where a text is not valid."""
    column = _query(["CASE WHEN json_valid(v) THEN json_keys(v) END AS k"], text)["k"]
    return column.combine_chunks().cast(pa.list_(pa.string()))


def counts(text: pa.Array, names: Sequence[str]) -> dict[str, int]:
    """How many of these valid JSON objects have a value in each field that is not null."""
    totals: dict[str, int] = {}
    for at in range(0, len(names), _AT_ONCE):
        some = names[at : at + _AT_ONCE]
        table = _query([f"count({_present(name)})" for name in some], text)
        totals |= {n: c[0].as_py() for n, c in zip(some, table.columns, strict=True)}
    return totals


def _present(name: str) -> str:
    kind = f"json_type(v, {_text(_pointer(name))})"
    return f"CASE WHEN json_valid(v) THEN nullif({kind}, 'NULL') END"


def raw(text: pa.Array, names: Sequence[str]) -> list[pa.Array]:
    """The JSON text of some fields of valid JSON objects; null where missing or JSON's null.

    White space goes; numbers keep their value. DuckDB reads fractions as doubles and takes the
    first of duplicate fields: where that could matter, the text is cut out of the original.

    Raises:
        ValueError: NaN or an infinity inside, which JSON does not have.
    """
    table = _query([f"json_extract(v, {_text(_pointer(n))})::VARCHAR" for n in names], text)
    characters = content(text)
    return [
        _checked(text, characters, name, column.combine_chunks().cast(pa.string()))
        for name, column in zip(names, table.columns, strict=True)
    ]


def elements(text: pa.Array) -> pa.ListArray:
    """The JSON text of each element of valid JSON arrays, ``null`` for JSON's null; see :func:`raw`
    for how numbers are kept. ``text`` must hold no nulls."""
    lists = _query(["json_extract(v, '$[*]')::VARCHAR[] AS l"], text)["l"].combine_chunks()
    return _exact(text, lists.cast(pa.list_(pa.string())), array_elements)


def entries(text: pa.Array) -> tuple[pa.Array, pa.ListArray]:
    """The names of all fields of each valid JSON object, flat, and their JSON text as lists."""
    table = _query(["json_keys(v) AS k, json_extract(v, '$.*')::VARCHAR[] AS l"], text)
    names, values = (c.combine_chunks().cast(pa.list_(pa.string())) for c in table.columns)
    return names.flatten(), _exact(text, values, lambda t: [t[b:e] for _, b, e in spans(t)])


def _exact(text: pa.Array, lists: pa.Array, split: Callable[[str], list[str]]) -> pa.ListArray:
    """``lists``, but texts whose numbers DuckDB may have rounded are split again."""
    doubtful = pc.match_substring_regex(text, f"{_LONG_NUMBER}|{_NOT_A_NUMBER}|{_SMALL_NUMBER}")
    if not pc.any(doubtful).as_py():
        return lists
    exact = [split(t) for t in text.filter(doubtful).to_pylist()]
    rows = pc.cumulative_sum(doubtful.cast(pa.int64()))
    own = pa.array(range(len(text)), pa.int64())
    return pa.concat_arrays([lists, pa.array(exact, lists.type)]).take(
        pc.if_else(doubtful, pc.add(rows, len(text) - 1), own)
    )


def _checked(text: pa.Array, characters: bytes, name: str, values: pa.Array) -> pa.Array:
    doubtful = None
    written = quoted(name)
    if characters.count(written.encode()) != len(values) - values.null_count:
        doubtful = pc.greater(pc.count_substring(text, written), 1)
    kept = content(values.drop_null())
    if b"NaN" in kept or b"Inf" in kept:
        doubtful = _either(doubtful, pc.match_substring_regex(values, _NOT_A_NUMBER))
    if b"." in kept or pc.any(pc.match_substring_regex(values, _EXPONENT)).as_py():
        doubtful = _either(doubtful, pc.match_substring_regex(text, _LONG_NUMBER))
    if b"e-" in characters or b"E-" in characters:
        doubtful = _either(doubtful, pc.match_substring_regex(text, _SMALL_NUMBER))
    if doubtful is not None:
        doubtful = pc.fill_null(doubtful, False)
        exact = [_member(t, name) for t in text.filter(doubtful).to_pylist()]
        values = pc.replace_with_mask(values, doubtful, pa.array(exact, pa.string()))
    return pc.if_else(pc.equal(values, "null"), pa.scalar(None, pa.string()), values)


def _either(one: pa.Array | None, other: pa.Array) -> pa.Array:
    return other if one is None else pc.or_kleene(one, other)


def _member(text: str, name: str) -> str | None:
    value = members(text)[0].get(name)
    if value is not None and re.search("NaN|Inf", value):
        json.loads(value, parse_constant=_refuse)
    return value


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def check_json(text: pa.ChunkedArray) -> None:
    """Raises ArrowInvalid if some text is not JSON. DuckDB also takes NaN, infinities, and a comma
    after the last item."""
    present = text.drop_null().combine_chunks()
    valid = _query(["json_valid(v) AS valid"], present)["valid"]
    lenient = present.filter(pc.match_substring_regex(present, _LENIENT)).to_pylist()
    if not pc.all(valid, min_count=0).as_py() or any(
        re.search(_LENIENT, _QUOTED.sub('""', candidate)) for candidate in lenient
    ):
        raise pa.ArrowInvalid("it is not JSON")


def from_base64(text: pa.Array) -> pa.Array:
    """Bytes from base64 text."""
    return _query(["from_base64(v) AS b"], text)["b"].combine_chunks().cast(pa.binary())


def uuid_texts(text: pa.Array) -> pa.Array:
    """UUIDs in their usual text, from any that DuckDB reads."""
    return _query(["v::UUID::VARCHAR AS u"], text)["u"].combine_chunks()


def uuids(text: pa.Array) -> pa.Array:
    """UUIDs from their usual text."""
    table = _query(["unhex(replace(v::UUID::VARCHAR, '-', '')) AS b"], text)
    return pa.ExtensionArray.from_storage(
        pa.uuid(), table["b"].combine_chunks().cast(pa.binary(16))
    )


def unscaled_decimals(text: pa.Array, target: pa.Decimal128Type) -> pa.Array:
    """Kafka Connect's Decimal: base64 of the unscaled value, two's complement, big-endian."""
    unscaled = from_base64(text)
    if _has_long(unscaled):
        scaled = [
            None if number is None else Decimal(f"{number}E{-target.scale}")
            for number in _numbers(unscaled)
        ]
        return pa.array(scaled, target)
    whole = _query([f"{_NUMBER} AS d"], unscaled)["d"].combine_chunks()
    if whole.type != pa.decimal128(38, 0):
        raise TypeError(f"DuckDB returns HUGEINT as {whole.type}")
    scaled = pa.Array.from_buffers(
        pa.decimal128(38, target.scale), len(whole), whole.buffers(), offset=whole.offset
    )
    return scaled.cast(target)


def unscaled_texts(unscaled: pa.Array) -> pa.Array:
    """Numbers in big-endian two's complement as decimal digits."""
    if _has_long(unscaled):
        texts = [None if number is None else str(number) for number in _numbers(unscaled)]
        return pa.array(texts, pa.string())
    return _column(f"({_NUMBER})::VARCHAR", unscaled)


_UNSIGNED = "('0x' || hex(v))::HUGEINT"
_BITS = "(8 * octet_length(v))::INT"
_NUMBER = (
    f"({_UNSIGNED} - CASE WHEN {_UNSIGNED} >= (1::HUGEINT << ({_BITS} - 1)) "
    f"THEN 1::HUGEINT << {_BITS} ELSE 0 END)::HUGEINT"
)


def _has_long(unscaled: pa.Array) -> bool:
    """Whether some of these numbers are too long for DuckDB."""
    least, greatest = pc.min_max(pc.binary_length(unscaled)).as_py().values()
    if least == 0:
        raise ValueError("a Decimal of no bytes")
    return (greatest or 0) > 15


def _numbers(unscaled: pa.Array) -> list[int | None]:
    return [
        None if value is None else int.from_bytes(value, "big", signed=True)
        for value in unscaled.to_pylist()
    ]


def strings(text: pa.Array) -> pa.Array:
    """Each text as a JSON string."""
    return _column("to_json(v)::VARCHAR", text)


def numbers(values: pa.Array) -> pa.Array:
    """Each finite number as JSON."""
    return _column("to_json(v)::VARCHAR", values)


def hexadecimal(values: pa.Array) -> pa.Array:
    """Bytes as hexadecimal digits."""
    return _column("hex(v)", values)


def base64_strings(values: pa.Array) -> pa.Array:
    """Bytes as a JSON string of base64."""
    return _column("""'"' || to_base64(v) || '"'""", values)


def _column(expression: str, values: pa.Array) -> pa.Array:
    column = _query([f"{expression} AS t"], values).column(0)
    return column.combine_chunks().cast(pa.string())


def uuid_strings(values: pa.Array) -> pa.Array:
    """UUIDs of 16 bytes as JSON strings of their usual text."""
    parts = "(.{8})(.{4})(.{4})(.{4})(.{12})"
    return _column(
        rf"""'"' || regexp_replace(lower(hex(v)), '{parts}', '\1-\2-\3-\4-\5') || '"'""", values
    )
