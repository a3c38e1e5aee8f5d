"""A query with state, Kafka to PostgreSQL by hand: a structured stream and ``foreachBatch``."""

from __future__ import annotations

import json
import sys
from typing import Any

import adbc_driver_postgresql.dbapi as adbc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from benchmarks.peer_delta import records
from semel.spark.jars import SPARK_KAFKA, resolve

_PROVIDER = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def main(facts: dict[str, Any]) -> None:
    """Count and sum what the topic holds, in triggers of ``most`` records."""
    store = "spark.sql.streaming.stateStore"
    spark = (
        SparkSession.builder.master(f"local[{facts['tasks']}]")
        .config("spark.jars", ",".join(map(str, resolve(SPARK_KAFKA))))
        .config("spark.driver.memory", "2g")
        # The default, 200, is for clusters: here it would cost most of the time.
        .config("spark.sql.shuffle.partitions", facts["tasks"])
        .config(f"{store}.providerClass", _PROVIDER)
        .config(f"{store}.rocksdb.changelogCheckpointing.enabled", "true")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    connection = adbc.connect(facts["url"])
    cursor = connection.cursor()
    table = facts["table"]
    cursor.execute(f"CREATE TEMP TABLE incoming (LIKE {table})")
    connection.commit()

    def write(batch: DataFrame, _number: int) -> None:
        cursor.adbc_ingest("incoming", batch.toArrow(), mode="append", temporary=True)
        cursor.execute(
            f"INSERT INTO {table} SELECT * FROM incoming ON CONFLICT (account, minute) "
            "DO UPDATE SET orders = excluded.orders, total = excluded.total"
        )
        cursor.execute("TRUNCATE incoming")
        connection.commit()

    minute = f.window("at", "1 minute")
    query = (
        records(spark, facts)
        .select("account", "amount", f.timestamp_millis("ts").alias("at"))
        .groupBy("account", minute.alias("w"))
        .agg(f.count("*").alias("orders"), f.sum("amount").alias("total"))
        .select("account", f.col("w.start").alias("minute"), "orders", "total")
        .writeStream.option("checkpointLocation", facts["checkpoint"])
        .outputMode("update")
        .foreachBatch(write)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    connection.close()
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
