"""What a reference in a configuration looks like: ``${file:path:key}``."""

from __future__ import annotations

import re

PATTERN = r"\$\{([^}:]{0,255}:[^}]*)\}"
"""A provider's name has a limit, so that a text with many ``${`` is searched in linear time."""
REFERENCE = re.compile(PATTERN)


def refers(text: str) -> bool:
    """Whether a value has a reference."""
    return REFERENCE.search(text, 0, text.rfind("}") + 1) is not None
