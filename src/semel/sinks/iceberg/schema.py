"""Checks, creates and extends the table's columns for the records that arrive."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as is_

from semel.config import ConnectorConfig
from semel.core.errors import ConfigError, TransientError
from semel.core.quoting import all_named, named
from semel.core.records import Records
from semel.sinks import convert
from semel.sinks.base import no_column
from semel.sinks.iceberg.config import IcebergConfig, TableSettings
from semel.sinks.iceberg.table import Table
from semel.sinks.lake import lacked, same_but_for_case
from semel.sinks.layout import layout
from semel.sinks.staging import CommitConflict

COMMENT = "doc"
EVOLVES = "iceberg.tables.evolve-schema-enabled=true"
_ATTEMPTS = 20


def column_type(kind: pa.DataType) -> pa.DataType:
    """The type of a new column that holds values of ``kind``."""
    return convert.column_type(kind, _scalar)


def _new_column(field: pa.Field) -> pa.Field:
    comment = convert.text_column(field, COMMENT)
    return pa.field(field.name, column_type(field.type), field.nullable, metadata=comment)


def _scalar(kind: pa.DataType) -> pa.DataType:
    if is_.is_time(kind):
        return pa.time64("us")
    common = convert.common_type(kind)
    if is_.is_integer(common) and common.bit_width < 32:
        return pa.int32()
    return common


def check(
    connector: ConnectorConfig, config: IcebergConfig, settings: TableSettings, table: Table
) -> None:
    """Raises ConfigError: the table cannot be written as configured."""
    why = table.refusal(upserts=config.upsert)
    if why is not None:
        raise ConfigError(f"connector {connector.name}: table {table.where} {why}")
    missing = [n for n in settings.id_columns if n not in table.columns.names]
    if config.upsert and missing and table.columns.names and not config.auto_evolve:
        raise ConfigError(
            f"connector {connector.name}: id-columns={','.join(settings.id_columns)}: table "
            f"{table.where} has no column {named(missing[0])}; it has "
            f"{all_named(table.columns.names)}"
        )


def accommodated(
    connector: ConnectorConfig,
    config: IcebergConfig,
    settings: TableSettings,
    table: Table,
    records: Records,
) -> None:
    """Add the columns of these records to the table, if that is allowed.

    Raises:
        ConfigError: it is not allowed.
    """
    arranged = layout(config, connector.provenance_columns, records, deletes=False)
    fields = [_new_column(f) for f in arranged.fields()]
    for attempt in range(_ATTEMPTS):
        if attempt or lacked(table, fields):
            table.renew()
        new = lacked(table, fields)
        wider = _wider(table, arranged.columns) if config.auto_evolve else []
        if not new and not wider:
            return
        first = not table.columns.names
        if new:
            _check_columns(connector, config, table, records.topic, new, first=first)
        names = [*table.columns.names, *(f.name for f in new)]
        absent = [f.column for f in settings.partition_by if f.column not in names]
        if first and absent:
            raise ConfigError(
                f"connector {connector.name}: partition-by names {absent[0]}, but records of topic "
                f"{named(records.topic)} have no such field; they have {all_named(names)}"
            )
        try:
            if first:
                by = [(f.column, str(f)) for f in settings.partition_by]
                table.define(new, arranged.key, by)
            else:
                table.define([*wider, *(f.with_nullable(True) for f in new)])
            return
        except CommitConflict:
            continue
    raise TransientError(f"Iceberg table {table.where}: other writers keep changing it")


def _check_columns(
    connector: ConnectorConfig,
    config: IcebergConfig,
    table: Table,
    topic: str,
    new: Sequence[pa.Field],
    *,
    first: bool,
) -> None:
    if first and not config.auto_create:
        raise ConfigError(
            f"connector {connector.name}: table {table.where} has no columns. Add them, or set "
            "iceberg.tables.auto-create-enabled=true"
        )
    if not first and not config.auto_evolve:
        what = no_column(f"table {table.where}", topic, new[0].name, grow=EVOLVES)
        raise ConfigError(f"connector {connector.name}: {what}")
    names = [*table.columns.names, *(f.name for f in new)]
    same = same_but_for_case(names)
    if same is not None:
        raise ConfigError(
            f"connector {connector.name}: fields {named(same[0])} and {named(same[1])} of topic "
            f"{named(topic)} are one column to many of Iceberg's readers. Leave one out in a "
            "transform"
        )


def _wider(table: Table, columns: Mapping[str, pa.ChunkedArray]) -> list[pa.Field]:
    """The table's columns that are too narrow for a value, widened to fit it."""
    widened = []
    for f in table.columns:
        values = columns.get(f.name)
        if values is None or values.type == f.type:
            continue
        if f.type == pa.int32() and is_.is_int64(values.type) and not _fits(values, f.type):
            widened.append(f.with_type(pa.int64()))
        if f.type == pa.float32() and is_.is_float64(values.type) and not _fits(values, f.type):
            widened.append(f.with_type(pa.float64()))
    return widened


def _fits(values: pa.ChunkedArray, kind: pa.DataType) -> bool:
    """Whether no value is lost or changed."""
    back = values.cast(kind, safe=False).cast(values.type)
    same = pc.or_kleene(pc.equal(back, values), pc.is_nan(values))
    return bool(pc.all(same).as_py())
