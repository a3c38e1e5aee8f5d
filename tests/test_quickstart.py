"""The quick start's files, commands and Python, run exactly as it shows them."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from semel_lab.embedded import Kafka
from tests.newcomer import Newcomer, blocks, page

PAGE = page("quickstart.md")
pytestmark = pytest.mark.integration


@pytest.fixture
def shell(kafka: Kafka, database: str, tmp_path: Path) -> Newcomer:
    where = urlsplit(database)
    addresses = {
        "localhost:9092": kafka.bootstrap_servers,
        "127.0.0.1:5432/semel": f"{where.hostname}:{where.port}{where.path}",
    }
    newcomer = Newcomer(tmp_path, addresses)
    newcomer.write("orders.json", blocks(PAGE, "json")[0])
    return newcomer


def test_the_python_of_the_quick_start_shows_what_it_says(shell: Newcomer) -> None:
    produce, transform = blocks(PAGE, "python")
    shell.python(produce)
    # A Python worker finds the transform by value: what -c runs is no module.
    assert shell.python(transform).splitlines()[-1] in PAGE


@pytest.mark.long
def test_the_commands_of_the_quick_start_do_what_they_say(shell: Newcomer) -> None:
    lines = [n for n in PAGE.splitlines() if re.match(r"semel \w+ orders\.json", n)]
    assert [n.split()[1] for n in lines] == ["validate", "describe", "run", "audit"]
    shell.python(blocks(PAGE, "python")[0])
    told = [shell.semel(line) for line in lines]
    assert "valid; exactly-once (transactional)" in told[0]
    assert "1000 records: 0 lost, 0 duplicated" in told[-1]
