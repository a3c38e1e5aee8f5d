"""examples/by_hand.py shows the ledger rule with two statements of SQL."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from semel_lab.embedded import Kafka
from tests.processes import run_to_end

EXAMPLE = Path(__file__).parent.parent / "examples/by_hand.py"
pytestmark = pytest.mark.integration


def test_by_hand_applies_recognises_a_replay_and_refuses_a_conflict(
    kafka: Kafka, database: str
) -> None:
    def run() -> list[str]:
        done = run_to_end(
            [sys.executable, str(EXAMPLE)],
            env=os.environ | {"KAFKA": kafka.bootstrap_servers, "POSTGRES": database},
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    assert run() == [
        "applied [0, 10): 10 rows",
        "replay of [0, 10): these rows are already there",
        "conflict: [5, 15) does not start at the position, 10",
    ]
    assert run()[0] == "applied [10, 20): 10 rows"
