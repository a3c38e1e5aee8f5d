"""A folder that holds modules of somebody else: no command that starts there may run them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from semel.core.context import search_path
from tests.conftest import MakeTopic
from tests.engine.conftest import Configure
from tests.engine.harness import assert_nothing_lost_nothing_twice, name, records
from tests.patience import PATIENCE

pytestmark = pytest.mark.integration

SEMEL = Path(sys.executable).parent / "semel"
TAKEN = ("enum", "json", "socket", "numpy", "pyarrow", "pyspark", "semel", "semel_lab")
HOSTILE = "import pathlib\npathlib.Path(__file__).with_suffix('.ran').touch()\n"
FUNCTION = "def unchanged(batch):\n    return batch\n"


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A folder whose modules say that they have run."""
    folder = tmp_path / "hostile"
    folder.mkdir()
    for module in TAKEN:
        (folder / f"{module}.py").write_text(HOSTILE)
    return folder


def semel(folder: Path, *arguments: object, path: str = "") -> str:
    """Run the command there; what it says."""
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONSAFEPATH")}
    done = subprocess.run(
        [SEMEL, *map(str, arguments)],
        cwd=folder,
        env={**kept, **({"PYTHONPATH": path} if path else {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert [file.name for file in folder.glob("*.ran")] == []
    assert done.returncode == 0, done.stdout
    return done.stdout


def written(folder: Path, config: Mapping[str, str]) -> Path:
    file = folder / "connector.json"
    file.write_text(json.dumps(dict(config)))
    return file


def test_a_run_and_its_tasks_ignore_the_folder_they_start_in(
    hostile: Path, tmp_path: Path, topic: MakeTopic, configure: Configure
) -> None:
    source = topic(values=records(20))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "own_functions.py").write_text(FUNCTION)
    config = configure(source) | {
        "transforms": "t",
        "transforms.t.type": "python",
        "transforms.t.function": "own_functions:unchanged",
    }
    file = written(tmp_path, config)
    semel(hostile, "describe", file)
    semel(hostile, "validate", file)
    semel(hostile, "run", file, "--until-caught-up", path=str(tmp_path / "mine"))
    assert_nothing_lost_nothing_twice(config, range(20))


@pytest.mark.long
def test_a_run_of_dataframes_ignores_the_folder_it_starts_in(
    hostile: Path, tmp_path: Path, topic: MakeTopic, configure: Configure
) -> None:
    source = topic(values=records(20))
    config = configure(source) | {"engine": "micro-batch"}
    semel(hostile, "run", written(tmp_path, config), "--until-caught-up")
    assert_nothing_lost_nothing_twice(config, range(20))


@pytest.mark.long
def test_a_drill_ignores_the_folder_it_starts_in(hostile: Path, tmp_path: Path) -> None:
    semel(hostile, "drill", "--faults", "1", "--dir", tmp_path / name())


def test_a_program_that_searches_its_folder_lets_its_tasks_search_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["/elsewhere"])
    assert search_path() == {"PYTHONSAFEPATH": "1"}
    for entry in ("", str(tmp_path)):
        monkeypatch.setattr(sys, "path", ["/elsewhere", entry])
        assert search_path() == {}
