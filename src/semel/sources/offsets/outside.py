"""What a store of source offsets does that no Kafka transaction holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from semel.errors import LedgerConflict

Record = tuple[bytes, bytes | None]
"""Key and value, as in the offsets topic; None forgets the key."""


class Outside(Protocol):
    """A store beside Kafka. Keys and values are those of the offsets topic."""

    @property
    def where(self) -> str:
        """What it is, without credentials."""

    def prepare(self) -> None:
        """Make it ready to be written.

        Raises:
            ConfigError: it cannot be what the configuration says.
            ServiceError: it cannot be created.
        """

    def read(self, *, expected: bool) -> Mapping[bytes, bytes]:
        """What it holds at one instant. If it is not there, there is nothing, or an error where it
        is ``expected``."""

    def write(self, records: Sequence[Record], known: Mapping[bytes, bytes | None]) -> None:
        """Store records, all or none, if each key in ``known`` still has that value.

        Raises:
            LedgerConflict: one has another; nothing was stored.
            TransientError: they may be stored or not.
        """

    def close(self) -> None:
        """Drop connections. May be called twice."""


def compare(
    where: str, known: Mapping[bytes, bytes | None], held: Mapping[bytes, bytes | None]
) -> None:
    """Raises LedgerConflict: a key has not the value that is known."""
    other = next((key for key, value in known.items() if held.get(key) != value), None)
    if other is not None:
        raise LedgerConflict(
            f"{where}: the record {other.decode(errors='replace')} has changed since it was read: "
            "another run or task has written it"
        )
