"""Build and check what a release publishes: ``make release``, and ``make release ARGS=--tag``.

Without ``--tag``, nothing outside of ``dist/`` changes. With it, the changelog gets today's date,
and a commit and a tag are made first. Publishing is left to the maintainer; the last lines say how.
"""

from __future__ import annotations

import argparse
import datetime
import email
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
CHANGELOG = ROOT / "CHANGELOG.md"
VERSION: str = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
TAG = f"v{VERSION}"
PACKAGED = {
    "semel": ("semel/spark/jars.json", "semel/py.typed", "semel/__main__.py"),
    "semel_lab": ("semel_lab/jars.json", "semel_lab/py.typed", "semel_lab/embedded/leash.py"),
}
"""Distribution -> files that its wheel must have."""


def run(*command: str, folder: Path = ROOT) -> str:
    """A command's output; ends if it fails."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}:\n{done.stdout}{done.stderr}")
    return done.stdout.strip()


def notes() -> str:
    """What the changelog says of this version."""
    section = re.search(
        rf"^## {re.escape(VERSION)} \((.+)\)\n(.*?)(?=^## |\Z)", CHANGELOG.read_text(), re.M | re.S
    )
    if section is None:
        sys.exit(f"CHANGELOG.md has no section '## {VERSION} (unreleased)'")
    return section[2].strip()


def tag() -> None:
    """Date the changelog, commit it, and tag the commit."""
    if run("git", "status", "--porcelain"):
        sys.exit("Commit or remove what git status shows first")
    if run("git", "tag", "--list", TAG):
        sys.exit(f"{TAG} exists: set the next version in pyproject.toml")
    text = CHANGELOG.read_text()
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    dated = text.replace(f"## {VERSION} (unreleased)", f"## {VERSION} ({today})")
    dated = re.sub(r"(?m)^.*may still change before it is tagged.*\n(?:.+\n)*\n?", "", dated)
    if dated != text:
        CHANGELOG.write_text(dated)
        run("git", "commit", "--quiet", "--message", f"Release {VERSION}", str(CHANGELOG))
    run("git", "tag", "--annotate", TAG, "--message", f"semel {VERSION}\n\n{notes()}")


def build(folder: Path, name: str) -> tuple[Path, Path]:
    """The source distribution of a folder and, made from it, the wheel."""
    target = ("--target", "sdist", "--directory", str(DIST))
    run(sys.executable, "-m", "hatchling", "build", *target, folder=folder)
    (source,) = DIST.glob(f"{name}-*.tar.gz")
    run(
        *(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"),
        *("--wheel-dir", str(DIST), str(source)),
    )
    (wheel,) = DIST.glob(f"{name}-*.whl")
    return source, wheel


def mistakes(name: str, source: Path, wheel: Path) -> list[str]:
    """What an index, or its users, would stumble over."""
    problems = []
    with zipfile.ZipFile(wheel) as packed:
        names = packed.namelist()
        (where,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        metadata = email.message_from_string(packed.read(where).decode())
    problems += [f"the wheel lacks {each}" for each in PACKAGED[name] if each not in names]
    with tarfile.open(source) as packed_source:
        files = {name.partition("/")[2] for name in packed_source.getnames()}
    whole = name == "semel"
    required = ("CHANGELOG.md", "LICENSE", "lab/pyproject.toml") if whole else ("LICENSE",)
    problems += [f"the source lacks {each}" for each in required if each not in files]
    if metadata["Version"] != VERSION:
        problems.append(f"the wheel of {name} is {metadata['Version']}")
    if whole and not metadata.get_all("Project-URL"):
        problems.append(
            "the package names no repository, and relative links of its readme lead nowhere: "
            "set SEMEL_REPOSITORY, or git's remote origin, to an https address"
        )
    text = metadata.get_payload()
    relative = re.findall(r"\]\((?![a-z]+:|#)([^)\s]+)\)", str(text))
    if relative:
        problems.append(f"relative links in the readme: {', '.join(sorted(set(relative)))}")
    return problems


def main() -> None:
    """Build, check, and say what is left to do."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tag", action="store_true", help="date the changelog, commit and tag")
    if parser.parse_args().tag:
        tag()
    notes()
    shutil.rmtree(DIST, ignore_errors=True)
    for name, folder in (("semel", ROOT), ("semel_lab", ROOT / "lab")):
        if wrong := mistakes(name, *build(folder, name)):
            sys.exit("\n".join(wrong))
    for file in sorted(DIST.iterdir()):
        print(f"{file.relative_to(ROOT)}  {os.path.getsize(file) / 1e6:.1f} MB")  # noqa: PTH202
    tagged = run("git", "tag", "--list", TAG)
    first = f"git push origin HEAD {TAG}" if tagged else "make release ARGS=--tag"
    print(f"To publish semel {VERSION}:\n  {first}\n  twine upload dist/*")


if __name__ == "__main__":
    main()
