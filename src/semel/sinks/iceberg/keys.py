"""The Iceberg sink's keys, by the names that Iceberg's own Kafka Connect sink gives them."""

from __future__ import annotations

from dataclasses import dataclass

from semel.config import HIGH, LOW, Type, connector_class_key, key
from semel.sinks.unavailable import placeholder_key


@dataclass(frozen=True)
class IcebergKeys:
    """What the sink writes where, as the user has said."""

    connector_class: str = connector_class_key("iceberg")
    catalog_name: str = key("iceberg.catalog", "iceberg", "Name of the catalog.", group="Catalog")
    tables: tuple[str, ...] = key(
        "iceberg.tables",
        (),
        "The tables, each as namespace.name. All topics of the connector go to them.",
        importance=HIGH,
        group="Tables",
    )
    dynamic: bool = key(
        "iceberg.tables.dynamic-enabled",
        False,
        "The value of iceberg.tables.route-field names a record's table; used instead of "
        "iceberg.tables.",
    )
    ledger: str = key(
        "iceberg.tables.ledger",
        "",
        "With iceberg.tables.dynamic-enabled, the table that holds the positions; "
        "semel.<connector> by default.",
        importance=LOW,
    )
    route_field: str = key(
        "iceberg.tables.route-field",
        "",
        "The field whose value decides where a record goes: to each table whose route-regex "
        "matches it.",
    )
    cdc_field: str = key(
        "iceberg.tables.cdc-field",
        "",
        "The field, such as _cdc.op, that says what happened to a row: a value that begins with "
        "D deletes the row with the same id columns, any other value writes the row.",
        importance=LOW,
    )
    commit_branch: str = key(
        "iceberg.tables.default-commit-branch",
        "main",
        "The branch that commits go to. A branch other than main must exist.",
    )
    id_columns: tuple[str, ...] = key(
        "iceberg.tables.default-id-columns",
        (),
        "Columns that identify a row; by default the table's identifier fields.",
        aliases=("pk.fields",),
    )
    partition_by: str = key(
        "iceberg.tables.default-partition-by",
        "",
        "Partitioning of a created table: columns and year(c), month(c), day(c), hour(c), "
        "bucket(c, n), truncate(c, n).",
    )
    auto_create: bool = key(
        "iceberg.tables.auto-create-enabled",
        False,
        "Create a missing table and its namespace, the latter not in Hive.",
    )
    auto_evolve: bool = key(
        "iceberg.tables.evolve-schema-enabled",
        False,
        "Add missing columns; widen int to long, and float to double.",
    )
    case_insensitive: bool = key("iceberg.tables.schema-case-insensitive", False, "Must be false.")
    upsert: bool = key(
        "iceberg.tables.upsert-mode-enabled",
        False,
        "Rows replace those with the same id columns.",
        group="Writes",
    )
    key_source: str = key(
        "pk.mode",
        "record_value",
        "Where upserts take the id columns from: record_value or record_key.",
        choices=("record_key", "record_value"),
    )
    delete_enabled: bool = key(
        "delete.enabled", False, "Tombstones delete; needs upsert mode and pk.mode=record_key."
    )
    interval_ms: int | None = key(
        "iceberg.control.commit.interval-ms",
        None,
        "Time from one trigger to the next; the same as processingTime.",
        at_least=0,
        type=Type.INT,
    )
    placeholder: str = placeholder_key()
