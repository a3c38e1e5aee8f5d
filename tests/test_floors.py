"""The house has floors: a module imports from its own room or from the floors below, never from a
floor above and never from a room beside it."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "semel"
LAB = ROOT / "lab" / "src" / "semel_lab"

FLOORS = [
    {"core"},
    {"config"},
    {"converters"},
    {"transforms"},
    {"kafka"},
    {"databases", "storage"},
    {"sinks", "sources"},
    {
        *("sinks.delta", "sinks.files", "sinks.iceberg", "sinks.kafka"),
        *("sinks.search", "sinks.sql"),
    },
    {"sinks.postgresql"},
    {"sources.datagen", "sources.directory", "sources.jdbc", "sources.offsets"},
    {"streams"},
    {"spark"},
    {"tasks"},
    {"driver"},
    {"api"},
    {"", "audit"},
    {"worker"},
    {"proxy"},
    {"cli"},
    {"__main__"},
    {"semel_lab.jars"},
    {"semel_lab.embedded"},
    {"semel_lab.demo", "semel_lab.drill"},
    {"semel_lab.cli"},
]
"""From the ground up. Rooms of one floor do not know each other."""

HOUSES = {"sinks", "sources"}
"""Folders whose folders are rooms of their own."""


def modules() -> Iterator[tuple[str, Path]]:
    """The core's modules by their names in semel, and the lab's by their whole names."""
    for base, package in ((SOURCE, SOURCE), (LAB.parent, LAB)):
        for path in sorted(package.rglob("*.py")):
            parts = path.relative_to(base).with_suffix("").parts
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


NAMES = {name for name, _ in modules()}


def room(module: str) -> str:
    first, *rest = module.split(".")
    inside = first in HOUSES and rest and (len(rest) > 1 or (SOURCE / first / rest[0]).is_dir())
    return f"{first}.{rest[0]}" if inside or (first == LAB.name and rest) else first


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@functools.cache
def imported(path: Path) -> tuple[str, ...]:
    """Modules of both packages that a module imports, wherever in it the import is."""
    return tuple(_imported(path))


def _imported(path: Path) -> Iterator[str]:
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            head, _, inside = name.partition(".")
            if head in ("semel", LAB.name):
                module = inside if head == "semel" else name
                yield module if module in NAMES else module.rpartition(".")[0]


def drawn() -> list[set[str]]:
    """The floors as docs/architecture.md shows them, from the ground up: places, two spaces, and
    what they are. A line that is indented belongs to the one before."""
    page = (ROOT / "docs" / "architecture.md").read_text()
    picture = page.partition("## The floors")[2].split("```text")[1].partition("```")[0].strip("\n")
    floors: list[set[str]] = []
    for line in picture.splitlines():
        if not line.startswith(" "):
            floors.append(set())
        for place in line.strip().partition("  ")[0].split():
            floors[-1].update(rooms_at(place))
    return floors[::-1]


def rooms_at(place: str) -> Iterator[str]:
    """Of ``sources/{jdbc,directory}/``: sources.jdbc and sources.directory."""
    head, _, rest = place.partition("{")
    names, _, tail = rest.partition("}")
    for name in names.split(","):
        path = f"{head}{name}{tail}".rstrip("/").removesuffix(".py").replace("/", ".")
        yield "" if path == "__init__" else path


def test_the_picture_of_the_floors_is_true() -> None:
    assert drawn() == FLOORS


def test_every_room_has_its_floor() -> None:
    placed = [r for floor in FLOORS for r in floor]
    assert len(placed) == len(set(placed))
    assert {room(name) for name in NAMES} == set(placed) | {LAB.name}


def test_no_import_goes_up_or_sideways() -> None:
    floor_of = {r: n for n, floor in enumerate(FLOORS) for r in floor}
    wrong = [
        f"{name} imports {other}"
        for name, path in modules()
        for other in imported(path)
        if room(name) != room(other) and floor_of[room(name)] <= floor_of[room(other)]
    ]
    assert not wrong, "\n".join(wrong)


def test_the_core_does_not_know_the_lab() -> None:
    knows = [
        str(p) for p in SOURCE.rglob("*.*") if p.suffix != ".pyc" and "semel_lab" in p.read_text()
    ]
    assert not knows


ENGINES = ("direct", "bounded", "microbatch", "source")


def test_engines_do_not_know_each_other() -> None:
    """An engine is a folder or a module in ``tasks/`` and in ``driver/``, by the same name."""

    def engine(module: str) -> str | None:
        side, _, inside = module.partition(".")
        name = inside.partition(".")[0]
        return name if side in ("tasks", "driver") and name in ENGINES else None

    wrong = [
        f"{module} imports {other}"
        for module, path in modules()
        for other in imported(path)
        if engine(module) and engine(other) and engine(module) != engine(other)
    ]
    assert not wrong, "\n".join(wrong)


SHARED = 6
"""So many equal lines in a row are one thing that two rooms have each written down."""


def lines(path: Path) -> list[str]:
    """The lines of a module that say something: neither blank ones nor imports."""
    text = path.read_text()
    imports = {
        number
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for number in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    numbered = enumerate(text.splitlines(), start=1)
    return [line.strip() for number, line in numbered if line.strip() and number not in imports]


@functools.cache
def runs(folder: str) -> dict[tuple[str, ...], str]:
    """Where each run of lines occurs in a room; one that other rooms are in is only its modules."""
    within = "*.py" if folder in {*HOUSES, "tasks", "driver"} else "**/*.py"
    return {
        tuple(found[at : at + SHARED]): path.name
        for path in sorted((SOURCE / folder).glob(within))
        for found in [lines(path)]
        for at in range(len(found) - SHARED + 1)
    }


@pytest.mark.parametrize(
    "rooms",
    [
        ("sinks/sql", "sinks/postgresql"),
        ("tasks", "tasks/direct", "tasks/microbatch", "tasks/source"),
        ("driver", "driver/microbatch", "driver/planning"),
    ],
)
def test_rooms_of_one_kind_do_not_repeat_each_other(rooms: tuple[str, ...]) -> None:
    repeated = [
        f"{one}/{ours[run]} and {other}/{theirs[run]}:\n  " + "\n  ".join(run)
        for one, other in combinations(rooms, 2)
        for ours, theirs in [(runs(one), runs(other))]
        for run in ours.keys() & theirs.keys()
    ]
    assert not repeated, "put it once into the room below:\n" + "\n".join(repeated)
