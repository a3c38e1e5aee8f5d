"""The sink for Elasticsearch and OpenSearch.

Neither has a transaction over several documents, so exactly-once is idempotent: each document has
an id and a version that follow from its record alone, and positions follow when all documents are
acknowledged. Written again, a document meets its own version and is left as it is; an older one
never replaces a newer one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from functools import partial

import pyarrow as pa

from semel.config import ConnectorConfig, read
from semel.converters.json.numbers import is_mixed
from semel.core import watchdog
from semel.core.delivery import Delivery, Mechanism, Support
from semel.core.errors import ConfigError, Problem, TransientError
from semel.core.failpoints import hit
from semel.core.ledger import (
    SKIPPED,
    Advance,
    Hole,
    LedgerEntry,
    Outcome,
    Rebase,
    Target,
    TopicPartition,
)
from semel.core.problems import refuse, together
from semel.core.quoting import named, one_line
from semel.core.records import (
    KEY,
    OFFSET,
    PARTITION,
    TOPIC,
    Commit,
    Records,
    RejectedRecord,
    RowsRejected,
)
from semel.sinks.base import Capabilities, Sink, Snapshot
from semel.sinks.letters import Place
from semel.sinks.protocols import Named, settled
from semel.sinks.search import dead_letters, indices, snapshot
from semel.sinks.search.client import Client, Failure, RequestTooLarge
from semel.sinks.search.config import IGNORED, PREFIX, REASON, SearchConfig
from semel.sinks.search.indices import Index
from semel.sinks.search.ledger import INDEX, SearchLedger
from semel.sinks.search.writing import Part, Writer, requests

_FRESH = 10.0
"""After this many seconds the ledger is read again before anything more is sent."""


_JSON = ("JsonConverter", "json")
_STRING = ("StringConverter", "string")


class SearchSink(Sink):
    """See :class:`~semel.sinks.base.Sink`; configuration in docs/elasticsearch.md."""

    section = SearchConfig
    ignored = IGNORED
    address = "connection.url"
    prefixes = (PREFIX,)

    def __init__(self, connector: ConnectorConfig) -> None:
        self._connector = connector
        self._config: SearchConfig = read(SearchConfig, connector.originals)
        self._client = Client(self._config, connector.name)
        self._ledger = SearchLedger(self._client, connector.name, merges=self._config.merges)
        plain = self._is_plain(connector.originals)
        self._writer = Writer(
            self._config,
            connector.provenance_columns,
            passes=plain and self._passes(connector.originals),
        )
        self._indices: dict[str, Index] = {}
        self._alone: set[str] = set()
        self._bulk = Bulk(self._client, self._config)
        checks: list[Callable[[], object]] = [partial(self._check_shared, connector.topics)]
        checks += [partial(self._check_free_index, topic) for topic in connector.topics]
        if connector.dead_letter_table:
            where = "errors.deadletterqueue.table"
            checks.append(partial(self._config.index_name, connector.dead_letter_table, where))
        together(*checks, lambda: refuse(self._problems()))

    def _check_free_index(self, topic: str) -> None:
        self._check_free(topic, {self._config.index(topic)})

    def _is_plain(self, raw: Mapping[str, str]) -> bool:
        """Whether values are JSON without a schema."""
        setting = raw.get("value.converter.schemas.enable", "").strip().lower()
        return self._connector.value_converter.endswith(_JSON) and setting == "false"

    def _passes(self, raw: Mapping[str, str]) -> bool:
        """Whether plain JSON can be passed to the server unchanged."""
        return (
            self._config.schema_ignore
            and not self._config.streams
            and not self._config.routing
            and not self._config.merges
            and not raw.get("value.converter.schema", "").strip()
            and (not self._any_keys or self._connector.key_converter.endswith(_STRING))
        )

    def _check_shared(self, topics: Collection[str]) -> None:
        seen: dict[str, str] = {}
        for topic in sorted(topics):
            name = self._config.index(topic)
            self._check_both(seen.setdefault(name, topic), topic, name)

    def _check_free(self, topic: str, names: Collection[str]) -> None:
        """Check that a topic's index is for its documents alone."""
        table = self._connector.dead_letter_table
        for name, holds in ((INDEX, "the ledger"), (table, "dead letters")):
            if name in names:
                raise ConfigError(
                    f"{self._where}: topic {named(topic)} goes to index {named(name)}, which holds "
                    f"{holds}. Name another one in topic.to.external.resource.mapping"
                    + (", or in errors.deadletterqueue.table" if name == table else "")
                )

    def _check_both(self, topic: str, other: str, index: str) -> None:
        """The offsets of two topics cannot be compared, so their keys must not be in one index. If
        there is a query, all documents are its own."""
        if self._connector.checkpoint_location:
            return
        if topic != other and any(map(self._config.ids_are_keys, (topic, other))):
            raise ConfigError(
                f"{self._where}: topics {named(topic)} and {named(other)} both go to index "
                f"{named(index)}, where a document of one would replace that of the other by the "
                "higher offset, even if it is older. Set key.ignore=true, or give each its index "
                "in topic.to.external.resource.mapping"
            )

    def _check_alone(self, topic: str, index: Index) -> None:
        """Check that no other topic goes to an index, under any of its names. Another task may have
        a topic that appeared since the start, but its ledger entry is made before it is written."""
        if topic in self._alone or not self._any_keys:
            return
        for other in sorted({e.topic for e in self._ledger.entries()}):
            if self._connector.reads(other) and self._config.index(other) in index.names:
                self._check_both(other, topic, index.name)
        self._alone.add(topic)

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
    def _versioned(self) -> bool:
        """Whether offsets of a key's records are compared, so that new partitions matter."""
        config = self._config
        return self._any_keys and config.new_partitions == "fail" and not config.merges

    @property
    def capabilities(self) -> Capabilities:
        config, keyed, tombstones = self._config, self._any_keys, self._config.tombstones
        identity = set() if config.makes_ids else {PARTITION, OFFSET, KEY if keyed else TOPIC}
        return Capabilities(
            routes=True,
            splits=not keyed or len(self._connector.topics) == 1,
            engines=frozenset({"direct", "micro-batch"}),
            uses_key=keyed or config.routes_by_key,
            key_metadata=frozenset(identity | config.metadata),
            takes_tombstones=tombstones == "fail" or (tombstones == "delete" and keyed),
            takes_bytes=self._writer.passes,
            writes_documents=True,
            writes_text=not config.streams,  # whose times are written as the server reads them
            replaces=keyed,
            any_order=not config.merges,
            evolves=True,
            enters_whole_topics=self._versioned,
        )

    def describe(self) -> dict[str, str]:
        config = self._config
        name = config.stream_name("${topic}") if config.streams else config.index_format
        return {
            "writes": f"{config.kind} {name} at {self._client.where}",
            "documents": self._documents(),
            "ledger": f"index {INDEX} at {self._client.where}",
        }

    def _documents(self) -> str:
        """What a document's id is, and what becomes of one that has it already."""
        if self._config.makes_ids:
            return "the server makes ids"
        unique = "record key" if self._any_keys else "topic+partition+offset"
        if self._config.streams:
            return f"appended; id: {unique}"
        if self._config.merges:
            return f"id: {unique}; fields are merged"
        return f"id: {unique}; version: the record's offset"

    def _problems(self) -> Iterator[Problem]:
        connector, config, where = self._connector, self._config, self._where
        if connector.delivery is Delivery.AT_MOST_ONCE and config.makes_ids:
            yield Problem(
                "delivery",
                f"{where}: delivery=at-most-once cannot be kept with ids that the server makes: if "
                "it refuses a part of a bulk request, or its answer is lost, documents may be "
                "written twice. Set use.autogenerated.ids=false and "
                "key.ignore.id.strategy=topic.partition.offset, or delivery=at-least-once",
            )
        if connector.delivery is Delivery.AT_MOST_ONCE and config.streams:
            yield Problem(
                "delivery",
                f"{where}: delivery=at-most-once cannot be kept with data streams: a request whose "
                "answer is lost is sent again, and may write a document twice if the stream rolls "
                "over in between. Set delivery=at-least-once",
            )
        if config.merges and config.makes_ids:
            yield Problem(
                "write.method",
                f"{where}: write.method=upsert needs ids that follow from records, to find the "
                "documents again. Set use.autogenerated.ids=false and key.ignore.id.strategy="
                "topic.partition.offset, or write.method=insert",
            )
        if connector.dead_letter_table == INDEX:
            yield Problem(
                "errors.deadletterqueue.table",
                f"{where}: errors.deadletterqueue.table={INDEX} is the index of the ledger. Name "
                "another one",
            )

    def support(self) -> Mapping[Mechanism, Support]:
        return {
            Mechanism.TRANSACTIONAL: Support(
                False,
                "Elasticsearch and OpenSearch have no transaction over several documents. Set "
                "delivery.mechanism=idempotent",
            ),
            Mechanism.IDEMPOTENT: _idempotent(self._config),
        }

    def prepare(self, topics: Collection[str]) -> None:
        self._ledger.create()
        self._check_shared(topics)
        table = self._connector.dead_letter_table
        if table:
            dead_letters.create(self._client, table, self._where)
        for topic in () if self._config.splits else topics:
            if self._find(topic) is None and not self._config.auto_create:
                raise self._missing(topic)

    def _missing(self, topic: str) -> ConfigError:
        return ConfigError(
            f"{self._where}: {self._config.kind} {self._config.index(topic)} for topic "
            f"{named(topic)} does not exist at {self._client.where}. Create it, or set "
            "auto.create=true"
        )

    def _find(self, topic: str) -> Index | None:
        index = self._indices.get(topic)
        if index is None:
            name, where = self._config.index(topic), f"{self._where}: topic {named(topic)}"
            index = indices.find(self._client, name, where, stream=self._config.streams)
            if index is None:
                return None
            self._check_free(topic, index.names)
            indices.check(
                index,
                where,
                durable=self._connector.delivery is not Delivery.AT_MOST_ONCE,
                deletes=self._config.tombstones == "delete" and self._config.ids_are_keys(topic),
            )
            for other, existing in self._indices.items():
                if existing.name == index.name:  # one of them may name it by an alias
                    self._check_both(other, topic, index.name)
            self._indices[topic] = index
        return index

    def entries(self) -> list[LedgerEntry]:
        return self._ledger.entries()

    def holes(self) -> list[Hole]:
        return self._ledger.holes()

    def start(self, entries: Collection[LedgerEntry]) -> dict[TopicPartition, int]:
        positions = {e.topic_partition for e in entries}
        keyed = {tp.topic for tp in positions if self._config.ids_are_keys(tp.topic)}
        if keyed and self._versioned:
            moved = self._ledger.moved(keyed)
            for tp in sorted(positions):
                if tp.topic in moved and tp.partition not in moved[tp.topic]:
                    raise ConfigError(
                        f"{self._where}: topic {named(tp.topic)} has a new partition, "
                        f"{tp.partition}. Ids are record keys and versions are offsets, which "
                        "cannot be compared between partitions: for a key that moves, the higher "
                        "offset would win, not the later record. If producers keep each key in "
                        "its partition, set behavior.on.new.partitions=continue; else copy the "
                        "topic into one with enough partitions, and read that"
                    )
        return self._ledger.start(entries)

    def rebase(self, rebases: Sequence[Rebase]) -> None:
        self._ledger.rebase(rebases)

    def targets(self, topics: Collection[str]) -> Mapping[str, Target | None]:
        ledger = indices.find(self._client, INDEX, self._where)
        store = "" if ledger is None else ledger.uuid
        by_topic = {topic: self._find(topic) for topic in (() if self._config.splits else topics)}
        return {t: Target(i.name, i.uuid, store) if i else None for t, i in by_topic.items()}

    def accommodate(self, records: Records) -> None:
        self._target(records)

    # Committing

    def write(self, commit: Commit, guard: Sequence[Advance] | None = None) -> Outcome:
        still = self._guard(guard)
        if still() is Outcome.REPLAYED:
            return Outcome.REPLAYED
        hit("sink.after_positions")
        config = self._config
        try:
            parts = [part for r in commit.records if r.count for part in self._parts(r)]
        except RowsRejected as error:
            choice = "drop.invalid.message=true" if config.drop_invalid else ""
            raise self._refusal(error.rejected, choice) from None
        refused = self._send(parts, still)
        if refused:
            choice = f"behavior.on.malformed.documents={config.malformed}"
            raise self._refusal(refused, "" if config.malformed == "fail" else choice)
        letters, table = commit.dead_letters, self._connector.dead_letter_table
        if letters and table:
            dead_letters.write(
                self._client, table, self._connector.name, letters, self._bulk.requests
            )
        hit("sink.after_commit")
        return Outcome.APPLIED

    def advance(self, advances: Sequence[Advance]) -> Outcome:
        return self._ledger.advance(advances)

    def _guard(self, guard: Sequence[Advance] | None) -> Callable[[], Outcome]:
        """A function that judges the ledger, and judges it again after a while: a process that was
        frozen must find out that another one has taken its place before it sends anything more. An
        answer is as old as its question, for the process may have been frozen in between."""
        last = float("-inf"), Outcome.APPLIED

        def still() -> Outcome:
            nonlocal last
            if guard is not None and time.monotonic() - last[0] > _FRESH:
                asked = time.monotonic()
                last = asked, self._ledger.guard(guard)
                if time.monotonic() - asked > _FRESH:
                    raise TransientError(
                        f"{self._where}: the ledger's answer came after more than {_FRESH:g} s"
                    )
            return last[1]

        return still

    def _parts(self, records: Records) -> list[Part]:
        name = self._target(records).name
        return self._writer.parts(records, name, self._ledger.generation)

    def _target(self, records: Records) -> Index:
        """The topic's index, created or extended if it may be."""
        topic = records.topic
        provenance = self._connector.provenance_columns
        columns = self._writer.columns(records.rows)
        kinds = {n: v.type if records.has_schema else indices.told(v) for n, v in columns.items()}
        kinds |= {f.name: pa.float64() for f in records.rows.schema if is_mixed(f)}
        mapping = indices.mapping(
            kinds,
            provenance,
            derive=not self._config.ignores_schema(topic),
        )
        index = self._find(topic)
        if index is None:
            if not self._config.auto_create:
                raise self._missing(topic)
            create = indices.create_stream if self._config.streams else indices.create
            name = self._config.index(topic)
            try:
                create(self._client, name, mapping, self._where)
            except indices.MappingRefused:  # later, only documents with wrong fields are refused
                create(self._client, name, {}, self._where)
            index = self._find(topic)
            if index is None:
                raise TransientError(f"{self._where}: index of topic {named(topic)} is gone again")
        self._check_alone(topic, index)
        new = {n: kind for n, kind in mapping.items() if n not in index.fields}
        if new and self._config.auto_evolve:
            indices.extend(self._client, index, new)
        return index

    def _send(self, parts: Sequence[Part], still: Callable[[], Outcome]) -> list[RejectedRecord]:
        """Send all documents. After an error the indices are looked up again."""
        try:
            return self._bulk.send(parts, still)
        except BaseException:
            self._indices.clear()
            raise

    def _refusal(self, refused: Sequence[RejectedRecord], choice: str) -> RowsRejected:
        """The error about these records. Where bad records would stop the connector, ``choice`` is
        the setting that leaves them out."""
        if not choice or self._connector.errors_tolerance == "all":
            return RowsRejected(refused)
        for r in refused:
            where, why = TopicPartition(r.topic, r.partition), one_line(r.message)
            watchdog.tell(f"{where} offset {r.offset} is left out ({choice}): {why}")
        return RowsRejected([replace(r, left_out=True) for r in refused])

    # For the audit

    def snapshot(self, topics: Collection[str]) -> Snapshot:
        return self._taken({topic: [self._config.index(topic)] for topic in topics})

    def gathered(self, topics: Collection[str], named: Named) -> Snapshot:
        """See :class:`~semel.sinks.protocols.Gathering`."""
        together = f"the indices that records name at {self._client.where}"

        def taken(names: Collection[str]) -> Snapshot:
            return self._taken(dict.fromkeys(topics, names), together)

        return settled(taken, named, self._config.index)

    def letters(self, beyond: Place | None, most: int, *, backwards: bool = False) -> pa.Table:
        """See :class:`~semel.sinks.letters.LetterStore`."""
        of = self._client, self._connector.dead_letter_table, self._connector.name
        return dead_letters.some_of(*of, beyond, most, backwards=backwards)

    def _taken(self, names: Mapping[str, Collection[str]], together: str = "") -> Snapshot:
        return snapshot.take(
            self._client,
            self._ledger,
            names,
            {topic for topic in names if not self._config.ids_are_keys(topic)},
            self._connector.provenance_columns,
            self._connector.dead_letter_table,
            together,
            streams=self._config.streams,
        )

    def key_of(self, records: Records) -> tuple[pa.Table | None, pa.Table | None]:
        topic, gone = records.topic, records.tombstones
        keys = pa.table({"id": self._writer.ids(topic, records.rows)})
        if gone is None or self._config.tombstones != "delete":
            return keys, None
        return keys, pa.table({"id": self._writer.ids(topic, gone)})

    # The life of a run

    def claim(self) -> None:
        """Do nothing: an index has no locks, and the ledger fences."""

    def set_positions(
        self, entries: Collection[LedgerEntry] | None, by: str = "", reason: str = SKIPPED
    ) -> None:
        self._ledger.create()
        if entries is None:
            self._ledger.forget(by)
        elif entries:
            self._ledger.set(entries, by, reason)

    def close(self) -> None:
        self._bulk.close()
        self._client.close()
        self._indices.clear()


def _idempotent(config: SearchConfig) -> Support:
    if config.streams:
        return Support(False, f"{REASON}. Set delivery=at-least-once, or write to an index")
    if config.makes_ids:
        return Support(
            False,
            "ids that the server makes are new ones for each replay. Set "
            "use.autogenerated.ids=false and key.ignore.id.strategy=topic.partition.offset",
        )
    if config.merges:
        return Support(
            False,
            "write.method=upsert updates documents, and an update takes no external version: a "
            "replayed or late record overwrites fields of a newer one, until those are replayed, "
            "too. Set write.method=insert, which replaces documents",
        )
    return Support(
        True,
        "each document has an id and an external version that follow from its record, so a replay "
        "changes nothing and nothing older replaces it; positions follow by compare-and-set",
    )


class Bulk:
    """Sends documents. Its threads start with the first request."""

    def __init__(self, client: Client, config: SearchConfig) -> None:
        self._client = client
        self._config = config
        self._pool: ThreadPoolExecutor | None = None

    def requests(self, lines: pa.Array) -> Iterator[tuple[range, bytes]]:
        """The bodies of the requests for these lines, each with its rows."""
        return requests(lines, self._config.batch_size, self._config.bulk_bytes)

    def send(self, parts: Sequence[Part], still: Callable[[], Outcome]) -> list[RejectedRecord]:
        """Send everything; returns the records that the server refuses.

        ``still`` is asked before each request, which is left out if the ledger says that the
        records are a replay. When this returns or raises, no request is in progress.
        """
        requests = [
            (part, rows, body) for part in parts for rows, body in self.requests(part.lines)
        ]

        def send(request: tuple[Part, range, bytes]) -> list[RejectedRecord]:
            part, rows, body = request
            if still() is Outcome.REPLAYED:
                return []
            try:
                failures = self._client.bulk(part.index, body)
            except RequestTooLarge as error:
                if len(rows) > 1:
                    raise
                why = f"{len(body):,} bytes, even alone in its request, are too many for the server"
                return [part.rejected(rows.start, type(error).__name__, f"{why} (413)")]
            return [r for f in failures if (r := self._judged(part, rows.start, f)) is not None]

        if self._pool is None:
            # Updates of one document must arrive in their order.
            count = 1 if self._config.merges else self._config.in_flight
            self._pool = ThreadPoolExecutor(count, "semel-bulk")
        sent = [self._pool.submit(send, request) for request in requests[:-1]]
        try:
            refused = [r for future in sent for r in future.result()]
            hit("sink.before_commit")
            return refused + [r for request in requests[-1:] for r in send(request)]
        except BaseException:
            wait([future for future in sent if not future.cancel()])
            raise

    def _judged(self, part: Part, first: int, failure: Failure) -> RejectedRecord | None:
        """What it means that the server did not carry out an action.

        On a replay the server already holds this version or a later one, which is no failure.
        """
        if failure.status == 409 and part.versioned:
            return None
        if failure.of_document:
            return part.rejected(first + failure.place, failure.kind, failure.reason)
        raise self._client.problem(failure.status, failure.kind, failure.reason)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None
