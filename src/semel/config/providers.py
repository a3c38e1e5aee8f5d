"""References in a configuration, ``${file:path:key}``, and the providers that resolve them.

A reference is resolved by the process that needs the value. What leaves the process, in a Spark
closure or in an answer, holds the reference.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from semel.config.allowed import outside, roots_of, trusted
from semel.config.definition import check_value, refers, replaced
from semel.core.answers import content_of
from semel.core.errors import ConfigError, Problem, Unresolvable
from semel.core.patterns import compiled
from semel.core.redact import hide

PROVIDERS = "config.providers"
_PACKAGE = "org.apache.kafka.common.config.provider."
_BUILT_IN = {
    "file": f"{_PACKAGE}FileConfigProvider",
    "env": f"{_PACKAGE}EnvVarConfigProvider",
    "dir": f"{_PACKAGE}DirectoryConfigProvider",
}
"""The providers of a configuration without ``config.providers``."""


class ResolvedConfig(dict[str, str]):
    """A configuration whose references have been resolved.

    ``references`` holds the values that contained references, as they were given; ``unresolved``
    says why some are still there. It is pickled as it was given, and resolves its references where
    it is unpickled.
    """

    def __init__(
        self,
        values: Mapping[str, str],
        references: Mapping[str, str] | None = None,
        unresolved: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(values)
        self.references = dict(references or {})
        self.unresolved = dict(unresolved or {})

    @property
    def given(self) -> dict[str, str]:
        """The configuration with its references."""
        return {**self, **self.references}

    def over(self, defaults: Mapping[str, str]) -> ResolvedConfig:
        """The configuration, with defaults for keys that it lacks."""
        return ResolvedConfig({**defaults, **self}, self.references, self.unresolved)

    def __reduce__(self) -> Any:
        return resolved, (self.given,)


def resolved(raw: Mapping[str, str], *, elsewhere: bool = False) -> ResolvedConfig:
    """The configuration with the values that its references stand for.

    Args:
        elsewhere: the connector will run elsewhere: what cannot be resolved here is noted.

    Raises:
        ConfigError: names each key whose reference stands for a path that the worker does not
            allow.
        Unresolvable: names each key whose references cannot be resolved, and why.
    """
    values, references, unresolved = dict(raw), {}, {}
    providers = _providers(raw)
    for key in _referring(raw):
        text = raw[key]
        try:
            values[key] = replaced(partial(_value, providers), text)
        except _Unresolved as error:
            unresolved[key] = f"{key}={text}: {error}"
        if values[key] != text:
            references[key] = text
    title = f"connector {raw['name']}: " if raw.get("name") else ""
    if unresolved and not elsewhere:
        raise Unresolvable(
            *(Problem(key, why, raw[key]) for key, why in unresolved.items()), title=title
        )
    roots = roots_of(raw)
    if roots is not None:
        judged = references.keys() - trusted(raw)
        wrong = sorted({p.key for p in outside(values, roots, judged)})
        if wrong:
            why = "stands for a path that the worker does not allow"
            problems = (Problem(key, f"{key}={raw[key]} {why}", raw[key]) for key in wrong)
            raise ConfigError(*problems, title=title)
    return ResolvedConfig(values, references, unresolved)


def unresolved(raw: Mapping[str, str]) -> ResolvedConfig:
    """The configuration as it is: nothing is read for its references, and each is noted."""
    why = "is not resolved to validate it"
    return ResolvedConfig(raw, {}, {key: f"{key}={raw[key]} {why}" for key in _referring(raw)})


def _referring(raw: Mapping[str, str]) -> list[str]:
    """The keys whose values have references."""
    own = (PROVIDERS, f"{PROVIDERS}.")
    return [k for k, v in raw.items() if k != own[0] and not k.startswith(own[1]) and refers(v)]


def shown(raw: Mapping[str, str], key: str) -> str:
    """A value as it was given, which is what a message may quote."""
    if isinstance(raw, ResolvedConfig) and key in raw.references:
        return raw.references[key]
    return raw.get(key, "")


class _Unresolved(Exception):
    """Why a reference has no value."""


_Provider = Callable[[str, str], str | None]
"""Looks a value up by path and key."""


def _providers(raw: Mapping[str, str]) -> dict[str, _Provider]:
    """The providers of ``config.providers``, or file, env and dir where the key is missing."""
    if PROVIDERS not in raw:
        return {name: _provider(name, cls, raw) for name, cls in _BUILT_IN.items()}
    providers = {}
    for name in filter(None, (part.strip() for part in raw[PROVIDERS].split(","))):
        where = f"{PROVIDERS}.{name}.class"
        class_name = raw.get(where, "").strip()
        if not class_name:
            raise ConfigError(
                Problem(where, f"{PROVIDERS} names {name}, but {where} is missing: set it")
            )
        providers[name] = _provider(name, class_name, raw)
    return providers


def _provider(name: str, class_name: str, raw: Mapping[str, str]) -> _Provider:
    where = f"{PROVIDERS}.{name}"
    short = class_name.removeprefix(_PACKAGE)
    if short == "EnvVarConfigProvider":
        return _variables(raw.get(f"{where}.param.allowlist.pattern", ".*"), where)
    allowed = _allowed(raw.get(f"{where}.param.allowed.paths", ""), where)
    if short == "FileConfigProvider":
        return partial(_of_file, allowed)
    if short == "DirectoryConfigProvider":
        return partial(_of_directory, allowed)
    raise ConfigError(
        Problem(
            f"{where}.class",
            f"{where}.class={class_name}: no such provider. Available are "
            + ", ".join(_BUILT_IN.values()),
            class_name,
        )
    )


def _value(providers: Mapping[str, _Provider], match: re.Match[str]) -> str:
    name, *paths, key = match[1].split(":", 2)
    path = paths[0] if paths else ""
    provider = providers.get(name)
    if provider is None:
        listed = ", ".join(providers) or "none"
        raise _Unresolved(
            f"there is no config provider {name!r} (there are: {listed}); see {PROVIDERS}"
        )
    value = provider(path, key)
    if value is None:
        raise _Unresolved(f"{path or name} has no {key!r} on {socket.gethostname()}")
    try:
        check_value(value)
    except ValueError as error:
        raise _Unresolved(f"{path or name} has {key!r}, which {error}") from None
    hide(value, match[0])
    return value


def _variables(pattern: str, where: str) -> _Provider:
    name = f"{where}.param.allowlist.pattern"
    try:
        allowed = compiled(pattern)
    except ValueError as error:
        message = f"{name}={pattern!r} {error}"
        raise ConfigError(Problem(name, message, pattern)) from None

    def look_up(path: str, key: str) -> str | None:
        if path:
            raise _Unresolved(f"environment variables have no path, {path!r}: write ${{env:NAME}}")
        if not allowed.fullmatch(key):
            raise _Unresolved(f"{name}={pattern} does not allow {key}")
        return os.environ.get(key)

    return look_up


def _of_file(allowed: tuple[Path, ...] | None, path: str, key: str) -> str | None:
    import javaproperties  # slow to import

    try:
        text = content_of(_permitted(path, allowed)).decode()
        return javaproperties.loads(text).get(key)
    except (OSError, ValueError) as error:
        _cannot_read(path, error)


def _of_directory(allowed: tuple[Path, ...] | None, path: str, key: str) -> str | None:
    file = _permitted(path, allowed) / key
    if os.sep in key or not _permitted(str(file), allowed).is_file():
        return None
    try:
        return content_of(file).decode()
    except (OSError, ValueError) as error:
        _cannot_read(str(file), error)


def _cannot_read(path: str, error: Exception) -> NoReturn:
    reason = (error.strerror if isinstance(error, OSError) else None) or type(error).__name__
    raise _Unresolved(f"cannot read {path} on {socket.gethostname()}: {reason}")


def _permitted(path: str, allowed: tuple[Path, ...] | None) -> Path:
    if not path:
        raise _Unresolved("it names no path")
    if allowed is None:
        return Path(path)
    # Kafka Connect compares paths as they are written. A link must not lead out, either.
    normal = Path(os.path.normpath(path))
    written = any(normal.is_relative_to(root) for root in allowed)
    if not written or not any(_real(normal).is_relative_to(_real(root)) for root in allowed):
        raise _Unresolved(f"{path} is not below the provider's allowed.paths")
    return normal


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))


def _allowed(paths: str, where: str) -> tuple[Path, ...] | None:
    """The folders that a provider may read; None for all."""
    if not paths:
        return None
    name = f"{where}.param.allowed.paths"
    return tuple(_root(part.strip(), name) for part in paths.split(","))


def _root(path: str, name: str) -> Path:
    root = Path(os.path.normpath(path))
    if not root.is_absolute() or not root.exists():
        wrong = "does not exist" if root.is_absolute() else "is not absolute"
        raise ConfigError(Problem(name, f"{name}: {root} {wrong}", path))
    return root
