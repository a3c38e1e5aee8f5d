"""The terminal. Output that goes elsewhere is not wrapped."""

from __future__ import annotations

from rich.console import Console

_UNBOUNDED = 10_000


def console(*, stderr: bool = False) -> Console:
    """A console that wraps lines only on a terminal."""
    made = Console(stderr=stderr, highlight=False, soft_wrap=False)
    if not made.is_terminal:
        made = Console(stderr=stderr, highlight=False, width=_UNBOUNDED)
    return made
