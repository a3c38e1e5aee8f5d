"""A server maps the classes that an earlier one has loaded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from semel import archives
from semel.lab.embedded import Kafka, archived, training
from semel.lab.embedded.registry import SchemaRegistry

pytestmark = [pytest.mark.integration, pytest.mark.long]

SERVERS: dict[str, Callable[[Path], Kafka | SchemaRegistry]] = {
    "kafka": lambda directory: Kafka(directory, heap="256m", short_lived=True),
    "registry": SchemaRegistry,
}


@pytest.mark.parametrize("name", SERVERS)
def test_the_archive_of_a_server_is_created_and_used(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(archives.SWITCH, raising=False)
    monkeypatch.setattr(archives, "cache_directory", lambda: tmp_path / "cache")
    monkeypatch.setattr(archived, "in_background", lambda _module, name: training.make(name))
    with SERVERS[name](tmp_path / name) as server:
        assert server.pid is not None
        (archive,) = (tmp_path / "cache" / "archives").glob(f"{name}-*.jsa")
        mapped = {m.path for m in psutil.Process(server.pid).memory_maps()}
        assert str(archive) in mapped
