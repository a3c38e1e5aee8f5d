"""The embedded search servers: real ones, made of their jars."""

from __future__ import annotations

from pathlib import Path

import pytest

from semel.core.errors import ServiceError
from semel_lab.embedded import java
from semel_lab.embedded.opensearch import OpenSearch
from tests.engine.harness import some


@pytest.mark.integration
@pytest.mark.parametrize(
    ("fixture", "number"),
    some([("opensearch", "2.19."), ("elasticsearch", "7.17.")], {("opensearch", "2.19.")}),
)
def test_it_is_the_server_that_it_says(
    fixture: str, number: str, request: pytest.FixtureRequest
) -> None:
    server: OpenSearch = request.getfixturevalue(fixture)
    assert server.request("GET", "/")["version"]["number"].startswith(number)
    with pytest.raises(ServiceError, match=r"is running in .* already"):
        server.start()
    with pytest.raises(ServiceError, match="404"):
        server.request("GET", "/missing")


def test_a_java_without_a_compiler_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(java, "find_java", lambda: tmp_path / "bin" / "java")
    with pytest.raises(ServiceError, match="needs a JDK"):
        OpenSearch(tmp_path / "server").start()
