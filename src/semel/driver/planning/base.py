"""What the plans of sink and source connectors have in common."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Self

from semel.config import CommonConfig, ResolvedConfig, definitions, title
from semel.config.reading import given_names
from semel.core.delivery import Guarantee
from semel.core.errors import ConfigError, Unresolvable
from semel.core.problems import Problems, located
from semel.core.redact import without_pieces

if TYPE_CHECKING:
    from semel.driver.offsets import Offsets


@dataclass(frozen=True)
class BasePlan(ABC):
    """A configuration that has been checked without touching any service."""

    connector: CommonConfig
    guarantee: Guarantee
    engine: str
    warnings: list[str]

    is_source: ClassVar[bool]

    @property
    @abstractmethod
    def is_local(self) -> bool:
        """Whether it reads or writes what only this machine has."""

    @abstractmethod
    def facts(self) -> Mapping[str, Any]:
        """What the connector does, which guarantee holds, and why: for people, by name."""

    @property
    @abstractmethod
    def offsets(self) -> Offsets:
        """The stored offsets of the connector."""

    @abstractmethod
    def apart(self) -> Self:
        """The same plan with a sink or a source of its own: those of this one belong to its run."""

    def sample(self) -> None:  # noqa: B027
        """Add the warnings that the first records give reason for, if they can be read."""

    def check_runnable(self, transform: Callable[..., Any] | None) -> None:  # noqa: B027
        """Raises ConfigError: it cannot run with this transform."""

    @abstractmethod
    def close(self) -> None:
        """Release what its sink or source holds."""


def refusal(
    raw: Mapping[str, str], config: ResolvedConfig, sections: Sequence[type], problems: Problems
) -> ConfigError:
    """The error, which shows nothing of what references stand for in ``config``. ``sections``
    declare the keys, and so which values are secret."""
    keys = [d for section in sections for d in definitions(section)]
    secret = {n for d in keys if d.secret for n in d.names}
    known = {n for d in keys for n in d.names} | raw.keys()
    shown = partial(without_references, config=config, known=known)
    written = {d.name: present[0] for d in keys if (present := given_names(d, raw))}
    kind = ConfigError if problems.items else Unresolvable
    return kind(
        *(
            located(
                replace(p, key=written.get(p.key, p.key), message=shown(p.message)),
                raw,
                known,
                secret,
            )
            for p in problems.items
        ),
        title=title(raw),
        warnings=[shown(w) for w in problems.warnings],
    )


def without_references(text: str, config: Mapping[str, str], known: Iterable[str] = ()) -> str:
    """A text without anything that it shares with what references stand for, which is often made
    into something else, such as a name in lower case. What is ``known`` stays."""
    if not isinstance(config, ResolvedConfig) or not config.references:
        return text
    words = {*known, *config.references, *config.references.values(), title(config)}
    longest_first = sorted((w for w in words if len(w) > 2), key=len, reverse=True)
    parts = re.split(f"({'|'.join(map(re.escape, longest_first))})", text)
    for key in config.references:
        parts[::2] = [without_pieces(part, config[key]) for part in parts[::2]]
    return "".join(parts)
