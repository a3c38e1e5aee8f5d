"""FileStreamSink's names and keys."""

from __future__ import annotations

from dataclasses import dataclass

from semel.config import LOW, key

CLASSES = (
    "org.apache.kafka.connect.file.FileStreamSinkConnector",
    "FileStreamSinkConnector",
    "FileStreamSink",
)


@dataclass(frozen=True)
class FileStreamSinkConfig:
    """The file that takes the records."""

    file: str = key(
        "file", doc="The file to write to; it is created if it is missing.", group="File"
    )
    directory: str = key(
        "file.directory",
        "",
        "The directory that a relative file is in. If empty, the one in which semel was started.",
        importance=LOW,
    )
