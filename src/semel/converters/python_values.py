"""Parts of nested Arrow arrays from Python values, for the converters that read row by row."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import pyarrow as pa


def offsets(values: Sequence[Any]) -> pa.Array:
    """Where each list or map begins among all items, and where the last one ends."""
    return pa.array(accumulate((len(v or ()) for v in values), initial=0), pa.int32())


def mask(values: Sequence[Any]) -> pa.Array:
    """Which values are null."""
    return pa.array([v is None for v in values], pa.bool_())
