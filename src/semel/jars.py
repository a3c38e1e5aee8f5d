"""Sets of jars: how they are resolved, and the set for Spark's Kafka source.

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
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from semel.errors import ServiceError

# Spark's jars follow the PySpark that is installed; pyproject.toml pins it.
PYSPARK_VERSION = version("pyspark")


@dataclass(frozen=True)
class JarSet:
    """Maven coordinates that are resolved together, the nearest version of a jar winning.

    ``leave_out`` holds ``group:artifact`` patterns (``*`` matches within a part) of what the
    process that loads the jars already has; a second copy of it would clash.
    """

    name: str
    coordinates: tuple[str, ...]
    leave_out: tuple[str, ...] = ()

    def leaves_out(self, group: str, artifact: str) -> bool:
        """Whether a resolved artifact is not to be loaded."""
        return any(_pattern(glob).fullmatch(f"{group}:{artifact}") for glob in self.leave_out)


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
        if paths := _read(remembered):  # another process was faster
            return paths
        paths = _download(jar_set)
        written = remembered.with_suffix(f".{os.getpid()}")
        written.write_text(json.dumps([str(path) for path in paths], indent=1))
        written.replace(remembered)
    return paths


def classpath(*jar_sets: JarSet) -> str:
    """Jar sets as a Java class path; a jar that several sets share appears once."""
    return os.pathsep.join(dict.fromkeys(str(path) for jars in jar_sets for path in resolve(jars)))


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds a file lock between processes; the kernel drops it when the holder dies."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def cache_directory() -> Path:
    """Where semel keeps what it can fetch or make again: ``$XDG_CACHE_HOME/semel``."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "semel"


def _remembered(jar_set: JarSet) -> Path:
    key = json.dumps([jar_set.coordinates, jar_set.leave_out])
    digest = hashlib.sha256(key.encode()).hexdigest()[:16]
    return cache_directory() / "jars" / f"{jar_set.name}-{digest}.json"


def _read(remembered: Path) -> list[Path]:
    """The remembered paths, or none if they were never resolved or a file has disappeared."""
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
        raise _unavailable(jar_set, " and ".join(jar_set.coordinates), failure) from failure
    return [
        _file(jar_set, artifact)
        for artifact in artifacts
        if not jar_set.leaves_out(artifact.groupId, artifact.artifactId)
    ]


def _file(jar_set: JarSet, artifact: Any) -> Path:
    """The artifact's file. A partial file from an interrupted download is replaced."""
    try:
        path = Path(artifact.resolve())
        if not zipfile.is_zipfile(path):
            path.unlink()
            path = Path(artifact.resolve())
        if zipfile.is_zipfile(path):
            return path
    except Exception as failure:
        raise _unavailable(jar_set, _coordinate(artifact), failure) from failure
    raise ServiceError(
        f"The jar {_coordinate(artifact)} of {jar_set.name} is damaged: delete {path} "
        "and check the Maven repository it comes from."
    )


def _unavailable(jar_set: JarSet, coordinate: str, failure: Exception) -> ServiceError:
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
