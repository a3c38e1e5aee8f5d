"""What a reference in a configuration looks like: ``${file:path:key}``."""

from __future__ import annotations

import re
from collections.abc import Callable

PATTERN = r"\$\{([^}:]{0,255}:[^}]*)\}"
"""A provider's name has a limit, so that a text with many ``${`` is searched in linear time."""
REFERENCE = re.compile(PATTERN)


def replaced(value: Callable[[re.Match[str]], str], text: str) -> str:
    """A text with values in the place of its references."""
    end = text.rfind("}") + 1  # beyond it, each ${ would be followed to the end
    return REFERENCE.sub(value, text[:end]) + text[end:]


def refers(text: str) -> bool:
    """Whether a value has a reference."""
    return REFERENCE.search(text, 0, text.rfind("}") + 1) is not None
