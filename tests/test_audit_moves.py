"""Rows that were written before a position was moved stay known to the audit: if they are deleted,
it says so, or says that it cannot tell."""

# ruff: noqa: F401, F811
from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from semel.audit import audit
from semel.audit.follow import follower
from semel.audit.follow.follower import Follower
from semel.audit.follow.progress import FollowState
from semel.audit.workspace import Workspace
from semel.core.errors import ConfigError, NotKnown, OffsetOutOfRange
from semel.core.ledger import RESET, SET_BACK, SKIPPED, Hole, TopicPartition
from semel.driver.offsets import OffsetChange
from semel.driver.planning import Plan, plan
from semel.kafka.clients import client_config
from semel.kafka.cluster import Cluster
from semel.kafka.groups import Groups, lag
from semel.tasks.pipeline import Pipeline
from semel_lab.embedded import Kafka
from tests.conftest import MakeTopic, Produce
from tests.engine.conftest import Config, Configure, configure
from tests.engine.harness import caught_up, once_let_go, records, recreate, sql, wait_until
from tests.engine.test_first_positions import committed

pytestmark = pytest.mark.integration

WRITTEN = 40
UPSERT = {"insert.mode": "upsert", "pk.mode": "record_value", "pk.fields": "id"}


@dataclass
class Case:
    """A connector that has written 40 records."""

    kafka: Kafka
    config: Config
    produce: Produce

    @property
    def source(self) -> str:
        return self.config["topics"]

    @property
    def tp(self) -> TopicPartition:
        return TopicPartition(self.source, 0)

    def more(self, count: int = 10, start: int = 1000) -> None:
        self.produce(self.source, records(count, start))

    def run(self, **keys: str) -> None:
        caught_up({**self.config, **{k.replace("_", "."): v for k, v in keys.items()}})

    def change(self, call: Callable[[Plan], object]) -> None:
        planned = plan(self.config)
        with closing(planned.sink):
            once_let_go(lambda: call(planned))

    def set(self, position: int, *, force: bool = False) -> None:
        where = {"kafka_topic": self.tp.topic, "kafka_partition": self.tp.partition}
        wanted: list[OffsetChange] = [(where, {"kafka_offset": position})]
        self.change(lambda p: p.offsets.set(wanted, "ann", force=force))

    def reset(self) -> None:
        self.change(lambda p: p.offsets.reset("ann"))

    def left(self) -> None:
        """Wait until the tasks' places in the group are free."""
        groups = Groups({"bootstrap.servers": self.config["bootstrap.servers"]})
        wait_until(lambda: groups.is_idle(f"connect-{self.config['name']}"))

    def holes(self) -> list[Hole]:
        with closing(plan(self.config).sink) as sink:
            return sink.holes()

    def sql(self, statement: str) -> list[Any]:
        return sql(self.config["connection.url"], statement.format(t=f'"{self.source}"'))


def forward(case: Case) -> None:
    case.more()
    case.set(WRITTEN + 5)
    case.run()
    assert case.holes() == [Hole(*case.tp, WRITTEN, WRITTEN + 5, SKIPPED)]
    assert case.holes()[0].by == "ann" and case.holes()[0].at


def forward_and_filtered(case: Case) -> None:
    case.more()
    case.set(WRITTEN + 10)


def backward(case: Case) -> None:
    case.set(25)
    assert case.holes() == [Hole(*case.tp, 25, WRITTEN, SET_BACK)]


def backward_to_the_beginning(case: Case) -> None:
    case.set(0)


def backward_and_read_again(case: Case) -> None:
    case.set(25)
    case.run()


def back_and_forth(case: Case) -> None:
    case.set(0)
    case.set(WRITTEN)
    assert case.holes() == []


def over_what_was_skipped(case: Case) -> None:
    case.more()
    case.set(WRITTEN + 5)
    case.set(WRITTEN)
    case.run()
    assert case.holes() == [Hole(*case.tp, WRITTEN, WRITTEN + 5, SET_BACK)] or not case.holes()


def without_an_entry(case: Case) -> None:
    case.sql("TRUNCATE semel_offsets, semel_holes")
    case.set(WRITTEN)


def by_force(case: Case) -> None:
    case.sql("TRUNCATE semel_offsets, semel_holes")
    case.set(WRITTEN + 100, force=True)
    case.more(100)


def reset_and_read_again(case: Case) -> None:
    case.reset()
    case.sql("TRUNCATE {t}")
    case.run()
    assert case.holes() == [Hole(*case.tp, 0, WRITTEN, RESET)]


def reset_and_continued(case: Case) -> None:
    case.reset()
    case.run(auto_offset_reset="latest")


def reset_and_set(case: Case) -> None:
    case.reset()
    case.set(WRITTEN)


def reset_and_skipped(case: Case) -> None:
    case.reset()
    case.set(0)
    case.set(WRITTEN)


def taken_over(case: Case) -> None:
    case.more(20)
    case.left()
    committed(case.config, {case.tp: WRITTEN + 10})
    case.run(first_position="group")


def taken_over_with_an_empty_ledger(case: Case) -> None:
    case.sql("TRUNCATE semel_offsets, semel_holes")
    case.left()
    committed(case.config, {case.tp: WRITTEN})
    case.more()
    case.run(first_position="group")


def begun_at_the_end_whatever_the_group_says(case: Case) -> None:
    case.sql("TRUNCATE semel_offsets, semel_holes")
    case.run(first_position="reset", auto_offset_reset="latest")


def recreated(case: Case) -> None:
    recreate(case.kafka, case.source)
    case.more()
    case.run(topic_recreated="earliest")


def recreated_and_set(case: Case) -> None:
    recreate(case.kafka, case.source)
    case.more()
    case.set(0)
    case.run()


def confirmed_in_another_log(case: Case) -> None:
    recreate(case.kafka, case.source)
    case.produce(case.source, records(WRITTEN))
    case.set(WRITTEN)


def removed_by_retention(case: Case) -> None:
    case.more(20)
    case.kafka.delete_records(case.source, {0: WRITTEN + 10})
    case.run(offset_out_of_range="earliest")


def in_another_target(case: Case) -> None:
    case.sql("CREATE TABLE other (LIKE {t} INCLUDING ALL)")
    case.config["table.name.format"] = "other"
    case.more()
    case.run(target_changed="continue")


WAYS = [
    forward,
    forward_and_filtered,
    backward,
    backward_to_the_beginning,
    backward_and_read_again,
    back_and_forth,
    over_what_was_skipped,
    without_an_entry,
    by_force,
    reset_and_read_again,
    reset_and_continued,
    reset_and_set,
    reset_and_skipped,
    taken_over,
    taken_over_with_an_empty_ledger,
    begun_at_the_end_whatever_the_group_says,
    recreated,
    recreated_and_set,
    confirmed_in_another_log,
    removed_by_retention,
    in_another_target,
]
AGAIN = (backward_and_read_again,)
"""Where a plain insert has written rows twice, which the audit reports."""
OTHERS = (confirmed_in_another_log,)
"""Where the records of another log have other times than the rows."""
COMPLETE = (forward, forward_and_filtered, back_and_forth, reset_and_read_again, recreated)
"""What can be judged as before, record by record."""


def followed(config: Config, tmp_path: Path) -> tuple[bool, bool]:
    """Whether ``--follow`` finds the guarantee broken, and whether it has judged everything."""
    planned = plan(config)
    state = FollowState(planned.connector.name, "target")
    with closing(planned.sink), closing(Workspace()) as workspace:
        following = Follower(
            planned,
            Cluster(client_config(planned.connector, "admin")),
            Pipeline(planned.connector, planned.sink, target=planned.sink.schema),
            state,
            lambda _line: None,
            workspace,
        )
        found, behind = [], True
        while behind:
            found += following.round()
            behind = following.behind
        found += following.round()
        broken = any(following.breaks(judged) for judged in found)
        doubt = following.not_judged or following.state.unknown or following.state.expired
    return broken, not doubt


CASES = [
    pytest.param(
        way,
        kind,
        id=f"{way.__name__}-{kind}",
        marks=[] if (way, kind) == (forward, "provenance") else [pytest.mark.long],
    )
    for way in WAYS
    for kind in ("provenance", "counts", "upsert", "keys")
]


@pytest.mark.parametrize(("way", "kind"), CASES)
def test_rows_deleted_after_a_position_was_moved_are_lost_or_named(
    way: Callable[[Case], None],
    kind: str,
    kafka: Kafka,
    topic: MakeTopic,
    produce: Produce,
    configure: Configure,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(follower, "QUIET", 0.0)
    source = topic(values=records(WRITTEN))
    keys = UPSERT if kind in ("upsert", "keys") else {}
    traced = "true" if kind in ("provenance", "upsert") else "false"
    case = Case(kafka, configure(source, {**keys, "provenance": traced}), produce)
    case.run()
    way(case)

    before = audit(case.config)
    repeats = way in AGAIN and not keys
    if way not in OTHERS:
        assert not before.lost, before
        assert bool(before.duplicated) == repeats, before
        assert followed(case.config, tmp_path)[0] == repeats
    if way in COMPLETE and kind == "provenance":
        assert before.kept and before.complete, before

    case.sql(f"DELETE FROM {{t}} WHERE id < {WRITTEN}")
    for values in (False, True):
        after = audit(case.config, values=values)
        assert after.broken or not after.complete, after
        assert not after.kept or after.unknown or after.expired
    if way in (forward, back_and_forth, reset_and_read_again, forward_and_filtered):
        assert after.lost == WRITTEN, after
    broken, complete = followed(case.config, tmp_path)
    assert broken or not complete


@pytest.mark.long
def test_lag_tools_see_positions_that_were_set(
    kafka: Kafka, topic: MakeTopic, produce: Produce, configure: Configure
) -> None:
    source = topic(values=records(WRITTEN))
    case = Case(kafka, configure(source), produce)
    case.run()
    for position in (WRITTEN - 10, WRITTEN):
        case.set(position)
        (found,) = lag({"bootstrap.servers": kafka.bootstrap_servers}, case.config["name"])
        assert (found.position, found.lag) == (position, WRITTEN - position)
    case.run()  # its own copy is no other program's
    case.reset()
    with pytest.raises(NotKnown, match="has published no positions"):
        lag({"bootstrap.servers": kafka.bootstrap_servers}, case.config["name"])
