"""A command imports only what it needs: each import is time that a user waits for an answer."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from semel_lab.embedded.process import free_port
from tests.conftest import wait_gone
from tests.processes import run_to_end

CONFIG = {
    "name": "nowhere",
    "connector.class": "postgresql",
    "topics": "a",
    "bootstrap.servers": "127.0.0.1:1",
    "connection.url": "jdbc:postgresql://127.0.0.1:1/db",
}
PROGRAM = """
import sys
from semel.cli import main
try:
    main()
except SystemExit as ended:
    code = ended.code or 0
from pathlib import Path
children = Path("/proc/self/task").glob("*/children")
print("\\n" + json.dumps([code, sorted(sys.modules), "".join(c.read_text() for c in children)]))
"""
IMPATIENT = """
from semel.kafka import cluster
cluster.wait_for_brokers.__defaults__ = (5.0, *cluster.wait_for_brokers.__defaults__[1:])
"""
"""Waits for brokers no longer than it takes Spark to start."""
HEAVY = ("deltalake", "pyiceberg", "semel_lab.demo", "semel_lab.drill.run")


def ended(*arguments: object, before: str = "") -> tuple[int, set[str], str]:
    """The exit code, what was imported, and the processes that are left."""
    done = run_to_end(
        [sys.executable, "-c", f"import json{before}{PROGRAM}", *map(str, arguments)],
        env={**os.environ, "COVERAGE_PROCESS_START": ""},
        timeout=120,
    )
    assert done.stdout, done.stderr
    code, modules, children = json.loads(done.stdout.splitlines()[-1])
    return code, set(modules), children


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "nowhere.json"
    path.write_text(json.dumps(CONFIG))
    return path


def test_help_and_validate_import_neither_spark_nor_stores_they_do_not_use(file: Path) -> None:
    for arguments in (("--help",), ("validate", file)):
        code, modules, children = ended(*arguments)
        assert (code, children) == (0, "")
        assert not {*HEAVY, "pyspark", "py4j", "duckdb", "adbc_driver_sqlite"} & modules
        assert "pandas" not in modules or "validate" in arguments  # PostgreSQL's driver imports it


def test_managing_connectors_imports_no_engine_and_no_client_of_kafka() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    code, modules, children = ended("connectors", "list", "--url", url)
    assert (code, children) == (3, "")
    heavy = {*HEAVY, "confluent_kafka", "fastapi", "httpx", "numpy", "pyarrow", "pyspark", "py4j"}
    assert not heavy & modules


@pytest.mark.long
def test_a_run_that_is_refused_leaves_no_spark_and_imports_no_other_store(file: Path) -> None:
    code, modules, children = ended("run", file, before=IMPATIENT)
    assert code == 3
    assert not set(HEAVY) & modules
    assert all(wait_gone(int(pid)) for pid in children.split())
