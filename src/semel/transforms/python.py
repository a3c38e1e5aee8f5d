"""``type=python``: a function of Arrow batches as a transform."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from semel.config import key
from semel.core.errors import ConfigError, misconfigured
from semel.core.records import one_array
from semel.transforms.base import Batch, Contents, Refused, Transform, bisected

ROW, KEY, VALUE, TIMESTAMP = "row", "key", "value", "timestamp"


_NAME = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*:[^\W\d]\w*")


def _named(text: str) -> None:
    if not _NAME.fullmatch(text):
        raise ValueError("is not of the form module:name")


@dataclass(frozen=True)
class PythonConfig:
    """The keys of a function."""

    function: str = key("function", doc="The function, as module:name.", validator=_named)


class Python(Transform):
    """Calls a function with a ``pyarrow.RecordBatch`` of the columns ``row``, ``key``, ``value``
    and ``timestamp``. It returns a batch of the same records, or of some of them, with ``row``
    unchanged.

    If it raises, bisecting the batch finds the records that it raises for.
    """

    section = PythonConfig
    config: PythonConfig
    fills_fields = True
    needs_key = True
    needs_timestamp = True
    changes_key = True

    @cached_property
    def _function(self) -> Callable[[pa.RecordBatch], Any]:
        """Imported by the task that calls it, not where a configuration is checked."""
        return _imported(self.config.function)

    def apply(self, batch: Batch) -> Batch:
        columns = {
            ROW: pa.array(np.arange(len(batch))),
            KEY: batch.keys.array,
            VALUE: batch.values.array,
            TIMESTAMP: batch.timestamps,
        }
        table = bisected(self._called, pa.RecordBatch.from_pydict(columns))
        rows = self._checked(table, len(batch))
        taken = batch.take(rows)
        return replace(
            taken,
            keys=Contents(one_array(table.column(KEY)), taken.keys.has_schema),
            values=Contents(one_array(table.column(VALUE)), taken.values.has_schema),
        )

    def _called(self, records: pa.RecordBatch) -> pa.Table:
        function = self._function
        try:
            returned = function(records)
        except Exception as error:
            kind = f"{type(error).__module__}.{type(error).__qualname__}"
            raise Refused({0: str(error)}, kind.removeprefix("builtins.")) from None
        if isinstance(returned, pa.RecordBatch):
            returned = pa.Table.from_batches([returned])
        if isinstance(returned, pa.Table) and {ROW, KEY, VALUE} <= set(returned.column_names):
            return returned
        raise ConfigError(
            f"{self.config.function} must return a pyarrow RecordBatch or Table with the columns "
            f"{ROW}, {KEY} and {VALUE}"
        )

    def _checked(self, table: pa.Table, count: int) -> np.ndarray:
        rows = np.asarray(table.column(ROW))
        if len(rows) and (
            not np.issubdtype(rows.dtype, np.integer)
            or (np.diff(rows) <= 0).any()
            or rows[0] < 0
            or rows[-1] >= count
        ):
            raise ConfigError(
                f"{self.config.function} changed the column {ROW}: let it pass, in its order, and "
                "return each record once at most"
            )
        return rows.astype(np.int64)


def _imported(name: str) -> Callable[[pa.RecordBatch], Any]:
    module, _, function = name.partition(":")
    try:
        imported = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        why = f"function={name}: cannot load it: {error}"
        if isinstance(error, ModuleNotFoundError):
            why += ". Install it, or name its folder in PYTHONPATH"
        raise misconfigured("function", why) from None
    if not callable(imported):
        raise misconfigured("function", f"function={name} is not a function")
    return imported  # type: ignore[no-any-return]
