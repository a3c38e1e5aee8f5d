"""Copies 1,000,000 orders from table to table through Kafka, while they change and both connectors
are killed."""

from __future__ import annotations

import os
import random
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from semel.core.errors import ServiceError
from semel_lab.demo.process import PATIENCE, Crash, Process
from semel_lab.embedded import Postgres, Services

TABLE, COPY, TOPIC = "orders", "orders_copy", "shop-orders"
ROWS = 1_000_000

FATAL_MOMENTS = {
    "source.after_records": "rows sent, offset not yet committed",
    "sink.before_commit": "rows written, before COMMIT",
    "sink.after_commit": "after a COMMIT, before anyone hears of it",
    "sink.after_positions": "position moved, the transaction still open",
}
"""The failpoints of this demonstration, in words for the user. At all but the first, it is the
transaction of whichever connector gets there first."""

_LATEST_MS = 3000
"""How long the source waits for transactions to commit; none takes this long."""
_PAUSE = 0.1
_CHANGES = 50
"""Rows that are updated, and rows that are inserted, in each transaction of the writer."""
_PARTITIONS = 4
_POLL = 20_000
_AFTERWARDS = 3.0
"""Seconds in which the table keeps changing after the last crash."""
_LOOK = 1.0

_CREATE = f"""
CREATE TABLE {TABLE} (
    id bigserial PRIMARY KEY,
    customer integer NOT NULL,
    item text NOT NULL,
    quantity integer NOT NULL,
    price numeric(10, 2) NOT NULL,
    version integer NOT NULL DEFAULT 1,
    updated_at timestamptz(3) NOT NULL
);
INSERT INTO {TABLE} (customer, item, quantity, price, updated_at)
SELECT 1 + i % 50000, (ARRAY['book', 'lamp', 'café crème', 'chair', 'clock'])[1 + i % 5],
    1 + i % 9, 0.99 + i % 20000 / 100.0, now() - interval '10 days' + i * interval '0.8 s'
FROM generate_series(1, {ROWS}) AS i;
CREATE INDEX ON {TABLE} (updated_at, id);
ANALYZE {TABLE}
"""
_COLUMNS = "(id, customer, item, quantity, price, version, updated_at)"
_DIFFERENCES = f"""
SELECT count(*) FROM {TABLE} AS o FULL JOIN {COPY} AS c USING (id)
WHERE ROW{_COLUMNS.replace("(", "(o.").replace(", ", ", o.")}
IS DISTINCT FROM ROW{_COLUMNS.replace("(", "(c.").replace(", ", ", c.")}
"""


def crashes(count: int, seed: int) -> list[Crash]:
    """The crashes of a seed. The first two hit the worst moments of a source."""
    dice = random.Random(seed)
    places = list(FATAL_MOMENTS)
    chosen = places[:2] + [dice.choice(places) for _ in range(count)]
    return [
        Crash(
            place, dice.randrange(2) if place == "source.after_records" else dice.randrange(2, 12)
        )
        for place in chosen[:count]
    ]


def configurations(services: Services) -> list[dict[str, str]]:
    """The source and the sink."""
    both = {
        "connection.url": services.postgres.jdbc_url,
        "connection.user": services.postgres.user,
        "connection.password": services.postgres.password,
        "bootstrap.servers": services.kafka.bootstrap_servers,
        "key.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
    }
    source = {
        "name": "orders-source",
        "connector.class": "io.confluent.connect.jdbc.JdbcSourceConnector",
        "table.whitelist": TABLE,
        "mode": "timestamp+incrementing",
        "timestamp.column.name": "updated_at",
        "incrementing.column.name": "id",
        "timestamp.delay.interval.ms": str(_LATEST_MS),
        "poll.interval.ms": "200",
        "topic.prefix": TOPIC.removesuffix(TABLE),
        "transforms": "key",
        "transforms.key.type": "org.apache.kafka.connect.transforms.ValueToKey",
        "transforms.key.fields": "id",
        "producer.override.compression.type": "lz4",
    }
    sink = {
        "name": "orders-sink",
        "connector.class": "io.confluent.connect.jdbc.JdbcSinkConnector",
        "tasks.max": "2",
        "topics": TOPIC,
        "table.name.format": COPY,
        "insert.mode": "upsert",
        "pk.mode": "record_key",
        "auto.create": "true",
        "provenance": "true",
        "consumer.override.max.poll.records": str(_POLL),
    }
    return [source | both, sink | both]


@dataclass(frozen=True, slots=True)
class Counts:
    """The number of rows in a table, and the sum of their versions."""

    rows: int
    versions: int


@dataclass(frozen=True, slots=True)
class Audit:
    """A command, what it prints, and whether it found everything in order."""

    command: str
    output: str
    kept: bool


class Database:
    """What the demonstration itself does with the tables."""

    def __init__(self, postgres: Postgres) -> None:
        from adbc_driver_postgresql import dbapi

        self._connection = dbapi.connect(postgres.url, autocommit=True)

    def fill(self) -> None:
        """Create the table and its rows."""
        self.execute(_CREATE)

    def execute(self, statements: str) -> None:
        with self._connection.cursor() as cursor:
            cursor.executemany(statements, None)

    def count(self, table: str) -> Counts:
        """What a table holds; it may not be there yet."""
        if self._one(f"SELECT to_regclass('{table}') IS NULL")[0]:
            return Counts(0, 0)
        rows, versions = self._one(
            f"SELECT count(*), coalesce(sum(version), 0)::bigint FROM {table}"
        )
        return Counts(rows, versions)

    def differences(self) -> int:
        """The number of rows that one of the tables lacks, or that differ in any column."""
        return int(self._one(_DIFFERENCES)[0])

    def _one(self, sql: str) -> Sequence[Any]:
        with self._connection.cursor() as cursor:
            cursor.execute(sql)
            (row,) = cursor.fetchall()
            return tuple(row)

    def close(self) -> None:
        self._connection.close()


class Writer:
    """Updates and inserts rows, in a thread of its own until stopped."""

    def __init__(self, postgres: Postgres, seed: int) -> None:
        self._postgres = postgres
        self._dice = random.Random(seed)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._write, name="writer", daemon=True)
        self._error: Exception | None = None
        self.rows = ROWS
        self.updates = 0

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Return once the last transaction has ended."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def check(self) -> None:
        """Raises ServiceError: rows could not be written."""
        if self._error is not None:
            raise ServiceError(f"the orders could not be changed: {self._error}")

    def _write(self) -> None:
        try:
            with closing(Database(self._postgres)) as database:
                # A transaction that takes longer than the source waits would be missed.
                database.execute(
                    f"SET statement_timeout = {_LATEST_MS // 3}; SET synchronous_commit = off"
                )
                while not self._stop.wait(_PAUSE):
                    self._change(database)
        except Exception as error:
            self._error = error

    def _change(self, database: Database) -> None:
        chosen = {self._dice.randint(1, self.rows) for _ in range(_CHANGES)}
        database.execute(
            f"UPDATE {TABLE} SET quantity = 1 + quantity % 9, version = version + 1, "
            f"updated_at = now() WHERE id IN ({', '.join(map(str, chosen))})"
        )
        self.updates += len(chosen)
        database.execute(
            f"INSERT INTO {TABLE} (customer, item, quantity, price, updated_at) SELECT "
            f"{self._dice.randint(1, 50_000)}, 'lamp', 1, 19.90, now() "
            f"FROM generate_series(1, {_CHANGES})"
        )
        self.rows += _CHANGES


class Pipeline:
    """Both connectors in one process, which is killed and restarted."""

    def __init__(self, services: Services, directory: Path) -> None:
        services.kafka.create_topic(TOPIC, _PARTITIONS)
        self._process = Process(configurations(services), directory, "connectors.log")
        self.database = Database(services.postgres)

    def run(self, crash: Crash) -> Iterator[Counts]:
        """Run until the crash. Yields what has been copied, now and then.

        Raises:
            ServiceError: the process did not end as planned, or nothing is copied.
        """
        self._process.start(crash)
        moved, last = time.monotonic(), None
        while self._process.poll() is None:
            now = self.database.count(COPY)
            yield now
            if now != last:
                moved, last = time.monotonic(), now
            self._check_progress(moved)
            time.sleep(_LOOK)
        self._process.check(crash)
        yield self.database.count(COPY)

    def finish(self, writer: Writer) -> Iterator[Counts]:
        """Let the table change for a little while, then run until the copy has everything.

        Raises:
            ServiceError: the process has ended, or nothing is copied.
        """
        self._process.start(None)
        began = moved = time.monotonic()
        expected, last = None, None
        while expected is None or last != expected:
            if self._process.poll() is not None:
                self._process.check(None)
                raise ServiceError(f"the connectors have ended; see {self._process.log}")
            if expected is None and time.monotonic() - began > _AFTERWARDS:
                writer.stop()
                writer.check()
                expected = self.database.count(TABLE)
            now = self.database.count(COPY)
            yield now
            if now != last:
                moved, last = time.monotonic(), now
            self._check_progress(moved)
            time.sleep(_LOOK)
        self._process.finish()

    def _check_progress(self, moved: float) -> None:
        if time.monotonic() - moved > PATIENCE:
            raise ServiceError(f"nothing is copied any more; see {self._process.log}")

    def audits(self) -> Iterator[Audit]:
        """Compare the table with Kafka, and Kafka with the copy."""
        commands = [["semel", "audit", str(file)] for file in self._process.files]
        running = [
            subprocess.Popen(
                [sys.executable, "-P", "-m", *command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                env={**os.environ, "COLUMNS": "100"},
            )
            for command in commands
        ]
        for command, audit in zip(commands, running, strict=True):
            output, _ = audit.communicate()
            yield Audit(shlex.join(command), output.rstrip(), audit.returncode == 0)

    def stop(self) -> None:
        """Kill the process if it still runs."""
        self._process.stop()
        self.database.close()
