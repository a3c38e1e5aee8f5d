"""Each delivery that a sink accepts has a test that kills it, and the documentation says so."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests import matrix
from tests.matrix import Cell, Proof
from tests.processes import run_to_end

ROOT = Path(__file__).parents[1]


def pytest_run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    return run_to_end(command, cwd=ROOT)


@pytest.fixture(scope="module")
def proofs(request: pytest.FixtureRequest) -> dict[Cell, set[Proof]]:
    """The marked tests, by the cells that they prove: those of this run, if it has all files."""
    marked = [p for p in ROOT.glob("tests/**/test_*.py") if "mark.cell(" in p.read_text()]
    marked = [p for p in sorted(marked) if p != Path(__file__)]
    collected = request.config.stash[matrix.COLLECTED]
    if {item.path for item in collected} >= set(marked):
        return _by_cell((matrix.cell_of(i), matrix.proof_of(i)) for i in collected)
    files = [str(p.relative_to(ROOT)) for p in marked]
    run = pytest_run("--collect-only", "--matrix", *files)
    told = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("[")]
    assert told, run.stdout + run.stderr
    return _by_cell((Cell(*facts[:3]), Proof(*facts[3:])) for facts in told)


def _by_cell(pairs: Iterable[tuple[Cell | None, Proof]]) -> dict[Cell, set[Proof]]:
    found: dict[Cell, set[Proof]] = {}
    for cell, proof in pairs:
        assert cell is not None
        found.setdefault(cell, set()).add(proof)
    return found


def test_each_sink_is_in_the_matrix() -> None:
    missing = set(matrix.registered()) ^ set(matrix.SINKS)
    assert not missing, f"enter {missing} in SINKS of tests/matrix.py"


def test_each_cell_that_is_accepted_is_crash_tested_and_no_other(
    proofs: dict[Cell, set[Proof]],
) -> None:
    accepted = {cell for cell in matrix.cells() if matrix.answer(cell)[0]}
    untested = sorted(accepted - proofs.keys())
    assert not untested, f"mark a crash test with each of these cells: {untested}"
    refused = sorted(proofs.keys() - accepted)
    assert not refused, f"these cells are tested, but the product refuses them: {refused}"


def test_a_refusal_says_what_to_set() -> None:
    for cell in matrix.cells():
        accepted, text = matrix.answer(cell)
        assert accepted or "Set " in text, (cell, text)


def test_the_page_holds_what_the_tests_prove(proofs: dict[Cell, set[Proof]]) -> None:
    assert matrix.PAGE.read_text() == matrix.page(proofs), "run `make matrix`"


@pytest.mark.long
def test_a_mark_cannot_claim_what_the_test_does_not_show(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import pytest\n"
        "@pytest.mark.cell(sink='sqlite', mode='direct', delivery='transactional')\n"
        "def test_nothing(): pass\n"
    )
    before = matrix.PAGE.read_text()
    run = pytest_run("--matrix", "-p", "tests.matrix", "--rootdir", str(tmp_path), str(tmp_path))
    assert run.returncode == 1
    assert "the test proves nothing, but is marked with Cell(sink='sqlite'" in run.stdout
    assert "guarantees.md: not written" in run.stdout
    assert matrix.PAGE.read_text() == before
