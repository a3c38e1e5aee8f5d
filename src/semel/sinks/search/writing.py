"""Converts records to lines of bulk requests, many at a time: documents with their ids and
versions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.converters.json import duck
from semel.converters.json.nested import is_typed, nested_of
from semel.converters.json.write import joined
from semel.core.errors import ConfigError
from semel.core.ledger import TopicPartition
from semel.core.quoting import named
from semel.core.records import (
    KEY,
    OFFSET,
    ORIGIN,
    PARTITION,
    TIMESTAMP,
    TOPIC,
    Records,
    RejectedRecord,
    RowsRejected,
    absence,
    absences,
    known_times,
    nested_field,
    one_array,
    rejected,
    some_rejected,
    value_columns,
)
from semel.sinks.casts import UNFIT, only_null, unfit_rows, without_json
from semel.sinks.changes import Changes, last_of_each
from semel.sinks.convert import read_nested
from semel.sinks.jsontext import documents, moments, text
from semel.sinks.layout import provenance_conflict
from semel.sinks.search.config import TIME, SearchConfig
from semel.sinks.unavailable import in_objects, refusals, unavailable, without

GENERATION = 10**15
"""Each new generation adds this to versions, so that records that are read again are newer; see
:meth:`~semel.sinks.search.ledger.SearchLedger.generation`."""
LONGEST_ID = 512


@dataclass(frozen=True, slots=True)
class Part:
    """Lines for one index, each of one record; ``places`` say where the records were read."""

    index: str
    lines: pa.Array
    places: pa.Table
    versioned: bool = True

    def rejected(self, row: int, exception: str, reason: str) -> RejectedRecord:
        """Name the record of a line."""
        return rejected(self.places, row, reason, exception)


@dataclass(frozen=True, slots=True)
class Writer:
    """Makes lines from a connector's records. With ``passes``, keys and values that no transform
    has changed are still bytes: keys of text, and values of JSON."""

    config: SearchConfig
    provenance: Mapping[str, str]
    passes: bool

    def parts(
        self, records: Records, index: str, generation: Callable[[TopicPartition], int]
    ) -> list[Part]:
        """The lines for a topic's records; only the last change of each key.

        Raises:
            RowsRejected: records that cannot become documents.
            ConfigError: keys cannot be ids.
        """
        topic, rows = records.topic, self._with_texts(records.rows)
        gone = self._deleting(records)
        if self.config.ids_are_keys(topic):
            _check_ids(topic, rows, null_too=True)
            _check_ids(topic, gone, null_too=False)
            gone = gone.filter(gone.column(KEY).is_valid())
            if not self.config.merges:
                rows, gone = _last(rows, gone)
        elif not self.config.makes_ids:
            _check_distinct(topic, rows)
        rows = self._told(self._typed(rows))
        if unwritten := without_json(rows.select(value_columns(rows.column_names))):
            raise RowsRejected([rejected(rows, *row) for row in sorted(unwritten.items())])
        if self.config.merges:
            return self._merging(topic, index, rows, gone)
        parts = []
        if rows.num_rows:
            sources, places = self._sources(rows), rows.select(ORIGIN)
            if self.config.streams:
                ids = None if self.config.makes_ids else self._json_ids(topic, rows)
                parts.append(Part(index, creates(ids, sources), places, ids is not None))
            elif self.config.makes_ids and not self.config.ids_are_keys(topic):
                parts.append(Part(index, upserts(None, None, sources), places, False))
            else:
                versions = _versions(rows, generation)
                lines = upserts(self._json_ids(topic, rows), versions, sources)
                parts.append(Part(index, lines, places))
        if gone.num_rows:
            lines = deletes(self._json_ids(topic, gone), _versions(gone, generation))
            parts.append(Part(index, lines, gone.select(ORIGIN)))
        return parts

    def _merging(self, topic: str, index: str, rows: pa.Table, gone: pa.Table) -> list[Part]:
        """All changes in their order: none replaces the ones before it."""
        changes = [
            (updates(self._json_ids(topic, rows), self._sources(rows)), rows.select(ORIGIN))
            for rows in [rows]
            if rows.num_rows
        ]
        if gone.num_rows:
            changes.append((deletes(self._json_ids(topic, gone), None), gone.select(ORIGIN)))
        if not changes:
            return []
        lines = pa.concat_arrays([lines for lines, _ in changes])
        places = pa.concat_tables([places for _, places in changes])
        order = pa.array(np.lexsort([places.column(OFFSET), places.column(PARTITION)]))
        return [Part(index, lines.take(order), places.take(order), False)]

    def _typed(self, rows: pa.Table) -> pa.Table:
        """The rows with JSON in its own types, where only its schema tells them."""
        for place, field in enumerate(rows.schema):
            reader = nested_of(field) if is_typed(field) else None
            if reader is None or only_null(rows.column(place)):
                continue
            read = partial(read_nested, reader=reader)
            try:
                typed = read(rows.column(place))
            except UNFIT:
                unfit = unfit_rows(rows.column(place), read)
                raise RowsRejected(
                    [rejected(rows, row, f"field {named(field.name)}: {why}") for row, why in unfit]
                ) from None
            rows = rows.set_column(place, field.name, typed)
        return rows

    def _told(self, rows: pa.Table) -> pa.Table:
        """The rows, which lack what their source could not tell if they only update documents."""
        placeholder = self.config.placeholder
        names = value_columns(rows.column_names)
        if self.passes and names == ["value"] and _is_binary(rows, "value"):
            mask = in_objects(rows.column("value").cast(pa.string()), placeholder)
            gone = {"value": mask} if mask.any() else {}
        else:
            gone = unavailable({n: rows.column(n) for n in names}, (), placeholder)
        if gone and not self.config.merges:
            raise some_rejected(rows, refusals(gone, placeholder))
        absent = absences(rows)
        for name, mask in gone.items():
            rows = rows.set_column(
                rows.column_names.index(name), name, without(rows.column(name), mask)
            )
            lacks = pa.chunked_array([pa.array(mask)])
            if name in absent:
                lacks = pc.or_(lacks, absent[name])
                rows = rows.drop_columns([absence(name)])
            rows = rows.append_column(absence(name), lacks)
        return rows

    def columns(self, rows: pa.Table) -> dict[str, pa.Array]:
        """A document's fields.

        Raises:
            ConfigError: a field has the name of a provenance field.
        """
        names = {n: n for n in value_columns(rows.column_names)}
        for metadata, own in self.provenance.items():
            if own in names:
                raise provenance_conflict(metadata, own, f"{own} is a field of the values")
        names |= {own: metadata for metadata, own in self.provenance.items()}
        return {own: one_array(rows.column(name)) for own, name in names.items()}

    def ids(self, topic: str, source: pa.Table) -> pa.Array:
        """The id of each record's document."""
        if self.config.ids_are_keys(topic):
            return one_array(source.column(KEY)).cast(pa.string())
        places = [one_array(source.column(n)).cast(pa.string()) for n in ORIGIN]
        return pc.binary_join_element_wise(*places, "+")

    def _json_ids(self, topic: str, source: pa.Table) -> pa.Array:
        ids = self.ids(topic, source)
        if self.config.ids_are_keys(topic):
            ids = duck.strings(ids)
        else:
            ids = pc.binary_join_element_wise('"', ids, '"', "")
        if (routes := self._routes(source)) is None:
            return ids
        routed = pc.binary_join_element_wise(ids, ',"routing":', duck.strings(routes), "")
        return pc.if_else(routes.is_valid(), routed, ids)

    def _routes(self, source: pa.Table) -> pa.Array | None:
        """What chooses each document's shard; null where a record lacks it, and None if all
        do."""
        config = self.config
        if not config.routing:
            return None
        if config.routing_key and not config.routing_field:
            key = one_array(source.column(KEY))
            return pc.if_else(key.is_valid(), text(key), None)  # a text in quotes, as by Aiven
        names = config.routing_field.split(".")
        first = KEY if config.routing_key else names.pop(0)
        if first not in source.column_names:
            return None
        field = nested_field(one_array(source.column(first)), names)
        return None if field is None or pa.types.is_nested(field.type) else moments(field)

    def _sources(self, rows: pa.Table) -> pa.Array:
        """One JSON object per row; provenance is put in front of an object that came as text."""
        names = value_columns(rows.column_names)
        passed = self.passes and names == ["value"] and _is_binary(rows, "value")
        if not passed:
            columns = self.columns(rows)
            if self.config.streams:
                columns[TIME] = _times(rows, self.config.times)
            lacking = {n: one_array(mask) for n, mask in absences(rows).items()}
            return documents(columns, rows.num_rows, lacking)
        text = one_array(rows.column("value")).cast(pa.string())
        text = pc.replace_substring(text, "\n", " ")  # white space: in a string it would be \n
        if not self.provenance:
            return text
        own = {own: one_array(rows.column(name)) for name, own in self.provenance.items()}
        begin = pc.utf8_rtrim(documents(own, rows.num_rows), characters="}")
        text = pc.utf8_ltrim_whitespace(text)
        rest = pc.replace_substring(text, "{", "", max_replacements=1)
        comma = pc.if_else(pc.starts_with(pc.utf8_ltrim_whitespace(rest), "}"), "", ",")
        merged = pc.binary_join_element_wise(begin, comma, rest, "")
        return pc.if_else(pc.starts_with(text, "{"), merged, text)  # the server refuses the others

    def _with_texts(self, source: pa.Table) -> pa.Table:
        if not (self.passes and _is_binary(source, KEY)):
            return source
        at = source.column_names.index(KEY)
        return source.set_column(at, KEY, source.column(KEY).cast(pa.string()))

    def _deleting(self, records: Records) -> pa.Table:
        """The tombstones that delete.

        Raises:
            RowsRejected: there are some, and ``behavior.on.null.values=fail``.
        """
        gone = records.tombstones
        if gone is None or not gone.num_rows:
            return records.rows.slice(0, 0)
        if self.config.tombstones == "fail":
            why = "the value is null (behavior.on.null.values=fail)"
            every = range(gone.num_rows)
            raise RowsRejected([rejected(gone, row, why) for row in every])
        keyed = self.config.ids_are_keys(records.topic)
        return self._with_texts(gone) if keyed else gone.slice(0, 0)


def _times(rows: pa.Table, fields: Sequence[str]) -> pa.Array:
    """The time of each document: of the first field that has one, or else of its record."""
    times = [moments(one_array(rows.column(n))) for n in fields if n in rows.column_names]
    return pc.coalesce(*times, moments(known_times(one_array(rows.column(TIMESTAMP)))))


def _versions(source: pa.Table, generation: Callable[[TopicPartition], int]) -> pa.Array:
    offsets, names = one_array(source.column(OFFSET)), [TOPIC, PARTITION]
    distinct = source.group_by(names, use_threads=False).aggregate([]).select(names).to_pydict()
    generations = {tp: generation(tp) for tp in map(TopicPartition, *distinct.values())}
    if not any(generations.values()):
        return offsets
    versions = offsets.to_numpy().copy()
    for tp, number in generations.items():
        conditions = [pc.equal(source.column(n), of) for n, of in zip(names, tp, strict=True)]
        versions[pc.and_(*conditions).to_numpy()] += number * GENERATION
    return pa.array(versions)


def _check_ids(topic: str, source: pa.Table, *, null_too: bool) -> None:
    """Check that record keys can be ids.

    Raises:
        RowsRejected: some cannot.
        ConfigError: none can.
    """
    if not source.num_rows:
        return
    keys = source.column(KEY)
    kind = keys.type
    textual = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    if not (textual or pa.types.is_integer(kind) or pa.types.is_null(kind)):
        raise ConfigError(
            f"keys of topic {named(topic)} are of type {kind}, but a document's id is a text or a "
            "whole number. Set key.converter to org.apache.kafka.connect.storage.StringConverter, "
            "or key.ignore=true"
        )
    problems: dict[int, str] = {}

    def add(where: pa.ChunkedArray, why: str) -> None:
        for row in pc.indices_nonzero(pc.fill_null(where, False)).to_pylist():
            problems.setdefault(row, f"the key, which is the document's id, {why}")

    if null_too and keys.null_count:
        add(keys.is_null(), "is null")
    if textual:
        lengths = pc.binary_length(keys)
        add(pc.equal(lengths, 0), "is empty")
        add(pc.greater(lengths, LONGEST_ID), f"is longer than {LONGEST_ID} bytes")
    if problems:
        raise some_rejected(source, problems)


def _check_distinct(topic: str, rows: pa.Table) -> None:
    """Check that each record makes one document.

    Raises:
        ConfigError: a transform has made several of one.
    """
    places = rows.select(ORIGIN)
    distinct = places.group_by(places.column_names, use_threads=False).aggregate([])
    if distinct.num_rows < rows.num_rows:
        raise ConfigError(
            f"the transform makes several rows of one record of topic {named(topic)}, but ids are "
            "their places in Kafka (key.ignore=true). Make one row per record"
        )


def _last(rows: pa.Table, gone: pa.Table) -> tuple[pa.Table, pa.Table]:
    """The last change of each key, by the offset that becomes its version."""
    names = [KEY, OFFSET, PARTITION]
    tables = [t.select(names) for t in (rows, gone) if t.num_rows]
    if not tables:
        return rows, gone
    changes = pa.concat_tables(tables)
    order = [changes.column(OFFSET), changes.column(PARTITION)]
    kept = last_of_each(Changes([changes.column(KEY)], order, len(changes)), {}, revives=True).rows
    if kept is None:
        return rows, gone
    kept = np.sort(kept)
    of_gone = kept[kept >= rows.num_rows] - rows.num_rows
    return rows.take(pa.array(kept[kept < rows.num_rows])), gone.take(pa.array(of_gone))


def _is_binary(rows: pa.Table, name: str) -> bool:
    return bool(pa.types.is_binary(rows.schema.field(name).type))


# Lines and requests

_AGAIN = 5
"""How often the server retries an update that conflicts with another one."""


def upserts(ids: pa.Array | None, versions: pa.Array | None, sources: pa.Array) -> pa.Array:
    """The two lines that index each document; without ``ids`` the server makes them."""
    if ids is None:
        return joined(['{"index":{}}\n', sources, "\n"], len(sources))
    return joined([*_action("index", ids, versions), sources, "\n"], len(sources))


def creates(ids: pa.Array | None, sources: pa.Array) -> pa.Array:
    """The two lines that append each document; without ``ids`` the server makes them."""
    action = ['{"create":{}}\n'] if ids is None else _action("create", ids, None)
    return joined([*action, sources, "\n"], len(sources))


def updates(ids: pa.Array, sources: pa.Array) -> pa.Array:
    """The two lines that merge each document into the one that is there, if there is one."""
    action = ['{"update":{"_id":', ids, f',"retry_on_conflict":{_AGAIN}}}}}\n']
    return joined([*action, '{"doc":', sources, ',"doc_as_upsert":true}\n'], len(sources))


def deletes(ids: pa.Array, versions: pa.Array | None) -> pa.Array:
    """The line that deletes each document."""
    return joined(_action("delete", ids, versions), len(ids))


def _action(verb: str, ids: pa.Array, versions: pa.Array | None) -> list[Any]:
    pieces: list[Any] = [f'{{"{verb}":{{"_id":', ids]
    if versions is not None:
        pieces += [',"version_type":"external","version":', versions.cast(pa.string())]
    return [*pieces, "}}\n"]


def requests(lines: pa.Array, most: int, size: int) -> Iterator[tuple[range, bytes]]:
    """The bodies of bulk requests, each with its rows.

    One has at most ``most`` rows and, unless a single row is larger, ``size`` bytes. The texts
    are contiguous in Arrow's memory, so a body is a slice of it.
    """
    if not len(lines):
        return
    kind = np.int64 if pa.types.is_large_string(lines.type) else np.int32
    _, positions, memory = lines.buffers()
    ends = np.frombuffer(positions, kind)[lines.offset : lines.offset + len(lines) + 1]
    content = memoryview(memory)
    row = 0
    while row < len(lines):
        fitting = int(np.searchsorted(ends, int(ends[row]) + size, side="right")) - 1
        until = min(max(fitting, row + 1), row + most, len(lines))
        yield range(row, until), bytes(content[int(ends[row]) : int(ends[until])])
        row = until
