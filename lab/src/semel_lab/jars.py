"""The jars of the servers and of other projects that semel is tested with, and their versions. No
connector needs them: see :mod:`semel.spark.jars` for the product's."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

from semel.core.locks import alone
from semel.spark.jars import JarSet, cache_directory, resolve

KAFKA_VERSION = "4.3.1"
DEBEZIUM_VERSION = "3.5.0.Final"
DELTA_VERSION = "4.4.0"
ICEBERG_VERSION = "1.12.0"
HIVE_VERSION = "4.0.1"
HADOOP_VERSION = "3.4.2"  # the one PySpark brings
OPENSEARCH_VERSION = "2.19.5"
ELASTICSEARCH_VERSION = "7.17.29"
APICURIO_VERSION = "3.0.9"  # the last for Java 17
APICURIO_SERDES_VERSION = "2.6.8.Final"  # later ones lack some jars on Maven Central
PROTOBUF_JAVA_VERSION = "3.25.8"
OPENCSV_VERSION = "4.6"  # the one spooldir has
LOG4J_VERSION = "2.25.4"  # the one kafka_2.13 brings


def _set(name: str, coordinates: tuple[str, ...], leave_out: tuple[str, ...] = ()) -> JarSet:
    return JarSet(name, coordinates, leave_out, pinned_by="semel_lab")


KAFKA = _set(
    "kafka",
    (
        f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}",
        f"org.apache.logging.log4j:log4j-slf4j-impl:{LOG4J_VERSION}",
    ),
)

# Kafka Connect itself, which the benchmarks compare with.
CONNECT = _set(
    "connect",
    (
        f"org.apache.kafka:connect-runtime:{KAFKA_VERSION}",
        f"org.apache.kafka:connect-api:{KAFKA_VERSION}",
        f"org.apache.kafka:connect-json:{KAFKA_VERSION}",
        f"org.apache.kafka:connect-file:{KAFKA_VERSION}",
        f"org.apache.logging.log4j:log4j-slf4j-impl:{LOG4J_VERSION}",
        f"org.apache.logging.log4j:log4j-core:{LOG4J_VERSION}",
    ),
)

# Kafka Streams with its test driver, which the tests compare semel's streams with.
KAFKA_STREAMS = _set(
    "kafka-streams",
    (
        f"org.apache.kafka:kafka-streams-test-utils:{KAFKA_VERSION}",
        f"org.apache.kafka:kafka-streams:{KAFKA_VERSION}",
        "org.slf4j:slf4j-nop:1.7.36",
    ),
)


def _debezium(connector: str) -> JarSet:
    """A folder for Connect's plugin.path. It must not hold what the worker already has: with a
    Jackson of its own, a task fails with a class conflict."""
    return _set(
        f"debezium-{connector}",
        (f"io.debezium:debezium-connector-{connector}:{DEBEZIUM_VERSION}",),
        leave_out=(
            "com.fasterxml.jackson.*:*",
            "org.apache.kafka:kafka-clients",
            "org.apache.kafka:connect-api",
            "org.slf4j:slf4j-api",
        ),
    )


DEBEZIUM_JDBC, DEBEZIUM_POSTGRES = _debezium("jdbc"), _debezium("postgres")

# Spark's own Delta Lake, which the tests read with and the benchmarks compare with.
DELTA_SPARK = _set(
    "delta-spark",
    (f"io.delta:delta-spark_4.1_2.13:{DELTA_VERSION}",),
    leave_out=(
        "org.apache.spark:*",
        "org.scala-lang:*",
        "org.scala-lang.modules:*",
        "org.apache.hadoop:*",
        "org.slf4j:*",
        "org.antlr:*",
        "com.fasterxml.jackson.*:*",
    ),
)

# Spark's own Iceberg, which the tests read with. Its jar bundles everything it needs.
ICEBERG_SPARK = _set(
    "iceberg-spark",
    (f"org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:{ICEBERG_VERSION}",),
    leave_out=("org.apache.spark:*", "org.scala-lang:*", "org.scala-lang.modules:*"),
)

# A folder for Connect's plugin.path: Iceberg's own sink, which the benchmarks compare with, what it
# needs to write local files, and a catalog's database driver.
ICEBERG_CONNECT = _set(
    "iceberg-connect",
    (
        f"org.apache.iceberg:iceberg-kafka-connect:{ICEBERG_VERSION}",
        f"org.apache.iceberg:iceberg-parquet:{ICEBERG_VERSION}",
        f"org.apache.hadoop:hadoop-client-api:{HADOOP_VERSION}",
        f"org.apache.hadoop:hadoop-client-runtime:{HADOOP_VERSION}",
        "org.xerial:sqlite-jdbc:3.50.3.0",
    ),
    leave_out=(
        "com.fasterxml.jackson.*:*",
        "org.apache.kafka:kafka-clients",
        "org.apache.kafka:connect-*",
        "org.slf4j:*",
    ),
)

# What a REST catalog's server is made of, which the tests write to: Iceberg's handlers of the
# protocol, a database's driver, and what writes local files.
ICEBERG_REST = _set(
    "iceberg-rest",
    (
        f"org.apache.iceberg:iceberg-core:{ICEBERG_VERSION}",
        f"org.apache.hadoop:hadoop-client-api:{HADOOP_VERSION}",
        f"org.apache.hadoop:hadoop-client-runtime:{HADOOP_VERSION}",
        "org.xerial:sqlite-jdbc:3.50.3.0",
    ),
)

# A Hive metastore, which the tests write to, without the old Hadoop that it brings.
HIVE_METASTORE = _set(
    "hive-metastore",
    (
        f"org.apache.hive:hive-standalone-metastore-server:{HIVE_VERSION}",
        f"org.apache.hadoop:hadoop-client-api:{HADOOP_VERSION}",
        f"org.apache.hadoop:hadoop-client-runtime:{HADOOP_VERSION}",
        f"org.apache.hadoop:hadoop-hdfs:{HADOOP_VERSION}",  # for an exception class that it needs
    ),
    leave_out=(
        "org.apache.hadoop:hadoop-common",
        "org.apache.hadoop:hadoop-annotations",
        "org.apache.hadoop:hadoop-auth",
        "org.apache.hadoop:hadoop-hdfs-client",
        "org.apache.hadoop.thirdparty:*",
        "io.netty:*",
        "org.fusesource.leveldbjni:*",
        "ch.qos.reload4j:*",
        "org.slf4j:slf4j-reload4j",
        "org.slf4j:slf4j-log4j12",
        "log4j:log4j",
        "tomcat:*",
        "org.mortbay.jetty:*",
        "com.sun.jersey:*",
        "io.grpc:*",
        "sqlline:*",
        "javax.servlet:servlet-api",
        "javax.servlet.jsp:*",
    ),
)

# HDFS, which the tests and the drill write to: Hadoop's own shaded jar for tests has its servers.
HDFS = _set(
    "hdfs",
    (
        f"org.apache.hadoop:hadoop-client-minicluster:{HADOOP_VERSION}",
        f"org.apache.hadoop:hadoop-client-runtime:{HADOOP_VERSION}",
        f"org.apache.hadoop:hadoop-client-api:{HADOOP_VERSION}",
        "org.slf4j:slf4j-simple:1.7.36",  # of the release of its slf4j-api
        "javax.xml.bind:jaxb-api:2.3.1",  # which Java no longer has
    ),
)

# Servers that the tests and the drill write to: the last OpenSearch for Java 17, and the last
# Elasticsearch whose transport is published.
OPENSEARCH = _set(
    "opensearch",
    (
        f"org.opensearch:opensearch:{OPENSEARCH_VERSION}",
        f"org.opensearch.plugin:transport-netty4-client:{OPENSEARCH_VERSION}",
        "org.apache.logging.log4j:log4j-core:2.25.3",  # of the release of its log4j-api
    ),
)
ELASTICSEARCH = _set(
    "elasticsearch",
    (
        f"org.elasticsearch:elasticsearch:{ELASTICSEARCH_VERSION}",
        f"org.elasticsearch.plugin:transport-netty4-client:{ELASTICSEARCH_VERSION}",
        "org.apache.logging.log4j:log4j-core:2.17.1",
    ),
)


# Java's side of the formats with a schema registry, which the tests compare semel's with.
APICURIO_SERIALIZERS = _set(
    "apicurio-serializers",
    (
        *(
            f"io.apicurio:apicurio-registry-serdes-{name}-serde:{APICURIO_SERDES_VERSION}"
            for name in ("avro", "protobuf", "jsonschema")
        ),
        f"com.google.protobuf:protobuf-java-util:{PROTOBUF_JAVA_VERSION}",
        f"com.google.protobuf:protobuf-java:{PROTOBUF_JAVA_VERSION}",
        "org.slf4j:slf4j-nop:2.0.6",
    ),
)

# What spooldir reads CSV with, which the tests compare semel's reader with.
OPENCSV = _set(
    "opencsv",
    (
        f"com.opencsv:opencsv:{OPENCSV_VERSION}",
        "org.apache.commons:commons-lang3:3.9",
        "org.apache.commons:commons-text:1.8",
    ),
    leave_out=(
        "commons-beanutils:*",
        "commons-collections:*",
        "org.apache.commons:commons-collections4",
        "commons-logging:*",
    ),
)

# Debezium's sink with a converter for Avro, which the benchmarks compare with.
DEBEZIUM_JDBC_APICURIO = _set(
    "debezium-jdbc-apicurio",
    (
        *DEBEZIUM_JDBC.coordinates,
        f"io.apicurio:apicurio-registry-utils-converter:{APICURIO_SERDES_VERSION}",
    ),
    leave_out=(
        *DEBEZIUM_JDBC.leave_out,
        "org.apache.kafka:connect-json",
        "com.github.luben:*",
        "org.lz4:*",
        "org.xerial.snappy:*",
    ),
)

# A server that is published as an archive of all its files.
APICURIO = _set(
    f"apicurio-registry-app-{APICURIO_VERSION}",
    (f"io.apicurio:apicurio-registry-app:{APICURIO_VERSION}:all:tar.gz",),
)


_UNPACKED_IN = 1800.0
"""Seconds to wait for another process that downloads and unpacks."""


def unpacked(distribution: JarSet) -> Path:
    """The folder of a distribution's files, downloaded if need be."""
    folder = cache_directory() / "distributions" / distribution.name
    if folder.exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with alone(folder.parent / "lock", _UNPACKED_IN, distribution.name):
        if not folder.exists():
            (archive,) = resolve(distribution)
            new = folder.with_suffix(f".{os.getpid()}")
            with tarfile.open(archive) as packed:
                packed.extractall(new, filter="data")
            new.rename(folder)
    return folder
