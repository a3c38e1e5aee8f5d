"""The configuration that the docs describe is the configuration that the code reads."""

from __future__ import annotations

import dataclasses
import re
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from semel.config import ConnectorConfig
from semel.sinks import sink_class

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
            "opensearch": "elasticsearch.md",
        }.items()
    },
}
_ROW = re.compile(r"^\| (`[^|]+`) \|([^|]*)\|(.*)\|$", re.M)
_NAME = re.compile(r"`([^`]+)`")


def _rows(page: str) -> dict[str, tuple[str, str]]:
    """Key -> default and meaning, of the tables whose first row is key, default, meaning."""
    found: dict[str, tuple[str, str]] = {}
    for table in re.findall(
        r"^\| key \| default \|[^\n]*\n\|[-|]+\|\n((?:\|[^\n]*\n)*)", _text(page), re.M
    ):
        for names, default, meaning in _ROW.findall(table):
            for name in _NAME.findall(names):
                found[name] = (default.strip().strip("`"), meaning)
    return found


def _text(page: str) -> str:
    return (DOCS / page).read_text()


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default is dataclasses.MISSING:
        return "required"
    value = field.default
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return "" if value is None else str(value)


def _keys(section: type) -> dict[str, dataclasses.Field[Any]]:
    return {f.metadata["name"]: f for f in dataclasses.fields(section) if f.metadata}


_CHOSEN = {
    "connector.class",
    "iceberg.control.commit.interval-ms",
    "connection.timeout.ms",
    "read.timeout.ms",
}
"""Keys whose default depends on another one, or that share a row or a page."""


@pytest.mark.parametrize("of", SECTIONS)
def test_every_key_stands_in_the_docs_with_its_default(of: str) -> None:
    """A key in a table has its default beside it; ``""`` in code is one that is worked out. The
    databases share the keys of the JDBC sinks."""
    page, section = SECTIONS[of]
    pages = [page, *(["postgresql.md"] if page == "databases.md" else [])]
    text = "".join(map(_text, pages))
    rows = {k: v for each in reversed(pages) for k, v in _rows(each).items()}
    wrong = []
    for name, field in _keys(section).items():
        default = _default(field)
        if not re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w-]|\.\w)", text):
            wrong.append(f"{name} is missing from docs/{page} (default {default!r})")
        elif name in rows and name not in _CHOSEN and default and rows[name][0] != default:
            wrong.append(f"{name}: {rows[name][0]!r} in docs/{page}, {default!r} in code")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("page", sorted({page for page, _ in SECTIONS.values()}))
def test_the_docs_name_no_key_that_nothing_reads(page: str) -> None:
    known = {
        name
        for _, section in SECTIONS.values()
        for field in _keys(section).values()
        for name in (field.metadata["name"], *field.metadata["aliases"])
    }
    named = set(_rows(page))
    assert {n for n in named - known if not re.search(r"[*<]|^\.", n)} == set()
    also = re.findall(r"Also: (`[^`]+`(?:, `[^`]+`)*)", "".join(m for _, m in _rows(page).values()))
    aliases = {alias for part in also for alias in _NAME.findall(part)}
    assert {a for a in aliases - known if not re.search(r"[*<=]", a)} == set()
