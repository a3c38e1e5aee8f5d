"""What a drilled source connector reads."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

import pyarrow as pa

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


def text_of(dice: random.Random) -> str:
    kind = dice.random()
    if kind < 0.02:
        return "long " * dice.randrange(1000, 6000)
    if kind < 0.2:
        return "äß€😀\t" * dice.randrange(20)
    return "x" * dice.randrange(120)
