"""A catalog in a database with timeouts: PyIceberg's own waits forever."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from sqlalchemy import Engine, event

from semel.core.errors import misconfigured
from semel.core.watchdog import Watchdog

_CALL = "semel.call"


def connect(name: str, connector: str, timeout: float, properties: Any) -> Catalog:
    """A catalog in a database. Its transactions fail when no byte has come for ``timeout`` seconds,
    or a few seconds after the connector was asked to stop.

    Raises:
        ConfigError: neither the properties nor PyIceberg's own configuration name the database.
    """

    class Watched(SqlCatalog):
        def _init_catalog(self) -> None:
            _watch(self.engine, connector, name, timeout)
            super()._init_catalog()

    if "uri" not in properties:
        raise misconfigured(
            "iceberg.catalog.uri",
            "iceberg.catalog.uri is required with iceberg.catalog.type=sql: the catalog's address",
        )
    return Watched(name, **properties)


def _watch(engine: Engine, connector: str, name: str, timeout: float) -> None:
    if engine.dialect.name not in ("postgresql", "mysql", "mariadb"):
        return  # SQLite waits for its own locks only, and has no connection

    @event.listens_for(engine, "do_connect")
    def bound(_dialect: object, _record: object, _args: object, options: dict[str, Any]) -> None:
        options.setdefault("connect_timeout", max(2, round(timeout)))

    @event.listens_for(engine, "checkout")
    def begin(connection: Any, record: Any, _proxy: object) -> None:
        dog = Watchdog(connector, f"Iceberg catalog {name}", timeout)
        stack = record.info[_CALL] = ExitStack()
        stack.callback(dog.detach)
        dog.attach(getattr(connection, "_sock", None) or _descriptor(connection))
        stack.enter_context(dog.call())

    @event.listens_for(engine, "checkin")
    def end(_connection: object, record: Any) -> None:
        stack = record.info.pop(_CALL, None)
        if stack is not None:
            stack.close()


def _descriptor(connection: Any) -> int | None:
    """The socket of a PostgreSQL driver; None if the driver does not expose it."""
    fileno = getattr(connection, "fileno", None)
    return None if fileno is None else int(fileno())
