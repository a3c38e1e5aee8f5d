"""A run's servers: one of each kind for all its processes, and none outlives it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import wait_gone
from tests.engine.harness import wait_until
from tests.patience import PATIENCE

pytestmark = pytest.mark.long  # each process imports all kinds of servers

ROOT = Path(__file__).parents[1]
PLUGIN = """
from semel_lab.embedded.server import Server
from tests import servers

class Sleeper(Server):
    name, log_name, port_names, start_timeout, stop_timeout = "it", "log", ("it",), 60, 60

    def _launch(self):
        self._process.launch(["/bin/sleep", "600"], detached=False)

    def _answers(self):
        return True

servers.KINDS = {"sleeper": Sleeper, "broken": lambda at: 1 / 0}
"""
FILE = """
import os, time
from pathlib import Path
import pytest
from tests import servers

def test_finds_it(pytestconfig):
    server = servers._found(pytestconfig, "sleeper")
    Path(f"{number}.pid").write_text(f"{{server.pid}} {{server.port}}")
    {then}
"""
WAITS = "while not Path('go').exists(): time.sleep(0.02)"


def begin(directory: Path, *files: str) -> subprocess.Popen[str]:
    (directory / "kinds.py").write_text(PLUGIN)
    (directory / "pytest.ini").write_text("[pytest]\n")
    for number, then in enumerate(files):
        (directory / f"test_{number}.py").write_text(FILE.format(number=number, then=then))
    arguments = ["-q", "-p", "tests.servers", "-p", "kinds", "-p", "no:cacheprovider"]
    return subprocess.Popen(
        [sys.executable, "-m", "pytest", *arguments, "-n", str(len(files)), "--dist", "loadfile"],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(directory), str(ROOT), *sys.path])},
        stdout=subprocess.PIPE,
        text=True,
    )


def found(directory: Path) -> set[str]:
    return {file.read_text() for file in directory.glob("*.pid")}


def test_all_processes_find_one_server_that_ends_with_the_run(tmp_path: Path) -> None:
    """Also where the process that has asked first dies. Who asks for one that cannot start is told
    why."""
    broken = "servers._found(pytestconfig, 'broken')"
    out = begin(tmp_path, "os._exit(1)", "pass", "pass", broken).communicate(timeout=PATIENCE)[0]
    assert "2 passed" in out
    assert "ZeroDivisionError: division by zero" in out
    (server,) = found(tmp_path)
    assert wait_gone(int(server.split()[0]))


def test_no_server_outlives_a_run_that_is_killed(tmp_path: Path) -> None:
    run = begin(tmp_path, WAITS, WAITS)
    wait_until(lambda: len(list(tmp_path.glob("*.pid"))) == 2)
    (server,) = found(tmp_path)
    run.send_signal(signal.SIGKILL)
    run.communicate(timeout=PATIENCE)
    assert wait_gone(int(server.split()[0]))
