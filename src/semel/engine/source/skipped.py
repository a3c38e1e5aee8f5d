"""Records that a source connector with ``errors.tolerance=all`` leaves out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Skipped:
    """A record that a transform or a converter refuses. ``stage`` is Kafka Connect's name of it;
    ``value`` is what the transforms or the converter were given."""

    topic: str
    stage: str
    message: str
    value: Any

    def described(self, *, content: bool) -> str:
        """It in one line of the log."""
        shown = f": {self.value!r}" if content else ""
        return f"bad record for topic {self.topic} ({self.stage}): {self.message}{shown}"
