"""A connection with SQL Server through python-tds: statements, rows, bulk loads from Arrow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from socket import create_connection
from typing import Any

import pyarrow as pa

from semel.core.errors import ServiceError
from semel.core.watchdog import Watchdog
from semel.databases.columns import is_binary
from semel.databases.fetching import fetched, fetched_batches, fetched_blocks
from semel.databases.sqlserver.rows import rows as encoded
from semel.databases.sqlserver.url import Address

_PACKET = 16_383  # the maximum with TLS
_PATIENCE = 10.0  # seconds


@dataclass(frozen=True, slots=True)
class ResultColumn:
    """A column of a result, as the server announces it."""

    name: str
    type: str
    """Without length, precision or scale; empty for a .NET type."""
    precision: int = 0
    scale: int = 0
    """Also the number of fractional digits of a time's seconds."""
    nullable: bool = True
    identity: bool = False


class Client:
    """One connection, in which transactions are begun and ended by statements.

    Raises what python-tds raises, also for errors after a statement's first result.
    """

    def __init__(self, address: Address, watchdog: Watchdog) -> None:
        import pytds
        from pytds.instance_browser_client import resolve_instance_port

        from semel.databases.sqlserver import tls

        try:
            port = resolve_instance_port(
                address.host, None if address.instance else address.port, address.instance.upper()
            )
        except (RuntimeError, pytds.Error):  # from the server's browser service, over UDP
            raise ServiceError(
                f"{address.where}: its port is unknown. Name the port instead"
            ) from None
        # python-tds would wait before it reports that no server listens there.
        socket = create_connection((address.host, port), _PATIENCE)
        self._watchdog = watchdog
        watchdog.attach(socket)
        try:
            with tls.used(address.authorities, address.certified_name or address.host):
                self._connection = pytds.connect(
                    dsn=address.host,
                    port=port,
                    sock=socket,
                    database=address.database or None,
                    user=address.user,
                    password=address.password,
                    appname="semel",
                    autocommit=True,
                    blocksize=_PACKET,
                    login_timeout=_PATIENCE,
                    disable_connect_retry=True,
                    cafile=address.authorities or "none",  # else there is no TLS
                    enc_login_only=not address.encrypt,
                )
        except TimeoutError as error:
            raise error.__cause__ or error from None

    def execute(self, sql: str) -> None:
        with self._watchdog.call(), self._connection.cursor() as cursor:
            cursor.execute(sql)
            while cursor.nextset():
                pass  # a trigger's results, and its errors after them

    def query(self, sql: str) -> pa.Table:
        with self._watchdog.call(), self._connection.cursor() as cursor:
            cursor.execute(sql)
            return fetched(cursor)

    def columns(self, sql: str) -> Sequence[ResultColumn]:
        """The columns of a query, which are announced before its rows."""
        with self._watchdog.call(), self._connection.cursor() as cursor:
            cursor.execute(sql)
            return [_announced(c) for c in cursor._session.res_info.columns]

    def stream(self, sql: str, schema: pa.Schema | None = None) -> Iterator[pa.RecordBatch]:
        with self._connection.cursor() as cursor:
            with self._watchdog.call():
                cursor.execute(sql)
            yield from self._watchdog.each(fetched_batches(cursor, schema))

    def blocks(self, sql: str) -> Iterator[pa.Table]:
        """Rows in the types that their values have. Need not be read to the end."""
        with self._connection.cursor() as cursor:
            with self._watchdog.call():
                cursor.execute(sql)
            yield from self._watchdog.each(fetched_blocks(cursor))

    def load(self, table: str, rows: pa.Table) -> None:
        """Bulk load into a table whose columns have the types of :func:`sent_type`."""
        if not rows.num_rows:
            return
        whole = encoded(rows)
        with self._watchdog.call(), self._connection.cursor() as cursor:
            cursor.copy_to(
                table_or_view=table,
                columns=_columns(rows.schema),
                data=[(whole, *[b""] * (rows.num_columns - 1))],
            )

    def close(self) -> None:
        try:
            self._connection.close()
        finally:
            self._watchdog.detach()


def is_broken(error: BaseException) -> bool:
    """Whether an error is one of the connection."""
    from OpenSSL import SSL

    return isinstance(error, (OSError, SSL.Error))


def number_of(error: BaseException) -> int | None:
    """The server's number of a python-tds error; 0 for the driver's own errors, None for others."""
    import pytds

    return getattr(error, "number", 0) if isinstance(error, pytds.Error) else None


def _announced(column: Any) -> ResultColumn:
    read = column.serializer
    name = _NAMES.get(read.get_typeid(), "")
    is_time = name in ("time", "datetime2", "datetimeoffset")
    return ResultColumn(
        column.column_name,
        name,
        read.precision or 0,
        (read.precision if is_time else read.scale) or 0,
        bool(column.flags & column.fNullable),
        bool(column.flags & column.fIdentity),
    )


def _columns(schema: pa.Schema) -> list[Any]:
    """Columns for a bulk load of one row, whose first value is the encoded bytes of all rows."""
    from pytds import Column

    class EncodedColumn(Column):  # type: ignore[misc]
        def choose_serializer(self, **arguments: Any) -> _RawSerializer:
            return _RawSerializer(super().choose_serializer(**arguments))

    return [EncodedColumn(field.name, _type(field.type)) for field in schema]


class _RawSerializer:
    """Writes a column's description as python-tds does, and its values unchanged."""

    def __init__(self, serializer: Any) -> None:
        self.type = serializer.type
        self.write_info = serializer.write_info

    def write(self, writer: Any, encoded: bytes) -> None:
        writer.write(encoded)


def _type(kind: pa.DataType) -> Any:
    from pytds import tds_types as types

    if pa.types.is_decimal(kind):
        return types.DecimalType(38, kind.scale)
    if pa.types.is_timestamp(kind):
        return types.DateTimeOffsetType(6) if kind.tz else types.DateTime2Type(6)
    if is_binary(kind):
        return types.VarBinaryMaxType()
    if pa.types.is_time(kind):
        return types.TimeType(6)
    names = {
        pa.bool_(): types.BitType,
        pa.uint8(): types.TinyIntType,
        pa.int16(): types.SmallIntType,
        pa.int32(): types.IntType,
        pa.int64(): types.BigIntType,
        pa.float32(): types.RealType,
        pa.float64(): types.FloatType,
        pa.date32(): types.DateType,
    }
    return names.get(kind, types.NVarCharMaxType)()


_NAMES = {
    **{50: "bit", 104: "bit", 48: "tinyint", 52: "smallint", 56: "int", 127: "bigint"},
    **{59: "real", 62: "float", 122: "smallmoney", 60: "money", 106: "decimal", 108: "numeric"},
    **{40: "date", 41: "time", 42: "datetime2", 43: "datetimeoffset", 58: "smalldatetime"},
    **{61: "datetime", 35: "text", 99: "ntext", 167: "varchar", 175: "char", 231: "nvarchar"},
    **{239: "nchar", 34: "image", 165: "varbinary", 173: "binary", 36: "uniqueidentifier"},
    **{98: "sql_variant", 241: "xml"},
}
"""The types of TDS, by their numbers."""
