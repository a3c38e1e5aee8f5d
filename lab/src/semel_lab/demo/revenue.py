"""Joins 150,000 orders with their customers and adds up the revenue of each country and minute in
PostgreSQL, through several SIGKILLs."""

from __future__ import annotations

import builtins
import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
from confluent_kafka import KafkaError, Producer

from semel.core.errors import ServiceError
from semel.core.ledger import LedgerEntry
from semel.databases.postgresql import driver
from semel.driver.planning import plan
from semel.streams import Streams, count, sum, tumbling
from semel_lab.demo.process import Crash, Process
from semel_lab.embedded import Services

ORDERS, CUSTOMERS, TABLE = "orders", "customers", "revenue"
RECORDS, PEOPLE = 150_000, 2_000
COUNTRIES = ("AT", "BR", "CH", "DE", "FR", "IN", "JP", "KE", "US")
MINUTE = 60_000
_START = 1_750_000_000_000 // MINUTE * MINUTE
_STEP = 20
"""Milliseconds between two orders."""
_PARTITIONS = 4
_POLL = 4_000
_DAY = 24 * 60 * MINUTE

FATAL_MOMENTS = {
    "streams.before_kafka": "rows and positions committed, the state not yet",
    "streams.after_changes": "state sent, before PostgreSQL's transaction",
    "sink.before_commit": "rows written, before COMMIT",
    "streams.after_kafka": "all committed, before the local state follows",
}
"""The demo's failpoints, in words for the user."""


def streams() -> Streams:
    """What ``topology=semel_lab.demo.revenue:streams`` names."""
    topology = Streams({"name": "revenue"})
    customers = topology.table(CUSTOMERS, store="customers")
    orders = topology.stream(ORDERS).select_key("customer")
    located = orders.join(customers, {"cents": "this.cents", "country": "other.country"})
    (
        located.group_by("country", name="by-country")
        .windowed_by(tumbling(MINUTE, grace=_DAY))
        .aggregate(orders=count(), cents=sum("cents"), store="minutes")
        .to({"connector.class": "postgresql"})
    )
    return topology


def crashes(number: int, seed: int) -> list[Crash]:
    """The crashes of a seed."""
    dice = random.Random(seed)
    places = list(FATAL_MOMENTS)
    chosen = places + [dice.choice(places) for _ in range(number)]
    return [Crash(place, dice.randrange(4, 40)) for place in chosen[:number]]


def _country(number: int) -> str:
    return COUNTRIES[number * number % len(COUNTRIES)]


def _orders() -> Iterator[tuple[int, int, int]]:
    """Customer, cents and time of each order."""
    dice = random.Random(7)
    for n in range(RECORDS):
        late = dice.randrange(90_000) if n % 50 == 0 else 0
        yield dice.randrange(PEOPLE), dice.randrange(100, 20_000), _START + n * _STEP - late


def produce(services: Services) -> Iterator[int]:
    """Create the topics, and fill them; the same records go to raw tables. Yields how many orders
    were sent so far.

    Raises:
        ServiceError: Kafka did not accept every record.
    """
    for topic in (CUSTOMERS, ORDERS):
        services.kafka.create_topic(topic, _PARTITIONS, 1, {"retention.ms": "-1"})
    settings = {"bootstrap.servers": services.kafka.bootstrap_servers, "linger.ms": 20}
    # Orders get customers' keys in the topology, which distributes them as Kafka's own clients do.
    settings["partitioner"] = "murmur2_random"
    producer = Producer({**settings, "enable.idempotence": True, "log_level": 0})
    failures: list[str] = []

    def delivered(error: KafkaError | None, _message: object) -> None:
        if error is not None:
            failures.append(error.str())

    def send(topic: str, key: str, value: object, at: int) -> None:
        while True:
            try:
                producer.produce(topic, json.dumps(value), key, timestamp=at, on_delivery=delivered)
                return
            except BufferError:
                producer.poll(0.1)

    people = {n: _country(n) for n in range(PEOPLE)}
    for n, country in people.items():
        send(CUSTOMERS, str(n), {"country": country}, _START - _DAY)
    orders = list(_orders())
    for number, (customer, cents, at) in enumerate(orders, start=1):
        send(ORDERS, f"order {number}", {"customer": str(customer), "cents": cents}, at)
        if number % 10_000 == 0:
            producer.poll(0)
            yield number
    raw = {
        "raw_customers": pa.table({"customer": list(people), "country": list(people.values())}),
        "raw_orders": pa.Table.from_arrays(
            [pa.array(column) for column in zip(*orders, strict=True)],
            ["customer", "cents", "at"],
        ),
    }
    with driver.connect(services.postgres.url) as connection, connection.cursor() as cursor:
        for name, table in raw.items():
            cursor.adbc_ingest(name, table, mode="create")
    if producer.flush(60) or failures:
        raise ServiceError(f"Kafka did not accept every order: {failures[:1] or 'timed out'}")


def configuration(services: Services, directory: Path) -> dict[str, str]:
    """The connector."""
    return {
        "name": "revenue",
        "connector.class": "postgresql",
        "topology": "semel_lab.demo.revenue:streams",
        "tasks.max": "2",
        "bootstrap.servers": services.kafka.bootstrap_servers,
        "connection.url": services.postgres.jdbc_url,
        "connection.user": services.postgres.user,
        "connection.password": services.postgres.password,
        "table.name.format": TABLE,
        "insert.mode": "upsert",
        "pk.mode": "record_key",
        "pk.fields": "key,window_start,window_end",
        "auto.create": "true",
        "key.converter": "org.apache.kafka.connect.storage.StringConverter",
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter.schemas.enable": "false",
        "state.dir": str(directory / "state"),
        "consumer.override.max.poll.records": str(_POLL),
    }


_DIFFERENCES = f"""
WITH expected AS (
    SELECT country, at / {MINUTE} AS minute, count(*) AS orders, sum(cents) AS cents
    FROM raw_orders JOIN raw_customers USING (customer) GROUP BY 1, 2
), actual AS (
    SELECT key AS country, (extract(epoch FROM window_start) * 1000)::bigint / {MINUTE} AS minute,
        orders, cents
    FROM {TABLE}
)
SELECT count(*) FILTER (WHERE e.orders IS DISTINCT FROM a.orders
    OR e.cents IS DISTINCT FROM a.cents), count(a.country)
FROM expected e FULL JOIN actual a USING (country, minute)
"""
COMPARISON = "SQL over the raw tables: join, GROUP BY country and minute"


class Application:
    """The topology in a process of its own, which is killed and restarted."""

    def __init__(self, services: Services, directory: Path) -> None:
        self._config = configuration(services, directory)
        self._url = services.postgres.url
        self._process = Process([self._config], directory, "application.log")

    def stop(self) -> None:
        """Kill the process if it still runs."""
        self._process.stop()

    def run(self, crash: Crash | None) -> Iterator[int]:
        """Run until it dies or is done. Yields the number of orders that are counted.

        Raises:
            ServiceError: the process did not end as planned.
        """
        for entries in self._process.follow(crash, plan(self._config).sink):
            yield _counted(entries)

    def differences(self) -> tuple[int, int]:
        """How many countries and minutes differ from what SQL finds, and how many there are."""
        with driver.connect(self._url) as connection, connection.cursor() as cursor:
            cursor.execute(_DIFFERENCES)
            wrong, rows = cursor.fetchone()
        return int(wrong), int(rows)


def _counted(entries: Sequence[LedgerEntry]) -> int:
    """The orders that have reached the last step."""
    last = [e.records_read for e in entries if e.topic == "revenue-by-country-repartition"]
    return builtins.sum(last)
