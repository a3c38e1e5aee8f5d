"""Directories, HDFS and object stores, for sinks and sources: what fsspec knows of them. This
module has only the options of their drivers, which are read without a driver."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from semel.core.errors import misconfigured

_INTEGER = re.compile(r"-?\d+")
_TEXTS = frozenset(
    {"key", "secret", "token", "project", "account_name", "account_key", "password", "user"}
)
"""Options of fsspec's drivers that are text even if they look like a number."""


def options_of(raw: Mapping[str, str]) -> dict[str, Any]:
    """The options for fsspec's driver in ``storage.options.*``.

    Raises:
        ConfigError: an option without a value, or one that looks like JSON but is not.
    """
    prefix = "storage.options."
    options = {k: v for k, v in raw.items() if k.startswith(prefix)}
    return {k[len(prefix) :]: _option(k, v) for k, v in options.items()}


def _option(name: str, value: str) -> Any:
    """Text, a whole number, true, false, or an object in JSON."""
    text = value.strip()
    if not text:
        raise misconfigured(name, f"{name} is empty: set it, or remove it")
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if _INTEGER.fullmatch(text) and name.rpartition(".")[2] not in _TEXTS:
        return int(text)
    if text.startswith("{") or name.endswith("_kwargs"):
        try:
            parsed = json.loads(text)
        except (ValueError, RecursionError):
            parsed = None
        if not isinstance(parsed, dict):
            raise misconfigured(name, f"{name} must be an object in JSON")
        return parsed
    return text
