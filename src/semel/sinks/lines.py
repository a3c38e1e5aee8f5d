"""Values become lines of text, as Kafka Connect's FileStreamSink writes them: the last step before
a sink of text, after all transforms."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from semel.converters.json.columns import JSON, column
from semel.converters.json.read import NAME, ScalarReader
from semel.converters.json.text import WHITESPACE
from semel.converters.json.write import Writer
from semel.transforms.texts import DateFormat, java_text, milliseconds

_NESTED = r"^[ \t\n\r]*[\[{]"
_FRACTION = r"^-?[0-9]+[.eE]"
_JAVAS_DATE = DateFormat("EEE MMM dd HH:mm:ss 'UTC' yyyy")
_WRITER = Writer(embedded=True, numeric=True)


def lines(values: pa.Array) -> pa.Array:
    """Each value as text; bytes stay bytes, and nulls stay null.

    Text is unchanged. Numbers, booleans and dates are written as by Java's ``String.valueOf``, in
    UTC. Objects and lists are JSON, not Java's ``{a=1}``.
    """
    kind, kinds = values.type, pa.types
    if kinds.is_dictionary(kind):
        return lines(values.dictionary_decode())
    if kind == JSON:
        return _of_json(values.storage.cast(pa.string()))
    if kinds.is_nested(kind):
        text = _WRITER.texts(values)
        return pc.if_else(values.is_valid(), text, pa.scalar(None, text.type))
    if kinds.is_binary(kind) or kinds.is_large_binary(kind) or kinds.is_fixed_size_binary(kind):
        return values
    if kinds.is_timestamp(kind) or kinds.is_date(kind) or kinds.is_time(kind):
        return _JAVAS_DATE.format(milliseconds(values))
    return java_text(values)


def _of_json(text: pa.Array) -> pa.Array:
    """JSON texts as lines: strings without quotes, fractions as in Java, others as they are."""
    nested = pc.fill_null(pc.match_substring_regex(text, _NESTED), True)
    if pc.all(nested).as_py():
        return text
    text = pc.if_else(nested, text, pc.ascii_trim(text, characters=WHITESPACE))
    text = _read(text, pc.starts_with(text, '"'), pa.string())
    return _read(text, pc.match_substring_regex(text, _FRACTION), pa.float64())


def _read(text: pa.Array, mask: pa.Array, kind: pa.DataType) -> pa.Array:
    """Read the texts that the mask selects as a type; those that do not fit stay as they are."""
    mask = pc.fill_null(mask, False)
    if not pc.any(mask).as_py():
        return text
    chosen = text.filter(mask)
    read, _ = ScalarReader(column(NAME, kind)).read(chosen)
    return pc.replace_with_mask(text, mask, pc.coalesce(java_text(read), chosen))
