"""The direct engine's driver: long-running tasks move the records, each a Spark job of its own.

Spark places the tasks; Kafka's group protocol spreads the partitions; the ledger says where each
begins. The driver starts the tasks, listens to them and stops them. Nothing passes through it, and
killing it loses nothing.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from confluent_kafka import Consumer, ConsumerGroupState
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import ConsumerGroupDescription
from pyspark import SparkContext

from semel.config import ConnectorConfig
from semel.core import failpoints
from semel.core.abandoned import Abandoned, BackgroundCall, within
from semel.core.context import RUN, is_over, kept, this_run
from semel.core.errors import Fenced, LedgerConflict, SemelError
from semel.core.ledger import TopicPartition
from semel.core.quoting import all_named, named
from semel.driver import sample, startup
from semel.driver.base import MOST_FENCES, Progress, Run, WaitKind, waiting
from semel.driver.supervisor import Supervisor
from semel.kafka.clients import HEARTBEAT, SESSION, client_config
from semel.kafka.consumer import consumer_config, instance_id
from semel.kafka.groups import Groups, assigned_to
from semel.sinks.protocols import FencesByGroup
from semel.tasks import ranges
from semel.tasks.control import ControlServer, serving
from semel.tasks.direct.task import DirectSpec
from semel.tasks.publish import other_run
from semel.tasks.transform import Transform
from semel.tasks.unplaced import UnplacedLog

log = logging.getLogger(__name__)

_TRIES = 20
"""How often a driver tries again after other workers' tasks have just moved positions."""
_PLACEHOLDER_LOOK = 0.02
_PATIENCE = 6.0
"""Seconds that tasks wait for the placeholder at most."""
_LATE = 0.5
"""Seconds that the other tasks get after the first one has joined."""
_STAYS = 60.0
_SESSION = 6_000
"""Milliseconds: Kafka's default ``group.min.session.timeout.ms``."""
_LEAVES = 5.0
_LOOK, _SELDOM = 30.0, 600.0
"""Seconds between two looks for partitions that nobody reads: while tasks do not hold all that
existed at the start, and while they do."""
_STABLE, _PREPARING = ConsumerGroupState.STABLE, ConsumerGroupState.PREPARING_REBALANCING
_TAKES, _AT_ONCE = 3, 50
"""How often one run takes the place of the same member, which may be a running program that comes
back; and how many places it takes at a time."""


class DirectEngine:
    """One run of a connector."""

    def __init__(
        self, run: Run, spark: Callable[[], SparkContext], transform: Transform | None
    ) -> None:
        self._run = run
        self._spark = spark
        self._transform = transform
        self._unplaced_log = UnplacedLog(run.connector, run.sink)
        self._name = this_run()
        self._supervisor = Supervisor(run.run_control, spark, fences=MOST_FENCES)
        self._unread = UnreadPartitions(run)

    def run(self) -> Progress:
        """Run the tasks until stopped, caught up, or an error ends the connector.

        Raises:
            SemelError: what ended it.
        """
        placeholder = Placeholder(self._run, self._name)
        try:
            return self._run_tasks(placeholder)
        except Fenced as error:
            if by := self._by():
                raise Fenced(f"{str(error).rstrip('.')}. {by}") from None
            raise
        finally:
            self._unread.close()
            placeholder.close()

    def _by(self) -> str:
        """Who has started the run that has taken over, if that one says so soon."""
        run = self._run
        if run.run_control.assignment.moves:  # more likely, an older process on another worker
            return ""
        with suppress(SemelError):
            if who := other_run(run.connector, run.topics, self._name, run.stop.wait, later=True):
                return f"The other run was started by {who}"
        return ""

    def _run_tasks(self, placeholder: Placeholder) -> Progress:
        run = self._run
        with _Launch(run, self._spark, self._spec, self._supervisor, self._name) as launch:
            schemas, targets = self._prepare() if run.assignment.is_whole else self._prepare_share()
            server, spec = launch.result()
        try:
            placeholder.wait(run.stop)
            run.cluster.disconnect()
            return self._supervisor.supervise(
                server, spec, run.connector.tasks_max, lambda p: self._over(p, targets), schemas
            )
        finally:
            server.close()

    def _spec(self, **facts: Any) -> DirectSpec:
        return DirectSpec(
            connector=self._run.connector,
            guarantee=self._run.guarantee,
            transform=self._transform,
            **facts,
        )

    def _over(self, progress: Progress, targets: Mapping[TopicPartition, int]) -> bool:
        self._unplaced_log.tell(progress.unplaced)
        self._unread.look(progress)
        return self._run.over(progress, targets)

    def _prepare_share(self) -> tuple[dict[str, pa.Schema], dict[TopicPartition, int]]:
        """Prepare the run while other workers' tasks move the positions."""
        for _ in range(_TRIES):
            try:
                return self._prepare()
            except LedgerConflict as conflict:
                log.info("%s; looking again", conflict)
        return self._prepare()

    def _prepare(self) -> tuple[dict[str, pa.Schema], dict[TopicPartition, int]]:
        run = self._run
        topics = run.topics
        startup.enter(run)
        partitions = ranges.partitions(topics)
        positions = ranges.positions(run.connector, run.sink, run.cluster, partitions)
        schemas = self._schemas(positions)
        # Also for tables that taking the sample has just created.
        if run.assignment.has_first:
            lenient = not run.assignment.is_whole
            entries = run.sink.entries()
            startup.check_targets(
                run.connector, run.sink, entries, topics, run.results, lenient=lenient
            )
        self._supervisor.progress.positions = dict(positions)
        return schemas, startup.targets(run)

    def _schemas(self, positions: Mapping[TopicPartition, int]) -> dict[str, pa.Schema]:
        run = self._run
        return sample.schemas(run.connector, run.sink, run.cluster, self._transform, positions)


class _Launch:
    """Starts the tasks, in a thread of its own, while the run is being prepared; an error meanwhile
    ends them. Use it in a ``with`` statement."""

    def __init__(
        self,
        run: Run,
        spark: Callable[[], SparkContext],
        spec: Callable[..., DirectSpec],
        supervisor: Supervisor,
        name: str,
    ) -> None:
        self._run = run
        self._name = name
        self._spark = spark
        self._spec = spec
        self._supervisor = supervisor
        self._lock = threading.Lock()
        self._cancelled = False
        self._server: ControlServer | None = None
        self._started = BackgroundCall(
            f"starting tasks of connector {run.connector.name}", self._work
        )

    def __enter__(self) -> _Launch:
        return self

    def __exit__(self, error: type[BaseException] | None, *_details: object) -> None:
        if error is not None:
            self._cancel()

    def result(self) -> tuple[ControlServer, DirectSpec]:
        """Wait until the tasks have been started."""
        return self._started.wait()

    def _cancel(self) -> None:
        """End the tasks. Does not wait for Spark if that has not started yet."""
        with self._lock:
            self._cancelled = True
            if self._server is not None:
                self._supervisor.give_up(self._server)
                self._server.close()

    def _work(self) -> tuple[ControlServer, DirectSpec]:
        context, run = self._spark(), self._run
        with self._lock:
            server, address = serving(context)
            environment = {**failpoints.environment(), RUN: self._name}
            spec = self._spec(control=address, environment=environment)
            if self._cancelled:
                server.close()
            else:
                self._server = server
                self._supervisor.begin(server, spec, run.connector.tasks_max)
            return server, spec


class Placeholder:
    """A member that joins the connector's group while Spark starts, so that tasks need not wait. It
    stays, in a thread of its own, until tasks have joined or it is closed.

    Kafka gives the first member of an empty group its partitions only after
    ``group.initial.rebalance.delay.ms``, 3 s by default, and waits that long again for each one
    that joins meanwhile. The placeholder uses the time that Spark takes: tasks that start once it
    is a member join a group that is no longer empty. It reads nothing and cannot displace anybody:
    it has no ``group.instance.id``, it only joins a group without members, and it leaves as soon as
    tasks have come.
    """

    def __init__(self, run: Run, name: str) -> None:
        self._run = run
        self._name = name
        self._stop = threading.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(
            target=kept(self._hold), daemon=True, name="semel-placeholder"
        )
        if run.topics:
            self._thread.start()

    def wait(self, stop: threading.Event) -> None:
        """Wait until tasks may join: the placeholder is a member, or is not needed."""
        deadline = time.monotonic() + _PATIENCE
        while self._thread.is_alive() and not stop.is_set() and time.monotonic() < deadline:
            if self._ready.wait(0.02):
                return

    def close(self) -> None:
        """Leave the group, unless that has already happened."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(2 * _LEAVES)

    def _hold(self) -> None:
        try:
            connector = self._run.connector
            groups = Groups(client_config(connector, "admin"))
            if not groups.is_idle(connector.group_id):
                self._ready.set()  # tasks need not wait
                self._introduce_itself()
                return
            if isinstance(self._run.sink, FencesByGroup):
                return  # it treats each member as a task of another run
            with _member(self._run, self._ready) as consumer:
                self._wait(groups, consumer)
        except Exception as error:  # it only saves time
            log.debug("the placeholder could not join the group: %s", error)

    def _introduce_itself(self) -> None:
        """Say that this run takes the place of another one, or of one that has just died."""
        run = self._run
        if run.run_control.assignment.moves:
            return
        who = other_run(run.connector, run.topics, self._name, self._stop.wait, later=False)
        log.log(
            logging.INFO if is_over(who) else logging.WARNING,
            "connector %s: consumer group %s still has members of another run%s. This run takes "
            "their place; if the other one is alive, it stops",
            *(run.connector.name, run.connector.group_id, f", started by {who}" if who else ""),
        )

    def _wait(self, groups: Groups, consumer: Consumer) -> None:
        """Stay until the tasks have joined."""
        began, came = time.monotonic(), None
        while not self._stop.is_set() and (now := time.monotonic()) < began + _STAYS:
            event = consumer.poll(_PLACEHOLDER_LOOK)
            if event is not None and event.error():  # refused, or the coordinator cannot be reached
                return
            if not self._ready.is_set():
                continue
            description = groups.describe(self._run.connector.group_id)
            tasks = [m for m in description.members if m.group_instance_id] if description else []
            if tasks and came is None:
                came = now
            late = came is not None and now > came + _LATE
            if late or len(tasks) >= self._run.connector.tasks_max:
                return


class UnreadPartitions:
    """Looks for partitions that no task reads because the consumer group has given them to a member
    that is no task of this run, and gets them back if it can.

    Static members do not leave a group; Kafka removes them once their sessions have ended. A
    coordinator that loads the group from its log may keep one that has long gone, and a rebalance
    may wait for one whose session is long. No task notices, because each is a healthy member. So
    the driver of the first task asks who else is in the group, and shows that. It displaces a
    static member of which two looks in a row say the same: it joins under its name and stops, and
    Kafka removes the name after a short session. It leaves dynamic members alone: a dead one leaves
    the group by itself.

    A member with the name of one of the run's tasks is left to that task, wherever it runs.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._stop = threading.Event()
        self._partitions = frozenset(ranges.partitions(run.topics))
        self._looked = time.monotonic()
        self._looking: BackgroundCall[str | None] | None = None
        self._is_clean = False
        """Whether nobody else was in the group at the last look."""
        self._seen: frozenset[_ForeignMember] = frozenset()
        self._taken: Counter[str] = Counter()
        self._told: frozenset[_ForeignMember] = frozenset()

    def look(self, progress: Progress) -> None:
        """Take the answer of the last look, and begin another one when it is due."""
        if self._looking is not None:
            if not self._looking.ended(0):
                return
            answer, self._looking = self._looking.result(), None
            self._is_clean = answer == ""
            progress.waiting = waiting(WaitKind.PARTITIONS, answer or "", progress.waiting)
        assignment, passed = self._run.assignment, time.monotonic() - self._looked
        if not assignment.has_first or not self._run.topics or self._run.stop.is_set():
            progress.waiting = None
            return
        if passed < _LOOK:
            return
        count = self._run.connector.tasks_max
        all_here = len(assignment.of(count)) == count
        is_well = not self._seen and (
            progress.partitions >= self._partitions if all_here else self._is_clean
        )
        if not is_well or passed >= _SELDOM:
            self._looked = time.monotonic()
            what = f"who else is in consumer group {self._run.connector.group_id}"
            self._looking = BackgroundCall(what, self._ask, self._run.run_control.notifier.notify)

    def close(self) -> None:
        """End; a member that it has joined as stops."""
        self._stop.set()

    def _ask(self) -> str | None:
        """What keeps partitions from being read; None without an answer. Never raises: a traceback
        would keep the clients alive."""
        connector, seen = self._run.connector, self._seen
        self._seen = frozenset()
        try:
            description = Groups(client_config(connector, "admin")).describe(connector.group_id)
            if description is None or description.state not in (_STABLE, _PREPARING):
                return None
            members = list(self._foreign_members(description))
            displaced = self._displace([m for m in members if m in seen])
        except Exception as error:  # the tasks continue without the answer
            log.info("connector %s: %s", connector.name, error)
            return None
        remaining = [member for member in members if member not in displaced]
        self._seen = frozenset(remaining)
        return "; ".join(member.why for member in remaining)

    def _foreign_members(self, description: ConsumerGroupDescription) -> Iterator[_ForeignMember]:
        connector = self._run.connector
        group = f"consumer group {connector.group_id}"
        own = {instance_id(connector, n) for n in range(connector.tasks_max)}
        for member in description.members:
            name = member.group_instance_id or ""
            if name in own or (not name and member.client_id == _placeholder_id(connector)):
                continue
            who = f"member {named(name or member.member_id)} ({named(member.client_id)} on "
            who += f"{named(member.host)}), which is no task of this run"
            theirs = sorted(
                tp
                for tp in assigned_to([member])
                if tp.topic in self._run.topics or connector.reads(tp.topic)
            )
            if description.state is _PREPARING and name:
                why = f"the rebalance of {group} may wait for {who}"
                yield _ForeignMember(member.member_id, name, why)
            elif description.state is _STABLE and theirs:
                why = f"{group} has given {all_named(theirs)} to {who}"
                yield _ForeignMember(member.member_id, name, why)

    def _displace(self, confirmed: Collection[_ForeignMember]) -> list[_ForeignMember]:
        """Say who keeps partitions, and displace those that may be displaced."""
        displaced = [m for m in confirmed if m.instance and self._taken[m.instance] < _TAKES]
        displaced = displaced[:_AT_ONCE]
        for member in confirmed:
            if member in displaced:
                remedy = "Taking its place, so that its session ends"
            else:
                remedy = "End that program, or give it a group of its own"
            if member in displaced or member not in self._told:
                log.warning(
                    "connector %s: some partitions are not read: %s. %s",
                    *(self._run.connector.name, member.why, remedy),
                )
        self._told = frozenset(confirmed)
        if displaced:
            self._taken.update(member.instance for member in displaced)
            self._join([member.instance for member in displaced])
        return displaced

    def _join(self, instances: Collection[str]) -> None:
        """Be a member under each of these names until the group has given all of them partitions,
        and wait until their sessions have ended. A rebalance needs all of them at once."""
        waits, until = [threading.Event() for _ in instances], time.monotonic() + _STAYS
        with ExitStack() as members:
            consumers = [
                members.enter_context(_member(self._run, assigned, instance))
                for assigned, instance in zip(waits, instances, strict=True)
            ]
            while not all(assigned.is_set() for assigned in waits) and time.monotonic() < until:
                for consumer in consumers:
                    event = consumer.poll(_PLACEHOLDER_LOOK)
                    if event is not None and (error := event.error()):
                        log.info("connector %s: %s", self._run.connector.name, error.str())
                    if self._stop.is_set():
                        return
        self._stop.wait(placeholder_config(self._run)[SESSION] / 1000)


@dataclass(frozen=True, slots=True)
class _ForeignMember:
    """A member of the group that is no task of the run. ``instance`` is its ``group.instance.id``,
    if it has one: only then may it have gone without leaving the group."""

    member_id: str
    instance: str
    why: str


@contextmanager
def _member(run: Run, assigned: threading.Event, instance: str = "") -> Iterator[Consumer]:
    """A member of the connector's group that reads nothing; ``assigned`` is set once it has been
    assigned partitions. Under the name of an ``instance``, it takes that one's place, and does not
    leave: its session ends."""

    def on_assign(consumer: Consumer, _partitions: list[KafkaPartition]) -> None:
        consumer.assign([])  # what is not assigned is not read
        assigned.set()

    name = {"group.instance.id": instance} if instance else {}
    consumer = Consumer({**placeholder_config(run), **name}, logger=log)
    try:
        consumer.subscribe(sorted(run.topics), on_assign=on_assign)
        yield consumer
    finally:
        with suppress(Abandoned):
            within(_LEAVES, "the placeholder's consumer", consumer.close)


def placeholder_config(run: Run) -> dict[str, Any]:
    """A task's configuration without ``group.instance.id``. If this process is killed, the group
    waits for the placeholder's session to end, so the session is as short as brokers allow."""
    config = consumer_config(run.connector, 0)
    del config["group.instance.id"]
    session = min(int(config[SESSION]), _SESSION)
    return {
        **config,
        "client.id": _placeholder_id(run.connector),
        SESSION: session,
        HEARTBEAT: session // 3,
    }


def _placeholder_id(connector: ConnectorConfig) -> str:
    return f"semel-{connector.name}-placeholder"
