"""Keys of the connector and of the files sink that do not go together."""

from __future__ import annotations

from collections.abc import Collection

from semel.config import ConnectorConfig
from semel.delivery import Delivery
from semel.errors import ConfigError
from semel.problems import together
from semel.sinks.files.config import CLASSES, FilesConfig
from semel.sinks.files.places import cannot_create_exclusively, instead_of


def check(connector: ConnectorConfig, config: FilesConfig) -> None:
    """Raises ConfigError if keys of the connector and of the sink do not go together."""
    together(
        lambda: _check_format(connector, config),
        lambda: _check_delivery(connector, config),
        lambda: check_letters(connector, connector.topics),
        lambda: _check_excluded(connector, config),
    )


def _check_format(connector: ConnectorConfig, config: FilesConfig) -> None:
    chosen = (config.format, config.format_class, config.format_output)
    if connector.connector_class not in CLASSES[:2] and not any(chosen):
        raise ConfigError(
            f"connector {connector.name}: format.class is required with connector.class="
            f"{connector.connector_class}, or format: parquet, json, csv or avro"
        )


def _check_delivery(connector: ConnectorConfig, config: FilesConfig) -> None:
    why_not = cannot_create_exclusively(config.location())
    if connector.delivery is Delivery.AT_MOST_ONCE and why_not is not None:
        raise ConfigError(
            f"connector {connector.name}: delivery=at-most-once cannot be kept: {why_not}, so two "
            "runs at once could both move the positions and write the same records. "
            f"{instead_of(config.location())}, or set delivery=at-least-once"
        )


def _check_excluded(connector: ConnectorConfig, config: FilesConfig) -> None:
    shared = set(connector.provenance_columns.values()) & set(config.exclude)
    if shared:
        raise ConfigError(
            f"connector {connector.name}: field.exclude.list={','.join(config.exclude)} leaves out "
            f"{min(shared)}, which provenance=true writes"
        )


def check_letters(connector: ConnectorConfig, topics: Collection[str]) -> None:
    """Raises ConfigError if dead letters would stand among a topic's files."""
    folder = connector.dead_letter_table
    if folder in topics:
        raise ConfigError(
            f"connector {connector.name}: errors.deadletterqueue.table={folder} is the folder of "
            f"topic {folder} too: dead letters need one of their own"
        )
