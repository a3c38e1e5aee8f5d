"""What Confluent's and Aiven's transforms do with tombstones: TombstoneHandler, Drop and
MakeTombstone."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pyarrow as pa

from semel.config import NoKeys, key
from semel.transforms.base import Batch, Contents, ContentsTransform, Refused, Transform, reasons

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TombstoneHandlerConfig:
    """The keys of Confluent's TombstoneHandler."""

    behavior: str = key(
        "behavior",
        "warn",
        "ignore: drop tombstones; warn: drop them and say so; fail: refuse them.",
        choices=("ignore", "warn", "fail"),
    )


@dataclass(frozen=True)
class AivenTombstoneHandlerConfig:
    """The keys of Aiven's TombstoneHandler."""

    behavior: str = key(
        "behavior",
        doc="drop_silent: drop tombstones; drop_warn: drop them and say so; fail: refuse them.",
        choices=("drop_silent", "drop_warn", "fail"),
    )


class TombstoneHandler(Transform):
    """See Confluent's transform of this name."""

    section: ClassVar[type] = TombstoneHandlerConfig

    def __init__(self, config: TombstoneHandlerConfig | AivenTombstoneHandlerConfig) -> None:
        self._behavior = config.behavior

    @property
    def changes_contents(self) -> bool:
        return False

    def apply(self, batch: Batch) -> Batch:
        there = np.asarray(batch.values.array.is_valid().to_numpy(zero_copy_only=False))
        if there.all():
            return batch
        gone = np.flatnonzero(~there)
        if self._behavior == "fail":
            raise Refused(reasons(gone, "Tombstone record encountered, failing due to behavior"))
        if self._behavior.endswith("warn"):
            log.warning("%d tombstones were dropped", len(gone))
        return batch.take(np.flatnonzero(there))


class AivenTombstoneHandler(TombstoneHandler):
    """See Aiven's transform TombstoneHandler."""

    section: ClassVar[type] = AivenTombstoneHandlerConfig


class NullFilter(Transform):
    """See the transform of this name in Confluent's examples: drops tombstones."""

    section = NoKeys

    def __init__(self, config: NoKeys) -> None:
        """There is nothing to configure."""

    @property
    def changes_contents(self) -> bool:
        return False

    def apply(self, batch: Batch) -> Batch:
        there = batch.values.array.is_valid()
        return batch.take(np.flatnonzero(np.asarray(there.to_numpy(zero_copy_only=False))))


@dataclass(frozen=True)
class DropConfig:
    """The keys of Confluent's Drop."""

    behavior: str = key(
        "schema.behavior",
        "nullify",
        "What becomes of the schema. A null has none here.",
        choices=("nullify", "retain", "validate", "force_optional"),
    )


class Drop(ContentsTransform):
    """See Confluent's transform of this name: the key or the value becomes null."""

    section = DropConfig

    @property
    def needs_key(self) -> bool:
        return False

    def changed(self, batch: Batch, contents: Contents) -> Contents:
        return Contents(pa.nulls(len(batch), contents.array.type), contents.has_schema)


class MakeTombstone(Transform):
    """See Aiven's transform of this name: the value becomes null."""

    section = NoKeys

    def __init__(self, config: NoKeys) -> None:
        """There is nothing to configure."""

    def apply(self, batch: Batch) -> Batch:
        values = batch.values
        return replace(batch, values=Contents(pa.nulls(len(batch), values.array.type)))
