"""Of two copies of a connector, one stops: both say who has taken over, and from where."""

from __future__ import annotations

import ast
import itertools
import os
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import semel
from semel.core import context
from semel.core.errors import Fenced
from semel.driver import direct
from semel.sources import offsets
from semel.tasks import publish
from semel_lab.embedded import Kafka
from tests.conftest import MakeTopic, Produce
from tests.engine.conftest import Config, Configure, Start
from tests.engine.harness import name, records, wait_until

FIRST = "ann@first.example, process 7, at 2026-01-01 10:00:00 UTC"
SECOND = "bob@second.example, process 7, at 2026-01-01 11:00:00 UTC"
Begin = Callable[[str], None]
Feed = Callable[[], None]


@pytest.fixture
def begin(monkeypatch: pytest.MonkeyPatch) -> Begin:
    """Lets the runs that start from now on have this name: those of a test are in one process."""

    def named(run: str) -> None:
        for module in (publish, direct, offsets):
            monkeypatch.setattr(module, "this_run", lambda: run)

    return named


@pytest.fixture
def source(topic: MakeTopic) -> str:
    return topic(partitions=2, values=records(100))


@pytest.fixture
def feed(source: str, produce: Produce, tmp_path: Path) -> Feed:
    """Gives every connector of these tests something to do: some more records each time."""
    sizes = itertools.cycle([7, 150, 31])
    numbers = itertools.count(100)

    def give() -> None:
        ids = [next(numbers) for _ in range(next(sizes))]
        produce(source, records(len(ids), start=ids[0]))
        with (tmp_path / "lines.txt").open("a") as file:
            file.write("".join(f"line {n}\n" for n in ids))

    return give


@pytest.fixture
def config(
    request: pytest.FixtureRequest,
    kafka: Kafka,
    source: str,
    topic: MakeTopic,
    configure: Configure,
    lake: Configure,
    tmp_path: Path,
) -> Config:
    match request.param:
        case "source":
            (tmp_path / "lines.txt").touch()
            return {
                "name": name(),
                "connector.class": "FileStreamSource",
                "bootstrap.servers": kafka.bootstrap_servers,
                "offset.storage.topic": f"offsets-{name()}",
                "offset.storage.replication.factor": "1",
                "file": str(tmp_path / "lines.txt"),
                "topic": topic(),
            }
        case "kafka":
            return {
                "name": name(),
                "connector.class": "kafka",
                "topics": source,
                "bootstrap.servers": kafka.bootstrap_servers,
                "topic.rename.format": topic(partitions=2),
            }
        case "lake":
            return lake(source)
    return configure(source)


def assert_both_say(loser: Fenced, caplog: pytest.LogCaptureFixture, by: str) -> None:
    assert f"started by {by}" in str(loser)
    [told] = [r.getMessage() for r in caplog.records if FIRST in r.getMessage()][:1]
    assert f"started by {FIRST}" in told
    assert "still alive" in told or "is alive" in told


@pytest.mark.integration
@pytest.mark.parametrize(
    "config",
    [
        "source",
        pytest.param("database", marks=pytest.mark.long),
        pytest.param("kafka", marks=pytest.mark.long),
        pytest.param("lake", marks=pytest.mark.long),
    ],
    indirect=True,
)
def test_both_copies_say_who_has_taken_over(
    config: Config, feed: Feed, begin: Begin, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    begin(FIRST)
    feed()
    first = start(config)
    first.until(lambda p: p.records > 0)
    begin(SECOND)
    second = start(config)

    def is_over() -> bool:
        feed()
        return not (first.alive and second.alive)

    wait_until(is_over)
    loser, winner = (first, second) if not first.alive else (second, first)
    with pytest.raises(Fenced) as fenced:
        loser.wait()
    winner.stop()
    assert_both_say(fenced.value, caplog, SECOND if loser is first else FIRST)


@pytest.mark.integration
@pytest.mark.long
@pytest.mark.parametrize("config", ["database", "kafka"], indirect=True)
def test_a_copy_that_finds_nothing_to_do_is_named_too(
    config: Config, begin: Begin, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    begin(FIRST)
    first = start(config)
    first.until(lambda p: p.records == 100)
    begin(SECOND)
    second = start(config)
    with pytest.raises(Fenced) as fenced:
        first.wait()
    second.stop()
    assert_both_say(fenced.value, caplog, SECOND)


@pytest.mark.integration
@pytest.mark.long
@pytest.mark.parametrize("config", ["lake"], indirect=True)
def test_a_run_that_has_ended_in_good_order_is_not_taken_over_from(
    config: Config, begin: Begin, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    begin(FIRST)
    start(config, until_caught_up=True).wait()
    begin(SECOND)
    start(config, until_caught_up=True).wait()
    assert FIRST not in caplog.text


def test_a_run_of_this_machine_whose_process_has_ended_is_over() -> None:
    here = f"ann@{socket.gethostname()}"
    ended = os.posix_spawn(sys.executable, [sys.executable, "-c", ""], os.environ)
    os.waitpid(ended, 0)
    assert context.is_over(f"{here}, process {ended}, at any time")
    assert context.is_over(context.this_run())  # an earlier one of this process
    assert not context.is_over(f"{here}, process {os.getppid()}, at any time")
    assert not context.is_over(FIRST)
    assert not context.is_over("somebody")


def made_clients() -> Iterator[tuple[str, ast.Call]]:
    """Where the package makes a client of librdkafka."""
    root = Path(semel.__file__).parent
    for path in root.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
                continue
            if node.func.id in {"Consumer", "Producer", "AdminClient"}:
                yield f"{path.relative_to(root)}:{node.lineno}", node


@pytest.mark.long
def test_no_client_of_kafka_writes_its_own_lines_to_standard_error() -> None:
    """Without a logger, librdkafka prints ``%3|...|FATAL|`` when it is fenced, at any level."""
    without = [where for where, call in made_clients() if "logger" not in _keys(call)]
    assert not without


def _keys(call: ast.Call) -> set[str | None]:
    return {keyword.arg for keyword in call.keywords}
