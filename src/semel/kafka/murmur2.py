"""The hash by which Java's producer, and so Kafka Connect, spreads keys over partitions."""

from __future__ import annotations

_SEED, _MULTIPLIER, _SHIFT = 0x9747B28C, 0x5BD1E995, 24
_BITS, _POSITIVE = 0xFFFFFFFF, 0x7FFFFFFF


def murmur2(key: bytes) -> int:
    """Kafka's variant of MurmurHash 2, 32 bits without a sign."""
    found = _SEED ^ len(key)
    whole = len(key) & ~3
    for place in range(0, whole, 4):
        mixed = int.from_bytes(key[place : place + 4], "little") * _MULTIPLIER & _BITS
        mixed = (mixed ^ mixed >> _SHIFT) * _MULTIPLIER & _BITS
        found = (found * _MULTIPLIER & _BITS) ^ mixed
    if rest := key[whole:]:
        found = (found ^ int.from_bytes(rest, "little")) * _MULTIPLIER & _BITS
    found = (found ^ found >> 13) * _MULTIPLIER & _BITS
    return found ^ found >> 15


def partition_of(key: bytes, partitions: int) -> int:
    """The partition of a record with this key, out of this many."""
    return (murmur2(key) & _POSITIVE) % partitions
