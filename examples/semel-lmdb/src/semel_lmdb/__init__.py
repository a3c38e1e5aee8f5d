"""LMDB as a sink of semel: the last value of each key, and the ledger, in one transaction."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.config import ConnectorConfig, absolute, key, read
from semel.core.errors import ConfigError, ServiceError, TransientError
from semel.core.ledger import LedgerEntry, TopicPartition
from semel.core.records import KEY, OFFSET, PARTITION, Commit, Records, RowsRejected, rejected
from semel.sinks.base import Capabilities, Snapshot
from semel.sinks.changes import last_by_key
from semel.sinks.protocols import Drillable
from semel.sinks.transactional import TransactionalSink

LEDGER = "semel:offsets"
PLACES = "semel:places:"
"""Databases in addition to those of the topics, whose names contain no colon."""
_PLACE = np.dtype([("partition", "<i4"), ("offset", "<i8")])
_DATABASES = 1024
AS_THEY_COME = {"key.converter": "ByteArrayConverter", "value.converter": "ByteArrayConverter"}


@dataclass(frozen=True)
class LmdbConfig:
    """The sink's own keys."""

    path: str = key("lmdb.path", doc="Directory of the environment; made if it is missing.")
    map_size: int = key("lmdb.map.size", 1 << 30, "Maximum size in bytes.", at_least=1 << 16)


@functools.cache
def _environment(path: str, map_size: int, _process: int) -> lmdb.Environment:
    """The environment; a process may open it once, and must not take it from its parent."""
    Path(path).mkdir(parents=True, exist_ok=True)
    environment = lmdb.open(path, map_size=map_size, max_dbs=_DATABASES)
    environment.reader_check()  # forget readers that were killed
    return environment


class LmdbSink(TransactionalSink[lmdb.Transaction], Drillable):
    """See :class:`~semel.sinks.transactional.TransactionalSink`."""

    section = LmdbConfig
    defaults = AS_THEY_COME

    def __init__(self, connector: ConnectorConfig) -> None:
        super().__init__(connector)
        self._config = read(LmdbConfig, connector.originals)

    capabilities = Capabilities(
        engines=frozenset({"direct"}), takes_bytes=True, takes_tombstones=True, replaces=True
    )

    def describe(self) -> dict[str, str]:
        return {
            "writes": f"LMDB in {self._config.path}, a database for each topic",
            "ledger": f"database {LEDGER} there",
        }

    # Transactions

    def _open(self) -> lmdb.Environment:
        try:
            return _environment(self._config.path, self._config.map_size, os.getpid())
        except (OSError, lmdb.Error) as error:
            raise ServiceError(f"{self._where}: {error}") from None

    @property
    def _where(self) -> str:
        return f"connector {self._connector.name}: LMDB in {self._config.path}"

    @contextmanager
    def transaction(self, *, writing: bool) -> Iterator[lmdb.Transaction]:
        environment = self._open()
        try:
            with environment.begin(write=writing) as transaction:  # writers wait for each other
                yield transaction
        except lmdb.MapFullError:
            raise ServiceError(f"{self._where} is full: raise lmdb.map.size") from None
        except lmdb.Error as error:
            raise TransientError(f"{self._where}: {error}") from None

    def _database(self, transaction: lmdb.Transaction, name: str) -> Any:
        """A named database; None if a reader finds that it is not there yet."""
        try:
            return self._open().open_db(name.encode(), txn=transaction)
        except (lmdb.NotFoundError, lmdb.ReadonlyError):
            return None

    # The ledger

    def read_entries(self, transaction: lmdb.Transaction) -> Mapping[TopicPartition, LedgerEntry]:
        database = self._database(transaction, LEDGER)
        if database is None:
            return {}
        found = [
            LedgerEntry(**json.loads(text))
            for name, text in transaction.cursor(database)
            if json.loads(name)[0] == self._connector.name
        ]
        return {entry.topic_partition: entry for entry in found}

    def write_entries(
        self, transaction: lmdb.Transaction, entries: Collection[LedgerEntry]
    ) -> None:
        database = self._database(transaction, LEDGER)
        for entry in entries:
            name = self._name(entry.topic_partition)
            transaction.put(name, json.dumps(asdict(entry)).encode(), db=database)

    def forget_entries(self, transaction: lmdb.Transaction) -> None:
        database = self._database(transaction, LEDGER)
        for tp in self.read_entries(transaction):
            transaction.delete(self._name(tp), db=database)

    def _name(self, tp: TopicPartition) -> bytes:
        return json.dumps([self._connector.name, *tp]).encode()

    # Rows

    def put(self, transaction: lmdb.Transaction, commit: Commit) -> None:
        for records in commit.records:
            self._check(records)
            tombstones, rows = last_by_key(records)
            keys = rows.column(KEY).to_pylist()
            gone = tombstones.column(KEY).to_pylist()
            written = {records.topic: rows.column("value").to_pylist()}
            if self._connector.provenance:
                written[PLACES + records.topic] = _places(rows)
            for name, values in written.items():
                database = self._database(transaction, name)
                for one in gone:
                    transaction.delete(one, db=database)
                transaction.cursor(database).putmulti(zip(keys, values, strict=True))

    def _check(self, records: Records) -> None:
        """Raises RowsRejected: keys that LMDB does not take."""
        columns = {f.name: f.type for f in records.rows.schema}
        if any(columns.get(name) != pa.binary() for name in (KEY, "value")):
            raise ConfigError(
                f"{self._where} takes bytes: let the transform return them in a column named "
                "value, and set key.converter=ByteArrayConverter"
            )
        longest = self._open().max_key_size()
        bad = []
        for source in filter(None, (records.rows, records.tombstones)):
            size = pc.fill_null(pc.binary_length(source.column(KEY)), 0)
            for i in pc.indices_nonzero(pc.or_(pc.equal(size, 0), pc.greater(size, longest))):
                wanted = f"a key must have 1 to {longest} bytes, not {size[i.as_py()]}"
                bad.append(rejected(source, i.as_py(), wanted))
        if bad:
            raise RowsRejected(bad)

    # For the audit

    def snapshot(self, topics: Collection[str]) -> Snapshot:
        records, rows = {}, {}
        with self.transaction(writing=False) as transaction:
            for topic in topics:
                database = self._database(transaction, topic)
                rows[topic] = transaction.stat(database)["entries"] if database is not None else 0
                places = self._database(transaction, PLACES + topic)
                if places is not None and self._connector.provenance:
                    packed = b"".join(v for _, v in transaction.cursor(places))
                    found = np.frombuffer(packed, _PLACE)
                    records[topic] = pa.table({n: found[n] for n in _PLACE.names})
            entries = self.read_entries(transaction)
        in_order = [entries[tp] for tp in sorted(entries)]
        return Snapshot(in_order, records=records, rows=rows, targets={t: t for t in topics})

    @classmethod
    def normalized(cls, raw: Mapping[str, str]) -> Mapping[str, str]:
        return absolute(raw, "lmdb.path")

    @classmethod
    def drilled(cls, directory: Path) -> Mapping[str, str]:
        return {"lmdb.path": str(directory / "lmdb")}


def _places(rows: pa.Table) -> list[bytes]:
    """Where each row comes from, packed."""
    packed = np.empty(rows.num_rows, _PLACE)
    packed["partition"], packed["offset"] = rows.column(PARTITION), rows.column(OFFSET)
    buffer = pa.py_buffer(packed.tobytes())
    kind = pa.binary(_PLACE.itemsize)
    return pa.FixedSizeBinaryArray.from_buffers(kind, len(packed), [None, buffer]).to_pylist()
