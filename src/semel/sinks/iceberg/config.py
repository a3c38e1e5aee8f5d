"""The Iceberg sink's keys, by the names that Iceberg's own Kafka Connect sink gives them, those of
single tables, and how they combine."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from semel.config import HIGH, LOW, ConnectorConfig, Type, connector_class_key, key, read, under
from semel.core.delivery import Delivery
from semel.core.errors import ConfigError, Problem, misconfigured
from semel.core.patterns import Pattern, compiled
from semel.core.problems import refuse, together
from semel.core.quoting import named
from semel.sinks.config import HTTP, problems_of_endpoint
from semel.sinks.layout import check_provenance
from semel.sinks.unavailable import placeholder_key

_ICEBERGS = (
    "org.apache.iceberg.connect.IcebergSinkConnector",
    "io.tabular.iceberg.connect.IcebergSinkConnector",
)
CLASSES = ("iceberg", "semel.iceberg.IcebergSink", *_ICEBERGS)
_ICEBERGS_INTERVAL = 300.0
"""The default seconds between commits of Iceberg's own sink."""

_NO_CONTROL = "the driver commits: there is no coordinator and no control topic"

IGNORED = {
    "iceberg.control.topic": _NO_CONTROL,
    "iceberg.control.group-id-prefix": _NO_CONTROL,
    "iceberg.control.commit.timeout-ms": _NO_CONTROL,
    "iceberg.control.commit.threads": _NO_CONTROL,
    "iceberg.control.commit.max-consecutive-failures": "see max.retries",
    "iceberg.coordinator.transactional.prefix": _NO_CONTROL,
    "iceberg.connect.group-id": "the consumer group is connect-<name>",
    "iceberg.tables.schema-force-optional": "new columns are optional, except id columns",
    "iceberg.tables.replace-null-with-default": "the converter decides what a null means",
    "iceberg.hadoop-conf-dir": "no Hadoop client is used",
}

BY_KEY = {
    "iceberg.tables.upsert-mode-enabled": "true",
    "pk.mode": "record_key",
    "delete.enabled": "true",
}
"""What a cdc-field implies: a transform makes keys from the id columns, and tombstones."""

PREFIXES = (
    "iceberg.catalog.",
    "iceberg.table.",
    "iceberg.tables.auto-create-props.",
    "iceberg.tables.write-props.",
    "iceberg.hadoop.",
    "iceberg.kafka.",
)

_OF_A_TABLE = ("id-columns", "partition-by", "commit-branch", "route-regex")
_PARTS = re.compile(r"(?:[^,(]|\([^)]*\)?)+")
"""What commas separate, except within parentheses."""
_TRANSFORM = re.compile(r"(?P<name>\w+)\((?P<column>[^(),]+?)(?:,\s*(?P<width>[0-9]{1,10})\s*)?\)")
_TRANSFORMS = {
    "year": "year",
    "years": "year",
    "month": "month",
    "months": "month",
    "day": "day",
    "days": "day",
    "hour": "hour",
    "hours": "hour",
    "bucket": "bucket",
    "truncate": "truncate",
}
_WITH_WIDTH = ("bucket", "truncate")
_WIDEST = 2**31 - 1
"""Java, which reads the table too, has no larger width."""

_IMPLEMENTATIONS = {
    "org.apache.iceberg.rest.RESTCatalog": "rest",
    "org.apache.iceberg.hive.HiveCatalog": "hive",
    "org.apache.iceberg.aws.glue.GlueCatalog": "glue",
    "org.apache.iceberg.aws.dynamodb.DynamoDbCatalog": "dynamodb",
}
_TYPES = ("rest", "sql", "hive", "glue")
FLAT = ("hive", "glue")
"""Catalogs whose namespaces have one level."""
_NO_CATALOG = {
    "hadoop": "A hadoop catalog cannot refuse a commit that another writer has overtaken: move its "
    "tables to one that can",
    "nessie": "Nessie speaks rest too: set iceberg.catalog.type=rest, and iceberg.catalog.uri to "
    "the address that ends in /iceberg",
    "jdbc": "A JDBC catalog is sql here: set iceberg.catalog.type=sql, and iceberg.catalog.uri to "
    "an SQLAlchemy URL, such as postgresql+psycopg2://user:password@host/database",
    "dynamodb": "PyIceberg reads a DynamoDB catalog, but cannot commit to it: register its tables "
    "in one of these",
}
_SCHEMES = {"rest": HTTP, "hive": ("thrift",)}
"""What the address of a catalog begins with, by its type."""


def is_table_name(name: str) -> bool:
    """Whether it has a namespace."""
    parts = name.split(".")
    return len(parts) > 1 and all(p.strip() for p in parts)


@dataclass(frozen=True)
class IcebergConfig:
    """What the sink writes, where, and under which key."""

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
    folds_names = False

    def __post_init__(self) -> None:
        refuse(self._problems())

    def _problems(self) -> Iterator[Problem]:
        if self.dynamic:
            if self.tables:
                yield Problem(
                    "iceberg.tables",
                    f"iceberg.tables={','.join(self.tables)} and "
                    "iceberg.tables.dynamic-enabled=true exclude each other: remove one",
                )
            if not self.route_field:
                yield Problem(
                    "iceberg.tables.dynamic-enabled",
                    "iceberg.tables.dynamic-enabled=true needs "
                    "iceberg.tables.route-field, which names each record's table",
                )
            if self.ledger and not is_table_name(self.ledger):
                yield Problem(
                    "iceberg.tables.ledger",
                    f"iceberg.tables.ledger={self.ledger!r} has no namespace: set it to "
                    "namespace.name",
                )
        elif not self.tables:
            yield Problem(
                "iceberg.tables",
                "iceberg.tables is required: the tables, each as namespace.name",
            )
        if self.ledger and not self.dynamic:
            yield Problem(
                "iceberg.tables.ledger",
                f"iceberg.tables.ledger={self.ledger!r} has no effect: tables that are listed hold "
                "the positions themselves. Remove it, or set iceberg.tables.dynamic-enabled=true",
            )
        yield from [
            Problem(
                "iceberg.tables",
                f"iceberg.tables={table!r} has no namespace: set it to namespace.name",
            )
            for table in self.tables
            if not is_table_name(table)
        ]
        if len(set(self.tables)) < len(self.tables):
            yield Problem(
                "iceberg.tables", f"iceberg.tables={','.join(self.tables)} names a table twice"
            )
        if self.upsert and self.several:
            where = "iceberg.tables.upsert-mode-enabled"
            asked = f"{where}=true"
            if self.cdc_field:
                where = "iceberg.tables.cdc-field"
                asked = f"{where}={self.cdc_field}"
            yield Problem(
                where,
                f"{asked} with several tables or a route-field: if two records of a key went to "
                "different tables, the first table would keep the older row. Run a connector for "
                "each table, and filter the records in a transform",
            )
        if self.case_insensitive:
            yield Problem(
                "iceberg.tables.schema-case-insensitive",
                "iceberg.tables.schema-case-insensitive=true is not available: fields are "
                "matched as they are written. Set it to false",
            )
        if self.delete_enabled and not (self.upsert and self.key_source == "record_key"):
            yield Problem(
                "delete.enabled",
                "delete.enabled=true needs iceberg.tables.upsert-mode-enabled=true and "
                "pk.mode=record_key, because a tombstone has a key and no value",
            )

    @property
    def interval(self) -> float | None:
        """Seconds from one trigger to the next, where a key or the class says so."""
        default = _ICEBERGS_INTERVAL if self.connector_class in _ICEBERGS else None
        return self.interval_ms / 1000 if self.interval_ms else default

    @property
    def several(self) -> bool:
        """Whether records may go to more than one table."""
        return len(self.tables) != 1 or bool(self.route_field)

    def ledger_of(self, connector: str) -> str:
        """The table that holds a connector's positions if records name their own tables."""
        return self.ledger or "semel." + re.sub(r"\W", "_", connector, flags=re.ASCII)

    # As JDBC sinks name it

    @property
    def pk_mode(self) -> str:
        return self.key_source if self.upsert else "none"

    @property
    def pk_fields(self) -> tuple[str, ...]:
        return self.id_columns

    def takes(self, topic: str, field: str) -> bool:
        """Whether a value field is written: all are."""
        return True


@dataclass(frozen=True, slots=True)
class PartitionField:
    """One field of a partition, as configured."""

    column: str
    transform: str = "identity"
    width: str = ""

    def __str__(self) -> str:
        return f"{self.transform}[{self.width}]" if self.width else self.transform


@dataclass(frozen=True, slots=True)
class TableSettings:
    """The settings of one table. ``route`` matches the values of its records' route-field."""

    name: str
    branch: str
    id_columns: tuple[str, ...]
    partition_by: tuple[PartitionField, ...]
    route: Pattern | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """The sink's whole configuration, including keys of single tables."""

    config: IcebergConfig
    tables: Mapping[str, TableSettings]
    """By the name of the table, for tables that the configuration names."""
    catalog: Mapping[str, str]
    created: Mapping[str, str] = field(default_factory=dict)
    written: Mapping[str, str] = field(default_factory=dict)

    def of(self, table: str) -> TableSettings:
        return self.tables.get(table) or _of_a_table(self.config, table, {})


def settings(raw: Mapping[str, str]) -> Settings:
    """Read the sink's keys.

    Raises:
        ConfigError: a key cannot be honoured.
    """
    config = read(IcebergConfig, raw)
    problems: list[Problem] = []
    of_tables: dict[str, dict[str, str]] = {table: {} for table in config.tables}
    for name, value in under(raw, "iceberg.table.").items():
        of, _, setting = name.rpartition(".")
        if setting not in _OF_A_TABLE or not (config.dynamic or of in of_tables):
            problems.append(
                Problem(
                    f"iceberg.table.{name}",
                    f"iceberg.table.{name}={value!r}: iceberg.tables is {','.join(config.tables)}, "
                    f"and a table's settings are {', '.join(_OF_A_TABLE)}",
                )
            )
            continue
        of = of.lower() if config.dynamic else of
        if setting in of_tables.get(of, {}):
            problems.append(
                Problem(
                    f"iceberg.table.{name}",
                    f"iceberg.table.{name}={value!r} is also set in another case: records "
                    "name tables in lower case. Remove one",
                )
            )
        of_tables.setdefault(of, {})[setting] = value
    if config.interval_ms and raw.get("processingTime"):
        problems.append(
            Problem(
                "iceberg.control.commit.interval-ms",
                f"iceberg.control.commit.interval-ms={config.interval_ms} and processingTime="
                f"{raw['processingTime']!r} are the same setting: remove one",
            )
        )
    chosen, _, *table_settings = together(
        lambda: _catalog(under(raw, "iceberg.catalog.")),
        lambda: refuse(problems),
        *(partial(_of_a_table, config, table, keys) for table, keys in of_tables.items()),
    )
    return Settings(
        config,
        dict(zip(of_tables, table_settings, strict=True)),
        chosen,
        under(raw, "iceberg.tables.auto-create-props."),
        under(raw, "iceberg.tables.write-props."),
    )


def _catalog(keys: Mapping[str, str]) -> dict[str, str]:
    """The catalog's properties, as PyIceberg names them.

    Raises:
        ConfigError: PyIceberg has no such catalog.
    """
    properties = dict(keys)
    types = ", ".join(_TYPES)
    if not properties:
        raise misconfigured(
            "iceberg.catalog.type",
            f"iceberg.catalog.type is required (one of {types}), and the catalog's properties, "
            "such as iceberg.catalog.uri",
        )
    implementation = properties.pop("catalog-impl", "")
    if implementation:
        if implementation not in _IMPLEMENTATIONS:
            raise misconfigured(
                "iceberg.catalog.catalog-impl",
                f"iceberg.catalog.catalog-impl={implementation!r} is not available. Set "
                f"iceberg.catalog.type, one of {types}, instead; many catalogs speak rest too",
            )
        properties["type"] = _IMPLEMENTATIONS[implementation]
    kind = properties.get("type", "").strip().lower()
    if kind not in _TYPES:
        why = f". {_NO_CATALOG[kind]}" if kind in _NO_CATALOG else ""
        raise misconfigured(
            "iceberg.catalog.type",
            f"iceberg.catalog.type={properties.get('type', '')!r} is not one of {types}{why}",
        )
    for name, schemes in (("uri", _SCHEMES.get(kind, ())), ("s3.endpoint", HTTP)):
        for address in properties.get(name, "").split(",") if schemes else ():  # of Hive, several
            if address:
                refuse(problems_of_endpoint(f"iceberg.catalog.{name}", address, schemes))
    if kind == "sql" and properties.get("uri", "").startswith("jdbc:"):
        raise misconfigured(
            "iceberg.catalog.uri",
            "iceberg.catalog.uri is a JDBC URL: set it to an SQLAlchemy URL, such as "
            "postgresql+psycopg2://user:password@host/database or sqlite:////path",
        )
    warehouse = properties.get("warehouse", "")
    if warehouse and ":" not in warehouse and kind == "sql":  # wherever a reader is started
        properties["warehouse"] = Path(warehouse).absolute().as_uri()
    properties.pop("io-impl", None)  # a Java class; PyIceberg chooses by the location's scheme
    return properties | {"type": kind}


def _of_a_table(config: IcebergConfig, table: str, keys: Mapping[str, str]) -> TableSettings:
    columns = tuple(c.strip() for c in keys.get("id-columns", "").split(",") if c.strip())
    by, where = keys.get("partition-by", ""), f"iceberg.table.{table}.partition-by"
    if not by:
        by, where = config.partition_by, "iceberg.tables.default-partition-by"
    partition_by, route = together(
        lambda: _partition(where, by),
        lambda: _route(config, table, keys.get("route-regex", "")),
    )
    branch = keys.get("commit-branch", "").strip() or config.commit_branch
    return TableSettings(table, branch, columns or config.id_columns, partition_by, route)


def _route(config: IcebergConfig, table: str, regex: str) -> Pattern | None:
    name = f"iceberg.table.{table}.route-regex"
    if regex and not config.route_field:
        raise misconfigured(
            name,
            f"{name}={regex!r} has no field to match: set iceberg.tables.route-field, or remove it",
        )
    if regex and config.dynamic:
        raise misconfigured(
            name,
            f"{name}={regex!r}: with iceberg.tables.dynamic-enabled=true the field itself names "
            "the table. Remove it",
        )
    if not config.route_field or config.dynamic:
        return None
    if not regex:
        raise misconfigured(
            name,
            f"{name} is required with iceberg.tables.route-field={config.route_field!r}: without "
            "it the table gets no record. Set it, or remove the table from iceberg.tables",
        )
    try:
        return compiled(regex)
    except ValueError as error:
        raise misconfigured(name, f"{name}={regex!r} {error}") from None


def _partition(key: str, text: str) -> tuple[PartitionField, ...]:
    fields = []
    for part in _PARTS.findall(text):
        expression = part.strip()
        if not expression:
            continue
        match = _TRANSFORM.fullmatch(expression)
        if match is None and re.search(r"[()]", expression) is None:
            fields.append(PartitionField(expression))
            continue
        transform = _TRANSFORMS.get(match["name"].lower(), "") if match else ""
        width = (match["width"] or "") if match else ""
        if match is None or not transform or (transform in _WITH_WIDTH) != bool(width):
            raise misconfigured(
                key,
                f"partition-by {expression!r} is not a column, year(c), month(c), day(c), hour(c), "
                "bucket(c, n) or truncate(c, n)",
            )
        if width and not 0 < int(width) <= _WIDEST:
            raise misconfigured(
                key, f"partition-by {expression!r}: n must be at least 1 and at most {_WIDEST}"
            )
        fields.append(PartitionField(match["column"].strip(), transform, width))
    return tuple(fields)


def check(connector: ConnectorConfig, settings: Settings) -> None:
    """Raises ConfigError, with all problems, if keys do not go together."""
    refuse(
        [
            *_of_delivery(connector, settings),
            *_of_provenance(connector, settings),
            *_of_dead_letters(connector, settings),
            *_of_namespaces(connector, settings),
        ]
    )


def _of_delivery(connector: ConnectorConfig, settings: Settings) -> Iterator[Problem]:
    if settings.config.several and connector.delivery is Delivery.AT_MOST_ONCE:
        yield Problem(
            "delivery",
            f"connector {connector.name}: delivery=at-most-once moves the positions of tables "
            "before it is known which records go to them. With several tables, or with "
            "iceberg.tables.route-field, set delivery=exactly-once",
        )


def _of_provenance(connector: ConnectorConfig, settings: Settings) -> Iterator[Problem]:
    for table in settings.tables.values():
        keyed = replace(settings.config, id_columns=table.id_columns)
        try:
            check_provenance(keyed, connector.provenance_columns, f"table {named(table.name)}")
        except ConfigError as error:
            yield from error.problems


def _of_dead_letters(connector: ConnectorConfig, settings: Settings) -> Iterator[Problem]:
    dead = connector.dead_letter_table
    if not dead:
        return
    for where, names in _named(connector, settings).items():
        if dead in names:
            yield Problem(
                "errors.deadletterqueue.table",
                f"connector {connector.name}: errors.deadletterqueue.table={dead} is in {where} "
                "too: dead letters need a table of their own",
            )
    if "." not in dead.strip("."):
        yield Problem(
            "errors.deadletterqueue.table",
            f"connector {connector.name}: errors.deadletterqueue.table={dead!r} has no "
            "namespace: set it to namespace.name",
        )


def _of_namespaces(connector: ConnectorConfig, settings: Settings) -> Iterator[Problem]:
    kind = settings.catalog["type"]
    if kind not in FLAT:
        return
    named = _named(connector, settings)
    named["errors.deadletterqueue.table"] = (connector.dead_letter_table,)
    for where, names in named.items():
        deep = [name for name in names if name.count(".") > 1]
        if deep:
            yield Problem(
                where,
                f"connector {connector.name}: {where}={deep[0]!r}: namespaces of a {kind} catalog "
                "have one level. Set it to namespace.name",
            )


def _named(connector: ConnectorConfig, settings: Settings) -> dict[str, tuple[str, ...]]:
    """The tables that each key names, without the one for dead letters."""
    config = settings.config
    named = {"iceberg.tables": config.tables}
    if config.dynamic:
        named["iceberg.tables.ledger"] = (config.ledger_of(connector.name),)
    return named
