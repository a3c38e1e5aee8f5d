"""How many records to ask for at once so that they stay within a limit of bytes.

librdkafka takes a number of records, not of bytes. So it is asked for as many records as would fit
if they were as large as the last ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from confluent_kafka import Message

_EXACT = 1024
"""Up to this many records, each one is measured; beyond that, one in ``_STRIDE``."""
_STRIDE = 16
_FEW = 64
"""This many records may always be asked for, even if the size is known from fewer."""


def size_of(messages: Sequence[Message]) -> int:
    """The approximate size of their values, in bytes; keys and headers are not counted."""
    if len(messages) <= _EXACT:
        return sum(map(len, messages))
    return _STRIDE * sum(map(len, messages[::_STRIDE]))


class Sizes:
    """The size of the records that came last, as one consumer knows it."""

    def __init__(self) -> None:
        self._record = 0
        self._known = 0

    def fitting(self, room: int) -> int:
        """How many such records fit; 0 until the first ones have come."""
        return room // self._record if self._record else 0

    def note(self, messages: Sequence[Message]) -> int:
        """Learn from records; returns their bytes."""
        found = size_of(messages)
        if messages:
            self._record = max(1, found // len(messages))
            self._known = len(messages)
        return found

    def gather(
        self,
        consume: Callable[[int, float], list[Message]],
        into: list[Message],
        *,
        most: int,
        room: int,
        wait: float,
    ) -> list[Message]:
        """Add what comes within ``wait`` seconds, until there are ``most`` or they hold ``room``
        bytes; returns what was added. One record is always taken, however large."""
        held, found = size_of(into), len(into)
        deadline = time.monotonic() + wait
        while len(into) < most:
            asked = min(most - len(into), self.fitting(room - held) or int(not into))
            # A few small records are not representative.
            asked = min(asked, max(_FEW, 2 * self._known))
            if asked <= 0:
                break
            came = consume(asked, max(0.0, deadline - time.monotonic()))
            held += self.note(came)
            into += came
            if len(came) < asked:
                break
        self._known = max(self._known, len(into) - found)
        return into[found:]
