"""Kafka to Delta Lake by hand: a structured stream and Spark's own Delta writer."""

from __future__ import annotations

import json
import sys
import tempfile
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.window import Window

from semel.spark.jars import SPARK_KAFKA, resolve
from semel_lab.jars import DELTA_SPARK

SCHEMA = "id long, account long, name string, amount double, active boolean, note string, ts long"


def records(spark: SparkSession, facts: dict[str, Any]) -> DataFrame:
    """The decoded records of the topic, in triggers of ``most``."""
    values = f.from_json(f.col("value").cast("string"), SCHEMA).alias("v")
    return (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", facts["servers"])
        .option("subscribe", facts["topic"])
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", facts["most"])
        .load()
        .select(values)
        .select("v.*")
    )


def main(facts: dict[str, Any]) -> None:
    """Copy what the topic holds, in triggers of ``most`` records."""
    jars = dict.fromkeys([*resolve(SPARK_KAFKA), *resolve(DELTA_SPARK)])
    spark = (
        SparkSession.builder.master(f"local[{facts['tasks']}]")
        .config("spark.jars", ",".join(map(str, jars)))
        .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        .config(
            "spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog"
        )
        .config("spark.driver.memory", "2g")
        # The defaults, 200 and 50, are for clusters: here they would cost it most of its time.
        .config("spark.sql.shuffle.partitions", facts["tasks"])
        .config("spark.databricks.delta.snapshotPartitions", facts["tasks"])
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )

    def write(batch: DataFrame, number: int) -> None:
        if facts["upsert"]:
            last = Window.partitionBy("id").orderBy(f.col("ts").desc())
            batch = batch.withColumn("n", f.row_number().over(last)).where("n = 1").drop("n")
            if number:
                batch.createOrReplaceTempView("changes")
                batch.sparkSession.sql(
                    f"MERGE INTO delta.`{facts['table']}` t USING changes s ON t.id = s.id "
                    "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
                )
                return
        (
            batch.write.format("delta")
            .mode("append")
            .option("txnAppId", "benchmark")
            .option("txnVersion", number)
            .save(facts["table"])
        )

    query = (
        records(spark, facts)
        .writeStream.option("checkpointLocation", tempfile.mkdtemp())
        .foreachBatch(write)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
