"""LOAD DATA, the fastest way into a table, from a file in memory."""

from __future__ import annotations

import os
from typing import Any

import pyarrow as pa

from semel.sinks.sql.columns import is_binary
from semel.sinks.sql.mysql.text import lines
from semel.sinks.sql.names import Name, quote

_SWITCHED_OFF = (1148, 3948, 4166)


class SwitchedOff(Exception):
    """The server's ``local_infile`` is off."""


def load(connection: Any, target: Name, rows: pa.Table) -> bool:
    """Insert rows within the transaction; returns whether that was possible.

    LOAD DATA turns errors into warnings and continues. If there are any, it is undone, and INSERT
    has to show which row is at fault.

    Raises:
        SwitchedOff: nothing can be loaded.
    """
    import pymysql

    text = memoryview(lines(rows))
    file = os.memfd_create("semel", os.MFD_CLOEXEC)
    try:
        with os.fdopen(os.dup(file), "wb") as stream:
            stream.write(text)
        connection.query("SAVEPOINT semel_load")
        connection._local_infile = True  # off otherwise: a server could ask for any file
        cursor = connection.cursor()
        loaded = cursor.execute(_statement(f"/proc/self/fd/{file}", target, rows.schema))
        if loaded == rows.num_rows and not cursor.warning_count:
            return True
    except pymysql.err.MySQLError as error:
        if error.args[0] not in _SWITCHED_OFF:
            raise
        connection.query("ROLLBACK TO SAVEPOINT semel_load")
        raise SwitchedOff from error
    finally:
        connection._local_infile = False
        os.close(file)
    connection.query("ROLLBACK TO SAVEPOINT semel_load")
    return False


def _statement(path: str, target: Name, columns: pa.Schema) -> str:
    names: list[str] = []
    sets: list[str] = []
    for field in columns:
        if is_binary(field.type):
            names.append(f"@b{len(sets)}")
            sets.append(f"{quote(field.name)} = UNHEX(@b{len(sets)})")
        else:
            names.append(quote(field.name))
    return (
        f"LOAD DATA LOCAL INFILE '{path}' INTO TABLE {target.quoted} "
        "CHARACTER SET utf8mb4 FIELDS TERMINATED BY X'09' ESCAPED BY '\\' "
        f"LINES TERMINATED BY X'090A' ({', '.join(names)})"
        + (f" SET {', '.join(sets)}" if sets else "")
    )
