"""The first example of each sink's page, run exactly as shown on the quick start's records."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from semel_lab.embedded import Kafka
from semel_lab.embedded.opensearch import OpenSearch
from tests.newcomer import Newcomer, blocks, page
from tests.test_docs import ROOT

pytestmark = [pytest.mark.integration, pytest.mark.long]


def example(name: str, newcomer: Newcomer) -> str:
    """Produce the quick start's records, run a page's first connector and audit it."""
    newcomer.python(blocks(page("quickstart.md"), "python")[0])
    shown = blocks(page(name), "json")[0]
    connector = json.loads(shown)["name"]
    newcomer.write(f"{connector}.json", shown)
    told = [
        newcomer.semel(line)
        for block in blocks(page(name), "")
        for line in block.splitlines()
        if line.startswith(("semel run", "semel audit")) and f"{connector}.json" in line
    ]
    assert len(told) == 2, "a page shows how to run its example, and how to audit it"
    return told[-1]


@pytest.mark.parametrize("name", ["delta.md", "files.md", "iceberg.md", "kafka.md", "databases.md"])
def test_the_example_of_a_page_loses_and_doubles_nothing(
    name: str, kafka: Kafka, tmp_path: Path
) -> None:
    newcomer = Newcomer(tmp_path, {"localhost:9092": kafka.bootstrap_servers})
    assert "1000 records: 0 lost, 0 duplicated" in example(name, newcomer)


def test_the_example_for_search_loses_and_doubles_nothing(
    kafka: Kafka, opensearch: OpenSearch, tmp_path: Path
) -> None:
    addresses = {
        "localhost:9092": kafka.bootstrap_servers,
        # Beside other tests the server may need longer than the default of 3 s.
        '"http://localhost:9200"': f'"{opensearch.url}", "read.timeout.ms": "60000"',
    }
    told = example("elasticsearch.md", Newcomer(tmp_path, addresses))
    assert "1000 records: 0 lost, 0 duplicated" in told


def test_the_example_for_postgresql_loses_and_doubles_nothing(
    kafka: Kafka, database: str, tmp_path: Path
) -> None:
    where = urlsplit(database)
    addresses = {
        "localhost:9092": kafka.bootstrap_servers,
        "127.0.0.1:5432/semel": f"{where.hostname}:{where.port}{where.path}",
    }
    told = example("postgresql.md", Newcomer(tmp_path, addresses))
    assert "1000 records: 0 lost, 0 duplicated" in told


@pytest.fixture
def reader(kafka: Kafka, database: str, tmp_path: Path) -> Newcomer:
    """Who has followed the quick start up to its first command."""
    where = urlsplit(database)
    addresses = {
        "localhost:9092": kafka.bootstrap_servers,
        "127.0.0.1:5432/semel": f"{where.hostname}:{where.port}{where.path}",
    }
    exported = {
        "SEMEL_BOOTSTRAP_SERVERS": kafka.bootstrap_servers,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",  # of an activated venv
    }
    newcomer = Newcomer(tmp_path, addresses, exported)
    newcomer.write("orders.json", blocks(page("quickstart.md"), "json")[0])
    newcomer.python(blocks(page("quickstart.md"), "python")[0])
    return newcomer


def test_the_programs_of_the_python_page_show_what_they_say(reader: Newcomer) -> None:
    _, arrow, dataframe, session, runtime = blocks(page("python.md"), "python")
    for program in (arrow, dataframe):
        assert f"It prints `{reader.python(program).splitlines()[-1]}`" in page("python.md")
    assert "1000 records read" in reader.python(session)
    assert reader.python(runtime).split()[-1] in ("RUNNING", "UNASSIGNED")


def test_the_program_of_the_page_on_streams_shows_what_it_says(reader: Newcomer) -> None:
    program, *_ = blocks(page("streams.md"), "python")
    assert f"It prints `{reader.python(program).splitlines()[-1]}`" in page("streams.md")


def test_the_program_of_the_readme_runs(reader: Newcomer) -> None:
    (program,) = blocks((ROOT / "README.md").read_text(), "python")
    reader.python(program)
