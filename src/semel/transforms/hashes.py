"""Aiven's Hash: replaces a text with its hash."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from semel.config import key
from semel.core.quoting import named
from semel.transforms.base import Batch, Contents, ContentsTransform, Refused, each, reasons
from semel.transforms.structs import columns, refuse_all, required, struct


@dataclass(frozen=True)
class HashConfig:
    """The keys of Hash."""

    field: str = key("field.name", "", "The field; empty for the whole key or value.")
    function: str = key("function", doc="The hash.", choices=("md5", "sha1", "sha256"))
    skip: bool = key("skip.missing.or.null", False, "Whether records without it pass.")


class Hash(ContentsTransform):
    """See Aiven's transform of this name."""

    section = HashConfig

    def __init__(self, config: HashConfig, *, of_key: bool) -> None:
        super().__init__(config, of_key=of_key)
        self._config = config

    def changed(self, batch: Batch, contents: Contents) -> Contents:
        name = self._config.field
        if not name:
            return contents.holding(self._hashed(contents.array))
        array = required(contents, "hashing", nulls=self._config.skip)
        found = columns(array)
        if name not in found:
            if not self._config.skip:
                refuse_all(array, f"field {named(name)}, which is to be hashed, is null or missing")
            return contents
        found[name] = found[name].holding(self._hashed(found[name].array))
        return contents.holding(struct(found, array))

    def _hashed(self, array: pa.Array) -> pa.Array:
        missing = np.flatnonzero(np.asarray(array.is_null()))
        what = f"field {named(self._config.field)}" if self._config.field else "the whole"
        if len(missing) and not self._config.skip:
            raise Refused(reasons(missing, f"{what}, which is to be hashed, is null or missing"))
        if pa.types.is_null(array.type):
            return array
        if not pa.types.is_string(array.type):
            refuse_all(array, f"{what}, which is to be hashed, is not text")
            return array
        return each(
            array, lambda text: hashlib.new(self._config.function, text.encode()).hexdigest()
        )
