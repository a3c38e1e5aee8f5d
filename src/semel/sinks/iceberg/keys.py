"""The Iceberg sink's keys, by the names that Iceberg's own Kafka Connect sink gives them."""

from __future__ import annotations

from dataclasses import dataclass

from semel.config import HIGH, LOW, MEDIUM, Type, connector_class_key, key
from semel.sinks.unavailable import placeholder_key


@dataclass(frozen=True)
class IcebergKeys:
    """What the sink writes where, as the user has said."""

    connector_class: str = connector_class_key("iceberg")
    catalog_name: str = key(
        "iceberg.catalog", "iceberg", "Name of the catalog.", importance=MEDIUM, group="Catalog"
    )
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
        importance=MEDIUM,
        group="Tables",
    )
    ledger: str = key(
        "iceberg.tables.ledger",
        "",
        "With iceberg.tables.dynamic-enabled, the table that holds the positions; "
        "semel.<connector> by default.",
        importance=LOW,
        group="Tables",
    )
    route_field: str = key(
        "iceberg.tables.route-field",
        "",
        "The field whose value decides where a record goes: to each table whose route-regex "
        "matches it.",
        importance=MEDIUM,
        group="Tables",
    )
    cdc_field: str = key(
        "iceberg.tables.cdc-field",
        "",
        "The field, such as _cdc.op, that says what happened to a row: a value that begins with "
        "D deletes the row with the same id columns, any other value writes the row.",
        importance=LOW,
        group="Tables",
    )
    commit_branch: str = key(
        "iceberg.tables.default-commit-branch",
        "main",
        "The branch that commits go to. A branch other than main must exist.",
        importance=MEDIUM,
        group="Tables",
    )
    id_columns: tuple[str, ...] = key(
        "iceberg.tables.default-id-columns",
        (),
        "Columns that identify a row; by default the table's identifier fields.",
        aliases=("pk.fields",),
        importance=MEDIUM,
        group="Tables",
    )
    partition_by: str = key(
        "iceberg.tables.default-partition-by",
        "",
        "Partitioning of a created table: columns and year(c), month(c), day(c), hour(c), "
        "bucket(c, n), truncate(c, n).",
        importance=MEDIUM,
        group="Tables",
    )
    auto_create: bool = key(
        "iceberg.tables.auto-create-enabled",
        False,
        "Create a missing table and its namespace, the latter not in Hive.",
        importance=MEDIUM,
        group="Tables",
    )
    auto_evolve: bool = key(
        "iceberg.tables.evolve-schema-enabled",
        False,
        "Add missing columns; widen int to long, and float to double.",
        importance=MEDIUM,
        group="Tables",
    )
    case_insensitive: bool = key(
        "iceberg.tables.schema-case-insensitive",
        False,
        "Must be false.",
        importance=MEDIUM,
        group="Tables",
    )
    upsert: bool = key(
        "iceberg.tables.upsert-mode-enabled",
        False,
        "Rows replace those with the same id columns.",
        importance=MEDIUM,
        group="Writes",
    )
    key_source: str = key(
        "pk.mode",
        "record_value",
        "Where upserts take the id columns from: record_value or record_key.",
        choices=("record_key", "record_value"),
        importance=MEDIUM,
        group="Writes",
        display="Primary Key Mode",
    )
    delete_enabled: bool = key(
        "delete.enabled",
        False,
        "Tombstones delete; needs upsert mode and pk.mode=record_key.",
        importance=MEDIUM,
        group="Writes",
        display="Enable deletes",
    )
    interval_ms: int | None = key(
        "iceberg.control.commit.interval-ms",
        None,
        "Time from one trigger to the next; the same as processingTime.",
        at_least=0,
        type=Type.INT,
        importance=MEDIUM,
        group="Writes",
    )
    placeholder: str = placeholder_key()
