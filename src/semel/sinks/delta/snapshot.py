"""Reads each Delta table's rows and ledger at one version, for an audit."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import pyarrow as pa
from deltalake.fs import DeltaStorageHandler
from pyarrow import fs

from semel.config import ConnectorConfig
from semel.core.ledger import Hole, LedgerEntry
from semel.core.patterns import Pattern
from semel.core.quoting import named
from semel.sinks.base import Snapshot
from semel.sinks.delta.config import DeltaConfig
from semel.sinks.delta.ledger import DeltaLedger
from semel.sinks.delta.table import Table, translated
from semel.sinks.lake.reading import keys_in, places_in
from semel.sinks.storedkeys import StoredKeys


def take(
    connector: ConnectorConfig,
    names: Mapping[str, str],
    tables: Mapping[str, Table | None],
    dead: Mapping[str, pa.Table],
    key_fields: Sequence[str] | None,
) -> Snapshot:
    """Read ledger and results. Each table is read at one version; a topic's positions are in the
    table that holds its rows. Rows are read only for the topics in ``names``.

    Unless ``key_fields`` is None, the keys of the rows are read if there is no provenance.
    """
    entries: list[LedgerEntry] = []
    holes: list[Hole] = []
    records: dict[str, pa.Table] = {}
    rows: dict[str, int] = {}
    untraced: dict[str, int] = {}
    keys: dict[str, StoredKeys] = {}
    unjudged: dict[str, str] = {}
    for topic, table in tables.items():
        if table is None:
            continue
        ledger = DeltaLedger(table, connector.name)
        entries += ledger.entries(topic)
        holes += ledger.holes(topic)
        if topic not in names:
            continue
        rows[names[topic]], untraced[names[topic]] = table.count(), 0
        if connector.provenance_columns:
            places, untraced[names[topic]] = places_in(
                connector, table, [topic], partial(_lacks, table)
            )
            records |= places
        elif key_fields:
            keys[topic] = keys_in(table, key_fields)
        elif key_fields is not None:
            unjudged[topic] = "pk.fields does not name them; set provenance=true"
    return Snapshot(
        entries,
        holes,
        records,
        rows,
        untraced,
        dict(names),
        dead,
        keys=keys,
        unjudged=unjudged,
    )


def _lacks(table: Table, column: str) -> str:
    return (
        f"table {table.where} has no column {named(column)}, which provenance=true asks for: was "
        "that set after the table was made? Run the connector with auto.evolve=true, add the "
        "column, or audit by counts with provenance=false"
    )


def topics_of_tables(
    config: DeltaConfig, options: Mapping[str, str], pattern: Pattern
) -> Iterator[str]:
    """The topics whose tables exist, by the tables' names."""
    mapped = [pair.split(":", maxsplit=1)[0] for pair in config.table_mapping]
    yield from filter(pattern.fullmatch, mapped)
    parent, _, last = config.table_name_format.rpartition("/")
    root = config.location(parent).rstrip("/")
    name = re.compile("(?P<topic>.+)".join(map(re.escape, last.split("${topic}", 1))))
    with translated(root):
        store = fs.PyFileSystem(DeltaStorageHandler(root, dict(options)))
        listed = store.get_file_info(fs.FileSelector("", recursive=False, allow_not_found=True))
    for entry in listed:
        match = name.fullmatch(entry.base_name)
        if match and pattern.fullmatch(match["topic"]):
            yield match["topic"]
