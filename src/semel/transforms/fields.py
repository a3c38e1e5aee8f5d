"""Keys that several transforms have, and paths to nested fields (KIP-821)."""

from __future__ import annotations

from dataclasses import dataclass

from semel.config import key
from semel.core.errors import misconfigured


@dataclass(frozen=True)
class Defaults:
    """What becomes of the null fields that a converter has left (KIP-1040)."""

    replace_nulls: bool = key(
        "replace.null.with.default",
        True,
        "Whether a null field takes the default of its schema, if there is one.",
    )


@dataclass(frozen=True)
class Nesting:
    """How fields are named."""

    syntax: str = key(
        "field.syntax.version",
        "v1",
        "V1: names of fields at the top. V2: paths such as a.b, with backticks around names that "
        "contain dots.",
        choices=("v1", "v2"),
    )

    def path(self, text: str) -> tuple[str, ...]:
        """The steps to a field."""
        return (text,) if self.syntax.lower() == "v1" else steps(text)


def steps(path: str) -> tuple[str, ...]:
    """The names in a path of version 2.

    Raises:
        ConfigError: a backtick is not closed.
    """
    found: list[str] = []
    at = 0
    while at < len(path):
        if path[at] == "`":
            name, at = _quoted(path, at)
        else:
            dot = path.find(".", at)
            end = len(path) if dot < 0 else dot
            name, at = path[at:end], end + 1
        found.append(name)
    if path.endswith("."):
        found.append("")
    return tuple(found)


def _quoted(path: str, begin: int) -> tuple[str, int]:
    """The name between backticks that begins here, and where the next one begins."""
    name, start, at = "", begin + 1, begin + 1
    while True:
        at = path.find("`", at)
        if at < 0 or (at >= len(path) - 1 and path[at - 1] == "\\"):
            raise misconfigured(
                "field",
                f"Incomplete backtick pair in path: [{path}], consider adding a backslash before "
                f"backtick at position {begin} to escape it",
            )
        if at >= len(path) - 1:
            return name + path[start:at], at + 1
        if path[at + 1] != ".":
            at += 1
        elif path[at - 1] == "\\":
            name += path[start : at - 1] + "`"
            at += 1
            start = at
        else:
            return name + path[start:at], at + 2
