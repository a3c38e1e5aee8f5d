"""Changes by key: one commit merges the last change of each key into the table.

An existing row keeps the columns that no change gives.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from semel.sinks.delta.files import DataFile
from semel.sinks.delta.table import Table, bound, translated
from semel.sinks.rows import CHANGE_ANEW, CHANGE_DELETES, PLACES, last_changes


def merge(table: Table, files: Sequence[DataFile], transactions: Mapping[str, int]) -> None:
    """Merge files of changes and move transaction identifiers.

    Raises:
        CommitConflict, TransientError: see :meth:`Table.append`.
    """
    filesystem = table.filesystem()
    key = files[0].key
    with translated(table.where):
        parts = [pq.read_table(f.path, filesystem=filesystem) for f in files]
        left = last_changes(pa.concat_tables(parts, promote_options="permissive"), key)
        source = left.drop_columns(list(PLACES))
        lacking = [f for f in table.columns if f.name not in source.column_names]
        for field in lacking:
            source = source.append_column(field, pa.nulls(source.num_rows, field.type))
        same = " AND ".join(f"target.{_quoted(n)} = source.{_quoted(n)}" for n in key)
        deletes, anew = (f"source.{_quoted(n)}" for n in (CHANGE_DELETES, CHANGE_ANEW))
        merger = table.raw.merge(
            source,
            same,
            source_alias="source",
            target_alias="target",
            # Unless the source is streamed, its smallest and largest keys are known, and files are
            # skipped by them.
            streamed_exec=not all(_bounded(source.schema.field(n).type) for n in key),
            commit_properties=bound(transactions),
        )
        every = _assigned(table.columns.names)
        given = _assigned(n for n in table.columns.names if n not in {f.name for f in lacking})
        merger = merger.when_matched_delete(deletes)
        if lacking and pc.any(source.column(CHANGE_ANEW)).as_py():
            merger = merger.when_matched_update(every, f"{anew} AND NOT {deletes}")
        merger = merger.when_matched_update(given, f"NOT {deletes}")
        merger.when_not_matched_insert(every, f"NOT {deletes}").execute()


def _assigned(names: Iterable[str]) -> dict[str, str]:
    """The target's columns and their values. delta-rs's shortcuts for all columns (1.6) fail for
    names with a backtick."""
    return {_quoted(n): f"source.{_quoted(n)}" for n in names}


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _bounded(kind: pa.DataType) -> bool:
    """Whether bounds of this type can be trusted from any writer: many round decimals and ignore
    NaN."""
    return not (pa.types.is_decimal(kind) or pa.types.is_floating(kind))
