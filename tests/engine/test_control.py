"""What somebody between a driver and its tasks can do to their messages: end the connection."""

from __future__ import annotations

import pickle
import socket
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from multiprocessing.connection import Connection
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest

from semel.tasks.control import Address, ControlLine, ControlServer, Report, serving
from tests.engine.harness import wait_until
from tests.patience import PATIENCE


def _changed(frame: bytes) -> list[bytes]:
    return [frame[:-1] + bytes([frame[-1] ^ 1])]


def _repeated(frame: bytes) -> list[bytes]:
    return [frame, frame]


def _added(frame: bytes) -> list[bytes]:
    return [frame, pickle.dumps(Report("failed", 0, 0))]


def _dropped(_frame: bytes) -> list[bytes]:
    return []


@pytest.mark.parametrize("attack", [_changed, _repeated, _added, _dropped])
@pytest.mark.parametrize("to_driver", [True, False])
def test_what_is_tampered_with_on_a_control_line_ends_it(
    attack: Callable[[bytes], list[bytes]], to_driver: bool
) -> None:
    server, listener = ControlServer("127.0.0.1"), socket.create_server(("127.0.0.1", 0))
    address = server.address("127.0.0.1")

    def pass_on(source: Any, sink: Any, at: int) -> None:
        with suppress(OSError, EOFError):
            for number in count():
                frame = source.recv_bytes()
                for each in attack(frame) if number == at else [frame]:
                    sink.send_bytes(each)

    def between() -> None:
        there = socket.create_connection((address.host, address.port))
        task, driver = (Connection(s.detach()) for s in (listener.accept()[0], there))
        # A challenge, an answer and a greeting each way come before the number.
        signed = 4
        for source, sink, at in (
            (task, driver, signed if to_driver else -1),
            (driver, task, -1 if to_driver else signed),
        ):
            Thread(target=pass_on, args=(source, sink, at), daemon=True).start()

    Thread(target=between, daemon=True).start()
    line = ControlLine(Address(address.host, listener.getsockname()[1], address.key))
    said = ["first", "second", "third"]
    if to_driver:
        for kind in said:
            line.send(Report(kind, 0, 0))
        wait_until(lambda: server.reached and not server.is_connected(0))
        heard = [server.reports.get_nowait().kind for _ in range(server.reports.qsize())]
        assert heard == (said[:1] if attack in (_repeated, _added) else [])
    else:
        line.send(Report("first", 0, 0))
        server.reports.get(timeout=PATIENCE)
        server.pause_tasks()
        server.resume_tasks()
        assert line.stop.wait(PATIENCE)
        assert line.orphaned
    listener.close()
    server.close()


def test_a_task_of_a_cluster_reaches_the_driver_only_where_spark_listens() -> None:
    conf = {"spark.driver.host": "localhost", "spark.driver.bindAddress": "127.0.0.1"}
    for given in (conf, {"spark.driver.host": "127.0.0.1"}):
        context: Any = SimpleNamespace(master="spark://m:7077", getConf=lambda found=given: found)
        server, address = serving(context)
        assert server._listener.address[0] == "127.0.0.1"
        assert address.host == given["spark.driver.host"]
        server.close()
