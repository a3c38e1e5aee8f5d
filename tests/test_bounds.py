"""No test waits without a bound of its own or for a fixed time, and semel waits for no answer of
Kafka without a bound."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import semel
import semel_lab

ROOT = Path(__file__).parents[1]
FILES = sorted(f for at in ("tests", "lab/tests") for f in (ROOT / at).rglob("*.py"))
PROGRAMS = {"run", "call", "check_call", "check_output"}


WAITS = re.compile(
    r"\.join\((\w+=|\))|\.communicate\(|\bsubprocess\.|\bsleep\(|\.wait\(|\bmonotonic\(\)|\.result\("
)


@functools.cache
def parsed(file: Path) -> ast.Module:
    """A file, or nothing of one without any word of these tests: parsing takes long."""
    text = file.read_text()
    return ast.parse(text if WAITS.search(text) else "")


def calls(file: Path) -> Iterator[tuple[ast.Call, str, ast.expr]]:
    """Calls of methods and of modules' functions: with their names, and what they are called on."""
    for node in ast.walk(parsed(file)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            yield node, node.func.attr, node.func.value


def unbounded(file: Path) -> Iterator[str]:
    for node, name, of in calls(file):
        waits = name in ("join", "communicate") and not node.args  # of a thread or a process
        waits |= name in PROGRAMS and isinstance(of, ast.Name) and of.id == "subprocess"
        if waits and not any(k.arg in ("timeout", None) for k in node.keywords):
            yield f"{file.relative_to(ROOT)}:{node.lineno}"


def test_every_wait_for_a_thread_or_a_program_has_a_timeout() -> None:
    assert [place for file in FILES for place in unbounded(file)] == []


LONGEST_PAUSE = 0.1
"""Seconds between two looks of a loop that waits for something."""

TIME_IS_THE_SUBJECT = {
    "_slowly": "a transform that takes its time",
    "bulk": "a request on its way, which must not be left there",
    "outlast_retries": "an outage has a length",
    "stalled": "a process that stalls",
    "test_a_frozen_task_that_spark_has_replaced_does_not_fence_its_successor": (
        "a session ends by the clock of a process that is frozen"
    ),
    "rotated": "rotated files are told apart by the time at which they were last written to",
    "test_a_lake_is_measured_by_the_commits_that_hold_data": "the time between commits is measured",
    "test_a_query_has_the_columns_that_there_are_now": "a source pauses between two polls",
    "test_a_run_that_was_frozen_ends_and_the_one_that_has_replaced_it_continues": (
        "a session ends by the clock of a process that is frozen"
    ),
    "test_a_task_that_slept_for_longer_than_its_session_does_not_displace_its_replacement": (
        "a session ends by the clock of a process that is frozen"
    ),
    "test_records_removed_under_a_running_task_stop_it": (
        "a broker ends a fetch when its time is up, and nobody sees it"
    ),
}
"""The functions of tests that let time pass, and why there is no event to wait for."""


def fixed_waits(file: Path) -> Iterator[str]:
    """The functions that wait for a time and not for an event."""

    def visit(node: ast.AST, function: str, *, looping: bool) -> Iterator[str]:
        if isinstance(node, ast.FunctionDef):
            function, looping = node.name, False
        if isinstance(node, ast.Call) and lets_time_pass(node, looping=looping):
            yield function
        for child in ast.iter_child_nodes(node):
            yield from visit(child, function, looping=looping or isinstance(node, ast.While))

    yield from visit(parsed(file), "", looping=False)


def lets_time_pass(call: ast.Call, *, looping: bool) -> bool:
    match call.func:
        case ast.Name("wait_until"):
            return "time.monotonic()" in ast.unparse(call)  # a clock is no event
        case ast.Attribute(ast.Name("time"), "sleep"):
            return not looping or is_long(call)
        case ast.Attribute(_, "wait"):  # of an event that nobody sets, say
            return is_long(call)
    return False


def is_long(call: ast.Call) -> bool:
    match call.args:
        case [ast.Constant(seconds)]:
            return float(seconds) > LONGEST_PAUSE
    return False


def test_no_test_waits_for_a_fixed_time() -> None:
    found = {place for file in FILES for place in fixed_waits(file)}
    assert found == set(TIME_IS_THE_SUBJECT), (
        "wait for an event with PATIENCE as the bound; where time itself is the subject, say so "
        "in TIME_IS_THE_SUBJECT"
    )


def test_no_answer_of_kafka_is_waited_for_without_a_bound() -> None:
    package, lab = (Path(each.__file__).parent for each in (semel, semel_lab))
    rooms = [*(package / room for room in ("kafka", "sinks/kafka", "worker")), lab / "drill"]
    files = [file for room in rooms for file in room.rglob("*.py")]
    assert files
    bare = [
        f"{file}:{node.lineno}"
        for file in files
        for node, name, _of in calls(file)
        if name == "result" and not node.args and not node.keywords
    ]
    assert bare == []
