"""The files sink: tasks write hidden files, one entry of the ledger makes them visible."""

from __future__ import annotations

import contextlib
import re
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import pyarrow as pa

from semel.config import ConnectorConfig, absolute, read
from semel.config.extras import needs, require
from semel.converters.json.columns import JSON
from semel.core.delivery import Delivery, Mechanism, Support
from semel.core.errors import ConfigError, Problem, TargetChanged, TransientError
from semel.core.failpoints import hit
from semel.core.ledger import (
    SKIPPED,
    Advance,
    Hole,
    LedgerEntry,
    Outcome,
    Rebase,
    TopicPartition,
    pending,
)
from semel.core.problems import refuse, together
from semel.core.quoting import PATH, named
from semel.core.records import TIMESTAMP, DeadLetter, Records, RowsRejected
from semel.sinks import letters as letter_rows
from semel.sinks.base import Capabilities, Snapshot
from semel.sinks.convert import holds_json
from semel.sinks.files.config import CLASSES, HDFS, IGNORED, FilesConfig
from semel.sinks.files.folders import PartitionFolders
from semel.sinks.letters import Place
from semel.sinks.protocols import Named
from semel.sinks.staging import StagedCommit, Stager, StagingSink

with needs("connector.class=files", "files"):
    from semel.sinks.files import snapshot
    from semel.sinks.files.formats import Format
    from semel.sinks.files.ledger import (
        ROOT,
        EntryTaken,
        HiddenFile,
        Ledger,
        LedgerState,
        begun_at,
        folder_of,
    )
    from semel.sinks.files.stager import Arranger, FilesStager, Schemas
    from semel.sinks.files.writer import FileWriter, Naming, Rows, delete
    from semel.storage.drivers import cannot_create_exclusively, instead_of, open_store


_TRIES = 20


class FilesSink(StagingSink):
    """See :class:`~semel.sinks.staging.StagingSink`; configuration in docs/files.md."""

    section = FilesConfig
    ignored = IGNORED
    address = "path"

    def __init__(self, connector: ConnectorConfig) -> None:
        self._connector = connector
        self._config = config = read(FilesConfig, connector.originals)
        together(
            lambda: refuse(_problems(connector, config, connector.topics)),
            lambda: _check_avro(config),
        )
        self._where = config.location()
        self._store = open_store(self._where, config.options(), connector.store_timeout_ms / 1000)
        self._ledger = Ledger(self._store, connector.name)
        self._schemas = Schemas(self._store, self._ledger.folder)
        clock = config.clock()
        self._format = Format(
            config.format_name(),
            config.parquet_codec,
            config.compression,
            config.avro_codec,
            config.bytes_extension,
            config.separator,
        )
        by_record = config.rotate_ms > 0 and clock.reads_records
        self._naming = Naming(
            config.delimiter,
            config.zero_pad,
            config.max_records,
            config.rotate_ms if by_record else 0,
            config.target_file_size,
        )
        times = clock if self._naming.longest else None
        self._arranger = Arranger(
            connector, config, self._schemas, config.folders(), times, self._naming, self._format
        )

    @classmethod
    def normalized(cls, raw: Mapping[str, str]) -> Mapping[str, str]:
        return absolute(raw, "path")

    @property
    def capabilities(self) -> Capabilities:
        config = self._config
        return Capabilities(
            engines=frozenset({"bounded"}),
            uses_key=False,
            key_metadata=frozenset(),
            routes=True,
            splits=True,
            takes_tombstones=config.tombstones == "fail",
            evolves=True,
            any_order=True,
            writes_text=self._format.name in ("json", "csv"),
            tells_schemas=self._format.name == "csv",
            writes_documents=self._format.name == "json",
            carries=frozenset({TIMESTAMP}) if config.reads_times else frozenset(),
        )

    @property
    def interval(self) -> float | None:
        return self._config.interval

    def describe(self) -> dict[str, str]:
        return {
            "writes": f"{self._where}/<topic>/**/*{self._format.extension}",
            "ledger": f"{self._where}/{self._ledger.folder}",
        }

    def support(self) -> Mapping[Mechanism, Support]:
        why_not = cannot_create_exclusively(self._where)
        return {
            Mechanism.TRANSACTIONAL: Support(
                why_not is None,
                "one entry of the ledger, created exclusively, moves the positions and makes the "
                "files visible"
                if why_not is None
                else f"{why_not}, so nothing would stop a second writer. "
                f"{instead_of(self._where)}, or set delivery=at-least-once",
            ),
            Mechanism.IDEMPOTENT: Support(
                False,
                "a file is named by its offsets, but a replay may cut the records into other "
                "files, and those that were written before would remain next to them. "
                + (
                    "Set delivery.mechanism=transactional"
                    if why_not is None
                    else "Set delivery=at-least-once"
                ),
            ),
        }

    # Targets

    def prepare(self, topics: Collection[str]) -> None:
        refuse(_problems(self._connector, self._config, topics))
        for topic in topics:
            shortest = self._naming.name(topic, 0, 0, 0, self._format.extension)
            self._store.check_name(topic, shortest)
        self._check_exclusive()
        self._check_owner(topics)
        self._ledger.finish(self._ledger.newest())
        self._ledger.clean()

    def _check_exclusive(self) -> None:
        """Test the store: one that speaks S3's protocol may ignore the condition."""
        if self._connector.delivery is Delivery.AT_LEAST_ONCE:
            return
        if cannot_create_exclusively(self._where) is not None:
            return
        probe = f"{self._ledger.folder}/probe-{uuid.uuid4().hex}"
        try:
            self._store.create(probe, b"first")
            self._store.create(probe, b"second")
        except FileExistsError:
            return
        finally:
            self._store.delete([probe])
        raise ConfigError(
            f"connector {self._connector.name}: {self._where} does not create files "
            "exclusively: a second write replaced the first, so nothing would stop a second "
            "writer. Set delivery=at-least-once, or use a store that supports If-None-Match"
        )

    def _check_owner(self, topics: Collection[str]) -> None:
        """Raises ConfigError if another connector writes a topic's files to the same place: only
        offsets distinguish their names."""
        own_folder = self._ledger.folder.rpartition("/")[2]
        for other in set(self._store.folders(ROOT)) - {own_folder}:
            state = Ledger(self._store, other, folder=other).newest()
            both = sorted({tp.topic for tp in state.entries} & set(topics))
            if both:
                raise ConfigError(
                    f"connector {self._connector.name}: the files of topic {named(both[0])} below "
                    f"{self._where} belong to connector {state.connector}. Choose another path or "
                    "topics.dir, or give them up: semel offsets reset, with that connector's file"
                )

    def schema(self, topic: str) -> pa.Schema | None:
        if self._format.name == "json":
            return None  # each record has its own fields, and its own types
        schema = self._schemas.find(self._config.routed(topic))
        if schema is None:
            return None
        skip = set(self._connector.provenance_columns.values())
        fields = [f for f in schema if f.name not in skip and self._config.takes(topic, f.name)]
        return pa.schema([pa.field(f.name, JSON) if holds_json(f) else f for f in fields])

    def accommodate(self, records: Records) -> None:
        if records.rows.num_rows:
            with contextlib.suppress(RowsRejected):  # they turn up again when they are read
                self._arranger.fields(records)

    # The ledger

    def entries(self) -> list[LedgerEntry]:
        return [e for _, e in sorted(self._ledger.newest().entries.items())]

    def holes(self) -> list[Hole]:
        return list(self._ledger.newest().holes)

    def start(self, entries: Collection[LedgerEntry]) -> dict[TopicPartition, int]:
        partitions = [e.topic_partition for e in entries]
        state = self._ledger.newest()
        if not state.entries.keys() >= set(partitions):
            state = self._moved(lambda before: before.started(entries))
        return {tp: state.entries[tp].position for tp in partitions}

    def rebase(self, rebases: Sequence[Rebase]) -> None:
        _check_names(self._connector, self._where, rebases)

        def after(before: LedgerState) -> LedgerState:
            return before.rebased(pending(self._connector.name, before.entries, rebases))

        if pending(self._connector.name, self._ledger.newest().entries, rebases):
            self._moved(after)

    def _moved(self, after: Callable[[LedgerState], LedgerState]) -> LedgerState:
        """Append the next entry, whatever the newest one is."""
        for _ in range(_TRIES):
            state = self._ledger.newest()
            self._ledger.finish(state)
            with contextlib.suppress(EntryTaken):
                state = after(state)
                self._ledger.append(state)
                return state
        raise self._busy()

    def _busy(self) -> TransientError:
        return TransientError(f"{self._where}: other writers keep moving the positions")

    # Staging

    def stager(self, label: str) -> Stager:
        return FilesStager(self._arranger, self._writer(self._ledger.sequence()))

    def _writer(self, sequence: int) -> FileWriter:
        staging = self._ledger.staging
        return FileWriter(self._store, staging, sequence, self._naming, self._format)

    def discard(self, staged: StagedCommit) -> None:
        delete(self._store, [f.staged for f in staged.files])

    # Committing

    def commit_staged(self, advances: Sequence[Advance], staged: StagedCommit) -> Outcome:
        for _ in range(_TRIES):
            state = self._ledger.newest()
            self._ledger.finish(state)
            if state.judge(advances) is Outcome.REPLAYED:
                return Outcome.REPLAYED
            hit("sink.after_positions")
            files = [*staged.files, *self._letters(staged.dead_letters, state)]
            self._check(state, files)
            hit("sink.before_commit")
            try:
                state = state.after(advances, files)
                self._ledger.append(state)
            except EntryTaken:
                continue
            hit("sink.after_commit")
            self._ledger.finish(state)
            return Outcome.APPLIED
        raise self._busy()

    def advance(self, advances: Sequence[Advance]) -> Outcome:
        return self.commit_staged(advances, StagedCommit())

    def write_staged(self, staged: StagedCommit, guard: Sequence[Advance] | None = None) -> Outcome:
        state = self._ledger.newest()
        self._ledger.finish(state)
        if guard and state.judge(guard) is Outcome.REPLAYED:
            return Outcome.REPLAYED
        hit("sink.after_positions")
        files = [*staged.files, *self._letters(staged.dead_letters, state)]
        hit("sink.before_commit")
        gone = self._ledger.land(files)
        if gone:
            # Without a guard the positions have been moved just now: that was one entry.
            own = 0 if guard else 1
            if self._ledger.sequence() <= begun_at(gone[0].staged) + own:
                raise self._unseen(gone[0])
            raise TargetChanged(
                f"{self._where}: the staged file {named(gone[0].staged, PATH)} is gone"
            )
        hit("sink.after_commit")
        return Outcome.APPLIED

    def _letters(self, letters: Sequence[DeadLetter], state: LedgerState) -> list[HiddenFile]:
        """Files of dead letters, hidden like the others."""
        folder = self._connector.dead_letter_table
        if not letters or not folder:
            return []
        rows = letter_rows.rows(self._connector.name, letters)
        writer = self._writer(state.sequence)
        by_partition = PartitionFolders()
        for topic in sorted({x.topic for x in letters}):
            part = rows.filter(pa.compute.equal(rows.column("topic"), topic))
            where = Rows(
                topic,
                f"{folder_of(folder)}/topic={folder_of(topic)}",
                part.column("topic"),
                part.column("partition"),
                part.column("offset"),
                {},
                by_partition.folder,
            )
            writer.write(self._format.rows(part, part.num_rows), where)
        return writer.finish()

    def _check(self, state: LedgerState, files: Sequence[HiddenFile]) -> None:
        """Files can be committed only by the entry after the one that they were begun at: later,
        they may have been cleaned up.

        Raises:
            TargetChanged: the ledger has moved meanwhile.
            ConfigError: the ledger has not, but files are missing.
        """
        if any(begun_at(f.staged) != state.sequence for f in files):
            raise TargetChanged(
                f"{self._where}: the ledger has moved to entry {state.sequence} since the files "
                "were written; they are written again"
            )
        missing = self._ledger.missing(files)
        if missing and self._ledger.sequence() == state.sequence:  # else the entry is taken
            raise self._unseen(missing[0])

    def _unseen(self, file: HiddenFile) -> ConfigError:
        return ConfigError(
            f"connector {self._connector.name}: the driver does not see what tasks write: "
            f"{self._where}/{file.staged} is missing or incomplete. path must be shared by the "
            "driver and all executors: an object store, or a directory that is mounted "
            "everywhere. If it is, something else deletes files below _semel"
        )

    # For the audit and by hand

    def snapshot(self, topics: Collection[str]) -> Snapshot:
        return snapshot.take(
            self._connector, self._config, self._store, self._ledger, self._named(topics)
        )

    def letters(self, beyond: Place | None, most: int, *, backwards: bool = False) -> pa.Table:
        """See :class:`~semel.sinks.letters.LetterStore`."""
        of = self._connector, self._config, self._store
        return snapshot.dead_letters(*of, beyond, most, backwards=backwards)

    def gathered(self, topics: Collection[str], named: Named) -> Snapshot:
        """See :class:`~semel.sinks.protocols.Gathering`: the names of files say whose they are."""
        return self.snapshot(topics)

    def _named(self, topics: Collection[str]) -> dict[str, re.Pattern[str]]:
        """The names of each topic's files."""
        naming, extension = self._naming, self._format.extension
        return {topic: naming.pattern(topic, extension) for topic in topics}

    def claim(self) -> None:
        """Do nothing: there are no locks. Moving positions by hand fences a running connector."""

    def set_positions(
        self, entries: Collection[LedgerEntry] | None, by: str = "", reason: str = SKIPPED
    ) -> None:
        self._moved(lambda s: s.forgotten(by) if entries is None else s.set(entries, by, reason))

    def close(self) -> None:
        """Do nothing: nothing is held open."""


def _problems(
    connector: ConnectorConfig, config: FilesConfig, topics: Collection[str]
) -> Iterator[Problem]:
    """Keys of the connector and of the sink that do not go together."""
    where = f"connector {connector.name}"
    chosen = (config.format, config.format_class, config.format_output)
    if connector.connector_class not in (*CLASSES[:2], *HDFS) and not any(chosen):
        aiven = connector.connector_class.startswith("io.aiven.")
        name = "format.output.type" if aiven else "format.class"
        yield Problem(
            name,
            f"{where}: {name} is required with connector.class={connector.connector_class}, "
            "or format: parquet, json, csv or avro",
        )
    folder, of_bytes = connector.dead_letter_table, config.format_name() == "bytes"
    if of_bytes and connector.provenance:
        yield Problem(
            "provenance",
            f"{where}: with format=bytes a file holds values alone, so provenance cannot be "
            "written there. Set provenance=false, or another format",
        )
    if of_bytes and folder:
        yield Problem(
            "errors.deadletterqueue.table",
            f"{where}: errors.deadletterqueue.table={folder}: dead letters have columns, which "
            "format=bytes cannot hold. Set errors.deadletterqueue.topic.name, or another format",
        )
    why_not = cannot_create_exclusively(config.location())
    if connector.delivery is Delivery.AT_MOST_ONCE and why_not is not None:
        yield Problem(
            "delivery",
            f"{where}: delivery=at-most-once cannot be kept: {why_not}, so two runs at once could "
            "both move the positions and write the same records. "
            f"{instead_of(config.location())}, or set delivery=at-least-once",
        )
    for topic in () if config.splits else topics:
        if folder == config.routed(topic):
            yield Problem(
                "errors.deadletterqueue.table",
                f"{where}: errors.deadletterqueue.table={folder} is the folder of topic "
                f"{named(topic)} too: dead letters need one of their own",
            )
            break
    shared = set(connector.provenance_columns.values()) & set(config.exclude)
    if shared:
        yield Problem(
            "field.exclude.list",
            f"{where}: field.exclude.list={','.join(config.exclude)} leaves out {min(shared)}, "
            "which provenance=true writes",
        )


def _check_avro(config: FilesConfig) -> None:
    if config.format_name() == "avro":
        key = "format.class" if config.format_class else "format"
        require("format=avro", "files", {"fastavro": "fastavro"}, key=key)


def _check_names(connector: ConnectorConfig, where: str, rebases: Sequence[Rebase]) -> None:
    """Raises ConfigError if other records would have offsets that already name files."""
    for r in rebases:
        if r.goes_back:
            tp = r.old.topic_partition
            reason = r.hole.reason if r.hole is not None else "the log has changed"
            raise ConfigError(
                f"connector {connector.name}: {tp} cannot be read again from offset "
                f"{r.new.position} ({reason}): the files below {where} are named by offsets, and "
                f"those of offsets {r.new.position} to {r.old.position - 1} would be overwritten "
                "or duplicated. Move the files of the former log away and run semel offsets "
                "reset with the connector's file, or set another path or topics.dir"
            )
