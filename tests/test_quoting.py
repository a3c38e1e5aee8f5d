"""Names and texts from outside cannot forge log lines, move the cursor or flood the log."""

from __future__ import annotations

import ast
import json
import logging
import pickle
import re
import string
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from rich.markup import escape
from rich.table import Table

import semel
from semel.cli.application import console
from semel.core.context import JsonFormatter, TextFormatter
from semel.core.errors import SemelError
from semel.core.quoting import PATH, all_named, listed, named, one_line, typed

FORGED = "a\n2026-11-29 08:00:00 ERROR forged\x1b[2J\r\x9b1A\u202e\u2028"


def entry(message: str, *arguments: object) -> logging.LogRecord:
    return logging.LogRecord("semel", 40, "", 0, message, arguments, None)


def test_a_name_cannot_end_a_log_line_or_move_the_cursor() -> None:
    text = TextFormatter("%(message)s").format(entry("field %s", FORGED))
    assert all(line.startswith("  ") for line in text.split("\n")[1:])
    assert r"\x1b[2J\r\x9b1A\u202e\u2028" in text
    lines = JsonFormatter().format(entry("field %s", FORGED))
    assert len(lines.splitlines()) == 1
    assert "\x1b" not in json.loads(lines)["message"]


def test_the_names_in_a_type_are_shown_in_one_line_and_cut() -> None:
    nested = pa.struct([(FORGED, pa.int64())])
    assert typed(nested).startswith(r"struct<a\n2026") and "\n" not in typed(nested)
    assert len(typed(pa.struct([(f"field_{n}", pa.int64()) for n in range(30_000)]))) < 300
    assert typed(pa.timestamp("us", "UTC")) == "timestamp[us, tz=UTC]"


def test_what_is_said_of_a_record_is_one_line() -> None:
    assert one_line("field a\n\tb\x1b: no") == r"field a\n\tb\x1b: no"


def test_a_long_line_is_cut_in_logs_and_errors() -> None:
    names = ", ".join(f"field_{n}" for n in range(30_000))
    formatters: list[logging.Formatter] = [TextFormatter("%(message)s"), JsonFormatter()]
    for formatter in formatters:
        assert len(formatter.format(entry("columns: %s", names))) < 5_000
    error = SemelError(f"columns: {names}")
    assert len(str(error)) < 5_000
    assert "(378,897 characters)" in str(error)
    assert str(SemelError(str(error))) == str(error)
    many_lines = "\n".join(["x" * 100] * 10_000)
    assert len(str(SemelError(many_lines))) < 40_000


@pytest.mark.parametrize("value", ["x" * 50_000, "x\n" * 50_000])
def test_a_message_keeps_its_reason_however_long_the_value_in_it_is(value: str) -> None:
    text = str(SemelError(f"topics={value}: a topic's name is too long; use a shorter one"))
    assert text.startswith("topics=x")
    assert text.endswith("a topic's name is too long; use a shorter one")


def test_the_command_line_does_not_let_names_control_the_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    table = Table("name")
    table.add_row(FORGED)
    console().print(table)
    console().print(f"[red]a[/] {escape(FORGED)}")
    shown = capsys.readouterr().out
    assert not set(FORGED) & set(shown) - set(string.printable) - {"\n"}
    assert r"\x1b[2J" in shown


def test_an_error_shows_what_cannot_be_printed() -> None:
    error = SemelError("field a\x1b[31m\ud800 is wrong")
    assert str(error) == r"field a\x1b[31m\ud800 is wrong"
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("order_id", "order_id"),
        ("größe.x-1", "größe.x-1"),
        ("a.b[]", "a.b[]"),
        ("a b", "'a b'"),
        ("a\n2026 ERROR", r"'a\n2026 ERROR'"),
        ("", "''"),
        ("k" * 5000, f"'{'k' * 100}'... (5,000 characters)"),
    ],
)
def test_a_name_is_quoted_unless_it_is_a_plain_word(name: str, shown: str) -> None:
    assert named(name) == shown


def test_of_many_names_some_are_listed() -> None:
    assert listed(["a", "b"]) == "a, b"
    assert listed([f"k{n}" for n in range(30_000)]).endswith("k19 and 29,980 more")


def test_a_path_is_shown_as_far_as_it_takes_to_find_the_file() -> None:
    path = "/data/" + "folder/" * 40 + "a.csv"
    assert named(path, PATH) == path
    assert len(named(path * 100, PATH)) < 1_100


def test_names_that_are_listed_are_quoted_and_cut() -> None:
    assert all_named(["a", "b c", "\n"]) == r"a, 'b c', '\n'"
    assert len(all_named(["k" * 5000] * 5000)) < 3000


_MENTIONS = re.compile(
    r"\b(?:(?:field|column|table|topic|file|header)s?|index|subject|(?:they|values) have|it has) $"
)
_SQL = re.compile(r"SELECT|INSERT|CREATE|ALTER|UPDATE|DELETE|WHERE|DROP|GRANT|OWNER|_schema\.")
_QUOTED = re.compile(r"named\(|listed\(|^[A-Z_]+$|(?:^|\.)_?where(?:\(|$)")
_OF_THE_CONFIGURATION = re.compile(r"config\.|connector\.|format$")
_QUOTED_BEFORE = {"alike", "names", "present", "tables", "them", "topic"}
_NUMBERS = {"count", "error.colno", "len(skips)"}
_OF_SEMEL = {"properties_file"}
"""The properties file of Spark."""


def test_each_name_from_outside_is_quoted_where_a_message_mentions_it() -> None:
    raw = [
        f"{path}:{line}: {name}"
        for path, line, name in _mentioned(Path(semel.__file__).parent)
        if not _QUOTED.search(name)
        and not _OF_THE_CONFIGURATION.search(name)
        and name not in _QUOTED_BEFORE | _NUMBERS | _OF_SEMEL
    ]
    assert raw == []


def _mentioned(root: Path) -> Iterator[tuple[str, int, str]]:
    """What f-strings insert after a word such as "field "."""
    for path in sorted(root.rglob("*.py")):
        where = str(path.relative_to(root))
        if where.startswith(("lab/", "cli/", "config/")):
            continue
        for text in ast.walk(ast.parse(path.read_text())):
            if not isinstance(text, ast.JoinedStr) or _SQL.search(ast.unparse(text)):
                continue
            before = ""
            for part in text.values:
                if isinstance(part, ast.FormattedValue) and _MENTIONS.search(before):
                    yield where, part.lineno, ast.unparse(part.value)
                before = str(part.value) if isinstance(part, ast.Constant) else ""
