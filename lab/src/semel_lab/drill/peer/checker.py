"""Compares the rows of a table with the records in Kafka that they must come from.

Both systems write a record's coordinates beside its fields, so one check serves both.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass

from adbc_driver_postgresql import dbapi
from confluent_kafka import Consumer, KafkaError
from confluent_kafka import TopicPartition as KafkaPartition

from semel.core.errors import ServiceError

TABLE, FIRED = "drill", "fired"
PARTITION, OFFSET = "__connect_partition", "__connect_offset"
_PATIENCE = 60.0

_CREATE = (
    f"""CREATE TABLE {TABLE} (
        id bigint NOT NULL{{key}}, amount double precision, note text, __connect_topic text,
        __connect_timestamp timestamptz, {PARTITION} integer NOT NULL, {OFFSET} bigint NOT NULL)""",
    f"CREATE TABLE {FIRED} ({PARTITION} integer NOT NULL, {OFFSET} bigint NOT NULL)",
    f"""CREATE FUNCTION fire() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        INSERT INTO {FIRED} VALUES (NEW.{PARTITION}, NEW.{OFFSET}); RETURN NEW; END $$""",
    f"""CREATE TRIGGER fires AFTER INSERT OR UPDATE ON {TABLE}
        FOR EACH ROW EXECUTE FUNCTION fire()""",
)


@dataclass(frozen=True, slots=True)
class Findings:
    """What is wrong with a table.

    ``lost`` counts records without a row, or keys whose row is not their last record's.
    ``duplicated`` counts surplus rows. ``fired_again`` counts how often the table's trigger fired
    for a record for which it had fired before.
    """

    records: int
    lost: int
    duplicated: int
    fired_again: int


class Checker:
    """Reads Kafka's committed records and compares the table with them."""

    def __init__(
        self, servers: str, topic: str, partitions: int, url: str, *, upsert: bool
    ) -> None:
        self._topic = topic
        self._url = url
        self._upsert = upsert
        self._consumer = Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": "drill-checker",
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "enable.auto.commit": False,
                "log_level": 0,
            }
        )
        self._positions = dict.fromkeys(range(partitions), 0)
        self._ids: dict[tuple[int, int], int] = {}

    def close(self) -> None:
        self._consumer.close()

    def create_tables(self) -> None:
        with dbapi.connect(self._url, autocommit=True) as connection, connection.cursor() as cursor:
            for statement in _CREATE:
                key = " PRIMARY KEY" if self._upsert else ""
                cursor.execute(statement.replace("{key}", key))

    def read_new(self) -> None:
        """Read the records that were committed to Kafka since the last call."""
        self._consumer.assign([KafkaPartition(self._topic, *at) for at in self._positions.items()])
        unread = set(self._positions)
        deadline = time.monotonic() + _PATIENCE
        while unread:
            for message in self._consumer.consume(10_000, 0.2):
                partition, error = int(message.partition() or 0), message.error()
                if error is None:
                    record = json.loads(message.value() or b"")
                    offset = int(message.offset() or 0)
                    self._ids[partition, offset] = record["payload"]["id"]
                    self._positions[partition] = offset + 1
                elif error.code() == KafkaError._PARTITION_EOF:
                    unread.discard(partition)
            if time.monotonic() > deadline:
                raise ServiceError(f"topic {self._topic} cannot be read to its end")
        self._consumer.unassign()

    def caught_up(self) -> bool:
        """Whether the last record of each partition was written; what an older one may have
        overwritten since is for :meth:`compare`."""
        last = dict(sorted(self._ids))
        rows = self._query(f"SELECT {PARTITION}, max({OFFSET}) FROM {FIRED} GROUP BY 1")
        offsets = {partition: offset for partition, offset in rows}  # noqa: C416
        return all(offsets.get(partition, -1) >= offset for partition, offset in last.items())

    def compare(self) -> Findings:
        """Count what is wrong with the table."""
        rows = self._query(f"SELECT {PARTITION}, {OFFSET}, count(*) FROM {TABLE} GROUP BY 1, 2")
        there = {(partition, offset): count for partition, offset, count in rows}
        expected = set(self._ids)
        if self._upsert:
            last: dict[int, tuple[int, int]] = {}
            for place in sorted(self._ids):  # a key's records are all in one partition
                last[self._ids[place]] = place
            expected = set(last.values())
        [(fired,)] = self._query(
            f"SELECT count(*) - count(DISTINCT ({PARTITION}, {OFFSET})) FROM {FIRED}"
        )
        return Findings(
            records=len(self._ids),
            lost=len(expected - there.keys()),
            duplicated=sum(count - 1 for count in there.values()),
            fired_again=fired,
        )

    def _query(self, sql: str) -> list[tuple[int, ...]]:
        with dbapi.connect(self._url) as connection, connection.cursor() as cursor:
            cursor.execute(sql)
            return [tuple(row) for row in cursor.fetchall()]
