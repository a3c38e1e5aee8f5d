"""The wheels in environments of their own: without any extra, and with each of them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import typer

from semel.cli.commands import app
from tests.newcomer import blocks
from tests.patience import PATIENCE
from tests.processes import run_to_end

pytestmark = [pytest.mark.integration, pytest.mark.long]

ROOT = Path(__file__).parent.parent
BUILT_IN = 1800.0
"""Seconds for what may download packages."""
SINK = {"name": "orders", "topics": "orders", "bootstrap.servers": "127.0.0.1:1"}
JSON = {"value.converter": "JsonConverter", "value.converter.schemas.enable": "false"}
DATABASE = "jdbc:{}://h/db?user=me&password=x"
CONFIGS: Mapping[str, Mapping[str, str]] = {
    "delta": {"connector.class": "delta", "delta.table.path": "/x", **JSON},
    "iceberg": {
        "connector.class": "iceberg",
        "iceberg.tables": "a.b",
        "iceberg.catalog.type": "sql",
        "iceberg.catalog.uri": "sqlite:///x.db",
        "iceberg.catalog.warehouse": "file:///x",
        **JSON,
    },
    "files": {"connector.class": "files", "path": "/x", "format": "avro", **JSON},
    "sqlite": {"connector.class": "sqlite", "connection.url": "jdbc:sqlite:/x.db", **JSON},
    "mysql": {"connector.class": "mysql", "connection.url": DATABASE.format("mysql"), **JSON},
    "mssql": {
        "connector.class": "sqlserver",
        "connection.url": "jdbc:sqlserver://h;databaseName=db;encrypt=false;user=me;password=x",
        **JSON,
    },
    "search": {"connector.class": "opensearch", "connection.url": "http://h:9200", **JSON},
    "registry": {
        "connector.class": "postgresql",
        "connection.url": DATABASE.format("postgresql"),
        "value.converter": "io.confluent.connect.avro.AvroConverter",
        "value.converter.schema.registry.url": "http://h:8081",
    },
    "streams": {
        "connector.class": "postgresql",
        "connection.url": DATABASE.format("postgresql"),
        "topology": "application:made",
        **JSON,
    },
}
"""A connector for each extra that connectors need."""
APPLICATION = """
from semel.streams import Streams

made = Streams({"name": "application"})
made.stream("orders").to({"connector.class": "postgresql"})
"""
"""What the connector of ``streams`` names."""
COMMANDS: Mapping[str, tuple[str, ...]] = {
    **{extra: ("run", f"{extra}.json") for extra in CONFIGS},
    "lab": ("services", "up", "--dir", "services"),
    "metrics": ("run", "plain.json", "--metrics-port", "0", "--until-caught-up"),
    "rest": ("rest", "worker.properties"),
    "worker": ("worker", "worker.properties"),
}
"""A command for each extra, which needs it."""


class Installed:
    """An environment with the wheel of semel, and that of its lab if the extra asks for it."""

    def __init__(self, path: Path, wheel: Path, extra: str = "", base: Path | None = None) -> None:
        venv.create(path, with_pip=True, symlinks=True)
        self.path = path
        if base is not None:  # what semel itself needs is installed once
            (self.site / "base.pth").write_text(str(site(base)))
        what = f"{wheel}[{extra}]" if extra else str(wheel)
        pip = ("-m", "pip", "install", "--quiet", "--find-links", str(wheel.parent))
        self.run(*pip, what, within=BUILT_IN).check_returncode()

    @property
    def site(self) -> Path:
        return site(self.path)

    def run(
        self, *arguments: str, folder: Path | None = None, within: float = PATIENCE
    ) -> subprocess.CompletedProcess[str]:
        return run_to_end(
            [self.path / "bin" / "python", *arguments],
            cwd=folder,
            env={k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")},
            timeout=within,
        )

    def semel(self, *arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
        return self.run("-m", "semel", *arguments, folder=folder, within=2 * PATIENCE)


def site(environment: Path) -> Path:
    (found,) = (environment / "lib").glob("python*/site-packages")
    return found


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    both = [ROOT, ROOT / "lab"]
    subprocess.run([*build, "--wheel-dir", folder, *both], check=True, timeout=BUILT_IN)
    (found,) = folder.glob("semel-*.whl")
    return found


@pytest.fixture(scope="module")
def bare(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return Installed(tmp_path_factory.mktemp("bare") / "env", wheel)


@pytest.fixture(scope="module")
def with_extra(
    wheel: Path, bare: Installed, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Installed]:
    made: dict[str, Installed] = {}

    def install(extra: str) -> Installed:
        if extra not in made:
            folder = tmp_path_factory.mktemp(extra)
            made[extra] = Installed(folder / "env", wheel, extra, bare.path)
        return made[extra]

    return install


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Has a file for each command."""
    for extra, config in CONFIGS.items():
        (tmp_path / f"{extra}.json").write_text(json.dumps({**SINK, **config}))
    (tmp_path / "application.py").write_text(APPLICATION)
    plain = {"connector.class": "FileStreamSink", "file": "out.txt", **JSON}
    (tmp_path / "plain.json").write_text(json.dumps({**SINK, **plain}))
    (tmp_path / "worker.properties").write_text("bootstrap.servers=127.0.0.1:1\n")
    return tmp_path


def names() -> list[tuple[str, ...]]:
    """All commands, also those below others."""
    root: Any = typer.main.get_command(app)
    found: list[tuple[str, ...]] = []

    def walk(command: Any, words: tuple[str, ...]) -> None:
        found.append(words)
        if hasattr(command, "commands"):
            for name in command.list_commands(None):
                walk(command.get_command(None, name), (*words, name))

    walk(root, ())
    return found


HELP = "\n".join(
    (
        "import sys",
        "from semel.cli.commands import app",
        "for words in {names!r}:",
        "    try: app([*words, '--help'], standalone_mode=False)",
        "    except SystemExit as ended: assert not ended.code, words",
    )
)


def assert_every_command_helps(environment: Installed, folder: Path) -> None:
    told = environment.run("-c", HELP.format(names=names()), folder=folder)
    assert told.returncode == 0, told.stderr
    assert told.stdout.count("Usage:") == len(names())


def test_without_extras_every_command_helps(bare: Installed, folder: Path) -> None:
    assert_every_command_helps(bare, folder)
    assert bare.semel("validate", "plain.json", folder=folder).returncode == 0


@pytest.mark.parametrize("extra", COMMANDS)
def test_without_an_extra_a_command_says_what_installs_it(
    extra: str, bare: Installed, folder: Path
) -> None:
    told = bare.semel(*COMMANDS[extra], folder=folder)
    assert told.returncode not in (0, 1), told.stdout
    said = told.stdout + told.stderr
    assert f"pip install 'semel[{extra}]'" in said
    assert "Traceback" not in said


@pytest.mark.parametrize("extra", COMMANDS)
def test_with_its_extra_a_command_lacks_nothing(
    extra: str, with_extra: Callable[[str], Installed], folder: Path
) -> None:
    environment = with_extra(extra)
    assert_every_command_helps(environment, folder)
    command = ("validate", f"{extra}.json") if extra in CONFIGS else COMMANDS[extra]
    told = environment.semel(*command, folder=folder)
    said = told.stdout + told.stderr
    assert "pip install" not in said
    assert "Traceback" not in said
    if extra == "lab":
        flights = "from semel_lab.demo import flights; flights.data()"
        assert environment.run("-c", flights, folder=folder).returncode == 0
        down = environment.semel("services", "down", "--dir", "services", folder=folder)
        assert down.returncode == 0, down.stderr
    if extra not in ("metrics", "rest", "worker"):  # those look for the brokers that there are not
        assert told.returncode == 0, said


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
@pytest.mark.parametrize("name", ["README.md", "docs/quickstart.md", "docs/deploy.md"])
def test_the_lines_of_a_page_that_install_semel_do_so_in_a_clone(name: str, tmp_path: Path) -> None:
    clone, home = tmp_path / "clone", tmp_path / "home"
    subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True, timeout=BUILT_IN)
    home.mkdir()
    shells = [b for b in blocks((ROOT / name).read_text(), "") if "pip" in b]
    script = "\n".join(shells).replace("/opt/semel", str(tmp_path / "opt"))
    lines = [n for n in script.splitlines() if not n.startswith("apt-get")]
    if name == "docs/deploy.md":  # the wheel goes into an environment that the reader has
        lines.insert(0, f"python3 -m venv {tmp_path}/own && . {tmp_path}/own/bin/activate")
    done = run_to_end(
        ["bash", "-euo", "pipefail", "-c", "\n".join([*lines, "semel --version"])],
        cwd=clone,
        env={
            **{k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")},
            "PATH": f"{Path(sys.base_prefix) / 'bin'}:/usr/bin:/bin",
            "HOME": str(home),
            "PIP_CACHE_DIR": pip_cache(),
        },
        timeout=BUILT_IN,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].endswith(version("semel"))


def pip_cache() -> str:
    asked = [sys.executable, "-m", "pip", "cache", "dir"]
    told = run_to_end(asked, check=True)
    return told.stdout.strip()
