"""What a Python worker process keeps from one Spark job to the next: connecting anew would cost
more than a small job takes."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import pyarrow as pa

from semel.config import ConnectorConfig
from semel.engine import memory
from semel.leftbehind import MOST, left

log = logging.getLogger(__name__)

_KEPT = 4
"""Runs of which a process keeps something; the one that has waited longest goes first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """What holds for a run; it travels in the closure of each job.

    ``schemas`` are the value fields that the driver knows; ``version`` changes with them.
    """

    run: str
    connector: ConnectorConfig
    environment: Mapping[str, str]
    version: int = 0
    schemas: Mapping[str, pa.Schema] = field(default_factory=dict)


class _Worker(Protocol):
    def renew(self, spec: Any, /) -> None: ...

    def close(self) -> None: ...


W = TypeVar("W", bound=_Worker)


class Workers(Generic[W]):
    """One worker for each of the latest runs."""

    def __init__(self) -> None:
        self._kept: dict[str, W] = {}

    def of(self, spec: Spec, make: Callable[[], W]) -> W:
        """The worker of a run, with what the driver has sent last; made if there is none yet.

        A process in which too many calls wait for ever ends itself first. The job fails, and is run
        again in a new one.
        """
        if len(found := left()) >= MOST:
            log.warning("calls do not end (%s); this process ends", ", ".join(sorted(set(found))))
            os.kill(os.getpid(), signal.SIGKILL)
        worker = self._kept.pop(spec.run, None)
        if worker is None:
            os.environ.update(spec.environment)
            memory.limit_caches()
            worker = make()
        worker.renew(spec)
        self._kept[spec.run] = worker
        while len(self._kept) > _KEPT:
            self._kept.pop(next(iter(self._kept))).close()
        return worker
