"""``semel audit`` and ``semel lag``."""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Annotated, TextIO

import typer
from rich.markup import escape
from rich.table import Table

from semel.audit import AuditReport, SourceAuditReport, audit, audit_source
from semel.audit.follow import FollowReport, IntervalReport, follow
from semel.audit.report import spelled
from semel.cli.application import console
from semel.cli.common import AsJson, Bootstrap, File, setting, with_servers
from semel.cli.ending import clean_up_on_signals
from semel.cli.offsets import holes_table
from semel.core.errors import BROKEN, ConfigError, NotJudged
from semel.core.redact import redacted
from semel.driver.planning import Plan, SourcePlan, plan, plan_any
from semel.kafka.clients import client_config
from semel.kafka.cluster import wait_for_brokers
from semel.kafka.groups import lag

_LINE_EVERY = 10.0
_UPDATE_EVERY = 0.2


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command("audit", epilog="Example: semel audit flights.json")(audit_)
    app.command("lag", epilog="Example: semel lag flights --bootstrap-server localhost:9092")(lag_)


def audit_(
    file: File,
    bootstrap_server: Bootstrap = "",
    as_json: AsJson = False,
    allow_unjudged: Annotated[
        bool, typer.Option(help="Exit with 0 even if something could not be judged.")
    ] = False,
    follow: Annotated[
        bool, typer.Option("--follow", help="Keep running, and judge new commits as they come.")
    ] = False,
    interval: Annotated[
        float, typer.Option(min=0.1, help="With --follow: seconds between two looks at the store.")
    ] = 10.0,
    state: Annotated[
        Path | None,
        typer.Option(help="With --follow: the file that keeps the progress."),
    ] = None,
    values: Annotated[
        bool,
        typer.Option(help="Also compare the values of every row with its record."),
    ] = False,
) -> None:
    """Compare Kafka with the target and report what is lost or duplicated.

    Exits with 1 if the declared guarantee is broken, with 7 if it found nothing wrong but could not
    judge everything, and with 8 if the ledger does not know the connector. It may run while the
    connector does. With --follow it runs until Ctrl-C, SIGTERM or the first finding.
    """
    planned = plan_any(with_servers(file, bootstrap_server))
    if isinstance(planned, SourcePlan):
        _audit_source(planned, follow=follow, values=values, as_json=as_json, allow=allow_unjudged)
        return
    if state is not None and not follow:
        raise ConfigError(f"--state {state} needs --follow: add it, or leave --state out")
    clean_up_on_signals()
    wait_for_brokers(client_config(planned.connector, "admin"))
    if follow:
        broken, complete = follow_(
            planned, values=values, interval=interval, state=state, as_json=as_json
        )
        _exit(broken=broken, complete=complete or allow_unjudged)
        return
    meter = Meter()
    try:
        report = audit(
            None, planned=planned, values=values, progress=meter if values else lambda *_: None
        )
    finally:
        meter.end()
    if as_json:
        facts = {
            **asdict(report),
            "lost": report.lost,
            "duplicated": report.duplicated,
            "changed": report.changed,
            "unknown": report.unknown,
            "ghosts": report.ghosts,
            "kept": report.kept,
            "complete": report.complete,
        }
        print(json.dumps(facts))
    else:
        _print(report, values=values, traces=planned.sink.capabilities.traces)
    _exit(broken=report.broken, complete=report.complete or allow_unjudged)


def _print(report: AuditReport, *, values: bool, traces: bool) -> None:
    out = console()
    out.print(audit_table(report))
    if report.exact:
        how = "record by record, by the provenance columns"
    elif traces:
        how = "by keys or counts (provenance=true makes it exact to the record)"
    else:
        how = "by counts"
    out.print(
        f"{report.records} records: {report.lost} lost, {report.duplicated} duplicated"
        f"{f', {report.changed} changed of {report.compared or 0} compared' if values else ''} "
        f"({report.delivery}; audited {how})"
    )
    for line in changed_rows(report):
        out.print(f"[red]changed:[/] {escape(line)}", soft_wrap=True)
    for line in unplaced(report):
        out.print(f"[red]no column:[/] {escape(line)}", soft_wrap=True)
    for line in unjudged(report):
        out.print(f"[yellow]not judged:[/] {escape(line)}", soft_wrap=True)
    if report.holes:
        out.print(holes_table(report.holes))


def _audit_source(
    planned: SourcePlan, *, follow: bool, values: bool, as_json: bool, allow: bool
) -> None:
    for is_set, option in ((follow, "--follow"), (values, "--values")):
        if is_set:
            raise ConfigError(
                f"{option} is for sink connectors; the audit of a source compares every record"
            )
    wait_for_brokers(client_config(planned.connector, "admin"))
    report = audit_source(planned)
    if as_json:
        facts = {n: getattr(report, n) for n in ("lost", "duplicated", "changed", "disordered")}
        print(json.dumps(asdict(report) | facts))
    else:
        out = console()
        out.print(source_audit_table(report))
        wrong = [n for n in ("changed", "disordered") if getattr(report, n)]
        out.print(
            f"{report.records} records: {report.lost} lost, {report.duplicated} duplicated"
            + "".join(f", {getattr(report, n)} {n}" for n in wrong)
            + (f", {report.skipped} skipped" if report.skipped else "")
            + f" ({report.delivery}; audited record by record)"
        )
        for line in report.findings:
            out.print(f"[red]found:[/] {escape(line)}", soft_wrap=True)
        for line in report.not_judged:
            out.print(f"[yellow]not judged:[/] {escape(line)}", soft_wrap=True)
    _exit(broken=report.broken, complete=not report.not_judged or allow)


def source_audit_table(report: SourceAuditReport) -> Table:
    """The audit's findings per topic, without columns that hold only zeros."""
    table = Table(box=None, header_style="bold")
    optional = ("changed", "disordered", "replaced", "behind")
    shown = [n for n in optional if any(getattr(t, n) for t in report.topics)]
    titles = {"source": "in source", "kafka": "in Kafka"}
    counts = ("source", "kafka", "lost", "duplicated", *shown)
    for title in ("topic", *counts):
        table.add_column(titles.get(title, title), justify="left" if title == "topic" else "right")
    for t in report.topics:
        table.add_row(escape(t.topic), *(f"{getattr(t, n):,}" for n in counts))
    return table


def _exit(*, broken: bool, complete: bool) -> None:
    if broken:
        sys.exit(BROKEN)
    if not complete:
        sys.exit(NotJudged.exit_code)


def changed_rows(report: AuditReport) -> list[str]:
    """The first changed rows, one per line."""
    lines = []
    for row in report.changed_rows:
        columns = f"column{'s' * (len(row.columns) > 1)} {', '.join(row.columns)}"
        where = f"{row.topic}-{row.partition} offset {row.offset}"
        lines.append(f"the row of {where}{f', {columns}' if row.columns else ''}")
    return lines


def unplaced(report: AuditReport) -> list[str]:
    """The values that reached no column, one field per line."""
    return [
        f"{u.values:,} values of field {u.field} of topic {u.topic} reached no column of the "
        "target. fields.unknown=ignore accepts that"
        for u in report.unplaced
    ]


def unjudged(report: AuditReport) -> list[str]:
    """What the audit could not judge, one reason per line."""
    lines = list(report.not_judged)
    if report.unknown:
        lines.append(f"{report.unknown:,} records or rows (column unknown)")
    if report.expired:
        lines.append(
            f"rows of {report.expired:,} offsets that Kafka no longer has (column expired)"
        )
    return lines


def audit_table(report: AuditReport) -> Table:
    """The audit's findings per partition, without columns that hold only zeros."""
    table = Table(box=None, header_style="bold")
    optional = (
        "replaced",
        "filtered",
        "failed",
        "retention",
        "behind",
        "unknown",
        "ghosts",
        "expired",
        "changed",
        "skipped",
    )
    shown = [n for n in optional if any(getattr(p, n) for p in report.partitions)]
    titles = {"kafka": "in Kafka", "rows": "rows", "retention": "lost by retention"}
    for name in ("topic", "partition", "kafka", "rows", "lost", "duplicated", *shown):
        table.add_column(titles.get(name, name), justify="left" if name == "topic" else "right")
    for p in report.partitions:
        verdict = [f"[red]{n:,}[/]" if n else "0" for n in (p.lost, p.duplicated)]
        extra = [f"{getattr(p, n):,}" for n in shown]
        table.add_row(p.topic, str(p.partition), f"{p.kafka:,}", f"{p.rows:,}", *verdict, *extra)
    return table


def lag_(
    name: Annotated[
        str,
        typer.Argument(
            help="A connector's name or configuration file. By default, all connectors."
        ),
    ] = "",
    bootstrap_server: Bootstrap = "",
    as_json: AsJson = False,
) -> None:
    """Show how far connectors are behind, by the positions that they publish to their groups."""
    if name and Path(name).is_file():
        planned = plan(with_servers(Path(name), bootstrap_server))
        client = client_config(planned.connector, "admin")
        name = planned.connector.name
    elif bootstrap_server:
        client = {"bootstrap.servers": bootstrap_server}
    else:
        raise ConfigError(
            "give a configuration file, or name the brokers: --bootstrap-server host:port, or "
            "SEMEL_BOOTSTRAP_SERVERS"
        )
    positions = lag(client, name or None)
    if as_json:
        print(json.dumps([{**asdict(p), "lag": p.lag} for p in positions]))
        return
    table = Table(box=None, header_style="bold")
    for title in ("connector", "topic", "partition", "position", "end", "lag"):
        is_text = title in ("connector", "topic")
        table.add_column(title, justify="left" if is_text else "right")
    for p in positions:
        numbers = (str(p.partition), f"{p.position:,}", f"{p.end:,}", f"{p.lag:,}")
        table.add_row(p.connector, p.topic, *numbers)
    console().print(table if positions else "no connector has published positions in this cluster")


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
            judged=_print_judged if as_json else lambda _judged: None,
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


def _print_judged(judged: IntervalReport) -> None:
    facts = asdict(judged)
    for name in ("lost_offsets", "duplicated_offsets"):
        facts[name] = spelled(facts[name], most=100)
    print(json.dumps(facts), flush=True)


def _sum_up(ended: FollowReport) -> None:
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


class Meter:
    """Overwrites one line on a terminal; elsewhere prints a new line every ten seconds."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._over = self._stream.isatty()
        self._every = _UPDATE_EVERY if self._over else _LINE_EVERY
        self._said = time.monotonic()
        self._shown = 0

    def __call__(self, what: str, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self._said < self._every:
            return
        self._said = now
        of = f" of {max(done, total):,}" if total else ""
        line = f"audited {done:,}{of} {what}"
        if self._over:
            self._stream.write(f"\r{line.ljust(self._shown)}")
            self._shown = len(line)
        else:
            self._stream.write(f"{line}\n")
        self._stream.flush()

    def end(self) -> None:
        """Leave a clean line."""
        if self._shown:
            self._stream.write(f"\r{' ' * self._shown}\r")
            self._stream.flush()
            self._shown = 0
