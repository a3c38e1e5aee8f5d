"""Figures as a table on the terminal, in Markdown and in JSON."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from confluent_kafka import libversion
from rich.console import Console
from rich.table import Table

from benchmarks.rig import Rig
from semel_lab.embedded.java import find_java
from semel_lab.jars import DEBEZIUM_VERSION, KAFKA_VERSION


def text(value: Any) -> str:
    return str(value)


def count(value: float) -> str:
    """Three significant digits: more would be noise."""
    if value < 1000:
        return f"{value:.0f}"
    digits = 3 - len(str(int(value)))
    return f"{int(round(value, digits)):,}"


def ratio(value: float) -> str:
    return f"{value:.2f}x"


def seconds(value: float) -> str:
    return f"{value:.1f}"


def span(values: Sequence[float]) -> str:
    """The lowest and the highest."""
    return f"{count(min(values))} to {count(max(values))}"


def milliseconds(value: float) -> str:
    return f"{value:.1f}"


def percent(value: float) -> str:
    return f"{100 * value:+.1f} %"


def megabytes(value: float) -> str:
    return f"{value / 2**20:,.0f}"


@dataclass(frozen=True)
class Column:
    """A column of a table: which key of a row it shows, and how."""

    key: str
    title: str
    show: Callable[[Any], str] = text


@dataclass(frozen=True)
class Figures:
    """What one benchmark found."""

    name: str
    title: str
    columns: Sequence[Column]
    rows: Sequence[dict[str, Any]]
    notes: Sequence[str] = ()
    facts: dict[str, Any] = field(default_factory=dict)

    def print(self, console: Console) -> None:
        """As a table on the terminal."""
        table = Table(title=self.title, title_justify="left")
        for column in self.columns:
            table.add_column(column.title, justify="left" if column.show is text else "right")
        for row in self.rows:
            table.add_row(*(c.show(row[c.key]) for c in self.columns))
        console.print(table)
        for note in self.notes:
            console.print(f"[dim]{note}[/]", highlight=False)
        console.print()

    def markdown(self) -> str:
        """As a Markdown table."""
        lines = [f"**{self.title}**", ""]
        lines.append("| " + " | ".join(c.title for c in self.columns) + " |")
        lines.append(
            "| " + " | ".join("---" if c.show is text else "--:" for c in self.columns) + " |"
        )
        lines += [
            "| " + " | ".join(c.show(row[c.key]) for c in self.columns) + " |" for row in self.rows
        ]
        if self.notes:
            lines += ["", *[f"{note}  " for note in self.notes]]
        return "\n".join(lines) + "\n"

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return {"title": self.title, "rows": list(self.rows), "notes": list(self.notes)} | (
            self.facts
        )


def machine(rig: Rig) -> dict[str, Any]:
    """What the figures were measured on and with."""
    model = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    java = subprocess.run([find_java(), "-version"], capture_output=True, text=True, check=False)
    release = re.search(r'version "([^"]+)"', java.stderr)
    return {
        "cpu": model[1].strip() if model else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory / 2**30),
        "linux": platform.release().split("-")[0],
        "python": platform.python_version(),
        "java": release[1] if release else "",
        "kafka": KAFKA_VERSION,
        "debezium": DEBEZIUM_VERSION,
        "postgresql": str(rig.value("SELECT current_setting('server_version')")).split(
            " ", maxsplit=1
        )[0],
        "librdkafka": libversion()[0],
        **{
            name: version(name)
            for name in ("semel", "pyspark", "pyarrow", "adbc-driver-postgresql")
        },
    }
