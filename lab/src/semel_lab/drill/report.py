"""What a drill reports."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from semel_lab.drill.plan import Fault


class AuditResult(Protocol):
    """What an audit found."""

    @property
    def records(self) -> int: ...

    @property
    def lost(self) -> int: ...

    @property
    def duplicated(self) -> int: ...

    @property
    def kept(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class FaultResult:
    """The effect of a fault: the ``seconds`` until the connector had caught up, and the audit's
    findings; ``reason`` is what else breaks the guarantee."""

    fault: Fault
    seconds: float
    records: int
    lost: int
    duplicated: int
    kept: bool
    reason: str = ""


@dataclass(slots=True)
class DrillReport:
    """The results of all faults, and the final audit once everything produced is committed."""

    connector: str
    delivery: str
    exact: bool
    seed: int
    results: list[FaultResult] = field(default_factory=list)
    final: AuditResult | None = None
    seconds: float = 0.0
    fenced: int = 0

    @property
    def lost(self) -> int:
        """The highest number of lost records in any audit."""
        return max([r.lost for r in self.results] + ([self.final.lost] if self.final else []))

    @property
    def duplicated(self) -> int:
        """The highest number of duplicated rows in any audit."""
        counts = [r.duplicated for r in self.results]
        return max(counts + ([self.final.duplicated] if self.final else []))

    @property
    def kept(self) -> bool:
        """Whether the declared guarantee held all the time."""
        return all(r.kept for r in self.results) and self.final is not None and self.final.kept


Observer = Callable[[Fault | None, FaultResult | None], None]
"""Called with each fault when it begins and with its result, and with neither before the final
audit."""
