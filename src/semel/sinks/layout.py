"""The columns that a topic's records have in their target, and which of them are the key."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.converters.json.nested import ValueReader, is_typed, nested_of
from semel.converters.semantic import described
from semel.core.errors import ConfigError, misconfigured
from semel.core.quoting import all_named, named, typed
from semel.core.records import (
    HEADERS,
    KEY,
    OFFSET,
    PARTITION,
    TOPIC,
    Records,
    absences,
    is_absence,
    one_array,
    value_columns,
)
from semel.sinks.unavailable import PLACEHOLDER, unavailable

KAFKA_KEY = (TOPIC, PARTITION, OFFSET)


class LayoutKeys(Protocol):
    """The keys of a sink's configuration that decide the columns, named as in JDBC sinks."""

    @property
    def pk_mode(self) -> str: ...

    @property
    def pk_fields(self) -> tuple[str, ...]: ...

    @property
    def folds_names(self) -> bool: ...

    @property
    def placeholder(self) -> str: ...

    def takes(self, topic: str, field: str) -> bool: ...


class DeletionKeys(LayoutKeys, Protocol):
    """The same keys, and the one that decides what tombstones do."""

    @property
    def delete_enabled(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns that a topic's records have in the target, and which of them are the key."""

    columns: Mapping[str, pa.ChunkedArray]
    key: list[str]
    nested: Mapping[str, ValueReader] = dataclasses.field(default_factory=dict)
    """How to read columns of JSON, where that is known."""
    typed: Mapping[str, ValueReader] = dataclasses.field(default_factory=dict)
    """Those of them whose JSON does not show what it holds: times, decimals, bytes."""
    placeholder: str = PLACEHOLDER
    declared: Mapping[str, pa.Field] = dataclasses.field(default_factory=dict)
    """The fields that columns come from, as a schema declares them."""
    absent: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    """The rows whose records lack the field, by column."""

    def unavailable(self) -> dict[str, np.ndarray]:
        """The rows whose values the source could not tell, by column; see
        :mod:`semel.sinks.unavailable`."""
        return unavailable(self.columns, self.key, self.placeholder)

    def field(self, name: str, kind: pa.DataType) -> pa.Field:
        """A new column of a type, with what the schema of its field says; columns of the key say
        nothing."""
        if name in self.key or name not in self.declared:
            return pa.field(name, kind)
        return self.declared[name].with_name(name).with_type(kind)

    def renamed(self, names: Mapping[str, str]) -> Layout:
        """The same columns by other names."""

        def by_name(of: Mapping[str, Any]) -> dict[str, Any]:
            return {names[name]: value for name, value in of.items()}

        return dataclasses.replace(
            self,
            columns=by_name(self.columns),
            key=[names[name] for name in self.key],
            nested=by_name(self.nested),
            typed=by_name(self.typed),
            declared=by_name(self.declared),
            absent=by_name(self.absent),
        )

    def fields(self) -> list[pa.Field]:
        """The columns of a target that has none of them yet. A field that has only been null has no
        type yet."""
        fields = []
        for name, values in self.columns.items():
            inside = None if name in self.key else self.nested.get(name)
            kind = values.type if inside is None else inside.type
            if not pa.types.is_null(kind):
                fields.append(self.field(name, kind).with_nullable(name not in self.key))
        return fields


def layout(
    config: LayoutKeys, provenance: Mapping[str, str], records: Records, *, deletes: bool
) -> Layout:
    """Lay out rows (or, with ``deletes``, the keys of tombstones) as columns of the target.

    Raises:
        ConfigError: the records lack the declared key, or have a field named like a provenance one.
    """
    source: pa.Table = records.tombstones if deletes else records.rows
    fold = str.lower if config.folds_names else str
    columns: dict[str, pa.ChunkedArray] = {}
    key: list[str] = []
    coordinates: dict[str, str] = {}
    if config.pk_mode in ("record_key", "record_header"):
        key_columns = (
            _key_columns(config, records.topic, source)
            if config.pk_mode == "record_key"
            else _header_columns(config.pk_fields, source.column(HEADERS))
        )
        columns.update((fold(name), values) for name, values in key_columns.items())
        key = list(columns)
    elif config.pk_mode == "kafka":
        key = [fold(n) for n in (config.pk_fields or KAFKA_KEY)]
        coordinates = dict(zip(key, KAFKA_KEY, strict=True))
        columns.update((name, source.column(n)) for name, n in coordinates.items())
    if deletes:
        return Layout(columns, key)
    folded: dict[str, str] = {}
    for name in value_columns(source.column_names):
        if not config.takes(records.topic, name):
            continue
        if folded.setdefault(fold(name), name) != name:
            raise ConfigError(
                f"fields {named(folded[fold(name)])} and {named(name)} of topic "
                f"{named(records.topic)} are one column in lower case. Set "
                "quote.sql.identifiers=always"
            )
        field = source.schema.field(name)
        columns.setdefault(fold(name), described(source.column(name), field))
    if config.pk_mode == "record_value":
        key = [fold(n) for n in config.pk_fields] or list(columns)
        missing = [n for n in key if n not in columns]
        if missing:
            raise ConfigError(
                f"pk.fields={','.join(key)}: values of topic {named(records.topic)} have no field "
                f"{named(missing[0])}; they have {all_named(columns)}"
            )
    for metadata, name in provenance.items():
        column = fold(name)
        if column in columns and coordinates.get(column) != metadata:
            what = "is part of the key" if column in key else "is a field of the values"
            raise provenance_conflict(
                metadata, name, f"{column} {what} of topic {named(records.topic)}"
            )
        columns[column] = source.column(metadata)
    schema = source.schema
    readers = {name: nested_of(schema.field(field)) for name, field in folded.items()}
    declared = {n: records.declared[f] for n, f in folded.items() if f in records.declared}
    nested = {name: reader for name, reader in readers.items() if reader}
    typed = {n: reader for n, reader in nested.items() if is_typed(schema.field(folded[n]))}
    lacking = {n: rows.to_numpy() for n, rows in absences(source).items()}
    absent = {n: lacking[f] for n, f in folded.items() if f in lacking and n not in key}
    return Layout(columns, key, nested, typed, config.placeholder, declared, absent)


def not_from_values(config: LayoutKeys) -> frozenset[str]:
    """The declared columns that are filled from a record's key or origin, not from fields of its
    value."""
    if config.pk_mode in ("record_key", "record_header"):
        return frozenset(config.pk_fields)
    if config.pk_mode == "kafka":
        return frozenset(config.pk_fields or KAFKA_KEY)
    return frozenset()


def provenance_conflict(metadata: str, name: str, why: str) -> ConfigError:
    """The error if a provenance column would replace another column."""
    setting = f"provenance.{metadata.removeprefix('__connect_')}.column"
    return misconfigured(
        setting,
        f"{setting}={name}: {why}, and provenance=true would overwrite it. Set "
        f"{setting} to an unused name",
    )


def check_provenance(config: LayoutKeys, provenance: Mapping[str, str], where: str) -> None:
    """Raises ConfigError if a column of provenance is one of the key, as far as that is known."""
    if config.pk_mode == "none":
        return
    fold = str.lower if config.folds_names else str
    fields = [fold(n) for n in config.pk_fields]
    coordinates = dict(zip(fields, KAFKA_KEY, strict=False)) if config.pk_mode == "kafka" else {}
    for metadata, name in provenance.items():
        if fold(name) in fields and coordinates.get(fold(name)) != metadata:
            raise provenance_conflict(
                metadata, name, f"{where} has the key {','.join(config.pk_fields)}"
            )


def key_metadata(config: LayoutKeys) -> frozenset[str]:
    """The metadata columns that the target's key is made of."""
    columns = {"record_key": (KEY,), "record_header": (HEADERS,), "kafka": KAFKA_KEY}
    return frozenset(columns.get(config.pk_mode, ()))


def keys_of(config: DeletionKeys, records: Records) -> tuple[pa.Table, pa.Table | None]:
    """The key columns of rows and of the tombstones that delete; see :meth:`Sink.key_of`."""
    rows = layout(config, {}, records, deletes=False)
    keys = pa.table({n: rows.columns[n] for n in rows.key})
    if not config.delete_enabled or records.tombstones is None:
        return keys, None
    deletes = layout(config, {}, records, deletes=True)
    return keys, pa.table({n: deletes.columns[n] for n in deletes.key})


def _key_columns(config: LayoutKeys, topic: str, source: pa.Table) -> dict[str, pa.ChunkedArray]:
    """The columns that the record key provides: a struct's fields, or one primitive."""
    keys = source.column(KEY)
    if pa.types.is_struct(keys.type):
        fields = [f.name for f in keys.type if not is_absence(f.name)]
        missing = [f for f in config.pk_fields if f not in fields]
        if missing:
            raise ConfigError(
                f"pk.fields={','.join(config.pk_fields)}: keys of topic {named(topic)} have no "
                f"field {named(missing[0])}; they have {all_named(fields)}"
            )
        return {
            name: described(pc.struct_field(keys, name), keys.type.field(name))
            for name in config.pk_fields or fields
        }
    if len(config.pk_fields) != 1:
        raise ConfigError(
            f"pk.mode=record_key: keys of topic {named(topic)} are of type {typed(keys.type)}, so "
            f"pk.fields must name exactly one column; it is {','.join(config.pk_fields)!r}"
        )
    return {config.pk_fields[0]: described(keys, source.schema.field(KEY))}


def _header_columns(names: Sequence[str], headers: pa.ChunkedArray) -> dict[str, pa.ChunkedArray]:
    """Columns of text from the headers of these names, or of all there are: the last of a name
    counts. A record that lacks one has a null, and so has one whose header is no text."""
    lists = one_array(headers)
    keys, values = lists.flatten().flatten()
    rows = pc.list_parent_indices(lists).to_numpy()
    columns = {}
    for name in names or pc.unique(keys).to_pylist():
        matches = pc.indices_nonzero(pc.equal(keys, name)).to_numpy()
        last = np.full(len(lists), -1)
        last[rows[matches]] = matches
        columns[name] = pa.chunked_array([_texts(values.take(pa.array(last, mask=last < 0)))])
    return columns


def _texts(values: pa.Array) -> pa.Array:
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([_text(v) for v in values.to_pylist()], pa.string())


def _text(value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None
