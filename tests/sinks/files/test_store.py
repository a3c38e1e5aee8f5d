"""How long the drivers of object stores wait for an answer, and what they leave out."""

from __future__ import annotations

from typing import Any

import pytest

from semel.core.errors import ConfigError, ServiceError
from semel.storage import drivers
from semel.storage.drivers import open_store


@pytest.fixture
def options(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What a driver is given, which need not be installed."""
    monkeypatch.setattr(drivers.fsspec, "get_filesystem_class", lambda _protocol: object)
    monkeypatch.setattr(drivers, "Store", lambda _where, options, _key: options)
    return lambda where, **own: drivers.open_store(where, own, 5.0)


@pytest.mark.parametrize("where", ["abfs://c@a.dfs.core.windows.net/x", "az://c/x"])
def test_azure_waits_no_longer_than_the_store_timeout(options: Any, where: str) -> None:
    assert options(where) == {"connection_timeout": 5, "read_timeout": 5}
    assert options(where, read_timeout=7)["read_timeout"] == 7


@pytest.mark.parametrize("where", ["gs://b/x", "gcs://b/x"])
def test_gcs_bounds_the_wait_for_bytes_but_not_the_whole_request(options: Any, where: str) -> None:
    found = options(where)["requests_timeout"]
    assert (found.sock_connect, found.sock_read, found.total) == (5.0, 5.0, None)
    assert options(where, requests_timeout=7)["requests_timeout"] == 7


@pytest.mark.parametrize("where", ["webhdfs:///x", "webhdfs://nn:port/x", "webhdfs://a:b@nn/x"])
def test_an_error_about_a_url_names_its_key(where: str) -> None:
    with pytest.raises(ConfigError, match=r"^input\.path=webhdfs:|^input\.path=\.\.\.@nn") as error:
        open_store(where, {}, key="input.path")
    assert [p.key for p in error.value.problems] == ["input.path"]


def test_a_folder_that_cannot_be_listed_is_not_mistaken_for_an_empty_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """fsspec's ``find`` leaves out what it may not list, or cannot at that moment."""
    store = open_store("memory://listed", {})
    store.filesystem.pipe("/listed/a/b/file", b"12")
    assert store.below("a") == {"a/b/file": 2}
    listed = store.filesystem.ls

    def denied(path: str, **options: bool) -> object:
        if path.endswith("/b"):
            raise PermissionError(path)
        return listed(path, **options)

    monkeypatch.setattr(store.filesystem, "ls", denied)
    with pytest.raises(ServiceError, match="access is denied"):
        store.below("a")
