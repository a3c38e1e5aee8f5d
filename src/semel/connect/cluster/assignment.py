"""Which worker runs which connector: evenly, and with as few moves as possible."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping


def assign(
    connectors: Iterable[str],
    workers: Collection[str],
    before: Mapping[str, str],
    awaited: Collection[str] = (),
) -> dict[str, str]:
    """Give each connector a worker.

    A connector stays where it is, unless that worker is gone or has two more than another one. A
    worker that is ``awaited`` because it ended in order keeps its connectors until then; they run
    nowhere meanwhile.

    Args:
        connectors: their names.
        workers: the workers that are there. Nothing is assigned if there are none.
        before: the assignment until now.
        awaited: workers that are expected back.
    """
    names = sorted(connectors)
    if not workers:
        return {}
    keeping = {*workers, *awaited}
    found = {name: before[name] for name in names if before.get(name) in keeping}
    load = Counter(dict.fromkeys(workers, 0))
    load.update(worker for worker in found.values() if worker in load)
    for name in names:
        if name not in found:
            found[name] = _least(load)
            load[found[name]] += 1
    for name in names:
        least = _least(load)
        if load.get(found[name], 0) > load[least] + 1:
            load[found[name]] -= 1
            load[least] += 1
            found[name] = least
    return found


def _least(load: Mapping[str, int]) -> str:
    return min(sorted(load), key=lambda worker: load[worker])
