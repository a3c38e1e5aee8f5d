"""A file of lines, for drills of FileStreamSource."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from semel_lab.drill.plan import Kind
from semel_lab.drill.source.system import OF_ANY, System, text_of


class File(System):
    """A file whose lines FileStreamSource reads."""

    faults = OF_ANY | {Kind.FILE_ROTATED, Kind.FILE_CUT}

    def __init__(self, directory: Path) -> None:
        self.path = directory / "lines.txt"
        self.path.touch()
        self.keys = {"file": str(self.path)}
        self._rotated = 0

    def values(self, numbers: Sequence[int], dice: random.Random) -> pa.Array:
        return pa.array([f"{number}:{text_of(dice)}" for number in numbers], pa.string())

    def write(self, values: pa.Array, dice: random.Random) -> None:
        """Append lines, sometimes in pieces that end in the middle of a line, or of a letter."""
        end = dice.choice(("\n", "\n", "\r\n"))
        block = "".join(f"{line}{end}" for line in values.to_pylist()).encode()
        cuts = [0, *sorted(dice.choices(range(len(block)), k=dice.choice((0, 0, 2)))), len(block)]
        with self.path.open("ab", buffering=0) as file:
            for begin, until in itertools.pairwise(cuts):
                file.write(block[begin:until])
                time.sleep(dice.uniform(0, 0.02) if until < len(block) else 0)

    @property
    def size(self) -> int:
        return self.path.stat().st_size

    def rotate(self, last: pa.Array) -> None:
        """Append a last line without an end, and let a new file take the name."""
        with self.path.open("ab", buffering=0) as file:
            file.write("".join(last.to_pylist()).encode())
        self._rotated += 1
        self.path.rename(self.path.with_name(f"{self.path.name}.{self._rotated}"))
        self.path.touch()

    def cut(self) -> None:
        """Cut the file to nothing, as ``copytruncate`` does."""
        with self.path.open("r+b") as file:
            file.truncate()
