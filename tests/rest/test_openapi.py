"""No request makes the worker fail, whether the OpenAPI document allows it or not, and however
hostile its body is."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable

from tests.conftest import MakeTopic
from tests.engine.conftest import Configure
from tests.engine.harness import records
from tests.patience import PATIENCE
from tests.rest.conftest import Worker
from tests.rest.test_attacks import Victim, victim  # noqa: F401

schemathesis = pytest.importorskip("schemathesis")

_EXAMPLES = 10
_CLASS = "postgresql"
_HOSTILE = [
    "\ud800",
    "\udfff\ud800",
    "\0",
    "\x1b[2J",
    "${file:/etc/passwd:root}",
    10**400,
    1e308,
    -(2**63),
]
_KEYS = [
    "name",
    "config",
    "topics",
    "connector.class",
    "tasks.max",
    "transforms",
    "offsets",
    "level",
]
_LEAVES = st.one_of(
    st.sampled_from(_HOSTILE),
    st.text(st.characters(), max_size=20),
    st.text(st.characters(categories=["Cs", "Cc"]), min_size=1, max_size=3),
    st.integers(),
    st.floats(),
    st.booleans(),
    st.none(),
)
_BODIES = st.recursive(
    st.dictionaries(st.sampled_from(_KEYS) | st.text(max_size=5), _LEAVES, max_size=6),
    lambda inner: st.dictionaries(st.sampled_from(_KEYS), inner | st.lists(inner, max_size=3)),
    max_leaves=8,
)
_SOURCE = {"connector.class": "FileStreamSource", "topic": "t", "file": "/no/such/file"}
_OF_KAFKA = r"(offsets|lag|ledger|audit|topics|reset)$"
_KEPT = "fuzzed"
_DEEP = [b"[" * 60_000, b'{"config":' * 20_000, b'{"name":' + b"9" * 5000 + b"}"]


@pytest.fixture
def levels() -> Iterator[None]:
    """Puts back the levels of all loggers, which requests change."""
    known = [logging.root, *(logging.getLogger(name) for name in logging.root.manager.loggerDict)]
    before = {logger: logger.level for logger in known}
    yield
    for logger, level in before.items():
        logger.setLevel(level)


@pytest.mark.integration
@pytest.mark.long
def test_no_request_makes_the_worker_fail(
    levels: None, worker: Worker, topic: MakeTopic, configure: Configure
) -> None:
    """Half of the requests about a connector are about one that runs."""
    source = topic(values=records(5))
    api = worker()
    config = {**configure(source), "name": _KEPT}
    assert api.put(f"/connectors/{_KEPT}/config", json=config).status_code == 201
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
            case.path_parameters["name"] = _KEPT
        answer = case.call(timeout=PATIENCE)
        sent[answer.status_code] += 1
        assert answer.status_code < 500, (case.as_curl_command(), answer.text)

    return send


@pytest.mark.long
@pytest.mark.parametrize("token", ["read", "write"])
def test_no_chain_of_hostile_requests_makes_the_worker_fail(
    victim: Victim,  # noqa: F811
    token: str,
) -> None:
    """Without Kafka, so requests that need it are left out."""
    document = schemathesis.openapi.from_dict(victim.get("/openapi.json", token).json())
    chained(document.exclude(path_regex=_OF_KAFKA), victim.url, token, 100)
    assert victim.is_well()
    for body in _DEEP:
        path = f"/connector-plugins/{_CLASS}/config/validate"
        assert 400 <= victim.send(path, body, token).status_code < 500


@pytest.mark.integration
@pytest.mark.long
def test_no_chain_of_hostile_requests_makes_a_worker_with_connectors_fail(
    levels: None, worker: Worker, topic: MakeTopic, configure: Configure
) -> None:
    api = worker()
    url = str(api.base_url).rstrip("/")
    config = {**configure(topic()), "name": _KEPT}
    assert api.put(f"/connectors/{_KEPT}/config", json=config).status_code == 201
    chained(schemathesis.openapi.from_url(f"{url}/openapi.json"), url, "", 30, config)
    for method, path in (
        ("POST", "/connectors"),
        ("PUT", f"/connectors/{_KEPT}/config"),
        ("PATCH", f"/connectors/{_KEPT}/config"),
        ("PATCH", f"/connectors/{_KEPT}/offsets"),
        ("PUT", "/admin/loggers/semel.fuzzed"),
    ):
        for body in _DEEP:
            content = {"Content-Type": "application/json"}
            code = api.request(method, path, content=body, headers=content).status_code
            assert 400 <= code < 500
    assert api.get("/health").status_code == 200


def chained(
    document: Any, url: str, token: str, examples: int, config: dict[str, str] | None = None
) -> None:
    """Send requests that follow from the answers to others. Their bodies are what the document
    describes, with hostile keys and values in it, or a connector's configuration with those."""
    sent: Counter[int] = Counter()
    headers = {"Authorization": f"Bearer {token}"} if token else {}

    @document.hook
    def flatmap_body(_context: Any, body: Any) -> Any:
        given = body if isinstance(body, dict) else {}
        if "config" in given:
            given = {"name": "chained", "config": dict(config or _SOURCE)}
        within = given.get("config") if isinstance(given.get("config"), dict) else given
        return st.one_of(
            st.just(given),
            _BODIES,
            _BODIES.map(lambda more: {**given, "config": {**within, **more}}),
            _BODIES.map(lambda more: {**given, **more}),
        )

    class Chain(document.as_state_machine()):  # type: ignore[misc]
        def setup(self) -> None:
            """Each chain begins with the same connectors, because Hypothesis compares them."""
            with httpx.Client(base_url=url, headers=headers, timeout=PATIENCE) as api:
                for name in api.get("/connectors").json():
                    if name != _KEPT:
                        api.delete(f"/connectors/{quote(name, safe='')}")

        def before_call(self, case: Any) -> None:
            if isinstance(case.body, dict):
                case.body = json.dumps(case.body).encode()  # requests refuses NaN

        def get_call_kwargs(self, case: Any) -> dict[str, Any]:
            return {"base_url": url, "headers": headers, "timeout": PATIENCE}

        def validate_response(self, response: Any, case: Any, **_more: Any) -> None:
            sent[response.status_code] += 1
            assert response.status_code < 500, (case.as_curl_command(), response.text)

    Chain.run(
        settings=settings(
            max_examples=examples,
            stateful_step_count=8,
            phases=[Phase.generate],  # what fails is shown as it was sent
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
    )
    assert sum(sent.values()) > 2 * examples
    assert len(sent) > 2, "some are answered, and others refused"
