"""Reads values in columns, except those that the column reader is not sure of."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from semel.converters.cursor import Content, Longs
from semel.converters.registry.converter import Contents
from semel.converters.registry.framing import Framed

InColumns = Callable[[Content, Longs, Longs], tuple[pa.Array, Longs]]
"""Reads the values between these places; also returns the rows that it is not sure of."""
OneByOne = Callable[[Sequence[bytes]], tuple[pa.Array, list[int], dict[int, str]]]
"""Reads values; also returns the indices of those that it read, and why it did not read the
others."""


def contents(framed: Framed, in_columns: InColumns | None, one_by_one: OneByOne) -> Contents:
    """Values in columns, if the schema allows that; unsure ones are read one by one."""
    if in_columns is None:
        found, good, refused = one_by_one(framed.contents())
        return Contents(found, pa.array(good, pa.int64()), refused)
    try:
        found, unsure = in_columns(Content(framed.data), framed.starts, framed.ends)
    except pa.ArrowInvalid:  # a text that does not hold what its type says
        unsure = np.arange(len(framed.rows))
    if not len(unsure):
        return Contents(found)
    alone, good, why = one_by_one(framed.only(unsure).contents())
    refused = {int(unsure[row]): reason for row, reason in why.items()}
    at = unsure[np.array(good, np.int64)]
    if len(unsure) == len(framed.rows):
        return Contents(alone, pa.array(at), refused)
    sure = np.delete(np.arange(len(framed.rows)), unsure)
    both = pa.concat_arrays([found.take(pa.array(sure)), alone])
    where = np.concatenate([sure, at])
    order = np.argsort(where)
    return Contents(both.take(pa.array(order)), pa.array(where[order]), refused)
