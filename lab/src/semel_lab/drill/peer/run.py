"""Injects the same seeded faults into one system after the other, and checks their tables."""

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
from semel.core.delivery import Delivery, Guarantee
from semel_lab.drill.peer.checker import Checker, Findings
from semel_lab.drill.peer.systems import TOPIC, Instance, KafkaConnect, Semel, System, connector
from semel_lab.drill.plan import Fault, Kind, plan
from semel_lab.drill.processes import DrillFailed, inject_all, located
from semel_lab.drill.stores import SESSION
from semel_lab.drill.traffic import Shape, Traffic
from semel_lab.embedded import Kafka, Postgres
from semel_lab.embedded.process import comes_true

KINDS = (
    Kind.DRIVER_KILL,
    Kind.ZOMBIE,
    Kind.SECOND_DRIVER,
    Kind.STORE_RESTART,
    Kind.STORE_KILL,
    Kind.BROKER_RESTART,
    Kind.BROKER_KILL,
)
"""Faults that any connector can be put under."""

PARTITIONS = 4
_PATIENCE = 300.0
_MOST = 100
"""Manual restarts after which a system counts as broken."""
_TOGETHER = 4.0
"""Seconds during which two instances run side by side."""
_BOTH: Sequence[type[System]] = (KafkaConnect, Semel)


@dataclass(frozen=True, slots=True)
class PeerResult:
    """The result of one system. ``restarted`` counts how often a part of it had failed for good and
    had to be restarted manually."""

    system: str
    mode: str
    faults: int
    seed: int
    findings: Findings
    restarted: int
    seconds: float


Observer = Callable[[str, str, Fault, Findings], None]
"""Called after each fault with the system, the mode, the fault and the findings."""


def compare(
    faults: int,
    seed: int,
    *,
    modes: Sequence[str] = ("insert", "upsert"),
    systems: Sequence[type[System]] = _BOTH,
    directory: Path | None = None,
    observe: Observer = lambda _system, _mode, _fault, _findings: None,
) -> list[PeerResult]:
    """Put each system under the same faults.

    Args:
        faults: the number of faults for each system and mode.
        seed: seeds the faults, their moments and the records.
        modes: ``insert`` into a table without a key, ``upsert`` into one with a key and a trigger.
        systems: the systems to compare.
        directory: keeps the services' data and all logs; if None, they are temporary.
        observe: see :data:`Observer`.

    Raises:
        DrillFailed: a system did not recover. The message names the fault and the logs.
    """
    where = directory or Path(tempfile.mkdtemp(prefix=f"semel-peer-{seed}-"))
    results = []
    for mode in modes:
        for system in systems:
            place = where / f"{system.__name__.lower()}-{mode}"
            with _Trial(place, system, mode, seed) as trial:
                results.append(trial.run(faults, observe))
    if directory is None:
        shutil.rmtree(where, ignore_errors=True)
    return results


class _Trial:
    """One system with services of its own."""

    def __init__(self, directory: Path, system: type[System], mode: str, seed: int) -> None:
        self._directory = directory
        self._mode = mode
        self._seed = seed
        self._dice = random.Random(f"{seed} peer")
        self._kafka = Kafka(directory / "kafka", session=2.0)
        self._postgres = Postgres(directory / "postgres")
        self._config = connector(self._postgres, upsert=mode == "upsert")
        self._system = system(directory / "system", self._kafka.bootstrap_servers, self._config)
        self._instances: list[Instance] = []
        self._restarted = 0
        self._ending = ExitStack()

    def __enter__(self) -> _Trial:
        self._ending.callback(self._postgres.kill)
        self._ending.callback(self._kafka.kill)
        self._ending.callback(self._kill_instances)
        try:
            self._postgres.start()
            self._kafka.start()
            self._kafka.create_topic(TOPIC, PARTITIONS)
            servers, upsert = self._kafka.bootstrap_servers, self._mode == "upsert"
            self._checker = Checker(servers, TOPIC, PARTITIONS, self._postgres.url, upsert=upsert)
            self._ending.callback(self._checker.close)
            self._checker.create_tables()
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

    def _kill_instances(self) -> None:
        for instance in self._instances:
            instance.kill()

    def run(self, faults: int, observe: Observer) -> PeerResult:
        began = time.monotonic()
        self._traffic.start()
        self._start()
        with located(self._directory, f"at the start (seed {self._seed})"), self._settled():
            pass

        def tell(fault: Fault | None, findings: Findings | None) -> None:
            if fault is not None and findings is not None:
                observe(self._system.name, self._mode, fault, findings)

        weakest = Guarantee(Delivery.AT_LEAST_ONCE, None, "")  # for the plan's moments
        results = inject_all(
            plan(faults, self._seed, weakest, KINDS),
            self._seed,
            self._one,
            allow=self._traffic.allow,
            directory=self._directory,
            observe=tell,
        )
        seconds = time.monotonic() - began
        return PeerResult(
            self._system.name, self._mode, faults, self._seed, results[-1], self._restarted, seconds
        )

    def _one(self, fault: Fault) -> Findings:
        self._traffic.kick()
        time.sleep(0.5 + self._dice.uniform(0, 1.5))
        _STRIKES[fault.kind](self, fault)
        with self._settled():
            return self._checker.compare()

    @contextmanager
    def _settled(self) -> Iterator[None]:
        """Hold the traffic back and wait until everything that was sent has arrived."""
        self._traffic.hold(True)
        try:
            time.sleep(1.0)  # let transactions in flight end
            self._checker.read_new()
            if not comes_true(self._arrived, _PATIENCE, 0.2):
                raise DrillFailed(
                    f"{self._system.name}, {self._mode}: some records are still missing after "
                    f"{_PATIENCE:.0f} s"
                )
            yield
        finally:
            self._traffic.hold(False)

    def _arrived(self) -> bool:
        for instance in self._instances:
            self._restarted += instance.restart_failed()
        if not any(instance.alive for instance in self._instances):
            self._restarted += 1
            if self._restarted > _MOST:
                raise DrillFailed(f"{self._system.name} ended {_MOST} times and was restarted")
            self._start()
        return self._checker.caught_up()

    def _start(self) -> Instance:
        instance = self._system.start()
        self._instances = [*(i for i in self._instances if i.alive), instance]
        return instance

    def _driver_kill(self, _fault: Fault) -> None:
        self._instances[-1].kill()
        self._start()

    def _zombie(self, _fault: Fault) -> None:
        """An instance freezes, another one takes its place, and the first one wakes up."""
        frozen = self._instances[-1]
        frozen.signal(signal.SIGSTOP)
        second = self._start()
        time.sleep(SESSION + 2)
        frozen.signal(signal.SIGCONT)
        self._end_one(frozen, second)

    def _second_driver(self, _fault: Fault) -> None:
        """The connector is started twice by mistake, until somebody notices."""
        first = self._instances[-1]
        self._end_one(first, self._start())

    def _end_one(self, first: Instance, second: Instance) -> None:
        """Let two instances run side by side. Then end the first one if the second is alive."""
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


_STRIKES: dict[Kind, Callable[[_Trial, Fault], None]] = {
    Kind.DRIVER_KILL: _Trial._driver_kill,
    Kind.ZOMBIE: _Trial._zombie,
    Kind.SECOND_DRIVER: _Trial._second_driver,
    Kind.STORE_RESTART: _Trial._store_restart,
    Kind.STORE_KILL: _Trial._store_kill,
    Kind.BROKER_RESTART: _Trial._broker_restart,
    Kind.BROKER_KILL: _Trial._broker_kill,
}
