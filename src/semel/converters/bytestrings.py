"""Binary arrays from numpy's bytes, and what writers of binary formats share."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semel.core.quoting import in_field, typed


def of_bytes(content: npt.NDArray[np.uint8], sizes: npt.NDArray[np.int64]) -> pa.Array:
    """Values of these sizes from contiguous bytes."""
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(content))]
    return pa.Array.from_buffers(pa.binary(), len(sizes), buffers)


def of_numbers(numbers: npt.NDArray[Any], size: int) -> pa.Array:
    """The bytes of numbers of this size, as they are in memory."""
    content = np.ascontiguousarray(numbers).view(np.uint8)
    return of_bytes(content, np.full(len(numbers), size, np.int64))


def varints(numbers: npt.NDArray[np.uint64]) -> pa.Array:
    """Numbers of variable length: seven bits in each byte, the lowest first."""
    sizes = np.ones(len(numbers), np.int64)
    for shift in range(7, 64, 7):
        longer = numbers >= np.uint64(1 << shift)
        if not longer.any():
            break
        sizes += longer
    width = int(sizes.max(initial=1))
    places = np.arange(width)
    groups = (numbers[:, None] >> (places * 7).astype(np.uint64)).astype(np.uint8)
    more = np.where(places < sizes[:, None] - 1, 0x80, 0)
    content: npt.NDArray[np.uint8] = ((groups & 0x7F) | more).astype(np.uint8)
    return of_bytes(content[places < sizes[:, None]], sizes)


def unscaled(decimals: pa.Array) -> pa.Array:
    """The fewest bytes that hold each decimal's unscaled number, two's complement, big-endian;
    arbitrary ones for null."""
    _, data = decimals.buffers()
    width = decimals.type.byte_width
    first = decimals.offset * width
    content = np.frombuffer(data, np.uint8)[first : first + len(decimals) * width]
    digits = content.reshape(-1, width)[:, ::-1]
    sign: npt.NDArray[np.uint8] = np.where(digits[:, :1] >= 0x80, 0xFF, 0).astype(np.uint8)
    spare = (digits[:, :-1] == sign) & ((digits[:, 1:] ^ sign) < 0x80)
    sizes = width - np.logical_and.accumulate(spare, axis=1).sum(axis=1)
    return of_bytes(digits[np.arange(width) >= (width - sizes)[:, None]], sizes)


def elements(
    content: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]
) -> pa.Array:
    """The bytes between these places, which ascend. An Arrow array needs an offset for each end, so
    the values, and the unwanted bytes between them, become alternating elements of an array that
    shares the bytes; the values are then taken from it."""
    count = len(starts)
    if not count:
        return pa.array([], pa.binary())
    offsets = np.empty(2 * count, np.int32)
    offsets[::2] = starts
    offsets[1::2] = ends
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(content)]
    both = pa.Array.from_buffers(pa.binary(), 2 * count - 1, buffers)
    return both.take(pa.array(np.arange(0, 2 * count, 2)))


class SchemaMismatch(ValueError):
    """Values that do not fit their schema."""


def fitted(values: pa.Array, target: pa.DataType, path: str) -> pa.Array:
    """The values of a field in another type, if it can hold them.

    Raises:
        SchemaMismatch: it does not.
    """
    if values.type == target:
        return values
    try:
        return values.cast(target)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        reason = str(error).splitlines()[0]
        why = f"{typed(values.type)} does not fit {typed(target)}: {reason}"
        raise SchemaMismatch(f"{in_field(path)}{why}") from None
