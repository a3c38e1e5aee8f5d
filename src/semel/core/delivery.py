"""Delivery guarantees: declared by the user, kept by the sink, checked before anything starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from semel.core.errors import misconfigured


class Delivery(Enum):
    """The declared guarantee."""

    AT_MOST_ONCE = "at-most-once"
    AT_LEAST_ONCE = "at-least-once"
    EXACTLY_ONCE = "exactly-once"


class Mechanism(Enum):
    """How exactly-once is kept."""

    TRANSACTIONAL = "transactional"
    IDEMPOTENT = "idempotent"


@dataclass(frozen=True, slots=True)
class Support:
    """Whether a sink can keep a mechanism under its present configuration, and why (not).

    A refusal's ``reason`` also says what to set instead.
    """

    kept: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Guarantee:
    """The guarantee that holds for a connector, with the reason in plain words."""

    delivery: Delivery
    mechanism: Mechanism | None
    why: str

    def __str__(self) -> str:
        if self.mechanism is None:
            return self.delivery.value
        return f"{self.delivery.value} ({self.mechanism.value})"


_ORDER = {
    Delivery.AT_MOST_ONCE: "positions are committed first, results after: a crash in between "
    "loses the records of that batch and never writes one twice",
    Delivery.AT_LEAST_ONCE: "results are committed first, positions after: a crash in between "
    "writes the records of that batch again and never loses one",
}


def resolve(
    declared: Delivery | None,
    mechanism: Mechanism | None,
    supported: Mapping[Mechanism, Support],
) -> Guarantee:
    """The guarantee to run with: the declared one, or the strongest one the sink can keep.

    Args:
        declared: ``delivery`` of the config; None for the strongest.
        mechanism: ``delivery.mechanism``; None for ``auto``.
        supported: the sink's answer for each mechanism.

    Raises:
        ConfigError: the declared guarantee cannot be kept; says why and what to set.
    """
    if declared in _ORDER:
        if mechanism is not None:
            raise misconfigured(
                "delivery.mechanism",
                f"delivery.mechanism={mechanism.value} belongs to delivery=exactly-once, but "
                f"delivery={declared.value} is declared. Remove delivery.mechanism.",
            )
        return Guarantee(declared, None, _ORDER[declared])
    mechanisms = [mechanism] if mechanism else [Mechanism.TRANSACTIONAL, Mechanism.IDEMPOTENT]
    for candidate in mechanisms:
        support = supported[candidate]
        if support.kept:
            return Guarantee(Delivery.EXACTLY_ONCE, candidate, support.reason)
    refusals = "; ".join(f"{m.value}: {supported[m].reason}" for m in mechanisms)
    if declared is Delivery.EXACTLY_ONCE or mechanism is not None:
        raise misconfigured(
            "delivery" if declared else "delivery.mechanism",
            f"delivery=exactly-once cannot be kept. {refusals}",
        )
    return Guarantee(
        Delivery.AT_LEAST_ONCE,
        None,
        f"{_ORDER[Delivery.AT_LEAST_ONCE]}. Not exactly-once: {refusals}",
    )
