"""Today's code reads what each version of a stored format looks like: ``formats/`` keeps one of
each. What a later version has written is refused."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
import pytest

from semel.config import ConnectorConfig, read
from semel.core.errors import ServiceError
from semel.core.ledger import SKIPPED, Advance, Hole, LedgerEntry, OffsetRange, Outcome
from semel.sinks import sink_class
from semel.sinks.base import Sink
from semel.sinks.ledger_json import entry_of

KEPT = Path(__file__).with_name("formats")
AT = "2026-01-02T03:04:05Z"
ENTRY = LedgerEntry("t", 0, 12, 2, 9, 7, 1, 1, 1, AT, "cluster", "topic", 3, 12, "t")
HOLE = Hole("t", 0, 4, 5, SKIPPED, "ann", AT)
FILE = "_semel/c/00000000000000000003.ledger"
VERSIONS = pytest.mark.parametrize("version", ["1"])


def made(name: str, **keys: str) -> Sink:
    raw = {
        "name": "c",
        "connector.class": name,
        "bootstrap.servers": "nowhere:9092",
        "topics": "t",
        **{k.replace("_", "."): v for k, v in keys.items()},
    }
    return sink_class(name, raw)(read(ConnectorConfig, raw))


def executed(name: str, path: Path, script: str) -> Sink:
    """A sink whose database a script has made."""
    with closing(sqlite3.connect(path) if name == "sqlite" else duckdb.connect(path)) as database:
        for statement in filter(str.strip, script.split(";")):
            database.execute(statement)
        if name == "sqlite":
            database.commit()
    keys = {"errors_deadletterqueue_table": "dead", "errors_tolerance": "all"}
    return made(name, connection_url=f"jdbc:{name}:{path}", auto_create="true", **keys)


def placed(folder: Path, name: str, text: str) -> Sink:
    """A sink that finds a ledger in a file."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    if name == FILE:
        return made("files", path=str(folder), value_converter="JsonConverter")
    return made("FileStreamSink", file=str(folder / "lines"))


@VERSIONS
@pytest.mark.parametrize("name", ["sqlite", "duckdb"])
def test_the_tables_of_each_version_are_read_and_written(
    name: str, version: str, tmp_path: Path
) -> None:
    sink = executed(name, tmp_path / "db", (KEPT / version / f"{name}.sql").read_text())
    sink.prepare([])
    assert list(sink.entries()) == [ENTRY]
    assert list(sink.holes()) == [HOLE]
    assert sink.snapshot([]).dead["t"].column("offset").to_pylist() == [7]
    assert sink.advance([Advance(OffsetRange("t", 0, 12, 13), lost=1)]) is Outcome.APPLIED
    assert [h.from_offset for h in sink.holes()] == [4, 12]


@pytest.mark.parametrize("name", ["sqlite", "duckdb"])
def test_new_tables_are_those_of_the_newest_version(name: str, tmp_path: Path) -> None:
    def columns(sink: Any) -> Mapping[str, Any]:
        sink.prepare([])
        found = {}
        with sink._database.transaction(reading=True):
            for table in ("semel_offsets", "semel_holes", "dead"):
                query = f"SELECT name, type, \"notnull\", pk FROM pragma_table_info('{table}')"
                found[table] = sink._database.query(query).to_pylist()
        return found

    newest = max(KEPT.iterdir(), key=lambda each: int(each.name))
    kept = executed(name, tmp_path / "kept", (newest / f"{name}.sql").read_text())
    assert columns(executed(name, tmp_path / "new", "")) == columns(kept)


@VERSIONS
@pytest.mark.parametrize(
    ("kept", "name"),
    [("files.ledger", FILE), ("filestream.semel-ledger", "lines.semel-ledger")],
)
def test_the_ledger_files_of_each_version_are_read(
    kept: str, name: str, version: str, tmp_path: Path
) -> None:
    text = (KEPT / version / kept).read_text()
    sink = placed(tmp_path, name, text)
    assert list(sink.entries()) == [ENTRY]
    assert list(sink.holes()) == [HOLE]
    of = "format" if name == FILE else "version"
    later = placed(tmp_path, name, json.dumps({**json.loads(text), of: 9}))
    with pytest.raises(ServiceError, match=r"later version of semel \(format 9, .*Run that"):
        later.entries()


@VERSIONS
def test_the_entries_of_each_version_are_read_in_kafka_and_iceberg(version: str) -> None:
    facts = json.loads((KEPT / version / "entry.json").read_text())
    assert entry_of("t", 0, facts["position"], facts) == ENTRY
    with pytest.raises(ServiceError, match="entry of t-0 was written by a later version"):
        entry_of("t", 0, 12, {**facts, "v": 9})


@pytest.mark.parametrize("fact", [{"v": "1"}, {"start": "0"}, {"read": True}, {"cluster_id": None}])
def test_facts_of_other_types_are_not_semels(fact: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="the facts of t-0 are not semel's"):
        entry_of("t", 0, 12, fact)
