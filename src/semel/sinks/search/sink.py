"""The sink for Elasticsearch and OpenSearch.

Neither has a transaction over several documents, so exactly-once is idempotent: each document has
an id and a version that follow from its record alone, and positions follow when all documents are
acknowledged. Written again, a document meets its own version and is left as it is; an older one
never replaces a newer one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa

from semel.config import ConnectorConfig, read, under
from semel.delivery import Delivery, Mechanism, Support
from semel.errors import ConfigError, TransientError
from semel.failpoints import hit
from semel.ledger import Advance, LedgerEntry, Outcome, TopicPartition
from semel.records import KEY, OFFSET, PARTITION, TOPIC, Commit, Records, Rejected, RowsRejected
from semel.sinks.base import Sink, Snapshot
from semel.sinks.search import dead_letters, indices, snapshot
from semel.sinks.search.client import Client, Failure
from semel.sinks.search.config import IGNORED, PREFIX, SearchConfig
from semel.sinks.search.documents import requests
from semel.sinks.search.indices import Index
from semel.sinks.search.ledger import INDEX, SearchLedger
from semel.sinks.search.writing import Part, Writer

_FRESH = 10.0
"""Seconds after which the ledger is asked again before anything more is sent."""


_JSON = ("JsonConverter", "json")
_STRING = ("StringConverter", "string")


class SearchSink(Sink):
    """See :class:`~semel.sinks.base.Sink`; configuration in docs/elasticsearch.md."""

    section = SearchConfig
    ignored = IGNORED
    engines = frozenset({"direct", "micro-batch"})
    prefixes = (PREFIX,)

    def __init__(self, connector: ConnectorConfig, raw: Mapping[str, str]) -> None:
        self._connector = connector
        self._config: SearchConfig = read(SearchConfig, raw)
        self._client = Client(self._config, raw, connector.name)
        self._ledger = SearchLedger(self._client, connector.name)
        self._writer = Writer(self._config, connector.provenance_columns, self._passes(raw))
        self._indices: dict[str, Index] = {}
        self._pool: ThreadPoolExecutor | None = None
        skips = self._config.drop_invalid or self._config.malformed != "fail"
        if skips and connector.errors_tolerance != "all":
            name = "drop.invalid.message=true"
            if self._config.malformed != "fail":
                name = f"behavior.on.malformed.documents={self._config.malformed}"
            raise ConfigError(
                f"connector {connector.name}: {name} leaves records out: set errors.tolerance=all, "
                "which says so for all bad records, with errors.deadletterqueue.table or "
                "errors.deadletterqueue.topic.name to keep them"
            )
        self._check_shared(connector.topics)
        if connector.dead_letter_table:
            self._config.index_name(connector.dead_letter_table, "errors.deadletterqueue.table")

    def _passes(self, raw: Mapping[str, str]) -> bool:
        """Whether values are JSON that the server can be given as it came."""
        connector = self._connector
        converter = under(raw, "value.converter.")
        plain = converter.get("schemas.enable", "").strip().lower() == "false"
        return (
            self._config.schema_ignore
            and connector.value_converter.endswith(_JSON)
            and plain
            and not converter.get("schema", "").strip()
            and (not self._any_keys or connector.key_converter.endswith(_STRING))
        )

    def _check_shared(self, topics: Collection[str]) -> None:
        """Offsets of two topics cannot be compared, so their keys must not meet in one index."""
        seen: dict[str, str] = {}
        for topic in sorted(topics):
            name = self._config.index(topic)
            other = seen.setdefault(name, topic)
            if other != topic and any(map(self._config.ids_are_keys, (topic, other))):
                raise ConfigError(
                    f"connector {self._connector.name}: topics {other} and {topic} both go to "
                    f"index {name}, where a document of the one would replace that of the other "
                    "by the higher offset, whichever is newer. Set key.ignore=true, or give each "
                    "its index in topic.to.external.resource.mapping"
                )

    @property
    def _where(self) -> str:
        return f"connector {self._connector.name}"

    @property
    def _any_keys(self) -> bool:
        topics = self._connector.topics
        if topics:
            return any(map(self._config.ids_are_keys, topics))
        return self._config.ids_are_keys("")

    @property
    def uses_key(self) -> bool:
        return self._any_keys

    @property
    def key_metadata(self) -> frozenset[str]:
        if self._config.makes_ids:
            return frozenset()
        return frozenset({PARTITION, OFFSET} | ({KEY} if self._any_keys else {TOPIC}))

    @property
    def takes_tombstones(self) -> bool:
        wanted = self._config.tombstones
        return wanted == "fail" or (wanted == "delete" and self._any_keys)

    @property
    def replaces(self) -> bool:
        return self._any_keys

    @property
    def takes_bytes(self) -> bool:
        return self._writer.passes

    @property
    def evolves(self) -> bool:
        return True

    def describe(self) -> dict[str, str]:
        config = self._config
        unique = "record key" if self._any_keys else "topic+partition+offset"
        return {
            "writes": f"index {config.index_format} at {self._client.where}",
            "documents": "the server makes ids"
            if config.makes_ids
            else f"id: {unique}; version: the record's offset",
            "ledger": f"index {INDEX} at {self._client.where}",
        }

    def support(self) -> Mapping[Mechanism, Support]:
        makes_ids = self._config.makes_ids
        return {
            Mechanism.TRANSACTIONAL: Support(
                False,
                "Elasticsearch and OpenSearch have no transaction over several documents. Set "
                "delivery.mechanism=idempotent",
            ),
            Mechanism.IDEMPOTENT: Support(
                not makes_ids,
                "ids that the server makes are new ones for each replay. Set "
                "use.autogenerated.ids=false and key.ignore.id.strategy=topic.partition.offset"
                if makes_ids
                else "each document has an id and an external version that follow from its record, "
                "so a replay changes nothing and nothing older replaces it; positions follow by "
                "compare-and-set",
            ),
        }

    def prepare(self, topics: Collection[str]) -> None:
        self._ledger.create()
        self._check_shared(topics)
        table = self._connector.dead_letter_table
        if table:
            dead_letters.create(self._client, table, self._where)
        for topic in topics:
            if self._find(topic) is None and not self._config.auto_create:
                raise self._missing(topic)

    def _missing(self, topic: str) -> ConfigError:
        return ConfigError(
            f"{self._where}: index {self._config.index(topic)} for topic {topic} does not exist at "
            f"{self._client.where}. Create it, or set auto.create=true"
        )

    def _find(self, topic: str) -> Index | None:
        if topic not in self._indices:
            name, where = self._config.index(topic), f"{self._where}: topic {topic}"
            found = indices.find(self._client, name, where)
            if found is None:
                return None
            indices.check(
                found,
                where,
                durable=self._connector.delivery is not Delivery.AT_MOST_ONCE,
                deletes=self._config.tombstones == "delete" and self._config.ids_are_keys(topic),
            )
            self._indices[topic] = found
        return self._indices[topic]

    def entries(self) -> list[LedgerEntry]:
        return self._ledger.entries()

    def start(self, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        keyed = {tp.topic for tp in positions if self._config.ids_are_keys(tp.topic)}
        if keyed and self._config.new_partitions == "fail":
            moved = self._ledger.moved(keyed)
            for tp in sorted(positions):
                if tp.topic in moved and tp.partition not in moved[tp.topic]:
                    raise ConfigError(
                        f"{self._where}: topic {tp.topic} has a new partition, {tp.partition}. Ids "
                        "are record keys and versions are offsets, which cannot be compared "
                        "between partitions: for a key that moves, the higher offset would win, "
                        "not the later record. If producers keep each key in its partition, set "
                        "behavior.on.new.partitions=continue; else copy the topic into one with "
                        "enough partitions, and read that"
                    )
        return self._ledger.start(positions)

    def accommodate(self, records: Records) -> None:
        self._target(records)

    # Committing

    def commit(self, advances: Sequence[Advance], commit: Commit) -> Outcome:
        raise AssertionError("there is no transaction: see support()")

    def write(self, commit: Commit, guard: Sequence[Advance] | None = None) -> Outcome:
        still = self._guard(guard)
        if still() is Outcome.REPLAYED:
            return Outcome.REPLAYED
        hit("sink.after_positions")
        made = [part for r in commit.records if r.count for part in self._parts(r)]
        refused = self._send(made, still)
        if refused:
            raise RowsRejected(refused)
        letters, table = commit.dead_letters, self._connector.dead_letter_table
        if letters and table:
            dead_letters.write(self._client, table, self._connector.name, letters)
        hit("sink.after_commit")
        return Outcome.APPLIED

    def advance(self, advances: Sequence[Advance]) -> Outcome:
        return self._ledger.advance(advances)

    def _guard(self, guard: Sequence[Advance] | None) -> Callable[[], Outcome]:
        """Judges the ledger, and again when that is a while ago: a process that was frozen must
        hear that its place was taken before it sends anything more."""
        judged = Outcome.APPLIED
        at = float("-inf")

        def still() -> Outcome:
            nonlocal judged, at
            if guard is not None and time.monotonic() - at > _FRESH:
                judged = self._ledger.guard(guard)
                at = time.monotonic()
            return judged

        return still

    def _parts(self, records: Records) -> list[Part]:
        name = self._target(records).name
        return self._writer.parts(records, name, self._ledger.generation)

    def _target(self, records: Records) -> Index:
        """The topic's index, created or extended if it may be."""
        topic = records.topic
        provenance = self._connector.provenance_columns
        columns = self._writer.columns(records.rows)
        wanted = indices.mapping(
            {n: v.type for n, v in columns.items()},
            provenance,
            derive=not self._config.ignores_schema(topic),
        )
        found = self._find(topic)
        if found is None:
            if not self._config.auto_create:
                raise self._missing(topic)
            indices.create(self._client, self._config.index(topic), wanted, self._where)
            found = self._find(topic)
            if found is None:
                raise TransientError(f"{self._where}: index of topic {topic} is gone again")
        new = {n: kind for n, kind in wanted.items() if n not in found.fields}
        if new and self._config.auto_evolve:
            indices.extend(self._client, found, new)
        return found

    def _send(self, made: Sequence[Part], still: Callable[[], Outcome]) -> list[Rejected]:
        """Send all bulk requests, several at once; the records that the server refuses."""
        wanted = [
            (part, first, body)
            for part in made
            for first, body in requests(
                part.lines, self._config.batch_size, self._config.bulk_bytes
            )
        ]

        def send(request: tuple[Part, int, bytes]) -> list[Rejected]:
            part, first, body = request
            if still() is Outcome.REPLAYED:
                return []
            failures = self._client.bulk(part.index, body)
            return [r for f in failures if (r := self._judged(part, first, f)) is not None]

        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._config.in_flight, "semel-bulk")
        refused = [r for found in self._pool.map(send, wanted[:-1]) for r in found]
        hit("sink.before_commit")
        return refused + [r for request in wanted[-1:] for r in send(request)]

    def _judged(self, part: Part, first: int, failure: Failure) -> Rejected | None:
        """What it means that the server has not carried out an action. That it holds this version
        or a later one already is what becomes of a replay."""
        if failure.status == 409 and part.versioned:
            return None
        if failure.status == 400:
            return part.rejected(first + failure.place, failure.kind, failure.reason)
        self._indices.clear()
        raise self._client.problem(failure.status, failure.kind, failure.reason)

    # For the audit

    def snapshot(self, topics: Collection[str]) -> Snapshot:
        return snapshot.take(
            self._client,
            self._ledger,
            {topic: self._config.index(topic) for topic in topics},
            {topic for topic in topics if not self._config.ids_are_keys(topic)},
            self._connector.provenance_columns,
            self._connector.dead_letter_table,
        )

    def key_of(self, records: Records) -> tuple[pa.Table | None, pa.Table | None]:
        topic, gone = records.topic, records.tombstones
        keys = pa.table({"id": self._writer.ids(topic, records.rows)})
        if gone is None or self._config.tombstones != "delete":
            return keys, None
        return keys, pa.table({"id": self._writer.ids(topic, gone)})

    # The life of a run

    def claim(self) -> None:
        """Nothing is held: an index has no locks, and the ledger fences."""

    def set_positions(self, positions: Mapping[TopicPartition, int] | None) -> None:
        self._ledger.create()
        if positions is None:
            self._ledger.forget()
        elif positions:
            self._ledger.set(positions)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None
        self._client.close()
        self._indices.clear()
