"""How far a partition is judged, what continues from there, and the file that keeps it for a
restart."""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from semel.audit.holes import FORMER
from semel.audit.referee import NONE, within
from semel.core.errors import ConfigError
from semel.core.ledger import SET_BACK, Hole, LedgerEntry, LogId, TopicPartition

_VERSION = 1


def too_early(ahead: np.ndarray, holes: Sequence[Hole]) -> np.ndarray:
    """Which rows at or above the position are there too early. Rows of a log that no longer exists
    may be there, however far the new one has been read, and rows that will be written again."""
    before = [h for h in holes if h.reason in (*FORMER, SET_BACK)]
    early: np.ndarray = ahead[~within(ahead, before)]
    return early


@dataclass(frozen=True, slots=True)
class Mark:
    """How far a topic-partition is judged with nothing left open. A restart begins here.

    ``start`` is the ledger's first position, and ``offset`` is where judging continues. ``read``
    records were read up to there by the ledger's count, and ``rowless`` of them have no row.
    ``cluster_id`` and ``topic_id`` name the log.
    """

    start: int
    offset: int
    read: int = 0
    rowless: int = 0
    cluster_id: str = ""
    topic_id: str = ""

    @property
    def log(self) -> LogId:
        return LogId(self.cluster_id, self.topic_id)


def begun(entry: LedgerEntry) -> Mark:
    """The mark where judging begins if nothing was judged before."""
    return Mark(entry.start_position, entry.start_position, 0, 0, *entry.log)


def rowless(entry: LedgerEntry, elsewhere: int = 0) -> int:
    """The number of records without a row here among those that the ledger counts as read."""
    return entry.records_filtered + entry.records_failed + elsewhere


def broken_off(entry: LedgerEntry, mark: Mark, at: int) -> str | None:
    """Why judging cannot continue from ``at`` with this entry of the ledger; None if it can."""
    cluster, topic = entry.log
    if mark.cluster_id and cluster and mark.cluster_id != cluster:
        return f"its Kafka cluster is {cluster}, but {mark.cluster_id} was judged before"
    if mark.topic_id and topic and mark.topic_id != topic:
        return "the topic was created again"
    if entry.position < at:
        return f"it is at {entry.position}, but {at} was judged. Was it moved back or restored?"
    if entry.start_position != mark.start:
        return f"it begins at {entry.start_position} instead of {mark.start}. Was it set by hand?"
    if entry.records_read < mark.read:
        return "its counts are lower than before. Was it moved back or restored?"
    return None


def owing(missing: int, budget: int) -> int:
    """The number of missing rows that nothing accounts for."""
    return max(0, missing - max(0, budget))


@dataclass(frozen=True, slots=True)
class MissingRecords:
    """Records without a row. Once the partitions in ``until`` are read up to these offsets, no
    other record can have replaced the row."""

    offsets: np.ndarray
    until: Mapping[TopicPartition, int]


@dataclass(slots=True)
class PartitionProgress:
    """Everything below ``at`` is compared, and below ``mark`` nothing is left open.

    ``records`` counts Kafka's records between the two. ``open`` holds missing rows that a later
    record may have replaced, and ``due`` those that none has.
    """

    mark: Mark
    at: int
    records: int = 0
    gaps: int = 0
    open: list[MissingRecords] = field(default_factory=list)
    due: np.ndarray = field(default_factory=NONE.copy)

    @classmethod
    def after(cls, mark: Mark) -> PartitionProgress:
        return cls(mark, mark.offset)

    def owed(self) -> np.ndarray:
        """The offsets of all missing rows."""
        return np.concatenate([*(m.offsets for m in self.open), self.due])

    def drop_replaced(self, replaced: np.ndarray, unsure: np.ndarray) -> int:
        """Drop the missing rows that later records have replaced or may have replaced. Returns the
        number of the latter."""
        unknown = 0
        remaining = []
        for missing in self.open:
            doubtful = np.isin(missing.offsets, unsure)
            unknown += int(doubtful.sum())
            kept = missing.offsets[~doubtful & ~np.isin(missing.offsets, replaced)]
            if len(kept):
                remaining.append(replace(missing, offsets=kept))
        self.open = remaining
        doubtful = np.isin(self.due, unsure)
        self.due = self.due[~doubtful & ~np.isin(self.due, replaced)]
        return unknown + int(doubtful.sum())

    def ripen(self, at: Mapping[TopicPartition, int]) -> None:
        """Make missing rows due once everything that may have replaced them is read."""
        remaining = []
        for missing in self.open:
            if all(at.get(tp, end) >= end for tp, end in missing.until.items()):
                self.due = np.concatenate([self.due, missing.offsets])
            else:
                remaining.append(missing)
        self.open = remaining

    def budget(self, entry: LedgerEntry, dead: np.ndarray, elsewhere: int = 0) -> int:
        """The number of records between the mark and the ledger's position that may have no row.
        ``dead`` holds the offsets of dead letters, which do not count because they are known."""
        named = int(((dead >= self.mark.offset) & (dead < entry.position)).sum())
        return max(0, rowless(entry, elsewhere) - self.mark.rowless - named)

    def settle(
        self, entry: LedgerEntry, dead: np.ndarray, elsewhere: int = 0
    ) -> tuple[int, np.ndarray]:
        """Return how many missing rows are lost, and among which offsets. Move the mark if
        nothing is open. Below the ledger's position, the number of records without a row is known
        only if it is zero."""
        budget = self.budget(entry, dead, elsewhere)
        lost = owing(len(self.due), budget)
        if lost:
            return lost, self.due
        if self.open:
            return 0, NONE
        if self.at == entry.position:
            read, without = entry.records_read, rowless(entry, elsewhere)
        elif not budget:
            named = int(((dead >= self.mark.offset) & (dead < self.at)).sum())
            read, without = self.mark.read, self.mark.rowless + named
        else:
            return 0, NONE
        log = entry.log.completed(self.mark.log)  # a ledger may learn it later
        self.mark = Mark(self.mark.start, self.at, read, without, *log)
        self.records, self.gaps, self.due = 0, 0, NONE.copy()
        return 0, NONE


@dataclass(frozen=True, slots=True)
class FollowState:
    """The marks of all partitions, and the counts ``records``, ``unknown`` and ``expired`` up to
    the offsets in ``counted``.

    ``connector`` and ``target`` say whose they are. ``surplus`` holds, for each topic, how many
    more rows it has than the ledger counts.
    """

    connector: str
    target: str
    marks: Mapping[TopicPartition, Mark] = field(default_factory=dict)
    records: int = 0
    unknown: int = 0
    expired: int = 0
    surplus: Mapping[str, int] = field(default_factory=dict)
    counted: Mapping[TopicPartition, int] = field(default_factory=dict)


def default_path(connector: str, target: str) -> Path:
    """The file for the state of a connector with this target."""
    root = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    plain = re.sub(r"[^\w.-]", "_", connector)[:60]
    digest = hashlib.blake2s(f"{connector}\n{target}".encode(), digest_size=6).hexdigest()
    return root / "semel" / f"{plain}-{digest}.json"


def load(path: Path, connector: str, target: str) -> FollowState:
    """The state in a file, or an empty one if there is no file.

    Raises:
        ConfigError: the file cannot be read or belongs to another connector or target.
    """
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        return FollowState(connector, target)
    except OSError as error:
        raise ConfigError(f"--state {path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise _damaged(path, error) from None
    if isinstance(content, dict) and isinstance(content.get("version"), int):
        if content["version"] > _VERSION:
            raise ConfigError(
                f"--state {path} was written by a newer version of semel (format "
                f"{content['version']}; this one reads {_VERSION}). Upgrade semel, or name another "
                "file"
            )
    else:
        raise _damaged(path, "it has no version")
    try:
        state = _parsed(content)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise _damaged(path, f"{type(error).__name__}: {error}") from None
    for what, theirs, mine in (
        ("connector", state.connector, connector),
        ("target", state.target, target),
    ):
        if theirs != mine:
            raise ConfigError(
                f"--state {path} belongs to {what} {theirs}, not to {mine}. Name another file, or "
                "delete it to judge everything again"
            )
    return state


def save(path: Path, state: FollowState) -> None:
    """Replace the file with one that holds this state.

    Raises:
        ConfigError: it cannot be written.
    """
    marks: dict[str, dict[str, Any]] = {}
    for tp, mark in sorted(state.marks.items()):
        facts = {**asdict(mark), "counted": state.counted.get(tp, 0)}
        marks.setdefault(tp.topic, {})[str(tp.partition)] = facts
    content = {
        "version": _VERSION,
        "connector": state.connector,
        "target": state.target,
        "records": state.records,
        "unknown": state.unknown,
        "expired": state.expired,
        "surplus": dict(state.surplus),
        "topics": marks,
    }
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "w") as file:
            json.dump(content, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except OSError as error:
        if temporary is not None:
            with suppress(OSError):
                Path(temporary).unlink()
        raise ConfigError(f"--state {path} cannot be written: {error.strerror}") from None


def _parsed(content: Mapping[str, Any]) -> FollowState:
    parts = {
        TopicPartition(topic, int(partition)): facts
        for topic, partitions in content["topics"].items()
        for partition, facts in partitions.items()
    }
    return FollowState(
        str(content["connector"]),
        str(content["target"]),
        {tp: _mark(facts) for tp, facts in parts.items()},
        _number(content["records"]),
        _number(content["unknown"]),
        _number(content["expired"]),
        {str(t): _number(n, least=None) for t, n in content["surplus"].items()},
        {tp: _number(facts["counted"]) for tp, facts in parts.items()},
    )


def _mark(facts: Mapping[str, Any]) -> Mark:
    numbers = {n: _number(facts[n]) for n in ("start", "offset", "read", "rowless")}
    return Mark(**numbers, cluster_id=str(facts["cluster_id"]), topic_id=str(facts["topic_id"]))


def _number(value: object, least: int | None = 0) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{value!r} is not a number")
    if least is not None and value < least:
        raise ValueError(f"{value} is negative")
    return value


def _damaged(path: Path, why: object) -> ConfigError:
    return ConfigError(
        f"--state {path} is not a state of semel audit --follow ({why}). Name another file, or "
        "delete it to judge everything again"
    )
