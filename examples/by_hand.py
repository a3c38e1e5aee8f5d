"""The whole idea by hand: rows and position in one transaction, guarded by a compare-and-set.

    semel services up --kafka-port 9092 --postgres-port 5432
    python examples/by_hand.py

Run it again: it continues where the ledger says. Kill it anywhere: nothing is lost or duplicated.
"""

import json
import os

from adbc_driver_postgresql import dbapi
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

KAFKA = {"bootstrap.servers": os.environ.get("KAFKA", "localhost:9092")}
POSTGRES = os.environ.get("POSTGRES", "postgresql://semel:semel@127.0.0.1:5432/semel")
PAYMENTS = "CREATE TABLE IF NOT EXISTS payments (id bigint, amount bigint)"
LEDGER = "CREATE TABLE IF NOT EXISTS ledger (topic text PRIMARY KEY, position bigint NOT NULL)"
FIRST = "INSERT INTO ledger VALUES ('payments', 0) ON CONFLICT DO NOTHING"
POSITION = "SELECT position FROM ledger WHERE topic = 'payments'"
MOVE = "UPDATE ledger SET position = {} WHERE topic = 'payments' AND position = {} RETURNING 1"


def commit(start: int, until: int, rows: list[tuple[int, int]]) -> str:
    """Commit the rows of the offsets [start, until), all of them or none."""
    cursor.execute(MOVE.format(until, start))  # statement one: compare and set
    if cursor.fetchone():
        cursor.executemany("INSERT INTO payments VALUES ($1, $2)", rows)  # statement two
        database.commit()
        return f"applied [{start}, {until}): {len(rows)} rows"
    database.rollback()
    if (stored := cursor.execute(POSITION).fetchone()[0]) == until:
        return f"replay of [{start}, {until}): these rows are already there"
    return f"conflict: [{start}, {until}) does not start at the position, {stored}"


admin = AdminClient(KAFKA)
if "payments" not in admin.list_topics(timeout=10).topics:
    admin.create_topics([NewTopic("payments", 1)])["payments"].result()
producer = Producer(KAFKA)
for number in range(10):
    producer.produce("payments", json.dumps({"id": number, "amount": 100}), partition=0)
producer.flush()

database = dbapi.connect(POSTGRES)
cursor = database.cursor()
for statement in (PAYMENTS, LEDGER, FIRST):
    cursor.execute(statement)
position = cursor.execute(POSITION).fetchone()[0]
database.commit()

consumer = Consumer(KAFKA | {"group.id": "by-hand"})
consumer.assign([TopicPartition("payments", 0, position)])  # the ledger decides, not the group
messages = []
while len(messages) < 10:
    messages += [m for m in consumer.consume(10, timeout=1) if not m.error()]
consumer.close()
values = [json.loads(m.value()) for m in messages]
rows = [(v["id"], v["amount"]) for v in values]
until = messages[-1].offset() + 1

print(commit(position, until, rows))
print(commit(position, until, rows))  # as after a crash with an unknown outcome
print(commit(position + 5, until + 5, rows))  # as a second writer, or after lost records
cursor.close()
database.close()
