"""How a command ends: by signals and closed pipes as Unix programs do, and without stack traces."""

from __future__ import annotations

import _thread
import io
import os
import signal
import stat
import sys
import threading
import time
from contextlib import suppress
from typing import Any

from semel.core.errors import CLOSED, TERMINATED, SemelError

_AGAIN = 0.01


def prepare() -> None:
    """Prepare this process before it writes anything."""
    sys.unraisablehook = _lost
    threading.excepthook = _in_thread
    with suppress(OSError, ValueError, AttributeError):  # there may be no standard output
        sys.stdout = _guarded(sys.stdout, CLOSED)
    with suppress(OSError, ValueError, AttributeError):
        sys.stderr = _guarded(sys.stderr, 0)


def clean_up_on_signals() -> None:
    """From now on, SIGINT and SIGTERM raise an exception: there is something to clean up."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, _terminate)


def finish() -> None:
    """Write what is left of the output. From now on, a signal ends the process at once."""
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        _silence(sys.stdout.fileno())
        print(f"error: standard output: {error}", file=sys.stderr)
        sys.exit(SemelError.exit_code)


def _terminate(*_signal: object) -> None:
    sys.exit(TERMINATED)


class _Pipe(io.FileIO):
    """A pipe whose reader may close it. Python ignores SIGPIPE, because a closed connection must
    not end the process; a closed standard output must.

    Args:
        code: what the process exits with then; 0 drops what can no longer be read.
    """

    def __init__(self, descriptor: int, code: int) -> None:
        super().__init__(descriptor, "w", closefd=False)
        self._code = code

    def write(self, data: Any, /) -> int:
        """See :class:`io.RawIOBase`."""
        try:
            return super().write(data)
        except BrokenPipeError:
            _silence(self.fileno())
            if self._code:
                sys.exit(self._code)
            return len(data)


def _guarded(stream: Any, code: int) -> Any:
    if not stat.S_ISFIFO(os.fstat(stream.fileno()).st_mode):
        return stream
    stream.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(_Pipe(stream.fileno(), code)),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


def _silence(descriptor: int) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


def _lost(args: Any) -> None:
    """Python has ignored an exception, as it does in callbacks. A signal is sent once more."""
    lost = args.exc_value
    if isinstance(lost, KeyboardInterrupt):
        _thread.start_new_thread(_again, (signal.SIGINT,))
    elif isinstance(lost, SystemExit) and lost.code == TERMINATED:
        _thread.start_new_thread(_again, (signal.SIGTERM,))
    elif os.environ.get("SEMEL_DEBUG"):
        sys.__unraisablehook__(args)


def _again(number: signal.Signals) -> None:
    time.sleep(_AGAIN)
    os.kill(os.getpid(), number)


def _in_thread(args: Any) -> None:
    """A thread has ended with an exception that nobody expected."""
    if os.environ.get("SEMEL_DEBUG"):
        threading.__excepthook__(args)
    elif not isinstance(args.exc_value, SystemExit):
        from semel.cli.application import say_unexpected

        thread = args.thread.name if args.thread is not None else "a thread"
        say_unexpected(args.exc_value, f"{thread} ended")
