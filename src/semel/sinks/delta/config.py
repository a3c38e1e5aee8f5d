"""The Delta Lake sink's keys. Keys that the PostgreSQL sink has, too, mean the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from semel.config import HIGH, LOW, key
from semel.core.errors import Problem
from semel.core.problems import refuse
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
    problems_of_names,
    selects,
    table_mapping_key,
    table_name_format_key,
)
from semel.sinks.unavailable import placeholder_key

CLASSES = ("delta", "semel.delta.DeltaSink")

_STORES = (
    *("file", "s3", "s3a", "gs", "az", "azure", "abfs", "abfss", "adl"),
    *("hdfs", "viewfs", "lakefs", "oss", "obs", "cos"),
)
"""The schemes that delta-rs knows; for any other, it only says that there is no table."""

IGNORED = {
    "connection.url": "tables are found by delta.table.path",
    "batch.size": "maxOffsetsPerTrigger bounds a commit",
    "quote.sql.identifiers": "column names are taken as they are",
}


@dataclass(frozen=True)
class DeltaConfig(RoutedConfig):
    """What the sink writes, where, and under which key."""

    table_path: str = key(
        "delta.table.path",
        doc="Directory or URL (s3://, gs://, abfss://, file://) that holds the tables.",
        group="Storage",
    )
    table_name_format: str = table_name_format_key("The table of a topic, below delta.table.path.")
    table_mapping: tuple[str, ...] = table_mapping_key()
    insert_mode: str = key(
        "insert.mode",
        "insert",
        "How rows are written: insert appends, upsert merges by key.",
        choices=("insert", "upsert"),
        importance=HIGH,
        group="Writes",
    )
    pk_mode: str = pk_mode_key()
    pk_fields: tuple[str, ...] = pk_fields_key()
    delete_enabled: bool = delete_enabled_key(
        "Tombstones delete; needs insert.mode=upsert and pk.mode=record_key."
    )
    auto_create: bool = auto_create_key()
    auto_evolve: bool = auto_evolve_key()
    partition_by: tuple[str, ...] = key(
        "partition.by",
        (),
        "Columns that a created table is partitioned by; they cannot be of type binary, array, "
        "struct or map.",
        group="DDL",
    )
    include: tuple[str, ...] = include_key()
    exclude: tuple[str, ...] = exclude_key()
    target_file_size: int = key(
        "target.file.size",
        128 * 1024 * 1024,
        "A data file is closed when it has reached this size.",
        at_least=1024,
        importance=LOW,
        group="Data Files",
    )
    auto_compact: bool = key(
        "auto.compact", True, "Compact small files into large ones, in commits that change no data."
    )
    compact_min_files: int = key(
        "auto.compact.min.files",
        50,
        "Number of small files (less than half of target.file.size) that a run adds before it "
        "compacts the table.",
        at_least=2,
        importance=LOW,
    )
    codec: str = key(
        "parquet.codec",
        "zstd",
        "Compression of data files: zstd, snappy, gzip or none.",
        choices=("zstd", "snappy", "gzip", "none"),
        importance=LOW,
    )
    placeholder: str = placeholder_key()
    folds_names = False

    def __post_init__(self) -> None:
        refuse(self._problems())

    def _problems(self) -> Iterator[Problem]:
        scheme, separator, _ = self.table_path.partition("://")
        if separator and scheme not in _STORES:
            yield Problem(
                "delta.table.path",
                f"delta.table.path={self.table_path}: {scheme}:// is not a store that "
                "delta-rs knows. Set s3://, gs://, abfss:// or a directory",
            )
        if len(set(self.partition_by)) < len(self.partition_by):
            yield Problem(
                "partition.by", f"partition.by={','.join(self.partition_by)} names a column twice"
            )
        if self.insert_mode == "upsert" and self.pk_mode == "none":
            yield Problem(
                "insert.mode",
                "insert.mode=upsert needs a key: set pk.mode to kafka, record_key or record_value",
            )
        if self.delete_enabled and (self.pk_mode, self.insert_mode) != ("record_key", "upsert"):
            yield Problem(
                "delete.enabled",
                "delete.enabled=true needs insert.mode=upsert and pk.mode=record_key, not "
                f"{self.insert_mode} and {self.pk_mode}",
            )
        yield from problems_of_key(self.pk_mode, self.pk_fields)
        if self.pk_mode == "record_value":
            yield from left_out_of_the_key(self.pk_fields, self.exclude)
        yield from problems_of_field_lists(self.include, self.exclude)
        yield from problems_of_names(
            "table.name.format",
            self.table_name_format,
            "topics.to.tables.mapping",
            self.table_mapping,
            "table",
        )

    def table(self, topic: str) -> str:
        """The target of a topic, below ``delta.table.path``."""
        topic = self.routed(topic)
        mapping: Mapping[str, str] = dict(p.split(":", maxsplit=1) for p in self.table_mapping)
        return mapping.get(topic) or self.table_name_format.replace("${topic}", topic)

    def location(self, table: str) -> str:
        """The URL or directory of a table."""
        return f"{self.table_path.rstrip('/')}/{table}"

    def takes(self, topic: str, field: str) -> bool:
        """Whether a value field is written; lists may hold ``field`` or ``topic:field``."""
        key = self.pk_fields if self.pk_mode == "record_value" else ()
        return selects(self.include, self.exclude, self.routed(topic), field, key)
