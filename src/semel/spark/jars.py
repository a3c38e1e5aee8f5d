"""Sets of jars: where their files are, and the set for Spark's Kafka source.

Which jars a set consists of, and the SHA-256 of each, is written down in ``jars.json`` of the
package that declares the set (``scripts/pin_jars.py`` makes it): a process loads no other file.
jgo, a Maven resolver in pure Python, fetches what is not there yet. The paths are remembered, so
only the first start needs the network. A user on a cluster can supply the same jars in their own
way: ``SPARK_KAFKA.coordinates`` is what ``spark-submit --packages`` takes.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

from semel.core.errors import ServiceError
from semel.core.locks import alone

# Spark's jars follow the PySpark that is installed; pyproject.toml pins it.
PYSPARK_VERSION = version("pyspark")

_AT_ONCE = 6
"""Downloads: a repository takes longer to answer than to send a jar."""
_DOWNLOADED_IN = 1800.0
"""Seconds to wait for another process that downloads."""


@dataclass(frozen=True)
class Pin:
    """A jar as it was when its set was pinned."""

    coordinate: str
    sha256: str
    size: int


@dataclass(frozen=True)
class JarSet:
    """Maven coordinates that are resolved together, the nearest version of a jar winning.

    ``leave_out`` holds ``group:artifact`` patterns (``*`` matches within a part) of what the
    process that loads the jars already has; a second copy of it would clash. ``pinned_by`` is the
    package that holds the set's checksums.
    """

    name: str
    coordinates: tuple[str, ...]
    leave_out: tuple[str, ...] = ()
    pinned_by: str = "semel.spark"

    def leaves_out(self, group: str, artifact: str) -> bool:
        """Whether a resolved artifact is not to be loaded."""
        return any(_pattern(glob).fullmatch(f"{group}:{artifact}") for glob in self.leave_out)

    @property
    def request(self) -> dict[str, list[str]]:
        """What the pins of the set were made for."""
        return {"coordinates": list(self.coordinates), "leave_out": list(self.leave_out)}

    def pins(self) -> list[Pin]:
        """The jars of the set.

        Raises:
            ServiceError: it was never pinned, or has changed since.
        """
        entry = _pinned(self.pinned_by).get(self.name)
        if entry is None or entry["request"] != self.request:
            raise ServiceError(
                f"semel has no checksums for the jars of {self.name} "
                f"({' and '.join(self.coordinates)}), and loads no others. It supports the "
                "release of PySpark that it depends on: pip install --force-reinstall semel"
            )
        return [Pin(*jar) for jar in entry["jars"]]


@cache
def _pinned(package: str) -> dict[str, Any]:
    pinned: dict[str, Any] = json.loads((files(package) / "jars.json").read_text())
    return pinned


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

SOURCE = "org.apache.spark.sql.kafka010.KafkaSourceProvider"
"""Spark's Kafka source."""


def resolve(jar_set: JarSet, fetched: Callable[[Pin], None] = lambda _: None) -> list[Path]:
    """The paths of a jar set's files, downloaded if need be.

    The first call compares each file with its checksum; later ones read a remembered list. Several
    processes may call it at once. ``fetched`` is told of each file that is there.

    Raises:
        ServiceError: a file cannot be had, or is not the one that was pinned.
        Unavailable: another process has been at it for half an hour.
    """
    remembered = _remembered(jar_set)
    if paths := _read(remembered):
        return paths
    pins = jar_set.pins()
    remembered.parent.mkdir(parents=True, exist_ok=True)
    # jgo downloads straight to the final name, so all fetching is serialized, whatever the set.
    with alone(remembered.parent / "lock", _DOWNLOADED_IN, f"the jars of {jar_set.name}"):
        if paths := _read(remembered):  # another process was faster
            return paths
        paths = []
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            for pin, path in zip(pins, pool.map(partial(fetch, jar_set.name), pins), strict=True):
                paths.append(path)
                fetched(pin)
        written = remembered.with_suffix(f".{os.getpid()}")
        written.write_text(json.dumps([str(path) for path in paths], indent=1))
        written.chmod(0o600)  # regardless of the umask: see own()
        written.replace(remembered)
    return paths


def is_resolved(jar_set: JarSet) -> bool:
    """Whether a jar set's files are known to be there, so that nothing needs the network."""
    return bool(_read(_remembered(jar_set)))


def own(path: Path) -> bool:
    """Whether only this user or root can have written a file: a JVM runs what is in it."""
    status = path.stat()
    return status.st_uid in (os.geteuid(), 0) and not status.st_mode & 0o022


def classpath(*jar_sets: JarSet) -> str:
    """Jar sets as a Java class path; a jar that several sets share appears once."""
    return os.pathsep.join(dict.fromkeys(str(path) for jars in jar_sets for path in resolve(jars)))


def cache_directory() -> Path:
    """Where semel keeps what it can fetch or make again: ``$XDG_CACHE_HOME/semel``."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "semel"


def _remembered(jar_set: JarSet) -> Path:
    pins = _pinned(jar_set.pinned_by).get(jar_set.name)  # so that no list of former pins is read
    key = json.dumps([jar_set.request, pins])
    digest = hashlib.sha256(key.encode()).hexdigest()[:16]
    return cache_directory() / "jars" / f"{jar_set.name}-{digest}.json"


def _read(remembered: Path) -> list[Path]:
    """The remembered paths; none if they were never resolved, if a file has disappeared, or if
    another user could have written the list or a file."""
    try:
        if not own(remembered):
            return []
        paths = [Path(path) for path in json.loads(remembered.read_text())]
        return paths if all(path.is_file() and own(path) for path in paths) else []
    except (OSError, ValueError, TypeError):
        return []


def fetch(needed_for: str, pin: Pin) -> Path:
    """The file of a pin. One that is not as it was pinned is downloaded once more.

    Raises:
        ServiceError: it cannot be had, or what the repository has is not what was pinned.
    """
    jar = artifact(needed_for, pin.coordinate)
    try:
        path = Path(jar.resolve())
        if (digest := sha256(path)) != pin.sha256:
            path.unlink()
            path = Path(jar.resolve())
            digest = sha256(path)
    except Exception as failure:  # jgo raises RuntimeError, requests' errors, parse errors, ...
        raise _unavailable(needed_for, pin.coordinate, failure) from failure
    if digest != pin.sha256:
        raise ServiceError(
            f"{path}, needed for {needed_for}, is not the file that semel was tested with: its "
            f"SHA-256 is {digest}, not {pin.sha256}. It is not loaded. Check the Maven repository "
            f"that {pin.coordinate} comes from, and delete the file."
        )
    if (status := path.stat()).st_uid == os.geteuid():
        path.chmod(status.st_mode & ~0o022)  # regardless of the umask: see own()
    return path


def artifact(needed_for: str, coordinate: str) -> Any:
    """jgo's artifact of a coordinate, which may have a classifier and a packaging."""
    try:
        from jgo.config import GlobalSettings
        from jgo.constants import MAVEN_CENTRAL_URL
        from jgo.maven import MavenContext
    except ImportError as missing:
        raise ServiceError(
            f"{coordinate}, needed for {needed_for}, is fetched by jgo, which is not installed: "
            "pip install 'semel[jars]'"
        ) from missing
    settings = GlobalSettings.load()
    context = MavenContext(
        repo_cache=settings.repo_cache,
        remote_repos={"central": MAVEN_CENTRAL_URL} | settings.repositories,
        timeout=60,
    )
    group, name, release, *rest = coordinate.split(":")
    classifier, packaging = [*rest, *("", "jar")[len(rest) :]]
    component = context.project(group, name).at_version(release)
    return component.artifact(classifier=classifier, packaging=packaging)


def sha256(path: Path) -> str:
    """A file's checksum."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _unavailable(needed_for: str, coordinate: str, failure: Exception) -> ServiceError:
    # jgo's own message names the missing artifact, then lists every repository: only the former.
    reason = re.sub(r" in remote repositories .*", "", str(failure), flags=re.DOTALL)
    return ServiceError(
        f"Cannot get {coordinate}, needed for {needed_for}: {reason}. Maven repositories other "
        "than Maven Central are set under [repositories] in jgo's configuration file."
    )


def _pattern(glob: str) -> re.Pattern[str]:
    return re.compile(re.escape(glob).replace(r"\*", "[^:]*"))
