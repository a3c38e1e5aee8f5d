"""The checkpoint of a query over streams, and whether it and the ledger have come equally far.

Spark keeps the state of a query in its checkpoint, batch by batch: it notes the offsets of a batch
before the batch begins, and that it is done after ``foreachBatch`` has returned. The rows and the
positions are committed in between. So the checkpoint is in step with the ledger, or exactly one
batch behind: then the process died between the two commits, and Spark runs that batch again, for
its state. Its rows are a replay by the ledger. Any other difference means that one of the two was
lost, restored or replaced.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from semel.config import ConnectorConfig
from semel.core.errors import ConfigError, ServiceError
from semel.core.ledger import LedgerEntry, TopicPartition

_NOTES = "semel.json"
ANEW = (
    "empty the target, run semel offsets reset with the connector's file, and set "
    "checkpoint.location to a new directory"
)
"""How to begin a query anew."""
_ANEW = f"To begin anew, with the first records that Kafka has, {ANEW}"
_WITHOUT_RENAME = frozenset({"gs", "oss", "s3", "s3a", "s3n"})
"""The schemes of object stores that rename by copying."""
_NONE = "-"
"""What Spark writes for a source that has no offsets yet."""


@dataclass(frozen=True, slots=True)
class CheckpointState:
    """What a checkpoint holds: the query's id, empty if there is no query yet, the last batch that
    has begun, the last one that is done (-1 if there is none), and semel's notes about it."""

    id: str = ""
    begun: int = -1
    done: int = -1
    notes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def next(self) -> int:
        """The batch that Spark runs next, perhaps again."""
        return self.done + 1


def caution(connector: ConnectorConfig) -> str | None:
    """What to say before a run with this checkpoint; None if nothing."""
    if urlsplit(connector.checkpoint_location).scheme not in _WITHOUT_RENAME:
        return None
    return (
        f"connector {connector.name}: checkpoint.location={connector.checkpoint_location} is in an "
        "object store, where a second driver may overwrite the state, although the ledger rejects "
        "its rows. Make sure that only one driver runs at a time, or use HDFS"
    )


class Checkpoint:
    """The directory ``checkpoint.location``, in whatever file system it is."""

    def __init__(self, spark: SparkSession, connector: ConnectorConfig) -> None:
        session: Any = spark
        self._jvm = session._jvm
        self._connector = connector
        self.location = connector.checkpoint_location
        try:
            self._root = self._jvm.org.apache.hadoop.fs.Path(self.location)
            conf = session._jsparkSession.sessionState().newHadoopConf()
            self._files = self._root.getFileSystem(conf)
        except Py4JJavaError as error:
            raise self._error(error) from None

    def read(self) -> CheckpointState:
        """What it holds now.

        Raises:
            ServiceError: it cannot be read.
        """
        try:
            id_ = json.loads(self._text("metadata") or '{"id": ""}')["id"]
            return CheckpointState(id_, self._last("offsets"), self._last("commits"), self._notes())
        except (ValueError, KeyError, TypeError) as error:
            raise ServiceError(
                f"connector {self._connector.name}: checkpoint.location={self.location} holds no "
                f"checkpoint that can be read: {error}"
            ) from None

    def begin(self) -> str:
        """Give the query an id, as Spark would; returns it."""
        id_ = str(uuid.uuid4())
        self._write("metadata", json.dumps({"id": id_}), over=False)
        return id_

    def note(self, notes: Mapping[str, Any]) -> None:
        """Keep what semel knows of the query beside its state."""
        if notes != self._notes():
            self._write(_NOTES, json.dumps(notes), over=True)

    def _notes(self) -> Mapping[str, Any]:
        try:
            notes: Mapping[str, Any] = json.loads(self._text(_NOTES) or "{}")
            return notes
        except ValueError:  # the process has died while it wrote them
            return {}

    def offsets(self, batch: int) -> dict[TopicPartition, int]:
        """Where a batch ends that has begun. If the query reads a topic several times, how far all
        of its sources have come."""
        text = self._text(f"offsets/{batch}")
        if text is None:
            raise ServiceError(
                f"connector {self._connector.name}: checkpoint.location={self.location} lacks "
                f"offsets/{batch}, where Spark has noted how far batch {batch} reads"
            )
        positions: dict[TopicPartition, int] = {}
        for line in text.splitlines()[2:]:
            if line == _NONE:
                continue
            for topic, ends in json.loads(line).items():
                for partition, end in ends.items():
                    tp = TopicPartition(topic, int(partition))
                    positions[tp] = min(end, positions.get(tp, end))
        return positions

    def _last(self, folder: str) -> int:
        path = self._path(folder)
        try:
            if not self._files.exists(path):
                return -1
            names = [status.getPath().getName() for status in self._files.listStatus(path)]
        except Py4JJavaError as error:
            raise self._error(error) from None
        return max((int(name) for name in names if name.isdecimal()), default=-1)

    def _text(self, name: str) -> str | None:
        path = self._path(name)
        try:
            if not self._files.exists(path):
                return None
            stream = self._files.open(path)
            try:
                return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
            finally:
                stream.close()
        except Py4JJavaError as error:
            raise self._error(error) from None

    def _write(self, name: str, text: str, *, over: bool) -> None:
        try:
            stream = self._files.create(self._path(name), over)
            try:
                stream.write(bytearray(text.encode()))
            finally:
                stream.close()
        except Py4JJavaError as error:
            raise self._error(error) from None

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self._root, name)

    def _error(self, error: Py4JJavaError) -> ServiceError:
        why = str(error.java_exception.getMessage()).splitlines()
        return ServiceError(
            f"connector {self._connector.name}: checkpoint.location={self.location}: "
            f"{why[0] if why else error.java_exception.getClass().getName()}. Check that the "
            "directory can be read and written"
        )


def check(
    connector: ConnectorConfig,
    state: CheckpointState,
    entry: LedgerEntry | None,
    others: Mapping[TopicPartition, LedgerEntry],
) -> None:
    """Compare a checkpoint with the ledger's entry of the query, and with those of its topics.

    Raises:
        ConfigError: they do not belong together, or one of them has come further than it may.
    """
    place = f"checkpoint.location={connector.checkpoint_location}"
    title, name = f"connector {connector.name}: ", connector.name
    owner = state.notes.get("connector", name)
    if state.id and owner != name:
        raise ConfigError(
            f"{title}{place} keeps the state of connector {owner}. Set it to a directory of its own"
        )
    if entry is None:
        if state.begun >= 0:
            raise ConfigError(
                f"{title}{place} holds the state of query {state.id} up to batch {state.begun}, "
                "but the ledger knows nothing of it: was it lost, or reset? Then the rows of "
                "these batches may be missing, or would come again. Restore the ledger, or set "
                "checkpoint.location to a new directory, which begins at the ledger's positions"
            )
        read = sorted(tp for tp, e in others.items() if e.records_read)
        if read:
            raise ConfigError(
                f"{title}the ledger is at {others[read[0]].position} for {read[0]}: this connector "
                "has read records before without the query, so its state would lack them. Choose "
                f"another name. {_ANEW}"
            )
        return
    ran = entry.position - 1
    if not state.id or (state.begun < 0 and ran >= 0):
        if ran < 0 and state.begun < 0:
            return  # no batch has been committed: the state is empty anyway
        raise ConfigError(
            f"{title}{place} is empty, but the ledger has the rows of query {entry.cluster_id} up "
            f"to batch {ran}: its state is lost. Restore the directory, or correct "
            f"checkpoint.location if it was moved. {_ANEW}"
        )
    if entry.cluster_id and entry.cluster_id != state.id and (ran >= 0 or state.begun >= 0):
        raise ConfigError(
            f"{title}{place} is the checkpoint of query {state.id}, but the ledger has the rows of "
            f"query {entry.cluster_id}, up to batch {ran}. Was the directory emptied, or does "
            "another connector of this name run elsewhere? Set checkpoint.location to the "
            f"directory of query {entry.cluster_id}. {_ANEW}"
        )
    if state.next > entry.position:
        raise ConfigError(
            f"{title}{place} has finished batch {state.done}, but the ledger only has the rows up "
            f"to batch {ran}: the checkpoint is newer. Was the store restored from a backup, "
            f"without the checkpoint? The rows of batches {entry.position} to {state.done} are "
            f"missing. Restore both from the same moment. {_ANEW}"
        )
    if state.next < ran or (state.next == ran and state.begun < ran):
        raise ConfigError(
            f"{title}{place} has finished batch {state.done}, but the ledger has the rows up to "
            f"batch {ran}: the checkpoint is older. Was it restored from a backup? Its state "
            f"lacks what batches {state.next} to {ran} have read. Restore the newer one. {_ANEW}"
        )


def check_unchanged(
    connector: ConnectorConfig, state: CheckpointState, entry: LedgerEntry | None, digest: str
) -> None:
    """Raises ConfigError: the query is not the one that has made the state."""
    if entry is None or not entry.position or entry.topic_id in ("", digest):
        return
    title, last = f"connector {connector.name}: ", entry.position - 1
    if connector.query_changed == "continue" and state.next < entry.position:
        raise ConfigError(
            f"{title}query.changed=continue: batch {last} has to run again for its state, with the "
            "query that has made its rows. Run the former query once, and change it then"
        )
    if connector.query_changed == "continue":
        return
    before = state.notes.get("query", "") if state.notes.get("digest", digest) != digest else ""
    raise ConfigError(
        f"{title}the query has changed since batch {last}"
        + (f". It was: {before}. " if before else ": its plan is another one. ")
        + "The state and the rows are those of the former query. Change it back, or set "
        f"query.changed=continue to go on with the state as it is. {_ANEW}"
    )
