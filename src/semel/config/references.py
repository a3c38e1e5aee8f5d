"""What a reference in a configuration looks like: ``${file:path:key}``."""

from __future__ import annotations

import re

REFERENCE = re.compile(r"\$\{([^}:]*:[^}]*)\}")


def refers(text: str) -> bool:
    """Whether a value has a reference."""
    return REFERENCE.search(text, 0, text.rfind("}") + 1) is not None
