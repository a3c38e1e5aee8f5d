"""What a URL says to the client of MariaDB and MySQL."""

from __future__ import annotations

from typing import Any

import pytest

from semel.config import read
from semel.errors import ConfigError
from semel.sinks.sql.mysql_config import MysqlConfig, connect_arguments


def arguments(parameters: str) -> dict[str, Any]:
    config = MysqlConfig(connection_url=f"jdbc:mysql://h/d?{parameters}")
    return connect_arguments(config)[1]


@pytest.mark.parametrize(
    ("parameters", "verified"),
    [
        ("sslMode=REQUIRED", (False, False)),
        ("sslMode=trust", (False, False)),
        ("sslMode=VERIFY_CA", (True, False)),
        ("sslMode=verify-full", (True, True)),
        ("sslMode=VERIFY_IDENTITY", (True, True)),
        ("useSSL=true", (True, True)),
        ("requireSSL=true", (True, True)),
    ],
)
def test_tls_is_what_the_url_asks_for(parameters: str, verified: tuple[bool, bool]) -> None:
    found = arguments(f"{parameters}&serverSslCert=/ca.pem")
    assert found["ssl"] == {"ca": "/ca.pem"}
    assert (found["ssl_verify_cert"], found["ssl_verify_identity"]) == verified


def test_confluents_driver_parameters_are_those_of_the_url() -> None:
    keys = {"connection.sslMode": "VERIFY_CA", "connection.serverSslCert": "/ca.pem"}
    for url, verified in (("jdbc:mysql://h/d", True), ("jdbc:mysql://h/d?sslMode=trust", False)):
        found = connect_arguments(read(MysqlConfig, {"connection.url": url, **keys}))[1]
        assert found["ssl"] == {"ca": "/ca.pem"}
        assert found["ssl_verify_cert"] is verified


@pytest.mark.parametrize("parameters", ["", "sslMode=disable", "sslMode=DISABLED", "useSSL=false"])
def test_no_tls_where_it_is_not_asked_for(parameters: str) -> None:
    assert "ssl" not in arguments(parameters)


def test_a_mode_of_tls_that_is_misspelt_is_not_taken_for_a_weaker_one() -> None:
    with pytest.raises(ConfigError, match=r"sslMode=verify-ful must be one of disable, .*verify-f"):
        arguments("sslMode=verify_ful")
