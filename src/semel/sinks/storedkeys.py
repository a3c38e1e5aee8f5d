"""The keys of a target's rows, on disk: an audit may compare more of them than memory holds."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator

import pyarrow as pa


class StoredKeys:
    """The key columns of all rows, which are written into a temporary file as they come and read
    from it a batch at a time. The file is deleted with the object."""

    def __init__(self, batches: Iterable[pa.RecordBatch]) -> None:
        self._file = tempfile.NamedTemporaryFile(prefix="semel-keys-")  # noqa: SIM115
        self.schema = pa.schema([])
        """The store's own types of the columns; empty if there are no rows."""
        self.num_rows = 0
        writer = None
        for batch in batches:
            if not batch.num_rows:
                continue
            if writer is None:
                self.schema = batch.schema
                writer = pa.ipc.new_stream(self._file.name, self.schema)
            writer.write_table(pa.Table.from_batches([batch]).cast(self.schema))
            self.num_rows += batch.num_rows
        if writer is not None:
            writer.close()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All rows, from the first one on."""
        if self.num_rows:
            with pa.OSFile(self._file.name) as source:
                yield from pa.ipc.open_stream(source)
