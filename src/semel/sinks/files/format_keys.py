"""The files sink's keys of formats."""

from __future__ import annotations

from dataclasses import dataclass

from semel.config import HIGH, LOW, Type, key


@dataclass(frozen=True)
class FormatKeys:
    """How files are written, as the user has said."""

    format: str = key(
        "format",
        "",
        "Format of the files: parquet, json (one object per line), csv, avro, or bytes (values "
        "of the ByteArrayConverter, unchanged).",
        choices=("", "parquet", "json", "csv", "avro", "bytes"),
        importance=HIGH,
        group="Connector",
    )
    format_class: str = key(
        "format.class",
        "",
        "Format of the files, by Confluent's class names.",
        type=Type.CLASS,
        importance=HIGH,
    )
    format_output: str = key(
        "format.output.type",
        "",
        "Format of the files, in Aiven's words.",
        choices=("", "parquet", "jsonl", "avro"),
    )
    bytes_extension: str = key(
        "format.bytearray.extension",
        ".bin",
        "The extension of files with format=bytes.",
        importance=LOW,
    )
    bytes_separator: str | None = key(
        "format.bytearray.separator",
        None,
        "What follows each value with format=bytes; a line feed if nothing is set.",
        importance=LOW,
    )
    format_fields: str = key(
        "format.output.fields", "value", "Only the value is written.", choices=("value",)
    )
    format_envelope: str = key(
        "format.output.envelope",
        "false",
        "A value is not wrapped in an object.",
        choices=("false",),
    )
    parquet_codec: str = key(
        "parquet.codec",
        "snappy",
        "Compression of Parquet files: zstd, snappy, gzip or none.",
        choices=("zstd", "snappy", "gzip", "none"),
        importance=LOW,
    )
    avro_codec: str = key(
        "avro.codec",
        "null",
        "Compression of Avro files: null, deflate or bzip2.",
        choices=("null", "deflate", "bzip2"),
        importance=LOW,
    )
    compression: str = key(
        "file.compression.type",
        "none",
        "Compression of JSON, CSV and bytes files: none, gzip or zstd.",
        aliases=("s3.compression.type", "gcs.compression.type"),
        choices=("none", "gzip", "zstd"),
        importance=LOW,
    )
