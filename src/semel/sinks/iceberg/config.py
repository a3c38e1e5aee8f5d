"""How the Iceberg sink's keys combine, and the keys of single tables."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

from semel.config import read, under
from semel.core.errors import ConfigError, Problem, misconfigured
from semel.core.patterns import Pattern, compiled
from semel.core.problems import refuse, together
from semel.sinks.iceberg.catalogs import catalog
from semel.sinks.iceberg.keys import IcebergKeys

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
_TRANSFORM = re.compile(r"(?P<name>\w+)\((?P<column>[^(),]+?)(?:,\s*(?P<width>\d+)\s*)?\)")
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


def is_table_name(name: str) -> bool:
    """Whether it has a namespace."""
    parts = name.split(".")
    return len(parts) > 1 and all(p.strip() for p in parts)


@dataclass(frozen=True)
class IcebergConfig(IcebergKeys):
    """What the sink writes, where, and under which key."""

    folds_names = False

    def __post_init__(self) -> None:
        problems = []
        if self.dynamic:
            if self.tables:
                problems.append(
                    Problem(
                        "iceberg.tables",
                        f"iceberg.tables={','.join(self.tables)} and "
                        "iceberg.tables.dynamic-enabled=true exclude each other: remove one",
                    )
                )
            if not self.route_field:
                problems.append(
                    Problem(
                        "iceberg.tables.dynamic-enabled",
                        "iceberg.tables.dynamic-enabled=true needs "
                        "iceberg.tables.route-field, which names each record's table",
                    )
                )
            if self.ledger and not is_table_name(self.ledger):
                problems.append(
                    Problem(
                        "iceberg.tables.ledger",
                        f"iceberg.tables.ledger={self.ledger!r} has no namespace: set it to "
                        "namespace.name",
                    )
                )
        elif not self.tables:
            problems.append(
                Problem(
                    "iceberg.tables",
                    "iceberg.tables is required: the tables, each as namespace.name",
                )
            )
        if self.ledger and not self.dynamic:
            problems.append(
                Problem(
                    "iceberg.tables.ledger",
                    f"iceberg.tables.ledger={self.ledger!r} has no effect: tables that are "
                    "listed hold the positions themselves. Remove it, or set "
                    "iceberg.tables.dynamic-enabled=true",
                )
            )
        problems += [
            Problem(
                "iceberg.tables",
                f"iceberg.tables={table!r} has no namespace: set it to namespace.name",
            )
            for table in self.tables
            if not is_table_name(table)
        ]
        if len(set(self.tables)) < len(self.tables):
            problems.append(
                Problem(
                    "iceberg.tables", f"iceberg.tables={','.join(self.tables)} names a table twice"
                )
            )
        if self.upsert and self.several:
            where = "iceberg.tables.upsert-mode-enabled"
            asked = f"{where}=true"
            if self.cdc_field:
                where = "iceberg.tables.cdc-field"
                asked = f"{where}={self.cdc_field}"
            problems.append(
                Problem(
                    where,
                    f"{asked} with several tables or a "
                    "route-field: if two records of a key went to different tables, the first "
                    "table would keep the older row. Run a connector for each table, and filter "
                    "the records in a transform",
                )
            )
        if self.case_insensitive:
            problems.append(
                Problem(
                    "iceberg.tables.schema-case-insensitive",
                    "iceberg.tables.schema-case-insensitive=true is not available: fields are "
                    "matched as they are written. Set it to false",
                )
            )
        if self.delete_enabled and not (self.upsert and self.key_source == "record_key"):
            problems.append(
                Problem(
                    "delete.enabled",
                    "delete.enabled=true needs iceberg.tables.upsert-mode-enabled=true and "
                    "pk.mode=record_key, because a tombstone has a key and no value",
                )
            )
        if problems:
            raise ConfigError(*problems)

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
                    f"iceberg.table.{name}={value!r}: iceberg.tables is "
                    f"{','.join(config.tables)}, and a table's settings are "
                    f"{', '.join(_OF_A_TABLE)}",
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
    chosen, _, *made = together(
        lambda: catalog(under(raw, "iceberg.catalog.")),
        lambda: refuse(problems),
        *(partial(_of_a_table, config, table, mine) for table, mine in of_tables.items()),
    )
    return Settings(
        config,
        dict(zip(of_tables, made, strict=True)),
        chosen,
        under(raw, "iceberg.tables.auto-create-props."),
        under(raw, "iceberg.tables.write-props."),
    )


def _of_a_table(config: IcebergConfig, table: str, mine: Mapping[str, str]) -> TableSettings:
    columns = tuple(c.strip() for c in mine.get("id-columns", "").split(",") if c.strip())
    by, where = mine.get("partition-by", ""), f"iceberg.table.{table}.partition-by"
    if not by:
        by, where = config.partition_by, "iceberg.tables.default-partition-by"
    partition_by, route = together(
        lambda: _partition(where, by),
        lambda: _route(config, table, mine.get("route-regex", "")),
    )
    branch = mine.get("commit-branch", "").strip() or config.commit_branch
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
    found = []
    for part in _PARTS.findall(text):
        wanted = part.strip()
        if not wanted:
            continue
        match = _TRANSFORM.fullmatch(wanted)
        if match is None and re.search(r"[()]", wanted) is None:
            found.append(PartitionField(wanted))
            continue
        transform = _TRANSFORMS.get(match["name"].lower(), "") if match else ""
        width = (match["width"] or "") if match else ""
        if match is None or not transform or (transform in _WITH_WIDTH) != bool(width):
            raise misconfigured(
                key,
                f"partition-by {wanted!r} is not a column, year(c), month(c), day(c), hour(c), "
                "bucket(c, n) or truncate(c, n)",
            )
        found.append(PartitionField(match["column"].strip(), transform, width))
    return tuple(found)
