"""Jar sets: resolved once, remembered, and reported clearly if they are unavailable."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pyspark
import pytest

import semel_lab.jars
from semel.core.errors import ServiceError
from semel.spark import jars
from semel_lab.jars import KAFKA, KAFKA_VERSION
from tests.patience import PATIENCE


def names(paths: list[Path]) -> set[str]:
    return {path.name for path in paths}


def test_spark_jars_follow_the_installed_pyspark() -> None:
    found = names(jars.resolve(jars.SPARK_KAFKA))
    assert f"spark-sql-kafka-0-10_2.13-{pyspark.__version__}.jar" in found
    assert any(name.startswith("kafka-clients-") for name in found)


def test_no_spark_jar_is_one_that_pyspark_has() -> None:
    def artifact(path: Path) -> str:
        return path.name.rpartition("-")[0]

    bundled = {artifact(path) for path in (Path(pyspark.__file__).parent / "jars").glob("*.jar")}
    assert not bundled & {artifact(path) for path in jars.resolve(jars.SPARK_KAFKA)}


def test_broker_and_its_clients_have_one_version() -> None:
    found = names(jars.resolve(KAFKA))
    assert f"kafka_2.13-{KAFKA_VERSION}.jar" in found
    assert f"kafka-clients-{KAFKA_VERSION}.jar" in found


def test_second_resolve_reads_a_remembered_list(monkeypatch: pytest.MonkeyPatch) -> None:
    found = jars.resolve(KAFKA)
    monkeypatch.setitem(sys.modules, "jgo.config", None)  # importing it would fail
    assert jars.resolve(KAFKA) == found
    assert all(path.is_file() for path in found)


def test_remembered_list_is_not_trusted_when_a_file_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    right = jars.resolve(jars.SPARK_KAFKA)
    (remembered,) = (tmp_path / "semel" / "jars").glob("*.json")
    remembered.write_text(json.dumps([*map(str, right), "/gone.jar"]))
    assert jars.resolve(jars.SPARK_KAFKA) == right
    remembered.write_text('["/half a li')
    assert jars.resolve(jars.SPARK_KAFKA) == right


def test_processes_may_resolve_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jars.resolve(jars.SPARK_KAFKA)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    code = "from semel.spark import jars; print(*jars.resolve(jars.SPARK_KAFKA))"
    both = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    answers = [process.communicate(timeout=PATIENCE)[0].split() for process in both]
    assert answers[0] == answers[1] == [str(path) for path in jars.resolve(jars.SPARK_KAFKA)]


def test_missing_jar_is_named() -> None:
    unknown = jars.Pin("org.apache.kafka:no-such-artifact:1.0", "", 0)
    with pytest.raises(ServiceError, match=r"org\.apache\.kafka:no-such-artifact:1\.0"):
        jars.fetch("nothing", unknown)


def test_missing_jgo_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setitem(sys.modules, "jgo.config", None)
    with pytest.raises(ServiceError, match=r"pip install 'semel\[jars\]'"):
        jars.resolve(KAFKA)


class Artifact:
    """What jgo knows of a jar; each download has these bytes."""

    def __init__(self, path: Path, content: bytes) -> None:
        self.path, self.content = path, content
        self.downloads = 0

    def resolve(self) -> Path:
        if not self.path.exists():
            self.downloads += 1
            self.path.write_bytes(self.content)
        return self.path


def test_damaged_file_is_fetched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = b"all of the jar"
    found = Artifact(tmp_path / "example.jar", whole)
    found.path.write_bytes(whole[:4])
    monkeypatch.setattr(jars, "artifact", lambda *_: found)
    pin = jars.Pin("org.example:example:1.0", hashlib.sha256(whole).hexdigest(), len(whole))
    assert jars.fetch("a test", pin) == found.path
    assert (found.downloads, found.path.read_bytes()) == (1, whole)


def test_a_jar_that_is_not_the_pinned_one_is_never_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found(_needed_for: str, coordinate: str) -> Artifact:  # they are fetched in parallel
        folder = tmp_path / coordinate.replace(":", "-")
        folder.mkdir()
        return Artifact(folder / "evil.jar", b"another jar")

    monkeypatch.setattr(jars, "artifact", found)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(ServiceError, match=r"evil\.jar.*its SHA-256 is \w{64}, not \w{64}"):
        jars.resolve(jars.SPARK_KAFKA)
    assert not jars.is_resolved(jars.SPARK_KAFKA)


@pytest.mark.parametrize("module", [jars, semel_lab.jars])
def test_every_set_is_pinned_as_it_is_declared(module: ModuleType) -> None:
    sets = [each for each in vars(module).values() if isinstance(each, jars.JarSet)]
    for each in sets:
        assert each.pins()


def test_a_set_that_nobody_has_pinned_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    changed = replace(KAFKA, coordinates=(*KAFKA.coordinates, "org.example:example:1.0"))
    with pytest.raises(ServiceError, match="no checksums for the jars of kafka"):
        jars.resolve(changed)


@pytest.mark.parametrize("writable", ["list", "jar"])
def test_what_another_user_could_have_written_is_not_trusted(
    writable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a list of jars nor a jar in it: both are run by a JVM."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    right = jars.resolve(jars.SPARK_KAFKA)
    (remembered,) = (tmp_path / "semel" / "jars").glob("*.json")
    planted = tmp_path / "planted.jar"
    planted.write_bytes(b"another jar")
    planted.chmod(0o666 if writable == "jar" else 0o600)
    remembered.write_text(json.dumps([*map(str, right), str(planted)]))
    remembered.chmod(0o666 if writable == "list" else 0o600)
    assert jars.resolve(jars.SPARK_KAFKA) == right
    assert remembered.stat().st_mode & 0o777 == 0o600
