"""The services of a benchmark, and the SQL it speaks to them."""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import adbc_driver_postgresql.dbapi as adbc
from rich.console import Console

from semel_lab.embedded import Kafka, Postgres

BROKER_HEAP = "512m"


@dataclass
class Rig:
    """One Kafka and one PostgreSQL, and a directory that goes when they go."""

    directory: Path
    kafka: Kafka
    postgres: Postgres
    console: Console
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def say(self, text: str) -> None:
        """A line of progress."""
        self.console.print(f"[dim]{time.strftime('%H:%M:%S')}[/] {text}", highlight=False)

    def unique(self, stem: str) -> str:
        """A name that no topic, table or connector of this rig has."""
        return f"{stem}_{next(self._numbers)}"

    def execute(self, *statements: str) -> None:
        """Run statements, each in a transaction of its own."""
        with self.connect() as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def value(self, query: str) -> Any:
        """The first column of a query's first row."""
        with self.connect() as connection, connection.cursor() as cursor:
            cursor.execute(query)
            return cursor.fetchone()[0]

    def connect(self) -> Any:
        """A connection of its own, in autocommit."""
        return adbc.connect(self.postgres.url, autocommit=True)


@contextmanager
def rig(console: Console, parent: Path | None = None) -> Iterator[Rig]:
    """Start the services in a temporary directory below ``parent``; everything goes at the end."""
    if parent is not None:
        parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="semel-bench-", dir=parent) as name:
        directory = Path(name)
        with (
            Kafka(directory / "kafka", heap=BROKER_HEAP) as kafka,
            Postgres(directory / "postgres") as postgres,
        ):
            yield Rig(directory, kafka, postgres, console)
