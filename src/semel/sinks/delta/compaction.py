"""Compacts small files into large ones, in commits that change no data."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from deltalake import WriterProperties

from semel.core.errors import TransientError
from semel.sinks.delta.config import DeltaConfig
from semel.sinks.delta.files import DataFile
from semel.sinks.delta.table import Table, translated
from semel.sinks.staging import CommitConflict

log = logging.getLogger(__name__)


class Compaction:
    """Compacts a table when this run has added enough small files to it.

    A compaction may fail without harm: the next one finds the same files.
    """

    def __init__(self, config: DeltaConfig) -> None:
        self._config = config
        self._small: dict[str, int] = {}

    def after(self, table: Table, files: Sequence[DataFile]) -> None:
        """Count files that were committed; compact if there are enough small ones."""
        if not self._config.auto_compact:
            return
        half = self._config.target_file_size // 2
        small = self._small.get(table.where, 0) + sum(f.size < half for f in files)
        if small >= self._config.compact_min_files:
            self._compact(table)
            small = 0
        self._small[table.where] = small

    def _compact(self, table: Table) -> None:
        codec = {"none": "UNCOMPRESSED"}.get(self._config.codec, self._config.codec.upper())
        try:
            table.keep_statistics_true()
            with translated(table.where):
                done = table.raw.optimize.compact(
                    target_size=self._config.target_file_size,
                    writer_properties=WriterProperties(compression=codec),  # type: ignore[arg-type]
                )
        except (CommitConflict, TransientError) as error:
            log.info("table %s was not compacted: %s", table.where, error)
        else:
            log.info(
                "table %s: %d files compacted to %d",
                table.where,
                done["numFilesRemoved"],
                done["numFilesAdded"],
            )
