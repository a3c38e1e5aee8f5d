"""The versions of what semel stores.

Everything stored says in which version of its format it was written, and readers refuse a later
one, which may mean something else. A format that changes gets the next number here, what has an
earlier one is migrated, and tests/sinks/formats keeps one of each.
"""

from __future__ import annotations

from semel.core.errors import ServiceError

LEDGER = 1
"""Entries and holes, wherever they are stored."""
LETTERS = 1
"""Dead letters as rows or documents."""
OWNERS = 1
"""Who runs a connector, in the offsets topic of sources and in a cluster's topics."""


def check(what: str, stored: int, known: int) -> None:
    """Raises ServiceError: a later semel has written it."""
    if stored > known:
        raise ServiceError(
            f"{what} was written by a later version of semel (format {stored}, this one knows "
            f"{known}). Run that version"
        )
