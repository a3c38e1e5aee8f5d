"""A daemon for Python workers that starts before Spark asks for one.

Spark starts its daemon with the first Python task, and then waits while the daemon imports what
tasks need. ``semel run`` starts one beside Spark's JVM instead (see :mod:`semel.spark.launch`).
Spark's own daemon hands its pipes and its environment over to it, and waits for its end. If
anything is amiss before that, Spark's daemon serves Spark itself.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from semel.core.context import STANDBY

_PATIENCE = 20.0
"""Seconds that the standby daemon gets to import everything."""
_READY = b"R"
_PIPES = (0, 1, 2)
_WORKER = "pyspark.worker"
_LIKELY = ("semel.tasks.source.task", "semel.converters.json.converter")
"""Modules that a worker's tasks are likely to need besides sinks."""
_VALIDATION = "semel.worker.plugins"
_CALLED = ("semel.driver.sampler", _VALIDATION)
"""Modules whose functions a worker calls in processes of their own."""
_GROUPS = ("semel.sinks", "semel.sources", "semel.converters")
"""Entry points that each task looks up."""


def hand_over() -> bool:
    """Let the daemon on standby serve Spark in this process's place, until it ends; False if there
    is none."""
    path = os.environ.get(STANDBY)
    if not path or sys.argv[1:] not in ([], [_WORKER]):
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
        line.settimeout(_PATIENCE)
        facts = {"environment": dict(os.environ), "path": sys.path, "folder": str(Path.cwd())}
        try:
            line.connect(path)
            if line.recv(len(_READY)) != _READY:
                return False
            socket.send_fds(line, [b"\0"], list(_PIPES))
            line.sendall(json.dumps(facts).encode())
            line.shutdown(socket.SHUT_WR)
        except OSError:  # it has died before it could serve
            return False
        line.settimeout(None)
        with suppress(OSError):
            line.recv(1)  # comes when the other one has ended
    return True


def _take_over(listener: socket.socket) -> socket.socket | None:
    """Wait for Spark's daemon, and take its pipes, environment, path and directory. Returns the
    line to it, which must stay open; None if the process that has started this one, and holds the
    other end of its standard input, ends first."""
    either: list[Any] = [0, listener]
    ready, _, _ = select.select(either, [], [])
    if 0 in ready:
        return None
    line, _ = listener.accept()
    line.sendall(_READY)
    _, pipes, _, _ = socket.recv_fds(line, 1, len(_PIPES))
    with line.makefile("rb") as sent:
        facts = json.load(sent)
    os.environ.clear()
    os.environ.update(facts["environment"])
    sys.path[:] = facts["path"]
    os.chdir(facts["folder"])
    for pipe, own in zip(pipes, _PIPES, strict=True):
        os.dup2(pipe, own)
        os.close(pipe)
    return line


def _import_connector(raw: dict[str, str]) -> None:
    """Import what a task of this configuration needs; the task says what is missing. A worker's
    configuration names no connector: what it will likely run is imported once, not by each task."""
    from semel.config.extras import entries
    from semel.sinks import import_likely, sink_class
    from semel.sources import is_source, source_class

    with suppress(Exception):
        name = raw.get("connector.class", "").strip()
        if not name:
            import_likely()
            for module in _LIKELY:
                importlib.import_module(module)
            for group in _GROUPS:
                entries(group)
            return
        cls = source_class(name) if is_source(name) else sink_class(name, raw)
        importlib.import_module(cls.__module__)


def _serve_calls(forks: socket.socket, listener: socket.socket, *modules: str) -> None:
    """Leave the calls to a process that is forked once these modules are imported."""
    expendable = importlib.import_module("semel.tasks.expendable")
    for module in modules:
        importlib.import_module(module)
    if os.fork() == 0:
        os.setpgid(0, 0)  # PySpark's daemon ends its whole group
        listener.close()
        if _VALIDATION in modules:
            with suppress(Exception):  # it only makes later calls faster
                importlib.import_module(_VALIDATION).rehearse()
        expendable.serve(forks)
        os._exit(0)
    forks.close()


def main() -> None:
    """Import, wait, and serve. The arguments are the descriptors of two listening sockets, for
    Spark and for calls in processes of their own; the first line of standard input holds the
    configuration."""
    gc.disable()  # imports leave next to no garbage
    listener, forks = (socket.socket(fileno=int(descriptor)) for descriptor in sys.argv[1:3])
    sys.argv[1:] = [_WORKER]
    raw = json.loads(sys.stdin.readline() or "{}")
    is_worker = not raw.get("connector.class", "").strip()
    if not is_worker:  # now, because a sample may be wanted before Spark is there
        _serve_calls(forks, listener, "semel.driver.sampler")
    importlib.import_module("semel.spark.daemon")
    _import_connector(raw)
    if is_worker:
        _serve_calls(forks, listener, *_CALLED)
    gc.collect()
    gc.freeze()
    gc.enable()
    line = _take_over(listener)
    listener.close()
    if line is not None:
        from pyspark import daemon

        daemon.manager()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
