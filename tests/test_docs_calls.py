"""docs/architecture.md draws calls as the code makes them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
_STEP = re.compile(r"( *)(\w+(?:\.\w+)?)(?: {2,}(\S+\.py).*)?$")


def drawings() -> Iterator[list[tuple[int, str, str]]]:
    """Each drawing of calls, which begins with a function and its file: the depth, the function and
    the file of each line. A line without a file means that of the line above it in the tree."""
    page = (ROOT / "docs" / "architecture.md").read_text()
    for block in re.findall(r"```text\n(.*?)```", page, re.DOTALL):
        lines = block.splitlines()
        if (first := _STEP.match(lines[0])) and first[3]:
            steps = [_STEP.match(line) or pytest.fail(f"unreadable: {line}") for line in lines]
            yield [(len(s[1]), s[2], s[3] or "") for s in steps]


def body(name: str, file: str) -> ast.AST:
    """The function of this name, with its class if it is a method."""
    place: ast.AST = ast.parse((ROOT / "src" / "semel" / file).read_text())
    for part in name.split("."):
        place = next(
            node
            for node in ast.iter_child_nodes(place)
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == part
        )
    return place


def names(function: ast.AST) -> set[str]:
    nodes = list(ast.walk(function))
    attributes = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    return attributes | {node.id for node in nodes if isinstance(node, ast.Name)}


def test_each_function_of_a_drawing_is_named_in_one_above_it() -> None:
    """It is called there, or handed down."""
    found = list(drawings())
    assert found
    for steps in found:
        above: list[tuple[int, str, set[str]]] = []
        for depth, name, given in steps:
            while above and above[-1][0] >= depth:
                above.pop()
            file = given or above[-1][1]
            called = {n for _, _, names in above for n in names}
            assert not above or name.rpartition(".")[2] in called, f"nothing calls {name}"
            above.append((depth, file, names(body(name, file))))


def test_a_configuration_and_the_rows_of_a_source_are_followed_to_their_ends() -> None:
    ends = {steps[0][1]: steps[-1][1] for steps in drawings()}
    assert {"run_": "ControlServer.announce", "SourceTask.run": "SourceOffsets.send"}.items() <= (
        ends.items()
    )
