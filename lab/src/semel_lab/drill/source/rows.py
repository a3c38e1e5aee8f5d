"""A table of a database of the drill's own, which the JDBC source reads."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from semel.config.definition import names
from semel.core.errors import ConfigError, ServiceError
from semel.sources.jdbc.config import BULK, TIMESTAMP, JdbcSourceConfig
from semel.sources.jdbc.database import INSTANT
from semel_lab.drill.plan import Kind
from semel_lab.drill.processes import PATIENCE
from semel_lab.drill.source.databases import FILES
from semel_lab.drill.source.system import OF_ANY, System, text_of
from semel_lab.embedded import Postgres
from semel_lab.embedded.mariadb import DATABASE, MariaDB

_TABLE = "drill"
_ROW = pa.struct(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("text", pa.string()),
        pa.field("changed", INSTANT, nullable=False),
    ]
)
_OF_THE_USER = ("mode", "topic.prefix", "timestamp.delay.interval.ms", "first.load.range.rows")
"""Keys of the source that a drill leaves as they are."""
_AGAIN = 0.05
"""Seconds until the next attempt to write to a server that is away."""


class Rows(System):
    """A table that grows in the order of its numbers and times, each burst in a transaction."""

    faults = OF_ANY | {Kind.STORE_RESTART, Kind.STORE_KILL}
    server: Postgres | MariaDB | None = None
    """None where the database is a file."""
    replaced = tuple(n for n in names(JdbcSourceConfig) if n not in _OF_THE_USER)

    def __init__(self, raw: Mapping[str, str], directory: Path) -> None:
        name, self._mode = raw.get("name", ""), raw.get("mode", "").strip()
        if self._mode == BULK:
            raise ConfigError(
                f"connector {name}: mode={BULK} writes all rows at each poll, so a drill cannot "
                "tell what is duplicated. Set another mode"
            )
        url = raw.get("connection.url", "").strip().removeprefix("jdbc:")
        system = url.partition(":")[0]
        self._tick = 1
        if system in ("postgresql", "postgres"):
            self.server = (postgres := Postgres(directory / "postgres"))
            place = {
                "connection.url": postgres.jdbc_url,
                "connection.user": postgres.user,
                "connection.password": postgres.password,
            }
            self._run: Callable[[str], Sequence[Any]] = lambda sql: _of_postgres(postgres, sql)
            self._time, self._of_text = "timestamptz", ""
        elif system in ("mariadb", "mysql"):
            self.server = (mariadb := MariaDB(directory / "mariadb"))
            place = {"connection.url": mariadb.jdbc_url, "connection.user": mariadb.user}
            self._run = lambda sql: mariadb.execute(sql, database=DATABASE)
            self._time, self._of_text = "datetime(6)", "CHARACTER SET utf8mb4"
        elif system in FILES:
            path = directory / f"rows.{system}"
            place = {"connection.url": f"jdbc:{system}:{path}"}
            self._run, self.faults = FILES[system](path)
            self._time, self._of_text = "timestamp", ""
            self._tick = 1000 if system == "sqlite" else 1
        else:  # not the URL itself: it may hold a password
            raise ConfigError(
                f"connector {name}: the drill has no database for connection.url={system}:... Set "
                "one that begins with jdbc:postgresql:, jdbc:mariadb:, jdbc:sqlite: or jdbc:duckdb:"
            )
        self.topics = [f"{raw.get('topic.prefix', '').strip()}{_TABLE}"]
        self.keys = {
            **place,
            "table.whitelist": _TABLE,
            "incrementing.column.name": "id",
            "timestamp.column.name": "changed",
            "poll.interval.ms": "20",
        }
        self._newest = 0

    def open(self) -> None:
        if self.server is not None:
            self.server.start()
        self._run(
            f"CREATE TABLE {_TABLE} (id bigint NOT NULL PRIMARY KEY, "
            f"text text {self._of_text}, changed {self._time} NOT NULL)"
        )

    def close(self) -> None:
        if self.server is not None:
            self.server.kill()

    def values(self, numbers: Sequence[int], dice: random.Random) -> pa.Array:
        """Rows with later times than all before; some share a time."""
        rows: list[dict[str, Any]] = []
        for number in numbers:
            if not rows or dice.random() < 0.5:
                now = time.time_ns() // 1000 // self._tick * self._tick
                self._newest = max(self._newest + self._tick, now)
            rows.append({"id": number, "text": text_of(dice), "changed": self._newest})
        return pa.array(rows, _ROW)

    def write(self, values: pa.Array, dice: random.Random) -> None:
        """Insert the rows in one transaction, once, even if the server goes away midway."""
        rows = [
            f"({row['id']}, '{row['text']}', '{_written(row['changed'])}')"
            for row in values.to_pylist()
        ]
        first = values[0]["id"].as_py()
        deadline, tried = time.monotonic() + PATIENCE, False
        while True:
            try:
                if tried and self._run(f"SELECT id FROM {_TABLE} WHERE id = {first}"):
                    return
                self._run(f"INSERT INTO {_TABLE} VALUES {', '.join(rows)}")
                return
            except ServiceError:
                if time.monotonic() > deadline:
                    raise
                tried = True
                time.sleep(_AGAIN)

    def lane(self, number: int) -> int:
        """In timestamp mode, rows with the same time come in any order."""
        return number if self._mode == TIMESTAMP else 0


def _written(moment: datetime) -> str:
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat(" ", "microseconds")


def _of_postgres(server: Postgres, sql: str) -> Sequence[Any]:
    from adbc_driver_manager import Error

    from semel.databases.postgresql import driver

    try:
        with driver.connect(server.url) as connection, connection.cursor() as cursor:
            cursor.execute(sql)
            return cursor.fetchall() if sql.startswith("SELECT") else []
    except Error as failure:
        raise ServiceError(f"{server.name}: {failure}") from None
