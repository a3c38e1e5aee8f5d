"""What a URL says to the client of SQL Server."""

from __future__ import annotations

from pathlib import Path

import pytest

from semel.config import read
from semel.core.errors import ConfigError
from semel.databases.sqlserver.url import Address, address
from semel.sinks.sql.config import SqlServerConfig


def said(url: str, **keys: str) -> Address:
    keys = {k.replace("_", "."): v for k, v in keys.items()}
    return address(read(SqlServerConfig, {"connection.url": url, **keys}).login)


def test_names_are_those_of_jdbc_in_any_case() -> None:
    found = said(
        "jdbc:sqlserver://h:1533;DatabaseName=shop; user=u;password={p;w}}d =};encrypt=false"
    )
    assert (found.host, found.port, found.database) == ("h", 1533, "shop")
    assert (found.user, found.password, found.encrypt) == ("u", "p;w}d =", False)
    assert found.where == "SQL Server at h:1533/shop"
    other = said("jdbc:sqlserver://;serverName=h;portNumber=7;database=d;userName=u")
    assert (other.host, other.port, other.database, other.user) == ("h", 7, "d", "u")
    assert said("jdbc:sqlserver://;serverName=::1;;databaseName=d;").host == "::1"
    assert said("jdbc:sqlserver://;databaseName=d;encrypt=false").where.endswith("localhost:1433/d")


def test_without_a_database_it_is_the_logins_own() -> None:
    found = said("jdbc:sqlserver://h:1433;encrypt=false")
    assert (found.database, found.where) == ("", "SQL Server at h:1433")


def test_urls_of_the_jtds_driver_are_understood() -> None:
    found = said("jdbc:jtds:sqlserver://h:1533/shop;user=u;password=p;ssl=require")
    assert (found.host, found.port, found.database) == ("h", 1533, "shop")
    assert (found.user, found.password) == ("u", "p")
    assert (found.encrypt, found.authorities) == (True, None)
    assert not said("jdbc:jtds:sqlserver://h").encrypt


def test_an_instance_is_asked_for_its_port_unless_that_is_given() -> None:
    end = ";databaseName=d;encrypt=false"
    found = said(f"jdbc:sqlserver://h\\one{end}")
    assert (found.host, found.instance, found.where) == ("h", "one", "SQL Server at h\\one/d")
    assert said(f"jdbc:sqlserver://h{end};instanceName=one").instance == "one"
    assert said(f"jdbc:sqlserver://{end};serverName=h\\one").where == found.where
    assert said(f"jdbc:sqlserver://h\\one:7{end}").instance == ""


def test_keys_of_the_connector_go_before_the_url() -> None:
    found = said(
        "jdbc:sqlserver://h;databaseName=d;user=a;password=b;encrypt=false",
        connection_user="c",
        connection_password="d",
    )
    assert (found.user, found.password) == ("c", "d")


def test_the_server_is_verified_unless_the_url_says_otherwise(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("")
    url = "jdbc:sqlserver://h;databaseName=d"
    file = f"serverCertificate={tmp_path / 'ca.pem'}"
    found = said(f"{url};{file};hostNameInCertificate=x")
    assert found.encrypt
    assert found.authorities == str(tmp_path / "ca.pem")
    assert found.certified_name == "x"
    assert said(f"{url};encrypt=true;trustServerCertificate=true").authorities is None
    assert said(url, **{"connection_trustServerCertificate": "true"}).authorities is None
    refused = f"{url};trustServerCertificate=false;{file}"
    keys = {"connection_trustServerCertificate": "true"}
    assert said(refused, **keys).authorities == str(tmp_path / "ca.pem")
    with pytest.raises(ConfigError, match="serverCertificate=/nowhere is not a file"):
        said(f"{url};serverCertificate=/nowhere")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("jdbc:sqlserver://h,1433;databaseName=d;password=secret}", "not of the form"),
        ("jdbc:sqlserver://h:port;databaseName=d;password=secret", "not of the form"),
        ("jdbc:sqlserver:h;password=secret", "not of the form"),
        ("jdbc:sqlserver://h;databaseName=d;password=secret;x", "not of the form"),
        ("jdbc:sqlserver://h;databaseName=d;portNumber=x", "port=x is not a number"),
        ("jdbc:sqlserver://h:99999;databaseName=d", "port=99999 is not a number from 1 to 65535"),
        ("jdbc:sqlserver://h;databaseName=d;encrypt=strict", "encrypt=strict must be true or"),
        ("jdbc:sqlserver://h;databaseName=d;integratedSecurity=true", "integratedsecurity is not"),
        (
            "jdbc:sqlserver://h;databaseName=d;authentication=ActiveDirectoryPassword",
            "authentication is not available: semel logs in by user and password",
        ),
        ("jdbc:sqlserver://h;databaseName=d;trustStore=/x.jks", "a PEM file in serverCertificate"),
    ],
)
def test_what_cannot_be_done_is_reported_without_the_password(url: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        said(url)
    assert "secret" not in str(error.value)
