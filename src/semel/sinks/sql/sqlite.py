"""The sink for SQLite: Arrow goes in by ADBC's bulk ingest."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.databases.columns import Column, Table
from semel.databases.files import normalized
from semel.databases.names import Name, listed, quote
from semel.databases.sqlite import EXACT_DIGITS, Sqlite
from semel.sinks.sql.config import SqliteConfig
from semel.sinks.sql.convert import ConvertedValues
from semel.sinks.sql.database import STAGE, Dialect, ranks
from semel.sinks.sql.prepare import Rows
from semel.sinks.sql.sink import SqlSink

_NUMBER = "semel row number"


class SqliteDialect(Dialect, Sqlite):
    """See :class:`~semel.sinks.sql.database.Dialect`."""

    compares_keys = True

    def stream(self, sql: str) -> Iterator[pa.RecordBatch]:
        for batch in super().stream(sql):
            yield pa.record_batch([_without_empty(v) for v in batch], batch.schema.names)

    def shown(self, column: Column, value: str) -> str | None:
        # The kind of a value, then the value. Null is empty: ADBC takes a column's type from its
        # first rows, and must find texts in them.
        return (
            f"CASE typeof({value}) WHEN 'null' THEN '' WHEN 'integer' THEN 'i' || {value} "
            f"WHEN 'real' THEN printf('r%!.17g', {value}) WHEN 'text' THEN 't' || {value} "
            f"ELSE 'b' || hex({value}) END"
        )

    def insert(self, target: Name, rows: pa.Table) -> None:
        with self._connection.cursor() as cursor:
            cursor.adbc_ingest(target.table, _stored(rows), mode="append")

    @contextmanager
    def staged(self, _target: Name, rows: pa.Table) -> Iterator[str]:
        # Columns without types take values as they are.
        self.execute(f"CREATE TEMPORARY TABLE {STAGE} ({listed(rows.column_names)})")
        with self._connection.cursor() as cursor:
            cursor.adbc_ingest(STAGE, _stored(rows), mode="append", temporary=True)
        yield f"temp.{STAGE}"
        self.execute(f"DROP TABLE temp.{STAGE}")

    def compare(self, target: Table, keys: Rows) -> Mapping[str, pa.ChunkedArray]:
        names = keys.columns.column_names
        numbers = pa.array(np.arange(keys.count))
        with (
            self.transaction(),
            self.staged(target.name, keys.columns.append_column(_NUMBER, numbers)) as stage,
        ):
            # The columns of the first of two SELECTs decide by which collation values compare.
            rows = (
                f"(SELECT {listed(names)}, NULL AS {quote(_NUMBER)} FROM {target.name.quoted} "
                f"WHERE false UNION ALL SELECT {listed([*names, _NUMBER])} FROM {stage})"
            )
            ranked = self.query(ranks(names, rows, _NUMBER))
        return dict(zip(names, ranked.columns, strict=True))

    def delete(self, target: Name, keys: pa.Table) -> None:
        names = listed(keys.column_names)
        with self.staged(target, keys) as stage:
            self.execute(
                f"DELETE FROM {target.quoted} WHERE ({names}) IN (SELECT {names} FROM {stage})"
            )

    def fit(self, values: pa.ChunkedArray, column: Column) -> ConvertedValues:
        converted = super().fit(values, column)
        _check(converted.values, column)
        return converted


_YEARS = {  # 0 to 9999: others have no text
    "s": (-62_167_219_200, 253_402_300_799),
    "ms": (-62_167_219_200_000, 253_402_300_799_999),
    "us": (-62_167_219_200_000_000, 253_402_300_799_999_999),
}
_DAYS = (-719_528, 2_932_896)


def _check(values: pa.ChunkedArray, column: Column) -> None:
    """Raises ArrowInvalid for values that SQLite would store as something else."""
    kind = values.type
    if pa.types.is_timestamp(kind) or pa.types.is_date32(kind):
        first, last = _DAYS if pa.types.is_date32(kind) else _YEARS[kind.unit]
        counts = values.cast(pa.int32() if pa.types.is_date32(kind) else pa.int64())
        least, greatest = pc.min_max(counts).as_py().values()
        if least is not None and (least < first or greatest > last):
            raise pa.ArrowInvalid("its year is not between 0 and 9999")
    elif pa.types.is_floating(kind) and pc.any(pc.is_nan(values)).as_py():
        raise pa.ArrowInvalid("SQLite has no NaN")
    elif pa.types.is_decimal(kind) and kind.precision > EXACT_DIGITS:
        _check_numbers(values.cast(pa.string()))
    elif column.is_json:  # a number alone is stored as one, whatever the column is called
        _check_numbers(values.filter(pc.match_substring_regex(values, r"^\s*[-0-9]")))


def _check_numbers(text: pa.ChunkedArray) -> None:
    """Raises ArrowInvalid for numbers that SQLite would change: it keeps integers of 64 bits, and
    makes doubles of numbers that are written with a point."""
    for number in text.drop_null().to_pylist():
        exact = Decimal(number)
        if re.fullmatch(r"\s*-?\d+\s*", number) and -_INT64 <= exact < _INT64:
            continue
        if Decimal(repr(float(exact))) != exact:
            raise pa.ArrowInvalid(f"SQLite keeps {EXACT_DIGITS} digits of a number")


_INT64 = 1 << 63


def _without_empty(values: pa.Array) -> pa.Array:
    """Texts with null in the place of empty ones; see :meth:`SqliteDialect.shown`."""
    if not pa.types.is_string(values.type):
        return values
    return pc.if_else(pc.equal(values, ""), pa.scalar(None, pa.string()), values)


def _stored(rows: pa.Table) -> pa.Table:
    """The rows in the types that SQLite has; values of other types as text."""
    for place, field in enumerate(rows.schema):
        if pa.types.is_temporal(field.type) or pa.types.is_decimal(field.type):
            rows = rows.set_column(place, field.name, rows.column(place).cast(pa.string()))
    return rows


class SqliteSink(SqlSink):
    """Rows and positions in one transaction of a SQLite file."""

    section = SqliteConfig
    database_class = SqliteDialect
    local = True

    @classmethod
    def normalized(cls, raw: Mapping[str, str]) -> Mapping[str, str]:
        return normalized(raw, "sqlite")
