"""Ask for known vulnerabilities of all pinned packages: the package index, and OSV about those that
it has no answer for.

Ends with 1 if there are any, and with 0 if nobody can be asked: then it says so.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PATIENCE = 600.0
SERVICES = {"pypi": "the package index", "osv": "OSV"}

Package = dict[str, Any]


def asked(files: Sequence[Path], service: str) -> list[Package] | None:
    """What a service says of each package in requirements; None if it cannot be asked."""
    options = ["--require-hashes", "--disable-pip", "--progress-spinner", "off", "--format", "json"]
    command = [sys.executable, "-m", "pip_audit", *options, "--vulnerability-service", service]
    command += [part for file in files for part in ("-r", str(file))]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=PATIENCE
        )
    except subprocess.TimeoutExpired as error:
        print(f"{SERVICES[service]} gives no answer: {error}")
        return None
    try:
        packages: list[Package] = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        why = (done.stderr.strip().splitlines() or ["pip-audit says nothing"])[-1]
        print(f"{SERVICES[service]} gives no answer: {why}")
        return None
    return packages


def answers(files: Sequence[Path]) -> list[Package]:
    """What is known of each package, from the first service that knows it."""
    known: list[Package] = []
    unknown: list[Package] = []
    for service in SERVICES:
        packages = asked(files, service)
        if packages is None:
            continue
        known += [each for each in packages if "vulns" in each]
        names = {each["name"] for each in known}
        unknown = [each for each in packages if each["name"] not in names]
        if not unknown:
            break
    return [*{(each["name"], each["version"]): each for each in known}.values(), *unknown]


def report(packages: Sequence[Package]) -> int:
    """Print what is known; returns how many packages have vulnerabilities."""
    findings = ((f"{each['name']} {each.get('version')}", each.get("vulns")) for each in packages)
    bad = {name: vulnerabilities for name, vulnerabilities in findings if vulnerabilities}
    for name, vulnerabilities in bad.items():
        for each in vulnerabilities:
            fixed = ", ".join(each["fix_versions"]) or "no release"
            print(f"VULNERABLE  {name}  {each['id']}, fixed in {fixed}")
    unknown = sum("skip_reason" in each for each in packages)
    print(f"{len(packages)} packages: {len(bad)} with known vulnerabilities")
    if unknown:
        print(f"There is no answer for {unknown} of them: they were not audited")
    return len(bad)


if __name__ == "__main__":
    sys.exit(1 if report(answers(sorted(ROOT.glob("requirements*.txt")))) else 0)
