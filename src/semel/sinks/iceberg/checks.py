"""Keys of the connector and of the Iceberg sink that do not go together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from semel.config import ConnectorConfig
from semel.core.delivery import Delivery
from semel.core.errors import ConfigError, Problem
from semel.core.problems import refuse
from semel.core.quoting import named
from semel.sinks.iceberg.catalogs import FLAT
from semel.sinks.iceberg.config import Settings
from semel.sinks.layout import check_provenance


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
    for mine in settings.tables.values():
        keyed = replace(settings.config, id_columns=mine.id_columns)
        try:
            check_provenance(keyed, connector.provenance_columns, f"table {named(mine.name)}")
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
