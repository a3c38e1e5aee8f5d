"""``semel audit --follow``."""

from __future__ import annotations

import json
import signal
import threading
from dataclasses import asdict
from datetime import datetime
from pathlib import Path

from rich.markup import escape

from semel.audit.follow import Followed, Judged, follow
from semel.audit.follow.intervals import spelled
from semel.cli.connector import setting
from semel.cli.console import console
from semel.core.redact import redacted
from semel.driver.planning import Plan


def follow_(
    planned: Plan, *, values: bool, interval: float, state: Path | None, as_json: bool
) -> tuple[bool, bool]:
    """Follow a connector until a signal arrives, and print the findings. Returns whether the
    guarantee is broken, and whether everything was judged."""
    stop = threading.Event()
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.signal(number, setting(stop)) for number in numbers]
    try:
        ended = follow(
            planned,
            values=values,
            path=state,
            interval=interval,
            stop=stop,
            tell=lambda line: _say(line, to_stderr=as_json),
            judged=_print if as_json else lambda _judged: None,
        )
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
    if as_json:
        print(json.dumps({**asdict(ended), "complete": ended.complete}), flush=True)
    else:
        _sum_up(ended)
    return ended.broken, ended.complete


def _say(line: str, *, to_stderr: bool) -> None:
    at = datetime.now().astimezone().strftime("%H:%M:%S")
    out = console(stderr=to_stderr)
    out.print(escape(f"{at} {redacted(line)}"), soft_wrap=True)


def _print(judged: Judged) -> None:
    facts = asdict(judged)
    for name in ("lost_offsets", "duplicated_offsets"):
        facts[name] = spelled(facts[name], most=100)
    print(json.dumps(facts), flush=True)


def _sum_up(ended: Followed) -> None:
    out = console()
    how = "record by record" if ended.exact else "by counts"
    out.print(
        f"{ended.records:,} records judged {how}: {ended.lost:,} lost, {ended.duplicated:,} "
        f"duplicated{f', {ended.changed:,} changed' if ended.changed else ''} ({ended.delivery})"
    )
    unjudged = list(ended.not_judged)
    if ended.unknown:
        unjudged.append(f"{ended.unknown:,} records or rows")
    if ended.expired:
        unjudged.append(f"rows of {ended.expired:,} offsets that Kafka no longer has")
    for line in unjudged:
        out.print(f"[yellow]not judged:[/] {escape(line)}", soft_wrap=True)
