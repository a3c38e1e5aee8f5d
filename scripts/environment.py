"""Make a virtual environment with pinned packages, and show how far it is.

Usage: environment.py FOLDER REQUIREMENTS [--leave-out PATTERN ...]

It needs nothing but Python. What a pattern matches below site-packages is removed again: the
parts of PySpark that the demo does not need are half of it.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

HOME = Path(__file__).resolve().parent.parent
BUILD = HOME / "requirements-build.txt"
STEPS = ("Collecting", "Downloading", "Using cached", "Building", "Preparing", "Installing")
"""How the lines of pip begin that say what it does."""
LIVE = sys.stdout.isatty()
EVERY = 0.5 if LIVE else 5.0
WIDTH = 78


class Progress:
    """What pip does now, for how long it has been at work, and how much is there already."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._began = folder, time.monotonic()
        self._step, self._done = "", threading.Event()
        self._thread = threading.Thread(target=self._show, daemon=True)

    def __enter__(self) -> Progress:
        self._thread.start()
        return self

    def __exit__(self, failed: object, *_: object) -> None:
        self._done.set()
        self._thread.join()
        self._print("failed" if failed else "done", end="\n")

    def says(self, line: str) -> None:
        """Take a line of pip's output."""
        line = line.strip()
        if line.startswith("Installing collected"):
            names = line.partition(": ")[2].split(", ")
            line = f"Installing {names[0] if len(names) == 1 else f'{len(names)} packages'}"
        if line.startswith(STEPS):
            self._step = line

    def _show(self) -> None:
        while not self._done.wait(EVERY):
            self._print()

    def _print(self, step: str = "", end: str = "") -> None:
        minutes, seconds = divmod(int(time.monotonic() - self._began), 60)
        line = f"  {minutes}:{seconds:02} {megabytes(self._folder):5,} MB  {step or self._step}"
        if LIVE:
            print("\r" + line[:WIDTH].ljust(WIDTH), end=end, flush=True)
        else:
            print(line[:WIDTH], flush=True)


def megabytes(folder: Path) -> int:
    """The size of all files below a folder."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(parent, name)).st_size  # noqa: PTH118
            except OSError:  # pip moves files
                continue
    return total // 1_000_000


def install(folder: Path, requirements: Path, left_out: list[str], progress: Progress) -> None:
    """Install what a build needs, the requirements, and semel with its lab, from where they are."""
    pip(folder, progress, "--require-hashes", "-r", str(BUILD))
    # Not isolated: an isolated build fetches packages that nobody has pinned.
    pinned = ("--require-hashes", "--no-build-isolation", "--no-deps", "-r")
    (packages,) = folder.glob("lib/python3*/site-packages")
    for part in parts(requirements, sorted({each.partition("/")[0] for each in left_out})):
        file = folder / "part.txt"
        file.write_text(part)
        pip(folder, progress, *pinned, str(file))
        file.unlink()
        for path in (path for pattern in left_out for path in packages.glob(pattern)):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    editable = ("--editable", str(HOME), "--editable", str(HOME / "lab"))
    pip(folder, progress, "--no-build-isolation", "--no-deps", *editable)


def parts(requirements: Path, first: list[str]) -> list[str]:
    """The requirements, with packages that get smaller afterwards in parts of their own: the disk
    never holds all of two of them."""
    pins = re.split(r"\n(?=\S)", requirements.read_text())
    large = [pin for pin in pins if pin.partition("==")[0] in first]
    return [*large, "\n".join(pin for pin in pins if pin not in large)]


def pip(folder: Path, progress: Progress, *arguments: str) -> None:
    """Run pip, and end with its words if it fails."""
    # Its files are beside those that it installs: they count, and /tmp may be small.
    temporary = folder / "tmp"
    temporary.mkdir(exist_ok=True)
    output: list[str] = []
    # Modules are compiled when they are imported first; few of them ever are.
    options = ("--disable-pip-version-check", "--no-compile", "--progress-bar", "off")
    with subprocess.Popen(
        [folder / "bin" / "python", "-m", "pip", "install", *options, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "TMPDIR": str(temporary.resolve())},
    ) as running:
        assert running.stdout is not None
        for line in running.stdout:
            output.append(line)
            progress.says(line)
    shutil.rmtree(temporary, ignore_errors=True)
    if running.returncode:
        sys.exit("\n" + "".join(output[-20:]) + f"\npip could not install into {folder}")


def main() -> None:
    """Make the environment that the arguments describe."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("requirements", type=Path)
    parser.add_argument("--leave-out", nargs="*", default=[])
    arguments = parser.parse_args()
    if sys.version_info < (3, 11):  # noqa: UP036 - pip's own words come minutes later
        sys.exit("semel needs Python 3.11 or later; set PYTHON, as in: make PYTHON=python3.12")
    with Progress(arguments.folder) as progress:
        progress.says("Preparing a virtual environment")
        subprocess.run([sys.executable, "-m", "venv", arguments.folder], check=True)
        install(arguments.folder, arguments.requirements, arguments.leave_out, progress)


if __name__ == "__main__":
    main()
