"""Random numbers from a seed, a place in the schema and the number of a record."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

_STEP = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_FRACTION = 2.0**-53


def salt(*parts: object) -> int:
    """A number of 64 bits for a place."""
    text = "\0".join(map(str, parts))
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")


@dataclass(frozen=True, slots=True)
class Block:
    """Records by their numbers, and the seed of their task."""

    numbers: np.ndarray
    seed: int

    def __len__(self) -> int:
        return len(self.numbers)

    def integers(self, place: int) -> np.ndarray:
        """64 random bits for each record, by SplitMix64."""
        with np.errstate(over="ignore"):
            mixed = (self.numbers + np.uint64(1)) * _STEP + np.uint64(self.seed ^ place)
            for shift, factor in ((30, _FIRST), (27, _SECOND)):
                mixed = (mixed ^ (mixed >> np.uint64(shift))) * factor
            return mixed ^ (mixed >> np.uint64(31))

    def below(self, place: int, bound: int) -> np.ndarray:
        """A random whole number from 0 to less than a bound."""
        if bound == 1 << 64:
            return self.integers(place)
        return self.integers(place) % np.uint64(bound)

    def fractions(self, place: int) -> np.ndarray:
        """A random number from 0 to less than 1."""
        return (self.integers(place) >> np.uint64(11)) * _FRACTION
