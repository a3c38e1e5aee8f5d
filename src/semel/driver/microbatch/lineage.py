"""The origin of a micro-batch's DataFrame: its Kafka offset ranges and their Spark partitions.

Spark hands ``foreachBatch`` a DataFrame without its offsets, and a task sees only the rows that
survive filters. The ranges are in the partitions of the RDD at the root of the batch, which the
driver can reach; this module is the only one that looks inside Spark.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from semel.core.ledger import OffsetRange

_STREAM, _PART = "DataSourceRDD", "KafkaSourceRDD"
"""The node at the root of a streaming query's batch, and of a batch query."""


class BatchSource:
    """One micro-batch as an RDD whose partition ``i`` holds the records of ``ranges[i]``."""

    def __init__(self, batch: DataFrame) -> None:
        frame: Any = batch
        self._spark: Any = batch.sparkSession
        self._rdd: Any = frame._jdf.queryExecution().toRdd()
        self._schema: Any = frame._jdf.schema()
        self.ranges = _ranges(self._rdd)

    @property
    def spark(self) -> SparkSession:
        session: SparkSession = self._spark
        return session

    def frame(self, indices: Sequence[int]) -> tuple[DataFrame, int]:
        """The records of some of the ranges, in that order, and the id of the RDD they are in."""
        rdd = self._rdd
        if len(indices) < len(self.ranges):
            jvm = self._spark._jvm
            chosen = jvm.java.util.HashSet()
            for index in indices:
                chosen.add(index)
            # A Scala set is also the predicate that tests for its elements.
            wanted = jvm.scala.jdk.javaapi.CollectionConverters.asScala(chosen).toSet()
            rdd = jvm.org.apache.spark.rdd.PartitionPruningRDD.create(rdd, wanted)
        frame = self._spark._jsparkSession.internalCreateDataFrame(rdd, self._schema, False)
        return DataFrame(frame, self._spark), rdd.id()


def is_one_to_one(result: DataFrame, source: int) -> bool:
    """Whether partition ``i`` of ``result`` is made of partition ``i`` of the RDD ``source`` alone.

    Starts no job: a plan with an exchange, or one that Spark adapts while it runs, is not looked
    into further.
    """
    frame: Any = result
    execution = frame._jdf.queryExecution()
    if _exchanges(execution.executedPlan()):
        return False
    rdd = execution.toRdd()
    while rdd.id() != source:
        dependencies = rdd.dependencies()
        if dependencies.size() != 1:
            return False
        dependency = dependencies.apply(0)
        if dependency.getClass().getSimpleName() != "OneToOneDependency":
            return False
        rdd = dependency.rdd()
    return True


def _exchanges(plan: Any) -> bool:
    name = plan.getClass().getSimpleName()
    if "Exchange" in name or name == "AdaptiveSparkPlanExec":
        return True
    children = plan.children()
    return any(_exchanges(children.apply(i)) for i in range(children.size()))


def _ranges(rdd: Any) -> list[OffsetRange]:
    while (kind := rdd.getClass().getSimpleName()) not in (_STREAM, _PART):
        rdd = rdd.dependencies().apply(0).rdd()
    found = []
    for partition in rdd.partitions():
        offsets = (
            partition.inputPartitions().apply(0) if kind == _STREAM else partition
        ).offsetRange()
        tp = offsets.topicPartition()
        found.append(
            OffsetRange(tp.topic(), tp.partition(), offsets.fromOffset(), offsets.untilOffset())
        )
    return found
