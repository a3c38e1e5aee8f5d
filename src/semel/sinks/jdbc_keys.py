"""The keys of Confluent's, Aiven's and Debezium's JDBC sinks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from semel.config import HIGH, LOW, MEDIUM, key


def url_key(doc: str) -> Any:
    """``connection.url``; ``doc`` says its form."""
    return key(
        "connection.url",
        doc=doc,
        secret=True,
        importance=HIGH,
        group="Connection",
        display="JDBC URL",
    )


def idle_key(doc: str, *, at_least: int) -> Any:
    """How long the server leaves a transaction open whose process is frozen."""
    return key(
        "connection.idle.in.transaction.timeout.ms",
        30_000,
        doc,
        at_least=at_least,
        importance=LOW,
        group="Connection",
    )


@dataclass(frozen=True)
class JdbcKeys:
    """The keys as the user has set them."""

    connector_class: str = key(
        "connector.class", importance=HIGH, group="Common", display="Connector class"
    )
    connection_url: str = url_key("The database.")
    connection_user: str = key(
        "connection.user",
        "",
        "The user, if connection.url names none.",
        aliases=("connection.username",),
        importance=HIGH,
        group="Connection",
        display="JDBC User",
    )
    connection_password: str = key(
        "connection.password",
        "",
        "The user's password.",
        secret=True,
        importance=HIGH,
        group="Connection",
        display="JDBC Password",
    )
    insert_mode: str = key(
        "insert.mode",
        "insert",
        "How rows are written; multi is insert.",
        choices=("insert", "multi", "upsert", "update"),
        importance=HIGH,
        group="Writes",
        display="Insert Mode",
    )
    pk_mode: str = key(
        "pk.mode",
        "none",
        "Where the primary key comes from.",
        aliases=("primary.key.mode",),
        choices=("none", "kafka", "record_key", "record_value"),
        importance=HIGH,
        group="Data Mapping",
        display="Primary Key Mode",
    )
    pk_fields: tuple[str, ...] = key(
        "pk.fields",
        (),
        "The key's columns.",
        aliases=("primary.key.fields",),
        importance=MEDIUM,
        group="Data Mapping",
        display="Primary Key Fields",
    )
    delete_enabled: bool = key(
        "delete.enabled",
        False,
        "Tombstones delete; needs record_key.",
        importance=MEDIUM,
        group="Writes",
        display="Enable deletes",
    )
    table_name_format: str = key(
        "table.name.format",
        "${topic}",
        "The table of a topic.",
        aliases=("collection.name.format",),
        importance=MEDIUM,
        group="Data Mapping",
        display="Table Name Format",
    )
    table_mapping: tuple[str, ...] = key(
        "topics.to.tables.mapping",
        (),
        "topic:table pairs, before table.name.format.",
        importance=MEDIUM,
        group="Data Mapping",
    )
    normalize: bool = key(
        "table.name.normalize",
        False,
        "Replace all but letters, digits and _ in topics by _.",
        importance=LOW,
        group="Data Mapping",
    )
    naming_strategies: tuple[str, ...] = key(
        "collection.naming.strategy",
        (),
        "Only Debezium's default.",
        aliases=("table.naming.strategy",),
        importance=LOW,
        group="Data Mapping",
    )
    column_naming_strategy: tuple[str, ...] = key(
        "column.naming.strategy",
        (),
        "Only Debezium's default.",
        importance=LOW,
        group="Data Mapping",
    )
    auto_create: bool = key(
        "auto.create",
        False,
        "Create missing tables.",
        importance=MEDIUM,
        group="DDL",
        display="Auto-Create",
    )
    auto_evolve: bool = key(
        "auto.evolve",
        False,
        "Add missing columns.",
        importance=MEDIUM,
        group="DDL",
        display="Auto-Evolve",
    )
    schema_evolution: str = key(
        "schema.evolution",
        "none",
        "basic: auto.create and auto.evolve.",
        choices=("none", "basic"),
        importance=LOW,
        group="DDL",
    )
    include: tuple[str, ...] = key(
        "fields.whitelist",
        (),
        "Value fields to write.",
        aliases=("field.include.list", "fields.include"),
        importance=MEDIUM,
        group="Data Mapping",
        display="Fields Whitelist",
    )
    exclude: tuple[str, ...] = key(
        "field.exclude.list",
        (),
        "Value fields to leave out.",
        aliases=("fields.exclude", "fields.blacklist"),
        importance=MEDIUM,
        group="Data Mapping",
        display="Exclude Fields",
    )
    quote_identifiers: str | None = key(
        "quote.sql.identifiers",
        None,
        "always: names as they are; never: names in lower case.",
        aliases=("quote.identifiers", "sql.quote.identifiers"),
        choices=("always", "never", "true", "false"),
        importance=MEDIUM,
        group="DDL",
        display="Quote Identifiers",
    )
    truncate_enabled: bool = key(
        "truncate.enabled", False, "Only false.", importance=LOW, group="Writes"
    )
    replace_null: bool = key(
        "replace.null.with.default", True, "Only true.", importance=LOW, group="Writes"
    )
    time_zone: str = key(
        "db.timezone",
        "UTC",
        "Only UTC: times are stored in UTC.",
        aliases=("use.time.zone", "database.time_zone"),
        importance=MEDIUM,
        group="Data Mapping",
        display="DB Time Zone",
    )
