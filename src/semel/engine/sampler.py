"""Reads the first records of topics in a process of its own, whose memory is limited.

librdkafka unpacks a batch as a whole, and a few hundred kilobytes of gzip may hold gigabytes. A
process that dies of that takes nothing along: neither the connectors of a worker nor their tasks.

Each reading is done by a process that is forked from one which has imported everything: the daemon
on standby forks it (:mod:`semel.engine.standby`), and without one this module starts it.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import pickle
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from confluent_kafka import Message

from semel import launch
from semel.config import ConnectorConfig
from semel.engine import memory
from semel.engine.failure import Failure
from semel.engine.poll import by_topic
from semel.errors import BadRecord, SemelError, TransientError
from semel.kafka.damage import Damage
from semel.kafka.reader import read_ranges
from semel.ledger import TopicPartition

log = logging.getLogger(__name__)

_PATIENCE = 120.0
"""Seconds for an answer: Kafka may be silent for 30."""
_FIRST = 8
"""How many times the wanted bytes the first record may have."""
_SERVES = "import socket, sys; from semel.engine import sampler; "
_SERVES += "sampler.serve(socket.socket(fileno=int(sys.argv[1])))"
_own: list[str] = []
_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class Read:
    """Records by topic, in raw batches. ``cut`` says that there are more than were wanted."""

    tables: Mapping[str, pa.Table]
    cut: bool = False


@dataclass(frozen=True, slots=True)
class _Request:
    connector: ConnectorConfig
    starts: Mapping[TopicPartition, int]
    ends: Mapping[TopicPartition, int]
    most: int
    environment: Mapping[str, str]
    folder: str


@dataclass(frozen=True, slots=True)
class _Answer:
    read: Read
    left_out: list[str]
    failure: Failure | None = None


def read(
    connector: ConnectorConfig,
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    most: int,
) -> Read:
    """The committed records in ``[start, end)`` of each partition, up to ``most`` bytes, and up to
    damage of unknown extent: whoever gets there says so.

    Raises:
        OffsetOutOfRange: records at a start are gone.
        TransientError: Kafka sends nothing.
        SemelError: the process has died.
    """
    request = _Request(connector, starts, ends, most, dict(os.environ), str(Path.cwd()))
    found = _asked(pickle.dumps(request))
    if not found:
        where = ", ".join(f"{tp} from offset {at}" for tp, at in sorted(starts.items())[:3])
        raise SemelError(
            f"connector {connector.name}: the process that read the first records of {where} has "
            f"died. It may use {connector.task_memory:,} bytes; a batch that holds more once it is "
            "unpacked can be read with a larger task.max.memory.bytes"
        )
    answer: _Answer = pickle.loads(found)
    for text in answer.left_out:
        log.info("the sample leaves out %s", text)
    if answer.failure is not None:
        raise answer.failure.error()
    return answer.read


def _asked(request: bytes) -> bytes:
    """What a process answers; nothing if it has died."""
    with _connected() as line, contextlib.suppress(ConnectionError):
        line.settimeout(_PATIENCE)
        try:
            line.sendall(request)
            line.shutdown(socket.SHUT_WR)
            with line.makefile("rb") as answer:
                return answer.read()
        except TimeoutError:
            raise TransientError(f"no records were read within {_PATIENCE:.0f} s") from None
    return b""


def _connected() -> socket.socket:
    """A connection to a process that forks others."""
    for path in (launch.Standby.readers, *_own):
        line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            line.connect(path)
            return line
        except OSError:  # there is none, or it has died
            line.close()
    with _lock:
        if not _own or not Path(_own[-1]).exists():
            _own.append(_started())
    line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    line.connect(_own[-1])
    return line


def _started() -> str:
    """Start a process that forks others; returns where it listens."""
    folder = tempfile.mkdtemp(prefix="semel-")
    path = f"{folder}/readers"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(path)
        listener.listen(launch.AT_ONCE)
        process = subprocess.Popen(
            [sys.executable, "-c", _SERVES, str(listener.fileno())],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            process_group=0,  # Ctrl-C in a terminal is for this process
            pass_fds=[listener.fileno()],
        )

    def end() -> None:
        assert process.stdin is not None
        process.stdin.close()
        process.wait(_PATIENCE)
        shutil.rmtree(folder, ignore_errors=True)

    atexit.register(end)
    return path


def serve(listener: socket.socket) -> None:
    """Fork a process for each request, until whoever holds the other end of standard input ends."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        either: list[Any] = [0, listener]
        ready, _, _ = select.select(either, [], [])
        if 0 in ready:
            return
        line, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            try:
                _answer(line)
            finally:
                os._exit(0)
        line.close()


def _answer(line: socket.socket) -> None:
    with line.makefile("rb") as sent:
        request: _Request = pickle.loads(sent.read())
    os.environ.update(request.environment)
    os.chdir(request.folder)
    memory.limit_caches()
    memory.limit(request.connector.task_memory)
    left_out: list[str] = []
    try:
        answer = _Answer(_read(request, left_out), left_out)
    except SemelError as error:
        answer = _Answer(Read({}), left_out, Failure.of(error))
    except MemoryError:
        return
    except Exception as error:
        text = f"connector {request.connector.name}: {type(error).__name__}: {error}"
        answer = _Answer(Read({}), left_out, Failure.of(SemelError(text)))
    line.sendall(pickle.dumps(answer))


def _read(request: _Request, left_out: list[str]) -> Read:
    def passed_over(damage: Damage) -> None:
        left_out.append(f"{damage.range}: {damage.reason}")

    polls = read_ranges(request.connector, request.starts, request.ends, damaged=passed_over)
    kept: list[Message] = []
    size, cut = 0, False
    with contextlib.closing(polls), contextlib.suppress(BadRecord):
        for poll in polls:
            for message in poll:
                more = _bytes_of(message)
                if size + more > (request.most if kept else _FIRST * request.most):
                    cut = True
                    break
                kept.append(message)
                size += more
            if cut:
                break
    if cut and not kept:
        left_out.append("a first record that is too large")
    tables = {
        each.topic: each.raw(key=True, timestamp=True, headers=True) for each in by_topic(kept)
    }
    return Read(tables, cut)


def _bytes_of(message: Message) -> int:
    headers: Any = message.headers() or ()
    parts = [message.value(), message.key(), *(each for header in headers for each in header)]
    return sum(len(part) for part in parts if part)
