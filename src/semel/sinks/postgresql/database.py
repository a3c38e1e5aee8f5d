"""PostgreSQL as a database of the sink: its tables, values and claims."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import pyarrow as pa

from semel.core.records import TIMESTAMP
from semel.sinks import jdbc
from semel.sinks.postgresql import tables, writer
from semel.sinks.postgresql.connection import Connection
from semel.sinks.sql.columns import Column, Table, is_binary
from semel.sinks.sql.convert import Converted, convert
from semel.sinks.sql.database import Database
from semel.sinks.sql.names import Name, literal, quote
from semel.sinks.sql.prepare import Rows


class Postgres(Connection, Database):
    """See :class:`~semel.sinks.sql.database.Database`."""

    system = "PostgreSQL"
    one_in_any_case = False
    most_columns = 1600
    longest_name = 63
    name_unit = "bytes"

    def __init__(self, uri: str, idle_timeout_ms: int, connector: str, timeout_ms: int) -> None:
        super().__init__(uri, idle_timeout_ms, connector, timeout_ms)
        self._connector = connector

    # Tables

    def exists(self, name: Name) -> bool:
        return tables.exists(self, name)

    def find(self, name: Name) -> Table | None:
        return tables.find(self, name)

    def create(self, name: Name, fields: Sequence[pa.Field], key: Sequence[str]) -> None:
        tables.create(self, name, fields, key, self.clauses)
        self.comment(name, fields)

    def add_columns(self, name: Name, fields: Sequence[pa.Field]) -> None:
        tables.evolve(self, name, fields, self.clauses)
        self.comment(name, fields)

    _comment = "COMMENT ON COLUMN {at} IS {text}"

    def constant(self, value: pa.Scalar) -> str | None:
        if pa.types.is_floating(value.type):  # with NaN and the infinities
            return f"'{value.as_py()}'"
        if is_binary(value.type):
            return f"'\\x{value.as_py().hex()}'"
        return super().constant(value)

    # Values

    def fit(self, values: pa.ChunkedArray, column: Column) -> Converted:
        return convert(values, column)

    def compare(self, target: Table, keys: Rows) -> Mapping[str, pa.ChunkedArray]:
        return writer.compare(self, target, keys)

    # For the audit

    def places(self, provenance: Mapping[str, str]) -> list[str]:
        time = f"(extract(epoch FROM {quote(provenance[TIMESTAMP])}) * 1000)::bigint"
        return [*super().places(provenance), f"{time} AS timestamp"]

    def loose_columns(self, target: Table, names: Sequence[str]) -> list[str]:
        loose = tables.loose_columns(self, target)
        return [n for n in names if n in loose]

    # The life of a run

    def claim(self) -> None:
        self.on_connect(f"SELECT pg_advisory_lock_shared({self._lock_key})")

    def hold_off(self) -> bool:
        """Hold off runs of the connector until the open transaction ends; False if one is alive and
        does not end within RELEASE_TIME."""
        take = f"SELECT pg_try_advisory_xact_lock({self._lock_key}) AS free"
        deadline = time.monotonic() + jdbc.RELEASE_TIME
        while not self.query(take).column("free")[0].as_py():
            if time.monotonic() >= deadline:
                return False
            time.sleep(jdbc.RELEASE_PAUSE)
        return True

    @property
    def _lock_key(self) -> str:
        return f"hashtextextended({literal(f'semel run {self._connector}')}, 2)"
