"""No test waits without a bound of its own."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent
PROGRAMS = {"run", "call", "check_call", "check_output"}


def unbounded(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text())):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        name, of = node.func.attr, node.func.value
        waits = name in ("join", "communicate") and not node.args  # of a thread or a process
        waits |= name in PROGRAMS and isinstance(of, ast.Name) and of.id == "subprocess"
        if waits and not any(k.arg in ("timeout", None) for k in node.keywords):
            yield f"{file.relative_to(ROOT)}:{node.lineno}"


def test_threads_and_programs_are_waited_for_no_longer_than_some_time() -> None:
    files = sorted(ROOT.rglob("*.py"))
    assert [place for file in files for place in unbounded(file)] == []
