"""How commands end: exit codes, closed pipes and signals at any moment."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from semel.core import errors
from semel.core.errors import CLOSED, EXIT_CODES, INTERRUPTED, TERMINATED, SemelError
from semel_lab.drill.processes import DrillFailed
from tests.cli.conftest import NOWHERE, Write
from tests.conftest import MakeTopic
from tests.engine.conftest import Configure
from tests.engine.harness import caught_up, records
from tests.patience import PATIENCE

SEMEL = [sys.executable, "-m", "semel"]
OPERATIONS = Path(__file__).parents[2] / "docs" / "operations.md"


def kinds(base: type[SemelError]) -> Iterator[type[SemelError]]:
    yield base
    for kind in base.__subclasses__():
        yield from kinds(kind)


def test_the_documented_exit_codes_are_those_of_the_errors() -> None:
    documented = re.findall(r"^\| (\d+) \| (?!exit)", OPERATIONS.read_text(), re.MULTILINE)
    assert [int(code) for code in documented] == list(EXIT_CODES)
    ours = (kind for kind in kinds(SemelError) if kind.__module__.startswith("semel."))
    assert {kind.exit_code for kind in ours} <= EXIT_CODES.keys()


def test_no_error_shares_a_code_with_one_of_another_meaning() -> None:
    assert errors.BROKEN not in {
        kind.exit_code for kind in kinds(SemelError) if kind.__module__.startswith("semel.")
    }
    of_code: dict[int, set[str]] = {}
    for kind in {k for k in kinds(SemelError) if k.__module__ == errors.__name__} | {DrillFailed}:
        highest = next(k for k in reversed(kind.__mro__) if vars(k).get("exit_code"))
        own = next(k for k in kind.__mro__ if "exit_code" in vars(k))
        of_code.setdefault(kind.exit_code, set()).add(own.__name__)
        assert highest is SemelError
    assert {code: names for code, names in of_code.items() if len(names) > 1} == {
        3: {"ServiceError", "TransientError"}
    }


def closed_at_once(*arguments: object) -> tuple[int, str]:
    """The exit code and the errors of a command whose output nobody reads."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing) as output:
        ended = subprocess.run(
            [*SEMEL, *map(str, arguments)],
            stdout=output,
            stderr=subprocess.PIPE,
            timeout=PATIENCE,
            check=False,
            text=True,
        )
    return ended.returncode, ended.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["describe", "--keys", "postgresql"],
        pytest.param(["describe", "--keys", "postgresql", "--json"], marks=pytest.mark.long),
        pytest.param(["--help"], marks=pytest.mark.long),
        pytest.param(["--version"], marks=pytest.mark.long),
        pytest.param(["run", "--help"], marks=pytest.mark.long),
    ],
)
def test_a_closed_pipe_ends_a_command_quietly(arguments: list[str]) -> None:
    assert closed_at_once(*arguments) == (CLOSED, "")


@pytest.mark.long
@pytest.mark.parametrize("command", ["validate", "describe"])
@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_closed_pipe_ends_a_judgement_quietly(
    command: str, options: list[str], written: Write
) -> None:
    assert closed_at_once(command, written(NOWHERE), *options) == (CLOSED, "")


def test_errors_that_nobody_reads_leave_the_exit_code_alone() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing) as output:
        command = [*SEMEL, "validate", "nothing.json"]
        ended = subprocess.run(command, stdout=output, stderr=output, timeout=PATIENCE, check=False)
    assert ended.returncode == errors.ConfigError.exit_code


@pytest.mark.integration
@pytest.mark.parametrize(
    "arguments",
    [
        ["audit"],
        *(
            pytest.param(arguments, marks=pytest.mark.long)
            for arguments in (["audit", "--json"], ["lag"], ["offsets", "show"])
        ),
    ],
)
def test_a_closed_pipe_is_no_finding_of_an_audit(
    arguments: list[str], topic: MakeTopic, configure: Configure, written: Write
) -> None:
    source = topic(values=records(10))
    config = configure(source)
    caught_up(config)
    assert closed_at_once(*arguments, written(config)) == (CLOSED, "")


def interrupted(arguments: list[str], number: signal.Signals, after: str) -> tuple[int, str]:
    """The exit code and the errors of a command that a signal hits once it has imported a
    module."""
    command = [sys.executable, "-X", "importtime", "-m", "semel", *arguments]
    read, write = os.pipe()
    # The command waits for this test to read: however slow that is, the signal comes in time.
    fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 4096)
    with (
        os.fdopen(read) as output,
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=write,
            start_new_session=True,
        ) as process,
    ):
        os.close(write)
        said = []
        try:
            for line in output:
                if not line.startswith("import time:"):
                    said.append(line)
                elif line.rpartition("|")[2].strip() == after:
                    process.send_signal(number)
            code = process.wait(PATIENCE)
        finally:
            process.kill()
    return code, "".join(said)


MOMENTS = [
    "semel.spark.launch",
    "typer",
    "pyarrow.lib",
    "semel.driver.planning",
    "semel.driver.runtime",
]


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, INTERRUPTED), (signal.SIGTERM, TERMINATED)]
)
def test_a_signal_ends_a_command_that_is_starting_quietly(
    number: signal.Signals, code: int, written: Write
) -> None:
    assert interrupted(["run", str(written(NOWHERE))], number, "typer") == (code, "")


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("command", ["run", "validate", "describe", "audit", "drill"])
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_signal_leaves_no_stack_trace_at_any_moment(
    command: str, moment: str, number: signal.Signals, written: Write
) -> None:
    code, said = interrupted([command, str(written(NOWHERE))], number, moment)
    assert (code, said) in {(128 + number, ""), (0, "")}  # 0: it does not import the module


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("moment", ["typer", "semel_lab.embedded.services"])
def test_a_signal_ends_commands_that_start_services_quietly(
    moment: str, number: signal.Signals, tmp_path: Path
) -> None:
    for arguments in (["services", "up"], ["demo"]):
        code, said = interrupted([*arguments, "--dir", str(tmp_path / "x")], number, moment)
        assert (code, said) == (128 + number, "")
