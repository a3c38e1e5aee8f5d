"""DropHeaders, InsertHeader and HeaderFrom. A header's value is the bytes that Kafka Connect's
SimpleHeaderConverter writes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.config import key
from semel.core.errors import ConfigError, Problem
from semel.core.quoting import named
from semel.core.records import HEADERS_TYPE
from semel.transforms.base import Batch, KeyOrValue, Transform
from semel.transforms.fields import Defaults
from semel.transforms.structs import columns, refuse_all, required, struct
from semel.transforms.texts import java_text


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

    def __init__(self, config: DropHeadersConfig) -> None:
        self._names = config.headers

    @property
    def changes_contents(self) -> bool:
        return False

    def apply(self, batch: Batch) -> Batch:
        if batch.headers is None:
            return batch
        return replace(batch, headers=without(batch.headers, self._names))


@dataclass(frozen=True)
class InsertHeaderConfig:
    """The keys of InsertHeader."""

    header: str = key("header", doc="The name of the header.")
    value: str = key("value.literal", doc="Its value.")


class InsertHeader(Transform):
    """See Kafka Connect's InsertHeader."""

    section = InsertHeaderConfig

    def __init__(self, config: InsertHeaderConfig) -> None:
        self._name, self._value = config.header, config.value.encode()

    @property
    def changes_contents(self) -> bool:
        return False

    def apply(self, batch: Batch) -> Batch:
        if batch.headers is None:
            return batch
        values = pa.repeat(pa.scalar(self._value, pa.binary()), len(batch))
        return replace(batch, headers=added(batch.headers, self._name, values))


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
            raise ConfigError(
                Problem(
                    "headers",
                    "'fields' config must have the same number of elements as 'headers' config.",
                )
            )


class HeaderFrom(KeyOrValue):
    """See Kafka Connect's HeaderFrom."""

    section = HeaderFromConfig

    def __init__(self, config: HeaderFromConfig, *, of_key: bool) -> None:
        super().__init__(config, of_key=of_key)
        self._config = config

    def apply(self, batch: Batch) -> Batch:
        config = self._config
        contents = batch.contents(self.of_key)
        array = required(contents, f"header {named(config.operation)}", nulls=False)
        given = columns(array)
        found = columns(array, defaults=config.replace_nulls)
        headers = batch.headers
        for field, name in zip(config.fields, config.headers, strict=True):
            if field not in found and contents.has_schema:
                refuse_all(
                    array, f"Unknown field: {named(field)}", "java.lang.NullPointerException"
                )
            if headers is not None:
                taken = found[field].array if field in found else pa.nulls(len(batch))
                headers = added(headers, name, java_text(taken, has_schema=contents.has_schema))
        if config.operation == "move":
            given = {n: c for n, c in found.items() if n not in config.fields}
        changed = batch.with_contents(self.of_key, contents.holding(struct(given, array)))
        return replace(changed, headers=headers)
