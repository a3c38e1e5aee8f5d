"""FileStreamSink's names and keys."""

from __future__ import annotations

from dataclasses import dataclass

from semel.config import HIGH, LOW, key

CLASSES = (
    "org.apache.kafka.connect.file.FileStreamSinkConnector",
    "FileStreamSinkConnector",
    "FileStreamSink",
)


@dataclass(frozen=True)
class FileStreamSinkConfig:
    """The file that takes the records."""

    file: str = key(
        "file",
        doc="The file to write to; it is created if it is missing.",
        importance=HIGH,
        group="File",
    )
    directory: str = key(
        "file.directory",
        "",
        "The directory of a relative file; where semel was started if empty.",
        importance=LOW,
        group="File",
    )
