"""The direct engine's driver: long-running tasks move the records, each a Spark job of its own.

Spark places the tasks; Kafka's group protocol spreads the partitions; the ledger says where each
begins. The driver starts the tasks, listens to them and stops them. Nothing passes through it, and
killing it loses nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress

import pyarrow as pa
from pyspark import SparkContext

from semel.core.context import this_run
from semel.core.errors import Fenced, LedgerConflict, SemelError
from semel.core.ledger import TopicPartition
from semel.driver import fences, first_positions, sample, startup
from semel.driver.base import Progress, Run
from semel.driver.direct.launch import Launch
from semel.driver.direct.placeholder import Placeholder
from semel.driver.supervisor import Supervisor
from semel.tasks import ranges
from semel.tasks.publish import other_run
from semel.tasks.rowtransform import Transform
from semel.tasks.unplaced import Teller

log = logging.getLogger(__name__)

_TRIES = 20
"""How often a driver tries again after other workers' tasks have just moved positions."""


class DirectEngine:
    """One run of a connector."""

    def __init__(
        self, run: Run, spark: Callable[[], SparkContext], transform: Transform | None
    ) -> None:
        self._run = run
        self._spark = spark
        self._transform = transform
        self._teller = Teller(run.connector, run.sink)
        self._name = this_run()
        self._supervisor = Supervisor(run.run_control, spark, fences=fences.MOST)

    def run(self) -> Progress:
        """Run the tasks until stopped, caught up, or an error ends the connector.

        Raises:
            SemelError: what ended it.
        """
        placeholder = Placeholder(self._run, self._name)
        try:
            return self._run_tasks(placeholder)
        except Fenced as error:
            if by := self._by():
                raise Fenced(f"{str(error).rstrip('.')}. {by}") from None
            raise
        finally:
            placeholder.close()

    def _by(self) -> str:
        """Who has started the run that has taken over, if that one says so soon."""
        run = self._run
        if run.run_control.assignment.moves:  # more likely, an older process on another worker
            return ""
        with suppress(SemelError):
            if who := other_run(run.connector, run.topics, self._name, run.stop.wait, later=True):
                return f"The other run was started by {who}"
        return ""

    def _run_tasks(self, placeholder: Placeholder) -> Progress:
        run = self._run
        with Launch(run, self._spark, self._transform, self._supervisor, self._name) as launch:
            schemas, targets = self._prepare() if run.assignment.is_whole else self._prepare_share()
            server, spec = launch.result()
        try:
            placeholder.wait(run.stop)
            run.cluster.disconnect()
            return self._supervisor.supervise(
                server, spec, run.connector.tasks_max, lambda p: self._over(p, targets), schemas
            )
        finally:
            server.close()

    def _over(self, progress: Progress, targets: Mapping[TopicPartition, int]) -> bool:
        self._teller.tell(progress.unplaced)
        return self._run.over(progress, targets)

    def _prepare_share(self) -> tuple[dict[str, pa.Schema], dict[TopicPartition, int]]:
        """Prepare the run while other workers' tasks move the positions."""
        for _ in range(_TRIES):
            try:
                return self._prepare()
            except LedgerConflict as conflict:
                log.info("%s; looking again", conflict)
        return self._prepare()

    def _prepare(self) -> tuple[dict[str, pa.Schema], dict[TopicPartition, int]]:
        run = self._run
        topics = run.topics
        startup.enter(run)
        partitions = ranges.partitions(topics)
        positions = ranges.positions(run.connector, run.sink, run.cluster, partitions)
        schemas = sample.schemas(run.connector, run.sink, run.cluster, self._transform, positions)
        # Also for tables that taking the sample has just created.
        if run.assignment.has_first:
            lenient = not run.assignment.is_whole
            entries = run.sink.entries()
            first_positions.check_targets(run.connector, run.sink, entries, topics, lenient=lenient)
        self._supervisor.progress.positions = dict(positions)
        return schemas, startup.targets(run)
