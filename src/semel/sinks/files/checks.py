"""Keys of the connector and of the files sink that do not go together."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from semel.config import ConnectorConfig
from semel.config.extras import require
from semel.core.delivery import Delivery
from semel.core.errors import ConfigError, misconfigured
from semel.core.ledger import Rebase
from semel.core.problems import together
from semel.core.quoting import named
from semel.sinks.files.config import CLASSES, HDFS, FilesConfig
from semel.storage.places import cannot_create_exclusively, instead_of


def check(connector: ConnectorConfig, config: FilesConfig) -> None:
    """Raises ConfigError if keys of the connector and of the sink do not go together."""
    together(
        lambda: _check_format(connector, config),
        lambda: _check_avro(config),
        lambda: _check_bytes(connector, config),
        lambda: _check_delivery(connector, config),
        lambda: check_letters(connector, config, connector.topics),
        lambda: _check_excluded(connector, config),
    )


def _check_format(connector: ConnectorConfig, config: FilesConfig) -> None:
    chosen = (config.format, config.format_class, config.format_output)
    if connector.connector_class not in (*CLASSES[:2], *HDFS) and not any(chosen):
        raise misconfigured(
            "format.class",
            f"connector {connector.name}: format.class is required with connector.class="
            f"{connector.connector_class}, or format: parquet, json, csv or avro",
        )


def _check_avro(config: FilesConfig) -> None:
    if config.format_name() == "avro":
        key = "format.class" if config.format_class else "format"
        require("format=avro", "files", {"fastavro": "fastavro"}, key=key)


def _check_bytes(connector: ConnectorConfig, config: FilesConfig) -> None:
    if config.format_name() != "bytes":
        return
    if connector.provenance:
        raise misconfigured(
            "provenance",
            f"connector {connector.name}: with format=bytes a file holds values alone, so "
            "provenance cannot be written there. Set provenance=false, or another format",
        )
    if connector.dead_letter_table:
        raise misconfigured(
            "errors.deadletterqueue.table",
            f"connector {connector.name}: errors.deadletterqueue.table="
            f"{connector.dead_letter_table}: dead letters have columns, which format=bytes "
            "cannot hold. Set errors.deadletterqueue.topic.name, or another format",
        )


def _check_delivery(connector: ConnectorConfig, config: FilesConfig) -> None:
    why_not = cannot_create_exclusively(config.location())
    if connector.delivery is Delivery.AT_MOST_ONCE and why_not is not None:
        raise misconfigured(
            "delivery",
            f"connector {connector.name}: delivery=at-most-once cannot be kept: {why_not}, so two "
            "runs at once could both move the positions and write the same records. "
            f"{instead_of(config.location())}, or set delivery=at-least-once",
        )


def _check_excluded(connector: ConnectorConfig, config: FilesConfig) -> None:
    shared = set(connector.provenance_columns.values()) & set(config.exclude)
    if shared:
        raise misconfigured(
            "field.exclude.list",
            f"connector {connector.name}: field.exclude.list={','.join(config.exclude)} leaves out "
            f"{min(shared)}, which provenance=true writes",
        )


def check_letters(connector: ConnectorConfig, config: FilesConfig, topics: Collection[str]) -> None:
    """Raises ConfigError if dead letters would be among a topic's files."""
    folder = connector.dead_letter_table
    for topic in () if config.splits else topics:
        if folder == config.routed(topic):
            raise misconfigured(
                "errors.deadletterqueue.table",
                f"connector {connector.name}: errors.deadletterqueue.table={folder} is the folder "
                f"of topic {named(topic)} too: dead letters need one of their own",
            )


def check_names(connector: ConnectorConfig, where: str, rebases: Sequence[Rebase]) -> None:
    """Raises ConfigError if other records would have offsets that already name files."""
    for r in rebases:
        if r.goes_back:
            tp = r.old.topic_partition
            reason = r.hole.reason if r.hole is not None else "the log has changed"
            raise ConfigError(
                f"connector {connector.name}: {tp} cannot be read again from offset "
                f"{r.new.position} ({reason}): the files below {where} are named by offsets, and "
                f"those of offsets {r.new.position} to {r.old.position - 1} would be overwritten "
                "or duplicated. Move the files of the former log away and run semel offsets "
                "reset with the connector's file, or set another path or topics.dir"
            )
