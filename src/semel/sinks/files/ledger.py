"""The ledger beside the files: a log of small entries, each created exclusively.

``_semel/<connector>/<20 digits>.ledger`` holds everything after that commit: all positions with
running counts, and the files that the commit makes visible. Creating entry N+1 is the commit: it is
the compare-and-set on the positions of entry N, and fails if another writer was there first. Then
the files, complete but hidden until now, get their final names. The next writer finishes the newest
entry before it commits, so a crash in between delays files but loses none, and at most one entry is
ever unfinished.

Old entries are deleted. A writer that slept until "its" entry had been created and deleted could
create it a second time. It notices, because the newest entry is then so far ahead that its own must
have been deleted, and removes it before a file becomes visible. So nothing depends on how long a
writer slept.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from urllib.parse import quote

from semel.core.errors import LedgerConflict, ServiceError
from semel.core.failpoints import hit
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
    rebased,
    set_by_hand,
)
from semel.storage.store import Store, at_once

log = logging.getLogger(__name__)

ROOT = "_semel"
_ENTRY = re.compile(r"(\d{20})\.ledger")
_HALF = re.compile(r"\.[0-9a-f]{32}")
"""A file that the store writes beside the ledger and then turns into an entry in one step."""
_KEPT = 20
"""How many entries are kept, for people who want to see what happened; one would be enough."""


class EntryTaken(Exception):
    """Another writer has created the next entry; nothing was committed."""


@dataclass(frozen=True, slots=True)
class HiddenFile:
    """A complete hidden file, and the name by which it becomes visible."""

    staged: str
    target: str
    rows: int
    size: int


@dataclass(frozen=True, slots=True)
class LedgerState:
    """The contents of one ledger entry; sequence 0 means that there is no ledger yet."""

    connector: str
    sequence: int = 0
    entries: Mapping[TopicPartition, LedgerEntry] = field(default_factory=dict)
    holes: tuple[Hole, ...] = ()
    files: tuple[HiddenFile, ...] = ()

    def judge(self, advances: Sequence[Advance]) -> Outcome:
        """Apply the ledger rule.

        Raises:
            LedgerConflict: see :func:`semel.core.ledger.judge`.
        """
        return judge(self.connector, self.entries, advances)

    def after(self, advances: Sequence[Advance], files: Sequence[HiddenFile]) -> LedgerState:
        """The next entry."""
        now = _now()
        moved = dict(self.entries)
        for a in advances:
            tp = a.range.topic_partition
            moved[tp] = moved[tp].after(a, now)
        return replace(
            self,
            sequence=self.sequence + 1,
            entries=moved,
            holes=(*self.holes, *holes_of(advances)),
            files=tuple(files),
        )

    def started(self, entries: Iterable[LedgerEntry]) -> LedgerState:
        """The next entry, with first positions where there are none."""
        now = _now()
        new = {e.topic_partition: replace(e, updated_at=now) for e in entries}
        return self._next({**new, **self.entries}, self.holes)

    def set(self, entries: Iterable[LedgerEntry], by: str, reason: str) -> LedgerState:
        """The next entry, see :func:`semel.core.ledger.set_by_hand`."""
        new, holes = set_by_hand(self.entries, self.holes, entries, by, reason)
        return self._next({**self.entries, **{e.topic_partition: e for e in new}}, holes)

    def rebased(self, rebases: Sequence[Rebase]) -> LedgerState:
        """The next entry, with some entries replaced, and the holes that this leaves."""
        new = {e.topic_partition: e for e in rebased(rebases, _now())}
        return self._next({**self.entries, **new}, (*self.holes, *holes_of(rebases)))

    def forgotten(self, by: str) -> LedgerState:
        """The next entry, without positions."""
        return self._next({}, forgotten(self.entries, self.holes, by))

    def _next(
        self, entries: Mapping[TopicPartition, LedgerEntry], holes: Iterable[Hole]
    ) -> LedgerState:
        return LedgerState(self.connector, self.sequence + 1, entries, tuple(holes))

    def text(self) -> bytes:
        facts = {
            "format": LEDGER_FORMAT,
            "connector": self.connector,
            "sequence": self.sequence,
            "time": _now(),
            "positions": [asdict(e) for _, e in sorted(self.entries.items())],
            "holes": [asdict(h) for h in self.holes],
            "files": [asdict(f) for f in self.files],
        }
        return json.dumps(facts, indent=1).encode()


def _read(name: str, content: bytes) -> LedgerState:
    try:
        facts = json.loads(content)
        check_format(name, facts["format"], LEDGER_FORMAT)
        entries = [LedgerEntry(**e) for e in facts["positions"]]
        return LedgerState(
            facts["connector"],
            int(facts["sequence"]),
            {e.topic_partition: e for e in entries},
            tuple(Hole(**h) for h in facts["holes"]),
            tuple(HiddenFile(**f) for f in facts["files"]),
        )
    except (ValueError, KeyError, TypeError):
        raise ServiceError(
            f"{name} is not a ledger entry. Was it changed by hand? Restore it, or delete it to "
            "go back to the one before"
        ) from None


class Ledger:
    """The log of one connector, and the hidden folder where its files wait."""

    def __init__(self, store: Store, connector: str, folder: str | None = None) -> None:
        self._store = store
        self._connector = connector
        self.folder = f"{ROOT}/{folder or folder_of(connector)}"
        self._newest = LedgerState(connector)
        self._finished = 0

    @property
    def staging(self) -> str:
        return f"{self.folder}/staged"

    def _name(self, sequence: int) -> str:
        return f"{self.folder}/{sequence:020}.ledger"

    def _sequences(self) -> list[int]:
        matches = map(_ENTRY.fullmatch, self._store.names(self.folder))
        return sorted(int(m[1]) for m in matches if m)

    def sequence(self) -> int:
        """The number of the newest entry."""
        return max(self._sequences(), default=0)

    def newest(self) -> LedgerState:
        """The newest entry; its files may not all have their final names yet."""
        while True:
            newest = self.sequence()
            if newest == self._newest.sequence:
                return self._newest
            if newest == 0:
                self._newest = LedgerState(self._connector)
                return self._newest
            with contextlib.suppress(FileNotFoundError):  # others have moved on and deleted it
                self._newest = self._entry(newest)
                return self._newest

    def _entry(self, sequence: int) -> LedgerState:
        name = self._name(sequence)
        return _read(f"{self._store.where}/{name}", self._store.read(name))

    def since(self, sequence: int) -> set[str] | None:
        """The files that entries after this one have made visible, or are about to; None if some of
        these entries are gone already."""
        there = [n for n in self._sequences() if n > sequence]
        if there != list(range(sequence + 1, sequence + 1 + len(there))):
            return None
        files: set[str] = set()
        for number in there:
            try:
                files |= {f.target for f in self._entry(number).files}
            except FileNotFoundError:
                return None
        return files

    def finish(self, state: LedgerState) -> None:
        """Give the files of an entry their final names; files that have them already are left
        alone."""
        if self._finished != state.sequence:
            for file in self.land(state.files):
                log.warning("%s has been removed by others", file.target)
            self._finished = state.sequence

    def land(self, files: Sequence[HiddenFile]) -> list[HiddenFile]:
        """Give files their final names; returns those that are in neither place."""
        landed = at_once(self._landed, range(len(files)), files)
        return [f for f, there in zip(files, landed, strict=True) if not there]

    def _landed(self, number: int, file: HiddenFile) -> bool:
        if number:
            hit("files.between_renames")
        moved = self._store.move(file.staged, file.target, file.size)
        return moved or self._store.exists(file.target)

    def missing(self, files: Sequence[HiddenFile]) -> list[HiddenFile]:
        """The files that are not waiting, complete, where their writer put them."""
        sizes = at_once(self._store.size, [f.staged for f in files])
        return [f for f, size in zip(files, sizes, strict=True) if size != f.size]

    def append(self, state: LedgerState) -> None:
        """Commit: create the entry. The one before must be finished; call :meth:`finish` next.

        Raises:
            EntryTaken: nothing was committed.
            LedgerConflict: nothing was committed; the ledger is far beyond this entry.
            TransientError: whether it was committed is not known.
        """
        name = self._name(state.sequence)
        try:
            self._store.create(name, state.text())
        except FileExistsError:
            raise EntryTaken from None
        there = self._sequences()
        since = [n for n in there if n >= state.sequence]
        whole = since == list(range(state.sequence, state.sequence + len(since)))
        if not whole or there[-1] - state.sequence >= _KEPT:
            self._store.delete([name])
            raise LedgerConflict(
                f"connector {self._connector}: the ledger is at entry {there[-1]}, far beyond "
                f"entry {state.sequence} that this run wanted to make. Nothing was written. Does "
                "another run of this connector write too?"
            )
        self._newest = state
        self._store.delete([self._name(n) for n in there if n <= state.sequence - _KEPT])

    def clean(self) -> None:
        """Delete files that were staged and will never be committed.

        A staged file can be committed only by the entry after the one that was newest when the file
        was begun; so files that were begun before the newest entry are garbage, however young.

        So are unfinished entries: a writer that still needs one finds it gone and
        tries again.
        """
        state = self.newest()
        named = {f.staged for f in state.files}
        waiting = {f"{self.staging}/{n}": n for n in self._store.names(self.staging)}
        stale = [
            path
            for path, name in waiting.items()
            if path not in named and begun_at(name) < state.sequence
        ]
        halves = [n for n in self._store.names(self.folder) if _HALF.fullmatch(n)]
        self._store.delete([*stale, *(f"{self.folder}/{n}" for n in halves)])


def staged_name(sequence: int, unique: str) -> str:
    """The name of a staged file, without a format's extension, so that no glob matches it."""
    return f"{sequence:020}-{unique}"


def begun_at(name: str) -> int:
    """The newest entry when a staged file was begun."""
    first = name.rpartition("/")[2].partition("-")[0]
    return int(first) if first.isdigit() else 0


def folder_of(name: str) -> str:
    """A name as one path component that readers do not treat as hidden. Different names give
    different components."""
    text = quote(name, safe="")
    return f"%{ord(text[0]):02X}{text[1:]}" if text[0] in "._" else text


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
