"""What a package index shows: the README, with links that lead into the repository.

The repository's address is nowhere in its files: it is that of the remote ``origin``, or
``SEMEL_REPOSITORY``. Without either, links stay as they are, and the package names no addresses.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class CustomMetadataHook(MetadataHookInterface):
    """Gives the project its readme and its addresses."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add what depends on where the repository is."""
        root = Path(self.root)
        text = (root / "README.md").read_text(encoding="utf-8")
        if address := repository(root):
            text = absolute(text, f"{address}/blob/v{metadata['version']}")
            metadata["urls"] = {
                "Repository": address,
                "Documentation": f"{address}/tree/v{metadata['version']}/docs",
                "Changelog": f"{address}/blob/v{metadata['version']}/CHANGELOG.md",
                "Issues": f"{address}/issues",
            }
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


def repository(root: Path) -> str | None:
    """The repository's address, as people open it."""
    found = os.environ.get("SEMEL_REPOSITORY") or _origin(root)
    found = re.sub(r"^(?:ssh://)?git@([^:/]+)[:/]", r"https://\1/", found)
    web = re.fullmatch(r"https://(?:[^@/]*@)?([^@]+?)(?:\.git)?/?", found)
    return f"https://{web[1]}" if web else None


def _origin(root: Path) -> str:
    if not (root / ".git").exists():  # not that of a repository around it
        return ""
    command = ["git", "-C", str(root), "remote", "get-url", "origin"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:  # there is no git
        return ""


def absolute(text: str, base: str) -> str:
    """A text whose relative links lead to files below an address."""
    return re.sub(r"\]\((?![a-z]+:|#)([^)\s]+)\)", rf"]({base}/\1)", text)
