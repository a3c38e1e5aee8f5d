"""Every error a user can meet. The message holds the facts and what to do.

Exit codes are part of the command line's interface: each means one thing.
"""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from semel.core.quoting import harmless
from semel.core.redact import redacted

BROKEN = 1
"""Exit code of an audit that found the guarantee broken: no error of a command, but its answer."""
INTERRUPTED, CLOSED, TERMINATED = 130, 141, 143
"""Exit codes of a command that a signal ended: SIGINT, SIGPIPE, SIGTERM."""
EXIT_CODES: Mapping[int, str] = {
    0: "done",
    BROKEN: "records lost, duplicated or changed (audit, drill, demo)",
    2: "a mistake in the configuration or the command line",
    3: "a service cannot be reached, or refuses",
    4: "fenced by another run, or a ledger conflict",
    5: "a bad record",
    6: "the ledger points at records that Kafka no longer has",
    7: "the audit found nothing wrong, but could not judge everything",
    8: "nothing is known of the connector (audit, lag)",
    9: "a drill could not inject a fault, or its connector did not recover",
    70: "an unexpected error",
    INTERRUPTED: "Ctrl-C, or a question answered with no",
    CLOSED: "the reader of the output has closed it",
    TERMINATED: "SIGTERM, before a connector ran",
}


class SemelError(Exception):
    """Base of all errors that semel raises on purpose. The message hides credentials, control
    characters and the rest of very long lines."""

    exit_code = 70

    def __init__(self, *facts: object) -> None:
        super().__init__(*(_told(f) if isinstance(f, str) else f for f in facts))


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake in a configuration: the key, what is wrong with it, and the value that was given.

    The key is empty for problems that appear while a connector runs. Reading a configuration fills
    in the value, and the key as the user has written it. With ``not_installed`` nothing is wrong
    with the configuration: this machine lacks a package.
    """

    key: str
    message: str
    value: str = ""
    not_installed: bool = False


class ConfigError(SemelError):
    """A configuration that cannot be run, or whose declared guarantee cannot be kept.

    ``problems`` holds each mistake, ``warnings`` everything else that was noticed.
    """

    exit_code = 2

    def __init__(
        self, *problems: str | Problem, title: str = "", warnings: Sequence[str] = ()
    ) -> None:
        wrapped = [p if isinstance(p, Problem) else Problem("", p) for p in problems]
        self.problems = [replace(p, message=_told(p.message)) for p in wrapped]
        self.warnings = list(warnings)
        lines = [p.message for p in self.problems]
        text = "\n  ".join([f"{len(lines)} problems", *lines]) if len(lines) > 1 else "".join(lines)
        super().__init__(title + text)


def _told(text: str) -> str:
    return redacted(harmless(text))


def misconfigured(key: str, message: str, value: str = "") -> ConfigError:
    """The error for a mistake in one key, to be raised. Reading or planning a configuration fills
    in the value as the user has written it; give ``value`` only where neither does."""
    return ConfigError(Problem(key, message, value))


def prefixed(
    problems: Iterable[Problem], prefix: str, *, otherwise: str = "", title: str = ""
) -> ConfigError:
    """The error for problems that name keys without their prefix, such as ``transforms.x.``.

    Args:
        otherwise: the key of problems that name none.
        title: what each message begins with.
    """

    def whole(problem: Problem) -> Problem:
        key, text = problem.key, problem.message
        begins = key and re.match(rf"{re.escape(key)}(?![\w.-])", text)
        front = prefix if begins or not prefix else f"{prefix[:-1]}: "
        whole_key = prefix + key if key else otherwise
        return replace(problem, key=whole_key, message=f"{title}{front}{text}")

    return ConfigError(*map(whole, problems))


class TopicMissing(ConfigError):
    """A topic that a sink is to read does not exist."""


class Unresolvable(ConfigError):
    """References in the configuration have no value here, and nothing else is known to be wrong.
    The problems name them, or the warnings if the connector is to run elsewhere."""


def about(connector: str, error: object) -> str:
    """A message about a connector. Most errors name it themselves, and then it is not repeated."""
    text, name = str(error), f"connector {connector}"
    return text if text.startswith((f"{name}: ", f"{name} ")) else f"{name}: {text}"


class NotKnown(SemelError):
    """Nothing is stored of a connector of this name."""

    exit_code = 8


class NothingToAudit(NotKnown):
    """The ledger knows nothing of the connector, so there is nothing to audit."""


class NotJudged(SemelError):
    """An audit cannot judge what it was asked to judge."""

    exit_code = 7


class ServiceError(SemelError):
    """Kafka, the target store or Java cannot be reached or refuses us."""

    exit_code = 3


class TopicGone(ServiceError):
    """A topic of Kafka, or one of its partitions, does not exist any more."""


class GaveUp(ServiceError):
    """A transient failure has occurred more often than ``max.retries`` allows."""


class Refused(ServiceError):
    """The target store refuses a request and would refuse it again."""


class RolledBack(ServiceError):
    """The target was restored to an older state or replaced: rows are gone, but the positions
    remain. That does not resolve itself."""


class LedgerConflict(SemelError):
    """The stored position is neither the start nor the end of the range (a gap, an overlap or
    another writer), or it belongs to another log. The transaction has been rolled back."""

    exit_code = 4


class OtherLog(LedgerConflict):
    """The position belongs to another log than the records: the ledger and Kafka must be compared
    again."""


class Fenced(LedgerConflict):
    """Another run of the same connector has taken over."""


class Displaced(Fenced):
    """Kafka believes that another consumer has the task's place in the group."""


class NotAssigned(LedgerConflict):
    """Another task may have the partitions by now: the group's current generation does not assign
    them to this task. It must wait for the group's answer before it continues."""


class BadRecord(SemelError):
    """A record that cannot be converted or does not fit, with ``errors.tolerance=none``."""

    exit_code = 5


class OffsetOutOfRange(SemelError):
    """The ledger's position does not fit the log: records from there on are gone, or differ from
    those that were there."""

    exit_code = 6


class TransientError(SemelError):
    """A failure of the store that may pass: a lost connection, a deadlock, a full disk."""

    exit_code = 3


class Unavailable(TransientError):
    """The store accepts nothing at the moment: it is unreachable, silent, starting, full, read-only
    or out of connections. The engine waits for it indefinitely unless ``max.retries`` is set."""


class TargetChanged(TransientError):
    """The target has changed since the records were converted: they must be converted again."""


class LogChanged(TransientError):
    """The records may come from a different log than the positions: the two are compared again."""


@dataclass(frozen=True, slots=True)
class Failure:
    """An error that one process reports and another one raises.

    Pickling the exception would tie both to its constructor, and the driver may lack the module
    that defines it. ``kinds`` are its class and base classes, nearest first, each as a module and a
    name.
    """

    kinds: tuple[tuple[str, str], ...]
    message: str
    exit_code: int

    @classmethod
    def of(cls, error: SemelError) -> Failure:
        kinds = [k for k in type(error).__mro__ if issubclass(k, SemelError)]
        names = tuple((k.__module__, k.__qualname__) for k in kinds)
        return cls(names, str(error), error.exit_code)

    def error(self) -> SemelError:
        """The reported error, as the nearest class that this process can import."""
        for module, name in self.kinds:
            kind = _imported_kind(module, name)
            error = _made_of(kind, self.message) if kind is not None else None
            if error is not None:
                break
        else:
            error = SemelError(self.message)
        if error.exit_code != self.exit_code:
            error.exit_code = self.exit_code
        return error


def _imported_kind(module: str, name: str) -> type[SemelError] | None:
    try:
        kind = functools.reduce(getattr, name.split("."), importlib.import_module(module))
    except (ImportError, AttributeError, ValueError):
        return None  # it was defined in a function or a script, or is not installed here
    return kind if isinstance(kind, type) and issubclass(kind, SemelError) else None


def _made_of(kind: type[SemelError], message: str) -> SemelError | None:
    """An error of this class with this ``message``, whatever arguments its constructor wants; None
    if the class cannot show the message without them."""
    own = next(k for k in kind.__mro__ if k.__module__ == __name__)
    error = kind.__new__(kind, message)
    own.__init__(error, message)  # type: ignore[misc]
    try:
        return error if str(error) == message else None
    except Exception:  # its text comes from attributes that only its constructor sets
        return None
