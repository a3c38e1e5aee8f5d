"""Jar sets: resolved once, remembered, and reported clearly if they are unavailable."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from semel import jars
from semel.errors import ServiceError
from semel.lab.jars import KAFKA, KAFKA_VERSION
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
    monkeypatch.setitem(sys.modules, "jgo", None)  # importing it would fail
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
    code = "from semel import jars; print(*jars.resolve(jars.SPARK_KAFKA))"
    both = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    answers = [process.communicate(timeout=PATIENCE)[0].split() for process in both]
    assert answers[0] == answers[1] == [str(path) for path in jars.resolve(jars.SPARK_KAFKA)]


def test_missing_jar_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    unknown = jars.JarSet("unknown", ("org.apache.kafka:no-such-artifact:1.0",))
    with pytest.raises(ServiceError, match=r"org\.apache\.kafka:no-such-artifact:1\.0"):
        jars.resolve(unknown)


def test_missing_jgo_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setitem(sys.modules, "jgo", None)
    with pytest.raises(ServiceError, match=r"pip install 'semel\[embedded\]'"):
        jars.resolve(KAFKA)


def test_damaged_file_is_fetched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Artifact:
        groupId, artifactId, version = "org.example", "example", "1.0"
        downloads = 0

        def resolve(self) -> Path:
            path = tmp_path / "example.jar"
            if not path.exists():
                self.downloads += 1
                path.write_bytes(b"PK\x05\x06" + bytes(18))  # an empty but whole zip
            return path

    (tmp_path / "example.jar").write_bytes(b"PK\x03\x04 half a download")
    artifact = Artifact()
    assert jars._file(KAFKA, artifact) == tmp_path / "example.jar"
    assert artifact.downloads == 1
