"""A directory of files, which the directory source reads."""

from __future__ import annotations

import bisect
import csv
import gzip
import io
import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from semel.config.definition import names
from semel.core.errors import ConfigError
from semel.sources.directory.config import OF_SPOOLDIR, TextKeys
from semel_lab.drill.plan import Kind
from semel_lab.drill.source.system import OF_ANY, System, text_of

_FORMATS = ("csv", "json", "parquet", "text")
_MOST = 4
"""The most files in one burst."""


class Folder(System):
    """New files in a directory, each complete when it appears."""

    faults = OF_ANY | {Kind.FILE_REPLACED}
    replaced = tuple(names(TextKeys))  # the files are written for a reader at its defaults

    def __init__(self, raw: Mapping[str, str], directory: Path) -> None:
        name = raw.get("connector.class", "").strip().rpartition(".")[2]
        self._format = OF_SPOOLDIR.get(name) or raw.get("format", "").strip().lower()
        if self._format not in _FORMATS:
            raise ConfigError(
                f"connector {raw.get('name', '')}: the drill writes files of "
                f"{', '.join(_FORMATS)}, but not of {self._format or 'no format'}"
            )
        self.ending = {"text": "txt"}.get(self._format, self._format)
        self._as_text = name == "SpoolDirSchemaLessJsonSourceConnector"
        self.path = directory / "files" / "in"
        self.finished = directory / "files" / "finished"
        self.path.mkdir(parents=True)
        self.keys = {
            "input.path": str(self.path),
            "finished.path": str(self.finished),
            "error.path": str(directory / "files" / "error"),
            "input.file.pattern": ".*",
            "file.minimum.age.ms": "0",
            "processing.file.extension": ".PROCESSING",
            "empty.poll.wait.ms": "20",
            "key.schema": "",
            "value.schema": "",
            "schema.generation.enabled": "true",
            "csv.first.row.as.header": "true",
            "timestamp.mode": "process_time",
            "batch.size": "50",
        }
        self._made = self._next = 0
        self.last = ""
        """The name of the newest file."""
        self._starts: list[int] = []
        """The number of the first record of each file."""

    def values(self, numbers: Sequence[int], dice: random.Random) -> pa.Array:
        rows = [{"number": str(n), "text": _text(dice)} for n in numbers]
        match self._format:
            case "text":
                return pa.array([f"{r['number']}:{text_of(dice)}" for r in rows], pa.string())
            case "json":
                lines = pa.array([json.dumps(row) for row in rows], pa.string())
                return lines if self._as_text else pa.ExtensionArray.from_storage(pa.json_(), lines)
        return pa.array(rows, pa.struct([("number", pa.string()), ("text", pa.string())]))

    def write(self, values: pa.Array, dice: random.Random) -> None:
        """Put the records into some files."""
        cuts = sorted(dice.choices(range(1, len(values)), k=dice.randrange(_MOST)))
        for begin, until in zip([0, *cuts], [*cuts, len(values)], strict=True):
            if until > begin:
                self._starts.append(self._next + begin)
                part = values.slice(begin, until - begin)
                self.last = self._put(f"{self._made:08}", part, dice).name
                self._made += 1

    def _put(self, name: str, values: pa.Array, dice: random.Random) -> Path:
        content, ending = self._content(values.to_pylist(), values.type), self.ending
        if self._format != "parquet" and dice.random() < 0.2:
            content, ending = gzip.compress(content), f"{ending}.gz"
        return self._appear(f"{name}.{ending}", content)

    def again(self, name: str, values: pa.Array) -> None:
        """A file with new records, under a name that may have been there before."""
        self._starts.append(self._next)
        content = self._content(values.to_pylist(), values.type)
        self._appear(name, gzip.compress(content) if name.endswith(".gz") else content)

    def lane(self, number: int) -> int:
        return bisect.bisect(self._starts, number)

    def begins(self, number: int) -> None:
        self._next = number

    def _appear(self, name: str, content: bytes) -> Path:
        part, whole = self.path / f"{name}.PROCESSING", self.path / name
        part.write_bytes(content)
        part.replace(whole)
        return whole

    def _content(self, rows: Sequence[Any], kind: pa.DataType) -> bytes:
        if self._format == "csv":
            out = io.StringIO()
            writer = csv.DictWriter(out, ["number", "text"])
            writer.writeheader()
            writer.writerows(rows)
            return out.getvalue().encode()
        if self._format == "parquet":
            stream = io.BytesIO()
            columns = pa.Table.from_struct_array(pa.array(rows, kind))
            pq.write_table(columns, stream, row_group_size=30)
            return stream.getvalue()
        return "".join(f"{line}\n" for line in rows).encode()


def _text(dice: random.Random) -> str:
    return f'{text_of(dice)}"\n,' if dice.random() < 0.2 else text_of(dice)
