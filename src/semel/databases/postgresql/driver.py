"""ADBC sessions of one URL that share what the driver has read from the server.

An ADBC database reads all types and all columns of the server when it is made: 37 ms of CPU with an
empty database, more with thousands of tables. Sessions of one URL share it for as long as the
server has the same types.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from contextlib import suppress
from typing import Any

import adbc_driver_manager
import adbc_driver_postgresql

from semel.config.extras import deferred

with deferred("pyarrow.dataset"):  # it imports pandas, and no data set is written
    import adbc_driver_postgresql.dbapi as adbc

TYPES = """(SELECT concat_ws(' ', current_setting('server_version_num'), count(*),
sum(hashtext(concat_ws(' ', t.oid, typname, typreceive, typbasetype, c.xmin))))
FROM pg_catalog.pg_type t LEFT JOIN pg_catalog.pg_class c ON c.oid = typrelid
WHERE (typrelid = 0 OR relkind = 'c') AND typcategory <> 'A')"""
"""A digest of the server and its types, without md5(), which servers in FIPS mode do not have. The
row types of tables are left out: tables come and go, and no column is read as such a type. Arrays
come and go with their elements."""

LASTS = 600.0
"""Seconds after which types are read again: one may have been created between their reading and the
first digest."""

_MOST = 32
"""How many databases to keep: the most recently used ones."""

_kept: OrderedDict[str, SharedDatabase] = OrderedDict()
_lock = threading.Lock()


class SharedDatabase:
    """An ADBC database, which holds what the driver knows about one server."""

    def __init__(self, uri: str) -> None:
        """
        Raises:
            adbc_driver_manager.Error: the server refuses or does not answer.
        """
        self._uri = uri
        self._database = adbc_driver_postgresql.connect(uri)
        self._read_at = time.monotonic()
        self._types = ""
        self._connecting = threading.Lock()  # ADBC: one call at a time

    @property
    def is_old(self) -> bool:
        """Whether the types were read long ago."""
        return time.monotonic() - self._read_at > LASTS

    def connect(self) -> adbc.Connection:
        """A new session in autocommit mode.

        Raises:
            adbc_driver_manager.Error: as for the class.
        """
        with self._connecting:
            session = adbc_driver_manager.AdbcConnection(self._database)
        return adbc.Connection(_OpenDatabase(), session, autocommit=True)

    def knows(self, types: str) -> bool:
        """Whether the server still has the types that the driver has read, by the digest that a
        session of this database got. If not, the next session reads them again."""
        with _lock:
            self._types = self._types or types
            if self._types != types and _kept.get(self._uri) is self:
                del _kept[self._uri]
            return self._types == types


class _OpenDatabase:
    """Takes the place of a database that must stay open when a session ends."""

    def close(self) -> None: ...


def shared(uri: str) -> SharedDatabase:
    """The database of a URL.

    Raises:
        adbc_driver_manager.Error: it has to be created, and the server refuses or does not answer.
    """
    with _lock:
        if (database := _kept.get(uri)) is not None and not database.is_old:
            _kept.move_to_end(uri)
            return database
    database = SharedDatabase(uri)  # without the lock: nobody waits for somebody else's server
    with _lock:
        _kept[uri] = database
        _kept.move_to_end(uri)
        while len(_kept) > _MOST:
            _kept.popitem(last=False)
    return database


def connect(uri: str) -> Any:
    """A new session in autocommit mode, as a DB-API connection.

    Raises:
        adbc_driver_manager.Error: the server refuses or does not answer.
    """
    while True:
        database = shared(uri)
        session = database.connect()
        try:
            with session.cursor() as cursor:
                cursor.execute(f"SELECT {TYPES}")
                (types,) = cursor.fetchone()
            if database.knows(types):
                return session
        except BaseException:
            with suppress(adbc_driver_manager.Error, RuntimeError):
                session.close()
            raise
        session.close()
