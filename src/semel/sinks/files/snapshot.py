"""What an audit needs of the files: those that one entry of the ledger stands for."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
from pyarrow import csv, fs

from semel.config import ConnectorConfig
from semel.errors import ConfigError, ServiceError, TransientError
from semel.records import OFFSET, PARTITION, TOPIC
from semel.sinks.base import Snapshot
from semel.sinks.files.ledger import Ledger, folder_of
from semel.sinks.files.store import Store
from semel.sinks.letters import PLACES, places_of
from semel.sinks.rows import places

_TRIES = 20
_PLACE = pa.schema([("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64())])


def take(
    connector: ConnectorConfig, store: Store, ledger: Ledger, kind: str, topics: Collection[str]
) -> Snapshot:
    """Read ledger and results. A run may go on meanwhile: what it adds is left out."""
    folders = {t: folder_of(t) for t in topics}
    dead_folder = folder_of(connector.dead_letter_table) if connector.dead_letter_table else ""
    for _ in range(_TRIES):
        state = ledger.newest()
        ledger.finish(state)
        listed = {f: visible(store, f) for f in [*folders.values(), dead_folder] if f}
        newer = ledger.since(state.sequence)
        if newer is not None:
            break
    else:
        raise TransientError(f"{store.where}: the ledger goes on faster than files are listed")
    listed = {f: [n for n in names if n not in newer] for f, names in listed.items()}
    reader = Reader(store, kind)
    records: dict[str, pa.Table] = {}
    rows: dict[str, int] = {}
    untraced: dict[str, int] = {}
    targets = {t: f"{store.where}/{f}" for t, f in folders.items()}
    provenance = connector.provenance_columns
    for topic, folder in folders.items():
        names = listed[folder]
        untraced[targets[topic]] = 0
        if not provenance:
            rows[targets[topic]] = reader.count(names)
            continue
        wanted = [provenance[n] for n in (TOPIC, PARTITION, OFFSET)]
        found = reader.columns(names, dict(zip(wanted, _PLACE.types, strict=True)))
        if found.num_rows and found.column(0).null_count == found.num_rows:
            raise ConfigError(
                f"connector {connector.name}: the files in {targets[topic]} have no column "
                f"{wanted[0]}, which provenance=true asks for: was that set after they were "
                "written? Audit by counts with provenance=false"
            )
        rows[targets[topic]] = found.num_rows
        records[topic] = places(found, topic)
        untraced[targets[topic]] = found.column(0).null_count
    dead = {}
    if dead_folder:
        kinds = {n: _PLACE.field(n).type if n in _PLACE.names else pa.string() for n in PLACES}
        dead = places_of(connector.name, reader.columns(listed[dead_folder], kinds))
    entries = [e for _, e in sorted(state.entries.items())]
    return Snapshot(entries, state.holes, records, rows, untraced, targets, dead)


def visible(store: Store, folder: str) -> list[str]:
    """The files that a reader of the folder sees."""
    found = store.below(folder)
    return [n for n in found if not any(p[0] in "._" for p in n.split("/") if p)]


class Reader:
    """Reads some columns of files."""

    def __init__(self, store: Store, kind: str) -> None:
        self._store = store
        self._kind = kind

    def count(self, names: Sequence[str]) -> int:
        if self._kind == "avro":
            return sum(1 for _ in self._avro(names))
        return int(self._dataset(names, None).count_rows()) if names else 0

    def columns(self, names: Sequence[str], kinds: Mapping[str, pa.DataType]) -> pa.Table:
        """Null where a file has no such column."""
        schema = pa.schema(list(kinds.items()))
        if not names:
            return schema.empty_table()
        if self._kind == "avro":
            found = [{n: r.get(n) for n in kinds} for r in self._avro(names)]
            return pa.Table.from_pylist(found, schema=schema)
        return self._dataset(names, schema).to_table()

    def _dataset(self, names: Sequence[str], schema: pa.Schema | None) -> Any:
        filesystem = fs.PyFileSystem(fs.FSSpecHandler(self._store.filesystem))
        paths = [self._store.path(n) for n in names]
        try:
            return ds.dataset(paths, schema=schema, format=self._format(), filesystem=filesystem)
        except pa.ArrowInvalid as error:
            raise ServiceError(f"{self._store.where}: {error}") from None

    def _format(self) -> Any:
        if self._kind == "json":
            return ds.JsonFileFormat()
        if self._kind == "csv":
            return ds.CsvFileFormat(
                parse_options=csv.ParseOptions(newlines_in_values=True),
                convert_options=csv.ConvertOptions(
                    strings_can_be_null=True, quoted_strings_can_be_null=False
                ),
            )
        return self._kind

    def _avro(self, names: Sequence[str]) -> Iterator[dict[str, Any]]:
        import fastavro

        for name in names:
            with self._store.filesystem.open(self._store.path(name), "rb") as stream:
                for record in fastavro.reader(stream):
                    assert isinstance(record, dict)
                    yield record
