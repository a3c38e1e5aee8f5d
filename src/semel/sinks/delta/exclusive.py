"""Tests whether a store refuses the second of two commits of one version.

delta-rs looks at the log before it writes, so only simultaneous commits can tell: several writers
commit the same version of a table that exists only for this test.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import pyarrow as pa
from deltalake import DeltaTable, Schema
from deltalake.fs import DeltaStorageHandler
from pyarrow import fs

from semel.sinks.delta.table import bound, reason, translated, unjudged
from semel.sinks.lake.tables import delete
from semel.sinks.staging import CommitConflict

log = logging.getLogger(__name__)

_WRITERS = 4
_ROUNDS = 2
_PATIENCE = 60.0


def refuses_the_second(where: str, options: Mapping[str, str]) -> bool:
    """Test it in a new directory below a table's. Local file systems pass: there delta-rs makes a
    hard link.

    Raises:
        ServiceError, TransientError: the store cannot be tested.
    """
    if urlsplit(where).scheme in ("", "file"):
        return True
    probe = f"{where.rstrip('/')}/_semel-probe-{uuid.uuid4().hex}"
    try:
        with unjudged(probe):
            schema = Schema.from_arrow(pa.schema([("n", pa.int64())]))
            DeltaTable.create(probe, schema, storage_options=dict(options))
        return all(_landed(probe, options) <= 1 for _ in range(_ROUNDS))
    finally:
        _remove(probe, options)


def _landed(where: str, options: Mapping[str, str]) -> int:
    """The number of commits of the same version that the store accepted."""
    with unjudged(where):
        tables = [DeltaTable(where, storage_options=dict(options)) for _ in range(_WRITERS)]
    together = threading.Barrier(_WRITERS)

    def commit(table: DeltaTable) -> bool:
        schema = table.schema()
        together.wait(_PATIENCE)
        try:
            with translated(where):
                table.create_write_transaction([], "append", schema, commit_properties=bound({}))
        except CommitConflict:
            return False
        return True

    with ThreadPoolExecutor(_WRITERS, thread_name_prefix="semel-probe") as pool:
        return sum(pool.map(commit, tables))


def _remove(where: str, options: Mapping[str, str]) -> None:
    """Delete the test table, as far as that is possible."""
    try:
        filesystem = fs.PyFileSystem(DeltaStorageHandler(where, dict(options)))
        infos = filesystem.get_file_info(fs.FileSelector("", recursive=True))
    except OSError as error:
        log.info("%s was not deleted: %s", where, reason(error))
    else:
        delete(filesystem.delete_file, [info.path for info in infos if info.is_file])
