"""Arrow rows for MariaDB and MySQL: as text for a multi-row ``VALUES``, and by LOAD DATA, the
fastest way into a table. Vectorised."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.core.records import one_array
from semel.databases.columns import is_binary, is_text
from semel.databases.mysql.connection import ROWS
from semel.databases.names import Name, quote

_SWITCHED_OFF = (1148, 3948, 4166)
_HEX = np.frombuffer(b"".join(b"%02X" % i for i in range(256)), np.dtype("S2"))


def values(rows: pa.Table, most: int) -> Iterator[bytes]:
    """``(1,'a'),(2,NULL)``, in pieces of at most ``most`` bytes (or one row)."""
    parts = [_literals(one_array(v)) for v in rows.columns]
    each = pc.binary_join_element_wise("(", pc.binary_join_element_wise(*parts, ","), ")", "")
    sizes = np.cumsum(pc.binary_length(each).to_numpy().astype(np.int64) + 1)
    start = 0
    while start < len(each):
        before = sizes[start - 1] if start else 0
        end = max(int(np.searchsorted(sizes, before + most, side="right")), start + 1)
        piece = each.slice(start, end - start)
        whole = pa.ListArray.from_arrays(pa.array([0, len(piece)], pa.int32()), piece)
        yield pc.binary_join(whole, ",")[0].as_buffer().to_pybytes()
        start = end


def lines(rows: pa.Table) -> pa.Buffer:
    """Fields that end with a tab, lines that end with a tab and a newline; null is ``\\N``."""
    parts = [_field(one_array(v)) for v in rows.columns]
    each = pc.binary_join_element_wise(
        *parts, "\n", "\t", null_handling="replace", null_replacement="\\N"
    )
    _, offsets, text = each.buffers()
    ends = np.frombuffer(offsets, np.int32)
    return text.slice(ends[each.offset], ends[each.offset + len(each)] - ends[each.offset])


def _literals(column: pa.Array) -> pa.Array:
    """Values as SQL, quoted if they could be mistaken for a name, such as ``nan``."""
    if is_binary(column.type):
        text = _around("X'", _hex(column))
    elif is_text(column.type):
        text = _around("'", pc.replace_substring(column.cast(pa.string()), "'", "''"))
    elif pa.types.is_temporal(column.type) or pa.types.is_floating(column.type):
        text = _around("'", _plain(column))
    else:
        text = _plain(column)
    return text.fill_null("NULL")


def _around(before: str, text: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(before, text, "'", "")


def _field(column: pa.Array) -> pa.Array:
    if is_binary(column.type):
        return _hex(column)
    if not is_text(column.type):
        return _plain(column)
    text = column.cast(pa.string())
    for character, escaped in (("\\", "\\\\"), ("\t", "\\t"), ("\n", "\\n"), ("\0", "\\0")):
        text = pc.replace_substring(text, character, escaped)
    return text


def _plain(column: pa.Array) -> pa.Array:
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int8())
    elif pa.types.is_timestamp(column.type) and column.type.tz:
        column = column.cast(pa.timestamp(column.type.unit, "UTC")).cast(
            pa.timestamp(column.type.unit)
        )
    return column.cast(pa.string())


def _hex(column: pa.Array) -> pa.Array:
    """Bytes as hexadecimal digits."""
    column = column.cast(pa.binary())
    _, offsets, data = column.buffers()
    ends = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1]
    first = ends[0] if len(ends) else 0
    raw = (
        np.frombuffer(data, np.uint8)[first : ends[-1]] if data and len(ends) else np.empty(0, "u1")
    )
    digits = pa.py_buffer(_HEX[raw].tobytes())
    doubled = pa.py_buffer(((ends - first) * 2).astype(np.int32).tobytes())
    valid = column.is_valid()
    text = pa.StringArray.from_buffers(len(column), doubled, digits)
    return text if not column.null_count else pc.if_else(valid, text, pa.scalar(None, pa.string()))


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

    try:
        connection.query("SAVEPOINT semel_load")
        connection.rows_to_send = memoryview(lines(rows))
        cursor = connection.cursor()
        loaded = cursor.execute(_statement(target, rows.schema))
        if loaded == rows.num_rows and not cursor.warning_count:
            return True
    except pymysql.err.MySQLError as error:
        if error.args[0] not in _SWITCHED_OFF:
            raise
        connection.query("ROLLBACK TO SAVEPOINT semel_load")
        raise SwitchedOff from error
    finally:
        connection.rows_to_send = None
    connection.query("ROLLBACK TO SAVEPOINT semel_load")
    return False


def _statement(target: Name, columns: pa.Schema) -> str:
    names: list[str] = []
    sets: list[str] = []
    for field in columns:
        if is_binary(field.type):
            names.append(f"@b{len(sets)}")
            sets.append(f"{quote(field.name)} = UNHEX(@b{len(sets)})")
        else:
            names.append(quote(field.name))
    return (
        f"LOAD DATA LOCAL INFILE '{ROWS.decode()}' INTO TABLE {target.quoted} "
        "CHARACTER SET utf8mb4 FIELDS TERMINATED BY X'09' ESCAPED BY '\\' "
        f"LINES TERMINATED BY X'090A' ({', '.join(names)})"
        + (f" SET {', '.join(sets)}" if sets else "")
    )
