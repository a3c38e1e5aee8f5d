"""Assigns tasks to workers: evenly, and with as few moves as possible."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

Owners = Mapping[str, Sequence[str]]
"""The worker of each share of each connector. A share is a task, or the connector as a whole."""
_Share = tuple[str, int]


def assign(
    shares: Mapping[str, int],
    workers: Collection[str],
    before: Owners,
    awaited: Collection[str] = (),
) -> dict[str, tuple[str, ...]]:
    """Assign each share of each connector to a worker.

    A share stays where it is, unless its worker is gone or has two more shares than another worker.
    First tasks are spread evenly, because their workers answer for the connectors; so are all
    shares together, and those of each connector where possible. A worker that is ``awaited``
    because it shut down cleanly keeps its shares; meanwhile they run nowhere.

    Args:
        shares: connectors, and how many shares each has.
        workers: the workers that are there. Nothing is assigned if there are none.
        before: the assignment until now.
        awaited: workers that are expected back.
    """
    if not workers:
        return {}
    keeping = {*workers, *awaited}
    firsts = [(name, 0) for name in sorted(shares)]
    others = [(name, n) for name in sorted(shares) for n in range(1, shares[name])]
    kept = {(name, n): w for name, owners in before.items() for n, w in enumerate(owners)}
    found = {share: kept[share] for share in firsts + others if kept.get(share) in keeping}
    loads = _Loads(workers)
    for share in firsts:
        if share in found:
            loads.add(share, found[share])
    _level(firsts, found, loads)
    for share in others:
        if share in found:
            loads.add(share, found[share])
    _level(others, found, loads)
    return {name: tuple(found[name, n] for n in range(shares[name])) for name in sorted(shares)}


def _level(shares: Sequence[_Share], found: dict[_Share, str], loads: _Loads) -> None:
    """Place the shares that have no worker, then move shares until no worker has two more than
    another: from the worker with the most, and there from the connector with the most."""
    for share in shares:
        if share not in found:
            found[share] = loads.least(share[0])
            loads.add(share, found[share])
    while loads.are_uneven():
        worker = loads.most()
        here = (share for share in shares if found[share] == worker)
        share = max(here, key=lambda share: loads.of(share[0], worker))
        found[share] = loads.least(share[0])
        loads.move(share, worker, found[share])


class _Loads:
    """How many shares each worker has: in all, and of each connector."""

    def __init__(self, workers: Iterable[str]) -> None:
        self._all = Counter(dict.fromkeys(workers, 0))
        self._of: Counter[tuple[str, str]] = Counter()

    def of(self, connector: str, worker: str) -> int:
        return self._of[connector, worker]

    def are_uneven(self) -> bool:
        return max(self._all.values()) > min(self._all.values()) + 1

    def add(self, share: _Share, worker: str) -> None:
        if worker in self._all:
            self._all[worker] += 1
            self._of[share[0], worker] += 1

    def move(self, share: _Share, worker: str, to: str) -> None:
        self._all[worker] -= 1
        self._of[share[0], worker] -= 1
        self.add(share, to)

    def least(self, connector: str) -> str:
        """The worker with the fewest shares; among equals, the one with the fewest of this
        connector."""
        return min(sorted(self._all), key=lambda w: (self._all[w], self._of[connector, w]))

    def most(self) -> str:
        """The worker with the most shares."""
        return max(sorted(self._all), key=self._all.__getitem__)
