"""Plans the faults of a drill: a pure function of their number and a seed."""

from __future__ import annotations

import itertools
import random
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from semel.core.delivery import Guarantee, Mechanism
from semel.core.failpoints import OF_STREAMS, PLACES

T = TypeVar("T")


class Kind(Enum):
    """A kind of fault."""

    DRIVER_KILL = "driver-kill"
    WORKER_KILL = "worker-kill"
    ZOMBIE = "zombie"
    ERROR = "error"
    STORE_RESTART = "store-restart"
    STORE_KILL = "store-kill"
    BROKER_RESTART = "broker-restart"
    BROKER_KILL = "broker-kill"
    TIME_OUT = "time-out"
    SECOND_DRIVER = "second-driver"
    EXECUTOR_KILL = "executor-kill"
    REPLACED_ZOMBIE = "replaced-zombie"
    TABLE_OPTIMIZE = "table-optimize"
    CONCURRENT_WRITER = "concurrent-writer"
    DISK_FULL = "disk-full"
    STORE_SILENT = "store-silent"
    STORE_AWAY = "store-away"
    OFFSETS_DELETED = "group-offsets-deleted"
    PARTITIONS_ADDED = "partitions-added"
    RETENTION = "retention"
    TOPIC_RECREATED = "topic-recreated"
    LOG_TRUNCATED = "log-truncated"
    BATCH_DAMAGED = "batch-damaged"
    CHECKPOINT_LOST = "checkpoint-lost"
    STATE_LOST = "state-lost"
    TASKS_CHANGED = "tasks-changed"
    FILE_ROTATED = "file-rotated"
    FILE_CUT = "file-cut"
    FILE_REPLACED = "file-replaced"
    MEMBER_KILL = "member-kill"
    LEADER_KILL = "leader-kill"
    MEMBER_FREEZE = "member-freeze"
    MEMBER_CUT_OFF = "member-cut-off"
    MEMBER_ADD = "member-add"
    ROLLING_RESTART = "rolling-restart"


MEANING = {
    Kind.DRIVER_KILL: "SIGKILL of the driver; it is started again",
    Kind.WORKER_KILL: "SIGKILL of one task's Python worker; the task starts again",
    Kind.ZOMBIE: "SIGSTOP of a task until another task has its partitions, then SIGCONT",
    Kind.ERROR: "the store answers with an error, or its answer is lost",
    Kind.STORE_RESTART: "the store's server is shut down cleanly and restarted",
    Kind.STORE_KILL: "SIGKILL of the store's server; it is started again, and recovers",
    Kind.BROKER_RESTART: "the broker, or one of several, is shut down cleanly and restarted",
    Kind.BROKER_KILL: "SIGKILL of the broker, or of one of several; it is started again",
    Kind.TIME_OUT: "SIGSTOP of a task in its Kafka transaction until the broker aborts it",
    Kind.SECOND_DRIVER: "the same connector is started a second time",
    Kind.EXECUTOR_KILL: "SIGKILL of an executor; its task starts elsewhere",
    Kind.REPLACED_ZOMBIE: "SIGSTOP of a task, SIGKILL of its executor, SIGCONT when Spark has "
    "put another task in its place",
    Kind.TABLE_OPTIMIZE: "the tables are rewritten, and old files or snapshots are removed",
    Kind.CONCURRENT_WRITER: "another writer commits to the tables while a commit is under way, and "
    "once more during its retry",
    Kind.DISK_FULL: "for a while, no space is left where a file or a commit is written",
    Kind.STORE_SILENT: "the store's open connections stop answering; new ones work",
    Kind.STORE_AWAY: "the store's server is down for 90 s",
    Kind.OFFSETS_DELETED: "the consumer group's offsets are deleted while the connector is down",
    Kind.PARTITIONS_ADDED: "a topic gets one more partition",
    Kind.RETENTION: "retention passes the position while the connector is down",
    Kind.TOPIC_RECREATED: "a topic is deleted and created again, and gets more records than before",
    Kind.LOG_TRUNCATED: "an unclean election cuts off records that were read",
    Kind.BATCH_DAMAGED: "one bit of an unread batch flips on the broker's disk",
    Kind.CHECKPOINT_LOST: "the directory with a query's state is away while the connector is down",
    Kind.STATE_LOST: "the local state of a topology is removed while the connector is down",
    Kind.TASKS_CHANGED: "the connector is started with more or fewer tasks: partitions move",
    Kind.FILE_ROTATED: "the file that is read is renamed, and another one takes its name",
    Kind.FILE_CUT: "the file that is read is cut to nothing, and grows again",
    Kind.FILE_REPLACED: "a new file takes the name of one that was read",
    Kind.MEMBER_KILL: "SIGKILL of a worker of a cluster, and of its tasks",
    Kind.LEADER_KILL: "SIGKILL of the worker that leads a cluster, and of its tasks",
    Kind.MEMBER_FREEZE: "SIGSTOP of a worker and its tasks until others have its work",
    Kind.MEMBER_CUT_OFF: "a worker and its tasks cannot reach Kafka until others have its work",
    Kind.MEMBER_ADD: "a worker joins, and another one is stopped for good",
    Kind.ROLLING_RESTART: "all workers are stopped and started again, one after the other",
}

OF_CLUSTERS = (
    Kind.MEMBER_KILL,
    Kind.LEADER_KILL,
    Kind.MEMBER_FREEZE,
    Kind.MEMBER_CUT_OFF,
    Kind.MEMBER_ADD,
    Kind.ROLLING_RESTART,
)
"""The faults of ``semel drill --cluster``."""

OF_QUERIES = (
    Kind.DRIVER_KILL,
    Kind.ERROR,
    Kind.STORE_RESTART,
    Kind.STORE_KILL,
    Kind.BROKER_RESTART,
    Kind.BROKER_KILL,
    Kind.STORE_AWAY,
    Kind.SECOND_DRIVER,
    Kind.PARTITIONS_ADDED,
    Kind.CHECKPOINT_LOST,
)
"""The faults of connectors with a query over streams, whose driver commits."""
OF_TOPOLOGIES = (
    Kind.DRIVER_KILL,
    Kind.WORKER_KILL,
    Kind.ZOMBIE,
    Kind.ERROR,
    Kind.STORE_RESTART,
    Kind.STORE_KILL,
    Kind.STORE_SILENT,
    Kind.STORE_AWAY,
    Kind.BROKER_RESTART,
    Kind.BROKER_KILL,
    Kind.TIME_OUT,
    Kind.SECOND_DRIVER,
    Kind.EXECUTOR_KILL,
    Kind.REPLACED_ZOMBIE,
    Kind.STATE_LOST,
    Kind.TASKS_CHANGED,
)
"""The faults of topologies: of their logs, they must not lose a record."""
PLACES_OF_QUERIES = tuple(p for p in PLACES if p not in ("task.after_poll", "deliver.between"))

PLACES_OF_TOPOLOGIES = (*(p for p in PLACES if p != "deliver.between"), *OF_STREAMS)
_OF_TWO_COMMITS = ("streams.after_changes", "streams.before_kafka")
"""Places of topologies whose target is not Kafka."""

ANY_MOMENT = "any moment"

_IN_COMMIT = ("sink.after_positions", "sink.before_commit")
_ON_EXECUTORS = (Kind.EXECUTOR_KILL, Kind.REPLACED_ZOMBIE)
_PLACED = (
    Kind.DRIVER_KILL,
    Kind.WORKER_KILL,
    Kind.ZOMBIE,
    Kind.ERROR,
    Kind.EXECUTOR_KILL,
    Kind.REPLACED_ZOMBIE,
    Kind.DISK_FULL,
)
_OF_BROKERS = (Kind.BROKER_RESTART, Kind.BROKER_KILL)
_OF_THE_STORE = (Kind.ERROR, Kind.DISK_FULL)


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. It strikes at a failpoint that was passed ``skip`` times, or ``delay`` seconds
    after records were sent."""

    number: int
    kind: Kind
    place: str
    skip: int
    delay: float

    @property
    def needs_executors(self) -> bool:
        """Whether it can happen only on a cluster, whose executors are separate processes."""
        return self.kind in _ON_EXECUTORS


def plan(
    faults: int,
    seed: int,
    guarantee: Guarantee,
    kinds: Collection[Kind] = tuple(Kind),
    own: Sequence[str] = (),
    *,
    brokers: int = 1,
    common: Sequence[str] = PLACES,
) -> list[Fault]:
    """The faults of a seed. ``own`` holds the places that only this store has, ``common`` the
    others.

    Every kind is equally frequent, and so is every place of a kind. The seed decides their order.
    With several brokers, one may also die in the middle of a transaction. Faults of executors come
    last, because they need another cluster.
    """
    dice = random.Random(seed)
    places = {
        kind: _cycle(dice, _places(kind, guarantee, (*common, *own), brokers)) for kind in Kind
    }
    ordered = [kind for kind in Kind if kind in kinds]
    chosen = list(itertools.islice(_cycle(dice, ordered), faults))
    chosen.sort(key=_ON_EXECUTORS.__contains__)
    return [
        Fault(number, kind, next(places[kind]), dice.randrange(4), round(dice.uniform(0, 0.1), 3))
        for number, kind in enumerate(chosen, start=1)
    ]


def _places(kind: Kind, guarantee: Guarantee, failpoints: Sequence[str], brokers: int) -> list[str]:
    if kind in (Kind.TIME_OUT, Kind.CONCURRENT_WRITER):
        return list(_IN_COMMIT)
    if kind in _OF_BROKERS and brokers > 1:
        return [*_IN_COMMIT, ANY_MOMENT]
    if kind not in _PLACED:
        return [ANY_MOMENT]
    reached = [
        p
        for p in failpoints
        if (p != "deliver.between" or guarantee.mechanism is not Mechanism.TRANSACTIONAL)
        and (p not in _OF_TWO_COMMITS or brokers == 1)
    ]
    if kind in _OF_THE_STORE:  # the store fails for a while, the tasks do not
        return [p for p in reached if not p.startswith("task.")]
    if kind is Kind.REPLACED_ZOMBIE:  # without a failpoint it would die with its executor
        return reached
    return [*reached, ANY_MOMENT]


def _cycle(dice: random.Random, cards: Sequence[T]) -> Iterator[T]:
    """Deal a shuffled deck again and again."""
    while True:
        yield from dice.sample(cards, len(cards))
