"""DropHeaders, InsertHeader and HeaderFrom. A header's value is the bytes that Kafka Connect's
SimpleHeaderConverter writes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.config import key
from semel.core.errors import misconfigured
from semel.core.quoting import named
from semel.core.records import HEADERS_TYPE
from semel.transforms.base import NULL_POINTER, Batch, KeyOrValue, Transform
from semel.transforms.fields import Defaults
from semel.transforms.structs import columns, refuse_all, required, struct
from semel.transforms.texts import java_text, java_texts


def header_keys(headers: pa.Array) -> pa.Array:
    """The names of all headers of all records."""
    return headers.flatten().flatten()[0]


def parents(headers: pa.Array) -> np.ndarray:
    """The record of each header."""
    return np.asarray(pc.list_parent_indices(headers))


def without(headers: pa.Array, names: tuple[str, ...]) -> pa.Array:
    """The headers with other names."""
    keep = np.asarray(pc.invert(pc.is_in(header_keys(headers), pa.array(names, pa.string()))))
    counts = np.bincount(parents(headers)[keep], minlength=len(headers))
    return _lists(counts, headers.flatten().filter(pa.array(keep)))


def added(headers: pa.Array, name: str, values: pa.Array) -> pa.Array:
    """One more header for each record; ``values`` are binary."""
    count = len(headers)
    old = headers.flatten()
    lengths = np.asarray(pc.fill_null(pc.list_value_length(headers), 0)) + 1
    ends = np.cumsum(lengths)
    index = np.empty(int(ends[-1]) if count else 0, np.int64)
    last = np.zeros(len(index), dtype=bool)
    last[ends - 1] = True
    index[last] = len(old) + np.arange(count)
    index[~last] = np.arange(len(old))
    new = pa.StructArray.from_arrays(
        [pa.repeat(pa.scalar(name), count), values.cast(pa.binary())],
        fields=list(HEADERS_TYPE.value_type),
    )
    return _lists(lengths, pa.concat_arrays([old, new]).take(pa.array(index)))


def where(rows: np.ndarray, new: pa.Array, old: pa.Array) -> pa.Array:
    """The new headers for these records, the old ones for the others."""
    return new if rows.all() else pc.if_else(pa.array(rows), new, old)


def _lists(counts: np.ndarray, values: pa.Array) -> pa.Array:
    offsets = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    return pa.ListArray.from_arrays(pa.array(offsets), values).cast(HEADERS_TYPE)


@dataclass(frozen=True)
class DropHeadersConfig:
    """The keys of DropHeaders."""

    headers: tuple[str, ...] = key("headers", doc="The names of the headers to drop.")


class DropHeaders(Transform):
    """See Kafka Connect's DropHeaders."""

    section = DropHeadersConfig
    config: DropHeadersConfig
    moves_numbers = True
    changes_contents = False
    changes_headers = True

    def apply(self, batch: Batch) -> Batch:
        if batch.headers is None:
            return batch
        return replace(batch, headers=without(batch.headers, self.config.headers))


@dataclass(frozen=True)
class InsertHeaderConfig:
    """The keys of InsertHeader."""

    header: str = key("header", doc="The name of the header.")
    value: str = key("value.literal", doc="Its value.", may_be_empty=True)


class InsertHeader(Transform):
    """See Kafka Connect's InsertHeader."""

    section = InsertHeaderConfig
    config: InsertHeaderConfig
    moves_numbers = True
    changes_contents = False
    changes_headers = True

    def apply(self, batch: Batch) -> Batch:
        if batch.headers is None:
            return batch
        values = pa.repeat(pa.scalar(self.config.value.encode(), pa.binary()), len(batch))
        return replace(batch, headers=added(batch.headers, self.config.header, values))


@dataclass(frozen=True)
class HeaderFromConfig(Defaults):
    """The keys of HeaderFrom."""

    fields: tuple[str, ...] = key("fields", doc="The fields to take.")
    headers: tuple[str, ...] = key("headers", doc="The headers they become, in the same order.")
    operation: str = key(
        "operation",
        doc="move: the fields are dropped; copy: they are kept.",
        choices=("move", "copy"),
    )

    def __post_init__(self) -> None:
        if len(self.fields) != len(self.headers):
            raise misconfigured(
                "headers",
                "'fields' config must have the same number of elements as 'headers' config.",
            )


class HeaderFrom(KeyOrValue):
    """See Kafka Connect's HeaderFrom."""

    section = HeaderFromConfig
    config: HeaderFromConfig
    changes_headers = True

    def apply(self, batch: Batch) -> Batch:
        config = self.config
        contents = batch.contents(self.of_key)
        array = required(contents, f"header {named(config.operation)}", nulls=False)
        kept = columns(array)
        fields = columns(array, defaults=config.replace_nulls)
        headers = batch.headers
        for field, name in zip(config.fields, config.headers, strict=True):
            if field not in fields and contents.has_schema:
                refuse_all(array, f"Unknown field: {named(field)}", NULL_POINTER)
            if headers is not None:
                taken = fields[field].array if field in fields else pa.nulls(len(batch))
                text = java_text(taken) if contents.has_schema else java_texts(taken)
                headers = added(headers, name, text)
        if config.operation == "move":
            kept = {n: c for n, c in fields.items() if n not in config.fields}
        changed = batch.with_contents(self.of_key, contents.holding(struct(kept, array)))
        return replace(changed, headers=headers)
