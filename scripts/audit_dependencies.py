"""Ask the package index for known vulnerabilities of all pinned packages.

Ends with 1 if there are any, and with 0 if the index cannot be asked: then it says so.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PATIENCE = 600.0


def asked() -> list[dict[str, Any]] | None:
    """What the index says of each package; None if it cannot be asked."""
    files = [part for file in sorted(ROOT.glob("requirements*.txt")) for part in ("-r", str(file))]
    options = ["--require-hashes", "--disable-pip", "--progress-spinner", "off", "--format", "json"]
    command = [sys.executable, "-m", "pip_audit", *options, *files]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=PATIENCE
        )
        found: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    except (subprocess.TimeoutExpired, ValueError, KeyError) as error:
        print(f"pip-audit gives no answer: {error}")
        return None
    return found


def report(packages: list[dict[str, Any]]) -> int:
    """Print what is known; returns how many packages have vulnerabilities."""
    known = ((f"{each['name']} {each.get('version')}", each.get("vulns")) for each in packages)
    bad = {name: vulnerabilities for name, vulnerabilities in known if vulnerabilities}
    for name, vulnerabilities in bad.items():
        for each in vulnerabilities:
            fixed = ", ".join(each["fix_versions"]) or "no release"
            print(f"VULNERABLE  {name}  {each['id']}, fixed in {fixed}")
    unknown = sum("skip_reason" in each for each in packages)
    print(f"{len(packages)} packages: {len(bad)} with known vulnerabilities")
    if unknown:
        print(f"The index has no answer for {unknown} of them: they were not audited")
    return len(bad)


if __name__ == "__main__":
    answers = asked()
    sys.exit(1 if answers is not None and report(answers) else 0)
