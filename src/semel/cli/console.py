"""The terminal, or what stands in its place: there, nothing is wrapped."""

from __future__ import annotations

import logging
from typing import Any

from rich.console import Console

from semel.redact import redacted

_UNBOUNDED = 10_000


def console(*, stderr: bool = False) -> Console:
    """A console that writes each line whole unless it is a terminal."""
    made = Console(stderr=stderr, highlight=False, soft_wrap=False)
    if not made.is_terminal:
        made = Console(stderr=stderr, highlight=False, width=_UNBOUNDED)
    return made


class RedactingFormatter(logging.Formatter):
    """Hides credentials in messages and stack traces, whichever library they come from."""

    def format(self, record: logging.LogRecord) -> str:
        """See :class:`logging.Formatter`."""
        return redacted(super().format(record))


def plain(facts: Any) -> Any:
    """Facts for the user, credentials hidden in all their strings."""
    if isinstance(facts, str):
        return redacted(facts)
    if isinstance(facts, list):
        return [plain(f) for f in facts]
    if isinstance(facts, dict):
        return {name: plain(f) for name, f in facts.items()}
    return facts
