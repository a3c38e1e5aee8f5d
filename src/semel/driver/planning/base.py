"""What the plans of sink and source connectors have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from semel.config import CommonConfig
from semel.core.delivery import Guarantee

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
