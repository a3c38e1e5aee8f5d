"""Ending the sessions of processes that froze in the middle of a COPY.

The server ends a transaction that idles between two statements. One that waits for the rest of a
COPY counts as active: no timeout of the server ends it, nor does a cancelled query, and its kernel
keeps answering keepalives. It holds the ledger's rows until somebody terminates it, which any
session of the same role may do.
"""

from __future__ import annotations

import time

from semel.sinks.postgresql.connection import Connection
from semel.sinks.sql.ledger_tables import OFFSETS

_PAUSE = 1.0

# The sessions of the same connector are those with this session's database and name.
_IN_COPY = f"""SELECT a.pid::bigint AS pid, a.xact_start::text AS begun, p.bytes_processed AS bytes
FROM pg_stat_activity a
JOIN pg_stat_progress_copy p ON p.pid = a.pid
JOIN pg_locks l ON l.pid = a.pid AND l.locktype = 'relation'
    AND l.relation = '{OFFSETS}'::regclass AND l.mode IN ('RowExclusiveLock', 'RowShareLock')
WHERE a.datname = current_database() AND a.pid <> pg_backend_pid()
    AND a.application_name = current_setting('application_name') AND a.wait_event = 'ClientRead'"""


def end_frozen(connection: Connection) -> None:
    """End the sessions that hold rows of the ledger and make no progress with a COPY."""
    before = _in_copy(connection)
    if not before:
        return
    time.sleep(_PAUSE)
    for pid in {pid for pid, *_ in before & _in_copy(connection)}:
        with connection.transaction():
            connection.execute(f"SELECT pg_terminate_backend({pid})")


def _in_copy(connection: Connection) -> set[tuple[int, str, int]]:
    with connection.transaction():
        found = connection.query(_IN_COPY).to_pylist()
    return {(row["pid"], row["begun"], row["bytes"]) for row in found}
