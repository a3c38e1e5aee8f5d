"""Times without a zone, as times of a zone, and the other way round."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.compute as pc

_EPOCH = datetime(1970, 1, 1)
_LATE = 2_145_916_800
"""The year 2038, in seconds since 1970: from then on, Arrow changes no clocks to summer time."""
_CYCLE = 146_097 * 86_400
"""The seconds of 400 years, after which the calendar repeats; Python's ends with the year 9999."""
_QUARTER = 900
"""Seconds: clocks are changed at whole quarters of an hour."""
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def in_utc(
    local: pa.Array, timezone: str, *, second: bool = False, exact: bool = False
) -> pa.Array:
    """Times that the clocks of a zone show, as times in UTC.

    Args:
        second: of a time that clocks show twice, it is the second one.
        exact: a time that clocks skip is refused. Otherwise, as in Java, it is as much later as
            clocks are put forward.

    Raises:
        ArrowInvalid: no clock shows a time.
    """
    unit = local.type.unit
    utc = pa.timestamp(unit, "UTC")
    if timezone.upper() in ("UTC", "GMT", "Z"):
        return local.view(utc)
    counts, per_second = local.view(pa.int64()), _PER_SECOND[unit]
    is_late = pc.fill_null(pc.greater_equal(counts, _LATE * per_second), False)
    zoned = pc.assume_timezone(
        pc.if_else(is_late, None, local),
        timezone,
        ambiguous="latest" if second else "earliest",
        nonexistent="raise" if exact else "earliest",
    )
    ahead = pc.subtract(pc.local_timestamp(zoned).view(pa.int64()), zoned.view(pa.int64()))
    if pc.any(is_late).as_py():
        late = pc.divide(counts.filter(is_late), per_second).dictionary_encode()
        zone = ZoneInfo(timezone)
        distinct = [_ahead(s, zone, second, exact) for s in late.dictionary.to_pylist()]
        seconds = pa.array(distinct, pa.int64()).take(late.indices)
        ahead = pc.replace_with_mask(ahead, is_late, pc.multiply(seconds, per_second))
    return pc.subtract(counts, ahead).view(utc)


def _ahead(seconds: int, zone: ZoneInfo, second: bool, exact: bool) -> int:
    """By how many seconds a time of a zone is ahead of UTC."""
    within = _LATE + (seconds - _LATE) % _CYCLE
    shown = (_EPOCH + timedelta(seconds=within)).replace(tzinfo=zone)
    is_skipped = shown.astimezone(UTC).astimezone(zone).replace(tzinfo=None) != shown.replace(
        tzinfo=None
    )
    if is_skipped and exact:
        raise pa.ArrowInvalid(f"Timestamp doesn't exist in timezone '{zone.key}': {shown}")
    if not is_skipped:
        shown = shown.replace(fold=int(second))
    return int((shown.utcoffset() or timedelta()).total_seconds())


def shown(utc: pa.Array, zone: ZoneInfo) -> pa.Array:
    """What the clocks of a zone show at times in UTC."""
    unit = utc.type.unit
    local = pc.local_timestamp(utc.cast(pa.timestamp(unit, zone.key)))
    counts, per_second = utc.view(pa.int64()), _PER_SECOND[unit]
    is_late = pc.fill_null(pc.greater_equal(counts, _LATE * per_second), False)
    if not pc.any(is_late).as_py():
        return local
    late = counts.filter(is_late)
    quarters = pc.divide(late, _QUARTER * per_second).dictionary_encode()
    starts = [_LATE + (q * _QUARTER - _LATE) % _CYCLE for q in quarters.dictionary.to_pylist()]
    offsets = [datetime.fromtimestamp(s, zone).utcoffset() or timedelta() for s in starts]
    ahead = pa.array([round(o.total_seconds()) * per_second for o in offsets], pa.int64())
    moved = pc.add(late, ahead.take(quarters.indices)).view(local.type)
    return pc.replace_with_mask(local, is_late, moved)
