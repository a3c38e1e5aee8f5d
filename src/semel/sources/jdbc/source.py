"""The JDBC source connector."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import replace

import pyarrow as pa

from semel.config import SourceConnectorConfig, read
from semel.core.delivery import Delivery, Support
from semel.core.errors import ConfigError, NotJudged, Problem, ServiceError, misconfigured
from semel.core.problems import together
from semel.core.quoting import named
from semel.databases.errors import SchemaChanged
from semel.databases.files import normalized
from semel.sources.base import (
    Source,
    SourceBatch,
    SourceOffset,
    SourcePartition,
    StoredOffset,
    UnreadRecord,
    source_records,
)
from semel.sources.jdbc import batches, offsets
from semel.sources.jdbc.batches import CommitUnit, Rows
from semel.sources.jdbc.config import (
    BOTH,
    BULK,
    IGNORED,
    INCREMENTING,
    NOT_READ,
    TIMESTAMP,
    WHY,
    JdbcSourceConfig,
)
from semel.sources.jdbc.database import Column, Database, TableId, absent, chosen, database_of
from semel.sources.jdbc.offsets import QUERY, Load, Position
from semel.sources.jdbc.queries import (
    Query,
    Shape,
    Unreadable,
    check_zones,
    explained,
    floor,
    selected,
    shape,
    source,
)
from semel.sources.jdbc.tables import Nulls, Numbering, Ranges

log = logging.getLogger(__name__)

_NO_SELECT = re.compile("syntax|read.only transaction", re.IGNORECASE)
"""What databases say of a statement that is none, or that would write."""

_NAMED = 1000
"""How many rows without a time are named."""


class JdbcSource(Source):
    """One source partition for each table, or one for the query."""

    section = JdbcSourceConfig
    headers = ()
    keyed = tombstones = False
    ignored = IGNORED
    address = "connection.url"

    def __init__(self, connector: SourceConnectorConfig) -> None:
        self._name = connector.name
        self._config = read(JdbcSourceConfig, connector.originals)
        self._whole = connector.delivery is not Delivery.AT_LEAST_ONCE
        opened = together(
            lambda: self._check_prefix(connector),
            lambda: database_of(self._config, connector.name),
        )
        self._database: Database = opened[1]
        self._numbering = Numbering(connector.name, self._database)
        self._nulls = Nulls(connector.name, self._database)
        self._check_kinds()
        self._query_columns: Sequence[Column] = ()
        self._described_until = 0.0
        self._is_querying = False
        self._goes_on = False
        self._warned: dict[str, str] = {}
        self._known_unfit: set[str] = set()
        self._timeless_due: dict[TableId | None, float] = {}
        self.refresh = self._config.table_poll_ms / 1000
        self.local = bool(self.normalized(connector.originals))
        numbers = self._config.mode == INCREMENTING and not self._config.query
        self.unit = "ids" if numbers else None
        self.revises = self._config.by_time
        has_order = self._config.mode != TIMESTAMP  # rows of one time have none
        self.ordered = has_order and not (self._config.by_time and self._in_ranges)

    def _check_prefix(self, connector: SourceConnectorConfig) -> None:
        if "topic.prefix" not in connector.originals and not self._config.query:
            raise ConfigError(
                Problem(
                    "topic.prefix",
                    "topic.prefix is required: the prefix of topic names. It may be empty",
                )
            )

    def _check_kinds(self) -> None:
        kinds = self._database.kinds
        wrong = [k for k in self._config.table_types if k.upper() not in kinds]
        if wrong:
            raise ConfigError(
                Problem(
                    "table.types",
                    f"table.types={wrong[0]} must be one of {', '.join(kinds)}",
                )
            )

    # What a configuration means

    def describe(self) -> dict[str, str]:
        config = self._config
        what = "a query" if config.query else "tables"
        topic = f"topic {named(config.topic_prefix)}" if config.query else "a topic for each table"
        return {
            "reads": f"{what} of {self._database.where} (mode {config.mode})",
            "writes": topic,
            "not read": NOT_READ[config.mode].format(delay=config.timestamp_delay_ms),
        }

    def exactly_once(self) -> Support:
        config = self._config
        if config.mode == TIMESTAMP and config.suffix:
            return Support(
                False,
                "query.suffix may end a query between rows that have the same time, and the rest "
                "of them would be lost. Remove it, or set mode=timestamp+incrementing",
            )
        return Support(True, WHY.get(config.mode, ""))

    @classmethod
    def normalized(cls, raw: Mapping[str, str]) -> Mapping[str, str]:
        url = raw.get("connection.url", "").strip().removeprefix("jdbc:")
        system = url.partition(":")[0]
        return normalized(raw, system) if system in ("sqlite", "duckdb") else {}

    def topics(self) -> Sequence[str]:
        if self._config.query:
            return [self._config.topic_prefix]
        return []

    def check(self) -> None:
        with self._database.snapshot():
            pass  # what fails after this is the query's fault
        if not self._config.query:
            return
        try:
            self._query_columns = self._database.columns_of(self._config.query)
            if not self._query_columns:
                raise Unreadable("it has no columns")
            layout = shape(self._config, self._query_columns, of_query=True)
            check_zones(self._database, layout.times, self._config.timezone)
        except (ServiceError, Unreadable) as error:
            needed = " must be a SELECT, and only one" if _NO_SELECT.search(str(error)) else ""
            why = f"connector {self._name}: query{needed}: {error}"
            raise misconfigured("query", why) from None

    def check_offset(self, partition: SourcePartition, offset: SourceOffset) -> None:
        if (self._table(partition) is None) is not bool(self._config.query):
            reads = "a query" if self._config.query else "tables"
            raise ConfigError(
                f"connector {self._name}: source partition {dict(partition)}: it reads {reads}"
            )
        if lacking := self._position(offset).lacking(self._config):
            raise ConfigError(
                f"connector {self._name}: source offset {dict(offset)} lacks {lacking}, which "
                f"mode={self._config.mode} needs to resume"
            )

    # Partitions

    def topic_of(self, partition: SourcePartition) -> str:
        """See :class:`~semel.sources.base.TopicEach`."""
        table = self._table(partition)
        return f"{self._config.topic_prefix}{table.name if table else ''}"

    def partitions(self) -> Sequence[SourcePartition]:
        if self._config.query:
            return [QUERY]
        kinds = [k.upper() for k in self._config.table_types]
        with self._database.snapshot():
            there = self._database.tables(kinds)
        tables = chosen(self._config, self._name, self._readable(there))
        if missing := absent(self._config, there):
            self._warn(
                "",
                f"table.whitelist={','.join(missing)}: {self._database.where} has no such table: "
                "waiting for it",
            )
        elif not tables:
            self._warn("", f"{self._database.where} has no table to read: waiting for one")
        return [offsets.partition_of(t) for t in tables]

    def _readable(self, there: Sequence[TableId]) -> list[TableId]:
        """The tables that a source offset can name."""
        config, readable = self._config, []
        for table in there:
            if self._database.table(str(table)) == table:
                readable.append(table)
            elif config.takes(table.name, str(table)):
                why = (
                    f"table {named(table)} of {self._database.where} cannot be read: its source "
                    "offset would be that of another table, because its schema or database has a "
                    "dot in its name. Rename that, or leave the table out with schema.pattern or "
                    "table.exclude.list"
                )
                alone = table.schema is not None and table.schema == config.schema_pattern
                if config.whitelist or config.include or alone:
                    raise ConfigError(f"connector {self._name}: {why}")
                self._warn(str(table), f"left out: {why}")
        return readable

    def former(self, partition: SourcePartition) -> Sequence[SourcePartition]:
        table = self._table(partition)
        if table is None or self._config.mode == BULK:
            return []
        return offsets.former(table, self._database.former_names(table))

    def lag(self, stored: StoredOffset) -> Iterator[tuple[SourcePartition, int]]:
        """See :class:`~semel.sources.base.Measurable`. There may be fewer rows than numbers."""
        for partition in self.partitions():
            table = self._table(partition)
            after = self._position(stored(partition)).numbered(self._config).incrementing
            assert table is not None  # a query has no unit
            with self._named(table):
                yield partition, self._numbering.lag(table, self._of(table), after)

    # Reading

    def read(
        self, partition: SourcePartition, offset: SourceOffset | None
    ) -> Iterator[SourceBatch | None]:
        table = self._table(partition)
        position = self._position(offset)
        if offset and (lacking := position.lacking(self._config)):
            log.warning(
                "connector %s: the stored source offset %s of %s lacks %s, which mode=%s needs to "
                "resume: reading from the beginning",
                *(self._name, dict(offset), table or "the query", lacking, self._config.mode),
            )
        topic = self.topic_of(partition)
        due = self._first(position)
        behind = self._in_ranges
        while True:
            if self._is_querying or time.time() < due:
                yield None
                continue
            self._is_querying = True
            self._goes_on = some = False
            try:
                with closing(self._rows(table, position, behind)) as rows:
                    for together, position in rows:
                        some = True
                        yield self._batch(topic, table, together, position)
            finally:
                self._is_querying = False
            behind = self._goes_on
            due = 0.0 if behind else time.time() + self._config.poll_interval_ms / 1000
            if not some:
                yield None

    def before(
        self, partition: SourcePartition, offset: SourceOffset
    ) -> Iterator[SourceBatch] | None:
        """See :class:`~semel.sources.base.Repeatable`. Without times, a row never moves: reading on
        from the offset shows what comes after it."""
        config, last = self._config, self._position(offset)
        unknown = config.suffix or config.timestamp_initial == -1
        if not config.by_time or unknown or last.lacking(config):
            return None
        load = last.whole if self._in_ranges or last.load else None
        return self._again(partition, Position(load=load), last)

    def after(self, partition: SourcePartition, offset: SourceOffset) -> Iterator[SourceBatch]:
        """See :class:`~semel.sources.base.Revising`."""
        return self._again(partition, self._position(offset), None)

    def _again(
        self, partition: SourcePartition, position: Position, last: Position | None
    ) -> Iterator[SourceBatch]:
        """The rows after a position as they are now, up to ``last`` if that is given."""
        table, topic = self._table(partition), self.topic_of(partition)
        with self._database.snapshot():
            if table is not None and not self._database.columns(table):
                raise NotJudged(
                    f"connector {self._name}: table {named(table)} is not there any more, and its "
                    "records cannot be compared"
                )
        at = position
        while True:
            begin = at
            with closing(self._rows(table, at, False, last or Position())) as rows:
                for together, at in rows:
                    yield self._batch(topic, table, together, at)
            if begin.load is None or at is begin or (last is not None and at.load is None):
                return

    def _batch(
        self, topic: str, table: TableId | None, together: Sequence[Rows], position: Position
    ) -> SourceBatch:
        what = f"table {named(table)}" if table else "query"
        unread = [
            UnreadRecord(topic, f"{what}: {u.message}", f"{what}, {u.column}")
            for rows in together
            for u in rows.unfit
        ]
        records = [source_records(topic, rows.fitting) for rows in together]
        return SourceBatch(records, position.offset, unread=unread)

    def _first(self, position: Position) -> float:
        """When the first query is due; in bulk mode, an interval after the last one."""
        if position.queried_ms is None or self._config.mode != BULK:
            return 0.0
        return (position.queried_ms + self._config.poll_interval_ms) / 1000

    @property
    def _in_ranges(self) -> bool:
        """Whether large tables are read in ranges at first."""
        config = self._config
        alone = config.query or config.suffix or config.timestamp_initial is not None
        return bool(config.range_rows) and config.by_number and not alone

    def _rows(
        self, table: TableId | None, position: Position, behind: bool, last: Position | None = None
    ) -> Generator[CommitUnit, None, None]:
        """The rows of one query, which is over once the last ones are yielded. ``behind`` says
        whether there may be a great many. With a ``last`` position, even an empty one, no time
        bounds them."""
        fresh = True
        with self._named(table):
            try:
                fresh = table is None and self._describe()
                yield from batches.ahead(self._queried(table, position, behind, last))
            except (Unreadable, SchemaChanged) as error:
                self._query_columns = ()
                if table is None and fresh:
                    raise Unreadable(str(error)) from None
                raise

    def _named(self, table: TableId | None) -> AbstractContextManager[None]:
        what = f"table {named(table)}" if table else "query"
        return explained(f"connector {self._name}: {what}", self._database)

    def _describe(self) -> bool:
        """Look up the columns of the query, as often as the list of tables. Returns whether it did
        so now."""
        is_described = self._query_columns and self._database.misses_columns
        if is_described and time.monotonic() < self._described_until:
            return False
        self._query_columns = self._database.columns_of(self._config.query)
        self._described_until = time.monotonic() + self.refresh
        return True

    def _queried(
        self, table: TableId | None, position: Position, behind: bool, end: Position | None
    ) -> Iterator[CommitUnit]:
        config, database = self._config, self._database
        now = database.now() if config.by_time or config.mode == BULK else 0
        with database.snapshot():
            columns = self._query_columns if table is None else database.columns(table)
            if not columns:
                self._warn(
                    str(table),
                    f"table {named(table)} is not there, or has no columns: waiting for it",
                )
                return
            if table is not None:
                config = self._of(table)
            layout = shape(config, columns, of_query=table is None)
            check_zones(database, layout.times, config.timezone)
            if table is not None and not config.validate_non_null:
                self._nulls.look(table, layout)
            if now and (first := position.begun(config, now)) != position:
                position = first
                yield [], position
            until = None
            if now and end is None:
                until = floor(now - config.timestamp_delay_ms * 1000, layout.digits)
            last = None
            if table is not None and (position.load is not None or (behind and self._in_ranges)):
                ranges = Ranges(config, database, table, layout)
                load = self._load(ranges, position, until)
                if load is not None:
                    self._goes_on = True  # after the load, too: rows may have changed meanwhile
                    yield from ranges.read(load)
                    return
                if config.mode == INCREMENTING:
                    step = ranges.following(position.numbered(config).incrementing)
                    self._goes_on = step is not None and step.goes_on
                    last = step.last if step is not None and step.goes_on else None
            begin = position.numbered(config)
            query = Query(config, database, table, layout, begin, until, last, end)
            nothing = True
            # Closed before the snapshot ends, even if reading stops midway.
            with closing(database.stream(query.sql, query.widest)) as stream:
                read = (
                    batches.rows(b, layout, config.timezone, config.timestamp_granularity)
                    for b in stream
                )
                for together, reached in self._together(read, position, now):
                    nothing, position = False, reached
                    yield together, reached
            due = not nothing or time.monotonic() >= self._timeless_due.get(table, 0.0)
            if now and end is None and due and (seen := self._timeless(config, table, layout)):
                yield seen, position
            stored = position.incrementing if config.mode == INCREMENTING else None
            if nothing and table is not None and layout.number is not None and stored is not None:
                self._numbering.look(table, layout.number, stored)

    def _timeless(
        self, config: JdbcSourceConfig, table: TableId | None, layout: Shape
    ) -> list[Rows]:
        """Rows whose time is no point in time, such as infinity: no query for later rows would ever
        read them. Each is returned once. They are looked for after rows were read, and otherwise
        only as often as the list of tables: each query may read the whole table."""
        self._timeless_due[table] = time.monotonic() + self.refresh
        plain, seen = replace(layout, number=None, times=()), []
        for condition in filter(None, map(self._database.timeless, layout.times)):
            columns = ", ".join(map(selected, layout.columns))
            sql = f"SELECT {columns} FROM {source(config, table)} WHERE {condition} LIMIT {_NAMED}"
            with closing(self._database.stream(sql)) as stream:
                for batch in stream:
                    rows = batches.rows(batch, plain, config.timezone, "connect_logical")
                    new = [u for u in rows.unfit if u.message not in self._known_unfit]
                    self._known_unfit.update(u.message for u in new)
                    at = sorted({u.row for u in new})
                    unfit = [replace(u, row=at.index(u.row)) for u in new]
                    seen.append(Rows(rows.values.take(pa.array(at, pa.int64())), unfit=unfit))
        return [rows for rows in seen if rows.unfit]

    def _of(self, table: TableId) -> JdbcSourceConfig:
        try:
            return self._config.of_table(str(table))
        except ValueError as error:
            raise Unreadable(str(error)) from None

    def _load(self, ranges: Ranges, position: Position, until: int | None) -> Load | None:
        """The load in progress, or the one that a large table begins with."""
        if position.load is not None or until is None or position != Position():
            return position.load
        step = ranges.following(None)
        return ranges.load(until) if step is not None and step.goes_on else None

    def _together(self, read: Iterator[Rows], position: Position, now: int) -> Iterator[CommitUnit]:
        """What is committed together."""
        if self._config.mode == BULK:
            after = Position(queried_ms=now // 1000)
            if self._whole:
                return batches.at_once(read, after)
            return batches.in_parts(read, position, after)
        return batches.in_order(read)

    def _table(self, partition: SourcePartition) -> TableId | None:
        try:
            name = offsets.table_of(partition)
        except ValueError as error:
            raise ConfigError(f"connector {self._name}: {error}") from None
        if not name:
            return None
        return self._database.table(name)

    def _position(self, offset: SourceOffset | None) -> Position:
        try:
            position = offsets.position(offset)
            if position.load is not None and self._config.mode != BOTH:
                raise ValueError(
                    f"source offset {dict(offset or {})} is of a first load in ranges, which only "
                    f"mode={BOTH} can resume, not mode={self._config.mode}"
                )
            return position
        except ValueError as error:
            raise ConfigError(
                f"connector {self._name}: {error}. Correct it with semel offsets set, or forget it "
                "with semel offsets reset"
            ) from None

    def _warn(self, what: str, message: str) -> None:
        """Log a warning once."""
        if self._warned.get(what) != message:
            log.warning("connector %s: %s", self._name, message)
        self._warned[what] = message

    def close(self) -> None:
        self._database.close()
