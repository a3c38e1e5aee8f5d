"""Checks for keys that cannot be read as JSON, which is assumed if no key converter is set."""

from __future__ import annotations

import logging
from collections.abc import Collection

from semel.config import ConnectorConfig, under
from semel.config.common import STRING
from semel.converters import create
from semel.core.errors import BadRecord, ConfigError, OffsetOutOfRange, Problem, TransientError
from semel.core.ledger import LedgerEntry
from semel.core.quoting import named
from semel.core.records import one_array
from semel.driver import sampler
from semel.kafka.cluster import Cluster

log = logging.getLogger(__name__)

_NEAR = 20
"""Offsets of each partition that are looked at, before and after the position."""
_BYTES = 16 * 1024 * 1024
"""Reading stops after this many bytes, over all topics."""


def check_keys(
    connector: ConnectorConfig, cluster: Cluster, entries: Collection[LedgerEntry]
) -> None:
    """Look at keys near the positions.

    Raises:
        ConfigError: in some topic no key can be read. All its records would be bad ones.
    """
    at = {e.topic_partition: e.position for e in entries}
    earliest, latest = cluster.earliest(at), cluster.latest(at)
    starts = {tp: max(earliest[tp], min(p, latest[tp]) - _NEAR) for tp, p in at.items()}
    ends = {tp: min(latest[tp], starts[tp] + 2 * _NEAR) for tp in at}
    converter = create(
        connector.key_converter,
        under(connector.originals, "key.converter."),
        is_key=True,
        where="key.converter",
    )
    if not any(starts[tp] < end for tp, end in ends.items()):
        return
    try:
        read = sampler.read(connector, starts, ends, _BYTES)
    except (BadRecord, OffsetOutOfRange, TransientError) as error:
        log.info("connector %s: keys were not checked: %s", connector.name, error)
        return
    enough = _NEAR if read.cut else 1
    for topic, table in sorted(read.tables.items()):
        keys = one_array(table.column("key"))
        texts = [
            f"{keys[f.index].as_py()[:40].decode('utf-8', 'replace')!r} ({f.message})"
            for f in converter.decode(keys).failures
        ]
        if len(texts) >= enough and len(texts) == len(keys) - keys.null_count:
            raise ConfigError(
                Problem(
                    "key.converter",
                    f"connector {connector.name}: key.converter is not set, so keys are read as "
                    f"JSON, and none of {len(texts)} keys in topic {named(topic)} can be, such as "
                    f"{texts[0]}. Set it to what Kafka Connect's worker has, such as {STRING}",
                )
            )
