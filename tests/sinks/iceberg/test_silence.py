"""A REST catalog that takes connections but does not answer."""

from __future__ import annotations

import socket

import pytest

from semel.core.errors import Unavailable
from semel.sinks.iceberg.catalog import connect


def test_a_silent_catalog_is_unavailable_and_not_waited_for_without_end() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        uri = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(Unavailable, match="timed out"):
            connect("silent", {"type": "rest", "uri": uri}, timeout=0.2)
