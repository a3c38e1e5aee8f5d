"""How many rows are fetched from a database at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from semel.databases.base import BATCH, BATCH_BYTES, fetched_blocks


class Cursor:
    """Has rows of one text each, of the given lengths."""

    description: Sequence[Any] = [("text",)]

    def __init__(self, lengths: Sequence[int]) -> None:
        self._lengths = list(lengths)
        self.asked: list[int] = []

    def fetchmany(self, count: int) -> list[tuple[str]]:
        self.asked.append(count)
        found, self._lengths = self._lengths[:count], self._lengths[count:]
        return [("x" * length,) for length in found]


def test_small_rows_are_soon_fetched_many_at_once() -> None:
    cursor = Cursor([10] * 100_000)
    assert sum(block.num_rows for block in fetched_blocks(cursor)) == 100_000
    assert max(cursor.asked) == BATCH
    assert len(cursor.asked) < 20


@pytest.mark.parametrize("megabytes", [1, 5, 40])
def test_large_rows_are_fetched_a_few_at_once(megabytes: int) -> None:
    cursor = Cursor([megabytes << 20] * 20)
    blocks = [block.nbytes for block in fetched_blocks(cursor)]
    assert max(blocks[1:]) <= max(BATCH_BYTES, (megabytes + 1) << 20)
    assert min(cursor.asked) >= 1
