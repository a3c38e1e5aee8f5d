"""The formats of files: Parquet, lines of JSON, CSV, Avro and bytes, written a batch at a time."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pcsv
import pyarrow.types as is_

from semel.converters.json.columns import JSON
from semel.converters.json.write import encode
from semel.core.errors import ConfigError
from semel.core.quoting import named
from semel.core.records import absence
from semel.sinks.convert import column_type, holds_json
from semel.sinks.parquet import OpenFile, ParquetFile, abandon

_WAITING = 4 * 1024 * 1024
"""Rows are gathered up to this many Arrow bytes and written together."""
_SUFFIX = {"none": "", "gzip": ".gz", "zstd": ".zst"}


@dataclass(frozen=True, slots=True)
class Format:
    """How files are written."""

    name: str
    parquet_codec: str
    compression: str
    avro_codec: str
    bytes_extension: str = ".bin"
    separator: bytes = b"\n"

    @property
    def extension(self) -> str:
        """The extension of complete files."""
        if self.name in ("json", "csv"):
            return f".{self.name}{_SUFFIX[self.compression]}"
        if self.name == "bytes":
            return f"{self.bytes_extension}{_SUFFIX[self.compression]}"
        return f".{self.name}"

    def rows(
        self, rows: pa.Table, count: int, lacking: Mapping[str, pa.ChunkedArray] | None = None
    ) -> pa.Table:
        """The rows as files of this format take them: JSON as lines. ``lacking`` says, by column,
        which rows lack it."""
        if self.name != "json":
            return rows
        for name, which in (lacking or {}).items():
            if name in rows.column_names:
                rows = rows.append_column(absence(name), which)
        lines = [
            encode(_embedding(batch), envelope=False, numeric=True)
            for batch in rows.combine_chunks().to_batches()
        ]
        if not rows.column_names:  # Arrow has no rows without columns
            lines = [pa.repeat(pa.scalar(b"{}"), count)]
        return pa.table({"line": pa.chunked_array(lines, pa.binary())})

    def open(self, path: str, stream: BinaryIO, schema: pa.Schema) -> OpenFile:
        """Begin a file of rows of one schema."""
        if self.name == "parquet":
            return ParquetFile(path, stream, schema, compression=self.parquet_codec)
        if self.name == "avro":
            return RowsFile(path, stream, schema, _avro(stream, schema, self.avro_codec))
        target: Any = stream
        if self.compression != "none":
            target = pa.CompressedOutputStream(stream, self.compression)
        if self.name == "csv":
            write = _csv(target, schema)
        else:
            write = _bytes(target, b"\n" if self.name == "json" else self.separator)
        return RowsFile(path, stream, schema, write, target)


Write = Callable[[pa.Table], None]


class RowsFile:
    """One file that is being written by appending rows; see ParquetFile."""

    order = None

    def __init__(
        self, path: str, stream: BinaryIO, schema: pa.Schema, write: Write, outer: Any = None
    ) -> None:
        self.path = path
        self.schema = schema
        self.waiting = 0
        self._rows: list[pa.Table] = []
        self._stream = stream
        self._outer = outer if outer is not stream else None
        self._write = write

    @property
    def size(self) -> int:
        return int(self._stream.tell())

    def add(self, rows: pa.Table) -> None:
        self._rows.append(rows)
        self.waiting += rows.nbytes
        if self.waiting >= _WAITING:
            self.flush()

    def flush(self) -> None:
        if self._rows:
            rows = pa.concat_tables(self._rows)
            self._rows, self.waiting = [], 0
            self._write(rows)

    def close(self) -> None:
        self.flush()
        if self._outer is not None:
            self._outer.close()
        self._stream.close()

    def abandon(self) -> None:
        abandon(self._stream)


def _bytes(target: Any, separator: bytes) -> Write:
    """The values of the only column as they are."""

    def write(rows: pa.Table) -> None:
        for batch in rows.combine_chunks().to_batches():
            _append(target, batch.column(0), separator)

    return write


def _append(target: Any, values: pa.Array, separator: bytes) -> None:
    """Write the separator after each value. The results are contiguous in Arrow's memory."""
    ended = pc.binary_join_element_wise(values, separator, b"")
    start, end = (ended.offset, ended.offset + len(ended))
    offsets = pa.Array.from_buffers(pa.int32(), end + 1, [None, ended.buffers()[1]])
    first, last = offsets[start].as_py(), offsets[end].as_py()
    target.write(ended.buffers()[2].slice(first, last - first))


def _embedding(batch: pa.RecordBatch) -> pa.StructArray:
    """One struct per row, in which text that holds JSON is marked as such."""
    columns = [
        pa.ExtensionArray.from_storage(JSON, column) if holds_json(field) else column
        for field, column in zip(batch.schema, batch.columns, strict=True)
    ]
    return pa.StructArray.from_arrays(columns, batch.schema.names)


def _csv(target: Any, schema: pa.Schema) -> Write:
    """Nested values as JSON, bytes in base64; the first line names the columns."""
    plain = pa.schema([pa.field(f.name, _csv_type(f.type)) for f in schema])
    header = ",".join('"' + n.replace('"', '""') + '"' for n in plain.names)
    target.write(f"{header}\n".encode())
    options = pcsv.WriteOptions(include_header=False)

    def write(rows: pa.Table) -> None:
        columns = [_csv_text(c) for c in rows.columns]
        pcsv.write_csv(
            pa.Table.from_arrays(columns, schema=plain), _UnclosableStream(target), options
        )

    return write


class _UnclosableStream:
    """A stream that its writer cannot close."""

    closed = False

    def __init__(self, target: Any) -> None:
        self._target = target

    def write(self, content: Any) -> int:
        self._target.write(content)
        return len(content)

    def flush(self) -> None: ...

    def close(self) -> None: ...


def _csv_type(kind: pa.DataType) -> pa.DataType:
    return pa.string() if is_.is_nested(kind) or is_.is_binary(kind) else kind


def _csv_text(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if _csv_type(column.type) == column.type:
        return column
    chunks = [encode(c, envelope=False, numeric=True).cast(pa.string()) for c in column.chunks]
    text = pa.chunked_array(chunks, pa.string())
    return pc.utf8_trim(text, '"') if is_.is_binary(column.type) else text


def _avro(stream: BinaryIO, schema: pa.Schema, codec: str) -> Write:
    """fastavro takes one record at a time: no maintained library writes Avro from columns with its
    logical types. It is the slowest format by far, and a reason to choose Parquet."""
    import fastavro
    from fastavro.write import Writer

    names = _Names()
    fields = [{"name": names.checked(f.name), **_optional(names, f)} for f in schema]
    parsed = fastavro.parse_schema({"type": "record", "name": "Value", "fields": fields})
    writer = Writer(stream, parsed, codec=codec)

    def write(rows: pa.Table) -> None:
        for batch in rows.to_batches(max_chunksize=10_000):
            for record in _plain(batch).to_pylist(maps_as_pydicts="strict"):
                writer.write(record)
        writer.flush()

    return write


def _plain(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Times as numbers, which fastavro takes as they are. Python's own times are slow to make, and
    cover fewer years."""
    numbers = [f.with_type(column_type(f.type, _without_times)) for f in batch.schema]
    return batch.cast(pa.schema(numbers))


def _without_times(kind: pa.DataType) -> pa.DataType:
    if is_.is_timestamp(kind):
        return pa.int64()
    return pa.int32() if is_.is_date32(kind) else kind


class _Names:
    """Gives each record of an Avro schema a name of its own."""

    def __init__(self) -> None:
        self._count = 0

    def record(self) -> str:
        self._count += 1
        return f"Record{self._count}"

    def checked(self, name: str) -> str:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise ConfigError(
                f"field {named(name)} cannot be written as Avro, whose names are letters, digits "
                "and _. Leave it out (field.exclude.list), rename it in a transform, or set "
                "another format"
            )
        return name


def _optional(names: _Names, field: pa.Field) -> dict[str, Any]:
    return {"type": ["null", _avro_type(names, field.type)], "default": None}


_AVRO: Sequence[tuple[Callable[[pa.DataType], bool], Any]] = (
    (is_.is_boolean, "boolean"),
    (is_.is_int64, "long"),
    (is_.is_integer, "int"),
    (is_.is_float32, "float"),
    (is_.is_floating, "double"),
    (is_.is_string, "string"),
    (is_.is_binary, "bytes"),
    (is_.is_date, {"type": "int", "logicalType": "date"}),
)


def _avro_type(names: _Names, kind: pa.DataType) -> Any:
    for matches, avro_type in _AVRO:
        if matches(kind):
            return avro_type
    if is_.is_timestamp(kind):
        local = "" if kind.tz else "local-"
        return {"type": "long", "logicalType": f"{local}timestamp-micros"}
    if is_.is_decimal(kind):
        exact = {"precision": kind.precision, "scale": kind.scale}
        return {"type": "bytes", "logicalType": "decimal", **exact}
    if is_.is_struct(kind):
        fields = [{"name": names.checked(f.name), **_optional(names, f)} for f in kind]
        return {"type": "record", "name": names.record(), "fields": fields}
    if is_.is_map(kind) and is_.is_string(kind.key_type):
        return {"type": "map", "values": ["null", _avro_type(names, kind.item_type)]}
    if is_.is_list(kind):
        return {"type": "array", "items": ["null", _avro_type(names, kind.value_type)]}
    raise ConfigError(
        f"{kind} cannot be written as Avro here. Let a transform convert it, or set another format"
    )
