"""The contract of a store of source offsets that is not part of a Kafka transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from semel.core.errors import LedgerConflict
from semel.core.quoting import named

Record = tuple[bytes, bytes | None]
"""Key and value, as in the offsets topic; None forgets the key."""


class Outside(Protocol):
    """A store outside Kafka. Keys and values are those of the offsets topic."""

    @property
    def where(self) -> str:
        """What it is, without credentials."""

    def prepare(self) -> None:
        """Prepare it for writing.

        Raises:
            ConfigError: it cannot be what the configuration says.
            ServiceError: it cannot be created.
        """

    def read(self, *, expected: bool) -> Mapping[bytes, bytes]:
        """What it holds at one instant. If it does not exist, the result is empty, unless it is
        ``expected``: then that is an error."""

    def write(self, records: Sequence[Record], known: Mapping[bytes, bytes | None]) -> None:
        """Store records, all or none, if each key in ``known`` still has that value.

        Raises:
            LedgerConflict: a key has another value; nothing was stored.
            TransientError: they may or may not have been stored.
        """

    def close(self) -> None:
        """Drop connections. May be called twice."""


def compare(
    where: str, known: Mapping[bytes, bytes | None], held: Mapping[bytes, bytes | None]
) -> None:
    """Raises LedgerConflict: a key does not have its known value."""
    other = next((key for key, value in known.items() if held.get(key) != value), None)
    if other is not None:
        raise LedgerConflict(
            f"{where}: the record {named(other.decode(errors='replace'))} has changed since it was "
            "read: another run or task has written it"
        )
