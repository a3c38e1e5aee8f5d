"""The delivery matrix of docs/guarantees.md: every sink, every mode, every delivery.

The product says which cells it accepts; tests that kill a process say which of them it keeps. Mark
such a test with the cell it proves, by name or by the parameter that holds the name::

    @pytest.mark.cell(sink="sql_url", mode="direct", delivery="delivery")

A parameter may add a variant after a plus sign (``transactional+upsert``). The test must call
:func:`killed` with the configuration that it ran, so that a mark cannot claim another one.

**A new sink** is entered in ``SINKS``. ``tests/test_matrix.py`` fails until each cell that the sink
accepts has a test, and ``make matrix`` writes the page from a run of all of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from semel import sinks
from semel.core import failpoints
from semel.core.errors import ConfigError
from semel.driver.planning import plan
from semel.sinks import sink_class
from semel.sinks.staging import StagingSink

UPSERT = {"insert.mode": "upsert", "pk.mode": "record_value", "pk.fields": "id"}


@dataclass(frozen=True)
class Entry:
    """A sink as the matrix asks it: ``keys`` it cannot do without, and ``keyed``, which give its
    rows a key."""

    title: str
    keys: Mapping[str, str] = field(default_factory=dict)
    keyed: Mapping[str, str] = field(default_factory=dict)
    by_hand: str = ""
    """What its tests run on, where a server has to be given them; else they are skipped."""


SINKS = {
    "postgresql": Entry("PostgreSQL", {"connection.url": "postgresql://nowhere/db"}, UPSERT),
    "kafka": Entry("Kafka", {"topic.rename.format": "${topic}.copy"}),
    "delta": Entry("Delta Lake", {"delta.table.path": "/nowhere"}, UPSERT),
    "iceberg": Entry(
        "Iceberg",
        {"iceberg.tables": "db.t", "iceberg.catalog.type": "sql", "iceberg.catalog.uri": "sqlite:"},
        {
            "iceberg.tables.upsert-mode-enabled": "true",
            "iceberg.tables.default-id-columns": "id",
        },
    ),
    "files": Entry("Files", {"path": "/nowhere"}),
    "org.apache.kafka.connect.file.FileStreamSinkConnector": Entry(
        "FileStreamSink", {"file": "/nowhere"}
    ),
    "elasticsearch": Entry(
        "Elasticsearch, OpenSearch",
        {"connection.url": "http://nowhere:9200", "key.ignore": "true"},
    ),
    "sqlite": Entry("SQLite", {"connection.url": "jdbc:sqlite:/nowhere"}, UPSERT),
    "duckdb": Entry("DuckDB", {"connection.url": "jdbc:duckdb:/nowhere"}, UPSERT),
    "mysql": Entry("MariaDB, MySQL", {"connection.url": "jdbc:mariadb://nowhere/db"}, UPSERT),
    "sqlserver": Entry(
        "SQL Server",
        {"connection.url": "jdbc:sqlserver://nowhere;databaseName=db;encrypt=false"},
        UPSERT,
        by_hand="By hand, on Babelfish 4.3; skipped by `make test`.",
    ),
}
"""By the first of the names that a sink answers to."""

DELIVERIES = {
    "at-most-once": {"delivery": "at-most-once"},
    "at-least-once": {"delivery": "at-least-once"},
    "transactional": {"delivery": "exactly-once", "delivery.mechanism": "transactional"},
    "idempotent": {"delivery": "exactly-once", "delivery.mechanism": "idempotent"},
}
_COLUMNS = {
    "at-most-once": ("`at-most-once`", "never twice"),
    "at-least-once": ("`at-least-once`", "never lost"),
    "transactional": ("`exactly-once`, transactional", "exactly once"),
    "idempotent": ("`exactly-once`, idempotent", "exactly once"),
}
_BASE = {"name": "matrix", "topics": "t", "bootstrap.servers": "nowhere:9092"}
PAGE = Path(__file__).parents[1] / "docs" / "guarantees.md"
_BEGIN, _END = (
    "<!-- The delivery matrix: written by `make matrix` -->",
    "<!-- End of the delivery matrix -->",
)


class Cell(NamedTuple):
    """One claim: this sink, run in this mode, keeps this delivery."""

    sink: str
    mode: str
    delivery: str


class Proof(NamedTuple):
    """A test function that proves cells."""

    path: str
    name: str


Proofs = Mapping[Cell, Iterable[Proof]]


# What the product says


def registered() -> list[str]:
    """The first name of each sink that semel brings."""
    places = (where.partition(":") for where in sinks._MODULES.values())
    return [getattr(import_module(module), names or "CLASSES")[0] for module, _, names in places]


def sink_name(connector_class: str) -> str:
    """The matrix's name of the sink that answers to another name; a third party's has none."""
    wanted = sink_class(connector_class)
    return next((n for n in SINKS if sink_class(n) is wanted), connector_class)


def modes(sink: str) -> list[str]:
    """A sink's modes: direct or bounded, as its tasks or its driver commit, and micro-batch."""
    return ["bounded" if issubclass(sink_class(sink), StagingSink) else "direct", "micro-batch"]


@cache
def answer(cell: Cell) -> tuple[bool, str]:
    """Whether the product accepts a cell, and what it needs for it or why it does not."""
    entry = SINKS[cell.sink]
    engine = "micro-batch" if cell.mode == "micro-batch" else "direct"
    message = ""
    for keys in (entry.keys, {**entry.keys, **entry.keyed}):
        config = {**_BASE, "connector.class": cell.sink, **keys, **DELIVERIES[cell.delivery]}
        try:
            assert plan(config, engine=engine).engine == cell.mode
        except ConfigError as error:
            message = error.problems[0].message.removeprefix("connector matrix: ")
            continue
        return True, ", ".join(f"`{k}={v}`" for k, v in keys.items() if k not in entry.keys)
    return False, message


def cells() -> list[Cell]:
    return [Cell(s, m, d) for s in SINKS for m in modes(s) for d in DELIVERIES]


# The page


def render(proofs: Proofs) -> str:
    """The table, and what its notes say."""
    titles = [title for title, _ in _COLUMNS.values()]
    lines = [f"| sink | mode | {' | '.join(titles)} |", "|---" * (len(titles) + 2) + "|"]
    notes: dict[str, int] = {}

    def note(text: str) -> str:
        return f"[^{notes.setdefault(text, len(notes) + 1)}]"

    for sink, entry in SINKS.items():
        for mode in modes(sink):
            shown = []
            for delivery, (_, promise) in _COLUMNS.items():
                cell = Cell(sink, mode, delivery)
                accepted, text = answer(cell)
                if not accepted:
                    shown.append(f"refused{note(text)}")
                    continue
                notes_of = [f"With a key, such as {text}."] * bool(text) + [entry.by_hand]
                marks = "".join(note(n) for n in notes_of if n)
                shown.append(_linked(promise, proofs.get(cell, ())) + marks)
            lines.append(f"| {entry.title} | {mode} | {' | '.join(shown)} |")
    lines += ["", *(f"[^{number}]: {text}" for text, number in notes.items())]
    return "\n".join(lines)


def _linked(promise: str, tests: Iterable[Proof]) -> str:
    """A link for each file with tests: the first one's name stands for its neighbours'."""
    first, *others = sorted({test.path for test in tests}) or [""]
    return " ".join([f"[{promise}](../{first})", *(f"[(and)](../{path})" for path in others)])


def page(proofs: Proofs) -> str:
    """docs/guarantees.md with the table that these proofs make."""
    before, begin, rest = PAGE.read_text().partition(_BEGIN)
    _, end, after = rest.partition(_END)
    assert begin and end, f"{PAGE} has no place for the matrix"
    return f"{before}{begin}\n\n{render(proofs)}\n\n{end}{after}"


# Marked tests

_shown: set[Cell] = set()


def killed(config: Mapping[str, Any], points: Path) -> None:
    """State that a run of this configuration was killed at a failpoint of this directory."""
    fired = failpoints.fired(points)
    assert any(f.action.startswith("kill-") for f in fired), fired
    planned = plan(config)
    guarantee = planned.guarantee
    delivery = guarantee.mechanism or guarantee.delivery
    sink = sink_name(config["connector.class"])
    _shown.add(Cell(sink, planned.engine, delivery.value))


def cell_of(item: pytest.Item) -> Cell | None:
    """The cell that a test is marked with."""
    mark = item.get_closest_marker("cell")
    if mark is None:
        return None
    given = getattr(item, "callspec", None)
    parameters = given.params if given else {}
    named = {k: str(parameters.get(v, v)).partition("+")[0] for k, v in mark.kwargs.items()}
    cell = Cell(**named | {"sink": sink_name(named["sink"])})
    assert cell in cells(), (item.nodeid, cell)
    return cell


def proof_of(item: pytest.Item) -> Proof:
    path, _, name = item.nodeid.partition("::")
    return Proof(path, name.partition("[")[0])


# The plugin

COLLECTED = pytest.StashKey[list[pytest.Item]]()
"""The marked tests of the files that were named, before any is left out."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--matrix",
        action="store_true",
        help="run the tests of the delivery matrix alone, and write docs/guarantees.md; with "
        "--collect-only, list them",
    )


def pytest_configure(config: pytest.Config) -> None:
    line = "cell(sink, mode, delivery): proves a cell of the delivery matrix; see tests/matrix.py"
    config.addinivalue_line("markers", line)
    if config.getoption("matrix") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Recorder(), "delivery-matrix")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    config.stash[COLLECTED] = [i for i in items if i.get_closest_marker("cell") is not None]
    if config.getoption("matrix"):
        others = [i for i in items if i.get_closest_marker("cell") is None]
        config.hook.pytest_deselected(items=others)
        items[:] = config.stash[COLLECTED]


def pytest_collection_finish(session: pytest.Session) -> None:
    if session.config.getoption("matrix") and session.config.option.collectonly:
        reporter: Any = session.config.pluginmanager.get_plugin("terminalreporter")
        for item in session.items:
            cell = cell_of(item)
            assert cell is not None
            reporter.write_line(json.dumps([*cell, *proof_of(item)]))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    cell = cell_of(item)
    if cell is not None:
        item.user_properties.append(("cell", [*cell, *proof_of(item)]))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    cell = cell_of(item)
    _shown.clear()
    yield
    if cell is not None and cell not in _shown:
        pytest.fail(f"the test proves {_shown or 'nothing'}, but is marked with {cell}")


class _Recorder:
    """Gathers what became of the marked tests, from all processes of the run."""

    def __init__(self) -> None:
        self.passed: dict[Cell, set[Proof]] = {}
        self.failed: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        found = dict(report.user_properties).get("cell")
        cell = Cell(*found[:3]) if isinstance(found, list) else None
        kept = report.passed and report.when == "call"
        if report.skipped and cell is not None and SINKS[cell.sink].by_hand:
            kept = True  # the page says so
        elif not report.passed:
            self.failed.add(report.nodeid)
        if kept and cell is not None:
            self.passed.setdefault(cell, set()).add(Proof(*found[3:]))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if session.config.option.collectonly:
            return
        self.missing = [c for c in cells() if answer(c)[0] and c not in self.passed]
        if self.failed or self.missing:
            session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED
        else:
            PAGE.write_text(page(self.passed))

    def pytest_terminal_summary(self, terminalreporter: Any, config: pytest.Config) -> None:
        if config.option.collectonly:
            return
        for cell in self.missing:
            terminalreporter.write_line(f"without a test that passed: {cell}")
        word = "not written" if self.failed or self.missing else "written"
        terminalreporter.write_line(f"{PAGE.name}: {word}")
