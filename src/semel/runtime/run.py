"""A run of a connector as a whole: it waits for the previous run, and starts over where needed."""

from __future__ import annotations

import logging
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from semel import watchdog
from semel.context import CONNECTOR
from semel.engine import fences
from semel.engine.fences import FencesInARow
from semel.engine.orders import Orders
from semel.engine.states import State, Status
from semel.errors import LedgerConflict, SemelError, ServiceError, TopicMissing, about
from semel.planning import AnyPlan, SourcePlan, plan_any
from semel.redact import redacted
from semel.runtime.driving import LEAVE, drive
from semel.runtime.sharing import SharedSpark
from semel.runtime.topics import wait_for_topics

if TYPE_CHECKING:
    from semel.engine.base import Progress

log = logging.getLogger(__name__)

_FORMER_ENDS_IN = LEAVE + 5.0
"""Seconds that a run waits for the previous one, which abandons what does not end."""
_FIRST_WORD = 2.0
_LOOK = 0.1


@dataclass(slots=True)
class Tally:
    """How often a connector was started, has failed, and was fenced by another run of it, whether
    or not it has survived that."""

    starts: int = 0
    failures: int = 0
    fences: int = 0


class ConnectorRun:
    """A run of a connector. It begins once the one before has ended."""

    def __init__(
        self,
        planned: AnyPlan,
        spark: SharedSpark,
        transform: Callable[..., Any] | None,
        orders: Orders,
        tally: Tally,
        before: ConnectorRun | None,
    ) -> None:
        self.orders = orders
        self.progress: Progress | None = None
        self.moved = time.time()
        """When it last counted a record, or began, in seconds since 1970."""
        self.error: BaseException | None = None
        self.trace = ""
        self._tally = tally
        self._before = before
        self._planned = planned
        self._spark = spark
        self._transform = transform
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def alive(self) -> bool:
        return not self._ended.is_set()

    def join(self, timeout: float | None) -> bool:
        """Wait for its end; returns whether it has ended. Its own thread, as in an observer, does
        not wait: it would wait for itself."""
        if self._thread is threading.current_thread():
            return not self.alive
        return self._ended.wait(timeout)

    def begin(self) -> None:
        """Run in a thread of its own. What ends it is logged."""
        name = self._planned.connector.name

        def work() -> None:
            CONNECTOR.set(name)
            try:
                self._work()
            except SemelError as error:
                log.error("%s", about(name, error))
            except Exception:
                log.exception("connector %s", name)
            finally:
                self._ended.set()

        self._thread = threading.Thread(target=work, daemon=True, name=f"semel-{name}")
        try:
            self._thread.start()
        except BaseException:  # no more threads
            self._planned.close()
            self._ended.set()
            raise

    def here(self) -> Progress:
        """Run in this thread; returns the totals.

        Raises:
            semel.errors.SemelError: what ended it.
            BaseException: what its observer raised, or a signal's handler.
        """
        self._thread = threading.current_thread()
        try:
            return self._work()
        finally:
            self._ended.set()

    def _work(self) -> Progress:
        from semel.engine.base import Progress

        observe = self.orders.observe
        fences = records = 0

        def note(progress: Progress) -> None:  # engines go on counting in the same object
            nonlocal fences, records
            self._tally.fences += progress.fences - fences
            if progress.records != records:
                self.moved = time.time()
            fences, records = progress.fences, progress.records
            self.progress = progress
            observe(progress)

        is_next = False
        try:
            if is_next := self._is_next(self._planned.connector.name):
                self._drive(self.orders.observed_by(note))
            return self.progress or Progress()
        except BaseException as error:
            self.trace = redacted(_trace(error))
            self.error = error
            self._tally.failures += 1
            self._tally.fences += isinstance(error, LedgerConflict)
            raise
        finally:
            if not is_next:
                self._planned.close()

    def _drive(self, orders: Orders) -> None:
        """Run the connector to its end. In a cluster, begin again after a fence, which may come
        from an older process; where tasks do so one by one, the engine sees to it.

        Raises:
            SemelError: what ended it.
        """
        planned = self._planned
        direct = not isinstance(planned, SourcePlan) and planned.engine == "direct"
        begins_again = orders.share.moves and orders.share.is_whole and not direct
        fenced, shown = FencesInARow(), None
        while True:
            began = time.monotonic()
            try:
                self.progress = drive(planned, self._spark.of(planned), self._transform, orders)
                return
            except LedgerConflict as error:
                last = self.progress
                worked = last is not None and last is not shown and last.records
                pause = fenced.one_more(time.monotonic() - began if worked else 0.0)
                if not begins_again or fenced.count > fences.MOST:
                    raise
                self._tally.fences += 1
                log.warning(
                    "connector %s was fenced, perhaps by an older process on another worker; "
                    "starting it again (%d of %d): %s",
                    *(planned.connector.name, fenced.count, fences.MOST, error),
                )
                shown = self._shown_restarting(orders, error)
            except TopicMissing:
                if not orders.keeps_going or isinstance(planned, SourcePlan):
                    raise
                wait_for_topics(planned, orders)
                pause = 0.0
            woken = threading.Event()
            with orders.notifier.subscribed(woken.set), orders.notifier.notified_by(orders.stop):
                if orders.restarts.empty():
                    woken.wait(pause)
            if orders.stop.is_set():
                return
            orders.drop_restarts()
            planned = plan_any(planned.connector.originals, self._transform)

    def _shown_restarting(self, orders: Orders, why: SemelError) -> Progress | None:
        """Show that all tasks begin again, until the next run has something to tell."""
        if (last := self.progress) is not None:
            status = Status(State.RESTARTING, redacted(str(why)))
            orders.observe(replace(last, states=dict.fromkeys(last.states, status)))
        return self.progress

    def _is_next(self, connector: str) -> bool:
        """Wait until earlier runs have ended; returns whether they have, because this run may be
        stopped meanwhile.

        Raises:
            ServiceError: one does not end.
        """
        began, told = time.monotonic(), False
        while (former := self._former()) is not None and not self.orders.stop.is_set():
            waited = time.monotonic() - began
            waits = "".join(f" ({wait})" for wait in watchdog.waits()[:1])
            if waited > _FIRST_WORD and not told:
                told = True
                log.warning("connector %s waits until its previous run ends%s", connector, waits)
            if waited > _FORMER_ENDS_IN:
                raise ServiceError(
                    f"connector {connector}: its previous run has not ended within "
                    f"{_FORMER_ENDS_IN:.0f} s{waits}; two would conflict. Restart the connector "
                    "later, or this process"
                )
            former.join(_LOOK)
        return former is None

    def _former(self) -> ConnectorRun | None:
        """The last run before this one that has not ended."""
        while self._before is not None and not self._before.alive:
            self._before = self._before._before
        return self._before


def _trace(error: BaseException) -> str:
    """The trace for users: the message, with a stack trace if the error was unexpected."""
    if isinstance(error, SemelError) and error.__cause__ is None:
        return str(error)
    return "".join(traceback.format_exception(error))
