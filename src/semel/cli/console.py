"""The terminal. Output that goes elsewhere is not wrapped."""

from __future__ import annotations

import logging

from rich.console import Console

from semel.quoting import harmless, indented
from semel.redact import redacted

_UNBOUNDED = 10_000


def console(*, stderr: bool = False) -> Console:
    """A console that wraps lines only on a terminal."""
    made = Console(stderr=stderr, highlight=False, soft_wrap=False)
    if not made.is_terminal:
        made = Console(stderr=stderr, highlight=False, width=_UNBOUNDED)
    return made


class RedactingFormatter(logging.Formatter):
    """Hides credentials in the messages and stack traces of all libraries. Control characters are
    escaped, long lines cut, and further lines indented: none can be taken for an entry."""

    def format(self, record: logging.LogRecord) -> str:
        """See :class:`logging.Formatter`."""
        return indented(redacted(harmless(super().format(record))))
