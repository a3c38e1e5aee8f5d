"""The contract between the engines and a store.

The engine decides *what* is committed and in which order; a sink knows *how* its store commits. A
sink is plain Python and Arrow: no Spark, no Kafka. It is made from configuration alone (so that
``semel validate`` touches no service), lives in one process, connects when first used and is used
by one thread at a time. The driver uses one to prepare and to read; each task uses one to commit.

What a crash leaves behind, and what the engine relies on:

=================================  ==========================================================
the process dies                   the store holds
=================================  ==========================================================
before ``commit``                  nothing new; the records are read again
inside it, before the commit       nothing new; the open transaction rolls back
inside it, after the commit        rows and positions; the replay is recognised by the ledger
between ``write`` and ``advance``  rows without positions (at-least-once repeats them; an
                                   idempotent sink overwrites them with the same rows)
between ``advance`` and ``write``  positions without rows (at-most-once loses them)
=================================  ==========================================================

:class:`~semel.sinks.transactional.TransactionalSink` is most of a sink for a store with
transactions; docs/write-a-sink.md builds one.
"""

from __future__ import annotations

import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import pyarrow as pa

from semel.config import ConnectorConfig
from semel.core.delivery import Mechanism, Support
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
from semel.core.quoting import named
from semel.core.records import KEY, Commit, Records, RowsRejected, all_rejected
from semel.sinks.config import is_by_record_key, names_key_columns


class Sink(ABC):
    """A store that takes rows and keeps the ledger beside them.

    Every method that reaches the store may raise :class:`~semel.core.errors.TransientError` (the
    outcome is unknown or nothing happened; the engine calls again with the same arguments and the
    ledger tells which) or :class:`~semel.core.errors.ServiceError` (retrying does not help).
    """

    section: ClassVar[type]
    """The dataclass of the sink's own configuration keys."""

    ignored: ClassVar[Mapping[str, str]] = {}
    """Keys of equivalent connectors that have no effect here, each with the reason."""

    address: ClassVar[str] = ""
    """The key that names the store, for the message if it cannot be reached at the start."""

    defaults: ClassVar[Mapping[str, str]] = {}
    """This sink's own defaults for keys that all connectors have."""

    local: ClassVar[bool] = False
    """Whether the target is a file on one machine; all tasks then run on one worker of a
    cluster."""

    prefixes: ClassVar[tuple[str, ...]] = ()
    """The sink takes all keys with these prefixes."""

    @abstractmethod
    def __init__(self, connector: ConnectorConfig) -> None:
        """Read the sink's keys from ``connector.originals``. Raises ConfigError; reaches no
        service."""

    @property
    def capabilities(self) -> Capabilities:
        """What the configured sink wants and does; use a class attribute if that does not depend on
        the configuration."""
        return Capabilities()

    def describe(self) -> dict[str, str]:
        """What ``semel describe`` shows of the sink, by short names; ``writes`` and ``ledger`` say
        where results and positions are."""
        return {}

    @abstractmethod
    def support(self) -> Mapping[Mechanism, Support]:
        """Which mechanisms of exactly-once this configuration can keep, and why."""

    @classmethod
    def normalized(cls, raw: Mapping[str, str]) -> Mapping[str, str]:
        """Keys whose values differ from those given: relative paths become absolute, because
        executors have a different working directory, and implied values are filled in."""
        return {}

    @classmethod
    def takes_key_fields(cls, raw: Mapping[str, str]) -> bool:
        """Whether the target's key consists of fields of the record key, so that keys are taken for
        JSON if no ``key.converter`` is set. By default, this is so with ``pk.mode=record_key`` and
        without ``pk.fields``."""
        return is_by_record_key(raw) and not names_key_columns(raw)

    def prepare(self, topics: Collection[str]) -> None:  # noqa: B027
        """Create the ledger and check the targets of ``topics``; called by the driver at start.

        Raises:
            ConfigError: a target is missing or lacks the declared key, and may not be created.
        """

    @abstractmethod
    def entries(self) -> list[LedgerEntry]:
        """All ledger entries of this connector, ordered by topic and partition."""

    def holes(self) -> list[Hole]:
        """All holes of this connector; none if the store keeps none."""
        return []

    def targets(self, topics: Collection[str]) -> Mapping[str, Target | None]:
        """The target of each topic; None if it does not exist yet. Entries keep it, so that a
        connector notices when its results went elsewhere. Topics whose entries are stored inside
        their targets are left out."""
        return {}

    @abstractmethod
    def start(self, entries: Collection[LedgerEntry]) -> dict[TopicPartition, int]:
        """Insert first entries where the ledger has none; return the positions that it holds for
        all of them."""

    def rebase(self, rebases: Sequence[Rebase]) -> None:  # noqa: B027
        """Replace entries in one transaction and record the holes, as
        :func:`semel.core.ledger.pending` judges. A sink whose entries store no cluster and topic
        ids has nothing to do.

        Raises:
            LedgerConflict: nothing was written.
        """

    def schema(self, topic: str) -> pa.Schema | None:
        """The fields that the topic's target takes; None if it does not exist or declare any."""
        return None

    def accommodate(self, records: Records) -> None:  # noqa: B027
        """Create or extend the target for records like these, where configuration allows it.

        Raises:
            ConfigError: the target is missing or lacks a column, and may not be changed.
        """

    def lacking(self, topic: str, fields: Collection[str]) -> Collection[str]:
        """Those of some fields of values for which the topic's target has no column, although the
        configuration wants them. None while there is no target, and where missing columns are
        added."""
        columns = None if self.capabilities.evolves else self.schema(topic)
        return [] if columns is None else [f for f in fields if f not in columns.names]

    def no_column(self, topic: str, field: str) -> str:
        """What to tell the user about such a field: a sentence with what to do. Reaches no
        service."""
        return no_column(f"the target of topic {named(topic)}", topic, field)

    @abstractmethod
    def write(self, commit: Commit, guard: Sequence[Advance] | None = None) -> Outcome:
        """Write rows and dead letters only. With ``guard``, lock the ledger and obey its rule
        without moving it: a replay writes nothing, and a zombie cannot overwrite newer rows."""

    @abstractmethod
    def advance(self, advances: Sequence[Advance]) -> Outcome:
        """Move positions only, under the ledger rule."""

    @abstractmethod
    def snapshot(self, topics: Collection[str]) -> Snapshot:
        """Ledger and results at one instant; may be called while the connector runs.

        Raises:
            ConfigError: provenance is wanted, but a target has no columns for it.
        """

    def key_of(self, records: Records) -> tuple[pa.Table | None, pa.Table | None]:
        """The key columns of rows and of tombstones, for a sink that replaces rows; unless it
        says otherwise, the key of the records."""
        wants = self.capabilities
        if not wants.replaces:
            return None, None
        deletes = records.tombstones if wants.takes_tombstones else None
        return records.rows.select([KEY]), None if deletes is None else deletes.select([KEY])

    def claim(self) -> None:  # noqa: B027
        """Declare that a run of this connector is alive, until :meth:`close` or death. In a store
        without such a lock, moving positions by hand fences a running connector."""

    @abstractmethod
    def set_positions(
        self, entries: Collection[LedgerEntry] | None, by: str = "", reason: str = SKIPPED
    ) -> None:
        """Set positions by hand, as :func:`semel.core.ledger.set_by_hand` does, or forget those of
        the connector with None, as :func:`semel.core.ledger.forgotten` does.

        Raises:
            ConfigError: the connector is running.
        """

    def close(self) -> None:  # noqa: B027
        """Drop the connection; an open transaction rolls back. May be called twice."""


ALL_ENGINES = frozenset({"direct", "bounded", "micro-batch"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a configured sink takes and what it does with it. The defaults describe one that inserts
    each value as a row of columns."""

    engines: frozenset[str] = ALL_ENGINES
    """The engines that can run it."""

    uses_key: bool = True
    """Record keys are wanted. Decoding them costs time."""

    key_metadata: frozenset[str] = frozenset({KEY})
    """The metadata columns that the target's key is made of. A transform must not drop them."""

    takes_tombstones: bool = False
    """A null value deletes. Otherwise tombstones are left out."""

    takes_bytes: bool = False
    """The sink wants the bytes of keys and values that no transform has changed, in the columns
    ``__connect_key`` and ``value``. Converters then only find bad records."""

    takes_text: bool = False
    """The sink wants each value as text, or bytes, in the column ``value``, as
    :func:`semel.sinks.flatten.lines` writes it."""

    writes_text: bool = False
    """It writes fields as text, such as JSON: text that looks like a date stays as it is."""

    tells_schemas: bool = False
    """A field that a record's schema lacks is not null, but left as it is. Records whose schemas
    have different fields come in parts of their own. Without a schema, after transforms, rows say
    which fields a record lacks, see :func:`semel.core.records.absences`."""

    writes_documents: bool = False
    """The same, and rows without a schema always say so."""

    takes_change_events: bool = False
    """Debezium's change events are written as the rows and deletes they stand for, as by Debezium's
    own sink; so are the nulls that Avro holds, whatever the default of their schema is."""

    takes_dead_letters: bool = False
    """The sink writes the dead letters of a topic, too, together with the results."""

    traces: bool = True
    """Rows can hold the origin of their records (``provenance``)."""

    commits_dead_letters_first: bool = False
    """Dead letters go to their table in a separate commit, before the results."""

    replaces: bool = False
    """A later record of a key replaces or deletes the row of an earlier one."""

    any_order: bool = False
    """The parts of a commit may come in any order: the sink puts their records into the order of
    partition and offset, or needs none. Otherwise it writes one part after another."""

    routes: bool = False
    """Transforms may change where a topic's records go: the sink names its targets by
    :meth:`semel.sinks.config.RoutedConfig.routed`."""

    splits: bool = False
    """It also writes the records of one topic to several targets that are not known in
    advance, in one commit."""

    ignores_topics: bool = False
    """No target is named by topics, so it does not matter where transforms send records."""

    only_updates: bool = False
    """A record whose key has no row yet writes nothing."""

    only_objects: bool = False
    """A value without a schema that is not an object is a bad record, as in Kafka Connect's sinks
    of tables. Otherwise, it is the field ``value``."""

    evolves: bool = False
    """The sink also wants fields that the target lacks."""

    most_columns: int | None = None
    """A record with more fields is a bad one: the target has no room for them."""

    carries: frozenset[str] = frozenset()
    """The metadata columns that the sink wants besides topic, partition, offset and key."""

    enters_whole_topics: bool = False
    """The ledger must get all partitions of a new topic at once, so that a missing one must have
    been added to the topic later."""

    ledger_in_group: bool = False
    """The consumer group's offsets are part of the ledger, so no copies may be written there."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A store at one instant, for the audit: its ledger and its results.

    With provenance, ``records`` holds ``partition`` and ``offset`` of each row of a topic, and
    ``timestamp`` (int64, milliseconds) if the store keeps it. Without provenance, if rows replace
    each other, ``keys`` holds the key columns of a topic's target; ``unjudged`` says why the keys
    of some topics cannot be compared. ``rows`` is the number of rows of each target, and
    ``untraced`` how many of them lack provenance although it is wanted. ``targets`` holds the
    target of each topic, and ``dead`` the columns of ``records`` for each topic's dead letters. For
    the topics in ``incomplete`` the store may have dropped results by itself, so missing rows
    cannot be judged. ``elsewhere`` counts records whose rows are in another target. If records
    name their targets, ``named`` holds the target of each topic that they name. With ``restamps``
    the dead letter of a record without a time has the time at which the letter was written.
    """

    entries: Sequence[LedgerEntry]
    holes: Sequence[Hole] = ()
    records: Mapping[str, pa.Table] = field(default_factory=dict)
    rows: Mapping[str, int] = field(default_factory=dict)
    untraced: Mapping[str, int] = field(default_factory=dict)
    targets: Mapping[str, str] = field(default_factory=dict)
    dead: Mapping[str, pa.Table] = field(default_factory=dict)
    incomplete: frozenset[str] = frozenset()
    elsewhere: Mapping[TopicPartition, int] = field(default_factory=dict)
    keys: Mapping[str, StoredKeys] = field(default_factory=dict)
    unjudged: Mapping[str, str] = field(default_factory=dict)
    named: Mapping[str, str] = field(default_factory=dict)
    restamps: bool = False


class StoredKeys:
    """The key columns of all rows of a target, on disk: an audit may compare more of them than
    memory holds. They are written into a temporary file as they come, and read from it a batch at a
    time. The file is deleted with the object."""

    def __init__(self, batches: Iterable[pa.RecordBatch]) -> None:
        self._file = tempfile.NamedTemporaryFile(prefix="semel-keys-")  # noqa: SIM115
        self.schema = pa.schema([])
        """The store's own types of the columns; empty if there are no rows."""
        self.num_rows = 0
        writer = None
        for batch in batches:
            if not batch.num_rows:
                continue
            if writer is None:
                self.schema = batch.schema
                writer = pa.ipc.new_stream(self._file.name, self.schema)
            writer.write_table(pa.Table.from_batches([batch]).cast(self.schema))
            self.num_rows += batch.num_rows
        if writer is not None:
            writer.close()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All rows, from the first one on."""
        if self.num_rows:
            with pa.OSFile(self._file.name) as source:
                yield from pa.ipc.open_stream(source)


# Fields that a target lacks

EVOLVES_OR_EXCLUDES = {"grow": "auto.evolve=true", "leave": "with field.exclude.list"}
"""What helps in sinks of tables; see :func:`no_column`."""


def no_column(
    target: str, topic: str, field: str, *, grow: str = "", leave: str = "in a transform"
) -> str:
    """The sentence about a field for which a target has no column: ``grow`` lets the sink add it,
    ``leave`` is where it can be left out."""
    grows = f", set {grow}," if grow else ""
    return (
        f"{target} has no column {named(field)}, which records of topic {named(topic)} hold. Add "
        f"it{grows} or leave the field out {leave}"
    )


def no_columns_yet(rows: pa.Table) -> RowsRejected:
    """The error for records of which no table or file can be made: none has a column."""
    return all_rejected(
        "neither the value nor any before it has a field that is not null: there is no column yet. "
        "provenance=true gives every row some",
        rows,
    )


def lacking(
    fields: Collection[str],
    columns: Callable[[], Collection[str]],
    look_again: Callable[[], object],
    *,
    fold: Callable[[str], str] = str,
) -> list[str]:
    """The fields for which a target has no column, even when it is looked at again."""
    if not set(map(fold, fields)) <= set(columns()):
        look_again()
    existing = set(columns())
    return [f for f in fields if fold(f) not in existing]
