"""The keys of Confluent's and Aiven's JDBC sources."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from zoneinfo import ZoneInfo

from semel.config import HIGH, LOW, Type, key
from semel.core.errors import ConfigError, Problem
from semel.core.patterns import compiled
from semel.databases.login import Login, password_key, user_key

CLASSES = (
    "io.confluent.connect.jdbc.JdbcSourceConnector",
    "io.aiven.connect.jdbc.JdbcSourceConnector",
    "JdbcSourceConnector",
    "JdbcSource",
)

BULK, INCREMENTING, TIMESTAMP = "bulk", "incrementing", "timestamp"
BOTH = "timestamp+incrementing"
RANGE_ROWS = 500_000

_PARTS = tuple(
    re.compile(rf"(?s){text}|{dollars}\"[^\"]*(?:\"|$)|`[^`]*(?:`|$)|--[^\n]*|/\*.*?(?:\*/|$)|;")
    for text in (r"'[^']*(?:'|$)", r"'(?:[^'\\]|\\.)*(?:'|\\?$)")
    for dollars in ("", r"\$(\w*)\$.*?(?:\$\1\$|$)|")
)
"""What may hold a semicolon that ends no statement, and one that does: a backslash hides a quote,
and dollars are quotes, in some databases only."""
_COMMENTS = re.compile(r"(?s)(?:[;\s]|(?:--|#)[^\n]*+|/\*(?:(?!\*/).)*\*/)*+")
IGNORED = {
    "batch.max.rows": "batches are bounded by their bytes",
    "dialect.name": "the dialect follows from connection.url",
    "connection.attempts": "see max.retries",
    "connection.backoff.ms": "see retry.backoff.ms",
    "transaction.isolation.mode": "each query reads one snapshot of the database",
    "quote.sql.identifiers": "names of tables and columns are always quoted; columns are also "
    "found where only the case differs",
    "sql.quote.identifiers": "names of tables and columns are always quoted; columns are also "
    "found where only the case differs",
    "max.buffer.size": "batches are bounded by their bytes",
    "poll.linger.ms": "batches are committed as they are read",
    "query.retry.attempts": "see max.retries",
    "table.monitoring.startup.polling.limit.ms": "tables are listed before reading begins",
    "date.calendar.system": "dates and times are of the proleptic Gregorian calendar",
    "table.names.qualify": "tables are always queried by their full names",
}
"""Keys of Confluent's and Aiven's connectors that have no effect here, with the reason."""

_NAME = re.compile(r"(.+):([^:\[\]|]+)")
_NAMES = re.compile(r"(.+):\[([^\[\]]+)\]")
"""Entries of ``incrementing.column.mapping`` and ``timestamp.columns.mapping``."""

WHY: Mapping[str, str] = {
    INCREMENTING: "rows and the last number are committed in one Kafka transaction; numbers must "
    "grow in the order in which rows are committed",
    BOTH: "rows and the last time and number are committed in one Kafka "
    "transaction; rows must be committed within timestamp.delay.interval.ms of their time",
    TIMESTAMP: "all rows that have the same time are committed in one Kafka transaction, with that "
    "time; rows must be committed within timestamp.delay.interval.ms of their time",
    BULK: "all rows of a query are committed in one Kafka transaction, with its time",
}
"""By mode, why a delivery is exactly-once."""

_LATE = (
    "rows that commit more than {delay} ms (timestamp.delay.interval.ms) after their time, which "
    "nothing can tell; deletes; changes between two queries"
)
NOT_READ: Mapping[str, str] = {
    INCREMENTING: "rows that commit after one with a larger number was read; updates; deletes",
    BOTH: _LATE,
    TIMESTAMP: _LATE,
    BULK: "changes between two queries",
}
"""By mode, what it does not read."""


def _by_table(mapping: Sequence[str], form: re.Pattern[str]) -> list[tuple[str, tuple[str, ...]]]:
    """The regular expressions of a mapping, and their columns.

    Raises:
        ValueError: it has another form.
    """
    entries = []
    for entry in mapping:
        match = form.fullmatch(entry.strip())
        if match is None:
            example = "shop\\..*:[updated|created]" if form is _NAMES else "shop\\..*:id"
            raise ValueError(f"must be a list of entries such as {example}; {entry!r} is not one")
        pattern = match[1].strip()
        try:
            compiled(pattern)
        except ValueError as error:
            raise ValueError(f"has {pattern!r}, which {error}") from None
        entries.append((pattern, tuple(c.strip() for c in match[2].split("|"))))
    return entries


def _names_one(mapping: Sequence[str]) -> None:
    """Check a mapping to one column each."""
    _by_table(mapping, _NAME)


def _names_some(mapping: Sequence[str]) -> None:
    """Check a mapping to several columns each."""
    _by_table(mapping, _NAMES)


def _only(name: str, entries: Sequence[tuple[str, tuple[str, ...]]], table: str) -> tuple[str, ...]:
    """The columns of the only entry that matches a table.

    Raises:
        ValueError: none matches, or several do.
    """
    matches = [columns for pattern, columns in entries if compiled(pattern).fullmatch(table)]
    if len(matches) != 1:
        raise ValueError(
            f"matches {len(matches)} entries of {name}, and must match one. Correct the regular "
            "expressions, or leave the table out"
        )
    return matches[0]


def _a_time_zone(name: str) -> None:
    """Check ``db.timezone``. Raises ValueError."""
    try:
        ZoneInfo(name)
    except (ValueError, OSError, KeyError):
        raise ValueError("is not the name of a time zone, such as Europe/Berlin") from None


def _not_relaxed(relaxed: bool) -> None:
    """Check ``incrementing.relaxed.monotonic``. Raises ValueError."""
    if relaxed:
        raise ValueError(
            "is not available: rows that become visible out of order cannot be read exactly once. "
            "Remove it, or use mode=timestamp+incrementing with timestamp.delay.interval.ms"
        )


def _no_provider(name: str) -> None:
    """Check ``jdbc.credentials.provider.class``. Raises ValueError."""
    if name and name.rpartition(".")[2] != "DefaultJdbcCredentialsProvider":
        raise ValueError(
            "is not available: it is a Java class. Set connection.user and connection.password, "
            "which may be references such as ${file:path:key}"
        )


@dataclass(frozen=True)
class JdbcSourceConfig:
    """What to read, how to find new rows, and which topics they go to."""

    connection_url: str = key(
        "connection.url",
        doc="The database, such as jdbc:postgresql://host:port/database.",
        secret=True,
        group="Database",
    )
    connection_user: str = user_key("Database")
    connection_password: str = password_key("Database")
    whitelist: tuple[str, ...] = key(
        "table.whitelist",
        (),
        "Tables to read: table, schema.table or database.schema.table. Empty: all there are.",
    )
    blacklist: tuple[str, ...] = key("table.blacklist", (), "Tables to leave out.")
    include: tuple[str, ...] = key(
        "table.include.list", (), "Regular expressions for the full names of tables to read."
    )
    exclude: tuple[str, ...] = key(
        "table.exclude.list", (), "Regular expressions for the full names of tables to leave out."
    )
    catalog_pattern: str | None = key(
        "catalog.pattern", None, "LIKE pattern for the databases whose tables are read."
    )
    schema_pattern: str | None = key(
        "schema.pattern",
        None,
        "LIKE pattern for the schemas whose tables are read.",
        importance=HIGH,
    )
    table_types: tuple[str, ...] = key(
        "table.types",
        ("TABLE",),
        "TABLE and VIEW, in upper or lower case; PARTITIONED TABLE and MATERIALIZED VIEW with "
        "PostgreSQL.",
        importance=LOW,
        group="Connector",
    )
    numeric_mapping: str | None = key(
        "numeric.mapping",
        None,
        "What NUMERIC becomes: none, a decimal; precision_only, an integer if it has no fraction "
        "and up to 18 digits; best_fit, such an integer, or a double with a fraction; "
        "best_fit_eager_double, a double with any fraction.",
        choices=("none", "precision_only", "best_fit", "best_fit_eager_double"),
        importance=LOW,
        group="Database",
    )
    precision_mapping: bool = key(
        "numeric.precision.mapping",
        False,
        "true is numeric.mapping=precision_only.",
        importance=LOW,
    )
    mode: str = key(
        "mode",
        doc="How new rows are found: bulk, incrementing, timestamp or timestamp+incrementing.",
        choices=(BULK, INCREMENTING, TIMESTAMP, BOTH),
        group="Mode",
    )
    incrementing_column: str = key(
        "incrementing.column.name",
        "",
        "The column that grows with each new row. Empty: the auto-increment column.",
    )
    incrementing_initial: int | None = key(
        "incrementing.initial",
        None,
        "Without an offset, only rows with a larger number than this are read; all if empty.",
        importance=LOW,
    )
    incrementing_relaxed: bool = key(
        "incrementing.relaxed.monotonic",
        False,
        "Only false.",
        validator=_not_relaxed,
        importance=LOW,
    )
    timestamp_columns: tuple[str, ...] = key(
        "timestamp.column.name",
        (),
        "The columns that say when a row was changed; the first that is not null counts.",
    )
    incrementing_mapping: tuple[str, ...] = key(
        "incrementing.column.mapping",
        (),
        "The incrementing column by table, instead of incrementing.column.name: regex:column. Each "
        "table's full name must match one regular expression.",
        validator=_names_one,
    )
    timestamp_mapping: tuple[str, ...] = key(
        "timestamp.columns.mapping",
        (),
        "The timestamp columns by table, instead of timestamp.column.name: regex:[column|column].",
        validator=_names_some,
    )
    credentials_provider: str = key(
        "jdbc.credentials.provider.class",
        "",
        "Only Confluent's default: user and password are those of the configuration.",
        validator=_no_provider,
        importance=LOW,
        group="Database",
    )
    timestamp_initial: int | None = key(
        "timestamp.initial",
        None,
        "Without an offset, only rows changed after this are read: milliseconds since 1970, or -1 "
        "for the time of the first query.",
        aliases=("timestamp.initial.ms",),
        at_least=-1,
        at_most=253_402_300_799_999,
        importance=LOW,
        group="Mode",
    )
    timestamp_delay_ms: int = key(
        "timestamp.delay.interval.ms",
        0,
        "Rows are read once their time is this long ago, so that earlier transactions can commit.",
        at_least=0,
        importance=HIGH,
        group="Connector",
    )
    timestamp_granularity: str = key(
        "timestamp.granularity",
        "connect_logical",
        "How times are written.",
        choices=(
            "connect_logical",
            "micros_long",
            "micros_string",
            "micros_iso_datetime_string",
            "nanos_long",
            "nanos_string",
            "nanos_iso_datetime_string",
        ),
        importance=LOW,
    )
    validate_non_null: bool = key(
        "validate.non.null",
        True,
        "Refuse tables whose incrementing column, or all of whose timestamp columns, may be null.",
        importance=LOW,
        group="Mode",
    )
    plain_query: str = key("query", "", "A query to read instead of tables.")
    masked_query: str = key(
        "query.masked", "", "As query, but its value is never shown.", secret=True
    )
    query_suffix: str = key("query.suffix", "", "Appended to each query.", importance=LOW)
    range_rows: int = key(
        "first.load.range.rows",
        RANGE_ROWS,
        "A table with more rows than this is first read in ranges of its incrementing column, of "
        "this many rows each; 0: never.",
        at_least=0,
        importance=LOW,
    )
    poll_interval_ms: int = key(
        "poll.interval.ms",
        5000,
        "Time between two queries of a table.",
        type=Type.INT,
        at_least=0,
        importance=HIGH,
        group="Connector",
    )
    table_poll_ms: int = key(
        "table.poll.interval.ms",
        60_000,
        "Time between two checks for new and dropped tables.",
        at_least=1,
        importance=LOW,
    )
    topic_prefix: str = key(
        "topic.prefix",
        "",
        "Required, but may be empty: the prefix of topic names; the table's name follows. With "
        "query, the whole topic.",
        importance=HIGH,
    )
    timezone: str = key(
        "db.timezone", "UTC", "The time zone of columns that have none.", validator=_a_time_zone
    )

    def __post_init__(self) -> None:
        problems = [*self._which_tables(), *self._which_columns()]
        if problems:
            raise ConfigError(*problems)

    def _which_tables(self) -> Sequence[Problem]:
        chosen: Mapping[str, Sequence[str]] = {
            "table.whitelist": self.whitelist,
            "table.blacklist": self.blacklist,
            "table.include.list": self.include,
            "table.exclude.list": self.exclude,
        }
        keys = [name for name, tables in chosen.items() if tables]
        problems = []
        if self.plain_query.strip() and self.masked_query.strip():
            problems.append(Problem("query", "query and query.masked exclude each other: set one"))
        for name, given_query in (("query", self.plain_query), ("query.masked", self.masked_query)):
            if given_query.strip() and not _statement(given_query):
                problems.append(Problem(name, f"{name} holds no statement. Write a SELECT"))
        if min(_ends(self.suffix)) < len(self.suffix):
            problems.append(
                Problem(
                    "query.suffix",
                    "query.suffix must not hold a semicolon, except in a text: it ends a query",
                )
            )
        if self.query and not self.topic_prefix:
            problems.append(
                Problem("topic.prefix", "topic.prefix is required with query: it is the topic")
            )
        if self.query and keys:
            problems.append(Problem(keys[0], f"{keys[0]} and query exclude each other: set one"))
        elif len(keys) > 1 and {"table.whitelist", "table.blacklist"} & set(keys):
            problems.append(Problem(keys[0], f"{' and '.join(keys)} exclude each other: set one"))
        for name in ("table.include.list", "table.exclude.list"):
            for pattern in chosen[name]:
                try:
                    compiled(pattern)
                except ValueError as error:
                    problems.append(Problem(name, f"{name}: {pattern!r} {error}"))
        return problems

    def _which_columns(self) -> Sequence[Problem]:
        for name, mapping, single in (
            ("incrementing.column.mapping", self.incrementing_mapping, self.incrementing_column),
            ("timestamp.columns.mapping", self.timestamp_mapping, self.timestamp_columns),
        ):
            other = name.replace(".mapping", ".name").replace("columns", "column")
            if mapping and single:
                return [Problem(name, f"{name} and {other} exclude each other: set one")]
            if mapping and self.query:
                return [Problem(name, f"{name} is for tables: with query, set {other}")]
        if self.by_time and not (self.timestamp_columns or self.timestamp_mapping):
            return [
                Problem(
                    "timestamp.column.name",
                    f"timestamp.column.name is required with mode={self.mode}: name the columns "
                    "that say when a row was changed",
                )
            ]
        if self.by_number and self.query and not self.incrementing_column:
            return [
                Problem(
                    "incrementing.column.name",
                    f"incrementing.column.name is required with mode={self.mode} and query: name "
                    "the column that grows with each new row",
                )
            ]
        return []

    @property
    def login(self) -> Login:
        return Login(self.connection_url, self.connection_user, self.connection_password)

    @property
    def query(self) -> str:
        """The query to read; empty if tables are read."""
        return _statement(self.plain_query) or _statement(self.masked_query)

    @property
    def suffix(self) -> str:
        """What ends each query."""
        return _statement(self.query_suffix)

    @property
    def by_time(self) -> bool:
        """Whether new rows are found by a time."""
        return self.mode in (TIMESTAMP, BOTH)

    @property
    def by_number(self) -> bool:
        """Whether new rows are found by a number."""
        return self.mode in (INCREMENTING, BOTH)

    @property
    def numerics(self) -> str:
        """What NUMERIC becomes."""
        return self.numeric_mapping or ("precision_only" if self.precision_mapping else "none")

    def of_table(self, full_name: str) -> JdbcSourceConfig:
        """The same with the columns of one table.

        Raises:
            ValueError: not exactly one entry of a mapping matches the table.
        """
        changes: dict[str, Any] = {}
        if self.by_number and self.incrementing_mapping:
            entries = _by_table(self.incrementing_mapping, _NAME)
            (column,) = _only("incrementing.column.mapping", entries, full_name)
            changes |= {"incrementing_column": column, "incrementing_mapping": ()}
        if self.by_time and self.timestamp_mapping:
            entries = _by_table(self.timestamp_mapping, _NAMES)
            columns = _only("timestamp.columns.mapping", entries, full_name)
            changes |= {"timestamp_columns": columns, "timestamp_mapping": ()}
        return replace(self, **changes) if changes else self

    def takes(self, name: str, full_name: str) -> bool:
        """Whether a table is read, by its own name and by its full one."""
        names = {name, full_name, ".".join(f'"{p}"' for p in full_name.split("."))}
        if self.whitelist:
            return bool(names & set(self.whitelist))
        if self.include and not any(compiled(p).fullmatch(full_name) for p in self.include):
            return False
        if any(compiled(p).fullmatch(full_name) for p in self.exclude):
            return False
        return not names & set(self.blacklist)


def _ends(text: str) -> set[int]:
    """Where the first statement of a text ends, as each kind of database reads texts."""
    positions = ((m.start() for m in parts.finditer(text) if m[0] == ";") for parts in _PARTS)
    return {next(semicolons, len(text)) for semicolons in positions}


def _statement(text: str) -> str:
    """A statement without the semicolons that may end it, and the comments after them."""
    first, *others = _ends(text)
    if not others and _COMMENTS.fullmatch(text, first):
        text = text[:first]
    return text.strip().rstrip("; \r\n\t")
