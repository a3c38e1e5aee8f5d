"""The keys of Confluent's, Aiven's and Debezium's JDBC sinks, and how they combine."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from semel import converters
from semel.config import HIGH, LOW, ConnectorConfig, connector_class_key, key
from semel.core.errors import ConfigError, Problem, misconfigured
from semel.databases.login import Login, Timeouts, password_key, user_key
from semel.sinks.config import (
    RoutedConfig,
    auto_create_key,
    auto_evolve_key,
    delete_enabled_key,
    exclude_key,
    include_key,
    left_out_of_the_key,
    pk_fields_key,
    pk_mode_key,
    problems_of_field_lists,
    problems_of_key,
    selects,
    table_mapping_key,
    table_name_format_key,
)
from semel.sinks.layout import LayoutKeys
from semel.sinks.unavailable import placeholder_key
from semel.transforms import chain_of
from semel.transforms.routers import without_source

DEBEZIUM = "io.debezium.connector.jdbc.JdbcSinkConnector"
CLASSES = (
    "io.confluent.connect.jdbc.JdbcSinkConnector",
    "io.aiven.connect.jdbc.JdbcSinkConnector",
    DEBEZIUM,
)
"""Sinks of other projects, whose ``connection.url`` says which database is meant."""

OF_DEBEZIUM = frozenset(
    ("connection.username", "primary.key.mode", "primary.key.fields", "collection.name.format")
)
"""Keys that only Debezium's sink has."""

IGNORED = {
    "batch.size": "a commit's rows travel together; max.poll.records bounds a commit",
    "dialect.name": "the dialect follows from connection.url",
    "date.timezone": "dates are stored as they are",
    "date.calendar.system": "dates and times are of the proleptic Gregorian calendar",
    "connection.provider": "a task keeps one connection",
    "connection.pool.min_size": "a task keeps one connection",
    "connection.pool.max_size": "a task keeps one connection",
    "connection.pool.acquire_increment": "a task keeps one connection",
    "connection.pool.timeout": "a task keeps one connection",
    "connection.attempts": "see max.retries",
    "connection.backoff.ms": "see retry.backoff.ms",
    "connection.restart.on.errors": "lost connections are always opened again",
    "flush.max.retries": "see max.retries",
    "flush.retry.delay.ms": "see retry.backoff.ms",
    "use.reduction.buffer": "changes of one key are always reduced to the last one",
    "keyed.message.batch.mode": "changes of one key are always reduced to the last one",
    "cloud.events.schema.name.pattern": "CloudEvents are not unwrapped",
    "string.output.value.column.name": "a text that is a whole value goes to the column value; let "
    "HoistField put it into a field of another name",
    "table.types": "tables and partitioned tables are written",
    "db.dialect": "the dialect follows from connection.url",
    "trim.sensitive.log": "values are not logged",
    "mssql.use.merge.holdlock": "no MERGE is used",
    "dialect.sqlserver.identity.insert": "set where records bring an IDENTITY column's values",
    "dialect.postgres.postgis.schema": "the search path finds PostGIS's types",
    "dialect.postgres.unnest.insert.enabled": "rows are written in bulk",
    "timestamp.fields.list": "fields keep their converter's types: a timestamp column takes text; "
    "turn numbers into times in a transform",
    "timestamp.precision.mode": "it belongs to timestamp.fields.list",
}

_PRIMITIVE = (
    "org.apache.kafka.connect.storage.StringConverter",
    "org.apache.kafka.connect.converters.ByteArrayConverter",
)
"""Converters whose keys have no fields."""

_UTC = ("UTC", "GMT", "UCT", "Z", "ZULU", "UNIVERSAL")
_DEFAULT_STRATEGIES = (
    "DefaultTableNamingStrategy",
    "DefaultCollectionNamingStrategy",
    "DefaultColumnNamingStrategy",
)


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
class JdbcConfig(RoutedConfig):
    """What a sink writes, where, and under which key."""

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
        "basic: auto.create and auto.evolve. validate-only is none: tables are always looked up at "
        "the start.",
        choices=("none", "basic", "validate-only"),
        importance=LOW,
        group="DDL",
    )
    include: tuple[str, ...] = include_key(("field.include.list", "fields.include"))
    exclude: tuple[str, ...] = exclude_key(("fields.exclude", "fields.blacklist"))
    quote_identifiers: str | None = key(
        "quote.sql.identifiers",
        None,
        "always (or true): names as they are; never (or false): names that PostgreSQL has in lower "
        "case, and the others in any case. The default is always, with Debezium's class never.",
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

    def __post_init__(self) -> None:
        problems = []
        if self.mode != "insert" and self.pk_mode == "none":
            problems.append(
                Problem(
                    "insert.mode",
                    f"insert.mode={self.mode} needs a key: set pk.mode to kafka, record_key, "
                    "record_value or record_header",
                )
            )
        if self.delete_enabled and self.pk_mode != "record_key":
            problems.append(
                Problem(
                    "delete.enabled",
                    f"delete.enabled=true needs pk.mode=record_key, not {self.pk_mode}: a "
                    "tombstone has only its key",
                )
            )
        problems += problems_of_key(self.pk_mode, self.pk_fields)
        problems += self._left_out_of_the_key()
        if self.truncate_enabled:
            problems.append(
                Problem(
                    "truncate.enabled",
                    "truncate.enabled=true is not available: truncate events are not applied, "
                    "so rows that should be deleted would remain. Remove it, and truncate the "
                    "table when you truncate its source",
                )
            )
        problems += problems_of_field_lists(self.include, self.exclude)
        if any(":" not in pair for pair in self.table_mapping):
            problems.append(
                Problem(
                    "topics.to.tables.mapping",
                    "topics.to.tables.mapping must hold topic:table pairs",
                )
            )
        if "${" in self._plain_format.replace("${topic}", ""):
            problems.append(
                Problem(
                    "table.name.format",
                    f"table.name.format={self.table_name_format!r}: only ${{topic}} can be filled "
                    f"in, and fields of ${{source...}} with connector.class={DEBEZIUM}. Name the "
                    "tables of other topics in topics.to.tables.mapping",
                )
            )
        if self.time_zone.upper().removeprefix("ETC/") not in _UTC:
            problems.append(
                Problem(
                    "db.timezone",
                    f"db.timezone={self.time_zone}: times are stored in UTC. Remove it, and "
                    "make the columns timestamptz, or convert where you read: AT TIME ZONE",
                )
            )
        problems += [
            Problem(
                where,
                f"naming strategy {name} is not available: name tables by table.name.format or "
                "topics.to.tables.mapping",
            )
            for where, names in (
                ("collection.naming.strategy", self.naming_strategies),
                ("column.naming.strategy", self.column_naming_strategy),
            )
            for name in dict.fromkeys(names)
            if name.rsplit(".", maxsplit=1)[-1] not in _DEFAULT_STRATEGIES
        ]
        if problems:
            raise ConfigError(*problems)

    def _left_out_of_the_key(self) -> list[Problem]:
        """The problem of a key made of value fields, some of which are left out."""
        if self.pk_mode != "record_value":
            return []
        if gone := left_out_of_the_key(self.pk_fields, self.exclude):
            return gone
        if self.include and not self.pk_fields and not self.of_debezium:
            return [
                Problem(
                    "fields.whitelist",
                    f"fields.whitelist={','.join(self.include)} with pk.mode=record_value and no "
                    "pk.fields: the key would be all fields, which Confluent's sink then writes, "
                    "whatever the list says. Name the key in pk.fields",
                )
            ]
        return []

    @property
    def login(self) -> Login:
        return Login(
            self.connection_url, self.connection_user, self.connection_password, self.parameters
        )

    @property
    def parameters(self) -> Mapping[str, str]:
        """The JDBC driver's parameters that are keys of their own, as in Confluent's sink."""
        return {}

    @property
    def timeouts(self) -> Timeouts:
        return Timeouts()

    @property
    def of_debezium(self) -> bool:
        """Whether this sink stands in for Debezium's."""
        return self.connector_class == DEBEZIUM

    @property
    def mode(self) -> str:
        """``insert``, ``upsert`` or ``update``."""
        return "insert" if self.insert_mode == "multi" else self.insert_mode

    @property
    def creates(self) -> bool:
        return self.auto_create or self.schema_evolution == "basic"

    @property
    def evolves(self) -> bool:
        return self.auto_evolve or self.schema_evolution == "basic"

    @property
    def unquoted(self) -> bool:
        """Whether names of columns stand for those that the database takes them for."""
        if self.quote_identifiers is None:
            return self.of_debezium
        return self.quote_identifiers in ("never", "false")

    @property
    def folds_names(self) -> bool:
        """Whether the database makes unquoted names lower case, as PostgreSQL alone does."""
        return False

    @property
    def key_columns(self) -> tuple[str, ...]:
        """The columns that ``pk.fields`` names."""
        return tuple(n.lower() for n in self.pk_fields) if self.folds_names else self.pk_fields

    def table(self, topic: str) -> str:
        """The target of a topic, as ``table`` or ``schema.table``."""
        topic = self.routed(topic)
        mapping: Mapping[str, str] = dict(p.split(":", maxsplit=1) for p in self.table_mapping)
        if topic in mapping:
            return mapping[topic]
        if self._plain_format != self.table_name_format:
            return topic  # the chain of transforms has filled it in
        if self.of_debezium:
            topic = topic.replace(".", "_")
        if self.normalize:
            topic = re.sub(r"\W", "_", topic, flags=re.ASCII)
        return self.table_name_format.replace("${topic}", topic)

    @property
    def _plain_format(self) -> str:
        """The format of names, without what only Debezium's sink fills in."""
        form = self.table_name_format
        return without_source(form) if self.of_debezium else form

    def takes(self, topic: str, field: str) -> bool:
        """Whether a value field is written; lists may hold ``field`` or ``topic:field``."""
        key = self.pk_fields if self.pk_mode == "record_value" else ()
        return selects(self.include, self.exclude, self.routed(topic), field, key)


def check_key(connector: ConnectorConfig, config: LayoutKeys) -> None:
    """Raises ConfigError if record keys cannot be the table's key."""
    if chain_of(connector.originals).changes_key:
        return
    converter = converters.full_name(connector.key_converter)
    if config.pk_mode == "record_key" and not config.pk_fields and converter in _PRIMITIVE:
        raise misconfigured(
            "pk.mode",
            f"connector {connector.name}: pk.mode=record_key without pk.fields takes the key's "
            f"fields for columns, but with key.converter={connector.key_converter} a key is one "
            "value: name its column in pk.fields, or set the key.converter of keys that have "
            "fields",
        )
