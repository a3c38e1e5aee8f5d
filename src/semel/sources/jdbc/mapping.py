"""The columns that find new rows, by table: ``incrementing.column.mapping`` and
``timestamp.columns.mapping``."""

from __future__ import annotations

import re
from collections.abc import Sequence

from semel.core.patterns import compiled

NAME = re.compile(r"(.+):([^:\[\]|]+)")
NAMES = re.compile(r"(.+):\[([^\[\]]+)\]")


def by_table(given: Sequence[str], form: re.Pattern[str]) -> list[tuple[str, tuple[str, ...]]]:
    """The regular expressions of a mapping, and their columns.

    Raises:
        ValueError: it has another form.
    """
    found = []
    for entry in given:
        match = form.fullmatch(entry.strip())
        if match is None:
            example = "shop\\..*:[updated|created]" if form is NAMES else "shop\\..*:id"
            raise ValueError(f"must be a list of entries such as {example}; {entry!r} is not one")
        pattern = match[1].strip()
        try:
            compiled(pattern)
        except ValueError as error:
            raise ValueError(f"has {pattern!r}, which {error}") from None
        found.append((pattern, tuple(c.strip() for c in match[2].split("|"))))
    return found


def names_one(given: Sequence[str]) -> None:
    """Check a mapping to one column each."""
    by_table(given, NAME)


def names_some(given: Sequence[str]) -> None:
    """Check a mapping to several columns each."""
    by_table(given, NAMES)


def only(name: str, entries: Sequence[tuple[str, tuple[str, ...]]], table: str) -> tuple[str, ...]:
    """The columns of the only entry that matches a table.

    Raises:
        ValueError: none matches, or several do.
    """
    found = [columns for pattern, columns in entries if compiled(pattern).fullmatch(table)]
    if len(found) != 1:
        raise ValueError(
            f"matches {len(found)} entries of {name}, and must match one. Correct the regular "
            "expressions, or leave the table out"
        )
    return found[0]
