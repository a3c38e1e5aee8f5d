"""Writes the Parquet files of one task; the sink commits them."""

from __future__ import annotations

from collections.abc import Sequence

from semel.config import ConnectorConfig
from semel.core.errors import ConfigError
from semel.core.quoting import named
from semel.core.records import Commit, Records
from semel.sinks import rows as made
from semel.sinks.delta.config import DeltaConfig
from semel.sinks.delta.files import DataFile, FileWriter
from semel.sinks.delta.table import Table
from semel.sinks.delta.tables import Tables
from semel.sinks.staging import Stager


class DeltaStager(Stager):
    """Has one writer for each table. File names begin with ``prefix``."""

    def __init__(
        self, connector: ConnectorConfig, config: DeltaConfig, tables: Tables, prefix: str
    ) -> None:
        self._connector = connector
        self._config = config
        self._tables = tables
        self._prefix = prefix
        self._writers: dict[str, FileWriter] = {}
        self._renewed: set[str] = set()

    def add(self, commit: Commit) -> None:
        given = [r for r in commit.records if r.count]
        for topic in {r.topic for r in given} - self._renewed:
            self._renew(topic)
        # All records are arranged before any is written, so a batch that does not fit leaves
        # nothing behind.
        for records, (table, rows) in [(r, self._arranged(r)) for r in given]:
            if rows.table.num_rows:
                self._writer(table, records.topic).write(rows.table, rows.key)

    def finish(self) -> Sequence[DataFile]:
        return [file for writer in self._writers.values() for file in writer.finish()]

    def discard(self) -> None:
        for writer in self._writers.values():
            writer.discard()

    def _renew(self, topic: str) -> None:
        """Look at the topic's table again: a worker process keeps it from trigger to trigger."""
        table = self._tables.find(topic)
        if table is not None:
            table.renew()
        self._renewed.add(topic)

    def _arranged(self, records: Records) -> tuple[Table, made.Rows]:
        """Records as rows of their table, which is created or extended if that is allowed.

        Raises:
            RowsRejected: records that do not fit.
        """
        self._check_home(records)
        table = self._tables.find(records.topic)
        if records.rows.num_rows or table is None:
            table = self._tables.target(records)
        arrange = made.changes if self._config.insert_mode == "upsert" else made.inserts
        provenance = self._connector.provenance_columns
        return table, arrange(self._config, provenance, records, table.columns)

    def _check_home(self, records: Records) -> None:
        """Raises ConfigError: the rows would be in one table and their positions in another."""
        origin, topic = records.origin, records.topic
        if self._tables.where(origin) != self._tables.where(topic):
            raise ConfigError(
                f"connector {self._connector.name}: records of topic {named(origin)} are routed to "
                f"topic {named(topic)}, whose table is {self._tables.where(topic)}, but their "
                f"positions are in {self._tables.where(origin)}: Delta Lake commits one table at a "
                "time. Route no records, or set table.name.format to one table for all topics"
            )

    def _writer(self, table: Table, topic: str) -> FileWriter:
        if table.where not in self._writers:
            config = self._config
            self._writers[table.where] = FileWriter(
                table, topic, self._prefix, config.target_file_size, config.codec
            )
        return self._writers[table.where]
