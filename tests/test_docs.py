"""README and docs/: every relative link leads somewhere, and what they show is well-formed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import semel
from tests.newcomer import blocks

ROOT = Path(__file__).parent.parent
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/*.md"),
        ROOT / "benchmarks/README.md",
        *ROOT.glob("examples/*/README.md"),
    ]
)


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives to a page's headings."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ +(.*?) *$", without_code(page.read_text()), re.MULTILINE):
        slug = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        repeats = sum(1 for n in found if n == slug or re.fullmatch(rf"{re.escape(slug)}-\d+", n))
        found.add(f"{slug}-{repeats}" if repeats else slug)
    return found


def without_code(text: str) -> str:
    return re.sub(r"^ *```.*?^ *```", "", text, flags=re.MULTILINE | re.DOTALL)


def links(page: Path) -> Iterator[str]:
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(page.read_text())):
        if not re.match(r"\w+:", target):
            yield target


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_relative_links_and_their_anchors_exist(page: Path) -> None:
    broken = []
    for link in links(page):
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert not broken


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_connectors_that_a_page_shows_are_valid(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for block in blocks(page.read_text(), "json"):
        if '"config"' in block:
            shown = json.loads(block)
            config = {"name": shown["name"], **shown["config"]}
            assert not semel.plan({"bootstrap.servers": "localhost:9092"} | config).warnings


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_python_that_a_page_shows_compiles(page: Path) -> None:
    for number, block in enumerate(blocks(page.read_text(), "python"), 1):
        if not re.match(r" {4}|semel\.run\(config, ", block):  # parts of a class; a signature
            compile(block, f"{named(page)}, block {number}", "exec")
