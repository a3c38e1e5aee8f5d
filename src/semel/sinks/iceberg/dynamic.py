"""Tables that records name: any number of them, known when the first record for one arrives.

The connector's positions are those of its *home* ledger, a table of its own that holds no rows: its
properties hold the positions, and the names of all tables that ever got rows. A table's own ledger
moves with the rows that it gets and lags behind otherwise. The tables that get rows from a range
are committed first and home last, so home holds a range only when all tables do. After a crash in
between, home has not moved, and a table that was written is known and ahead of home: it recognises
the range as a replay.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Sequence
from functools import partial

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.table.refs import MAIN_BRANCH

from semel.config import ConnectorConfig
from semel.core.errors import ConfigError, Refused
from semel.core.failpoints import hit
from semel.core.ledger import Advance, Hole, LedgerEntry, Outcome, Rebase, TopicPartition
from semel.core.quoting import named
from semel.core.records import Records, RejectedRecord, RowsRejected, rejected
from semel.sinks.base import Snapshot
from semel.sinks.iceberg.config import FLAT, Settings, TableSettings
from semel.sinks.iceberg.routing import Counts, by_name, counted
from semel.sinks.iceberg.table import Table
from semel.sinks.iceberg.tables import ReadDeadLetters, Tables, ahead, gathered_snapshot
from semel.sinks.iceberg.target import TargetTable

_LONGEST = 255


def _names(catalog: str) -> tuple[re.Pattern[str], str]:
    """The names that records may give to tables, and their description for users. Names that such a
    catalog may refuse are not allowed: they would stop the connector."""
    flat = catalog in FLAT
    part = r"[\w-]{1,128}"
    pattern = re.compile(rf"{part}(\.{part}){'' if flat else '+'}", re.ASCII)
    levels = "" if flat else ", or of more levels,"
    return pattern, f"namespace.name{levels} of letters, digits, _ and -, at most 128 each"


class DynamicTables(Tables):
    """The tables that a field's value names, in lower case."""

    lags = True

    def __init__(
        self, connector: ConnectorConfig, settings: Settings, catalog: Callable[[], Catalog]
    ) -> None:
        super().__init__(connector, settings, catalog)
        home = TableSettings(settings.config.ledger_of(connector.name), MAIN_BRANCH, (), ())
        self._home = TargetTable(connector, settings, home, catalog, keeps_rows=False)
        self._names, self._form = _names(settings.catalog["type"])
        self._checked: set[str] = set()
        self._level = False
        """Whether no table is ahead of home."""

    def of(self, name: str) -> TargetTable:
        if name not in self._targets:
            self._targets[name] = self._target(name)
        return self._targets[name]

    def all(self) -> list[TargetTable]:
        """The tables that got rows, as far as they still exist."""
        targets = [self.of(name) for name in self._known()]
        return [t for t in targets if t.find() is not None]

    def describe(self) -> dict[str, str]:
        field = self._settings.config.route_field
        return {
            "writes": f"Iceberg tables that {field} names",
            "ledger": f"properties of table {named(self._home.name)}, and of each other one",
        }

    def prepare(self) -> None:
        if self._home.find() is None:
            Table.create(self._catalog(), self._home.name, {})
        self.check_commits()
        for target in self.all():
            target.keep_mark()

    def check_commits(self) -> None:
        self._check_commits(self._home)

    def schema(self) -> pa.Schema | None:
        fields: dict[str, set[pa.DataType]] = {}
        for target in self.all():
            for f in target.read_from_values():
                fields.setdefault(f.name, set()).add(f.type)
        # Where tables have different types, the records decide.
        agreed = [pa.field(n, kinds.pop()) for n, kinds in fields.items() if len(kinds) == 1]
        return self._with_route(pa.schema(agreed)) if agreed else None

    def routed(self, records: Records) -> tuple[list[tuple[TargetTable, Records]], Counts]:
        parts, nowhere = by_name(self._settings.config.route_field, records)
        by_target: list[tuple[TargetTable, Records]] = []
        refused: list[RejectedRecord] = []
        for name, part in parts:
            try:
                target = self._fit(name)
            except (ConfigError, Refused) as why:
                refused += self._refused(part, str(why))
                continue
            if target is None:
                nowhere.update(counted(part.rows))
            else:
                by_target.append((target, part))
        if refused:
            raise RowsRejected(refused)
        return by_target, nowhere

    def _fit(self, name: str) -> TargetTable | None:
        """The table, created if it may be; None if it is missing and may not be created.

        Raises:
            ConfigError, Refused: records cannot go there.
        """
        if len(name) > _LONGEST or not self._names.fullmatch(name):
            raise ConfigError(f"{name[:_LONGEST]!r} is not {self._form}")
        if name in (self._home.name.lower(), self._connector.dead_letter_table.lower()):
            raise ConfigError(f"{name} is reserved for positions or dead letters")
        target = self.of(name)
        if target.find() is None and not self._settings.config.auto_create:
            return None
        if name not in self._checked:
            target.prepare()
            self._checked.add(name)
        return target

    def _refused(self, records: Records, why: str) -> list[RejectedRecord]:
        why = f"field {named(self._settings.config.route_field)}: {why}"
        return [rejected(records.rows, i, why) for i in range(records.rows.num_rows)]

    # The ledgers

    @property
    def _register(self) -> str:
        return f"semel-tables:{self._connector.name}"

    def _known(self) -> list[str]:
        home = self._home.find()
        return self._named(home) if home is not None else []

    def _named(self, home: Table) -> list[str]:
        return list(json.loads(home.metadata.properties.get(self._register, "[]")))

    def entries(self) -> list[LedgerEntry]:
        if self._home.find() is None:
            return []
        return list(self._home.entries().values())

    def known_topics(self) -> set[str]:
        return {e.topic for e in self.entries()}

    def uneven(self, among: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        if self._level:
            return {}
        at = list(self._home.entries(newest=False).values())
        positions = ahead(at, [t.entries() for t in self.all()], among)
        self._level = not positions
        return positions

    def start(self, entries: Collection[LedgerEntry]) -> None:
        self._home.move(partial(self._home.ledger.started, entries))

    def rebase(self, rebases: Sequence[Rebase]) -> None:
        self._home.move(partial(self._home.ledger.rebased, rebases))

    def touched(self, filled: Collection[str]) -> list[TargetTable]:
        self._level = False
        registered = self._known()
        if not set(filled) <= set(registered):  # before it gets rows
            self._home.move(partial(self._registered, filled))
        targets = [self.of(name) for name in sorted(filled)]
        for target in targets:
            target.table.renew()
        return targets

    def _registered(self, more: Collection[str]) -> dict[str, str]:
        registered = self._known()
        new = sorted({*registered, *more})
        return {self._register: json.dumps(new)} if len(new) > len(registered) else {}

    def settle(self, advances: Sequence[Advance]) -> None:
        at = self._home.entries(newest=False)  # of the state that the commit is bound to
        if self._judged(at.values(), advances) is Outcome.APPLIED:
            hit("sink.before_commit")
            self._home.write([], self._home.ledger.moved(advances, {}))
        self._level = True

    def holes(self) -> list[Hole]:
        return [] if self._home.find() is None else self._home.ledger.holes()

    def set(self, entries: Collection[LedgerEntry] | None, by: str, reason: str) -> None:
        for target in self.all():
            if entries is not None:
                target.check_set(list(entries))
        # Home first: that fences a running connector, and what it has written by then is undone
        # afterwards. A table that held more would treat records that are read again as a replay.
        if entries is not None:
            self._home.move(partial(self._home.ledger.set, entries, by, reason))
        elif self._home.find() is not None:
            self._home.move(partial(self._home.ledger.forgotten, by), forget=True)
        super().set(entries, by, reason)

    def snapshots(self, topics: Collection[str], dead: ReadDeadLetters) -> list[Snapshot]:
        home = self._home.reload()
        if home is None:
            raise self._home.missing()
        tables = [self.of(name).reload() for name in self._named(home)]
        there = [t for t in tables if t is not None]
        return [gathered_snapshot(self._connector, topics, home, there, dead())]
