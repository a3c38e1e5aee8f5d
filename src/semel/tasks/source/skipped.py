"""Records that a source connector with ``errors.tolerance=all`` leaves out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from semel.config import SourceConnectorConfig
from semel.core.quoting import named


@dataclass(frozen=True, slots=True)
class Skipped:
    """A record that the source, a transform or a converter refuses. ``stage`` is Kafka Connect's
    name for it; ``content`` is what the transforms or the converter were given, if it is logged.
    ``of_type`` says that every record of this type is refused; ``place`` is where the source found
    it."""

    topic: str
    stage: str
    message: str
    content: str = ""
    of_type: bool = False
    place: str = ""

    def described(self) -> str:
        """The record and its error in one log line."""
        shown = f": {self.content}" if self.content else ""
        return f"bad record for topic {named(self.topic)} ({self.stage}): {self.message}{shown}"


class Contents:
    """What the log shows of skipped records: nothing, unless the connector wants it."""

    def __init__(self, connector: SourceConnectorConfig) -> None:
        self._shows = connector.errors_log and connector.errors_log_messages

    def of(self, column: pa.Array, row: int) -> str:
        """One value as text."""
        if not self._shows:
            return ""
        try:
            return repr(column[row].as_py())
        except (ValueError, OverflowError, LookupError):  # Python has no such time or time zone
            return " ".join(str(column.slice(row, 1)).split())


class SkipLog:
    """What one task logs about skipped records."""

    def __init__(self, connector: SourceConnectorConfig) -> None:
        self._each = connector.errors_log
        self._told: set[tuple[str, str, str]] = set()

    def lines(self, skipped: Sequence[Skipped]) -> Iterator[str]:
        """One for each record with ``errors.log.enable``; else one for each topic and error that
        keeps all records of a type out, because a topic may then get none at all, and one for each
        place of a source."""
        for record in skipped:
            error = (record.topic, record.stage, record.place or record.message)
            if self._each:
                yield record.described()
            elif (record.of_type or record.place) and error not in self._told:
                self._told.add(error)
                yield (
                    f"errors.tolerance=all: skipping all records like this one: "
                    f"{record.described()}"
                )
