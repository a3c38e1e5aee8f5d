"""The continuous audit sees what goes wrong while a connector runs, and only that."""

# ruff: noqa: F401, F811
from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from semel.audit import follow as following
from semel.audit.follow import FollowReport, IntervalReport, follow, follower, settling
from semel.core.errors import ConfigError, NothingToAudit
from semel.core.ledger import TopicPartition, firsts
from semel.driver.planning import plan
from semel_lab.embedded import Kafka, Postgres
from tests.conftest import MakeTopic, Produce
from tests.engine.conftest import Config, Configure, Lake, Start, configure, lake, start
from tests.engine.harness import caught_up, records, recreate, sql, wait_until
from tests.patience import PATIENCE
from tests.test_audit import BY_KEY, BY_VALUE, even

pytestmark = pytest.mark.integration


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower, "QUIET", 0.0)
    for module in (follower, following, settling):  # it rests for 39 times as long as it works
        monkeypatch.setattr(module, "SHARE", 0.5)


class Watching:
    """``semel audit --follow`` in a thread."""

    def __init__(self, config: Config, path: Path, transform: Any = None, **more: Any) -> None:
        self.lines: list[str] = []
        self.judged: list[IntervalReport] = []
        self.ended: FollowReport | None = None
        self.error: Exception | None = None
        self._stop = threading.Event()
        self._arguments = (config, path, transform)
        self._more = more
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        config, path, transform = self._arguments
        try:
            self.ended = follow(
                plan(config, transform),
                transform,
                path=path,
                interval=0.05,
                stop=self._stop,
                **self._more,
                tell=self.lines.append,
                judged=self.judged.append,
            )
        except Exception as error:
            self.error = error

    def until(self, count: int) -> None:
        """Wait until so many records were judged."""
        wait_until(lambda: self.records >= count or not self._thread.is_alive())
        assert self.records >= count, (self.error, self.ended, self.lines)

    @property
    def records(self) -> int:
        return sum(j.records for j in self.judged)

    def end(self) -> FollowReport:
        self._stop.set()
        return self.wait()

    def end_at(self, count: int) -> FollowReport:
        """End once so many records were judged."""
        self.until(count)
        return self.end()

    def wait(self) -> FollowReport:
        self._thread.join(PATIENCE)
        if self.error is not None:
            raise self.error
        assert self.ended is not None, self.lines
        return self.ended


Watch = Callable[..., Watching]


@pytest.fixture
def watch(tmp_path: Path) -> Watch:
    def begin(config: Config, transform: Any = None, **more: Any) -> Watching:
        return Watching(config, tmp_path / "state.json", transform, **more)

    return begin


@pytest.mark.parametrize(
    "keys",
    [pytest.param({}, id="insert", marks=pytest.mark.long), pytest.param(BY_VALUE, id="upsert")],
)
def test_a_row_that_never_arrives_is_named_while_the_connector_runs(
    keys: dict[str, str],
    topic: MakeTopic,
    produce: Produce,
    configure: Configure,
    start: Start,
    watch: Watch,
) -> None:
    source = topic(partitions=2)
    config = configure(source, {**keys, "consumer.override.max.poll.records": 20})
    running = start(config)
    produce(source, records(100))
    running.until(lambda p: p.rows >= 100)
    watching = watch(config)
    for batch in range(1, 4):
        produce(source, records(300, start=60 * batch))
        watching.until(100 + 300 * batch)
    assert not any(j.has_findings or j.unknown for j in watching.judged)
    url = config["connection.url"]
    sql(
        url,
        "CREATE FUNCTION swallow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "RETURN CASE WHEN new.id = 1007 THEN NULL ELSE new END; END $$",
    )
    sql(
        url,
        f'CREATE TRIGGER swallow BEFORE INSERT ON "{source}" FOR EACH ROW EXECUTE FUNCTION '
        "swallow()",
    )
    produce(source, records(20, start=1000))
    ended = watching.wait()
    running.stop()
    assert (ended.broken, ended.lost, ended.duplicated) == (True, 1, 0)
    (found,) = [j for j in watching.judged if j.lost]
    assert len(found.lost_offsets) == 1
    assert f"{source}-{found.partition}: 1 lost (offset {found.lost_offsets[0]})" in watching.lines
    assert watch(config).wait().broken  # until it is put right


@pytest.mark.long
def test_a_row_that_comes_or_goes_later_is_named(
    topic: MakeTopic, configure: Configure, watch: Watch
) -> None:
    source = topic(values=records(50))
    config = configure(source)
    caught_up(config)
    url = config["connection.url"]
    watching = watch(config)
    watching.until(50)
    sql(url, f'CREATE TABLE kept AS SELECT * FROM "{source}" WHERE __connect_offset = 7')
    sql(url, f'DELETE FROM "{source}" WHERE __connect_offset = 7')
    ended = watching.wait()
    assert (ended.lost, ended.duplicated) == (1, 0)
    assert f"{source}-0: 1 lost (offset 7)" in watching.lines
    assert any("1 row fewer than before: judging all of it again" in n for n in watching.lines)

    sql(url, f'INSERT INTO "{source}" SELECT * FROM kept')
    watching = watch(config)
    watching.until(50)
    sql(url, f'INSERT INTO "{source}" SELECT * FROM "{source}" WHERE __connect_offset = 9')
    assert (watching.wait().duplicated, watching.lines[-1]) == (
        1,
        f"{source}-0: 1 duplicated (offset 9)",
    )


@pytest.mark.long
def test_an_upserted_row_that_is_deleted_later_is_named_once_all_is_judged_again(
    monkeypatch: pytest.MonkeyPatch, topic: MakeTopic, configure: Configure, watch: Watch
) -> None:
    source = topic(values=[*records(20), *records(5)])
    config = configure(source, BY_VALUE)
    caught_up(config)
    assert watch(config).end_at(25).complete
    sql(config["connection.url"], f'DELETE FROM "{source}" WHERE id = 3')
    monkeypatch.setattr(follower, "AGAIN", 0.0)
    watching = watch(config)
    ended = watching.wait()
    assert (ended.lost, ended.records) == (1, 25)
    assert watching.lines[-1] == f"{source}-0: 1 lost (offset 23)"


@pytest.mark.long
@pytest.mark.parametrize(
    "keys",
    [pytest.param({}, marks=pytest.mark.long, id="insert"), pytest.param(BY_VALUE, id="upsert")],
)
def test_values_are_compared_where_that_is_wanted(
    keys: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    topic: MakeTopic,
    produce: Produce,
    configure: Configure,
    watch: Watch,
) -> None:
    source = topic(values=[*records(20), *records(4), b"{", *records(1, start=4)])
    config = configure(source, {**keys, "errors.tolerance": "all"})
    caught_up(config)
    assert watch(config, values=True).end_at(26).complete
    sql(config["connection.url"], f'UPDATE "{source}" SET text = 17 WHERE id = 8')
    produce(source, records(5, start=100))
    caught_up(config)
    monkeypatch.setattr(follower, "AGAIN", 0.0)
    watching = watch(config, values=True)
    ended = watching.wait()
    assert (ended.lost, ended.duplicated, ended.changed, ended.broken) == (0, 0, 1, True)
    assert watching.lines[-1] == f"{source}-0: 1 changed (offset 8: text)"
    said = f"values of field more of topic {source}: they reached no column"
    produce(source, [b'{"id": 200, "text": "x", "more": 1}'])
    caught_up(config)
    watching = watch(config, values=True)
    assert watching.wait().broken
    assert said in watching.lines
    with pytest.raises(ConfigError, match="--values needs provenance=true"):
        watch({**config, "provenance": "false"}, values=True).wait()


@pytest.mark.long
def test_a_restart_goes_on_from_what_was_judged(
    topic: MakeTopic, produce: Produce, configure: Configure, watch: Watch
) -> None:
    source = topic(partitions=2, values=records(40))
    config = configure(source, BY_VALUE)
    with pytest.raises(NothingToAudit, match="ledger holds nothing"):
        watch(config).wait()
    caught_up(config)
    assert watch(config).end_at(40).complete
    produce(source, records(10, start=100))
    caught_up(config)
    watching = watch(config)
    assert watching.end_at(10).records == 50
    assert watching.records == 10

    other = {**config, "name": f"{config['name']}-2"}
    with pytest.raises(ConfigError, match="belongs to connector"):
        watch(other).wait()


@pytest.mark.long
def test_a_partition_that_is_added_between_two_runs_is_judged_from_its_beginning(
    kafka: Kafka, topic: MakeTopic, produce: Produce, configure: Configure, watch: Watch
) -> None:
    source = topic(values=records(20))
    config = configure(source)
    caught_up(config)
    watch(config).end_at(20)
    kafka.increase_partitions(source, 2)
    produce(source, records(10, start=20), partition=1)
    caught_up(config)
    ended = watch(config).end_at(10)
    assert (ended.records, ended.lost, ended.duplicated, ended.complete) == (30, 0, 0, True)
    sql(config["connection.url"], f'DELETE FROM "{source}" WHERE id = 27')
    assert watch(config).wait().lost == 1


@pytest.mark.long
def test_a_ledger_that_was_moved_back_is_judged_anew(
    topic: MakeTopic, configure: Configure, watch: Watch
) -> None:
    source = topic(values=records(40))
    config = configure(source, BY_VALUE)
    caught_up(config)
    watch(config).end_at(40)
    sink = plan(config).sink
    wait_until(lambda: sink.set_positions(firsts({TopicPartition(source, 0): 10})) is None)
    sink.close()
    watching = watch(config)
    wait_until(lambda: bool(watching.lines))
    assert "it is at 10, but 40 was judged" in watching.lines[0]
    caught_up(config)
    assert watching.end_at(30).lost == 0


@pytest.mark.long
def test_by_counts_a_topic_that_was_created_again_has_no_duplicates(
    kafka: Kafka, topic: MakeTopic, produce: Produce, configure: Configure, watch: Watch
) -> None:
    source = topic(values=records(20))
    config = configure(source, {"provenance": "false", "topic.recreated": "earliest"})
    caught_up(config)
    recreate(kafka, source)
    produce(source, records(10, start=20))
    caught_up(config)
    ended = watch(config).end_at(10)
    assert (ended.lost, ended.duplicated, ended.broken) == (0, 0, False)
    assert not ended.complete  # Kafka no longer has what was read from the former topic
    sql(config["connection.url"], f'DELETE FROM "{source}" WHERE id = 3')
    assert watch(config).wait().lost == 1


@pytest.mark.long
def test_keys_that_are_replaced_and_deleted_later_are_not_missed_in_small_steps(
    monkeypatch: pytest.MonkeyPatch,
    topic: MakeTopic,
    produce: Produce,
    configure: Configure,
    watch: Watch,
) -> None:
    monkeypatch.setattr(follower, "STEP", 14)
    names = [f"k{i}" for i in range(40)]
    source = topic(partitions=2, values=records(40), keys=names)
    produce(source, records(30), keys=names[:30])
    produce(source, [None] * 10, keys=names[:10])
    config = configure(source, BY_KEY)
    caught_up(config)
    watching = watch(config)
    ended = watching.end_at(80)
    assert (ended.lost, ended.duplicated, ended.complete) == (0, 0, True)
    assert max(j.until_offset - j.from_offset for j in watching.judged) == 7
    assert not any("judging all" in line for line in watching.lines)

    produce(source, records(5, start=100), keys=names[:5])
    caught_up(config)
    url = config["connection.url"]
    (offset,) = sql(url, f"SELECT __connect_offset FROM \"{source}\" WHERE k = 'k3'")
    sql(url, f"DELETE FROM \"{source}\" WHERE k = 'k3'")
    watching = watch(config)
    assert watching.wait().lost == 1
    assert [j.lost_offsets for j in watching.judged if j.lost] == [(offset,)]


@pytest.mark.long
def test_a_key_in_several_partitions_is_not_reported_as_lost(
    monkeypatch: pytest.MonkeyPatch,
    topic: MakeTopic,
    produce: Produce,
    configure: Configure,
    watch: Watch,
) -> None:
    monkeypatch.setattr(follower, "STEP", 6)
    source = topic(partitions=2)
    produce(source, records(20), partition=0)
    produce(source, records(4), partition=1)
    config = configure(source, {**BY_VALUE, "tasks.max": "1"})
    caught_up(config)
    produce(source, records(4), partition=0)
    caught_up(config)
    produce(source, records(4), partition=1)
    caught_up(config)
    ended = watch(config).end_at(32)
    assert (ended.lost, ended.duplicated) == (0, 0)
    assert ended.unknown > 0
    assert not ended.complete


@pytest.mark.long
def test_filtered_and_failed_records_are_not_missed(
    topic: MakeTopic, configure: Configure, watch: Watch
) -> None:
    source = topic(values=[*records(20), b"{", *records(9, start=20)])
    keys = {"errors.tolerance": "all", "errors.deadletterqueue.table": "dead"}
    config = configure(source, keys)
    caught_up(config, even)
    ended = watch(config, even).end_at(30)
    assert (ended.lost, ended.duplicated, ended.complete) == (0, 0, True)
    sql(config["connection.url"], f'DELETE FROM "{source}" WHERE id = 4')
    watching = watch(config, even)
    assert watching.wait().lost == 1
    assert f"{source}-0: 1 lost, among offsets 1, 3-5, 7" in watching.lines[-1]


@pytest.mark.long
@pytest.mark.parametrize("kind", ["sqlite", "duckdb"])
def test_a_store_that_does_not_show_some_of_its_rows_is_judged_too(
    kind: str, tmp_path: Path, topic: MakeTopic, configure: Configure, watch: Watch
) -> None:
    source = topic(values=records(20))
    url = f"jdbc:{kind}:{tmp_path / 'database'}"
    keys = {"connector.class": kind, "connection.url": url, "connection.loginTimeout": None}
    config = configure(source, keys)
    caught_up(config)
    assert watch(config).end_at(20).complete
    sql(url, f'DELETE FROM "{source}" WHERE id = 7')
    watching = watch(config)
    assert watching.wait().lost == 1
    assert watching.lines[-1] == f"{source}-0: 1 lost (offset 7)"


@pytest.mark.long
def test_a_lake_is_judged_while_it_is_written_to(
    topic: MakeTopic, produce: Produce, lake: Lake, start: Start, watch: Watch, tmp_path: Path
) -> None:
    source = topic(partitions=2, values=records(200))
    config = lake(source)
    running = start(config)
    running.until(lambda p: p.rows >= 200)
    watching = watch(config)
    produce(source, records(200, start=200))
    watching.until(400)
    running.stop()
    assert not any(j.has_findings or j.unknown for j in watching.judged)
    DeltaTable(str(tmp_path / "lake" / source)).delete("id = 7")
    assert watching.wait().lost == 1


@pytest.mark.long
def test_by_counts_a_difference_is_found_as_it_comes(
    topic: MakeTopic, produce: Produce, configure: Configure, watch: Watch
) -> None:
    source = topic(partitions=2, values=records(20))
    config = configure(source, {"provenance": "false"})
    caught_up(config)
    watching = watch(config)
    watching.until(20)
    produce(source, records(10, start=20))
    caught_up(config)
    watching.until(30)
    sql(config["connection.url"], f'DELETE FROM "{source}" WHERE id = 7')
    ended = watching.wait()
    assert (ended.exact, ended.lost, ended.broken) == (False, 1, True)


@pytest.mark.long
def test_upserts_without_provenance_are_said_not_to_be_judged(
    topic: MakeTopic, configure: Configure, watch: Watch
) -> None:
    source = topic(values=records(20))
    config = configure(source, {**BY_VALUE, "provenance": "false"})
    caught_up(config)
    ended = watch(config).end_at(20)
    assert (ended.lost, ended.broken, ended.complete) == (0, False, False)
    assert "only the number of records read is judged" in ended.not_judged[0]


@pytest.mark.long
def test_a_store_that_is_away_is_waited_for(
    topic: MakeTopic, configure: Configure, own_postgres: Callable[[], Postgres], watch: Watch
) -> None:
    postgres = own_postgres()
    source = topic(values=records(20))
    config = configure(source, {"connection.url": postgres.create_database("away")})
    caught_up(config)
    watching = watch(config)
    watching.until(20)
    postgres.stop()
    wait_until(lambda: any("waiting for it to pass" in line for line in watching.lines))
    postgres.start()
    wait_until(lambda: any("continuing after" in line for line in watching.lines))
    ended = watching.end()
    assert (ended.broken, ended.complete) == (False, True)
    assert sum("waiting" in line for line in watching.lines) == 1
