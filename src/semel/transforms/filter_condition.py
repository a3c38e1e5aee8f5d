"""Confluent's Filter: it keeps or drops the records for which a JSON path's predicate holds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.config import key
from semel.transforms.base import Batch, Reading, Refused, reasons
from semel.transforms.jsonpath import Path, condition
from semel.transforms.structs import Opener, columns


def _readable(text: str) -> None:
    condition(text)


@dataclass(frozen=True)
class FilterConditionConfig:
    """The keys of Confluent's Filter."""

    condition: str = key(
        "filter.condition",
        doc="A JSON path with a predicate, such as $[?(@.amount > 10)].",
        validator=_readable,
    )
    type: str = key(
        "filter.type",
        doc="Whether records for which it holds are kept (include) or dropped (exclude).",
        choices=("include", "exclude"),
    )
    missing: str = key(
        "missing.or.null.behavior",
        "fail",
        "What happens to records without the object that the condition names: fail refuses them.",
        choices=("fail", "include", "exclude"),
    )


class FilterCondition(Reading):
    """See Confluent's transform Filter."""

    section = FilterConditionConfig

    def __init__(self, config: FilterConditionConfig, *, of_key: bool) -> None:
        super().__init__(config, of_key=of_key)
        self._config = config
        self._condition = condition(config.condition)
        self._opener = Opener()

    def apply(self, batch: Batch) -> Batch:
        objects = self._at(batch.contents(self.of_key).array, self._condition.path)
        there = _all_of(False, batch) if objects is None else objects.is_valid()
        missing = np.flatnonzero(~np.asarray(there.to_numpy(zero_copy_only=False)))
        if len(missing) and self._config.missing.lower() == "fail":
            where = ".".join(("key" if self.of_key else "value", *self._condition.path))
            raise Refused(reasons(missing, f"{where} is missing or null: nothing to filter by"))
        holds = self._condition.test(lambda path: self._at(objects, path), len(batch))
        stays = holds if self._config.type.lower() == "include" else pc.invert(holds)
        kept = pc.if_else(there, stays, self._config.missing.lower() == "include")
        if pc.all(kept).as_py():
            return batch
        return batch.take(np.flatnonzero(np.asarray(kept.to_numpy(zero_copy_only=False))))

    def _at(self, array: pa.Array | None, path: Path) -> pa.Array | None:
        """The values of a field; None if there is none. Objects inside are structs."""
        for number, step in enumerate(path):
            if array is None or not pa.types.is_struct(array.type):
                return None
            found = columns(array).get(step)
            if found is None:
                return None
            opened = self._opener.opened(found, ".".join(path[: number + 1]))
            array = found.array if opened is None else opened.array
        return array


def _all_of(answer: bool, batch: Batch) -> pa.Array:
    return pa.repeat(pa.scalar(answer), len(batch))
