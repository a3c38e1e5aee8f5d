"""CSV beside opencsv itself: the rows of generated files are the same."""

from __future__ import annotations

import random
from base64 import b64decode, b64encode
from collections.abc import Iterator, Sequence
from io import BytesIO
from pathlib import Path

import pytest

from semel.config import read
from semel.sources.directory import streams
from semel.sources.directory.config import DirectoryConfig
from semel.sources.directory.files import FileProgress
from semel.sources.directory.formats import formats_of
from semel.sources.directory.opencsv import DefaultParser, Dialect, Row, lines_of
from semel.sources.directory.texts import Broken
from semel_lab.jars import OPENCSV
from tests.processes import run_java
from tests.sources.directory.test_formats import schema

NULLS = ("neither", "empty_separators", "empty_quotes", "both")
Files = Sequence[tuple[Dialect, str]]


def dialect(draw: random.Random) -> Dialect:
    chance = draw.random
    return Dialect(
        separator=draw.choice(",,;"),
        quote=draw.choice('""\''),
        escape=draw.choice("\\\\\0"),
        rfc_4180=chance() < 0.3,
        strict_quotes=chance() < 0.1,
        ignore_quotations=chance() < 0.1,
        ignore_whitespace=chance() < 0.8,
        nulls=draw.choice(NULLS),
    )


def noise(draw: random.Random, of: Dialect) -> str:
    """Any sequence of what matters."""
    pieces = [of.separator, of.quote, of.escape, "\n", "\r\n", "a", "b ", " ", "ü", of.quote * 2]
    return "".join(draw.choices(pieces, k=draw.randint(0, 18)))


def table(draw: random.Random, of: Dialect) -> str:
    """Rows as people write them, and some that they should not."""
    plain = ["a", "b c", "", "1", "ü", " "]
    inner = ["a", of.separator, "x\ny", "x\r\ny", of.quote * 2, "", f"\\{of.quote}", "\\\\", "\\n"]
    odd = ["C:\\d", f"\\{of.separator}", f"a{of.quote}", f"\\{of.quote}", f" {of.quote}z{of.quote}"]

    def value() -> str:
        kind = draw.choices(("plain", "quoted", "odd"), (6, 3, 1))[0]
        if kind == "quoted":
            return f"{of.quote}{draw.choice(inner)}{of.quote}"
        return draw.choice(plain if kind == "plain" else odd)

    rows = [of.separator.join(value() for _ in range(draw.randint(2, 3))) for _ in range(6)]
    return draw.choice(["\n", "\r\n", "\r"]).join(rows)


def by_java(files: Files) -> Iterator[tuple[list[Row], bool]]:
    """The rows of each file, and whether it is broken after them."""
    given = [
        " ".join(
            (
                *(str(ord(c)) for c in (of.separator, of.quote, of.escape)),
                *map(str, (of.rfc_4180, of.strict_quotes, of.ignore_quotations)),
                f"{of.ignore_whitespace} {of.nulls.upper()} {b64encode(file.encode()).decode()}",
            )
        )
        for of, file in files
    ]
    for line in run_java(Path(__file__).with_name("Rows.java"), "\n".join(given), OPENCSV):
        *rows, end = line.split(";")
        yield (
            [
                [None if v == "-" else b64decode(v).decode() for v in row.split(",")[:-1]]
                for row in rows
            ],
            end.endswith("!"),
        )


def by_semel(of: Dialect, file: str, columns: int, batch: int) -> tuple[list[Row], bool]:
    fields = {f"c{n}": "STRING" for n in range(columns)}
    raw = {
        **{"input.path": "/x", "topic": "t", "cleanup.policy": "none", "format": "csv"},
        "csv.separator.char": str(ord(of.separator)),
        "csv.quote.char": str(ord(of.quote)),
        "csv.escape.char": str(ord(of.escape)),
        "csv.rfc.4180.parser.enabled": str(of.rfc_4180).lower(),
        "csv.strict.quotes": str(of.strict_quotes).lower(),
        "csv.ignore.quotations": str(of.ignore_quotations).lower(),
        "csv.ignore.leading.whitespace": str(of.ignore_whitespace).lower(),
        "csv.null.field.indicator": of.nulls,
        "batch.size": str(batch),
        "value.schema": schema(**fields),
    }
    found: list[Row] = []
    reader = formats_of(read(DirectoryConfig, raw), "Directory").format()
    try:
        for chunk in reader.read(BytesIO(file.encode()), "a.csv", FileProgress()):
            found += [[*v.values()] for v in chunk.values.to_pylist()]
    except Broken as broken:
        if broken.chunk is not None:
            found += [[*v.values()] for v in broken.chunk.values.to_pylist()]
        return found, True
    return found, False


def rows_of(of: Dialect, lines: Sequence[str]) -> Iterator[tuple[Row, int]]:
    """All whole rows, each with the index of the line after it."""
    at = 0
    while at < len(lines) and (found := of.parser.row(lines, at)) is not None:
        yield found
        at = found[1]


@pytest.mark.long
@pytest.mark.integration
def test_rows_of_any_text_are_those_of_java() -> None:
    draw = random.Random(7)
    files = [(of := dialect(draw), draw.choice((noise, table))(draw, of)) for _ in range(5000)]
    for (of, file), (rows, broken) in zip(files, by_java(files), strict=True):
        lines = lines_of(file)
        found = list(rows_of(of, lines))
        assert [row for row, _ in found] == rows, (of, file)
        assert broken == ((found[-1][1] if found else 0) < len(lines)), (of, file)


def test_lines_within_quotes_are_looked_at_once() -> None:

    class Line(str):
        looked_at = 0

        def __contains__(self, part: str) -> bool:  # type: ignore[override]
            Line.looked_at += len(self)
            return super().__contains__(part)

        def __radd__(self, before: str) -> str:
            return Line(before + str(self))

    lines = [Line('1,"5" pipe'), *[Line('2,a""b')] * 2000]
    size = sum(map(len, lines))
    assert Dialect(rfc_4180=True).parser.row(lines, 0) is None
    assert Line.looked_at < 10 * size


def test_one_odd_row_leaves_the_others_to_arrow(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = []
    row = DefaultParser.row

    def counted(self: DefaultParser, lines: Sequence[str], at: int) -> tuple[Row, int] | None:
        parsed.append(at)
        return row(self, lines, at)

    monkeypatch.setattr(DefaultParser, "row", counted)
    rows = ['"a",b'] * 50_000
    rows[30_000] = '5"x"y,b'
    found, broken = by_semel(Dialect(), "\n".join(rows), 2, 100_000)
    assert (len(found), broken) == (50_000, False)
    assert len(parsed) < 5000


@pytest.mark.parametrize("block", [3, 7, streams.BLOCK])
def test_columns_of_any_table_are_those_of_its_rows(
    block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "BLOCK", block)
    draw = random.Random(block)
    for _ in range(200):
        of = dialect(draw)
        file, columns = table(draw, of), draw.randint(2, 3)
        lines = lines_of(file)
        wanted: list[Row] = []
        at = 0
        while at < len(lines):
            found = of.parser.row(lines, at) if lines[at] else ([], at + 1)
            if found is None or 0 < len(found[0]) < columns:
                break
            wanted += [found[0][:columns]] if found[0] else []
            at = found[1]
        got = by_semel(of, file, columns, draw.choice((1, 2, 1000)))
        assert got == (wanted, at < len(lines)), (of, file)
