"""The configuration of a sink whose targets are named after the topics that transforms route to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from semel.transforms import known_chain, routed


@dataclass(frozen=True)
class RoutedConfig:
    """A section that knows the connector's transforms."""

    originals: Mapping[str, str] = field(
        default_factory=dict, kw_only=True, repr=False, compare=False
    )

    @property
    def routes(self) -> bool:
        """Whether transforms change where the records of a topic go."""
        return bool(known_chain(self.originals).routers)

    @property
    def splits(self) -> bool:
        """Whether the records of one topic go to several targets, which they name themselves."""
        return not known_chain(self.originals).goes_by_topic

    def routed(self, topic: str) -> str:
        """The name by which a topic's target is named: its own, unless a router changes it."""
        return routed(self.originals, topic)
