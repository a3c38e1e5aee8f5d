"""The configuration that the docs describe is the configuration that the code reads."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from semel import converters, transforms
from semel.cli.worker import PASSED_ON
from semel.config import (
    ConnectorConfig,
    Definition,
    SourceConnectorConfig,
    default_text,
    definitions,
    names,
)
from semel.config.proxy import ProxyConfig
from semel.config.worker import ClusterConfig, WorkerConfig
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
    "worker": ("worker.md", WorkerConfig),
    "cluster": ("cluster.md", ClusterConfig),
    "rest": ("kafka-rest.md", ProxyConfig),
    **{
        name: ("converters.md", converters.find(name, where="").section)
        for name in sorted(converters.names())
    },
}
_TABLE = re.compile(
    r"^\| key(?:, below [^|]*)? \| type \| default \|[^\n]*\n\|[-|]+\|\n((?:\|[^\n]*\n)*)", re.M
)
_CELL = r"((?:[^|\\]|\\.)*)"
_ROW = re.compile(rf"^\| (`[^|]+`) \|{_CELL}\|{_CELL}\|(?:{_CELL}\|)?{_CELL}\|$", re.M)
"""Columns: keys, type, default, what they are for (only on some pages), meaning."""
_NAME = re.compile(r"`([^`]+)`")
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")


@dataclass(frozen=True)
class Row:
    type: str
    default: str
    meaning: str


def _rows(page: str) -> dict[str, list[Row]]:
    """Key -> its rows, of the tables whose head begins with key, type, default. A row of several
    keys has one default for all, or one for each."""
    found: dict[str, list[Row]] = {}
    for table in _TABLE.findall(_text(page)):
        for several, kind, default, _, meaning in _ROW.findall(table):
            names = _NAME.findall(several)
            defaults = _NAME.findall(default) or [default.strip()]
            if len(defaults) != len(names):
                defaults = [default.strip().strip("`")] * len(names)
            for name, its in zip(names, defaults, strict=True):
                found.setdefault(name, []).append(Row(kind.strip(), its, meaning))
    return found


def _text(page: str) -> str:
    return (DOCS / page).read_text()


def _stands(name: str, text: str) -> bool:
    return re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w-]|\.\w)", text) is not None


_BESIDES = {
    "databases.md": ["postgresql.md"],
    "sources.md": ["configuration.md"],
    "cluster.md": ["worker.md"],
    "kafka-rest.md": ["worker.md"],
}
"""Pages that have some of a page's keys."""
_SHARED = {"connector.class"}
"""Keys whose defaults are not the same for all classes of a page."""
_NO_EFFECT = "Has no effect"


def _plain(markdown: str) -> str:
    """A text as a terminal shows it."""
    text = _LINK.sub(r"\1", markdown).replace("`", "").replace("\\|", "|")
    return " ".join(text.split())


def _differences(key: Definition, row: Row) -> list[str]:
    """How a row differs from the declaration of its key."""
    wrong = []
    if not _plain(row.meaning).startswith(key.documentation):
        wrong.append(
            f"{key.name}: the meaning must begin with the declared documentation\n"
            f"  declared: {key.documentation}\n  row:      {_plain(row.meaning)}"
        )
    if key.documentation.startswith(_NO_EFFECT):
        return wrong
    default = "required" if key.required else default_text(key) or ""
    if key.name not in _SHARED and default and row.default != default:
        wrong.append(f"{key.name}: default {row.default!r} in the row, {default!r} in code")
    if row.type != key.type.lower():
        wrong.append(f"{key.name}: type {row.type!r} in the row, {key.type.lower()!r} in code")
    wrong += [
        f"{key.name}: value {value!r} is not in the row"
        for value in key.recommended_values
        if not _stands(value, row.meaning + row.default)
    ]
    return wrong


@pytest.mark.parametrize("of", SECTIONS)
def test_the_docs_list_every_key_as_it_is_declared(of: str) -> None:
    """A row has the type, the default and all values of its key, and its meaning begins with the
    declared documentation. A key with different declarations has a row for each. A default that is
    empty in code is worked out. The databases share the keys of the JDBC sinks."""
    page, section = SECTIONS[of]
    pages = [page, *(_BESIDES.get(page, []))]
    text = "".join(map(_text, pages))
    wrong = []
    for key in definitions(section):
        if not _stands(key.name, text):
            wrong.append(f"{key.name} is missing")
        rows = [row for each in pages for row in _rows(each).get(key.name, [])]
        wrong += min((_differences(key, row) for row in rows), key=len, default=[])
    assert not wrong, f"docs/{page}\n" + "\n".join(wrong)


@pytest.mark.parametrize("page", sorted({page for page, _ in SECTIONS.values()}))
def test_every_row_belongs_to_a_declaration(page: str) -> None:
    declared: dict[str, list[str]] = {}
    for its, section in SECTIONS.values():
        if page in (its, *_BESIDES.get(its, [])):
            for key in definitions(section):
                declared.setdefault(key.name, []).append(key.documentation)
    stray = [
        f"{name}: no declaration has this meaning\n  row: {_plain(row.meaning)}"
        for name, rows in _rows(page).items()
        for row in rows
        if name in declared and not _plain(row.meaning).startswith(tuple(declared[name]))
    ]
    assert not stray, "\n".join(stray)


@pytest.mark.parametrize("of", SECTIONS)
def test_the_documentation_of_a_key_can_be_read_without_the_docs(of: str) -> None:
    texts = {key.name: key.documentation for key in definitions(SECTIONS[of][1])}
    unfit = re.compile(r"see (above|below)|next (key|row)|docs/|`|\]\(", re.I)
    odd = {n: t for n, t in texts.items() if not t[:-1] or t[-1] != "." or unfit.search(t)}
    assert odd == {}


@pytest.mark.parametrize("page", sorted({page for page, _ in SECTIONS.values()}))
def test_the_docs_name_no_key_that_nothing_reads(page: str) -> None:
    known = {name for _, section in SECTIONS.values() for name in names(section)}
    passed_on = PASSED_ON if page == "worker.md" else ()
    named = {n for n in _rows(page) if not n.startswith(passed_on)}
    assert {n for n in named - known if not re.search(r"[*<]|^\.", n)} == set()
    meanings = "".join(row.meaning for rows in _rows(page).values() for row in rows)
    also = re.findall(r"Also: (`[^`]+`(?:, `[^`]+`)*)", meanings)
    aliases = {alias for part in also for alias in _NAME.findall(part)}
    assert {a for a in aliases - known if not re.search(r"[*<=]", a)} == set()


_STAGES = re.compile(
    r"^\| (?:transform|predicate) \| options \| [^\n]*\n\|[-|]+\|\n((?:\|[^\n]*\n)*)", re.M
)
_BELOW = re.compile(r"`([\w.]+\.)`")
_BESIDE = re.compile(r"\(([^)]*)\)")
_IN_PROSE = {"sql", "python"}
"""Classes whose keys are explained without a table."""


def _prose(text: str) -> str:
    """A text without its tables, and with keys below ``transforms.<name>.`` by their own names."""
    lines = (line for line in text.splitlines() if not line.startswith("|"))
    return re.sub(r"transforms\.\w+\.", "", "\n".join(lines))


def _options() -> dict[str, str]:
    """Each class of docs/transforms.md -> the options that its rows name. Names of a section are
    below those that it names with a dot at the end; a row without a name continues the one
    before."""
    found: dict[str, str] = {}
    classes: list[str] = []
    for section in _text("transforms.md").split("\n## "):
        below = _BELOW.findall(_prose(section)) or [""]
        for row in "".join(_STAGES.findall(section)).splitlines():
            _, name, options, *_ = row.split("|")
            classes = [b + n for b in below for n in _NAME.findall(name)] or classes
            found |= {each: found.get(each, "") + options for each in classes}
    return found


def _stages() -> dict[str, type]:
    kinds = ("transforms", "predicates")
    found = [each for kind in kinds for each in transforms.classes(kind)]
    return {name.partition("$")[0]: made.section for name, made in found}


def test_the_docs_list_every_transform_and_predicate() -> None:
    assert _options().keys() | _IN_PROSE == _stages().keys()


@pytest.mark.parametrize("name", sorted(_stages()))
def test_the_docs_list_every_option_of_a_transform_with_its_values(name: str) -> None:
    """In the rows of the transform, with the values in parentheses after it or after the next one,
    or in the prose of the page."""
    options, prose = _options().get(name, ""), _prose(_text("transforms.md"))
    listed = set(_NAME.findall(_BESIDE.sub("", options)))
    keys = definitions(_stages()[name])
    known = {n for key in keys for n in key.names}
    wrong = [f"{option} is no option of {name}" for option in sorted(listed - known)]
    for key in keys:
        if key.name not in listed:
            if not _stands(key.name, prose):
                wrong.append(f"{key.name} is missing from docs/transforms.md")
            continue
        named = re.search(rf"`{re.escape(key.name)}`(?:, `[^`]+`)? {_BESIDE.pattern}", options)
        beside = named[1] if named else ""
        shown, values = {v.lower() for v in _NAME.findall(beside)}, set(key.recommended_values)
        if values and shown != values and "without effect" not in beside:
            wrong.append(f"{key.name}: {sorted(shown)} in docs, {sorted(values)} in code")
    assert not wrong, "\n".join(wrong)
