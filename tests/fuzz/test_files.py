"""Files of the directory source: any bytes, any options. Records are read, or the file is broken
at a record; nothing is read twice."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import strategies as st

from semel.config import read
from semel.sources.directory.config import DirectoryConfig
from semel.sources.directory.files import FileProgress
from semel.sources.directory.formats import formats_of
from semel.sources.directory.texts import Broken
from tests.fuzz.junk import JUNK, TEXTS, cut

Fuzz = Callable[..., Callable[[Callable[..., None]], None]]
CLASS = "Directory"


def records(data: bytes, given: dict[str, str]) -> list[Any]:
    """What is read of a file, up to a record that cannot be."""
    raw = {"input.path": "/x", "topic": "t", "cleanup.policy": "none", **given}
    config = read(DirectoryConfig, raw)
    found: list[Any] = []
    reached = FileProgress()
    try:
        for chunk in formats_of(config, CLASS).format().read(io.BytesIO(data), "a", reached):
            chunk.values.validate(full=True)
            assert chunk.reached.records == len(found) + len(chunk.values)
            found += chunk.values.to_pylist()
    except Broken as broken:
        assert str(broken)
        if broken.chunk is not None:
            found += broken.chunk.values.to_pylist()
        assert broken.record == len(found)
    return found


CSV = b'id,name,at\n1,"a ""b"",\nc",2024-01-02\n2,,\n\n3,x\\,y,9\n'


def test_any_csv(fuzz: Fuzz) -> None:
    options = {
        "csv.separator.char": st.sampled_from(["44", "59", "9", "0"]),
        "csv.quote.char": st.sampled_from(["34", "39", "0"]),
        "csv.escape.char": st.sampled_from(["92", "34", "0"]),
        "csv.strict.quotes": st.sampled_from(["true", "false"]),
        "csv.ignore.quotations": st.sampled_from(["true", "false"]),
        "csv.null.field.indicator": st.sampled_from(["neither", "empty_quotes", "both"]),
        "csv.skip.lines": st.sampled_from(["0", "1", "9"]),
        "csv.first.row.as.header": st.just("true"),
        "schema.generation.enabled": st.just("true"),
        "file.charset": st.sampled_from(["UTF-8", "ISO-8859-1", "US-ASCII"]),
        "batch.size": st.sampled_from(["1", "2", "1000"]),
    }

    @fuzz(
        data=cut(CSV) | st.lists(TEXTS).map(lambda t: ",\n".join(t).encode(errors="ignore")),
        given=st.fixed_dictionaries({}, optional=options),
    )
    def check(data: bytes, given: dict[str, str]) -> None:
        given = {"csv.first.row.as.header": "true", "schema.generation.enabled": "true", **given}
        if given.get("csv.separator.char") == given.get("csv.quote.char") == "0":
            return  # refused
        records(data, {"format": "csv", **given})


@pytest.mark.parametrize("kind", ["json", "text"])
def test_any_lines(kind: str, fuzz: Fuzz) -> None:
    values = st.lists(JUNK, max_size=5).map(lambda v: "\n".join(map(json.dumps, v)).encode())

    @fuzz(data=values.flatmap(cut) | values | st.binary(max_size=40))
    def check(data: bytes) -> None:
        records(data, {"format": kind, "schema.generation.enabled": "true"})


def avro(codec: str) -> bytes:
    schema = {
        "type": "record",
        "name": "R",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "tags", "type": {"type": "array", "items": ["null", "string"]}},
            {"name": "none", "type": {"type": "array", "items": "null"}},
        ],
    }
    file = io.BytesIO()
    rows = [{"id": n, "tags": ["a", None], "none": [None] * n} for n in range(3)]
    fastavro.writer(file, schema, rows, codec=codec)
    return file.getvalue()


def parquet() -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table({"id": [1, 2], "tags": [["a"], None]}), file)
    return file.getvalue()


@pytest.mark.parametrize(
    ("kind", "valid"),
    [("avro", avro("null")), ("avro", avro("deflate")), ("parquet", parquet())],
    ids=["avro", "avro-deflate", "parquet"],
)
def test_any_binary(kind: str, valid: bytes, fuzz: Fuzz) -> None:
    @fuzz(data=cut(valid) | st.binary(max_size=40))
    def check(data: bytes) -> None:
        records(data, {"format": kind})


def test_a_nul_may_separate_values() -> None:
    given = {"csv.separator.char": "0", "csv.first.row.as.header": "true"}
    options = {"format": "csv", "schema.generation.enabled": "true", **given}
    assert records(b"id\n1,2\n", options) == [{"id": "1,2"}]


def test_a_parquet_file_with_a_broken_name_is_broken() -> None:
    assert (
        records(parquet().replace(b"\x18\x02id", b"\x18\x02\xff\xff"), {"format": "parquet"}) == []
    )
