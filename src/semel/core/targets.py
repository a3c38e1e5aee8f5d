"""What holds a topic's results, as ledger entries remember it."""

from __future__ import annotations

from typing import NamedTuple


class Target(NamedTuple):
    """A table, topic or index by its name in the store.

    ``made`` changes when it is dropped and created again, ``store`` when the whole store is copied
    or restored, which also changes ``made``. Both are empty if the store has no such ids.
    """

    name: str
    made: str = ""
    store: str = ""

    def __str__(self) -> str:
        """Its form in a ledger entry."""
        plain = not self.made and "#" not in self.name
        return self.name if plain else f"{self.name}#{self.made}@{self.store}"

    @classmethod
    def parse(cls, text: str) -> Target:
        name, mark, rest = text.rpartition("#")
        made, at, store = rest.partition("@")
        return cls(name, made, store) if mark and at else cls(text)

    def replaced_by(self, other: Target) -> str:
        """What has happened if the other target is a different one; empty if it is the same."""
        if self.name != other.name:
            return f"results went to {self.name} so far, and would go to {other.name} now"
        if self.made and other.made and self.store == other.store and self.made != other.made:
            return f"{self.name} was dropped and created again since"
        return ""
