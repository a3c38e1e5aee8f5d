"""Records for transforms, and what becomes of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from semel.core.records import (
    HEADERS_TYPE,
    OFFSET,
    PARTITION,
    TIMESTAMP,
    TIMESTAMP_TYPE,
    TOPIC,
    absence,
    is_absence,
)
from semel.transforms import Outcome, chain_of
from semel.transforms.base import Batch, Contents

KAFKA = "org.apache.kafka.connect.transforms."
STAMP = 1_700_000_000_000


def batch(
    values: pa.Array | Sequence[Any],
    keys: pa.Array | Sequence[Any] | None = None,
    *,
    topic: str = "orders",
    has_schema: bool = False,
    headers: Sequence[Sequence[tuple[str, bytes]]] | None = None,
    timestamps: Sequence[int] | None = None,
) -> Batch:
    """Records of partition 3 from offset 10 on."""
    values = values if isinstance(values, pa.Array) else pa.array(values)
    count = len(values)
    if keys is None:
        keys = pa.nulls(count)
    keys = keys if isinstance(keys, pa.Array) else pa.array(keys)
    origin = {
        TOPIC: pa.repeat(pa.scalar("read"), count),
        PARTITION: pa.array([3] * count, pa.int32()),
        OFFSET: pa.array(np.arange(10, 10 + count)),
        TIMESTAMP: pa.array(timestamps or [STAMP] * count, pa.int64()).cast(TIMESTAMP_TYPE),
    }
    return Batch(
        pa.table(origin),
        Contents(keys, has_schema),
        Contents(values, has_schema),
        pa.repeat(pa.scalar(topic), count),
        np.arange(count),
        None if headers is None else pa.array([list(h) for h in headers], HEADERS_TYPE),
    )


def stage(name: str, **options: Any) -> dict[str, str]:
    """A configuration with this one transform; ``_`` stands for ``.`` in options."""
    given = {f"transforms.t.{k.replace('_', '.')}": str(v) for k, v in options.items()}
    return {"transforms": "t", "transforms.t.type": KAFKA + name, **given}


def applied(config: Mapping[str, str], records: Batch) -> Outcome:
    """What the transforms of a configuration make of records."""
    return chain_of(config).apply(records)


def values(config: Mapping[str, str], records: Batch) -> list[Any]:
    """The values with the fields that each has; none may be refused."""
    outcome = applied(config, records)
    assert not outcome.refused
    return [_own(value) for value in outcome.batch.values.array.to_pylist()]


def rows(config: Mapping[str, str], records: Batch) -> list[Any]:
    """The values with all fields of their type; none may be refused."""
    outcome = applied(config, records)
    assert not outcome.refused
    return list(outcome.batch.values.array.to_pylist())


def _own(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {
        name: _own(held)
        for name, held in value.items()
        if not (is_absence(name) or value.get(absence(name)))
    }


def refusals(config: Mapping[str, str], records: Batch) -> list[str]:
    """Why records are refused."""
    return [r.message for r in applied(config, records).refused]
