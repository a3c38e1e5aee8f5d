"""A server maps the classes that an earlier one has loaded."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from semel.core.errors import ServiceError
from semel.spark import archives
from semel.spark.archives import Archive
from semel_lab.embedded import Kafka, training
from semel_lab.embedded import server as servers
from semel_lab.embedded.registry import SchemaRegistry
from semel_lab.embedded.server import Server
from tests.patience import PATIENCE

pytestmark = pytest.mark.integration

SERVERS: dict[str, Callable[[Path], Kafka | SchemaRegistry]] = {
    "kafka": lambda directory: Kafka(directory, heap="256m", short_lived=True),
    "registry": SchemaRegistry,
}


@pytest.mark.long
@pytest.mark.parametrize("name", SERVERS)
def test_the_archive_of_a_server_is_created_and_used(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(archives.SWITCH, raising=False)
    monkeypatch.setattr(archives, "cache_directory", lambda: tmp_path / "cache")
    monkeypatch.setattr(servers, "in_background", lambda _module, name: training.make(name))
    with SERVERS[name](tmp_path / name) as server:
        assert server.pid is not None
        (archive,) = (tmp_path / "cache" / "archives").glob(f"{name}-*.jsa")
        mapped = {m.path for m in psutil.Process(server.pid).memory_maps()}
        assert str(archive) in mapped

        server.stop()
        before = archive.stat()
        with archive.open("r+b") as damaged:
            damaged.seek(before.st_size // 20)
            damaged.write(os.urandom(before.st_size // 3))
        os.utime(archive, ns=(before.st_atime_ns, before.st_mtime_ns))  # so it is not verified
        monkeypatch.setattr(servers, "in_background", lambda *_: None)
        server.start()
        assert server.pid is not None
        assert not archive.exists()


class _Picky(Server):
    """Ends at once if its JVM was told of an archive, or if nothing helps."""

    name, log_name, port_names = "the picky server", "log", ("tcp",)
    start_timeout = stop_timeout = PATIENCE
    starts_without = True

    def _launch(self) -> None:
        mapped = self._mapped("picky", Path("java"), ())
        command = (
            f"touch {self._sign}; exec sleep 1000"
            if self.starts_without and not mapped
            else "exit 1"
        )
        self._process.launch(["/bin/sh", "-c", command], detached=False)

    def _answers(self) -> bool:
        return self._sign.exists()

    @property
    def _sign(self) -> Path:
        return self.directory / "ready"


@pytest.mark.parametrize("starts", [True, False])
def test_a_damaged_archive_of_a_server_is_removed_and_the_server_starts_without_it(
    starts: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(archives.SWITCH, raising=False)
    archive = Archive("picky", "key", tmp_path)
    archive.make(lambda part: {"bytes": part.write_bytes(b"nonsense")})
    monkeypatch.setattr(servers, "archive", lambda *_: archive)
    server = _Picky(tmp_path / "server")
    server.starts_without = starts
    if starts:
        with server:
            assert server.pid is not None
    else:
        with pytest.raises(ServiceError, match="the picky server did not start"):
            server.start()
    assert archive.file.exists() != starts, "it may not be the archive's fault"
