"""Source offsets in a file, as Kafka Connect's standalone worker keeps them.

It is a ``HashMap`` of ``byte[]`` to ``byte[]`` that Java has serialized. Keys and values are those
of the offsets topic.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

from semel.config.source_connector import OFFSETS_FILE
from semel.core.errors import ServiceError, misconfigured
from semel.core.locks import alone
from semel.core.quoting import PATH, named
from semel.sources.offsets.outside import Record, compare

_HEAD = bytes.fromhex("aced0005") + (
    b"sr\0\x11java.util.HashMap\x05\x07\xda\xc1\xc3\x16\x60\xd1\x03\0\x02"
    b"F\0\x0aloadFactorI\0\x09thresholdxp"
)
_FACTS = struct.Struct(">fi2sii")
"""Load factor and threshold, the head of a block of 8 bytes, buckets, entries."""
_BLOCK = b"w\x08"
_ARRAY = b"ur\0\x02[B\xac\xf3\x17\xf8\x06\x08\x54\xe0\x02\0\0xp"
"""The first array, with the description of its class; the others refer to it."""
_ANOTHER = b"uq\0\x7e\0\x02"
_NULL, _END = b"p", b"x"
_LENGTH = struct.Struct(">i")

_PATIENCE = 20.0
"""Seconds to wait for a process that writes the file, and between two looks."""


class OffsetFile:
    """A file of source offsets. Several processes of one machine may share it."""

    def __init__(self, connector: str, path: str) -> None:
        self._where = f"connector {connector}: {OFFSETS_FILE}={path}"
        self._path = Path(path)
        self.where = f"offsets file {named(path, PATH)}"

    def prepare(self) -> None:
        """Check that the file can be written. Raises ConfigError: it cannot."""
        place = self._path.parent
        if not place.is_dir() or self._path.is_dir():
            raise misconfigured(
                OFFSETS_FILE, f"{self._where} must name a file in a directory that exists"
            )
        if not os.access(place, os.W_OK):
            raise misconfigured(
                OFFSETS_FILE,
                f"{self._where}: {place} cannot be written. Grant write permission to the user "
                "that runs the tasks",
            )
        self.read()

    def read(self, *, expected: bool = False) -> Mapping[bytes, bytes]:
        """What the file holds; nothing if it does not exist yet, which is never an error.

        Raises:
            ConfigError: it is not a file of source offsets.
            ServiceError: it cannot be read.
        """
        try:
            content = self._path.read_bytes()
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise ServiceError(f"{self._where} cannot be read: {error.strerror}") from None
        try:
            return parsed(content) if content else {}  # empty counts as new, as in Kafka Connect
        except (ValueError, struct.error):
            raise misconfigured(
                OFFSETS_FILE,
                f"{self._where} is not a file of source offsets of Kafka Connect. Name another one",
            ) from None

    def write(self, records: Sequence[Record], known: Mapping[bytes, bytes | None]) -> None:
        """See :class:`~semel.sources.offsets.outside.Outside`. The file is replaced in one step.

        Raises:
            LedgerConflict: a key's value is not the known one.
            ServiceError: it cannot be written.
            Unavailable: another process does not finish writing it. That process may be frozen.
        """
        scratch = self._path.with_name(f"{self._path.name}.semel-new")
        try:
            with alone(
                self._path.with_name(f"{self._path.name}.semel-lock"), _PATIENCE, self._where
            ):
                held = dict(self.read())
                compare(self._where, known, held)
                for key, value in records:
                    held.pop(key, None)
                    if value is not None:
                        held[key] = value
                with scratch.open("wb") as file:
                    file.write(serialized(held))
                    file.flush()
                    os.fsync(file.fileno())
                scratch.replace(self._path)
        except OSError as error:
            raise ServiceError(f"{self._where} cannot be written: {error.strerror}") from None

    def close(self) -> None:
        """Nothing stays open."""


def serialized(held: Mapping[bytes, bytes]) -> bytes:
    """The map as Java serializes it."""
    parts = [_HEAD, _FACTS.pack(0.75, 12, _BLOCK, 16, len(held))]
    begin = _ARRAY
    for array in (a for entry in held.items() for a in entry):
        parts += [begin, _LENGTH.pack(len(array)), array]
        begin = _ANOTHER
    return b"".join([*parts, _END])


def parsed(content: bytes) -> dict[bytes, bytes]:
    """The map that Java has serialized, without entries whose key or value is null or empty.

    Raises:
        ValueError, struct.error: it is something else.
    """
    place = len(_HEAD)
    _, _, block, _, count = _FACTS.unpack_from(content, place)
    if not content.startswith(_HEAD) or block != _BLOCK:
        raise ValueError
    place += _FACTS.size
    arrays: list[bytes | None] = []
    begin = _ARRAY
    for _ in range(2 * count):
        if content.startswith(_NULL, place):
            arrays.append(None)
            place += 1
            continue
        if not content.startswith(begin, place):
            raise ValueError
        place += len(begin)
        begin = _ANOTHER
        (length,) = _LENGTH.unpack_from(content, place)
        place += _LENGTH.size
        if not 0 <= length <= len(content) - place:
            raise ValueError
        arrays.append(content[place : place + length])
        place += length
    if content[place:] != _END:
        raise ValueError
    return {k: v for k, v in zip(arrays[::2], arrays[1::2], strict=True) if k and v}
