"""Reads each Delta table's rows and ledger at one version, for an audit."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from deltalake.fs import DeltaStorageHandler
from pyarrow import fs

from semel.config import ConnectorConfig
from semel.core.errors import ConfigError
from semel.core.ledger import Hole, LedgerEntry
from semel.core.patterns import Pattern
from semel.core.quoting import named
from semel.core.records import OFFSET, PARTITION, TIMESTAMP, TOPIC
from semel.sinks.base import Snapshot
from semel.sinks.delta.config import DeltaConfig
from semel.sinks.delta.ledger import DeltaLedger
from semel.sinks.delta.table import Table, translated
from semel.sinks.letters import PLACES, places_of
from semel.sinks.rows import places
from semel.sinks.storedkeys import StoredKeys


def take(
    connector: ConnectorConfig,
    names: Mapping[str, str],
    tables: Mapping[str, Table | None],
    letters: Table | None,
    key_fields: Sequence[str] | None,
) -> Snapshot:
    """Read ledger and results. Each table is read at one version; a topic's positions are in the
    table that holds its rows. Rows are read only for the topics in ``names``.

    Unless ``key_fields`` is None, the keys of the rows are read if there is no provenance.
    """
    provenance = connector.provenance_columns
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
        with translated(table.where):
            rows[names[topic]] = table.raw.count()
        untraced[names[topic]] = 0
        if provenance:
            _check_provenance(connector, table)
            wanted = [provenance[n] for n in (TOPIC, PARTITION, OFFSET, TIMESTAMP)]
            found = scan(table, wanted)
            records[topic] = places(found, topic)
            untraced[names[topic]] = found.column(0).null_count
        elif key_fields:
            keys[topic] = StoredKeys(scanned(table, list(key_fields)))
        elif key_fields is not None:
            unjudged[topic] = "pk.fields does not name them; set provenance=true"
    dead = {}
    if letters is not None:
        letters.renew()
        dead = places_of(connector.name, scan(letters, PLACES))
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


def _check_provenance(connector: ConnectorConfig, table: Table) -> None:
    missing = [c for c in connector.provenance_columns.values() if c not in table.columns.names]
    if missing:
        raise ConfigError(
            f"connector {connector.name}: table {table.where} has no column {named(missing[0])}, "
            "which provenance=true asks for: was that set after the table was made? Run the "
            "connector with auto.evolve=true, add the column, or audit by counts with "
            "provenance=false"
        )


def scanned(table: Table, columns: list[str]) -> Iterator[pa.RecordBatch]:
    """Some columns of all rows; text as plain strings, not as the query engine's views. Yields at
    least one batch."""
    with translated(table.where):
        reader = pa.RecordBatchReader.from_stream(table.raw.scan(columns=columns))
        schema = pa.schema(
            [
                pa.field(f.name, pa.string() if f.type == pa.string_view() else f.type)
                for f in reader.schema
            ]
        )
        yield pa.RecordBatch.from_pylist([], schema)
        for batch in reader:
            yield from pa.Table.from_batches([batch]).cast(schema).to_batches()


def scan(table: Table, columns: list[str]) -> pa.Table:
    """The same, as one table."""
    return pa.Table.from_batches(scanned(table, columns))


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
        found = name.fullmatch(entry.base_name)
        if found and pattern.fullmatch(found["topic"]):
            yield found["topic"]
