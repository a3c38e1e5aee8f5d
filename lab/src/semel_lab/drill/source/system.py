"""The systems that a drilled source connector reads."""

from __future__ import annotations

import itertools
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import pyarrow as pa

from semel.core.errors import ConfigError
from semel.sources import full_name
from semel.sources.datagen.config import CLASSES as DATAGEN
from semel.sources.directory.config import CLASSES as DIRECTORY
from semel.sources.filestream import CLASSES as FILE_STREAM
from semel.sources.jdbc.config import CLASSES as JDBC
from semel_lab.drill.plan import Kind

OF_ANY = frozenset(
    {
        Kind.DRIVER_KILL,
        Kind.WORKER_KILL,
        Kind.ZOMBIE,
        Kind.ERROR,
        Kind.TIME_OUT,
        Kind.SECOND_DRIVER,
        Kind.EXECUTOR_KILL,
        Kind.REPLACED_ZOMBIE,
        Kind.BROKER_RESTART,
        Kind.BROKER_KILL,
    }
)


class System(ABC):
    """A system with numbered records in the drill's directory."""

    faults: frozenset[Kind] = OF_ANY
    """The kinds of faults that can hit a connector that reads it."""

    keys: Mapping[str, str]
    """The keys that point the connector here."""

    replaced: ClassVar[tuple[str, ...]] = ()
    """The keys that point the connector elsewhere."""

    topics: Sequence[str] = ()
    """The topics, where the source does not know them from its configuration."""

    def open(self) -> None:  # noqa: B027
        """Start what the source is to read."""

    def close(self) -> None:  # noqa: B027
        """End it. May be called before :meth:`open`."""

    @abstractmethod
    def values(self, numbers: Sequence[int], dice: random.Random) -> pa.Array:
        """New records, as the source should deliver them."""

    @abstractmethod
    def write(self, values: pa.Array, dice: random.Random) -> None:
        """Write records to the system."""

    def begins(self, number: int) -> None:  # noqa: B027
        """The next records have this number and higher ones."""

    def lane(self, number: int) -> int:
        """The records of one lane are written to each partition of a topic in order."""
        return 0


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


def system_of(raw: Mapping[str, str], directory: Path) -> System:
    """The system of a source connector, in the drill's directory.

    Raises:
        ConfigError: the drill has no such system.
    """
    name = raw.get("connector.class", "").strip()
    class_name = full_name(name)
    if class_name in FILE_STREAM:
        return File(directory)
    if class_name in DIRECTORY:
        from semel_lab.drill.source.folder import Folder

        return Folder(raw, directory)
    if class_name in DATAGEN:
        from semel_lab.drill.source.generator import Generator

        return Generator(raw)
    if class_name in JDBC:
        from semel_lab.drill.source.rows import Rows

        return Rows(raw, directory)
    raise ConfigError(
        f"connector {raw.get('name', '')}: the drill has no system for connector.class={name}. "
        "It drills FileStreamSource, the JDBC source, the directory source and Datagen"
    )


def text_of(dice: random.Random) -> str:
    kind = dice.random()
    if kind < 0.02:
        return "long " * dice.randrange(1000, 6000)
    if kind < 0.2:
        return "äß€😀\t" * dice.randrange(20)
    return "x" * dice.randrange(120)
