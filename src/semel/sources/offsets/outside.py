"""Stores of source offsets that are not part of a Kafka transaction: a file, or a table of a
database. Keys and values are those of the offsets topic."""

from __future__ import annotations

import hashlib
import json
import os
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from semel.config import SourceConnectorConfig
from semel.config.source_connector import OFFSETS_FILE, OFFSETS_TABLE, OFFSETS_URLS
from semel.core.errors import (
    ConfigError,
    LedgerConflict,
    Problem,
    ServiceError,
    TransientError,
    misconfigured,
)
from semel.core.locks import alone
from semel.core.quoting import PATH, named
from semel.databases.base import Database
from semel.databases.errors import DataRefused
from semel.databases.login import Login, Timeouts
from semel.databases.names import Name, parse_name

Record = tuple[bytes, bytes | None]
"""Key and value, as in the offsets topic; None forgets the key."""

_HEAD = bytes.fromhex("aced0005") + (
    b"sr\0\x11java.util.HashMap\x05\x07\xda\xc1\xc3\x16\x60\xd1\x03\0\x02"
    b"F\0\x0aloadFactorI\0\x09thresholdxp"
)
_FACTS = struct.Struct(">fi2sii")
"""Load factor and threshold, the head of a block of 8 bytes, buckets, entries."""
_BLOCK = b"w\x08"
_ARRAY = b"ur\0\x02[B\xac\xf3\x17\xf8\x06\x08\x54\xe0\x02\0\0xp"
"""The first array, with the description of its class; the others refer to it."""
_ANOTHER = b"uq\0\x7e\0\x02"
_NULL, _END = b"p", b"x"
_LENGTH = struct.Struct(">i")

_PATIENCE = 20.0
"""Seconds to wait for a process that writes the file, and between two looks."""
_COLUMNS = ("connector", "id", "source_partition", "source_offset")


class OutsideStore(Protocol):
    """The contract of a store outside Kafka."""

    @property
    def where(self) -> str:
        """What it is, without credentials."""

    def prepare(self) -> None:
        """Prepare it for writing.

        Raises:
            ConfigError: it cannot be what the configuration says.
            ServiceError: it cannot be created.
        """

    def read(self, *, expected: bool) -> Mapping[bytes, bytes]:
        """What it holds at one instant. If it does not exist, the result is empty, unless it is
        ``expected``: then that is an error."""

    def write(self, records: Sequence[Record], known: Mapping[bytes, bytes | None]) -> None:
        """Store records, all or none, if each key in ``known`` still has that value.

        Raises:
            LedgerConflict: a key has another value; nothing was stored.
            TransientError: they may or may not have been stored.
        """

    def close(self) -> None:
        """Drop connections. May be called twice."""


def compare(
    where: str, known: Mapping[bytes, bytes | None], stored: Mapping[bytes, bytes | None]
) -> None:
    """Raises LedgerConflict: a key does not have its known value."""
    other = next((key for key, value in known.items() if stored.get(key) != value), None)
    if other is not None:
        raise LedgerConflict(
            f"{where}: the record {named(other.decode(errors='replace'))} has changed since it was "
            "read: another run or task has written it"
        )


class OffsetFile:
    """A file of source offsets, as Kafka Connect's standalone worker keeps it: a ``HashMap`` of
    ``byte[]`` to ``byte[]`` that Java has serialized. Several processes of one machine may share
    it."""

    def __init__(self, connector: str, path: str) -> None:
        self._where = f"connector {connector}: {OFFSETS_FILE}={path}"
        self._path = Path(path)
        self.where = f"offsets file {named(path, PATH)}"

    def prepare(self) -> None:
        """Check that the file can be written. Raises ConfigError: it cannot."""
        place = self._path.parent
        if not place.is_dir() or self._path.is_dir():
            raise misconfigured(
                OFFSETS_FILE, f"{self._where} must name a file in a directory that exists"
            )
        if not os.access(place, os.W_OK):
            raise misconfigured(
                OFFSETS_FILE,
                f"{self._where}: {place} cannot be written. Grant write permission to the user "
                "that runs the tasks",
            )
        self.read()

    def read(self, *, expected: bool = False) -> Mapping[bytes, bytes]:
        """What the file holds; nothing if it does not exist yet, which is never an error.

        Raises:
            ConfigError: it is not a file of source offsets.
            ServiceError: it cannot be read.
        """
        try:
            content = self._path.read_bytes()
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise ServiceError(f"{self._where} cannot be read: {error.strerror}") from None
        try:
            return parsed(content) if content else {}  # empty counts as new, as in Kafka Connect
        except (ValueError, struct.error):
            raise misconfigured(
                OFFSETS_FILE,
                f"{self._where} is not a file of source offsets of Kafka Connect. Name another one",
            ) from None

    def write(self, records: Sequence[Record], known: Mapping[bytes, bytes | None]) -> None:
        """See :class:`OutsideStore`. The file is replaced in one step.

        Raises:
            LedgerConflict: a key's value is not the known one.
            ServiceError: it cannot be written.
            Unavailable: another process does not finish writing it. That process may be frozen.
        """
        scratch = self._path.with_name(f"{self._path.name}.semel-new")
        try:
            with alone(
                self._path.with_name(f"{self._path.name}.semel-lock"), _PATIENCE, self._where
            ):
                stored = dict(self.read())
                compare(self._where, known, stored)
                for key, value in records:
                    stored.pop(key, None)
                    if value is not None:
                        stored[key] = value
                with scratch.open("wb") as file:
                    file.write(serialized(stored))
                    file.flush()
                    os.fsync(file.fileno())
                scratch.replace(self._path)
        except OSError as error:
            raise ServiceError(f"{self._where} cannot be written: {error.strerror}") from None

    def close(self) -> None:
        """Nothing stays open."""


def serialized(entries: Mapping[bytes, bytes]) -> bytes:
    """The map as Java serializes it."""
    parts = [_HEAD, _FACTS.pack(0.75, 12, _BLOCK, 16, len(entries))]
    begin = _ARRAY
    for array in (a for entry in entries.items() for a in entry):
        parts += [begin, _LENGTH.pack(len(array)), array]
        begin = _ANOTHER
    return b"".join([*parts, _END])


def parsed(content: bytes) -> dict[bytes, bytes]:
    """The map that Java has serialized, without entries whose key or value is null or empty.

    Raises:
        ValueError, struct.error: it is something else.
    """
    place = len(_HEAD)
    _, _, block, _, count = _FACTS.unpack_from(content, place)
    if not content.startswith(_HEAD) or block != _BLOCK:
        raise ValueError
    place += _FACTS.size
    arrays: list[bytes | None] = []
    begin = _ARRAY
    for _ in range(2 * count):
        if content.startswith(_NULL, place):
            arrays.append(None)
            place += 1
            continue
        if not content.startswith(begin, place):
            raise ValueError
        place += len(begin)
        begin = _ANOTHER
        (length,) = _LENGTH.unpack_from(content, place)
        place += _LENGTH.size
        if not 0 <= length <= len(content) - place:
            raise ValueError
        arrays.append(content[place : place + length])
        place += length
    if content[place:] != _END:
        raise ValueError
    return {k: v for k, v in zip(arrays[::2], arrays[1::2], strict=True) if k and v}


class OffsetTable:
    """The rows of one connector in a table, which several processes may share.

    Each row holds a source partition and its offset, in the JSON of the offsets topic. ``id`` is a
    hash of the partition, since a key's length is limited. The row whose partition is ``null``
    names the run that owns the connector; a writer locks it first, so that writers of one connector
    take turns.
    """

    def __init__(self, connector: SourceConnectorConfig) -> None:
        self._connector = connector.name
        self._database, self._lock, self._file = _opened(connector)
        postgresql = self._database.system == "PostgreSQL"
        self._name: Name = parse_name(connector.offsets_table, fold=postgresql, key=OFFSETS_TABLE)
        self._mutex = threading.Lock()
        self._prefix = json.dumps([connector.name], ensure_ascii=False)[:-1].encode() + b","

    @property
    def where(self) -> str:
        return f"offsets table {named(self._name)} of {self._database.where}"

    def prepare(self) -> None:
        fields = [pa.field(name, pa.string(), nullable=False) for name in _COLUMNS]
        with self._mutex, self._database.transaction():
            if not self._database.exists(self._name):
                self._database.create(self._name, fields, _COLUMNS[:2])

    def read(self, *, expected: bool) -> Mapping[bytes, bytes]:
        if not expected and self._file is not None and not self._file.exists():
            return {}
        with self._mutex, self._database.transaction(reading=True):
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
        ids = ", ".join(self._literal(row_id) for row_id in sorted(map(self._id, keys)))
        try:
            with self._mutex, self._database.transaction():
                self._rows(f" AND id = {self._literal(self._id(self._owner))}{self._lock}")
                stored = self._rows(f" AND id IN ({ids})")
                compare(f"connector {self._connector}: {self.where}", known, stored)
                for key, value in records:
                    self._store(key, value, is_there=key in stored)
        except DataRefused as error:  # another process has inserted the row meanwhile
            raise TransientError(str(error)) from None

    def close(self) -> None:
        with self._mutex:  # another thread may be reading
            self._database.close()

    @property
    def _owner(self) -> bytes:
        return self._prefix + b"null]"

    def _rows(self, more: str) -> dict[bytes, bytes]:
        rows = self._database.query(
            f"SELECT source_partition, source_offset FROM {self._name.quoted} "
            f"WHERE connector = {self._literal(self._connector)}{more}"
        )
        return {
            self._prefix + row["source_partition"].encode() + b"]": row["source_offset"].encode()
            for row in rows.to_pylist()
        }

    def _store(self, key: bytes, value: bytes | None, *, is_there: bool) -> None:
        table = self._name.quoted
        place = [self._literal(self._connector), self._literal(self._id(key))]
        condition = f"WHERE connector = {place[0]} AND id = {place[1]}"
        if value is None:
            self._database.execute(f"DELETE FROM {table} {condition}")
            return
        offset = self._literal(value.decode())
        if is_there:
            self._database.execute(f"UPDATE {table} SET source_offset = {offset} {condition}")
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
        messages = [
            p.message.replace("connection.", "offset.storage.jdbc.connection.")
            for p in error.problems
        ]
        raise ConfigError(*(Problem(OFFSETS_URLS[0], message) for message in messages)) from None


_Opened = tuple[Database, str, Path | None]


def _login(connector: SourceConnectorConfig) -> tuple[Login, Timeouts]:
    return (
        Login(connector.offsets_url, connector.offsets_user, connector.offsets_password),
        Timeouts(answer=connector.store_timeout_ms),
    )


def _postgresql(connector: SourceConnectorConfig) -> _Opened:
    from semel.databases.postgresql.database import Postgres
    from semel.databases.postgresql.url import libpq_uri

    login, timeouts = _login(connector)
    uri = libpq_uri(login, f"semel-{connector.name}")
    database = Postgres(uri, timeouts.idle, connector.name, timeouts.answer)
    return database, " FOR UPDATE", None


def _mysql(connector: SourceConnectorConfig) -> _Opened:
    from semel.databases.mysql import Mysql

    login, timeouts = _login(connector)
    return Mysql(login, connector.name, timeouts), " FOR UPDATE", None


def _sqlite(connector: SourceConnectorConfig) -> _Opened:
    from semel.databases.files import database_path
    from semel.databases.sqlite import Sqlite

    login, timeouts = _login(connector)
    path = database_path(login.url, "sqlite")
    return Sqlite(login, connector.name, timeouts), "", path  # its writer is alone


_BY_SCHEME: Mapping[str, Callable[[SourceConnectorConfig], _Opened]] = {
    "postgresql": _postgresql,
    "postgres": _postgresql,
    "mysql": _mysql,
    "mariadb": _mysql,
    "sqlite": _sqlite,
}
