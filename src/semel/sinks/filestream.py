"""FileStreamSink: one line for each record, at the end of one file, as Kafka Connect's connector
writes them.

Its ledger is beside the file, ``<file>.semel-ledger``. A commit adds lines to the file, then
replaces the ledger: from then on the lines count, with the positions and the length that it holds.
What a dead process has left beyond that length is cut off by the next commit. Lines stay if they
were there before the ledger, or if another program has added them after it took the connector over.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.compute as pc

from semel.config import LOW, ConnectorConfig, absolute, key, read
from semel.core.errors import ServiceError, Unavailable, misconfigured
from semel.core.failpoints import hit
from semel.core.ledger import (
    LEDGER_FORMAT,
    Hole,
    LedgerEntry,
    Rebase,
    TopicPartition,
    check_format,
    holes_of,
    now,
    rebased,
)
from semel.core.locks import alone
from semel.core.records import OFFSET, PARTITION, Commit, Records, by_target, one_array
from semel.sinks.base import Capabilities, Snapshot
from semel.sinks.transactional import TransactionalSink

CLASSES = (
    "org.apache.kafka.connect.file.FileStreamSinkConnector",
    "FileStreamSinkConnector",
    "FileStreamSink",
)
_LEDGER = ".semel-ledger"
_NULL = b"null"
_BLOCK = 8 * 1024 * 1024


@dataclass(frozen=True)
class FileStreamSinkConfig:
    """The file that takes the records."""

    file: str = key(
        "file", doc="The file to write to; it is created if it is missing.", group="File"
    )
    directory: str = key(
        "file.directory",
        "",
        "The directory that a relative file is in. If empty, the one in which semel was started.",
        importance=LOW,
    )


@dataclass
class _State:
    """What the ledger says about the file, and the positions and holes of each connector that
    writes to it.

    ``length`` and ``checksum`` (CRC-32) are those of its lines, ``lines`` counts them by topic, and
    ``inode`` tells it from a file that has taken its place.
    """

    version: int = LEDGER_FORMAT
    length: int = 0
    checksum: int = 0
    inode: int = 0
    lines: dict[str, int] = field(default_factory=dict)
    connectors: dict[str, list[dict[str, object]]] = field(default_factory=dict)
    holes: dict[str, list[dict[str, object]]] = field(default_factory=dict)


@dataclass
class _Transaction:
    state: _State
    added: list[pa.Buffer] = field(default_factory=list)


class FileStreamSink(TransactionalSink[_Transaction]):
    """See :class:`~semel.sinks.transactional.TransactionalSink`."""

    section = FileStreamSinkConfig
    local = True
    address = "file"

    capabilities = Capabilities(
        engines=frozenset({"direct"}),
        ignores_topics=True,
        uses_key=False,
        takes_text=True,
        writes_documents=True,
        takes_tombstones=True,
        traces=False,
        any_order=True,
    )

    def __init__(self, connector: ConnectorConfig) -> None:
        super().__init__(connector)
        raw = connector.originals
        self._config = read(FileStreamSinkConfig, raw)
        self._path = Path(self._config.directory or ".", self._config.file).absolute()
        self._ledger = self._path.with_name(self._path.name + _LEDGER)
        master = raw.get("spark.master", "local")
        if not master.startswith("local"):
            raise misconfigured(
                "file",
                f"file={self._config.file} is on one machine, and spark.master={master} runs tasks "
                "on others. Set spark.master=local, or write files with connector.class=files",
            )

    def describe(self) -> dict[str, str]:
        return {
            "writes": f"{self._path}, a line for each record",
            "ledger": f"{self._ledger}, which also holds the length of the file",
        }

    @classmethod
    def normalized(cls, raw: Mapping[str, str]) -> Mapping[str, str]:
        if raw.get("file.directory", "").strip():
            return absolute(raw, "file.directory")
        return absolute(raw, "file")

    @property
    def _where(self) -> str:
        return f"connector {self._connector.name}: file={self._path}"

    # Transactions

    @contextmanager
    def transaction(self, *, writing: bool) -> Iterator[_Transaction]:
        with self._translating():
            if not writing:
                yield _Transaction(self._state())
                return
            with self._locked():
                if not self._ledger.exists() and self._path.exists():
                    self._replace(self._adopting(_State()))  # before there are lines of our own
                transaction = _Transaction(self._state())
                yield transaction
                if transaction.added:
                    self._append(transaction)
                hit("filestream.appended")
                self._replace(transaction.state)

    @contextmanager
    def _translating(self) -> Iterator[None]:
        try:
            yield
        except (PermissionError, IsADirectoryError, FileNotFoundError, NotADirectoryError) as error:
            raise ServiceError(
                f"{self._where}: {error.filename}: {error.strerror}. Check file, and that its "
                "directory exists and can be written to"
            ) from None
        except OSError as error:  # a disk that is full, say
            raise Unavailable(f"{self._where}: {error.strerror}") from None

    def _locked(self) -> AbstractContextManager[None]:
        """The lock for writing."""
        path = self._path.with_name(self._ledger.name + ".lock")
        return alone(path, self._connector.store_timeout_ms / 1000, self._where)

    def _state(self) -> _State:
        try:
            facts = json.loads(self._ledger.read_bytes())
            what = f"{self._where}: its ledger {self._ledger}"
            check_format(what, facts["version"], LEDGER_FORMAT)
            return _State(**facts)
        except FileNotFoundError:
            return _State()
        except (ValueError, TypeError, KeyError) as error:
            raise ServiceError(
                f"{self._where}: its ledger {self._ledger} is damaged: {error}"
            ) from None

    def _append(self, transaction: _Transaction) -> None:
        state = transaction.state
        with self._path.open("r+b" if self._path.exists() else "w+b") as file:
            self._check(file, state)
            if os.fstat(file.fileno()).st_size > state.length:
                file.truncate(state.length)
            file.seek(state.length)
            for lines in transaction.added:
                file.write(lines)
                state.checksum = zlib.crc32(lines, state.checksum)
                state.length += lines.size
            file.flush()
            os.fsync(file.fileno())
            state.inode = os.fstat(file.fileno()).st_ino

    def _adopting(self, state: _State) -> _State:
        """The state once all lines that the file has now are part of it."""
        with self._path.open("rb") as file:
            self._check(file, state)
            facts = os.fstat(file.fileno())
            checksum = _checksum(file, facts.st_size)
        return replace(state, length=facts.st_size, checksum=checksum, inode=facts.st_ino)

    def _check(self, file: BinaryIO, state: _State) -> None:
        """Raises ServiceError: this is not the file that the ledger knows."""
        facts = os.fstat(file.fileno())
        same_file = not state.length or facts.st_ino == state.inode
        if facts.st_size >= state.length and (
            same_file or _checksum(file, state.length) == state.checksum
        ):
            return
        what = (
            f"has {facts.st_size} bytes, and the ledger knows of {state.length}"
            if facts.st_size < state.length
            else "has taken the place of the one that the ledger knows, and begins differently"
        )
        raise ServiceError(
            f"{self._where} {what}: lines are missing. Put the file back; or, to write to a new "
            f"one, remove {self._ledger} and run semel offsets reset with the connector's file"
        )

    def _replace(self, state: _State) -> None:
        new = self._ledger.with_name(self._ledger.name + ".new")
        with new.open("w") as file:
            json.dump(asdict(state), file)
            file.flush()
            os.fsync(file.fileno())
        new.replace(self._ledger)
        directory = os.open(self._ledger.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    # The ledger

    def read_entries(self, transaction: _Transaction) -> Mapping[TopicPartition, LedgerEntry]:
        stored = transaction.state.connectors.get(self._connector.name, ())
        entries = [LedgerEntry(**facts) for facts in stored]  # type: ignore[arg-type]
        return {entry.topic_partition: entry for entry in entries}

    def write_entries(self, transaction: _Transaction, entries: Collection[LedgerEntry]) -> None:
        merged = {**self.read_entries(transaction), **{e.topic_partition: e for e in entries}}
        facts = [asdict(merged[tp]) for tp in sorted(merged)]
        transaction.state.connectors[self._connector.name] = facts

    def adopt(self, reached: Sequence[Rebase]) -> None:
        with self.transaction(writing=True) as transaction:
            if self._path.exists():
                transaction.state = self._adopting(transaction.state)
            self.write_entries(transaction, rebased(reached, now()))
            self._record(transaction, holes_of(reached))

    def forget_entries(self, transaction: _Transaction) -> None:
        transaction.state.connectors.pop(self._connector.name, None)

    def read_holes(self, transaction: _Transaction) -> list[Hole]:
        stored = transaction.state.holes.get(self._connector.name, ())
        return [Hole(**facts) for facts in stored]  # type: ignore[arg-type]

    def write_holes(self, transaction: _Transaction, holes: Collection[Hole]) -> None:
        transaction.state.holes.pop(self._connector.name, None)
        if holes:
            transaction.state.holes[self._connector.name] = [asdict(hole) for hole in holes]

    # Lines

    def put(self, transaction: _Transaction, commit: Commit) -> None:
        lines = transaction.state.lines
        for parts in by_target(commit.records).values():
            transaction.added.append(_lines(parts))
            topic = parts[0].topic
            lines[topic] = lines.get(topic, 0) + sum(records.count for records in parts)

    # For the audit

    def snapshot(self, topics: Collection[str]) -> Snapshot:
        with self._translating(), self._locked():
            state = self._state()
            if state.length:
                with self._path.open("rb") as file:
                    self._check(file, state)
                    changed = _checksum(file, state.length) != state.checksum
                if changed:
                    raise ServiceError(f"{self._where}: another program has changed its lines")
        seen = _Transaction(state)
        entries = self.read_entries(seen)
        return Snapshot(
            [entries[tp] for tp in sorted(entries)],
            self.read_holes(seen),
            rows={topic: state.lines.get(topic, 0) for topic in topics},
            targets={topic: topic for topic in topics},
        )


def _lines(parts: Sequence[Records]) -> pa.Buffer:
    """Texts as lines, in the order of their offsets; a tombstone is ``null``, as in Java."""
    kind = pa.large_binary()
    tables = []
    for part in parts:
        texts = part.rows.column("value").cast(kind)
        tables.append(part.rows.select([PARTITION, OFFSET]).append_column("value", texts))
        if part.tombstones is not None and part.tombstones.num_rows:
            nulls = part.tombstones.select([PARTITION, OFFSET])
            tables.append(nulls.append_column("value", pa.nulls(nulls.num_rows, kind)))
    values = pa.concat_tables(tables)
    if len(tables) > 1:
        values = values.sort_by([(PARTITION, "ascending"), (OFFSET, "ascending")])
    bytes_ = one_array(values.column("value"))
    nothing, end = (pa.scalar(text, kind) for text in (b"", b"\n"))
    lines = pc.binary_join_element_wise(pc.fill_null(bytes_, _NULL), nothing, end)
    return lines.buffers()[2] if len(lines) else pa.py_buffer(b"")


def _checksum(file: BinaryIO, length: int) -> int:
    file.seek(0)
    checksum = 0
    while length and (block := file.read(min(_BLOCK, length))):
        checksum = zlib.crc32(block, checksum)
        length -= len(block)
    return checksum
