"""No test waits without a bound of its own, and semel waits for no answer of Kafka without one."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import semel

ROOT = Path(__file__).parent
PROGRAMS = {"run", "call", "check_call", "check_output"}


def calls(file: Path) -> Iterator[tuple[ast.Call, str, ast.expr]]:
    """Calls of methods and of modules' functions: with the name, and what it is called of."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            yield node, node.func.attr, node.func.value


def unbounded(file: Path) -> Iterator[str]:
    for node, name, of in calls(file):
        waits = name in ("join", "communicate") and not node.args  # of a thread or a process
        waits |= name in PROGRAMS and isinstance(of, ast.Name) and of.id == "subprocess"
        if waits and not any(k.arg in ("timeout", None) for k in node.keywords):
            yield f"{file.relative_to(ROOT)}:{node.lineno}"


def test_threads_and_programs_are_waited_for_no_longer_than_some_time() -> None:
    files = sorted(ROOT.rglob("*.py"))
    assert [place for file in files for place in unbounded(file)] == []


def test_no_answer_of_kafka_is_waited_for_without_a_bound() -> None:
    package = Path(semel.__file__).parent
    rooms = [package / room for room in ("kafka", "sinks/kafka", "connect", "lab/drill")]
    files = [file for room in rooms for file in room.rglob("*.py")]
    assert files
    bare = [
        f"{file.relative_to(package)}:{node.lineno}"
        for file in files
        for node, name, _of in calls(file)
        if name == "result" and not node.args and not node.keywords
    ]
    assert bare == []
