"""The terminal. Output that goes elsewhere is not wrapped."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from semel.core.quoting import on_terminal

_UNBOUNDED = 10_000


class _Console(Console):
    """Shows what would control the terminal: names and messages come from elsewhere."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            text, style, control = segment
            yield segment if control else Segment(on_terminal(text), style)


def console(*, stderr: bool = False) -> Console:
    """A console that wraps lines only on a terminal."""
    result = _Console(stderr=stderr, highlight=False, soft_wrap=False)
    if not result.is_terminal:
        result = _Console(stderr=stderr, highlight=False, width=_UNBOUNDED)
    return result
