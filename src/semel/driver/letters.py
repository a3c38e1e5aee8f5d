"""The dead letters of a sink connector: shown, and sent again to the topics that they come from.

A letter that is sent again becomes a new record of its topic and partition, with a header that
names the record it repeats. Each letter is sent at most once: which ones have been sent is noted by
offsets of a consumer group of their own, in the transaction that sends them. A group's offset says
that all letters below it have been sent, its metadata which others.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Protocol, runtime_checkable

from confluent_kafka import Message
from confluent_kafka import TopicPartition as KafkaPartition

from semel.config import ConnectorConfig
from semel.core.errors import ConfigError, SemelError, TransientError
from semel.core.ledger import TopicPartition
from semel.core.quoting import named, on_terminal
from semel.core.records import DeadLetter
from semel.driver.planning.sink import Plan
from semel.kafka.clients import client_config
from semel.kafka.cluster import Cluster
from semel.kafka.consumer import headers_of
from semel.kafka.dead_letters import ERRORS
from semel.kafka.groups import Groups
from semel.kafka.reader import read_ranges
from semel.kafka.transactions import RecordsRefused, Transactions
from semel.sinks.kafka.offsets import nonmember
from semel.sinks.letters import LetterStore, Place

RESENT = "__semel.resent"
"""The header of a record that repeats the one of a dead letter. Its value names that one's topic,
partition and offset."""
_MOST, _BYTES = 10_000, 32 * 1024 * 1024
"""What one transaction sends again."""
_PAGE, _LARGEST_PAGE, _LARGE = 20, 1000, 4 * 1024 * 1024
"""How many letters of a table are read at once: fewer where these have more bytes."""
_SHOWN, _HEADERS = 2000, 50
"""How many bytes of a content, and how many headers of a record are shown."""
_REASONS = 20
_METADATA = 4000
"""Characters that a group's offset may carry: ``offset.metadata.max.bytes`` is 4096."""
_UNREADABLE = "KAFKA_CONSUME"
"""The stage of letters that stand for a batch that cannot be read."""


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead letter, and where it is: its place in the table or, with a topic of dead letters, its
    partition and offset there."""

    record: DeadLetter
    at: Sequence[Any]
    connector: str = ""
    """Who has set it aside; empty if it does not say."""

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.record.topic, self.record.partition)


@dataclass(frozen=True, slots=True)
class LetterView:
    """A letter for people, and what has become of it: whether it was sent again, or why it cannot
    be. What is long is cut, and ``more_headers`` are left out. ``at`` names it in a form that sends
    it again."""

    at: str
    place: str
    timestamp: int | None
    stage: str
    exception: str
    message: str
    key: str | None
    value: str | None
    headers: Sequence[tuple[str, str | None]] = ()
    more_headers: int = 0
    sent: bool = False
    refusal: str | None = None

    @classmethod
    def of(cls, letter: Letter, *, sent: bool = False, refusal: str | None = None) -> LetterView:
        record = letter.record
        return cls(
            json.dumps(letter.at),
            _short(_source(record)) if record.topic else "unknown",
            record.timestamp,
            _short(record.stage),
            _short(record.exception),
            _short(record.message),
            _readable(record.key),
            _readable(record.value),
            [(_short(name), _readable(value)) for name, value in record.headers[:_HEADERS]],
            max(0, len(record.headers) - _HEADERS),
            sent,
            refusal and _short(refusal),
        )


@dataclass(frozen=True, slots=True)
class Page:
    """Some letters, the newest first, and where the next older ones begin; None if there are none.
    ``kept`` says where letters are; it is empty if the connector keeps none."""

    kept: str = ""
    letters: Sequence[LetterView] = ()
    older: Any = None


@dataclass(frozen=True, slots=True)
class ResendResult:
    """How many letters were sent again, how many cannot be, with the first reasons, and whether
    there are more than one transaction sends."""

    count: int
    refused: int = 0
    reasons: Sequence[str] = ()
    more: bool = False


@runtime_checkable
class LetterTopicSink(Protocol):
    """A sink that writes the dead letters' topic itself, perhaps to another cluster."""

    @property
    def letter_topic(self) -> tuple[Cluster, Mapping[str, Any]]:
        """The topic's cluster, and a consumer's settings for it."""


def browse(planned: Any, older_than: Any, most: int) -> Page:
    """A page of letters. ``older_than`` is what the page before it says of older ones."""
    store = _store(planned)
    if store is None:
        return Page()
    letters, older = store.page(older_than, most)
    connector, places = planned.connector, _places(planned)
    marks = _Marks.read(connector, Groups(planned.offsets.client), places)

    def shown(letter: Letter) -> LetterView:
        refusal = _refusal(letter, connector, places)
        return LetterView.of(letter, sent=not refusal and marks.has(letter), refusal=refusal)

    return Page(store.name, [shown(letter) for letter in letters], older)


def _short(text: str) -> str:
    """A text, cut if it is long, without characters that would change what is around it."""
    return on_terminal(text[:_SHOWN]) + ("…" if len(text) > _SHOWN else "")


def _readable(value: bytes | None) -> str | None:
    """The same for bytes: as text, or in hexadecimal if they are not text."""
    if value is None:
        return None
    first, is_whole = value[:_SHOWN], len(value) <= _SHOWN
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(first, is_whole)
    except UnicodeDecodeError:
        text = first.hex(" ")
    return on_terminal(text) + ("" if is_whole else f"… ({len(value):,} bytes)")


def resend(planned: Any, only: Any = None) -> ResendResult:
    """Send letters again, in one transaction: the one at a place, or all that have not been sent.

    Raises:
        ConfigError: there is no such letter, or it cannot be sent.
        TransientError: nothing was sent, or the outcome is unknown. Try again: letters that have
            been sent are known.
    """
    store, connector = _store(planned), planned.connector
    if store is None:
        raise ConfigError(f"connector {connector.name} keeps no dead letters")
    groups, places = Groups(planned.offsets.client), _places(planned)
    # What a producer of the connector logs in with may be for another cluster.
    elsewhere = isinstance(planned.sink, LetterTopicSink)
    client = planned.offsets.client if elsewhere else client_config(connector, "producer")
    transactions = Transactions(f"connector {connector.name}", client)
    name = _group(connector)
    transactions.open(name)  # and end what another request may have begun
    try:
        marks = _Marks.read(connector, groups, places, stable=True)

        def refusal(letter: Letter) -> str | None:
            return _refusal(letter, connector, places)

        if only is not None:
            chosen = _Selection([_one(store, marks, only, refusal)])
        else:
            chosen = _all(store, marks, refusal)
        if letters := chosen.letters:
            all_ = only is None and store.in_order
            noted = marks.with_all(letters) if all_ else marks.with_each(letters)
            _send(transactions, letters, noted, nonmember(planned.offsets.client, name))
        return ResendResult(len(letters), chosen.refused, chosen.reasons, chosen.more)
    finally:
        transactions.drop()


@dataclass(frozen=True, slots=True)
class _Selection:
    """Letters to send, in the order of their records, and what is told of the others."""

    letters: Sequence[Letter]
    refused: int = 0
    reasons: Sequence[str] = ()
    more: bool = False


def _one(store: _Store, marks: _Marks, at: Any, refusal: Callable[[Letter], str | None]) -> Letter:
    """Raises ConfigError: it cannot be sent, or has been sent."""
    letter = store.one(at)
    if why := refusal(letter):
        raise ConfigError(why)
    if marks.has(letter):
        raise ConfigError(f"the record of {_told(letter)} has been sent again already")
    return letter


def _all(store: _Store, marks: _Marks, refusal: Callable[[Letter], str | None]) -> _Selection:
    chosen: dict[Place, Letter] = {}
    reasons: dict[str, None] = {}
    size, refused, more = 0, 0, False
    for letter in store.all(marks):
        place = _by_record(letter)
        if why := refusal(letter):
            refused += 1
            if len(reasons) < _REASONS:
                reasons[why] = None
            continue
        if marks.has(letter) or place in chosen:  # a topic may have a letter twice
            continue
        size += _size(letter)
        if chosen and (len(chosen) >= _MOST or size > _BYTES):
            more = True
            break
        chosen[place] = letter
    return _Selection(sorted(chosen.values(), key=_by_record), refused, [*reasons], more)


def _size(letter: Letter) -> int:
    return len(letter.record.key or b"") + len(letter.record.value or b"")


def _by_record(letter: Letter) -> Place:
    return letter.record.topic, letter.record.partition, letter.record.offset


def _told(letter: Letter) -> str:
    return f"{letter.topic_partition} offset {letter.record.offset}"


def _refusal(
    letter: Letter, connector: ConnectorConfig, places: Sequence[TopicPartition]
) -> str | None:
    """Why a letter cannot be sent again; None if it can. What a topic of letters holds may come
    from anybody."""
    record = letter.record
    if not record.topic:
        return (
            "the letter does not say which record it is: "
            "errors.deadletterqueue.context.headers.enable was false"
        )
    if not connector.reads(record.topic):
        return f"connector {connector.name} does not read topic {named(record.topic)}"
    if letter.topic_partition not in places:
        return f"{letter.topic_partition} does not exist any more"
    if not 0 <= record.offset < 2**63 - 1:
        return f"no record can be at {_told(letter)}"
    if record.stage == _UNREADABLE:
        return f"{_told(letter)} stands for records that could not be read"
    return None


def _send(
    transactions: Transactions,
    letters: Sequence[Letter],
    marks: Mapping[TopicPartition, _Mark],
    generation: Any,
) -> None:
    def send(producer: Any, report: Any) -> None:
        for letter in letters:
            record = letter.record
            producer.produce(
                record.topic,
                key=record.key,
                value=record.value,
                partition=record.partition,
                headers=[*record.headers, (RESENT, _source(record).encode())],
                on_delivery=report,
            )

    offsets = [KafkaPartition(*tp, mark.until, mark.text()) for tp, mark in marks.items()]
    try:
        transactions.run(send, offsets, generation, topics={x.record.topic for x in letters})
    except RecordsRefused:
        raise SemelError(
            "a broker refuses to take a record again: it may be larger than max.message.bytes, or "
            "have no key although its topic is compacted. Nothing was sent"
        ) from None


def _source(record: DeadLetter) -> str:
    return f"{record.topic}-{record.partition}@{record.offset}"


# Which letters have been sent


@dataclass(frozen=True, slots=True)
class _Mark:
    """The letters of a partition that have been sent: those of all records below ``until``, and
    ``others``."""

    until: int = 0
    others: frozenset[int] = frozenset()

    def text(self) -> str:
        return json.dumps(sorted(self.others), separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class _Marks:
    """The letters that have been sent, by the partition of their records."""

    known: Mapping[TopicPartition, _Mark] = field(default_factory=dict)

    @classmethod
    def read(
        cls,
        connector: ConnectorConfig,
        groups: Groups,
        places: Sequence[TopicPartition],
        *,
        stable: bool = False,
    ) -> _Marks:
        offsets, open_ = groups.offsets(_group(connector), places, stable=stable)
        if open_:
            raise TransientError(
                f"connector {connector.name}: letters are being sent again by another request. "
                "Try again"
            )
        marks = {}
        for tp, (until, text) in offsets.items():
            try:
                marks[tp] = _Mark(until, frozenset(map(int, json.loads(text or "[]"))))
            except (ValueError, TypeError, RecursionError):
                raise ConfigError(
                    f"the offset of consumer group {_group(connector)} for {tp} was not written "
                    "by semel. Delete the group"
                ) from None
        return cls(marks)

    def has(self, letter: Letter) -> bool:
        mark = self.known.get(letter.topic_partition)
        offset = letter.record.offset
        return mark is not None and (offset < mark.until or offset in mark.others)

    def beyond(self, letter: Letter) -> Place:
        """The place of a letter, or the last one of its partition before which all were sent."""
        topic, partition, offset = _by_record(letter)
        until = self.known.get(letter.topic_partition, _Mark()).until
        return topic, partition, max(offset, until - 1)

    def with_each(self, letters: Sequence[Letter]) -> dict[TopicPartition, _Mark]:
        """The marks of partitions once these have been sent, too.

        Raises:
            ConfigError: they are too many.
        """
        marks: dict[TopicPartition, _Mark] = {}
        for letter in letters:
            tp, offset = letter.topic_partition, letter.record.offset
            mark = marks.get(tp) or self.known.get(tp, _Mark())
            marks[tp] = replace(mark, others=mark.others | {offset})
        for tp, mark in marks.items():
            if len(mark.text()) > _METADATA:
                raise ConfigError(
                    f"Kafka cannot note one by one which letters of {tp} have been sent again: "
                    f"there would be {len(mark.others)}. Send all of them, from a table or from a "
                    "topic with one partition"
                )
        return marks

    def with_all(self, letters: Sequence[Letter]) -> dict[TopicPartition, _Mark]:
        """The marks once these and all before them have been sent."""
        until: dict[TopicPartition, int] = {}
        for x in letters:
            until[x.topic_partition] = max(until.get(x.topic_partition, 0), x.record.offset + 1)
        marks = {}
        for tp, at in until.items():
            mark = self.known.get(tp, _Mark())
            others = frozenset(o for o in mark.others if o >= at)
            marks[tp] = _Mark(max(at, mark.until), others)
        return marks


def _group(connector: ConnectorConfig) -> str:
    return f"semel-resent-{connector.name}"


def _places(planned: Plan) -> list[TopicPartition]:
    topics = Cluster(planned.offsets.client).matching(planned.connector)
    return [TopicPartition(topic, p) for topic, count in topics.items() for p in range(count)]


# Where letters are


class _Store(Protocol):
    """Where a connector's letters are. ``in_order`` says that those of a partition come in the
    order of their records."""

    name: str
    in_order: bool

    def page(self, older_than: Any, most: int) -> tuple[list[Letter], Any]: ...

    def all(self, marks: _Marks) -> Iterator[Letter]: ...

    def one(self, at: Any) -> Letter: ...


def _store(planned: Any) -> _Store | None:
    """Where a connector keeps letters; None if nowhere.

    Raises:
        ConfigError: they cannot be read there.
    """
    if planned.is_source:
        return None
    connector: ConnectorConfig = planned.connector
    if connector.dead_letter_table and isinstance(planned.sink, LetterStore):
        return _Table(connector, planned.sink)
    if connector.dead_letter_table:
        raise ConfigError(
            f"connector.class={connector.connector_class} cannot read its table "
            f"{named(connector.dead_letter_table)}"
        )
    return _Topic(planned) if connector.dead_letter_topic else None


class _Table(_Store):
    in_order = True

    def __init__(self, connector: ConnectorConfig, sink: LetterStore) -> None:
        self.name = f"table {named(connector.dead_letter_table)}"
        self._connector, self._sink = connector, sink

    def page(self, older_than: Any, most: int) -> tuple[list[Letter], Any]:
        beyond = None if older_than is None else _place(older_than)
        letters = self._letters(beyond, most + 1, backwards=True)
        return letters[:most], (letters[most - 1].at if len(letters) > most else None)

    def all(self, marks: _Marks) -> Iterator[Letter]:
        beyond, most = None, _PAGE
        while letters := self._letters(beyond, most):
            yield from letters
            beyond = marks.beyond(letters[-1])
            is_large = sum(map(_size, letters)) > _LARGE
            most = max(1, most // 2) if is_large else min(_LARGEST_PAGE, 2 * most)

    def one(self, at: Any) -> Letter:
        topic, partition, offset = _place(at)
        letters = self._letters((topic, partition, offset - 1), 1)
        if not letters or tuple(letters[0].at) != (topic, partition, offset):
            raise _gone()
        return letters[0]

    def _letters(self, beyond: Place | None, most: int, *, backwards: bool = False) -> list[Letter]:
        rows = self._sink.letters(beyond, most, backwards=backwards).to_pylist()
        return [_of_row(self._connector.name, row) for row in rows]


def _of_row(connector: str, row: Mapping[str, Any]) -> Letter:
    stamp = row["timestamp"]
    pairs = json.loads(row["headers"] or "[]")
    headers = [(name, None if text is None else text.encode()) for name, text in pairs]
    record = DeadLetter(
        row["topic"],
        row["partition"],
        row["offset"],
        row["key"],
        row["value"],
        headers,
        None if stamp is None else round(stamp.timestamp() * 1000),
        row["stage"],
        row["exception"],
        row["message"],
    )
    return Letter(record, [row["topic"], row["partition"], row["offset"]], connector)


class _Topic(_Store):
    def __init__(self, planned: Plan) -> None:
        self._connector = connector = planned.connector
        topic, sink = connector.dead_letter_topic, planned.sink
        self.name = f"topic {named(topic)}"
        cluster, self._consumer = Cluster(planned.offsets.client), None
        if isinstance(sink, LetterTopicSink):
            cluster, self._consumer = sink.letter_topic
        places = [TopicPartition(topic, p) for p in range(cluster.topics().get(topic, 0))]
        self.in_order = len(places) < 2
        self._first, self._ends = cluster.earliest(places), cluster.latest(places)

    def page(self, older_than: Any, most: int) -> tuple[list[Letter], Any]:
        ends = self._ends if older_than is None else self._before(older_than)
        share = -(-most // max(1, len(ends)))
        starts = {tp: max(self._first[tp], end - share) for tp, end in ends.items()}
        letters = sorted(self._read(starts, ends), key=lambda x: x.at[1], reverse=True)
        older = {tp: at for tp, at in starts.items() if at > self._first[tp]}
        return letters, {str(tp.partition): at for tp, at in older.items()} or None

    def all(self, marks: _Marks) -> Iterator[Letter]:
        return self._read(self._first, self._ends)

    def one(self, at: Any) -> Letter:
        partition, offset = _numbers(at, 2)
        tp = TopicPartition(self._connector.dead_letter_topic, partition)
        if not self._first.get(tp, 0) <= offset < self._ends.get(tp, 0):
            raise _gone()
        letter = next(islice(self._read({tp: offset}, {tp: offset + 1}), 1), None)
        if letter is None:
            raise _gone()
        return letter

    def _before(self, older_than: Any) -> dict[TopicPartition, int]:
        if not isinstance(older_than, dict):
            raise _gone()
        offsets = {}
        for tp in self._ends:
            (at,) = _numbers([older_than.get(str(tp.partition), self._first[tp])], 1)
            offsets[tp] = min(max(at, self._first[tp]), self._ends[tp])
        return offsets

    def _read(
        self, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
    ) -> Iterator[Letter]:
        """The letters of this connector, and those that do not say whose they are."""
        polls = read_ranges(
            self._connector, starts, ends, client=self._consumer, damaged=lambda _damage: None
        )
        with closing(polls):
            for poll in polls:
                for message in poll:
                    letter = of_message(message)
                    if letter.connector in ("", self._connector.name):
                        yield letter


def of_message(message: Message) -> Letter:
    """A letter as semel and Kafka Connect write it to a topic: the record, and headers after its
    own that tell what has happened."""
    facts: dict[str, str] = {}
    headers: list[tuple[str, bytes | None]] = []
    for name, value in reversed(headers_of(message) or ()):
        short = name.removeprefix(ERRORS)
        if short == name or short in facts:  # a record may have been a letter before
            headers.append((name, value))
        else:
            facts[short] = (value or b"").decode("utf-8", "backslashreplace")
    try:
        topic, partition, offset = facts["topic"], int(facts["partition"]), int(facts["offset"])
    except (KeyError, ValueError):
        topic, partition, offset = "", -1, -1
    stamp = message.timestamp()[1]
    record = DeadLetter(
        topic,
        partition,
        offset,
        message.key(),
        message.value(),
        headers[::-1],
        stamp if stamp > 0 else None,
        facts.get("stage", ""),
        facts.get("exception.class.name", ""),
        facts.get("exception.message", ""),
    )
    return Letter(record, [message.partition(), message.offset()], facts.get("connector.name", ""))


def _place(value: Any) -> Place:
    if not isinstance(value, list) or len(value) != 3 or not isinstance(value[0], str):
        raise _gone()
    partition, offset = _numbers(value[1:], 2)
    return value[0], partition, offset


def _numbers(values: Any, count: int) -> list[int]:
    numbers = isinstance(values, list) and all(type(n) is int and -1 <= n < 2**63 for n in values)
    if not numbers or len(values) != count:
        raise _gone()
    return list(values)


def _gone() -> ConfigError:
    return ConfigError("there is no such dead letter; it may have been removed meanwhile")
