"""Converts records to rows of files, and writes the files of one task.

A topic's files have all fields that were seen so far, each with one type.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from semel.config import ConnectorConfig
from semel.converters.json.columns import JSON
from semel.core.errors import ConfigError, ServiceError, TransientError
from semel.core.quoting import all_named, named, typed
from semel.core.records import (
    OFFSET,
    PARTITION,
    TOPIC,
    Commit,
    Records,
    absences,
    all_rejected,
    some_rejected,
    value_columns,
)
from semel.sinks import convert
from semel.sinks import rows as sink_rows
from semel.sinks.base import no_columns_yet
from semel.sinks.casts import without_json, without_text
from semel.sinks.files.config import FilesConfig
from semel.sinks.files.folders import Clock, Folders
from semel.sinks.files.formats import Format
from semel.sinks.files.ledger import HiddenFile, folder_of
from semel.sinks.files.writer import FileKey, FileWriter, Naming, Rows, in_order
from semel.sinks.layout import layout
from semel.sinks.staging import Stager
from semel.storage.store import Store

_LONGEST = 249
"""The length of the longest topic name that Kafka allows."""
_VERSION = re.compile(r"(\d{6})\.schema")


class Schemas:
    """The fields that one connector knows of its topics."""

    def __init__(self, store: Store, folder: str) -> None:
        self.store = store
        self._folder = f"{folder}/schemas"
        self._versions: dict[str, tuple[int, pa.Schema]] = {}

    def find(self, topic: str) -> pa.Schema | None:
        """The fields as they were when the topic was first asked for, or last extended here."""
        if topic not in self._versions:
            self.renew(topic)
        version, schema = self._versions.get(topic, (0, None))
        return schema if version else None

    def renew(self, topic: str) -> None:
        """Read the fields again: another task may have added some."""
        folder = self._of(topic)
        versions = [int(m[1]) for m in map(_VERSION.fullmatch, self.store.names(folder)) if m]
        newest = max(versions, default=0)
        if newest and self._versions.get(topic, (0, None))[0] != newest:
            name = f"{folder}/{newest:06}.schema"
            try:
                content = self.store.read(name)
            except FileNotFoundError:
                raise TransientError(f"{self.store.where}/{name} has been removed") from None
            self._versions[topic] = newest, _schema(name, content)

    def widened(self, topic: str, fields: list[pa.Field]) -> pa.Schema:
        """The topic's fields, with these added where they are new."""
        while True:
            version, schema = self._versions.get(topic, (0, pa.schema([])))
            new = [f for f in fields if f.name not in schema.names]
            if not new:
                return schema
            self.renew(topic)
            if self._versions.get(topic, (0, None))[0] != version:
                continue
            wider = pa.schema([*schema, *map(_stored, new)])
            try:
                name = f"{self._of(topic)}/{version + 1:06}.schema"
                self.store.create(name, _text(topic, wider))
                self._versions[topic] = version + 1, wider
            except FileExistsError:
                self.renew(topic)

    def _of(self, topic: str) -> str:
        return f"{self._folder}/{folder_of(topic)}"


def _stored(field: pa.Field) -> pa.Field:
    """A field in a type that files have."""
    kind = convert.column_type(field.type, convert.common_type)
    says = {convert.HOLDS_JSON: b"1"} if field.type == JSON else None
    return pa.field(field.name, kind, metadata=says)


def _text(topic: str, schema: pa.Schema) -> bytes:
    facts = {
        "topic": topic,
        "fields": {f.name: str(f.type) for f in schema},
        "arrow": base64.b64encode(schema.serialize()).decode(),
    }
    return json.dumps(facts, indent=1).encode()


def _schema(name: str, content: bytes) -> pa.Schema:
    try:
        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(json.loads(content)["arrow"])))
    except (ValueError, KeyError, TypeError, pa.ArrowException):
        raise ServiceError(f"{name} is not a schema. Was it changed by hand? Restore it") from None


@dataclass(frozen=True, slots=True)
class Arranger:
    """Makes rows of a topic's files from records, and says which folder each belongs to.

    ``clock`` gives the times by which files are rotated; None if they are not rotated by time.
    """

    connector: ConnectorConfig
    config: FilesConfig
    schemas: Schemas
    folders: Folders
    clock: Clock | None
    naming: Naming
    kind: Format

    def fields(self, records: Records) -> pa.Schema:
        """The fields of the files that the records go to, including the records' own. Objects of
        JSON have only these.

        Raises:
            ConfigError: the configuration leaves out every field.
            RowsRejected: transforms send the records where no files can be.
        """
        target = self.target(records)
        arranged = layout(self.config, self.connector.provenance_columns, records, deletes=False)
        if self.kind.name == "json":
            by_name = {f.name: f for f in arranged.fields()}
            own = [by_name.get(n, pa.field(n, pa.string())) for n in arranged.columns]
            return pa.schema([_stored(f) for f in own])
        existing = self.schemas.find(target)
        fields = value_columns(records.rows.column_names)
        if fields and existing is None and not set(fields) & set(arranged.columns):
            name = "fields.whitelist" if self.config.include else "field.exclude.list"
            chosen = ",".join(self.config.include or self.config.exclude)
            raise ConfigError(
                f"connector {self.connector.name}: {name}={chosen} leaves nothing of topic "
                f"{named(records.topic)}, whose values have {all_named(fields)}"
            )
        return self.schemas.widened(target, arranged.fields())

    def target(self, records: Records) -> str:
        """The topic whose folder the records go to.

        Raises:
            RowsRejected: transforms send them where no files can be.
        """
        target = self.config.routed(records.topic)
        why_not = self._refusal(target, records) if self.config.splits else ""
        if why_not:
            why = f"transforms send it to topic {named(target)}: {why_not}"
            raise all_rejected(why, records.rows, records.tombstones)
        return target

    def _refusal(self, target: str, records: Records) -> str | None:
        """Why the records' files cannot be in a topic's folder; None if they can."""
        if not 0 < len(target) <= _LONGEST:
            return f"a topic's name has 1 to {_LONGEST} characters"
        if target == self.connector.dead_letter_table:
            return "its folder holds dead letters (errors.deadletterqueue.table)"
        tables = [t for t in (records.rows, records.tombstones) if t is not None and t.num_rows]
        partition = max((pc.max(t.column(PARTITION)).as_py() for t in tables), default=0)
        file = self.naming.longest_name(records.origin, partition, self.kind.extension)
        store = self.schemas.store
        if store.too_long("_", file):  # no record is to blame
            return None
        return store.too_long(folder_of(target), file)

    def _check_bytes(self, topic: str, rows: pa.Table) -> None:
        """Raises ConfigError: values are not bytes."""
        if rows.column_names != ["value"] or not pa.types.is_binary(rows.schema.types[0]):
            columns = ", ".join(f"{named(f.name)} {typed(f.type)}" for f in rows.schema)
            raise ConfigError(
                f"connector {self.connector.name}: format=bytes writes values that are bytes, and "
                f"those of topic {named(topic)} are {columns}. Set value.converter="
                "org.apache.kafka.connect.converters.ByteArrayConverter, or another format"
            )

    def arranged(self, records: Records) -> tuple[pa.Table, Rows]:
        """Records as rows of their topic's files, and where they belong.

        Raises:
            RowsRejected: records that do not fit.
        """
        topic, gone = self.config.routed(records.topic), records.tombstones
        if gone is not None and gone.num_rows:
            raise all_rejected("the value is null (behavior.on.null.values=fail)", gone)
        source = records.rows
        columns = self.fields(records)
        if not columns.names and self.kind.name != "json":  # Parquet has no rows without columns
            raise no_columns_yet(source)
        rows = sink_rows.inserts(
            self.config, self.connector.provenance_columns, records, columns
        ).table
        if self.kind.name == "bytes":
            self._check_bytes(topic, rows)
        unwritten: dict[int, str] = {}
        if self.kind.name == "json":
            unwritten = without_json(rows, years=False)  # times are numbers there
        elif self.kind.name == "csv":
            unwritten = without_text(rows)
        if unwritten:
            raise some_rejected(source, unwritten)
        rows = self.kind.rows(rows, source.num_rows, absences(source))
        where = Rows(
            topic,
            folder_of(topic),
            source.column(TOPIC),
            source.column(PARTITION),
            source.column(OFFSET),
            self.folders.by(records),
            self.folders.folder,
            None if self.clock is None else self.clock.times(records),
        )
        return rows, where


class FilesStager(Stager):
    """The files of one task."""

    def __init__(self, arranger: Arranger, writer: FileWriter) -> None:
        self._arranger = arranger
        self._writer = writer
        self._renewed: set[str] = set()

    def add(self, commit: Commit) -> None:
        parts = [r for r in commit.records if r.count]
        for topic in set(map(self._arranger.target, parts)) - self._renewed:
            # A worker process outlives its triggers: other tasks may have added fields since.
            self._arranger.schemas.renew(topic)
            self._renewed.add(topic)
        # All are arranged before any is written: a batch that does not fit leaves nothing behind.
        by_place: dict[FileKey, list[pa.Table]] = {}
        for records in parts:
            for place, rows in self._writer.parts(*self._arranger.arranged(records)):
                by_place.setdefault(place, []).append(rows)
        self._writer.add([(place, in_order(tables)) for place, tables in by_place.items()])

    def finish(self) -> Sequence[HiddenFile]:
        return self._writer.finish()

    def discard(self) -> None:
        self._writer.discard()
