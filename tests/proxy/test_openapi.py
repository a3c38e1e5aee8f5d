"""No request makes the proxy fail, whether its OpenAPI document allows it or not."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable

from semel.config import read
from semel.config.proxy import ProxyConfig
from semel.proxy.app import Proxy, application
from semel.proxy.formats import Formats
from semel.proxy.kafka import Kafka as Clients
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


CONFLUENTS = """\
GET /clusters
GET /clusters/{}
GET POST DELETE /clusters/{}/acls
POST /clusters/{}/acls:batch
GET /clusters/{}/broker-configs
POST /clusters/{}/broker-configs:alter
GET PUT DELETE /clusters/{}/broker-configs/{}
GET /clusters/{}/brokers
GET /clusters/{}/brokers/{}
GET /clusters/{}/brokers/-/configs
GET /clusters/{}/brokers/{}/configs
POST /clusters/{}/brokers/{}/configs:alter
GET PUT DELETE /clusters/{}/brokers/{}/configs/{}
GET /clusters/{}/brokers/{}/partition-replicas
GET /clusters/{}/consumer-groups
GET /clusters/{}/consumer-groups/{}
GET /clusters/{}/consumer-groups/{}/consumers
GET /clusters/{}/consumer-groups/{}/consumers/{}
GET /clusters/{}/consumer-groups/{}/consumers/{}/assignments
GET /clusters/{}/consumer-groups/{}/consumers/{}/assignments/{}/partitions/{}
GET /clusters/{}/consumer-groups/{}/lag-summary
GET /clusters/{}/consumer-groups/{}/lags
GET /clusters/{}/consumer-groups/{}/lags/{}/partitions/{}
GET POST /clusters/{}/topics
GET PATCH DELETE /clusters/{}/topics/{}
GET /clusters/{}/topics/-/configs
GET /clusters/{}/topics/{}/configs
POST /clusters/{}/topics/{}/configs:alter
GET PUT DELETE /clusters/{}/topics/{}/configs/{}
GET /clusters/{}/topics/{}/partitions
GET /clusters/{}/topics/{}/partitions/{}
GET /clusters/{}/topics/{}/partitions/{}/offset
GET /clusters/{}/topics/{}/partitions/{}/replicas
GET /clusters/{}/topics/{}/partitions/{}/replicas/{}
POST /clusters/{}/topics/{}/records
POST /clusters/{}/topics/{}/records:batch
"""
"""All routes of the description of v3, but for those of reassignments."""


def test_all_routes_of_v3_but_reassignments_are_there() -> None:
    config = read(ProxyConfig, {})
    paths = application(Proxy(Clients(config), Formats(config))).openapi()["paths"]
    here = {
        (method.upper(), re.sub(r"\{\w+\}", "{}", path))
        for path, methods in paths.items()
        for method in methods
    }
    for line in CONFLUENTS.splitlines():
        *methods, path = line.split()
        for method in methods:
            assert (method, f"/v3{path}") in here
