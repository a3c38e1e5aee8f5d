"""Which folders of this machine, and which plugins, a worker lets its connectors use."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import unquote

from semel.config.providers import REFERENCE, refers
from semel.errors import Problem

PATHS = "semel.connectors.allowed.paths"
PLUGINS = "semel.connectors.allowed.plugins"

_NAMES = frozenset(
    {
        *("file", "file.pattern", "file.directory", "input.path", "finished.path", "error.path"),
        *("path", "store.url", "delta.table.path", "schema.filename", "gcs.credentials.path"),
        *("offset.storage.file.filename", "connection.sslrootcert", "connection.sslcert"),
        *("connection.sslkey", "connection.serverSslCert"),
        *("connection.serverCertificate", "iceberg.catalog.warehouse"),
    }
)
_NAMING = (".location", ".keytab", ".file")
"""Keys whose value is a path even if it does not look like one."""
_FREE = ("query", "doc", "documentation")
"""The last words of keys that hold text."""
_LOCAL = re.compile(r"(?i)(?:jdbc:)?(?:sqlite|duckdb|file|local|viewfs):(?P<path>[^\s,;?\"']*)")
_ABSOLUTE = re.compile(r"(?:^|[\s,;=&?\"'(){}\[\]])(?P<path>[/~][\w.~$-][^\s,;&?\"'(){}\[\]]*)")
_UP = re.compile(r"(?:^|[/\\])\.\.(?:[/\\]|$)")
_FAR = re.compile(r"(?i)[a-z][a-z0-9+.-]+://")
_CLASSES = re.compile(
    r"connector\.class|(?:key|value|header)\.converter|(?:transforms|predicates)\.[^.]+\.type"
)


def is_below(path: str | Path, roots: Sequence[str]) -> bool:
    """Whether a path is below one of the folders, whatever links lead there."""
    real = Path(os.path.realpath(Path(path).expanduser()))
    return any(real.is_relative_to(os.path.realpath(root)) for root in roots)


def roots_of(originals: Mapping[str, str]) -> tuple[str, ...] | None:
    """The folders that a connector may use, as its worker says; None for all."""
    given = [part.strip() for part in originals.get(PATHS, "").split(",")]
    return tuple(filter(None, given)) or None


def outside(connector: Mapping[str, str], roots: Sequence[str]) -> Iterator[Problem]:
    """The keys that name something outside of the folders, or settings of Spark, which could load
    anything."""
    for name, value in connector.items():
        if name.startswith("spark."):
            message = f"{name} is for the worker's configuration, because {PATHS} is set"
            yield Problem(name, message, value)
            continue
        why = _outside(name, value, connector, roots)
        if why:
            message = f"{name}: {why}. The worker's {PATHS} allows {', '.join(roots)}"
            yield Problem(name, message, value)


def _outside(name: str, value: str, connector: Mapping[str, str], roots: Sequence[str]) -> str:
    names_path = name in _NAMES or name.endswith(_NAMING)
    text = REFERENCE.sub("", value).strip()
    if refers(value) and (names_path or _LOCAL.match(text)):
        return "a reference cannot be judged: name the path itself"
    if name in ("file", "file.pattern"):
        text = os.path.join(connector.get("file.directory", ""), text)  # noqa: PTH118
    found = [match["path"] for match in _LOCAL.finditer(text)]
    if names_path and text and not found and not _FAR.match(text):
        found = [text]
    elif name.rpartition(".")[2] not in _FREE:
        found += [match["path"] for match in _ABSOLUTE.finditer(text)]
        if not names_path and _UP.search(text):
            return f"{value!r} leads out of its folder"
    wrong = [
        path
        for path in filter(None, found)
        if not all(is_below(_local(p), roots) for p in (path, unquote(path)))  # URLs may be escaped
    ]
    return f"{wrong[0]!r} is not an allowed folder" if wrong else ""


def _local(path: str) -> str:
    """The path of a local URL's rest: ``///a``, ``//localhost/a`` or ``a``."""
    rest = path.removeprefix("//localhost") if path.startswith("//localhost/") else path
    return "/" + rest.lstrip("/") if rest.startswith("//") else rest


def unlisted(connector: Mapping[str, str], plugins: Sequence[str]) -> Iterator[Problem]:
    """The keys that name a class by a name which is not listed."""
    for name, value in connector.items():
        given = value.strip()
        if given and _CLASSES.fullmatch(name) and not {given, given.partition("$")[0]} & {*plugins}:
            message = f"{name}={given} is not among the plugins that the worker's {PLUGINS} allows"
            yield Problem(name, message, value)
