"""A connector file, or a mapping, as flat strings."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from semel.config.definition import check_pair, text_of
from semel.config.providers import ResolvedConfig
from semel.core.errors import ConfigError, misconfigured

BROKERS = "SEMEL_BOOTSTRAP_SERVERS"
"""The variable with the brokers of connectors whose configuration names none."""
_SERVERS = (
    *("bootstrap.servers", "kafka.bootstrap.servers"),
    *("consumer.override.bootstrap.servers", "producer.override.bootstrap.servers"),
)
_PREFIX = "CONNECT_"
_OF_THE_IMAGE = ("CONNECT_LOG4J_", "CONNECT_CUB_", "CONNECT_KAFKA_", "CONNECT_JMX_")
"""Variables of the image itself, not of the worker."""


def load(source: str | Path | Mapping[str, Any]) -> dict[str, str]:
    """Read a connector file, or normalise a mapping, to flat strings.

    Accepts Kafka Connect's ``{"name": ..., "config": {...}}``, flat JSON, and ``.properties``.

    Raises:
        ConfigError: the file cannot be read or is not of these shapes.
    """
    if isinstance(source, ResolvedConfig):
        return source.given
    if isinstance(source, Mapping):
        return _flatten(source, "the configuration")
    if not isinstance(source, (str, Path)):
        raise ConfigError(
            f"a configuration is a file or a mapping of keys to values, not {type(source).__name__}"
        )
    path = Path(source)
    try:
        text = path.read_text(encoding="utf-8-sig")  # Windows' editors begin it with a mark
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path} is not text in UTF-8: {error.reason} at byte {error.start}"
        ) from error
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error}") from error
    if path.suffix == ".properties":
        return _properties(path, text)
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(
            f"{path} is not JSON: {error.msg} at line {error.lineno}, column {error.colno}. "
            "Kafka Connect's properties format needs the suffix .properties."
        ) from error
    except (ValueError, RecursionError) as error:  # a number without end, or too deep
        raise ConfigError(f"{path} cannot be read as JSON: {error}") from None
    if not isinstance(document, dict):
        raise ConfigError(f"{path} must hold a JSON object, not {type(document).__name__}")
    return _flatten(document, str(path))


def with_brokers(raw: Mapping[str, str], option: str = "") -> dict[str, str]:
    """The configuration, with the brokers of the command line or the environment if it names none.

    Raises:
        ConfigError: the option and the configuration name different brokers. The variable may
            differ.
    """
    variable = os.environ.get(BROKERS, "").strip()
    named = next((name for name in _SERVERS if name in raw), "")
    if named and option and option not in (raw[named], variable):
        raise misconfigured(
            named,
            f"--bootstrap-server {option}, but the configuration has {named}={raw[named]}: remove "
            "one",
        )
    servers = "" if named else option or variable
    return {**raw, "bootstrap.servers": servers} if servers else dict(raw)


def _properties(path: Path, text: str) -> dict[str, str]:
    import javaproperties  # slow to import, and JSON needs none of it

    try:
        return _flatten({k: v.strip() for k, v in javaproperties.loads(text).items()}, str(path))
    except javaproperties.InvalidUEscapeError as error:
        raise ConfigError(f"{path} is not a .properties file: {error}") from error


def _flatten(document: Mapping[str, Any], where: str) -> dict[str, str]:
    flat = dict(document)
    if isinstance(flat.get("config"), Mapping):
        inner = dict(flat["config"])
        if "name" in flat and str(inner.setdefault("name", flat["name"])) != str(flat["name"]):
            raise misconfigured(
                "name",
                f"{where}: name={flat['name']!r} outside of config and {inner['name']!r} in it: "
                "the ledger is kept under the name. Remove one",
                str(flat["name"]),
            )
        flat = inner
    strange = [k for k in flat if not isinstance(k, str)]
    if strange:
        raise ConfigError(f"{where}: the key {strange[0]!r} must be a string")
    nested = [k for k, v in flat.items() if isinstance(v, Mapping)]
    if nested:
        raise misconfigured(
            nested[0], f"{where}: {nested[0]} holds an object; a value must be a string"
        )
    texts = {k: text for k, v in flat.items() if (text := text_of(v)) is not None}
    for name, text in texts.items():
        check_pair(name, text)
    return texts


def absolute(raw: Mapping[str, str], name: str) -> dict[str, str]:
    """The key, if its value is a relative path and no URL, with the path made absolute."""
    path = raw.get(name, "").strip()
    if not path or "://" in path or Path(path).is_absolute():
        return {}
    return {name: str(Path(path).absolute())}


def under(raw: Mapping[str, str], prefix: str) -> dict[str, str]:
    """The keys below ``prefix``, without it."""
    return {k[len(prefix) :]: v for k, v in raw.items() if k.startswith(prefix)}


def of_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The keys that ``CONNECT_*`` variables set: ``CONNECT_GROUP_ID`` is ``group.id``. Two
    underscores stand for one, three for a hyphen.

    Raises:
        ConfigError: a variable is not UTF-8.
    """
    variables = {
        name: value
        for name, value in environment.items()
        if name.startswith(_PREFIX) and not name.startswith(_OF_THE_IMAGE)
    }
    for name, value in variables.items():
        check_pair(name, value)
    return {_key(name.removeprefix(_PREFIX)): value for name, value in variables.items()}


def _key(name: str) -> str:
    for written, meant in (("___", "-"), ("__", "\0"), ("_", "."), ("\0", "_")):
        name = name.replace(written, meant)
    return name.lower()
