"""The transforms of a source connector."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from semel import transforms
from semel.config import SourceConnectorConfig
from semel.core.errors import BadRecord
from semel.core.quoting import named
from semel.core.records import HEADERS_TYPE, ConnectRecords
from semel.sources.base import Unread
from semel.tasks.chains import by_topic, chained
from semel.tasks.source.skipped import Contents, Skipped


class SourceChain:
    """Applies the transforms of one connector to what its source has read."""

    def __init__(self, connector: SourceConnectorConfig) -> None:
        self._name = connector.name
        self._chain = transforms.chain_of(connector.originals)
        self._skips = connector.errors_tolerance == "all"
        self._contents = Contents(connector)

    def unread(self, records: Sequence[Unread]) -> list[Skipped]:
        """What the source could not read, as left out.

        Raises:
            BadRecord: there is some, with ``errors.tolerance=none``.
        """
        if records and not self._skips:
            raise BadRecord(
                f"connector {self._name}: a record for topic {named(records[0].topic)}: "
                f"{records[0].message}, or set errors.tolerance=all to leave such records out"
            )
        return [Skipped(r.topic, "TASK_POLL", r.message, place=r.place) for r in records]

    def applied(self, records: ConnectRecords, skipped: list[Skipped]) -> list[ConnectRecords]:
        """The records grouped by the topic they go to, without those that transforms drop. Those
        that transforms refuse are added to ``skipped``.

        Raises:
            BadRecord: a transform refuses one, with ``errors.tolerance=none``.
        """
        if not self._chain or not len(records):
            return [records]
        if records.headers is None and self._chain.needs_headers:
            none = pa.array([[]] * len(records), HEADERS_TYPE)
            records = replace(records, headers=none)
        index = np.arange(len(records))
        made, _, refused, topics = chained(self._chain, records, index, True, True, stamps=True)
        if refused and self._skips:
            skipped += [
                Skipped(
                    records.topic, f.stage, f.message, self._contents.of(records.values, f.index)
                )
                for f in refused
            ]
        elif refused:
            first = min(refused, key=lambda f: f.index)
            raise BadRecord(
                f"connector {self._name}: a record for topic {named(records.topic)} failed in "
                f"{first.stage}: {first.message}. Everything before it is committed"
            )
        if topics is None:
            topics = pa.repeat(pa.scalar(self._chain.route(records.topic)), len(made))
        return by_topic(made, topics)
