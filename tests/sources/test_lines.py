"""Lines in blocks of bytes."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from semel.sources.lines import split


def whole(block: bytes, most: int = 1000) -> tuple[list[str], int]:
    """The lines, and how many bytes they take."""
    lots = list(split(block, most))
    return [line for lines, _ in lots for line in lines.to_pylist()], sum(n for _, n in lots)


@pytest.mark.parametrize(
    ("block", "lines", "taken"),
    [
        (b"", [], 0),
        (b"a", [], 0),
        (b"a\n", ["a"], 2),
        (b"a\nb", ["a"], 2),
        (b"\n\n", ["", ""], 2),
        (b"a\r\nb\rc\n", ["a", "b", "c"], 7),
        (b"a\r", [], 0),
        (b"a\nb\r", ["a"], 2),
        (b"a\r\r\n", ["a", ""], 4),
        ("größe\n漢字\n".encode(), ["größe", "漢字"], 15),
        (b"a\xff\n", ["a\ufffd"], 3),
    ],
)
def test_a_line_ends_as_in_kafka_connect(block: bytes, lines: list[str], taken: int) -> None:
    """With LF, CR LF or CR. A CR at the end waits for what follows; what is not UTF-8 becomes
    U+FFFD."""
    assert whole(block) == (lines, taken)


@pytest.mark.parametrize("most", [1, 2, 7, 1000])
def test_lots_hold_no_more_lines_than_allowed_and_all_of_them(most: int) -> None:
    chosen = random.Random(most)
    ends = [b"\n", b"\r\n", b"\r"]
    lines = ["x" * chosen.randrange(5) for _ in range(50)]
    block = b"".join(line.encode() + chosen.choice(ends) for line in lines) + b"rest"
    lots = list(split(block, most))
    assert max(len(found) for found, _ in lots) <= most
    assert all(found.type == pa.string() for found, _ in lots)
    position, ended = 0, 0
    for found, length in lots:
        position, ended = position + length, ended + len(found)
        assert whole(block[position:])[0] == whole(block)[0][ended:]
