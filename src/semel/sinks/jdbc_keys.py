"""The keys of Confluent's, Aiven's and Debezium's JDBC sinks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from semel.config import HIGH, LOW, connector_class_key, key
from semel.sinks.table_keys import (
    auto_create_key,
    auto_evolve_key,
    delete_enabled_key,
    exclude_key,
    include_key,
    password_key,
    pk_fields_key,
    pk_mode_key,
    table_mapping_key,
    table_name_format_key,
    user_key,
)
from semel.sinks.unavailable import placeholder_key

PARAMETER = "The same as the parameter of this name in connection.url."
"""Documents a key that is named after a parameter of the JDBC driver."""


def url_key(form: str) -> Any:
    """``connection.url``, of this form."""
    return key(
        "connection.url",
        doc=f"The database: {form}.",
        secret=True,
        importance=HIGH,
        group="Connection",
        display="JDBC URL",
    )


def idle_key(doc: str, *, at_least: int) -> Any:
    """How long the server leaves a transaction open after its process freezes."""
    return key(
        "connection.idle.in.transaction.timeout.ms",
        30_000,
        doc,
        at_least=at_least,
        importance=LOW,
        group="Connection",
    )


def lock_key() -> Any:
    """How long a commit waits for a lock."""
    return key(
        "connection.lock.timeout.ms",
        10_000,
        "How long a commit waits for another process's lock before it is retried.",
        at_least=1,
        importance=LOW,
        group="Connection",
    )


@dataclass(frozen=True)
class JdbcKeys:
    """The keys as the user has set them."""

    connector_class: str = connector_class_key()
    connection_url: str = url_key("jdbc:postgresql://host:port/database")
    connection_user: str = user_key("Connection")
    connection_password: str = password_key("Connection")
    insert_mode: str = key(
        "insert.mode",
        "insert",
        "How rows are written: insert, multi (the same), upsert or update.",
        choices=("insert", "multi", "upsert", "update"),
        importance=HIGH,
        group="Writes",
    )
    pk_mode: str = pk_mode_key("record_header")
    pk_fields: tuple[str, ...] = pk_fields_key()
    delete_enabled: bool = delete_enabled_key("Tombstones delete; needs record_key.")
    table_name_format: str = table_name_format_key(
        "The table of a topic.", aliases=("collection.name.format",)
    )
    table_mapping: tuple[str, ...] = table_mapping_key()
    normalize: bool = key(
        "table.name.normalize",
        False,
        "Replace all but letters, digits and _ in topics with _.",
        importance=LOW,
        group="Data Mapping",
    )
    naming_strategies: tuple[str, ...] = key(
        "collection.naming.strategy",
        (),
        "Only Debezium's default.",
        aliases=("table.naming.strategy",),
        importance=LOW,
    )
    column_naming_strategy: tuple[str, ...] = key(
        "column.naming.strategy", (), "Only Debezium's default.", importance=LOW
    )
    auto_create: bool = auto_create_key()
    auto_evolve: bool = auto_evolve_key()
    schema_evolution: str = key(
        "schema.evolution",
        "none",
        "basic: auto.create and auto.evolve.",
        choices=("none", "basic"),
        importance=LOW,
        group="DDL",
    )
    include: tuple[str, ...] = include_key(("field.include.list", "fields.include"))
    exclude: tuple[str, ...] = exclude_key(("fields.exclude", "fields.blacklist"))
    quote_identifiers: str | None = key(
        "quote.sql.identifiers",
        None,
        "always (or true): names as they are; never (or false): names in lower case. The "
        "default is always, with Debezium's class never.",
        aliases=("quote.identifiers", "sql.quote.identifiers"),
        choices=("always", "never", "true", "false"),
    )
    truncate_enabled: bool = key(
        "truncate.enabled", False, "Only false.", importance=LOW, group="Writes"
    )
    replace_null: bool = key(
        "replace.null.with.default",
        True,
        "Whether a null field takes the default of its schema, if there is one. false does the "
        "same as value.converter.replace.null.with.default=false.",
        importance=LOW,
    )
    time_zone: str = key(
        "db.timezone",
        "UTC",
        "Only UTC: times are stored in UTC.",
        aliases=("use.time.zone", "database.time_zone"),
        group="Data Mapping",
    )
    placeholder: str = placeholder_key()
