"""Collects all mistakes in a configuration, to report them at once.

Inside :func:`gathering`, :func:`semel.config.read` reports problems and continues with defaults
instead of unusable values, so that later checks also run. Their problems with an unusable key are
left out, because they would be about the default.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

from semel.core.errors import ConfigError, Problem
from semel.core.redact import HIDDEN, names_secret, redacted, setting

_WORD = re.compile(r"[A-Za-z][\w.-]*[\w]")


class Problems:
    """The problems found so far. ``unusable`` holds keys without a usable value; ``reads`` says
    whether the files that a configuration names may be read to judge it."""

    def __init__(self, *, reads: bool = True) -> None:
        self.reads = reads
        self.items: list[Problem] = []
        self.unusable: set[str] = set()
        self.warnings: list[str] = []

    def add(self, problems: Iterable[Problem], title: str = "") -> None:
        """Take problems, each once, without the title that they may begin with."""
        known = {p.message for p in self.items}
        for problem in problems:
            message = problem.message.removeprefix(title)
            if message in known or self.unusable & {problem.key, *_WORD.findall(message)}:
                continue
            known.add(message)
            self.items.append(replace(problem, message=message))

    def forgive_missing_packages(self) -> None:
        """Turn problems with packages that are missing here into warnings: it runs elsewhere."""
        self.warnings += [p.message for p in self.items if p.not_installed]
        self.items = [p for p in self.items if not p.not_installed]

    @contextmanager
    def caught(self, title: str = "") -> Iterator[None]:
        """Take the problems of a ConfigError. Once there are some, other errors may be due to the
        defaults that replace unusable values, and are ignored."""
        try:
            yield
        except ConfigError as error:
            self.add(error.problems, title)
        except Exception:
            if not self.items:
                raise


_current: ContextVar[Problems | None] = ContextVar("problems", default=None)


def current() -> Problems | None:
    """Where problems are gathered now."""
    return _current.get()


@contextmanager
def gathering(*, reads: bool = True) -> Iterator[Problems]:
    """Gather problems in this thread."""
    problems = Problems(reads=reads)
    token = _current.set(problems)
    try:
        yield problems
    finally:
        _current.reset(token)


def may_read() -> bool:
    """Whether the files that a configuration names may be looked at now."""
    problems = _current.get()
    return problems is None or problems.reads


def check_read(key: str) -> None:
    """Check that the file that a key names may be read now.

    Raises:
        ConfigError: it may not. The key counts as unusable, so this is not among the problems.
    """
    problems = _current.get()
    if problems is not None and not problems.reads:
        problems.unusable.add(key)
        raise ConfigError(Problem(key, f"{key} is not read to check a configuration"))


def together(*checks: Callable[[], Any]) -> list[Any]:
    """Run all checks, even if some fail; returns their results.

    Raises:
        ConfigError: all problems that they found.
    """
    results: list[Any] = []
    failed: list[ConfigError] = []
    for check in checks:
        try:
            results.append(check())
        except ConfigError as error:
            failed.append(error)
    if len(failed) == 1:
        raise failed[0]
    if failed:
        raise ConfigError(*(p for error in failed for p in error.problems))
    return results


def refuse(problems: Iterable[Problem]) -> None:
    """Raise all of the problems as one ConfigError, if there are any."""
    listed = tuple(problems)
    if listed:
        raise ConfigError(*listed)


def located(
    problem: Problem, raw: Mapping[str, str], known: Collection[str], secret: Collection[str]
) -> Problem:
    """The problem, completed with its key's value.

    semel's own problems with a configuration name their key, which stays. For those that do not,
    such as a third-party sink's, the key is guessed: the first known one in the message.
    """
    key = problem.key or next((w for w in _WORD.findall(problem.message) if w in known), "")
    value = raw.get(key, problem.value)
    words = {key, *_WORD.findall(problem.message)}  # for a misspelt key, also the suggestion
    if value and any(w in secret or names_secret(w) for w in words):
        value = HIDDEN
    return replace(problem, key=key, value=setting(key, redacted(value)))
