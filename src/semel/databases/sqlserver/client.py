"""python-tds: a connection with SQL Server (statements, rows, bulk loads from Arrow), its TLS, and
what the errors of the server and the driver mean."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import ip_address
from socket import create_connection
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from semel.core.errors import ServiceError, TransientError, Unavailable
from semel.core.watchdog import Watchdog
from semel.databases.base import fetched, fetched_batches, fetched_blocks
from semel.databases.columns import is_binary
from semel.databases.errors import DataRefused, Nature, SchemaChanged, by_code
from semel.databases.sqlserver.rows import Unsendable
from semel.databases.sqlserver.rows import rows as encoded
from semel.databases.sqlserver.url import Address

if TYPE_CHECKING:
    from cryptography import x509

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
            with _verified(address.authorities, address.certified_name or address.host):
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


# TLS: verified as in JDBC's driver, or not at all if the user asks for that. python-tds always
# verifies, and its check of host names fails with newer versions of pyOpenSSL.

_replaced = threading.Lock()


@contextmanager
def _verified(authorities: str | None, host: str) -> Iterator[None]:
    """A connection that is opened in this context is verified by a PEM file of authorities and the
    server's name, or not at all if ``authorities`` is None.

    Raises:
        ServiceError: the server's certificate is not valid for it.
    """
    import pytds.tls as module
    from OpenSSL import SSL

    def context(_file: str) -> Any:
        ssl_context = SSL.Context(SSL.TLSv1_2_METHOD)  # the newest in this version of the protocol
        if authorities is not None:
            ssl_context.set_verify(SSL.VERIFY_PEER, lambda *args: bool(args[-1]))
            ssl_context.load_verify_locations(authorities)
        return ssl_context

    def validate(cert: Any, **_kwargs: Any) -> bool:
        if authorities is None or certifies(cert.to_cryptography(), host):
            return True
        raise ServiceError(
            f"the server's certificate is not for {host}. Set hostNameInCertificate in "
            "connection.url to the name in the certificate"
        )

    with _replaced:
        theirs = module.create_context, module.validate_host
        module.create_context, module.validate_host = context, validate
        try:
            yield
        except SSL.Error as error:
            if "verify failed" not in str(error):
                raise ConnectionError(f"TLS: {error}") from None
            raise ServiceError(
                "the server's certificate was not issued by any authority in "
                f"{authorities}. Name a PEM file with its own in serverCertificate of "
                "connection.url, or set trustServerCertificate=true"
            ) from None
        finally:
            module.create_context, module.validate_host = theirs


def certifies(certificate: x509.Certificate, host: str) -> bool:
    """Whether a certificate belongs to a host, by its alternative names or else by its common
    name."""
    from cryptography import x509

    try:
        extensions = certificate.extensions
        names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        common = certificate.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
        return any(_matches(str(c.value), host) for c in common)
    if any(_matches(name, host) for name in names.get_values_for_type(x509.DNSName)):
        return True
    try:
        return ip_address(host) in names.get_values_for_type(x509.IPAddress)
    except ValueError:
        return False


def _matches(pattern: str, host: str) -> bool:
    """Whether a certificate's name is the host's; an asterisk stands for the whole first label."""
    pattern, host = pattern.lower(), host.lower()
    if pattern.startswith("*."):
        return host.partition(".")[2] == pattern[2:] != ""
    return pattern == host


# Errors

_RAISED = 50_000  # and above: by a trigger, in its own words
_DENIED = {229, 230, 262, 2760}

NATURES = by_code(
    {
        Nature.DATA: [
            *(220, 232, 234, 235, 236, 237, 238, 241, 242, 244, 245, 248, 293, 294, 295, 296),
            *(298, 304, 402, 409, 511, 512, 513, 515, 517, 518, 519, 520, 521, 522, 523, 524),
            *(527, 529, 535, 537, 542, 545, 547, 550, 681, 682, 1946, 2601, 2627, 2628, 3606),
            *(3607, 3608, 3609, 3616, 3623, 6522, 6569, 6573, 8114, 8115, 8134),
            *(8152, 8169, 9803, 9807, 9809, 9810, 9813, 9819, 33504, 33505),
            *range(9400, 9500),  # XML
            *range(13605, 13620),  # JSON
        ],
        Nature.CHANGED: [206, 207, 208, 213, 257, 271, 273, 3701, 4902, 4924, 8101],
        Nature.PASSING: [
            *(2705, 2714, 2759),  # another task has made the same column or table
            *(64, 121, 233, 596, 802, 845, 1204, 1205, 1211, 1222, 3635, 3950, 3951, 3960, 3961),
            *(3966, 8628, 8645, 8651, 10053, 10054),
            *(41301, 41302, 41305, 41325, 41839),
        ],
        Nature.AWAY: [
            *(922, 924, 927, 945, 976, 978, 983),  # the database recovers, or is another replica's
            *(701, 1101, 1105, 9001, 9002),  # no memory, no space, no log
            *(3906, 3908),  # read-only
            *(6001, 6002, 6005, 17142, 17188, 18401, 18451),  # starting up or shutting down
            *(10060, 10928, 10929, 17194, 40197, 40501, 40613, 49918, 49919, 49920),
        ],
        Nature.MISTAKE: [*_DENIED, 334, 339, 544, 1934, 3728, 5074, 4060, 8106, 18456],
    }
)
"""By SQL Server's numbers. Others are mistakes, unless a trigger has raised them."""
_STATES = by_code(
    {
        Nature.CHANGED: ["42"],
        Nature.PASSING: ["40", "55", "57"],
        Nature.AWAY: ["08", "53", "58"],
    }
)
"""By the classes of PostgreSQL's SQLSTATE, behind Babelfish."""
_WAITED = 1222
_NOT_MAPPED = "YY002"
"""Babelfish's SQLSTATE for PostgreSQL errors without a counterpart in SQL Server, such as a server
that is shutting down and a column that is missing."""
_GONE = "does not exist"
_GOING = ("the database system is ", "terminating connection", "conflict with recovery")


def translated(
    where: str, error: BaseException, advice: Callable[[str], str] = lambda _: ""
) -> Exception | None:
    """One of semel's errors; None for an error that is not the driver's. ``advice`` says what helps
    if the message says that a permission is missing."""
    if isinstance(error, Unsendable):
        return DataRefused(f"{where}: {error}")
    if is_broken(error):
        return TransientError(f"{where}: {error}")
    number = number_of(error)
    if number is None:
        return None
    text = f"{where}: {error.args[0]}" + (f" ({number})" if number else "")
    state = _state(number)
    if number == _WAITED or "lock timeout" in text:
        return TransientError(f"{text}. If the process that holds the rows is frozen, end it")
    if state == _NOT_MAPPED and any(words in text for words in _GOING):
        return Unavailable(text)
    if state == _NOT_MAPPED and _GONE in text:
        return SchemaChanged(text)
    if number in _DENIED or state == "42501":
        return ServiceError(text + advice(str(error.args[0])))
    return _nature(number, state).error(text)


def is_broken(error: BaseException) -> bool:
    """Whether an error is one of the connection."""
    from OpenSSL import SSL

    return isinstance(error, (OSError, SSL.Error))


def number_of(error: BaseException) -> int | None:
    """The server's number of a python-tds error; 0 for the driver's own errors, None for others."""
    import pytds

    return getattr(error, "number", 0) if isinstance(error, pytds.Error) else None


def _nature(number: int, state: str) -> Nature:
    if not number:
        return Nature.PASSING
    if number in NATURES:
        return NATURES[number]
    if state:
        return _STATES.get(state[:2], Nature.MISTAKE if state == "XX000" else Nature.DATA)
    return Nature.DATA if number >= _RAISED else Nature.MISTAKE


def _state(number: int) -> str:
    """PostgreSQL's SQLSTATE, which Babelfish encodes in its numbers; empty for SQL Server's."""
    return "".join(chr((number >> 6 * i & 63) + 48) for i in range(5)) if number >> 24 else ""
