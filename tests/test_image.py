"""The Dockerfile's steps, in a fresh Debian that debootstrap makes, without a container engine."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from semel_lab.embedded import Kafka
from semel_lab.embedded.process import LOOPBACK, free_port
from tests.engine.harness import wait_until
from tests.patience import PATIENCE
from tests.rest.members import answers

pytestmark = [
    pytest.mark.integration,
    pytest.mark.long,
    pytest.mark.skipif(
        shutil.which("debootstrap") is None or os.geteuid() != 0,
        reason="needs debootstrap, and root",
    ),
]

HOME = Path(__file__).parent.parent
DOCKERFILE = HOME / "examples" / "deploy" / "Dockerfile"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""As container engines set it."""
BUILT_IN = 3000.0
"""Seconds for a step: some of them download."""


def steps() -> Iterator[tuple[str, str]]:
    """The instructions and their arguments."""
    text = re.sub(r"\\\n\s*", "", DOCKERFILE.read_text())
    for line in text.splitlines():
        if line and not line.startswith("#"):
            instruction, _, argument = line.partition(" ")
            yield instruction, argument


class Root:
    """A Debian of its own, as an image is built in it."""

    def __init__(self, path: Path, ends: ExitStack) -> None:
        self.path = path
        self.user, self.folder, self.variables = "root", "/", {"PATH": PATH}
        self.entry: list[str] = []
        base = ["debootstrap", "--variant=minbase", "bookworm", str(path)]
        subprocess.run(base, check=True, timeout=BUILT_IN, stdout=subprocess.DEVNULL)
        for name in ("proc", "dev"):
            subprocess.run(
                ["mount", "--bind", f"/{name}", str(path / name)], check=True, timeout=60
            )
            ends.callback(
                subprocess.run, ["umount", "--lazy", str(path / name)], check=True, timeout=60
            )
        for file in ("/etc/resolv.conf", "/etc/hosts"):  # what a container gets from its engine
            shutil.copyfile(file, path / file.lstrip("/"))
        self.pip = {k: v for k, v in os.environ.items() if k.startswith("PIP_")}
        if certificates := self.pip.get("PIP_CERT"):
            # Debian's package of certificates would replace it where it is.
            self.pip["PIP_CERT"] = "/opt/certificates.pem"
            shutil.copyfile(certificates, path / "opt" / "certificates.pem")

    def take(self, instruction: str, argument: str) -> None:
        """Do what an instruction says."""
        match instruction:
            case "RUN":
                self.start(["sh", "-ec", argument], wait=True)
            case "USER":
                self.user = argument
            case "WORKDIR":
                self.folder = argument
            case "COPY":
                *sources, target = argument.split()
                for source in sources:
                    self.copy(HOME / source, self.path / target.lstrip("/"), target.endswith("/"))
            case "ENV":
                for part in shlex.split(argument):
                    name, _, value = part.partition("=")
                    self.variables[name] = value.replace("$PATH", self.variables["PATH"])
            case "ENTRYPOINT":
                self.entry = re.findall(r'"([^"]*)"', argument)
            case "FROM" | "EXPOSE":
                pass
            case other:
                raise AssertionError(f"{other}: unknown here")

    @staticmethod
    def copy(source: Path, target: Path, into: bool) -> None:
        """Copy a file into a folder, or a folder's content."""
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            target.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target if into else target.parent)

    def start(
        self, command: list[str], *, wait: bool = False, **variables: str
    ) -> subprocess.Popen[bytes]:
        """Run a command in it."""
        home = 'export HOME="$(getent passwd "$(id -u)" | cut -d: -f6)"'
        script = f'cd {self.folder}; {home}; exec "$@"'
        process = subprocess.Popen(
            ["chroot", f"--userspec={self.user}", self.path, "sh", "-c", script, "sh", *command],
            stdin=subprocess.DEVNULL,
            env={**self.pip, **self.variables, **variables},
        )
        if wait:
            assert process.wait(BUILT_IN) == 0, command
        return process


def test_the_image_is_built_and_its_worker_answers(kafka: Kafka, tmp_path: Path) -> None:
    with ExitStack() as ends:
        root = Root(tmp_path / "root", ends)
        for instruction, argument in steps():
            root.take(instruction, argument)
        assert root.user != "root"
        port = free_port()
        url = f"http://{LOOPBACK}:{port}"
        keys = {"BOOTSTRAP_SERVERS": kafka.bootstrap_servers, "LISTENERS": url}
        worker = root.start(root.entry, **{f"CONNECT_{name}": v for name, v in keys.items()})
        try:
            wait_until(lambda: worker.poll() is not None or answers(url))
            assert worker.poll() is None
        finally:
            worker.terminate()
            worker.wait(PATIENCE)
