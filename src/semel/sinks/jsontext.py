"""Arrow columns as JSON for people and programs that know no schema: times are ISO 8601, decimals
numbers, bytes base64."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as is_

from semel.converters.json import duck
from semel.converters.json.write import joined, objects
from semel.core.records import check_years, list_offsets, members


def documents(
    columns: Mapping[str, pa.Array], count: int, absent: Mapping[str, pa.Array] | None = None
) -> pa.Array:
    """One JSON object per row; ``absent`` says which rows lack a column."""
    lacking = absent or {}
    return objects(((n, text(v), lacking.get(n)) for n, v in columns.items()), count)


def text(values: pa.Array) -> pa.Array:
    """The JSON text of each value, never null. Times are ISO 8601, bytes base64."""
    kind = values.type
    if isinstance(kind, pa.BaseExtensionType):
        texts = _extension(values)
    elif is_.is_null(kind) or is_.is_integer(kind) or is_.is_boolean(kind) or is_.is_decimal(kind):
        texts = values.cast(pa.string())
    elif is_.is_floating(kind):
        finite = pc.if_else(pc.is_finite(values), values, None)
        short = not is_.is_float64(kind)  # whose shortest digits DuckDB does not write
        texts = finite.cast(pa.string()) if short else duck.numbers(finite)
    elif is_.is_string(kind) or is_.is_large_string(kind):
        texts = duck.strings(values)
    elif is_.is_timestamp(kind):
        texts = _quoted(_timestamps(values))
    elif is_.is_date(kind) or is_.is_time(kind):
        check_years(values)
        texts = _quoted(values.cast(pa.string()))
    elif is_.is_binary(kind) or is_.is_large_binary(kind) or is_.is_fixed_size_binary(kind):
        texts = duck.base64_strings(values.cast(pa.binary()))
    elif is_.is_dictionary(kind):
        return text(values.dictionary_decode())
    elif is_.is_struct(kind):
        fields = ((f.name, text(a), absent) for f, a, absent in members(values))
        texts = pc.if_else(values.is_valid(), objects(fields, len(values)), None)
    elif is_.is_map(kind):
        entry = pa.struct([("key", kind.key_type), ("value", kind.item_type)])
        texts = _lists(values.cast(pa.list_(entry)), _members, "{}")
    elif is_.is_nested(kind):
        texts = _lists(values.cast(pa.list_(kind.value_type)), text, "[]")
    else:
        texts = duck.strings(values.cast(pa.string()))
    return pc.fill_null(texts, "null")


def _extension(values: pa.Array) -> pa.Array:
    if isinstance(values.type, pa.UuidType):
        return duck.uuid_strings(values.storage)
    if not isinstance(values.type, pa.JsonType):
        return text(values.storage)
    texts = values.storage.cast(pa.string())
    return pc.replace_substring(texts, "\n", " ")  # white space: in a string it would be \n


def moments(values: pa.Array) -> pa.Array:
    """Times as a date field takes them: ISO 8601, milliseconds since 1970, or texts as they are."""
    return _timestamps(values) if is_.is_timestamp(values.type) else values.cast(pa.string())


def _timestamps(values: pa.Array) -> pa.Array:
    check_years(values)
    if values.type.tz not in (None, "UTC"):
        values = values.cast(pa.timestamp(values.type.unit, "UTC"))
    return pc.replace_substring(values.cast(pa.string()), " ", "T")


def _lists(values: pa.Array, inner: Callable[[pa.Array], pa.Array], brackets: str) -> pa.Array:
    """Each list as text: its values, written by ``inner``, in brackets."""
    parts = pa.ListArray.from_arrays(list_offsets(values), inner(pc.list_flatten(values)))
    lists = joined([brackets[0], pc.binary_join(parts, ","), brackets[1]], len(values))
    return pc.if_else(values.is_valid(), lists, None)


def _members(entries: pa.Array) -> pa.Array:
    keys, values = entries.flatten()
    names = text(keys) if is_.is_string(keys.type) else _quoted(keys.cast(pa.string()))
    return joined([names, ":", text(values)], len(entries))


def _quoted(values: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise('"', values, '"', "")


def check(values: pa.Array, *, years: bool = True) -> None:
    """Raises ArrowInvalid for a NaN, an infinity and, with ``years``, for a time too far away,
    however deep inside: JSON has none of them."""
    kind = values.type
    if is_.is_floating(kind):
        finite = pc.is_finite(values)
        if not pc.all(finite).as_py() and len(finite.drop_null()):
            raise pa.ArrowInvalid("JSON has no NaN and no infinities")
    elif is_.is_struct(kind):
        for field in values.flatten():
            check(field, years=years)
    elif is_.is_map(kind):
        entry = pa.struct([("k", kind.key_type), ("v", kind.item_type)])
        check(values.cast(pa.list_(entry)), years=years)
    elif is_.is_nested(kind):
        check(pc.list_flatten(values), years=years)
    elif years:
        check_years(values)
