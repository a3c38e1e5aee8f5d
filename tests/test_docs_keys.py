"""The configuration that the docs describe is the configuration that the code reads."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from semel.config import ConnectorConfig, SourceConnectorConfig, default_text, definitions, names
from semel.sinks import sink_class
from semel.sources import source_class

DOCS = Path(__file__).parent.parent / "docs"
SECTIONS: dict[str, tuple[str, type]] = {
    "connector": ("configuration.md", ConnectorConfig),
    **{
        name: (page, sink_class(name, {}).section)
        for name, page in {
            "postgresql": "postgresql.md",
            "sqlite": "databases.md",
            "duckdb": "databases.md",
            "mysql": "databases.md",
            "sqlserver": "databases.md",
            "kafka": "kafka.md",
            "delta": "delta.md",
            "iceberg": "iceberg.md",
            "files": "files.md",
            "FileStreamSink": "filestream.md",
            "opensearch": "elasticsearch.md",
        }.items()
    },
    "source connector": ("sources.md", SourceConnectorConfig),
    "JdbcSource": ("jdbc-source.md", source_class("JdbcSource").section),
    "Directory": ("directory.md", source_class("Directory").section),
    "Datagen": ("datagen.md", source_class("Datagen").section),
    "FileStreamSource": ("sources.md", source_class("FileStreamSource").section),
}
_TABLE = re.compile(r"^\| key \| type \| default \|[^\n]*\n\|[-|]+\|\n((?:\|[^\n]*\n)*)", re.M)
_ROW = re.compile(r"^\| (`[^|]+`) \|([^|]*)\|([^|]*)\|(.*)\|$", re.M)
_NAME = re.compile(r"`([^`]+)`")


@dataclass(frozen=True)
class Row:
    type: str
    default: str
    meaning: str


def _rows(page: str) -> dict[str, Row]:
    """Key -> its row, of the tables whose head begins with key, type, default. A row of several
    keys has one default for all, or one for each."""
    found: dict[str, Row] = {}
    for table in _TABLE.findall(_text(page)):
        for several, kind, default, meaning in _ROW.findall(table):
            names = _NAME.findall(several)
            defaults = _NAME.findall(default) or [default.strip()]
            if len(defaults) != len(names):
                defaults = [default.strip().strip("`")] * len(names)
            for name, its in zip(names, defaults, strict=True):
                found[name] = Row(kind.strip(), its, meaning)
    return found


def _text(page: str) -> str:
    return (DOCS / page).read_text()


def _stands(name: str, text: str) -> bool:
    return re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w-]|\.\w)", text) is not None


_BESIDES = {"databases.md": ["postgresql.md"], "sources.md": ["configuration.md"]}
"""Pages that have some of a page's keys."""
_SHARED = {"connector.class"}
"""Keys whose defaults are not the same for all sinks of a page."""


@pytest.mark.parametrize("of", SECTIONS)
def test_every_key_stands_in_the_docs_with_its_type_default_and_values(of: str) -> None:
    """A key in a table has its type, its default and all its values beside it; a default that is
    empty in code is worked out. The databases share the keys of the JDBC sinks."""
    page, section = SECTIONS[of]
    pages = [page, *(_BESIDES.get(page, []))]
    text = "".join(map(_text, pages))
    rows = {k: v for each in reversed(pages) for k, v in _rows(each).items()}
    wrong = []
    for key in definitions(section):
        default = "required" if key.required else default_text(key) or ""
        row = rows.get(key.name)
        if not _stands(key.name, text):
            wrong.append(f"{key.name} is missing from docs/{page} (default {default!r})")
        if row is None:
            continue
        if key.name not in _SHARED and default and row.default != default:
            wrong.append(f"{key.name}: {row.default!r} in docs/{page}, {default!r} in code")
        if row.type != key.type.lower():
            wrong.append(f"{key.name}: type {row.type!r} in docs/{page}, {key.type!r} in code")
        wrong += [
            f"{key.name}: value {value!r} is not in docs/{page}"
            for value in key.recommended_values
            if not _stands(value, row.meaning + row.default)
        ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("page", sorted({page for page, _ in SECTIONS.values()}))
def test_the_docs_name_no_key_that_nothing_reads(page: str) -> None:
    known = {name for _, section in SECTIONS.values() for name in names(section)}
    named = set(_rows(page))
    assert {n for n in named - known if not re.search(r"[*<]|^\.", n)} == set()
    meanings = "".join(row.meaning for row in _rows(page).values())
    also = re.findall(r"Also: (`[^`]+`(?:, `[^`]+`)*)", meanings)
    aliases = {alias for part in also for alias in _NAME.findall(part)}
    assert {a for a in aliases - known if not re.search(r"[*<=]", a)} == set()
