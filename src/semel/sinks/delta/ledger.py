"""The ledger in a Delta table: transaction identifiers, moved by the commit that adds the files.
What has taken such a commit out of the table again is found in its log.

A ``txn`` action holds a name and a number. It is part of the table's state: checkpoints carry it,
and log cleanup and all Delta writers keep it. That is not true of ``commitInfo``, which expires
with the log, nor of files beside the table. So the position is the version of
``semel:<connector>:<topic>:<partition>``, and each running count is the version of that name with
the count's name appended; a text, such as the id of a topic, is in several.
``semel:<connector>::version`` is the table version of the connector's last commit, and
``semel:<connector>::table:<id>`` says in which table. These names cannot be those of positions,
because no topic has an empty name; nor can ``semel:<connector>::format``, the version of all this.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Any

from semel.core.ledger import (
    DAMAGED,
    LEDGER_FORMAT,
    MOVED,
    RECREATED,
    RESET,
    RETENTION,
    SET_BACK,
    SKIPPED,
    TAKEN_OVER,
    TRUNCATED,
    UNKNOWN,
    Advance,
    Hole,
    LedgerEntry,
    LogId,
    Outcome,
    Rebase,
    TopicPartition,
    check_format,
    first,
    forgotten,
    holes_of,
    judge,
    pending,
    set_by_hand,
)
from semel.sinks.delta.table import Operation, Table

_FORGOTTEN = -1
_COUNTS = ("read", "written", "filtered", "failed", "lost")
_EPOCHS = ("leader_epoch", "epoch_offset")
_SHORT = {
    "start_position": "start",
    "records_read": "read",
    "rows_written": "written",
    "records_filtered": "filtered",
    "records_failed": "failed",
    "records_lost": "lost",
    "leader_epoch": "epoch",
    "epoch_offset": "epoch:offset",
    "cluster_id": "cluster",
    "topic_id": "topic",
}
_APART = {"topic", "partition", "position", "updated_at", "target"}
"""Fields without an identifier of their own; the target of a topic is the table itself."""
_FIELDS = [f for f in fields(LedgerEntry) if f.name not in _APART]
_NUMBERS = {f.name: _SHORT.get(f.name, f.name) for f in _FIELDS if f.type == "int"}
_TEXTS = {f.name: _SHORT.get(f.name, f.name) for f in _FIELDS if f.type == "str"}
_UNKNOWN = LedgerEntry("", 0, 0, 0)
_BYTES = 7
_REASONS = (
    RETENTION,
    DAMAGED,
    RECREATED,
    TRUNCATED,
    MOVED,
    TAKEN_OVER,
    SKIPPED,
    SET_BACK,
    RESET,
    UNKNOWN,
)
"""A hole's reason is stored as its index here."""


class DeltaLedger:
    """One connector's ledger in one table. It is read again when the table has changed."""

    def __init__(self, table: Table, connector: str) -> None:
        self._table = table
        self._connector = connector
        self._version = -1
        self._numbers: dict[str, int | None] = {}
        self._seen: dict[int, Setback | None] = {}
        """For each version since the last commit (``_seen_since``), what removed that commit."""
        self._seen_since = -1
        self._texts: dict[TopicPartition, dict[str, str]] = {}
        self._texts_of: int | None = None
        """The connector's commit as of which they are known."""

    def _name(self, *parts: object) -> str:
        return ":".join(["semel", self._connector, *map(str, parts)])

    def _number(self, name: str) -> int | None:
        if self._version != self._table.version:
            self._numbers, self._version = {}, self._table.version
            what = f"connector {self._connector}: the ledger in Delta table {self._table.where}"
            check_format(what, self._known(self._format, LEDGER_FORMAT), LEDGER_FORMAT)
        if name not in self._numbers:
            self._numbers[name] = self._table.transaction(name)
        return self._numbers[name]

    @property
    def _format(self) -> str:
        return self._name("", "format")

    def _known(self, name: str, otherwise: int) -> int:
        number = self._number(name)
        return otherwise if number is None else number

    def _count(self, name: str) -> int:
        return self._known(name, 0)

    def _text(self, name: str) -> str:
        return text_of(name, self._number)

    def position(self, tp: TopicPartition) -> int | None:
        """The stored position, or None."""
        position = self._number(self._name(*tp))
        return None if position == _FORGOTTEN else position

    def _place(self, tp: TopicPartition) -> LedgerEntry | None:
        """The stored position and its log."""
        position = self.position(tp)
        if position is None:
            return None
        texts = self._texts_at(tp)
        return first(tp, position, LogId(**{f: texts[f] for f in LogId._fields}))

    def _texts_at(self, tp: TopicPartition) -> dict[str, str]:
        """The texts of an entry. Only the connector changes them, and it marks each commit: until
        the next one they need not be read again, which would take long."""
        if self._texts_of != self.committed:
            self._texts, self._texts_of = {}, self.committed
        if tp not in self._texts:
            name = self._name(*tp)
            self._texts[tp] = {f: self._text(f"{name}:{n}") for f, n in _TEXTS.items()}
        return self._texts[tp]

    def entries(self, topic: str) -> list[LedgerEntry]:
        """The entries of a topic, by partition."""
        entries = []
        for partition in range(self._count(self._name(topic))):
            position = self.position(TopicPartition(topic, partition))
            if position is None:
                continue
            name = self._name(topic, partition)
            facts: dict[str, Any] = {
                f: self._known(f"{name}:{n}", getattr(_UNKNOWN, f)) for f, n in _NUMBERS.items()
            }
            facts |= self._texts_at(TopicPartition(topic, partition))
            at = _utc(self._count(f"{name}:time"))
            entries.append(LedgerEntry(topic, partition, position, **facts, updated_at=at))
        return entries

    def holes(self, topic: str) -> list[Hole]:
        """All holes of a topic, by partition."""
        holes = []
        for partition in range(self._count(self._name(topic))):
            name = self._name(topic, partition)
            for n in range(self._count(f"{name}:holes")):
                hole = f"{name}:hole:{n}"
                begins, ends = (self._count(f"{hole}:{at}") for at in ("from", "until"))
                reason, by = _REASONS[self._count(f"{hole}:reason")], self._text(f"{hole}:by")
                at = _utc(self._count(f"{hole}:time"))
                holes.append(Hole(topic, partition, begins, ends, reason, by, at))
        return holes

    @property
    def committed(self) -> int | None:
        """The version of the connector's last commit, if it was stored."""
        return self._number(self._name("", "version"))

    def setback(self) -> Setback | None:
        """The operation that removed the connector's last commit from the table, if any."""
        committed, version = self.committed, self._table.version
        if committed is None:
            return None  # no commit yet
        if self._number(self._name("", "table", self._table.id)) is None:
            return Setback("the table was replaced: it has another id now")
        if self._seen_since != committed:
            self._seen, self._seen_since = {}, committed
        if version > max(self._seen, default=committed):
            log = self._table.operations(max(self._seen, default=committed))
            setbacks = setback(committed, version, log, self._seen)
            if setbacks[version] is not None:
                return setbacks[version]
            self._seen = setbacks
        return self._seen.get(version)

    def remark(self) -> dict[str, int]:
        """The identifiers that mark the present version, which was checked, as the one that holds
        the rows; none as long as the log still has the version after the marked one."""
        committed = self.committed
        if committed is None or committed == self._table.version:
            return {}
        return {} if self._table.logs(committed + 1) else self.marked({})

    def entries_at(self, version: int, topics: Iterable[str]) -> dict[TopicPartition, int]:
        """The positions in an older version, if it can be read."""
        names = {self._name(*e.topic_partition): e for t in topics for e in self.entries(t)}
        positions = self._table.transactions_at(version, names)
        return {names[n].topic_partition: at for n, at in positions.items() if at != _FORGOTTEN}

    def marked(self, moved: Mapping[str, int]) -> dict[str, int]:
        """The identifiers to commit, with those that name the commit itself."""
        own = {self._format: LEDGER_FORMAT, self._name("", "table", self._table.id): 1}
        own = {name: number for name, number in own.items() if self._number(name) != number}
        return {**moved, **own, self._name("", "version"): self._table.version + 1}

    def judge(self, advances: Sequence[Advance]) -> Outcome:
        """Apply the ledger rule to the table as it stands.

        Raises:
            LedgerConflict: see :func:`semel.core.ledger.judge`.
        """
        stored = [self._place(a.range.topic_partition) for a in advances]
        return judge(self._connector, {e.topic_partition: e for e in stored if e}, advances)

    def commit(self, actions: Sequence[Any], moved: Mapping[str, int]) -> None:
        """Add files and move identifiers, by one commit of the table.

        Raises:
            CommitConflict, TransientError: see :meth:`Table.append`.
        """
        self.commit_by(lambda identifiers: self._table.append(actions, identifiers), moved)

    def commit_by(
        self, write: Callable[[Mapping[str, int]], None], moved: Mapping[str, int]
    ) -> None:
        """Let ``write`` commit identifiers to the table, together with what else it writes. Raises
        what it raises."""
        before, moved = self._table.version, self.marked(moved)
        keeps_texts = self._texts_of == self.committed and not any(map(_is_text, moved))
        write(moved)
        if self._version == before and self._table.version == before + 1:
            self._numbers |= moved  # the new version is this commit: nothing to read again
            self._version = before + 1
            if keeps_texts:
                self._texts_of = self.committed

    def moved(self, advances: Sequence[Advance]) -> dict[str, int]:
        """The identifiers to commit with the results of ``advances``."""
        identifiers = {}
        for a in advances:
            name = self._name(a.range.topic, a.range.partition)
            identifiers[name] = a.range.until_offset
            identifiers[f"{name}:time"] = _now()
            for count in _COUNTS:
                more = getattr(a, count)
                if more:
                    identifiers[f"{name}:{count}"] = self._count(f"{name}:{count}") + more
            if not a.keeps_epoch:
                identifiers |= {f"{name}:{_NUMBERS[f]}": getattr(a, f) for f in _EPOCHS}
        return identifiers | self._more(holes_of(advances))

    def _more(self, holes: Iterable[Hole]) -> dict[str, int]:
        """The identifiers that add a hole to a partition."""
        identifiers: dict[str, int] = {}
        for hole in holes:
            name = self._name(*hole.topic_partition)
            n = self._count(f"{name}:holes")
            identifiers |= {f"{name}:holes": n + 1, **_stored(f"{name}:hole:{n}", hole)}
        return identifiers

    def _all_holes(
        self, partitions: Iterable[TopicPartition], holes: Sequence[Hole]
    ) -> dict[str, int]:
        """The identifiers that replace all holes of some partitions."""
        identifiers: dict[str, int] = {}
        for tp in partitions:
            name, partition_holes = self._name(*tp), [h for h in holes if h.topic_partition == tp]
            if partition_holes or self._count(f"{name}:holes"):
                identifiers[f"{name}:holes"] = len(partition_holes)
            for n, hole in enumerate(partition_holes):
                identifiers |= _stored(f"{name}:hole:{n}", hole)
        return identifiers

    def rebased(self, rebases: Iterable[Rebase]) -> dict[str, int]:
        """The identifiers that replace entries, and record the holes that this leaves.

        Raises:
            LedgerConflict: see :func:`semel.core.ledger.pending`.
        """
        listed = list(rebases)
        topics = {r.old.topic for r in listed}
        stored = {e.topic_partition: e for t in topics for e in self.entries(t)}
        identifiers: dict[str, int] = {}
        for r in pending(self._connector, stored, listed):
            identifiers |= self._all_of(r.new)
            identifiers |= self._more(holes_of([r]))
        return identifiers

    def _all_of(self, entry: LedgerEntry) -> dict[str, int]:
        """The identifiers that store an entry, except those that already have the value."""
        name = self._name(*entry.topic_partition)
        unset = _facts(name, _UNKNOWN)
        facts = _facts(name, entry).items()
        changed = {n: v for n, v in facts if v != self._known(n, unset.get(n, 0))}
        return {**changed, name: entry.position, f"{name}:time": _now()}

    def started(self, entries: Iterable[LedgerEntry]) -> dict[str, int]:
        """The identifiers that enter entries where there are none."""
        return self._entered([e for e in entries if self.position(e.topic_partition) is None])

    def _entered(self, entries: Iterable[LedgerEntry]) -> dict[str, int]:
        identifiers: dict[str, int] = {}
        for e in entries:
            identifiers |= self._all_of(e)
            count = identifiers.get(self._name(e.topic), self._count(self._name(e.topic)))
            if e.partition >= count:
                identifiers[self._name(e.topic)] = e.partition + 1
        return identifiers

    def set(self, entries: Sequence[LedgerEntry], by: str, reason: str) -> dict[str, int]:
        """The identifiers that set positions by hand, see :func:`semel.core.ledger.set_by_hand`."""
        topics = sorted({e.topic for e in entries})
        stored = {e.topic_partition: e for t in topics for e in self.entries(t)}
        stored_holes = [h for t in topics for h in self.holes(t)]
        moved, holes = set_by_hand(stored, stored_holes, entries, by, reason)
        return self._entered(moved) | self._all_holes((e.topic_partition for e in entries), holes)

    def forget(self, topics: Collection[str], by: str) -> dict[str, int]:
        """The identifiers that remove the connector's entries."""
        stored = {e.topic_partition: e for t in topics for e in self.entries(t)}
        holes = [h for t in topics for h in self.holes(t)]
        partitions = {*stored, *(h.topic_partition for h in holes)}
        gone = dict.fromkeys((self._name(*tp) for tp in stored), _FORGOTTEN)
        return gone | self._all_holes(sorted(partitions), forgotten(stored, holes, by))


def _stored(name: str, hole: Hole) -> dict[str, int]:
    """The identifiers of one hole."""
    return {
        f"{name}:from": hole.from_offset,
        f"{name}:until": hole.until_offset,
        f"{name}:reason": _REASONS.index(hole.reason),
        f"{name}:time": int(datetime.fromisoformat(hole.at).timestamp() * 1000),
        **text_numbers(f"{name}:by", hole.by),
    }


def _facts(name: str, entry: LedgerEntry) -> dict[str, int]:
    """The identifiers of an entry's numbers and texts."""
    numbers = {f"{name}:{n}": getattr(entry, f) for f, n in _NUMBERS.items()}
    for f, n in _TEXTS.items():
        numbers |= text_numbers(f"{name}:{n}", getattr(entry, f))
    return numbers


def _is_text(name: str) -> bool:
    """Whether an identifier may be part of a text of an entry."""
    return any(f":{text}:" in name for text in _TEXTS.values())


def _utc(milliseconds: int) -> str:
    at = datetime.fromtimestamp(milliseconds / 1000, UTC)
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")


def _now() -> int:
    return int(time.time() * 1000)


def text_numbers(name: str, text: str) -> dict[str, int]:
    """The identifiers that hold a text, seven bytes in each; the last one is not full, which marks
    the end."""
    raw = text.encode()
    parts = [raw[at : at + _BYTES] for at in range(0, len(raw) + 1, _BYTES)]
    return {f"{name}:{n}": int.from_bytes(b"\x01" + part) for n, part in enumerate(parts)}


def text_of(name: str, number: Callable[[str], int | None]) -> str:
    """The text that identifiers hold; empty if there is none."""
    raw = b""
    for n in itertools.count():
        value = number(f"{name}:{n}")
        if value is None:
            return ""
        part = value.to_bytes(_BYTES + 1).lstrip(b"\x00")[1:]
        raw += part
        if len(part) < _BYTES:
            return raw.decode()
    raise AssertionError


# Whether the table still holds what the connector committed to it. RESTORE brings back the files of
# an older version, and a table can be replaced in place; both leave transaction identifiers as they
# are. So each commit of a connector also stores its own version and the table's id, and what others
# have done since is read from the table's log.

_RESTORE = "RESTORE"
_REPLACES = frozenset(
    {
        "CLONE",
        "CREATE OR REPLACE TABLE",
        "CREATE OR REPLACE TABLE AS SELECT",
        "REPLACE TABLE",
        "REPLACE TABLE AS SELECT",
    }
)


@dataclass(frozen=True, slots=True)
class Setback:
    """Why a table does not, or may not, hold a connector's last commit.

    ``said`` tells what happened; ``base`` is the version whose state the table went back to, if
    that is known; ``undo`` the last version before it happened.
    """

    said: str
    base: int | None = None
    undo: int | None = None

    def undone(self, what: str) -> str:
        """How to bring back what is gone."""
        if self.undo is None:
            return ""
        return f"To bring the {what} back, restore the table to version {self.undo}. "


def setback(
    committed: int,
    version: int,
    log: Mapping[int, Operation],
    seen: Mapping[int, Setback | None] | None = None,
) -> dict[int, Setback | None]:
    """What took the commit of version ``committed`` out of the table, for each version up to
    ``version``; None where nothing did, or where a second restore undid the first.

    ``seen`` is the answer for an earlier version: the log before it is not needed any more.
    """
    states: dict[int, Setback | None] = {committed: None, **(seen or {})}
    begin = max(states) + 1
    missing = [v for v in range(begin, version + 1) if v not in log]
    if missing:
        unknown = Setback(
            f"the log entry of version {missing[-1]} has been cleaned up, so nobody can tell "
            "whether the table was restored to an older version meanwhile"
        )
        return {**states, version: unknown}
    for at in range(begin, version + 1):
        states[at] = _after(log[at], at, committed, states)
    return states


def _after(
    operation: Operation, at: int, committed: int, states: Mapping[int, Setback | None]
) -> Setback | None:
    if operation.name in _REPLACES:
        return Setback(f"version {at} replaced the table ({operation.name})", undo=at - 1)
    if operation.name != _RESTORE:
        return states[at - 1]
    to = str(operation.parameters.get("version", ""))
    if not to.isdigit():
        moment = operation.parameters.get("timestamp") or operation.parameters.get("datetime")
        return Setback(f"version {at} restored the table to time {moment}", undo=at - 1)
    if int(to) >= committed:
        return states[int(to)]
    return Setback(f"version {at} restored the table to version {to}", int(to), at - 1)
