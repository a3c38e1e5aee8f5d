"""The converter of docs/converters.md, installed with its entry point."""

from __future__ import annotations

import os
import re
import sqlite3
import tomllib
from pathlib import Path

import pyarrow as pa
import pytest

from semel import converters
from semel.core.errors import ConfigError
from semel_lab.embedded import Kafka
from tests.conftest import MakeTopic
from tests.engine.harness import caught_up, name

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "converters.md").read_text().partition("## Your own")[2]
NAME = "acme.SeparatedConverter"


@pytest.fixture(autouse=True)
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the package is installed, for this process and for those that it starts."""
    made = tmp_path / "site"
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    (entries,) = re.findall(r"```toml\n(.*?)```", PAGE, re.S)
    groups = tomllib.loads(entries)["project"]["entry-points"]
    entry = groups[converters.GROUP][NAME]
    file = made / (entry.partition(":")[0].replace(".", "/") + ".py")
    file.parent.mkdir(parents=True)
    file.write_text(code)
    (info := made / "acme-1.0.0.dist-info").mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0.0\n")
    lines = [
        f"[{g}]\n" + "".join(f"{n} = {v}\n" for n, v in of.items()) for g, of in groups.items()
    ]
    (info / "entry_points.txt").write_text("".join(lines))
    monkeypatch.syspath_prepend(str(made))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(made), str(ROOT)]))
    return made


def decoded(values: list[bytes | None], **config: str) -> converters.Decoded:
    made = converters.create(NAME, config, is_key=False, where="value.converter")
    return made.decode(pa.array(values, pa.binary()))


def test_the_converter_of_the_page_does_what_it_says() -> None:
    found = decoded([b"7;Ann", None, b"8", b"\xff", b"9;"], fields="id,name", separator=";")
    assert found.values.to_pylist() == [
        {"id": "7", "name": "Ann"},
        None,
        None,
        None,
        {"id": "9", "name": ""},
    ]
    assert {f.index: f.message for f in found.failures} == {
        2: "not 2 fields",
        3: "not UTF-8: byte 0xff at position 0",
    }


def test_its_short_name_is_known_and_its_keys_are_checked() -> None:
    assert converters.full_name("SeparatedConverter") == NAME
    with pytest.raises(ConfigError, match=r"value\.converter\.fields"):
        decoded([])


@pytest.mark.integration
def test_a_task_uses_the_converter_of_another_package(
    kafka: Kafka, topic: MakeTopic, tmp_path: Path
) -> None:
    source = topic(partitions=2, values=[f"{i};name {i}" for i in range(100)])
    config = {
        "name": name(),
        "connector.class": "sqlite",
        "connection.url": f"jdbc:sqlite:{tmp_path / 'found.db'}",
        "topics": source,
        "bootstrap.servers": kafka.bootstrap_servers,
        "auto.create": "true",
        "value.converter": "SeparatedConverter",
        "value.converter.fields": "id,name",
        "value.converter.separator": ";",
    }
    caught_up(config)
    with sqlite3.connect(tmp_path / "found.db") as database:
        rows = set(database.execute(f'SELECT id, name FROM "{source}"'))
    assert rows == {(str(i), f"name {i}") for i in range(100)}
