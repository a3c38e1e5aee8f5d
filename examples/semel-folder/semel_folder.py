"""A source for semel: the lines of all files in a folder.

Each file is a source partition, so files are read side by side, and a new one is noticed. The
offset is the number of lines read. Files may grow, but not change.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import SEEK_CUR
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa

from semel.config import SourceConnectorConfig, key, read
from semel.core.delivery import Support
from semel.core.errors import TransientError
from semel.sources.base import Source, SourceBatch, SourceOffset, SourcePartition

MOST = 10_000


@dataclass(frozen=True)
class FolderConfig:
    path: str = key("folder.path", doc="Folder whose files are read.")
    topic: str = key("topic", doc="Topic that the lines go to.")


class FolderSource(Source):
    section = FolderConfig
    refresh = 1.0

    def __init__(self, connector: SourceConnectorConfig) -> None:
        self._config = read(FolderConfig, connector.originals)

    @classmethod
    def normalized(cls, raw: Mapping[str, str]) -> Mapping[str, str]:
        return {"folder.path": str(Path(raw.get("folder.path", "")).absolute())}

    def describe(self) -> dict[str, str]:
        return {"reads": f"files in {self._config.path}", "writes": f"topic {self._config.topic}"}

    def exactly_once(self) -> Support:
        return Support(True, "lines and their number are committed in one Kafka transaction")

    def topics(self) -> Sequence[str]:
        return [self._config.topic]

    def partitions(self) -> Sequence[SourcePartition]:
        folder = Path(self._config.path)
        return [{"file": path.name} for path in sorted(folder.iterdir()) if path.is_file()]

    def read(
        self, partition: SourcePartition, offset: SourceOffset | None
    ) -> Iterator[SourceBatch | None]:
        done = int(offset["line"]) if offset else 0
        path = Path(self._config.path, partition["file"])
        try:
            with path.open("rb") as file:
                for _ in range(done):
                    file.readline()
                while True:
                    lines = whole_lines(file)
                    if not lines:
                        yield None
                        continue
                    done += len(lines)
                    values = pa.array(lines, pa.binary()).cast(pa.string())
                    keys = pa.repeat(path.name, len(lines))
                    yield SourceBatch.of(self._config.topic, values, {"line": done}, keys=keys)
        except OSError as error:
            raise TransientError(f"cannot read {path}: {error}") from error


def whole_lines(file: BinaryIO) -> list[bytes]:
    """The next lines. A line without its end is left until it is complete."""
    found: list[bytes] = []
    while len(found) < MOST:
        line = file.readline()
        if not line.endswith(b"\n"):
            file.seek(-len(line), SEEK_CUR)
            break
        found.append(line[:-1])
    return found
