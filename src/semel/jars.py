"""All jars that semel uses and their versions; nowhere else is a jar's version written down.

A jar set is resolved by jgo, a Maven resolver in pure Python, and the answer is remembered, so
only the first start needs the network. A user on a cluster can supply the same jars in their own
way: ``SPARK_KAFKA.coordinates`` is what ``spark-submit --packages`` takes.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from semel.errors import ServiceError

KAFKA_VERSION = "4.3.1"
DEBEZIUM_VERSION = "3.5.0.Final"
DELTA_VERSION = "4.4.0"
ICEBERG_VERSION = "1.12.0"
HIVE_VERSION = "4.0.1"
HADOOP_VERSION = "3.4.2"  # the one PySpark brings
OPENSEARCH_VERSION = "2.19.5"
ELASTICSEARCH_VERSION = "7.17.29"
APICURIO_VERSION = "3.0.9"  # the last for Java 17
APICURIO_SERDES_VERSION = "2.6.8.Final"  # of later ones not all jars are on Maven Central
PROTOBUF_JAVA_VERSION = "3.25.8"
LOG4J_VERSION = "2.25.4"  # the one kafka_2.13 brings

# Spark's jars follow the PySpark that is installed; pyproject.toml pins it.
PYSPARK_VERSION = version("pyspark")


@dataclass(frozen=True)
class JarSet:
    """Maven coordinates that are resolved together, the nearest version of a jar winning.

    ``leave_out`` holds ``group:artifact`` patterns (``*`` matches within a part) of what the
    process that loads the jars has already; a second copy of it would clash.
    """

    name: str
    coordinates: tuple[str, ...]
    leave_out: tuple[str, ...] = ()

    def leaves_out(self, group: str, artifact: str) -> bool:
        """Whether a resolved artifact is not to be loaded."""
        return any(_pattern(glob).fullmatch(f"{group}:{artifact}") for glob in self.leave_out)


@dataclass(frozen=True)
class Distribution:
    """A server that is published as an archive of all its files."""

    group: str
    artifact: str
    version: str
    classifier: str
    packaging: str = "tar.gz"


APICURIO = Distribution("io.apicurio", "apicurio-registry-app", APICURIO_VERSION, "all")


# The 4.1.x releases of spark-token-provider are missing from some mirrors, and spark-sql-kafka
# depends on its own release of it. Named here it is nearer and so wins; semel does not use it
# beyond class loading (Kerberos delegation tokens).
SPARK_KAFKA = JarSet(
    "spark-kafka",
    (
        f"org.apache.spark:spark-sql-kafka-0-10_2.13:{PYSPARK_VERSION}",
        "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.1.0-preview1",
    ),
    leave_out=(
        "org.apache.spark:spark-tags_*",
        "org.scala-lang:scala-library",
        "org.scala-lang.modules:scala-parallel-collections_*",
        "org.apache.hadoop:hadoop-client-*",
        "org.slf4j:slf4j-api",
        "org.xerial.snappy:snappy-java",
        "org.lz4:lz4-java",
        "com.google.code.findbugs:jsr305",
    ),
)

KAFKA = JarSet(
    "kafka",
    (
        f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}",
        f"org.apache.logging.log4j:log4j-slf4j-impl:{LOG4J_VERSION}",
    ),
)

# Kafka Connect itself, which the benchmarks compare with.
CONNECT = JarSet(
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


def _debezium(connector: str) -> JarSet:
    """A folder for Connect's plugin.path. What the worker has already must not stand in it: with
    its own Jackson a task dies in a class conflict."""
    return JarSet(
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
DELTA_SPARK = JarSet(
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

# Spark's own Iceberg, which the tests read with. It holds what it needs.
ICEBERG_SPARK = JarSet(
    "iceberg-spark",
    (f"org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:{ICEBERG_VERSION}",),
    leave_out=("org.apache.spark:*", "org.scala-lang:*", "org.scala-lang.modules:*"),
)

# A folder for Connect's plugin.path: Iceberg's own sink, which the benchmarks compare with, what it
# writes local files by, and a catalog's database driver.
ICEBERG_CONNECT = JarSet(
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
ICEBERG_REST = JarSet(
    "iceberg-rest",
    (
        f"org.apache.iceberg:iceberg-core:{ICEBERG_VERSION}",
        f"org.apache.hadoop:hadoop-client-api:{HADOOP_VERSION}",
        f"org.apache.hadoop:hadoop-client-runtime:{HADOOP_VERSION}",
        "org.xerial:sqlite-jdbc:3.50.3.0",
    ),
)

# A Hive metastore, which the tests write to, without what it brings of an old Hadoop.
HIVE_METASTORE = JarSet(
    "hive-metastore",
    (
        f"org.apache.hive:hive-standalone-metastore-server:{HIVE_VERSION}",
        f"org.apache.hadoop:hadoop-client-api:{HADOOP_VERSION}",
        f"org.apache.hadoop:hadoop-client-runtime:{HADOOP_VERSION}",
        f"org.apache.hadoop:hadoop-hdfs:{HADOOP_VERSION}",  # for an exception that it wants to know
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
HDFS = JarSet(
    "hdfs",
    (
        f"org.apache.hadoop:hadoop-client-minicluster:{HADOOP_VERSION}",
        f"org.apache.hadoop:hadoop-client-runtime:{HADOOP_VERSION}",
        f"org.apache.hadoop:hadoop-client-api:{HADOOP_VERSION}",
        "org.slf4j:slf4j-simple:1.7.36",  # of the release of its slf4j-api
        "javax.xml.bind:jaxb-api:2.3.1",  # which Java has no more
    ),
)

# Servers that the tests and the drill write to: the last OpenSearch for Java 17, and the last
# Elasticsearch whose transport is published.
OPENSEARCH = JarSet(
    "opensearch",
    (
        f"org.opensearch:opensearch:{OPENSEARCH_VERSION}",
        f"org.opensearch.plugin:transport-netty4-client:{OPENSEARCH_VERSION}",
        "org.apache.logging.log4j:log4j-core:2.25.3",  # of the release of its log4j-api
    ),
)
ELASTICSEARCH = JarSet(
    "elasticsearch",
    (
        f"org.elasticsearch:elasticsearch:{ELASTICSEARCH_VERSION}",
        f"org.elasticsearch.plugin:transport-netty4-client:{ELASTICSEARCH_VERSION}",
        "org.apache.logging.log4j:log4j-core:2.17.1",
    ),
)


def resolve(jar_set: JarSet) -> list[Path]:
    """The paths of a jar set's files, downloaded if need be.

    The first call walks the POMs and takes seconds, later ones read a remembered list. Several
    processes may call it at once.
    """
    remembered = _remembered(jar_set)
    if paths := _read(remembered):
        return paths
    remembered.parent.mkdir(parents=True, exist_ok=True)
    # jgo downloads straight to the final name, so all resolving is serialized, whatever the set.
    with locked(remembered.parent / "lock"):
        if paths := _read(remembered):  # another process has been faster
            return paths
        paths = _download(jar_set)
        written = remembered.with_suffix(f".{os.getpid()}")
        written.write_text(json.dumps([str(path) for path in paths], indent=1))
        written.replace(remembered)
    return paths


def unpacked(distribution: Distribution) -> Path:
    """The folder of a distribution's files, downloaded if need be."""
    name = f"{distribution.artifact}-{distribution.version}"
    folder = cache_directory() / "distributions" / name
    if folder.exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with locked(folder.parent / "lock"):
        if not folder.exists():
            archive = _archive(distribution)
            new = folder.with_suffix(f".{os.getpid()}")
            with tarfile.open(archive) as packed:
                packed.extractall(new, filter="data")
            new.rename(folder)
    return folder


def _archive(distribution: Distribution) -> Path:
    name = f"{distribution.group}:{distribution.artifact}:{distribution.version}"
    try:
        from jgo.config import GlobalSettings
        from jgo.constants import MAVEN_CENTRAL_URL
        from jgo.maven import MavenContext
    except ImportError as missing:
        raise ServiceError(
            f"{name} is fetched by jgo, which is not installed: pip install 'semel[embedded]'"
        ) from missing
    repositories = {"central": MAVEN_CENTRAL_URL} | GlobalSettings.load().repositories
    project = MavenContext(remote_repos=repositories, timeout=60).project(
        distribution.group, distribution.artifact
    )
    artifact = project.at_version(distribution.version).artifact(
        classifier=distribution.classifier, packaging=distribution.packaging
    )
    try:
        return Path(artifact.resolve())
    except Exception as failure:  # jgo raises RuntimeError, requests' errors, ...
        raise ServiceError(f"Cannot get {name}: {failure}") from failure


def classpath(*jar_sets: JarSet) -> str:
    """Jar sets as a Java class path; where sets share a jar of one version it stands once."""
    return os.pathsep.join(dict.fromkeys(str(path) for jars in jar_sets for path in resolve(jars)))


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds a file lock between processes; the kernel drops it when the holder dies."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def cache_directory() -> Path:
    """Where semel remembers what can be had again: ``$XDG_CACHE_HOME/semel``."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "semel"


def _remembered(jar_set: JarSet) -> Path:
    key = json.dumps([jar_set.coordinates, jar_set.leave_out])
    digest = hashlib.sha256(key.encode()).hexdigest()[:16]
    return cache_directory() / "jars" / f"{jar_set.name}-{digest}.json"


def _read(remembered: Path) -> list[Path]:
    """The remembered paths, or none if they were never resolved or a file is gone since."""
    try:
        paths = [Path(path) for path in json.loads(remembered.read_text())]
    except (OSError, ValueError):
        return []
    return paths if all(path.is_file() for path in paths) else []


def _download(jar_set: JarSet) -> list[Path]:
    try:
        import jgo
        from jgo.config import GlobalSettings
    except ImportError as missing:
        raise ServiceError(
            f"The jars of {jar_set.name} are fetched by jgo, which is not installed: "
            "pip install 'semel[embedded]'"
        ) from missing

    # "!" asks for plain Maven rules. Without it jgo lets each coordinate's POM manage versions as
    # a BOM, and log4j's would put an old kafka-clients under the broker.
    endpoint = "+".join(f"{coordinate}!" for coordinate in jar_set.coordinates)
    try:
        artifacts = jgo.resolve(endpoint, repositories=GlobalSettings.load().repositories)
    except Exception as failure:  # jgo raises RuntimeError, requests' errors, parse errors, ...
        raise _not_to_be_had(jar_set, " and ".join(jar_set.coordinates), failure) from failure
    return [
        _file(jar_set, artifact)
        for artifact in artifacts
        if not jar_set.leaves_out(artifact.groupId, artifact.artifactId)
    ]


def _file(jar_set: JarSet, artifact: Any) -> Path:
    """The artifact's file. One that an earlier, interrupted download left in part is replaced."""
    try:
        path = Path(artifact.resolve())
        if not zipfile.is_zipfile(path):
            path.unlink()
            path = Path(artifact.resolve())
        if zipfile.is_zipfile(path):
            return path
    except Exception as failure:
        raise _not_to_be_had(jar_set, _coordinate(artifact), failure) from failure
    raise ServiceError(
        f"The jar {_coordinate(artifact)} of {jar_set.name} is damaged: delete {path} "
        "and check the Maven repository it comes from."
    )


def _not_to_be_had(jar_set: JarSet, coordinate: str, failure: Exception) -> ServiceError:
    # jgo's own message names the missing artifact, then lists every repository: only the former.
    reason = re.sub(r" in remote repositories .*", "", str(failure), flags=re.DOTALL)
    return ServiceError(
        f"Cannot get {coordinate}, needed for {jar_set.name}: {reason}. Maven repositories other "
        "than Maven Central are set under [repositories] in jgo's configuration file."
    )


def _coordinate(artifact: Any) -> str:
    return f"{artifact.groupId}:{artifact.artifactId}:{artifact.version}"


def _pattern(glob: str) -> re.Pattern[str]:
    return re.compile(re.escape(glob).replace(r"\*", "[^:]*"))
