"""A table of PostgreSQL to Kafka: semel's first load compared with Debezium's initial snapshot."""

from __future__ import annotations

from collections.abc import Mapping

import adbc_driver_postgresql.dbapi as adbc

from benchmarks.report import Figures
from benchmarks.rig import Rig
from benchmarks.source_runs import TUNED, Contestant, Peer, Semel, columns, compared, take_turns
from semel_lab.embedded import Postgres
from semel_lab.embedded.connect import DistributedConnect
from semel_lab.embedded.process import LOOPBACK
from semel_lab.jars import DEBEZIUM_POSTGRES

DEBEZIUM = "Debezium"
SEMEL = "semel"
TABLE = "orders"
JSON = {
    "key.converter": "org.apache.kafka.connect.storage.StringConverter",
    "value.converter": "org.apache.kafka.connect.json.JsonConverter",
    "value.converter.schemas.enable": "false",
}
ROWS = """
INSERT INTO %s (customer, product, amount, paid, placed, note)
SELECT mod(n, 1000), 'product ' || mod(n, 100), n * 0.25, mod(n, 2) = 0,
       timestamp '2026-01-01' + n * interval '1 second', 'a note of some words, number ' || n
FROM generate_series(1, %d) AS n
"""


def tables(rig: Rig, records: int, repeats: int) -> Figures:
    """Both systems, ``repeats`` times each, in turn, into a new topic each time."""
    logical = {"wal_level": "logical"}  # Debezium's connector does not start without it
    with Postgres(rig.directory / "logical", settings=logical) as postgres:
        _fill(postgres, records)
        rig.say(f"{records:,} rows of 7 columns")
        worker = DistributedConnect(
            rig.directory / "connect",
            rig.kafka.bootstrap_servers,
            "bench",
            plugin=DEBEZIUM_POSTGRES,
            exactly_once=True,
        )
        with worker:
            contestants = [
                Contestant(DEBEZIUM, Peer(worker), lambda name: _debezium(postgres, name)),
                Contestant(SEMEL, Semel(rig), lambda name: _semel(postgres, name)),
            ]
            samples = take_turns(rig, contestants, records, repeats)
    return Figures(
        name="tables",
        title=f"A table of PostgreSQL to Kafka, {records:,} rows of 7 columns, plain JSON, one "
        f"partition, one task, exactly-once: medians of {repeats}",
        columns=columns("rows", {"ratio": "ratio to Debezium"}),
        rows=compared(samples, {"ratio": DEBEZIUM}),
        notes=[
            "rows/s and CPU: between 15 % and 85 % of the rows visible to a read_committed "
            "consumer. Debezium takes an initial snapshot, in a worker that has "
            "exactly.once.source.support=enabled and stays warm from run to run, with "
            "snapshot.fetch.size=10240, max.batch.size=8192, max.queue.size=32768 and "
            f"{', '.join(f'{k}={v}' for k, v in TUNED.items())}; ExtractNewRecordState leaves the "
            "columns alone, as semel writes them. semel has mode=incrementing, compresses with "
            "lz4, too, and is started for each run, which counts where the start does.",
        ],
        facts={"repeats": repeats},
    )


def _fill(postgres: Postgres, rows: int) -> None:
    with (
        adbc.connect(postgres.url, autocommit=True) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute(
            f"CREATE TABLE {TABLE} (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, "
            "customer integer NOT NULL, product text NOT NULL, amount double precision, "
            "paid boolean, placed timestamp, note text)"
        )
        cursor.execute(ROWS % (TABLE, rows))
        cursor.execute(f"VACUUM ANALYZE {TABLE}")


def _debezium(postgres: Postgres, name: str) -> tuple[Mapping[str, str], str]:
    return {
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "tasks.max": "1",
        "database.hostname": LOOPBACK,
        "database.port": str(postgres.port),
        "database.user": postgres.user,
        "database.password": postgres.password,
        "database.dbname": "semel",
        "plugin.name": "pgoutput",
        "publication.autocreate.mode": "filtered",
        "publication.name": name,
        "slot.name": name,
        "slot.drop.on.stop": "true",
        "table.include.list": f"public.{TABLE}",
        "topic.prefix": name,
        "snapshot.mode": "initial_only",
        "snapshot.fetch.size": "10240",
        "max.batch.size": "8192",
        "max.queue.size": "32768",
        "transforms": "unwrap",
        "transforms.unwrap.type": "io.debezium.transforms.ExtractNewRecordState",
        **JSON,
        "key.converter": "org.apache.kafka.connect.json.JsonConverter",
        "key.converter.schemas.enable": "false",
        **TUNED,
    }, f"{name}.public.{TABLE}"


def _semel(postgres: Postgres, name: str) -> tuple[Mapping[str, str], str]:
    return {
        "connector.class": "JdbcSource",
        "tasks.max": "1",
        "connection.url": postgres.jdbc_url,
        "connection.user": postgres.user,
        "connection.password": postgres.password,
        "table.whitelist": TABLE,
        "mode": "incrementing",
        "incrementing.column.name": "id",
        "topic.prefix": f"{name}-",
        "producer.override.compression.type": "lz4",
        **JSON,
    }, f"{name}-{TABLE}"
