"""Source offsets in a table of a database.

Each row holds a connector's source partition and its offset, in the JSON of the offsets topic.
``id`` is a hash of the partition, since a key's length is limited. The row whose partition is
``null`` names the run that owns the connector; a writer locks it first, so that writers of one
connector take turns.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pyarrow as pa

from semel.config import SourceConnectorConfig
from semel.config.source_connector import OFFSETS_TABLE, OFFSETS_URLS
from semel.core.errors import ConfigError, Problem, ServiceError, TransientError, misconfigured
from semel.core.quoting import named
from semel.databases.base import Database
from semel.databases.errors import DataRefused
from semel.databases.login import Login, Timeouts
from semel.databases.names import Name, parse_name
from semel.sources.offsets.outside import Record, compare

_COLUMNS = ("connector", "id", "source_partition", "source_offset")


class OffsetTable:
    """The rows of one connector. Several processes may share the table."""

    def __init__(self, connector: SourceConnectorConfig) -> None:
        self._connector = connector.name
        self._database, self._lock, self._file = _opened(connector)
        postgresql = self._database.system == "PostgreSQL"
        self._name: Name = parse_name(connector.offsets_table, fold=postgresql, key=OFFSETS_TABLE)
        self._one = threading.Lock()
        self._prefix = json.dumps([connector.name], ensure_ascii=False)[:-1].encode() + b","

    @property
    def where(self) -> str:
        return f"offsets table {named(self._name)} of {self._database.where}"

    def prepare(self) -> None:
        fields = [pa.field(name, pa.string(), nullable=False) for name in _COLUMNS]
        with self._one, self._database.transaction():
            if not self._database.exists(self._name):
                self._database.create(self._name, fields, _COLUMNS[:2])

    def read(self, *, expected: bool) -> Mapping[bytes, bytes]:
        if not expected and self._file is not None and not self._file.exists():
            return {}
        with self._one, self._database.transaction(reading=True):
            if self._database.exists(self._name):
                return self._rows("")
        if not expected:
            return {}
        raise ServiceError(
            f"connector {self._connector}: {self.where} is gone. Restore it: without it, the next "
            "start reads the source from its beginning and writes its records once more, unless "
            "semel offsets set has stored where to continue"
        )

    def write(self, records: Sequence[Record], known: Mapping[bytes, bytes | None]) -> None:
        keys = {*known, *(key for key, _ in records)}
        ids = ", ".join(self._literal(each) for each in sorted(map(self._id, keys)))
        try:
            with self._one, self._database.transaction():
                self._rows(f" AND id = {self._literal(self._id(self._owner))}{self._lock}")
                held = self._rows(f" AND id IN ({ids})")
                compare(f"connector {self._connector}: {self.where}", known, held)
                for key, value in records:
                    self._store(key, value, is_there=key in held)
        except DataRefused as error:  # another process has inserted the row meanwhile
            raise TransientError(str(error)) from None

    def close(self) -> None:
        with self._one:  # another thread may be reading
            self._database.close()

    @property
    def _owner(self) -> bytes:
        return self._prefix + b"null]"

    def _rows(self, more: str) -> dict[bytes, bytes]:
        found = self._database.query(
            f"SELECT source_partition, source_offset FROM {self._name.quoted} "
            f"WHERE connector = {self._literal(self._connector)}{more}"
        )
        return {
            self._prefix + row["source_partition"].encode() + b"]": row["source_offset"].encode()
            for row in found.to_pylist()
        }

    def _store(self, key: bytes, value: bytes | None, *, is_there: bool) -> None:
        table = self._name.quoted
        place = [self._literal(self._connector), self._literal(self._id(key))]
        here = f"WHERE connector = {place[0]} AND id = {place[1]}"
        if value is None:
            self._database.execute(f"DELETE FROM {table} {here}")
            return
        offset = self._literal(value.decode())
        if is_there:
            self._database.execute(f"UPDATE {table} SET source_offset = {offset} {here}")
            return
        place += [self._literal(self._partition(key)), offset]
        self._database.execute(
            f"INSERT INTO {table} ({', '.join(_COLUMNS)}) VALUES ({', '.join(place)})"
        )

    def _literal(self, text: str) -> str:
        return self._database.literal(text)

    def _partition(self, key: bytes) -> str:
        return key.removeprefix(self._prefix)[:-1].decode()

    def _id(self, key: bytes) -> str:
        return hashlib.sha256(self._partition(key).encode()).hexdigest()


def _opened(connector: SourceConnectorConfig) -> tuple[Database, str, Path | None]:
    """The database, the SQL that locks a query's rows, and the path if the database is a file.

    Raises:
        ConfigError: the URL is wrong, or is of another database.
    """
    bare = connector.offsets_url.strip().removeprefix("jdbc:")
    make = _BY_SCHEME.get(bare.partition(":")[0])
    try:
        if make is None:  # not the URL itself: it may hold a password
            raise misconfigured(
                "connection.url",
                f"connection.url={bare.partition(':')[0]}:... keeps no source offsets. Set one "
                "that begins with jdbc:postgresql:, jdbc:mysql:, jdbc:mariadb: or jdbc:sqlite:",
            )
        return make(connector)
    except ConfigError as error:
        told = [
            p.message.replace("connection.", "offset.storage.jdbc.connection.")
            for p in error.problems
        ]
        raise ConfigError(*(Problem(OFFSETS_URLS[0], message) for message in told)) from None


Opened = tuple[Database, str, Path | None]


def _login(connector: SourceConnectorConfig) -> tuple[Login, Timeouts]:
    return (
        Login(connector.offsets_url, connector.offsets_user, connector.offsets_password),
        Timeouts(answer=connector.store_timeout_ms),
    )


def _postgresql(connector: SourceConnectorConfig) -> Opened:
    from semel.databases.postgresql.database import Postgres
    from semel.databases.postgresql.url import libpq_uri

    login, timeouts = _login(connector)
    uri = libpq_uri(login, f"semel-{connector.name}")
    made = Postgres(uri, timeouts.idle, connector.name, timeouts.answer)
    return made, " FOR UPDATE", None


def _mysql(connector: SourceConnectorConfig) -> Opened:
    from semel.databases.mysql.session import Mysql

    login, timeouts = _login(connector)
    return Mysql(login, connector.name, timeouts), " FOR UPDATE", None


def _sqlite(connector: SourceConnectorConfig) -> Opened:
    from semel.databases.files import database_path
    from semel.databases.sqlite import Sqlite

    login, timeouts = _login(connector)
    path = database_path(login.url, "sqlite")
    return Sqlite(login, connector.name, timeouts), "", path  # its writer is alone


_BY_SCHEME: Mapping[str, Callable[[SourceConnectorConfig], Opened]] = {
    "postgresql": _postgresql,
    "postgres": _postgresql,
    "mysql": _mysql,
    "mariadb": _mysql,
    "sqlite": _sqlite,
}
