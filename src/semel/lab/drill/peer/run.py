"""The same seeded faults for one side after the other, and what their tables hold afterwards."""

from __future__ import annotations

import random
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from semel.config import ConnectorConfig, read
from semel.delivery import Delivery, Guarantee
from semel.lab.drill.peer.books import Books, Findings
from semel.lab.drill.peer.sides import TOPIC, Copy, KafkaConnect, Semel, Side, connector
from semel.lab.drill.plan import Fault, Kind, plan
from semel.lab.drill.stage import DrillFailed
from semel.lab.drill.stores import SESSION
from semel.lab.drill.traffic import Shape, Traffic
from semel.lab.embedded import Kafka, Postgres
from semel.lab.embedded.process import comes_true

KINDS = (
    Kind.DRIVER_KILL,
    Kind.ZOMBIE,
    Kind.SECOND_DRIVER,
    Kind.STORE_RESTART,
    Kind.STORE_KILL,
    Kind.BROKER_RESTART,
    Kind.BROKER_KILL,
)
"""Faults that need nothing of the connector's own making."""

PARTITIONS = 4
_RECORDS = 2000
_PATIENCE = 300.0
_MOST = 100
"""Restarts by hand after which a side counts as broken."""
_TOGETHER = 4.0
"""Seconds that two copies run beside each other."""
_BOTH: Sequence[type[Side]] = (KafkaConnect, Semel)


@dataclass(frozen=True, slots=True)
class PeerResult:
    """What one side has made of the faults. ``nursed`` counts how often something of it had failed
    for good and was restarted by hand."""

    side: str
    mode: str
    faults: int
    seed: int
    findings: Findings
    nursed: int
    seconds: float


Observer = Callable[[str, str, Fault, Findings], None]
"""Called after each fault with side, mode, fault and what was found."""


def compare(
    faults: int,
    seed: int,
    *,
    modes: Sequence[str] = ("insert", "upsert"),
    sides: Sequence[type[Side]] = _BOTH,
    directory: Path | None = None,
    observe: Observer = lambda _side, _mode, _fault, _findings: None,
) -> list[PeerResult]:
    """Put each side through the same faults.

    Args:
        faults: how many for each side and mode.
        seed: of the faults, their moments, and the records.
        modes: ``insert`` into a table without a key, ``upsert`` into one with a key and a trigger.
        sides: who is compared.
        directory: where services and logs go, and stay; a temporary one if None.
        observe: see :data:`Observer`.

    Raises:
        DrillFailed: a side has not recovered; names the fault and the logs.
    """
    where = directory or Path(tempfile.mkdtemp(prefix=f"semel-peer-{seed}-"))
    found = []
    for mode in modes:
        for side in sides:
            place = where / f"{side.__name__.lower()}-{mode}"
            with _Match(place, side, mode, seed) as match:
                found.append(match.play(faults, observe))
    if directory is None:
        shutil.rmtree(where, ignore_errors=True)
    return found


class _Match:
    """One side with services of its own."""

    def __init__(self, directory: Path, side: type[Side], mode: str, seed: int) -> None:
        self._directory = directory
        self._mode = mode
        self._seed = seed
        self._dice = random.Random(f"{seed} peer")
        self._kafka = Kafka(directory / "kafka", session=2.0)
        self._postgres = Postgres(directory / "postgres")
        self._config = connector(self._postgres, upsert=mode == "upsert")
        self._side = side(directory / "side", self._kafka.bootstrap_servers, self._config)
        self._copies: list[Copy] = []
        self._nursed = 0
        self._ending = ExitStack()

    def __enter__(self) -> _Match:
        self._ending.callback(self._postgres.kill)
        self._ending.callback(self._kafka.kill)
        self._ending.callback(self._kill_copies)
        try:
            self._postgres.start()
            self._kafka.start()
            self._kafka.create_topic(TOPIC, PARTITIONS)
            servers, upsert = self._kafka.bootstrap_servers, self._mode == "upsert"
            self._books = Books(servers, TOPIC, PARTITIONS, self._postgres.url, upsert=upsert)
            self._ending.callback(self._books.close)
            self._books.create_tables()
            read_by_semel = read(ConnectorConfig, {**self._config, "bootstrap.servers": servers})
            shape = Shape(read_by_semel, upsert)
            self._traffic = Traffic(servers, {TOPIC: PARTITIONS}, shape, self._seed)
            self._ending.callback(lambda: self._traffic.stop(timeout=5))
        except BaseException:
            self._ending.close()
            raise
        return self

    def __exit__(self, *_exc: object) -> None:
        self._ending.close()

    def _kill_copies(self) -> None:
        for copy in self._copies:
            copy.kill()

    def play(self, faults: int, observe: Observer) -> PeerResult:
        began = time.monotonic()
        self._traffic.start()
        self._start()
        with self._settled("the start"):
            pass
        weakest = Guarantee(Delivery.AT_LEAST_ONCE, None, "")  # for the plan's moments
        found = Findings(0, 0, 0, 0)
        for fault in plan(faults, self._seed, weakest, KINDS):
            self._traffic.allow(_RECORDS)
            self._traffic.kick()
            time.sleep(0.5 + self._dice.uniform(0, 1.5))
            _STRIKES[fault.kind](self, fault)
            with self._settled(f"fault {fault.number} ({fault.kind.value})"):
                found = self._books.compare()
            observe(self._side.name, self._mode, fault, found)
        seconds = time.monotonic() - began
        return PeerResult(
            self._side.name, self._mode, faults, self._seed, found, self._nursed, seconds
        )

    @contextmanager
    def _settled(self, when: str) -> Iterator[None]:
        """All that was sent has arrived, and nothing more is sent."""
        self._traffic.hold(True)
        try:
            time.sleep(1.0)  # what is under way is finished
            self._books.read_on()
            if not comes_true(self._arrived, _PATIENCE, 0.2):
                raise DrillFailed(
                    f"{self._side.name}, {self._mode}, seed {self._seed}: not all records have "
                    f"arrived {_PATIENCE:.0f} s after {when}. All logs: {self._directory}"
                )
            yield
        finally:
            self._traffic.hold(False)

    def _arrived(self) -> bool:
        for copy in self._copies:
            self._nursed += copy.nurse()
        if not any(copy.alive for copy in self._copies):
            self._nursed += 1
            if self._nursed > _MOST:
                raise DrillFailed(
                    f"{self._side.name} has ended again and again. All logs: {self._directory}"
                )
            self._start()
        return self._books.caught_up()

    def _start(self) -> Copy:
        copy = self._side.start()
        self._copies = [*(c for c in self._copies if c.alive), copy]
        return copy

    def _driver_kill(self, _fault: Fault) -> None:
        self._copies[-1].kill()
        self._start()

    def _zombie(self, _fault: Fault) -> None:
        """A copy freezes, as a machine may; another one is started in its place; it wakes up."""
        frozen = self._copies[-1]
        frozen.signal(signal.SIGSTOP)
        self._start()
        time.sleep(SESSION + 2)
        frozen.signal(signal.SIGCONT)
        time.sleep(_TOGETHER)
        frozen.kill()

    def _second_driver(self, _fault: Fault) -> None:
        """Started twice by mistake, until somebody notices."""
        first = self._copies[-1]
        second = self._start()
        time.sleep(_TOGETHER)
        (first if second.alive else second).kill()

    def _store_restart(self, _fault: Fault) -> None:
        self._postgres.restart()

    def _store_kill(self, _fault: Fault) -> None:
        self._postgres.kill()
        self._postgres.start()

    def _broker_restart(self, _fault: Fault) -> None:
        self._kafka.restart()

    def _broker_kill(self, _fault: Fault) -> None:
        self._kafka.kill()
        self._kafka.start()


_STRIKES: dict[Kind, Callable[[_Match, Fault], None]] = {
    Kind.DRIVER_KILL: _Match._driver_kill,
    Kind.ZOMBIE: _Match._zombie,
    Kind.SECOND_DRIVER: _Match._second_driver,
    Kind.STORE_RESTART: _Match._store_restart,
    Kind.STORE_KILL: _Match._store_kill,
    Kind.BROKER_RESTART: _Match._broker_restart,
    Kind.BROKER_KILL: _Match._broker_kill,
}
