"""Parts of nested Arrow arrays from Python values, for the converters that read row by row; and
JSON of values that Arrow has no type for: times are ISO 8601, decimals numbers, bytes base64."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from decimal import Decimal
from itertools import accumulate
from typing import Any

import pyarrow as pa

from semel.core.records import check_years


def offsets(values: Sequence[Any]) -> pa.Array:
    """Where each list or map begins among all items, and where the last one ends."""
    return pa.array(accumulate((len(v or ()) for v in values), initial=0), pa.int32())


def mask(values: Sequence[Any]) -> pa.Array:
    """Which values are null."""
    return pa.array([v is None for v in values], pa.bool_())


class Json(str):
    """A text that is JSON already."""


def shown(values: pa.Array) -> Any:
    """The only one of these values, for :func:`compact`."""
    if pa.types.is_temporal(values.type):
        check_years(values)
        return values.cast(pa.string())[0].as_py().replace(" ", "T")
    value = values[0].as_py()
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


def compact(value: Any) -> str:
    """A value as JSON, without white space."""
    match value:
        case Json():
            return value
        case Decimal():
            return format(value, "f")
        case dict():
            return f"{{{','.join(f'{compact(str(k))}:{compact(v)}' for k, v in value.items())}}}"
        case list():
            return f"[{','.join(map(compact, value))}]"
    return json.dumps(value, ensure_ascii=False)
