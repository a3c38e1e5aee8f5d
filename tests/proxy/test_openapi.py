"""No request makes the proxy fail, whether its OpenAPI document allows it or not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable

from semel_lab.embedded import Kafka
from tests.patience import PATIENCE
from tests.proxy.conftest import served
from tests.proxy.test_v2 import Instance
from tests.proxy.test_v3 import Cluster

schemathesis = pytest.importorskip("schemathesis")

_EXAMPLES = 10
_NOT_THERE = 501


@pytest.mark.long
def test_no_request_makes_the_proxy_fail(own_kafka: Callable[[], Kafka]) -> None:
    """Half of the requests are about what is there."""
    kafka = own_kafka()
    kafka.create_topic("fuzzed", 1)
    with served(kafka.bootstrap_servers) as proxy:
        instance = Instance(proxy, "fuzzed", name="fuzzed", format="json")
        instance.post("/assignments", {"partitions": [{"topic": "fuzzed", "partition": 0}]})
        there = {
            "cluster": Cluster(proxy).id,
            **dict.fromkeys(("topic", "group", "instance"), "fuzzed"),
            **{"partition": 0, "broker": 1, "name": "retention.ms"},
        }
        url = str(proxy.base_url).rstrip("/")
        document = schemathesis.openapi.from_url(f"{url}/openapi.json")
        operations = [found.ok() for found in document.get_all_operations()]
        assert len(operations) > 60
        sent: Counter[int] = Counter()
        modes = schemathesis.GenerationMode
        for operation in operations:
            _requests_of(operation, modes.POSITIVE, there, sent)()
            with suppress(schemathesis.errors.SchemathesisError, Unsatisfiable):
                _requests_of(operation, modes.NEGATIVE, there, sent)()
        assert proxy.get("/health").status_code == 200
    assert sum(sent.values()) > _EXAMPLES * len(operations) / 2
    assert len(sent) > 5  # codes


def _requests_of(
    operation: Any, mode: Any, there: dict[str, Any], sent: Counter[int]
) -> Callable[[], None]:
    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(
        max_examples=_EXAMPLES,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    def send(case: Any) -> None:
        if sum(sent.values()) % 2:
            for name in case.path_parameters.keys() & there.keys():
                case.path_parameters[name] = there[name]
        if case.query and case.query.get("follow") is not None:
            case.query["follow"] = "false"
        answer = case.call(timeout=PATIENCE)
        sent[answer.status_code] += 1
        fine = answer.status_code < 500 or answer.status_code == _NOT_THERE
        assert fine, (case.as_curl_command(), answer.text)

    return send
