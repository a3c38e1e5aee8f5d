"""Changes by key: the last one of each key is merged into the table, by one commit.

A row that is there keeps the columns that no change gives.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from semel.sinks.delta.files import DataFile
from semel.sinks.delta.table import Table, bound, translated
from semel.sinks.rows import (
    CHANGE_ANEW,
    CHANGE_DELETES,
    CHANGE_OFFSET,
    CHANGE_PARTITION,
    last_changes,
)


def merge(table: Table, files: Sequence[DataFile], transactions: Mapping[str, int]) -> None:
    """Merge files of changes and move transaction identifiers.

    Raises:
        Conflict, TransientError: see :meth:`Table.append`.
    """
    filesystem = table.filesystem()
    key = files[0].key
    with translated(table.where):
        parts = [pq.read_table(f.path, filesystem=filesystem) for f in files]
        left = last_changes(pa.concat_tables(parts, promote_options="permissive"), key)
        source = left.drop_columns([CHANGE_PARTITION, CHANGE_OFFSET])
        lacking = [f for f in table.columns if f.name not in source.column_names]
        for field in lacking:
            source = source.append_column(field, pa.nulls(source.num_rows, field.type))
        same = " AND ".join(f'target."{n}" = source."{n}"' for n in key)
        deletes, anew = (f'source."{n}"' for n in (CHANGE_DELETES, CHANGE_ANEW))
        merger = table.raw.merge(
            source,
            same,
            source_alias="source",
            target_alias="target",
            # The keys' extremes are known if not streamed, and files are skipped by them.
            streamed_exec=not all(_bounded(source.schema.field(n).type) for n in key),
            commit_properties=bound(transactions),
        )
        skipped = [CHANGE_DELETES, CHANGE_ANEW]
        merger = merger.when_matched_delete(deletes)
        if lacking and pc.any(source.column(CHANGE_ANEW)).as_py():
            begins = f"{anew} AND NOT {deletes}"
            merger = merger.when_matched_update_all(begins, except_cols=skipped)
        kept = [*skipped, *(f.name for f in lacking)]
        merger = merger.when_matched_update_all(f"NOT {deletes}", except_cols=kept)
        merger.when_not_matched_insert_all(f"NOT {deletes}", except_cols=skipped).execute()


def _bounded(kind: pa.DataType) -> bool:
    """Whether bounds of this type can be trusted, whoever has written them: many writers round
    decimals, and pass over NaN."""
    return not (pa.types.is_decimal(kind) or pa.types.is_floating(kind))
