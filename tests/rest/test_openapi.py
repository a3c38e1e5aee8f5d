"""No request that the OpenAPI document allows, or forbids, makes the worker fail."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable

from tests.conftest import MakeTopic, Produce
from tests.engine.conftest import Configure
from tests.engine.harness import records
from tests.patience import PATIENCE
from tests.rest.conftest import Worker

schemathesis = pytest.importorskip("schemathesis")
pytestmark = [pytest.mark.integration, pytest.mark.long]

_EXAMPLES = 10


@pytest.fixture
def levels() -> Iterator[None]:
    """Puts back the levels of all loggers, which requests change."""
    known = [logging.root, *(logging.getLogger(name) for name in logging.root.manager.loggerDict)]
    before = {logger: logger.level for logger in known}
    yield
    for logger, level in before.items():
        logger.setLevel(level)


def test_no_request_makes_the_worker_fail(
    levels: None, worker: Worker, topic: MakeTopic, produce: Produce, configure: Configure
) -> None:
    """Half of the requests about a connector are about one that runs."""
    source = topic()
    produce(source, records(5))
    api = worker()
    config = {**configure(source), "name": "fuzzed"}
    assert api.put("/connectors/fuzzed/config", json=config).status_code == 201
    url = str(api.base_url).rstrip("/")
    document = schemathesis.openapi.from_url(f"{url}/openapi.json")
    operations = [found.ok() for found in document.get_all_operations()]
    assert len(operations) > 30
    sent: Counter[int] = Counter()
    modes = schemathesis.GenerationMode
    for operation in operations:
        requests_of(operation, modes.POSITIVE, sent)()
        with suppress(schemathesis.errors.SchemathesisError, Unsatisfiable):  # nothing can be wrong
            requests_of(operation, modes.NEGATIVE, sent)()
    assert sum(sent.values()) > _EXAMPLES * len(operations) / 2
    assert len(sent) > 3  # codes


def requests_of(operation: Any, mode: Any, sent: Counter[int]) -> Callable[[], None]:
    """Sends requests that fit the operation's description, and some that do not."""

    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(
        max_examples=_EXAMPLES,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    def send(case: Any) -> None:
        if "name" in case.path_parameters and len(str(case.path_parameters["name"])) % 2:
            case.path_parameters["name"] = "fuzzed"
        answer = case.call(timeout=PATIENCE)
        sent[answer.status_code] += 1
        assert answer.status_code < 500, (case.as_curl_command(), answer.text)

    return send
