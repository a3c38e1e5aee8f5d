"""Which long tests a sample runs, in which order, and for how long."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from tests.processes import run_to_end
from tests.sampling import LONGEST, SIZE, TOO_LONG, drawn

ROOT = Path(__file__).parents[1]
TESTS = [f"tests/test_{n % 7}.py::test_{n}" for n in range(200)]

FILE = """
import pytest

pytestmark = pytest.mark.long

@pytest.mark.parametrize("n", range({count}))
def test_of_a_file(n, request):
    assert request.node.get_closest_marker("timeout").args == ({longest},)
"""


def test_each_test_is_among_the_first_of_some_sample() -> None:
    samples = [drawn(str(seed), TESTS) for seed in range(600)]
    assert {len(sample) for sample in samples} == {SIZE}
    assert {test for sample in samples for test in sample[:5]} == set(TESTS)


def test_what_takes_longer_than_a_sample_may_is_never_drawn() -> None:
    assert drawn("seed", [*TESTS[:3], *(f"{file}::test_1" for file in TOO_LONG)]) == drawn(
        "seed", TESTS[:3]
    )
    assert all((ROOT / file).exists() for file in TOO_LONG)
    told = (ROOT / "CONTRIBUTING.md").read_text()
    assert all(f"`{file}`" in told for file in TOO_LONG)


@pytest.mark.parametrize("seed", ["one", pytest.param("two", marks=pytest.mark.long)])
def test_files_begin_in_the_order_in_which_they_are_drawn(seed: str, tmp_path: Path) -> None:
    """And not the one with most tests first; each test gets the time that a sample has for it."""
    counts = {"test_a.py": 5, "test_b.py": 1, "test_c.py": 3, "test_d.py": 2}
    for file, count in counts.items():
        (tmp_path / file).write_text(FILE.format(count=count, longest=LONGEST))
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = long: some\n")
    plugins = ("-p", "tests.sampling", "-p", "tests.scheduling", "-p", "no:cacheprovider")
    run = run_to_end(
        [
            *(sys.executable, "-m", "pytest", "-v", *plugins, "-n", "1", "--dist", "loadfile"),
            *("--sample", seed),
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
    )
    assert run.returncode == 0, run.stdout
    begun = dict.fromkeys(re.findall(r"PASSED (test_\w\.py)", run.stdout))
    tests = [f"{file}::test_of_a_file[{n}]" for file in counts for n in range(counts[file])]
    wanted = dict.fromkeys(test.partition(":")[0] for test in drawn(seed, tests))
    assert list(begun) == list(wanted)
