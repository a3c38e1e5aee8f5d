"""Files of values as they came, as Confluent's ByteArrayFormat writes them."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest

from semel.core.errors import ConfigError
from semel.core.records import Commit
from tests.sinks.files.conftest import Folder
from tests.sinks.target import advance, records

FORMAT = {
    "connector.class": "io.confluent.connect.s3.S3SinkConnector",
    "format.class": "io.confluent.connect.s3.format.bytearray.ByteArrayFormat",
    "value.converter": "org.apache.kafka.connect.converters.ByteArrayConverter",
}
VALUES = [b"a\x00", b"", b"\xff\n"]


def written(folder: Folder, **keys: Any) -> Path:
    sink = folder.sink(keys=FORMAT | {k.replace("_", "."): v for k, v in keys.items()})
    sink.commit([advance(0, 3)], Commit([records([{"value": v} for v in VALUES])]))
    snapshot = sink.snapshot(["t"])
    assert snapshot.rows == {}
    assert "do not show how many values" in snapshot.unjudged["t"]
    (name,) = folder.files()
    return Path(folder.where, name)


def test_values_are_separated_by_line_feeds(folder: Folder) -> None:
    file = written(folder)
    assert file.suffix == ".bin"
    assert file.read_bytes() == b"a\x00\n\n\xff\n\n"


def test_separator_extension_and_compression_are_those_that_are_set(folder: Folder) -> None:
    keys = {"format_bytearray_separator": "||", "format_bytearray_extension": ".dat"}
    file = written(folder, **keys, s3_compression_type="gzip")
    assert file.name.endswith(".dat.gz")
    assert gzip.decompress(file.read_bytes()) == b"a\x00||||\xff\n||"


def test_values_of_other_types_are_refused(folder: Folder) -> None:
    with pytest.raises(ConfigError, match=r"those of topic t are id int64\. Set value\.converter="):
        folder.sink(keys=FORMAT).stage(Commit([records([{"id": 1}])]))


@pytest.mark.parametrize(
    "keys",
    [
        {"provenance": "true"},
        {"errors.tolerance": "all", "errors.deadletterqueue.table": "dead"},
    ],
)
def test_what_needs_columns_is_refused(folder: Folder, keys: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="format=bytes"):
        folder.made(keys=FORMAT | keys)
