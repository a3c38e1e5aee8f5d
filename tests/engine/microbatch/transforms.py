"""Records, and DataFrame transforms of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

KEYED = {"pk_mode": "record_key", "pk_fields": "k", "insert_mode": "upsert"}
DEAD_TABLE = {"errors_tolerance": "all", "errors_deadletterqueue_table": "dead"}


def rows(count: int, start: int = 0, **more: Any) -> list[str]:
    return [
        json.dumps({"id": i, "name": f"n{i}", "amount": i * 1.5} | more)
        for i in range(start, start + count)
    ]


def passing(df: DataFrame) -> DataFrame:
    return df


def even(df: DataFrame) -> DataFrame:
    return df.where("id % 2 = 0").withColumn("twice", F.col("id") * 2)


def shuffled(df: DataFrame) -> DataFrame:
    """Rows of several ranges meet: the driver commits."""
    return df.repartition(3, "id")


def grouped(df: DataFrame) -> DataFrame:
    """Groups mix rows of several ranges: the driver commits."""
    return df.groupBy((F.col("id") % 10).alias("id")).agg(F.count("*").alias("n"))


TRANSFORMS: dict[str, Callable[[DataFrame], DataFrame]] = {
    "passing": passing,
    "shuffled": shuffled,
}
"""By names that another process can be told."""
