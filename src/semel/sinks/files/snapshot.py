"""Reads the files of one ledger entry, for an audit."""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
from pyarrow import csv, fs, json

from semel.config import ConnectorConfig
from semel.core.errors import ConfigError, ServiceError, TransientError
from semel.core.quoting import named
from semel.core.records import OFFSET, PARTITION, TOPIC
from semel.sinks.base import Snapshot
from semel.sinks.files.config import FilesConfig
from semel.sinks.files.ledger import Ledger, folder_of
from semel.sinks.letters import PLACES, SCHEMA, SHOWN, Place, places_of, some_of
from semel.sinks.rows import places
from semel.storage.store import Store, at_once

_TRIES = 20
_BLOCK = 64 * 1024 * 1024
"""The maximum length of a line in bytes."""
_WHOLE = 4 * 1024 * 1024
"""A file of up to this many bytes is read from a remote store by one request, not by several."""
_CODECS = {"gz": "gzip", "zst": "zstd"}
_PLACE = pa.schema([("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64())])


def take(
    connector: ConnectorConfig,
    config: FilesConfig,
    store: Store,
    ledger: Ledger,
    patterns: Mapping[str, re.Pattern[str]],
) -> Snapshot:
    """Read ledger and results. A run may continue meanwhile: what it adds is left out.

    ``patterns`` matches the names of each topic's files. They tell the topic of a file where
    transforms send the records of several topics to one folder, or those of one to several.
    """
    folders = {t: "" if config.splits else folder_of(config.routed(t)) for t in patterns}
    dead_folder = folder_of(connector.dead_letter_table) if connector.dead_letter_table else ""
    all_folders = {*folders.values(), *([dead_folder] if dead_folder else [])}
    for _ in range(_TRIES):
        state = ledger.newest()
        ledger.finish(state)
        listed = {f: visible(store, f) for f in all_folders}
        newer = ledger.since(state.sequence)
        if newer is not None:
            break
    else:
        raise TransientError(f"{store.where}: the ledger advances faster than files are listed")
    listed = {f: {n: s for n, s in sizes.items() if n not in newer} for f, sizes in listed.items()}
    reader = Reader(store, config.format_name())
    records: dict[str, pa.Table] = {}
    rows: dict[str, int] = {}
    untraced: dict[str, int] = {}
    unjudged: dict[str, str] = {}
    targets = {t: f"{store.where}/{f}" for t, f in folders.items()}
    if config.routes:
        targets = {t: f"the files of topic {named(t)} in {where}" for t, where in targets.items()}
    provenance = connector.provenance_columns
    for topic, folder in folders.items():
        files = listed[folder]
        if config.routes:
            files = _of(files, patterns[topic], dead_folder)
        untraced[targets[topic]] = 0
        if not provenance:
            if reader.counts:
                rows[targets[topic]] = reader.count(files)
            elif files:
                unjudged[topic] = "bytes do not show how many values a file holds (format=bytes)"
            continue
        columns = [provenance[n] for n in (TOPIC, PARTITION, OFFSET)]
        origins = reader.columns(files, dict(zip(columns, _PLACE.types, strict=True)))
        if origins.num_rows and origins.column(0).null_count == origins.num_rows:
            raise ConfigError(
                f"connector {connector.name}: the files in {targets[topic]} have no column "
                f"{named(columns[0])}, which provenance=true asks for: was that set after they "
                "were written? Audit by counts with provenance=false"
            )
        rows[targets[topic]] = origins.num_rows
        records[topic] = places(origins, topic)
        untraced[targets[topic]] = origins.column(0).null_count
    dead = {}
    if dead_folder:
        dead = places_of(connector.name, _letters(reader, listed[dead_folder]))
    entries = [e for _, e in sorted(state.entries.items())]
    return Snapshot(entries, state.holes, records, rows, untraced, targets, dead, unjudged=unjudged)


def _letters(reader: Reader, files: Mapping[str, int]) -> pa.Table:
    kinds = {n: SCHEMA.field(n).type for n in PLACES}
    try:
        return reader.columns(files, kinds)
    except ServiceError:  # there may be a time that Arrow cannot hold; letters need none
        kinds.pop("timestamp")
        return reader.columns(files, kinds)


def dead_letters(
    connector: ConnectorConfig,
    config: FilesConfig,
    store: Store,
    beyond: Place | None,
    most: int,
    *,
    backwards: bool,
) -> pa.Table:
    """See :class:`~semel.sinks.letters.LetterStore`."""
    kind = config.format_name()
    names = ["connector", *(n for n in SHOWN.names if n != "timestamp"), "format"]
    files = visible(store, folder_of(connector.dead_letter_table))
    letters = Reader(store, kind).columns(files, {n: SCHEMA.field(n).type for n in names})
    if kind in ("json", "csv"):  # which hold bytes in base64
        for name in ("key", "value"):
            texts = letters.column(name).to_pylist()
            values = pa.array([None if t is None else b64decode(t) for t in texts], pa.binary())
            letters = letters.set_column(letters.column_names.index(name), name, values)
    return some_of(connector.name, letters, beyond, most, backwards=backwards)


def _of(files: Mapping[str, int], name: re.Pattern[str], but: str) -> dict[str, int]:
    """The files with such a name, except those in one folder."""
    return {
        path: size
        for path, size in files.items()
        if name.fullmatch(path.rpartition("/")[2]) and path.partition("/")[0] != but
    }


def visible(store: Store, folder: str) -> dict[str, int]:
    """The files that a reader of the folder sees, and their bytes."""
    sizes = store.below(folder)
    return {n: size for n, size in sizes.items() if not any(map(_hidden, n.split("/")))}


def _hidden(part: str) -> bool:
    """Whether readers ignore a path, by Spark's rule: a folder that names a value is visible,
    whatever the field's name."""
    return part.startswith(".") or (part.startswith("_") and "=" not in part)


class Reader:
    """Reads some columns of files, which are given with their sizes in bytes."""

    def __init__(self, store: Store, kind: str) -> None:
        self._store = store
        self._kind = kind

    @property
    def counts(self) -> bool:
        """Whether files show how many rows they have."""
        return self._kind != "bytes"

    def count(self, files: Mapping[str, int]) -> int:
        return int(self.columns(files, {"__semel_none": pa.string()}).num_rows)

    def columns(self, files: Mapping[str, int], kinds: Mapping[str, pa.DataType]) -> pa.Table:
        """Some columns of all files; null where a file lacks a column."""
        schema = pa.schema(list(kinds.items()))
        if not files:
            return schema.empty_table()
        parquet = self._kind == "parquet"
        read_file = self._parquet if parquet else self._text
        far = self._store.far
        apart = [n for n, size in files.items() if not parquet or (far and size <= _WHOLE)]
        with self._reading():
            parts = at_once(lambda name: read_file(name, schema), apart)
            if large := files.keys() - set(apart):
                parts.append(self._dataset(sorted(large), schema).to_table())
            return pa.concat_tables(parts)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Translate errors about files of other programs, whose format or types may differ."""
        try:
            with self._store.translated():
                yield
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise ServiceError(f"{self._store.where}: {error}") from None

    def _dataset(self, names: list[str], schema: pa.Schema) -> Any:
        filesystem = fs.PyFileSystem(fs.FSSpecHandler(self._store.filesystem))
        paths = [self._store.path(n) for n in names]
        return ds.dataset(paths, schema=schema, format="parquet", filesystem=filesystem)

    def _parquet(self, name: str, schema: pa.Schema) -> pa.Table:
        content = pa.BufferReader(self._store.read(name))
        return ds.ParquetFileFormat().make_fragment(content).to_table(schema=schema)

    def _text(self, name: str, schema: pa.Schema) -> pa.Table:
        with self._store.filesystem.open(self._store.path(name), "rb") as stream:
            if self._kind == "avro":
                try:
                    return _avro(stream, schema)
                except (ValueError, EOFError, OverflowError) as error:
                    raise ServiceError(f"{self._store.where}/{name}: {error}") from None
            codec = _CODECS.get(name.rpartition(".")[2])
            plain = pa.CompressedInputStream(stream, codec) if codec else stream
            return _json(plain, schema) if self._kind == "json" else _csv(plain, schema)


def _json(stream: Any, schema: pa.Schema) -> pa.Table:
    def times_as(kind: pa.DataType) -> pa.Schema:
        return pa.schema(
            [f.with_type(kind) if pa.types.is_timestamp(f.type) else f for f in schema]
        )

    millis = times_as(pa.int64())  # as Connect's JSON has them
    options = json.ParseOptions(explicit_schema=millis, unexpected_field_behavior="ignore")
    read = json.read_json(stream, json.ReadOptions(block_size=_BLOCK), options)
    return read.cast(times_as(pa.timestamp("ms"))).cast(schema)


def _csv(stream: Any, schema: pa.Schema) -> pa.Table:
    options = csv.ConvertOptions(
        include_columns=schema.names,
        include_missing_columns=True,
        column_types=schema,
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )
    return csv.read_csv(
        stream,
        csv.ReadOptions(block_size=_BLOCK),
        # A null in a lone column is an empty line.
        csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
        options,
    )


def _avro(stream: Any, schema: pa.Schema) -> pa.Table:
    import fastavro

    read: Iterator[Any] = iter(fastavro.reader(stream))
    rows = [{n: r.get(n) for n in schema.names} for r in read]
    return pa.Table.from_pylist(rows, schema=schema)
