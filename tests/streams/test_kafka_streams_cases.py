"""The cases of Kafka Streams' own tests of joins and windows: what goes in, and what comes out.

``kafka_streams/`` holds them as text, by the names of the tests in Apache Kafka that have them
(Apache License 2.0). A case is a kind of topology with its parameters, then records by topic, as
key, value and time, and behind an arrow what they bring forth, together. A star stands for any
time, brackets for a window.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest

from semel.streams import (
    KStream,
    KTable,
    Streams,
    WindowedKStream,
    hopping,
    session,
    sliding,
    tumbling,
    within,
)
from semel.streams.testing import Record, TestDriver

FOLDER = Path(__file__).parent / "kafka_streams"
Out = tuple[Any, Any, Any]


@dataclass(frozen=True)
class Step:
    """Records by topic, and what they bring forth."""

    given: Sequence[tuple[str, Record]]
    made: Sequence[Out]


@dataclass(frozen=True)
class Case:
    """A topology and what goes through it."""

    name: str
    kind: str
    parameters: Sequence[str]
    steps: Sequence[Step]


def _value(text: str) -> Any:
    return None if text == "null" else text


def _key(text: str) -> Any:
    if text.isdecimal():
        return int(text)
    if text.endswith("]"):
        key, _, window = text[:-1].partition("[")
        return (_key(key), *map(int, window.split(",")))
    return _value(text)


def _records(text: str) -> Iterator[Out]:
    for item in filter(None, text.split(", ")):
        key, value, time = item.split(" ")
        yield _key(key), _value(value), ANY if time == "*" else int(time)


def cases(file: str) -> Iterator[Case]:
    """The cases of a file."""
    for block in (FOLDER / file).read_text().split("\n\n"):
        name, spec, *lines = block.strip().splitlines()
        kind, *parameters = spec.split()
        steps, given = [], []
        for line in lines:
            topic, _, text = line.partition(" ")
            if topic == "->":
                steps.append(Step(given, list(_records(text))))
                given = []
            else:
                given += [(topic[:-1], Record(*record)) for record in _records(text)]
        assert not given
        yield Case(name.strip("[]"), kind, parameters, steps)


def _glued(glue: str) -> Callable[[Any, Any], str]:
    def joined(one: Any, other: Any) -> str:
        return glue.join("null" if each is None else str(each) for each in (one, other))

    return joined


def _joined(one: Any, other: Any, kind: str, glue: str, **keys: Any) -> Any:
    joins = {"inner": "join", "left": "left_join", "outer": "outer_join"}
    return getattr(one, joins[kind])(other, _glued(glue), **keys)


def streams(
    s: Streams, kinds: str, before: str, after: str, grace: str, glue: str = "+"
) -> KStream:
    made, other = s.stream("1"), s.stream("2")
    windows = within(0, before=int(before), after=int(after), grace=int(grace))
    for kind in kinds.split(","):
        made = _joined(made, other, kind, glue, windows=windows)
    return made


def rekeyed(s: Streams, kind: str, before: str, after: str, grace: str, glue: str) -> KStream:
    one = s.stream("1").map(lambda key, value: (key, value))
    other = s.stream("2").flat_map(lambda key, value: [(key, value)]).select_key("key")
    windows = within(0, before=int(before), after=int(after), grace=int(grace))
    made: KStream = _joined(one, other, kind, glue, windows=windows)
    return made


def itself(s: Streams, kind: str, before: str, after: str, grace: str, glue: str) -> KStream:
    stream = s.stream("1")
    windows = within(0, before=int(before), after=int(after), grace=int(grace))
    made: KStream = _joined(stream, stream, kind, glue, windows=windows)
    return made


def stream_table(s: Streams, kind: str, glue: str = "+") -> KStream:
    made: KStream = _joined(s.stream("1"), s.table("2"), kind, glue)
    return made


def stream_global(s: Streams, kind: str) -> KStream:
    def named(key: Any, value: str) -> Any:
        parts = value.split(",")
        return parts[1] if len(parts) > 1 else None

    made: KStream = _joined(s.stream("1"), s.global_table("2"), kind, "+", key=named)
    return made


def tables(s: Streams, kinds: str, glue: str = "+") -> KTable:
    made, other = s.table("1"), s.table("2")
    for kind in kinds.split(","):
        made = _joined(made, other, kind, glue)
    return made


def foreign(s: Streams, kind: str, *none: str) -> KTable:
    def named(value: str) -> Any:
        part = value.split("|")[1]
        return None if none or part == "returnNull" else part

    join = s.table("1").left_join if kind == "left" else s.table("1").join
    return join(s.table("2"), _pair, foreign_key=named)


def _pair(one: Any, other: Any) -> str:
    return f"({'null' if one is None else one},{'null' if other is None else other})"


def _texts(grouped: WindowedKStream) -> KTable:
    return grouped.aggregate(lambda: "0", lambda value, text: f"{text}+{value}")


def _hopping(s: Streams, topic: str, size: str, advance: str, grace: str, emit: str) -> KTable:
    windows = hopping(int(size), advance=int(advance), grace=int(grace))
    return _texts(s.stream(topic).group_by_key().windowed_by(windows, emit=emit))


def _sliding(s: Streams, topic: str, difference: str, grace: str, emit: str) -> KTable:
    windows = sliding(int(difference), grace=int(grace))
    return _texts(s.stream(topic).group_by_key().windowed_by(windows, emit=emit))


def hopping_texts(s: Streams, size: str, advance: str, grace: str, emit: str = "updates") -> KTable:
    return _hopping(s, "1", size, advance, grace, emit)


def sliding_texts(s: Streams, difference: str, grace: str, emit: str = "updates") -> KTable:
    return _sliding(s, "1", difference, grace, emit)


def sliding_reduced(s: Streams, difference: str, grace: str, emit: str = "updates") -> KTable:
    windows = sliding(int(difference), grace=int(grace))
    return s.stream("1").group_by_key().windowed_by(windows, emit=emit).reduce(_glued("+"))


def _all_three(one: KTable, other: KTable) -> KStream:
    both = one.join(other, _glued("%")).to_stream()
    return one.to_stream().merge(other.to_stream()).merge(both)


def hopping_joined(
    s: Streams, size: str, advance: str, grace: str, emit: str = "updates"
) -> KStream:
    return _all_three(*(_hopping(s, topic, size, advance, grace, emit) for topic in "12"))


def sliding_joined(s: Streams, difference: str, grace: str, emit: str = "updates") -> KStream:
    return _all_three(*(_sliding(s, topic, difference, grace, emit) for topic in "12"))


def sessions(s: Streams, gap: str, grace: str, emit: str = "updates") -> KTable:
    windows = session(int(gap), grace=int(grace))
    return s.stream("1").group_by_key().windowed_by(windows, emit=emit).count()


def _suppressed(table: KTable, *facts: Any, **keys: Any) -> KStream:
    """All changes, and behind them those that are let through."""
    return table.to_stream().merge(table.suppress(*facts, **keys).to_stream())


def _final(windows: Callable[..., Any]) -> Callable[..., KStream]:
    def build(s: Streams, size: str, grace: str) -> KStream:
        grouped = s.stream("1").group_by_key()
        return _suppressed(grouped.windowed_by(windows(int(size), grace=int(grace))).count())

    return build


def suppressed_counts(s: Streams, until: str, *most: str) -> KStream:
    counts = s.table("1").group_by("value", "key").count()
    return _suppressed(counts, int(until), max_records=int(most[0]) if most else None)


def suppressed_before_group(s: Streams, until: str) -> KTable:
    return s.table("1").suppress(int(until)).group_by("key", "value").count()


def suppressed_before_join(s: Streams, side: str, until: str) -> KTable:
    one, other = s.table("1"), s.table("2")
    if side == "left":
        return one.suppress(int(until)).outer_join(other, _pair)
    return one.outer_join(other.suppress(int(until)), _pair)


TOPOLOGIES: dict[str, Callable[..., KStream | KTable]] = {
    "streams": streams,
    "rekeyed": rekeyed,
    "self": itself,
    "stream-table": stream_table,
    "stream-global": stream_global,
    "tables": tables,
    "foreign": foreign,
    "hopping": hopping_texts,
    "hopping-join": hopping_joined,
    "sliding": sliding_texts,
    "sliding-reduce": sliding_reduced,
    "sliding-join": sliding_joined,
    "session": sessions,
    "suppress-tumbling": _final(tumbling),
    "suppress-sliding": _final(sliding),
    "suppress-session": _final(session),
    "suppress-count": suppressed_counts,
    "suppress-group": suppressed_before_group,
    "suppress-join": suppressed_before_join,
}


def results(case: Case) -> Iterator[tuple[Step, list[Out]]]:
    """What semel makes of each step."""
    builder = Streams({"name": "case"})
    TOPOLOGIES[case.kind](builder, *case.parameters).to_topic("out")
    driver = TestDriver(builder)
    for step in case.steps:
        for topic, record in step.given:
            driver.pipe(topic, record.key, record.value, record.timestamp or 0)
        yield step, [(_plain(r.key), _text(r.value), r.timestamp) for r in driver.read("out")]


def _text(value: Any) -> Any:
    return None if value is None else str(value)


def _plain(key: Any) -> Any:
    if not isinstance(key, dict):
        return key
    return key["key"], *(round(key[f"window_{end}"].timestamp() * 1000) for end in ("start", "end"))


def _in_order(made: Iterable[Out]) -> list[Out]:
    return sorted(made, key=lambda out: [*map(str, out)])


def _last(made: Iterable[Out]) -> list[Out]:
    return list({key: (key, value, time) for key, value, time in made}.values())


JOINS = {case.name: case for case in cases("joins.txt")}
FOREIGN = {case.name: case for case in cases("foreign_keys.txt")}
WINDOWS = {case.name: case for case in cases("windows.txt")}


BETTER = {
    ("TableTableJoinIntegrationTest testInnerInner", 10): [(0, None, 11)],
    ("TableTableJoinIntegrationTest testOuterInner", 7): [(0, None, 8)],
}
"""Tombstones that Kafka Streams forgets if a table is joined twice (KAFKA-6443)."""


@pytest.mark.parametrize("name", JOINS)
def test_joins_give_what_kafka_streams_gives(name: str) -> None:
    case = JOINS[name]
    is_joined_twice = case.kind == "tables" and "," in case.parameters[0]
    for number, (step, made) in enumerate(results(case)):
        wanted = BETTER.get((name, number), list(step.made))
        if is_joined_twice:  # Kafka Streams says each change twice
            assert _last(made) == _last(wanted), (number, step.given)
        else:
            assert made == wanted, (number, step.given)


@pytest.mark.parametrize("name", FOREIGN)
def test_joins_by_foreign_keys_give_what_kafka_streams_gives(name: str) -> None:
    for number, (step, made) in enumerate(results(FOREIGN[name])):
        assert _in_order(_last(made)) == _in_order(step.made), (number, step.given)


@pytest.mark.parametrize("name", WINDOWS)
def test_windows_give_what_kafka_streams_gives(name: str) -> None:
    for number, (step, made) in enumerate(results(WINDOWS[name])):
        assert _in_order(made) == _in_order(step.made), (number, step.given)
