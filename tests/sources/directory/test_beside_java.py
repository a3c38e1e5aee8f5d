"""Lines and JSON beside spooldir's Java readers: the values of generated files are the same."""

from __future__ import annotations

import json
import random
from base64 import b64decode, b64encode
from collections.abc import Iterator, Sequence
from decimal import Decimal
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from semel.config import read
from semel.sources.directory import streams
from semel.sources.directory.config import DirectoryConfig
from semel.sources.directory.files import FileProgress
from semel.sources.directory.formats import formats_of
from semel.sources.directory.texts import Broken
from semel_lab.jars import CONNECT
from tests.processes import run_java

Values = tuple[list[str], bool]
"""The values of a file, and whether it is broken after them."""
SCHEMALESS = "SpoolDirSchemaLessJsonSourceConnector"
GOOD = (
    *("1", "-2.50", "1e400", "0.1", "12345678901234567890123", "true", "null", '""', '"a b"'),
    *(
        '"\\"}{\\\\"',
        '"\\u00fc\\ud83d\\ude00"',
        '"\u2028\u0085"',
        '"x:NaN,]"',
        "{}",
        "[]",
        "[1, [2]]",
    ),
    *(
        '{"a":1}',
        '{"a": 1,\n "b": [{"c": "]"}]\n}',
        '{"a":1,"a":2}',
        "[\r\n1,\r\n2]",
        '{"":{"b":null}}',
    ),
)
BAD = (
    *("{", "}", "]", '"', "nul", "NaN", "-Infinity", "01", "1.", "+1", "{'a':1}", "{a:1}", "[1,]"),
    *('{"a":1,}', "// c", "/* c */ 1", '{"a": NaN}', '"\t"', '"\\x"', ",", ":", "\x01", "\xa0"),
)
BETWEEN = ("\n", "\n", "\r\n", " ", "\n\n", "\t")


def values_file(draw: random.Random) -> bytes:
    """Values one behind another, on lines of their own or not."""
    one_a_line = draw.random() < 0.4
    alone = [v for v in GOOD if "\n" not in v]
    chosen = [draw.choice(alone if one_a_line else GOOD) for _ in range(draw.randint(0, 6))]
    if draw.random() < 0.3:
        chosen.append(draw.choice(BAD))
    between = ("\n", "\r\n", "\n\n") if one_a_line else BETWEEN
    text = "".join(value + draw.choice(between) for value in chosen)
    if draw.random() < 0.5:
        text = text.rstrip()
    mark = b"\xef\xbb\xbf" if text and draw.random() < 0.1 else b""
    return mark + text.encode()


def lines_file(draw: random.Random) -> bytes:
    pieces = ["a", "b ", "\n", "\r\n", "\r", "", "\u2028", "\x0b", "\x85", "ü", "\x00", "\t"]
    return "".join(draw.choices(pieces, k=draw.randint(0, 14))).encode()


def by_java(files: Sequence[tuple[str, bytes]]) -> Iterator[Values]:
    given = [f"{kind} {b64encode(file).decode()}" for kind, file in files]
    for line in run_java(Path(__file__).with_name("Values.java"), "\n".join(given), CONNECT):
        *values, end = line.split(";")
        yield [b64decode(value).decode() for value in values], end == "!"


def by_semel(kind: str, file: bytes, batch: int) -> Values:
    raw = {
        **{"input.path": "/x", "topic": "t", "cleanup.policy": "none", "format": kind},
        "batch.size": str(batch),
    }
    found: list[str] = []
    reader = formats_of(
        read(DirectoryConfig, raw), SCHEMALESS if kind == "json" else "Directory"
    ).format()
    try:
        for chunk in reader.read(BytesIO(file), "a", FileProgress()):
            found += chunk.values.to_pylist()
    except Broken as broken:
        return found + (broken.chunk.values.to_pylist() if broken.chunk else []), True
    return found, False


def judged(text: str) -> Any:
    """A value of JSON with all its digits."""
    return json.loads(text, parse_float=Decimal, parse_int=Decimal)


@pytest.mark.long
@pytest.mark.integration
def test_json_and_lines_of_any_file_are_those_of_java(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(7)
    files = [("json", values_file(draw)) for _ in range(1500)]
    files += [("text", lines_file(draw)) for _ in range(500)]
    for (kind, file), (values, broken) in zip(files, by_java(files), strict=True):
        monkeypatch.setattr(streams, "BLOCK", draw.choice((3, 7, streams.BLOCK)))
        found, is_broken = by_semel(kind, file, draw.choice((1, 2, 1000)))
        assert is_broken == broken, (file, values, found)
        if kind == "json":
            assert list(map(judged, found)) == list(map(judged, values)), file
        else:
            assert found == values, file
