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
from semel.core.errors import ConfigError, Problem
from semel.core.records import one_array
from semel.transforms.base import Batch, Contents, Refused, Transform

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

    def __init__(self, config: PythonConfig) -> None:
        self._name = config.function

    @cached_property
    def _function(self) -> Callable[[pa.RecordBatch], Any]:
        """Imported by the task that calls it, not where a configuration is checked."""
        return _imported(self._name)

    @property
    def needs_key(self) -> bool:
        return True

    @property
    def needs_timestamp(self) -> bool:
        return True

    @property
    def changes_key(self) -> bool:
        return True

    def apply(self, batch: Batch) -> Batch:
        columns = {
            ROW: pa.array(np.arange(len(batch))),
            KEY: batch.keys.array,
            VALUE: batch.values.array,
            TIMESTAMP: batch.timestamps,
        }
        refused: dict[int, tuple[str, str]] = {}
        made = self._called(pa.RecordBatch.from_pydict(columns), refused)
        if refused:
            first = next(iter(refused.values()))[0]
            alike = {row: why for row, (kind, why) in refused.items() if kind == first}
            raise Refused(alike, first)
        left = self._checked(made, len(batch))
        taken = batch.take(left)
        return replace(
            taken,
            keys=Contents(one_array(made.column(KEY)), taken.keys.has_schema),
            values=Contents(one_array(made.column(VALUE)), taken.values.has_schema),
        )

    def _called(self, given: pa.RecordBatch, refused: dict[int, tuple[str, str]]) -> pa.Table:
        function = self._function
        try:
            made = function(given)
        except Exception as error:
            if len(given) == 1:
                kind = type(error)
                refused[given.column(ROW)[0].as_py()] = (
                    f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins."),
                    str(error),
                )
                return pa.Table.from_batches([given])
        else:
            if isinstance(made, pa.RecordBatch):
                made = pa.Table.from_batches([made])
            if isinstance(made, pa.Table) and {ROW, KEY, VALUE} <= set(made.column_names):
                return made
            raise ConfigError(
                f"{self._name} must return a pyarrow RecordBatch or Table with the columns {ROW}, "
                f"{KEY} and {VALUE}"
            )
        middle = len(given) // 2
        halves = [
            self._called(half, refused) for half in (given.slice(0, middle), given.slice(middle))
        ]
        return pa.concat_tables(halves, promote_options="permissive")

    def _checked(self, made: pa.Table, count: int) -> np.ndarray:
        rows = np.asarray(made.column(ROW))
        if len(rows) and (
            not np.issubdtype(rows.dtype, np.integer)
            or (np.diff(rows) <= 0).any()
            or rows[0] < 0
            or rows[-1] >= count
        ):
            raise ConfigError(
                f"{self._name} changed the column {ROW}: let it pass, in its order, and return "
                "each record once at most"
            )
        return rows.astype(np.int64)


def _imported(name: str) -> Callable[[pa.RecordBatch], Any]:
    module, _, function = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            Problem("function", f"function={name}: cannot load it: {error}")
        ) from None
    if not callable(found):
        raise ConfigError(Problem("function", f"function={name} is not a function"))
    return found  # type: ignore[no-any-return]
