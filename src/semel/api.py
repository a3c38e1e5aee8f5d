"""Running one connector in the caller's thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semel.driver.base import State
from semel.driver.planning import AnyPlan
from semel.driver.planning.programs import is_of_streams, with_query
from semel.driver.runtime import Runtime

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from semel.driver.base import Progress
    from semel.streams.kstream import Streams
    from semel.streams.topology import Topology


def run(
    config: str | Path | Mapping[str, Any] | AnyPlan | Streams,
    transform: Callable[..., Any] | Topology | None = None,
    *,
    query: Callable[..., Any] | None = None,
    spark: SparkSession | None = None,
    until_caught_up: bool = False,
    stop: threading.Event | None = None,
    observe: Callable[[Progress], None] | None = None,
) -> Progress:
    """Run a connector until it is stopped.

    Args:
        config: a file (Kafka Connect's JSON, flat JSON, ``.properties``), a mapping, or the plan
            that :func:`semel.plan` has made from one, with the same ``transform``. Or
            :class:`semel.streams.Streams`, whose topology is run with its configuration.
        transform: called with each batch of converted records. On the direct engine it takes and
            returns a :class:`pyarrow.RecordBatch` whose columns are the value's fields and the
            ``__connect_*`` metadata columns; it may change fields and drop rows. On the
            micro-batch engine it takes and returns a :class:`pyspark.sql.DataFrame`. A transform
            annotated with ``DataFrame``, or ``engine=micro-batch``, selects that engine.
        query: asks something of the topics over time, instead of a transform: takes a streaming
            :class:`pyspark.sql.DataFrame` for each topic, in the order of ``topics``, and returns
            one. See docs/streams.md.
        spark: the session to run in; the active one, or a new one made from the ``spark.*`` keys.
        until_caught_up: end when everything that Kafka held at the start is committed; a source
            connector ends when there is nothing left to read.
        stop: an event to set from another thread, to end the run after the current batch.
        observe: called with the totals, several times a second while records flow. What it raises
            ends the run, and is raised here.

    Returns:
        the totals of this run.

    Raises:
        semel.core.errors.SemelError: what ended the connector; see the error's class.
    """
    taken: Any = config
    given: Any = transform
    if is_of_streams(config):
        taken, given = taken.config, taken.topology()
    with Runtime(spark) as runtime:
        connector = runtime.start(
            taken,
            with_query(given, query),
            until_caught_up=until_caught_up,
            observe=observe,
            initial_state=State.STOPPED,
        )
        return connector.run(stop)
