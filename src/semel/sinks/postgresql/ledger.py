"""The ledger in PostgreSQL: one statement moves all positions of a commit."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict

from semel.errors import LedgerConflict
from semel.ledger import Advance, LedgerEntry, Outcome, Rebase, TopicPartition, judge, pending
from semel.sinks.postgresql.database import Postgres
from semel.sinks.sql.ledger_tables import HOLES, OFFSETS, Ledger, placed
from semel.sinks.sql.names import literal

_LOCK = "hashtextextended('semel', 0)"

_CREATE = (
    f"""CREATE TABLE IF NOT EXISTS {OFFSETS} (
        connector text NOT NULL,
        topic text NOT NULL,
        partition integer NOT NULL,
        position bigint NOT NULL,
        start_position bigint NOT NULL,
        records_read bigint NOT NULL DEFAULT 0,
        rows_written bigint NOT NULL DEFAULT 0,
        records_filtered bigint NOT NULL DEFAULT 0,
        records_failed bigint NOT NULL DEFAULT 0,
        records_lost bigint NOT NULL DEFAULT 0,
        updated_at timestamptz NOT NULL DEFAULT now(),
        cluster_id text NOT NULL DEFAULT '',
        topic_id text NOT NULL DEFAULT '',
        leader_epoch integer NOT NULL DEFAULT -1,
        epoch_offset bigint NOT NULL DEFAULT -1,
        epoch_position bigint NOT NULL DEFAULT -1,
        target text NOT NULL DEFAULT '',
        PRIMARY KEY (connector, topic, partition)
    ) WITH (fillfactor = 50)""",  # each commit updates in place (HOT) while pages have room
    f"""CREATE TABLE IF NOT EXISTS {HOLES} (
        connector text NOT NULL,
        topic text NOT NULL,
        partition integer NOT NULL,
        from_offset bigint NOT NULL,
        until_offset bigint NOT NULL,
        reason text NOT NULL,
        recorded_at timestamptz NOT NULL DEFAULT now(),
        PRIMARY KEY (connector, topic, partition, from_offset)
    )""",
)

_COLUMNS = {
    "cluster_id": "text NOT NULL DEFAULT ''",
    "topic_id": "text NOT NULL DEFAULT ''",
    "leader_epoch": "integer NOT NULL DEFAULT -1",
    "epoch_offset": "bigint NOT NULL DEFAULT -1",
    "epoch_position": "bigint NOT NULL DEFAULT -1",
    "target": "text NOT NULL DEFAULT ''",
}
"""The types of the columns that tables of the first version of semel lack."""

_ALTER = f"ALTER TABLE {OFFSETS} " + ", ".join(
    f"ADD COLUMN IF NOT EXISTS {name} {kind}" for name, kind in _COLUMNS.items()
)

# Statements are filled in with literals, not bound parameters: one round trip instead of three.
_RANGES = """SELECT * FROM jsonb_to_recordset({ranges}) AS r(
    topic text, partition integer, from_offset bigint, until_offset bigint,
    read bigint, written bigint, filtered bigint, failed bigint, lost bigint, cause text,
    keeps_epoch boolean, leader_epoch integer, epoch_offset bigint,
    cluster_id text, topic_id text)"""

_UNTIMED = "set_config('lock_timeout', current_setting('semel.lock_timeout'), true)"

# The wait for the ledger's rows is bounded, the wait for others is not. One statement does both,
# which saves a round trip; it returns a row for each range that was moved.
_ADVANCE = f"""WITH r AS ({_RANGES}), moved AS (
    UPDATE {OFFSETS} o SET
        position = r.until_offset,
        records_read = o.records_read + r.read,
        rows_written = o.rows_written + r.written,
        records_filtered = o.records_filtered + r.filtered,
        records_failed = o.records_failed + r.failed,
        records_lost = o.records_lost + r.lost,
        leader_epoch = CASE WHEN r.keeps_epoch THEN o.leader_epoch ELSE r.leader_epoch END,
        epoch_offset = CASE WHEN r.keeps_epoch THEN o.epoch_offset ELSE r.epoch_offset END,
        epoch_position = CASE WHEN r.keeps_epoch AND o.epoch_position <> o.position THEN -1
            ELSE r.until_offset END,
        updated_at = now()
    FROM r
    WHERE o.connector = {{connector}} AND o.topic = r.topic AND o.partition = r.partition
    {{check}}
    RETURNING 1)
SELECT {_UNTIMED} FROM (SELECT count(*) AS n FROM moved) AS m, generate_series(1, m.n)"""
_CHECK = """AND o.position = r.from_offset
    AND (o.cluster_id = r.cluster_id OR '' IN (o.cluster_id, r.cluster_id))
    AND (o.topic_id = r.topic_id OR '' IN (o.topic_id, r.topic_id))"""

_HOLES = f"""WITH r AS ({_RANGES})
    INSERT INTO {HOLES} (connector, topic, partition, from_offset, until_offset, reason)
    SELECT {{connector}}, topic, partition, from_offset, until_offset, cause FROM r
    WHERE lost > 0 ON CONFLICT DO NOTHING"""

_PLACES = f"""SELECT o.topic, o.partition, o.position, o.cluster_id, o.topic_id FROM {OFFSETS} o
    JOIN ({_RANGES}) r ON o.topic = r.topic AND o.partition = r.partition
    WHERE o.connector = {{connector}} {{lock}}"""

_ENTRIES = """SELECT * FROM jsonb_to_recordset({entries}) AS e(
    topic text, partition integer, position bigint, start_position bigint,
    records_read bigint, rows_written bigint, records_filtered bigint, records_failed bigint,
    records_lost bigint, cluster_id text, topic_id text, leader_epoch integer, epoch_offset bigint,
    target text)"""

_START = f"""WITH e AS ({_ENTRIES})
    INSERT INTO {OFFSETS} (connector, topic, partition, position, start_position,
        cluster_id, topic_id, leader_epoch, epoch_offset, epoch_position, target)
    SELECT {{connector}}, topic, partition, position, start_position,
        cluster_id, topic_id, leader_epoch, epoch_offset, position, target FROM e
    ON CONFLICT DO NOTHING"""

_REPLACE = f"""WITH e AS ({_ENTRIES})
    UPDATE {OFFSETS} o SET
        position = e.position,
        start_position = e.start_position,
        records_read = e.records_read,
        rows_written = e.rows_written,
        records_filtered = e.records_filtered,
        records_failed = e.records_failed,
        records_lost = e.records_lost,
        cluster_id = e.cluster_id,
        topic_id = e.topic_id,
        leader_epoch = e.leader_epoch,
        epoch_offset = e.epoch_offset,
        epoch_position = e.position,
        target = e.target,
        updated_at = now()
    FROM e
    WHERE o.connector = {{connector}} AND o.topic = e.topic AND o.partition = e.partition"""

_ADD_HOLES = f"""WITH h AS (SELECT * FROM jsonb_to_recordset({{holes}}) AS h(
        topic text, partition integer, from_offset bigint, until_offset bigint, reason text))
    INSERT INTO {HOLES} AS o (connector, topic, partition, from_offset, until_offset, reason)
    SELECT {{connector}}, topic, partition, from_offset, until_offset, reason FROM h
    ON CONFLICT (connector, topic, partition, from_offset) DO UPDATE SET
        until_offset = greatest(o.until_offset, EXCLUDED.until_offset),
        reason = EXCLUDED.reason, recorded_at = now()"""


class PostgresLedger(Ledger):
    """Raises LockTimeout where another session holds the rows for longer than ``patience_ms``."""

    def __init__(self, database: Postgres, connector: str, patience_ms: int) -> None:
        super().__init__(database, connector)
        self._connection = database
        self._timed = f"SET LOCAL lock_timeout = {patience_ms}"

    def create(self) -> None:
        if self.exists() and not self._lacks():
            return  # CREATE IF NOT EXISTS would still ask for the right to create
        # Two drivers may start at once, and CREATE IF NOT EXISTS alone is not safe against that.
        self._connection.execute(f"SELECT pg_advisory_xact_lock({_LOCK})")
        if not self.exists():
            for statement in _CREATE:
                self._connection.execute(statement)
        if self._lacks():
            self.upgrade = _ALTER
            self._connection.execute(_ALTER)
            self.upgrade = ""

    def advance(self, advances: Sequence[Advance]) -> Outcome:
        """The compare-and-set. Updating first also locks the rows: a second writer waits here and
        then finds that it has lost."""
        payload = _payload(advances)
        statement = self._filled(_ADVANCE, payload, check=_CHECK)
        matched = self._connection.execute(f"{self._timed}; {statement}")
        if matched == 0:
            return self._replayed(advances, payload)
        if matched != len(advances):  # also -1, from a driver that reports no counts
            raise LedgerConflict(
                f"connector {self.connector}: the ledger agrees with {matched} of "
                f"{len(advances)} ranges of this commit. Nothing was written. Does another run of "
                f"{self.connector} write too?"
            )
        if any(a.lost for a in advances):
            self._connection.execute(self._filled(_HOLES, payload))
        return Outcome.APPLIED

    def guard(self, advances: Sequence[Advance]) -> Outcome:
        self._connection.execute(self._timed)
        stored = self._places(_payload(advances), lock="FOR UPDATE OF o")
        self._connection.execute(f"SELECT {_UNTIMED}")
        return judge(self.connector, stored, advances)

    def _replayed(self, advances: Sequence[Advance], payload: str) -> Outcome:
        outcome = judge(self.connector, self._places(payload), advances)
        if outcome is Outcome.APPLIED:
            raise LedgerConflict(
                f"connector {self.connector}: the ledger moved while this commit was judged. "
                "Were its offsets reset by hand?"
            )
        return outcome

    def _places(self, payload: str, *, lock: str = "") -> dict[TopicPartition, LedgerEntry]:
        rows = self._connection.query(self._filled(_PLACES, payload, lock=lock)).to_pylist()
        return {e.topic_partition: e for e in map(placed, rows)}

    def start(self, entries: Collection[LedgerEntry]) -> dict[TopicPartition, int]:
        self._connection.execute(self._with_entries(_START, entries))
        stored = {e.topic_partition: e.position for e in self.entries()}
        return {e.topic_partition: stored[e.topic_partition] for e in entries}

    def rebase(self, rebases: Sequence[Rebase]) -> None:
        self._connection.execute(self._timed)
        stored = {e.topic_partition: e for e in self.entries(lock="FOR UPDATE")}
        left = pending(self.connector, stored, rebases)
        if left:
            self._connection.execute(self._with_entries(_REPLACE, [r.new for r in left]))
        holes = [asdict(r.hole) for r in left if r.hole is not None]
        if holes:
            text = literal(json.dumps(holes))
            self._connection.execute(
                _ADD_HOLES.format(holes=text, connector=literal(self.connector))
            )

    def _with_entries(self, sql: str, entries: Iterable[LedgerEntry]) -> str:
        payload = json.dumps([asdict(e) for e in entries])
        return sql.format(entries=literal(payload), connector=literal(self.connector))

    def _filled(self, sql: str, payload: str, **others: str) -> str:
        return sql.format(ranges=literal(payload), connector=literal(self.connector), **others)


def _payload(advances: Sequence[Advance]) -> str:
    return json.dumps(
        [
            {
                "topic": a.range.topic,
                "partition": a.range.partition,
                "from_offset": a.range.from_offset,
                "until_offset": a.range.until_offset,
                "read": a.read,
                "written": a.written,
                "filtered": a.filtered,
                "failed": a.failed,
                "lost": a.lost,
                "cause": a.cause,
                "keeps_epoch": a.keeps_epoch,
                "leader_epoch": a.leader_epoch,
                "epoch_offset": a.epoch_offset,
                **a.log._asdict(),
            }
            for a in advances
        ]
    )
