"""The embedded MariaDB."""

from __future__ import annotations

from pathlib import Path

import pytest

from semel.core.errors import ServiceError
from semel_lab.embedded import mariadb
from semel_lab.embedded.mariadb import DATABASE, MariaDB


def test_without_it_the_user_is_told_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(mariadb, "_SYSTEM", ())
    assert not mariadb.installed()
    with pytest.raises(ServiceError, match=r"mariadbd.*apt-get install mariadb-server"):
        MariaDB(tmp_path / "server").start()


@pytest.mark.integration
@pytest.mark.skipif(not mariadb.installed(), reason="mariadbd is not installed")
class TestServer:
    @pytest.mark.long
    def test_what_was_committed_survives_a_kill(self, tmp_path: Path) -> None:
        with MariaDB(tmp_path / "server") as server:
            server.execute(
                "CREATE TABLE t (id int) ENGINE=InnoDB",
                "INSERT INTO t VALUES (7)",
                database=DATABASE,
            )
            port = server.port
            server.kill()
            assert server.pid is None
            server.start()
            assert server.port == port
            assert server.execute("SELECT id FROM t", database=DATABASE) == [(7,)]
        with pytest.raises(ServiceError, match=f"MariaDB on port {port}"):
            server.execute("SELECT 1")

    @pytest.mark.long
    def test_a_database_of_any_name_can_be_made_and_dropped(self, tmp_path: Path) -> None:
        with MariaDB(tmp_path / "server") as server:
            url = server.create_database("od`d")
            assert url.endswith("/od`d?user=root")
            server.drop_database("od`d")
            names = [name for (name,) in server.execute("SHOW DATABASES")]
            assert "od`d" not in names
            assert DATABASE in names

    @pytest.mark.long
    def test_a_start_leaves_the_temporary_tables_of_other_servers_alone(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        others = tmp_path / "#sql-temptable-1-1-1.MAI"
        others.touch()
        monkeypatch.setenv("TMPDIR", str(tmp_path))
        with MariaDB(tmp_path / "server"):
            assert others.exists()
