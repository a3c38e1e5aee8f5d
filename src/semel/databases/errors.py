"""What the errors of databases mean. Each store has a table of natures, by its own codes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any

from semel.core.errors import SemelError, ServiceError, TransientError, Unavailable


class DataRefused(ServiceError):
    """The database refused a value or a row, with the code that it gives to the reason."""

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.code = code


class SchemaChanged(ServiceError):
    """A table or column is not what the catalog said."""


class Nature(Enum):
    """What follows from an error."""

    DATA = DataRefused
    """This record is bad."""
    CHANGED = SchemaChanged
    """The catalog must be read again; if it says the same, somebody has made a mistake."""
    PASSING = TransientError
    """It may work in a moment."""
    AWAY = Unavailable
    """The server takes nothing now: wait for it."""
    MISTAKE = ServiceError
    """The connector stops: somebody must set or repair something."""

    def error(self, text: str) -> SemelError:
        """The error to raise."""
        kind: type[SemelError] = self.value
        return kind(text)


def by_code(natures: Mapping[Nature, Iterable[Any]]) -> dict[Any, Nature]:
    """A table of natures by codes.

    Raises:
        ValueError: a code has two of them.
    """
    table: dict[Any, Nature] = {}
    for nature, codes in natures.items():
        for code in codes:
            if table.setdefault(code, nature) is not nature:
                raise ValueError(f"{code} is both {table[code]} and {nature}")
    return table
