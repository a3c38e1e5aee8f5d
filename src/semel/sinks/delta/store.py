"""The store of Delta tables: its errors and options, and whether it refuses the second of two
commits of one version."""

from __future__ import annotations

import logging
import re
import threading
import uuid
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from urllib.parse import urlsplit

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, DeltaProtocolError
from deltalake.fs import DeltaStorageHandler
from pyarrow import fs

from semel.config import under
from semel.core.errors import ServiceError, TransientError, misconfigured
from semel.core.problems import refuse
from semel.core.watchdog import waiting
from semel.sinks.config import problems_of_endpoint
from semel.sinks.lake import delete
from semel.sinks.staging import CommitConflict
from semel.storage.errors import judged

log = logging.getLogger(__name__)


_NEVER = re.compile(
    r"Unsupported table features|Unsupported: Feature|catalog-managed table|table is append-only"
    r"|Invalid protocol action"
)
"""Reasons why delta-rs does not take a table; some come as the errors of lost commits."""


@contextmanager
def translated(where: str) -> Iterator[None]:
    """Translate the store's errors: some may pass, others will not."""
    try:
        with waiting(f"Delta table {where}"):
            yield
    except Exception as error:
        if isinstance(error, DeltaError) and _NEVER.search(str(error)):
            raise ServiceError(
                f"Delta table {where}: delta-rs cannot write it: {reason(error)}. Remove what it "
                "names (ALTER TABLE ... DROP FEATURE, or UNSET TBLPROPERTIES), or choose another "
                "table"
            ) from None
        if isinstance(error, CommitFailedError):
            raise CommitConflict(reason(error)) from None
        if isinstance(error, DeltaProtocolError):
            raise ServiceError(f"Delta table {where}: {reason(error)}") from None
        # Errors of Arrow and of the query engine come as plain exceptions.
        if not isinstance(error, (DeltaError, OSError)) and type(error) is not Exception:
            raise
        if re.search(r"PermissionDenied|os error 13\b", str(error)):
            raise ServiceError(
                f"Delta table {where}: access is denied: {reason(error)}. Let this user write "
                "there, or choose another delta.table.path"
            ) from None
        raise judged(f"Delta table {where}: {reason(error)}", error) from None


@contextmanager
def unjudged(where: str) -> Iterator[None]:
    """Like :func:`translated`, for calls that judge no ledger: a conflict is transient there."""
    try:
        with translated(where):
            yield
    except CommitConflict as error:
        raise TransientError(f"Delta table {where}: {error}") from None


def reason(error: Exception) -> str:
    """The message of an error, on one line and without the backtrace that may follow."""
    message = re.split(r"\n\s+0: ", str(error), maxsplit=1)[0]
    plain = re.sub(r"\x1b\[\d+m↳\x1b\[0m", ":", message)  # an arrow in colour before each cause
    return " ".join(plain.split()).replace(" :", ":")[:500] or type(error).__name__


def bound(transactions: Mapping[str, int]) -> CommitProperties:
    """Commit to the version that was read, or not at all."""
    return CommitProperties(
        max_commit_retries=0,
        app_transactions=[Transaction(name, version) for name, version in transactions.items()],
    )


# Options

_OVER_HTTP = ("s3:", "s3a:", "gs:", "az:", "azure:", "abfs:", "abfss:", "adl:", "http:", "https:")


def timeouts(where: str, milliseconds: int) -> dict[str, str]:
    """The options that turn a silent object store into an outage after this many milliseconds; by
    default delta-rs retries for three minutes."""
    if not where.startswith(_OVER_HTTP):
        return {}
    return {"timeout": f"{milliseconds}ms", "retry_timeout": f"{milliseconds}ms"}


_PREFIX = "storage.options."
_ENDPOINTS = {"endpoint", "endpoint_url", "aws_endpoint", "aws_endpoint_url"}


def checked_options(raw: Mapping[str, str]) -> dict[str, str]:
    """The store's options, by the names that delta-rs gives them.

    Raises:
        ConfigError: an option without a value.
    """
    options = under(raw, _PREFIX)
    empty = [name for name, value in options.items() if not value.strip()]
    if empty:
        raise misconfigured(
            f"{_PREFIX}{empty[0]}", f"{_PREFIX}{empty[0]} is empty: set it, or remove it"
        )
    for name, value in options.items():
        if name.lower() in _ENDPOINTS:
            refuse(problems_of_endpoint(f"{_PREFIX}{name}", value))
    return options


# Whether it can hold a ledger

_WRITERS = 4
_ROUNDS = 2
_PATIENCE = 60.0


def refuses_the_second(where: str, options: Mapping[str, str]) -> bool:
    """Test whether the store refuses the second of two commits of one version, in a new directory
    below a table's. Local file systems pass: there delta-rs makes a hard link.

    delta-rs looks at the log before it writes, so only simultaneous commits can tell: several
    writers commit the same version of a table that exists only for this test.

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
