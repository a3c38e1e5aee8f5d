"""The ledger: an index beside the results, with one document per topic-partition, moved by
compare-and-set on the document's sequence number."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from typing import Any

from semel.core.errors import ConfigError, TransientError
from semel.core.ledger import (
    LEDGER_FORMAT,
    Advance,
    Hole,
    LedgerEntry,
    Outcome,
    Rebase,
    TopicPartition,
    check_format,
    forgotten,
    holes_of,
    judge,
    pending,
    set_by_hand,
)
from semel.core.quoting import named
from semel.sinks.search.client import Client

INDEX = "semel_offsets"
_COUNTS = ("records_read", "rows_written", "records_filtered", "records_failed", "records_lost")
_FIELDS = tuple(f.name for f in fields(LedgerEntry))
_FORMAT = "format"
_MERGES = "merges"
"""Whether documents have been updated since the generation began."""
_LONGEST = 512
_ATTEMPTS = 3

_WORD = {"type": "keyword"}
_NUMBER = {"type": "long"}
_BODY = {
    "settings": {
        "index": {
            "number_of_shards": 1,
            "auto_expand_replicas": "0-1",
            "translog": {"durability": "request"},
        }
    },
    "mappings": {
        "dynamic": False,
        "properties": {
            "connector": _WORD,
            "topic": _WORD,
            "partition": {"type": "integer"},
            "generation": _NUMBER,
            "position": _NUMBER,
            "start_position": _NUMBER,
            **dict.fromkeys(_COUNTS, _NUMBER),
            "updated_at": {"type": "date"},
            "holes": {"type": "object", "enabled": False},
        },
    },
}


@dataclass(frozen=True, slots=True)
class _LedgerDocument:
    """A document of the ledger, with the facts for a compare-and-set."""

    source: Mapping[str, Any]
    seq_no: int
    primary_term: int

    @property
    def position(self) -> int | None:
        """None once the position has been forgotten; its generation stays."""
        return self.source.get("position")


class SearchLedger:
    """The ledger of one connector. With ``merges`` it updates documents."""

    def __init__(self, client: Client, connector: str, *, merges: bool = False) -> None:
        self._client = client
        self.connector = connector
        self._merges = merges
        self._generations: dict[TopicPartition, int] = {}

    def create(self) -> None:
        """Create the index, unless it is there."""
        if self._client.request("GET", f"/{INDEX}", expected=(404,)).status == 404:
            answer = self._client.request("PUT", f"/{INDEX}", _BODY, expected=(400,))
            if answer.status == 400 and answer.kind != "resource_already_exists_exception":
                raise self._client.problem(400, answer.kind, answer.reason)

    # The ledger rule. It is applied to each topic-partition, because each has its own document.

    def guard(self, advances: Sequence[Advance]) -> Outcome:
        """Judge without moving; the outcome is a replay only if all ranges are replays.

        Raises:
            LedgerConflict: one of them is neither new nor a replay.
        """
        return Outcome.APPLIED if self._to_move(advances)[0] else Outcome.REPLAYED

    def advance(self, advances: Sequence[Advance]) -> Outcome:
        """The compare-and-set."""
        outcome = Outcome.REPLAYED
        for _ in range(_ATTEMPTS):
            moving, stored = self._to_move(advances)
            if not moving:
                return outcome
            now = _now()
            lines = []
            for a in moving:
                before = stored[a.range.topic_partition]
                lines += [self._action(a.range.topic_partition, before)]
                lines += [json.dumps(_moved(before.source, a, now))]
            conflicts = self._write(lines)
            if conflicts < len(moving):
                outcome = Outcome.APPLIED
            if not conflicts:
                return outcome
            # Another writer was faster, or the answer to our own attempt was lost: judge again.
        raise TransientError(
            f"connector {self.connector}: index {INDEX} is being written by others"
        )

    def _to_move(
        self, advances: Sequence[Advance]
    ) -> tuple[list[Advance], dict[TopicPartition, _LedgerDocument]]:
        stored = self._read(a.range.topic_partition for a in advances)
        at = {tp: _entry(s.source) for tp, s in stored.items() if s.position is not None}
        new = [a for a in advances if judge(self.connector, at, [a]) is Outcome.APPLIED]
        return new, stored

    def start(self, entries: Iterable[LedgerEntry]) -> dict[TopicPartition, int]:
        """Insert first entries where there are none; return the positions stored for all."""
        by_partition = {e.topic_partition: e for e in entries}
        stored = self._read(by_partition)
        new = {tp: e for tp, e in by_partition.items() if _at(stored.get(tp)) is None}
        if new:
            self._enter(new, stored)
            stored = self._read(by_partition)
        if self._turn(stored):
            stored = self._read(by_partition)
        positions = {tp: at for tp, s in stored.items() if (at := s.position) is not None}
        if positions.keys() != by_partition.keys():
            raise TransientError(f"connector {self.connector}: index {INDEX} is being changed")
        return positions

    def _turn(self, stored: Mapping[TopicPartition, _LedgerDocument]) -> bool:
        """Record whether documents are updated from now on. An update makes a version of its own,
        which may be higher than the offset of a later record: so documents that replace updated
        ones belong to a new generation."""
        lines, now = [], _now()
        for tp, s in stored.items():
            if s.position is not None and s.source.get(_MERGES, False) != self._merges:
                generation = s.source["generation"] + (0 if self._merges else 1)
                turned = {_MERGES: self._merges, "generation": generation, "updated_at": now}
                lines += [self._action(tp, s), json.dumps({**s.source, **turned})]
        if self._write(lines):
            raise TransientError(f"connector {self.connector}: index {INDEX} is being changed")
        return bool(lines)

    def rebase(self, rebases: Sequence[Rebase]) -> None:
        """Replace entries and record holes. If offsets repeat, documents written from now on
        belong to a new generation, or they would count as older than those that are there.

        Raises:
            LedgerConflict: see :func:`semel.core.ledger.pending`.
        """
        for _ in range(_ATTEMPTS):
            stored = self._read(r.old.topic_partition for r in rebases)
            there = {tp: s for tp, s in stored.items() if s.position is not None}
            entries = {tp: _entry(s.source) for tp, s in there.items()}
            lines, now = [], _now()
            for r in pending(self.connector, entries, rebases):
                before = there[r.old.topic_partition]
                lines += [self._action(r.old.topic_partition, before)]
                lines += [json.dumps(_rebased(before.source, r, now))]
            if not self._write(lines):
                return
        raise TransientError(
            f"connector {self.connector}: index {INDEX} is being written by others"
        )

    def moved(self, topics: Iterable[str]) -> dict[str, set[int]]:
        """The partitions of those topics in which at least one partition has moved since it was
        entered."""
        partitions: dict[str, set[int]] = {}
        moved = set()
        chosen = set(topics)
        for e in self.entries():
            if e.topic in chosen:
                partitions.setdefault(e.topic, set()).add(e.partition)
                if e.position != e.start_position:
                    moved.add(e.topic)
        return {topic: partitions[topic] for topic in moved}

    def generation(self, tp: TopicPartition) -> int:
        """The generation of a partition's documents: a later one counts as newer. It grows when
        positions are set by hand, when offsets repeat, and when documents are no longer updated."""
        if tp not in self._generations:
            self._read([tp])
        return self._generations.get(tp, 0)

    def entries(self) -> list[LedgerEntry]:
        """Every entry of the connector; empty when the ledger does not exist yet."""
        entries = map(_entry, self._sources())
        return sorted(entries, key=lambda e: e.topic_partition)

    def holes(self) -> list[Hole]:
        """All holes of the connector, by topic and partition."""
        holes = [h for source in self._sources(forgotten=True) for h in _holes(source)]
        return sorted(holes, key=lambda r: (r.topic_partition, r.from_offset))

    def _sources(self, *, forgotten: bool = False) -> list[Mapping[str, Any]]:
        self._client.refresh(INDEX)
        query = {"query": {"term": {"connector": self.connector}}}
        sources = [self._known(hit["_source"]) for hit in self._client.scan(INDEX, query)]
        return [s for s in sources if forgotten or s.get("position") is not None]

    # By hand

    def set(self, entries: Iterable[LedgerEntry], by: str, reason: str) -> None:
        """Set positions by hand, see :func:`semel.core.ledger.set_by_hand`."""
        listed = list(entries)
        stored = self._read(e.topic_partition for e in listed)
        there = {tp: _entry(s.source) for tp, s in stored.items() if s.position is not None}
        stored_holes = [h for s in stored.values() for h in _holes(s.source)]
        moved, holes = set_by_hand(there, stored_holes, listed, by, reason)
        self._enter({e.topic_partition: e for e in moved}, stored, holes)

    def forget(self, by: str) -> None:
        """Remove all positions of the connector, see :func:`semel.core.ledger.forgotten`."""
        partitions = [TopicPartition(s["topic"], s["partition"]) for s in self._sources()]
        stored = self._read(partitions)
        there = {tp: _entry(s.source) for tp, s in stored.items() if s.position is not None}
        holes = [h for s in stored.values() for h in _holes(s.source)]
        self._enter(dict.fromkeys(partitions), stored, forgotten(there, holes, by))

    def _enter(
        self,
        entries: Mapping[TopicPartition, LedgerEntry | None],
        stored: Mapping[TopicPartition, _LedgerDocument],
        holes: Collection[Hole] | None = None,
    ) -> None:
        """Rewrite entries. If ``holes`` replaces all of their holes, documents written from here on
        belong to a new generation.

        Raises:
            TransientError: the ledger has been moved meanwhile.
        """
        now, lines, again = _now(), [], holes is not None
        for tp, entry in entries.items():
            before = stored.get(tp)
            partition_holes = [_recorded(h) for h in holes or () if h.topic_partition == tp]
            generation = before.source["generation"] if before else 0
            source: dict[str, Any] = {
                _FORMAT: LEDGER_FORMAT,
                "connector": self.connector,
                "topic": tp.topic,
                "partition": tp.partition,
                "generation": generation + (1 if again and before else 0),
                "updated_at": now,
                "holes": partition_holes if again or before is None else before.source["holes"],
            }
            if entry is not None:
                source = {**asdict(entry), **source}
            lines += [self._action(tp, before), json.dumps(source)]
        if self._write(lines) and again:
            raise TransientError(
                f"connector {self.connector}: its positions were moved meanwhile: it is running. "
                "Stop it first"
            )

    # Documents

    def _id(self, tp: TopicPartition) -> str:
        document_id = f"{self.connector}/{tp.topic}/{tp.partition}"
        if len(document_id.encode()) > _LONGEST:
            raise ConfigError(
                f"connector {self.connector}: the names of connector and topic {named(tp.topic)} "
                f"are together longer than an id may be ({_LONGEST} bytes). Shorten name"
            )
        return document_id

    def _action(self, tp: TopicPartition, before: _LedgerDocument | None) -> str:
        if before is None:
            return json.dumps({"create": {"_id": self._id(tp)}})
        place = {"if_seq_no": before.seq_no, "if_primary_term": before.primary_term}
        return json.dumps({"index": {"_id": self._id(tp), **place}})

    def _write(self, lines: Sequence[str]) -> int:
        """Write documents; returns how many of them somebody else has changed meanwhile."""
        if not lines:
            return 0
        failures = self._client.bulk(INDEX, ("\n".join(lines) + "\n").encode())
        for f in failures:
            if f.status != 409:
                raise self._client.problem(f.status, f.kind, f.reason)
        return len(failures)

    def _known(self, source: Mapping[str, Any]) -> Mapping[str, Any]:
        what = f"connector {self.connector}: the ledger in index {INDEX}"
        check_format(what, source[_FORMAT], LEDGER_FORMAT)
        return source

    def _read(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, _LedgerDocument]:
        """Documents by id: what was written last, whether a search sees it yet or not."""
        distinct = list(dict.fromkeys(partitions))
        if not distinct:
            return {}
        ids = {"ids": [self._id(tp) for tp in distinct]}
        answer = self._client.request("POST", f"/{INDEX}/_mget", ids, expected=(404,))
        stored = {}
        for tp, document in zip(distinct, answer.body.get("docs", ()), strict=False):
            error = document.get("error")
            if error and error.get("type") != "index_not_found_exception":
                raise self._client.problem(503, error.get("type", ""), error.get("reason", ""))
            if document.get("found"):
                place = document["_seq_no"], document["_primary_term"]
                stored[tp] = _LedgerDocument(self._known(document["_source"]), *place)
                self._generations[tp] = document["_source"]["generation"]
        return stored


def _at(stored: _LedgerDocument | None) -> int | None:
    return None if stored is None else stored.position


def _entry(source: Mapping[str, Any]) -> LedgerEntry:
    return LedgerEntry(**{n: source[n] for n in _FIELDS})


def _moved(source: Mapping[str, Any], advance: Advance, now: str) -> dict[str, Any]:
    holes = [*source["holes"], *map(_recorded, holes_of([advance]))]
    return {**source, **asdict(_entry(source).after(advance, now)), "holes": holes}


def _rebased(source: Mapping[str, Any], rebase: Rebase, now: str) -> dict[str, Any]:
    holes = [*source["holes"], *map(_recorded, holes_of([rebase]))]
    generation = source["generation"] + (1 if rebase.renews else 0)
    moved = {**asdict(rebase.new), "generation": generation}
    return {**source, **moved, "updated_at": now, "holes": holes}


def _recorded(hole: Hole) -> dict[str, Any]:
    return {
        "from_offset": hole.from_offset,
        "until_offset": hole.until_offset,
        "reason": hole.reason,
        "recorded_by": hole.by,
        "recorded_at": hole.at,
    }


def _holes(source: Mapping[str, Any]) -> list[Hole]:
    names = ("from_offset", "until_offset", "reason", "recorded_by", "recorded_at")
    tp = source["topic"], source["partition"]
    return [Hole(*tp, *(h[n] for n in names)) for h in source["holes"]]


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
