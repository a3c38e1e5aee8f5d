"""What the plans of sink and source connectors have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from semel.config import CommonConfig
from semel.core.delivery import Guarantee


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

    def check_runnable(self, transform: Callable[..., Any] | None) -> None:  # noqa: B027
        """Raises ConfigError: it cannot run with this transform."""

    @abstractmethod
    def close(self) -> None:
        """Release what its sink or source holds."""
