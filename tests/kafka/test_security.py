"""Kafka's security settings, given in the words of one client and read by the other."""

from __future__ import annotations

from pathlib import Path

import pytest

from semel.core.errors import ConfigError
from semel.driver.planning import plan
from semel.kafka.clients import judged
from semel.kafka.security import java, librdkafka

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"


@pytest.mark.parametrize(
    ("options", "user", "password"),
    [
        ('username="me" password="a;b c"', "me", "a;b c"),
        (r'username="me" password="a\"b\\c"', "me", 'a"b\\c'),
        ("username='me' password='it\\'s'", "me", "it's"),
        ("username=me password=se-cret", "me", "se-cret"),
        ('username = "me"\n  password = "x=y"', "me", "x=y"),
        ('serviceName="password=no" password="yes" username="me"', "me", "yes"),
    ],
)
def test_credentials_are_read_from_a_jaas_configuration(
    options: str, user: str, password: str
) -> None:
    found = librdkafka({"sasl.jaas.config": f"{PLAIN} required {options};"})
    assert found == {"sasl.username": user, "sasl.password": password}


@pytest.mark.parametrize("password", ["plain", 'a"b', "a\\b", "a;b c'd", '\\"'])
def test_a_password_survives_both_translations(password: str) -> None:
    made = java({"sasl.username": "me", "sasl.password": password})
    assert librdkafka(made) == {"sasl.username": "me", "sasl.password": password}


def test_a_jaas_configuration_without_a_password_is_refused_without_showing_it() -> None:
    with pytest.raises(ConfigError, match="names no username and password") as refused:
        librdkafka({"sasl.jaas.config": f'{PLAIN} required token="hidden";'})
    assert "hidden" not in str(refused.value)


def test_librdkafkas_pem_files_become_javas(tmp_path: Path) -> None:
    files = {
        "ca": "-----BEGIN CERTIFICATE-----\nca",
        "certificate": "-----BEGIN CERTIFICATE-----\nmine",
        "key": "-----BEGIN PRIVATE KEY-----\nkey",
    }
    given = {"security.protocol": "SSL", "ssl.key.password": "p"}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
        given[f"ssl.{name}.location"] = str(tmp_path / name)
    assert java(given) == {
        "security.protocol": "SSL",
        "ssl.key.password": "p",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": files["ca"],
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": files["certificate"],
        "ssl.keystore.key": files["key"],
    }


def test_a_key_that_java_does_not_take_is_refused(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("-----BEGIN RSA PRIVATE KEY-----")
    given = {"ssl.certificate.pem": "c", "ssl.key.location": str(tmp_path / "key")}
    with pytest.raises(ConfigError, match="openssl pkcs8"):
        java(given)
    with pytest.raises(ConfigError, match=r"ssl\.ca\.location=.* cannot be read"):
        java({"ssl.ca.location": str(tmp_path / "none")})


def test_javas_pem_stores_become_librdkafkas() -> None:
    assert librdkafka(
        {
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": "ca.pem",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": "both.pem",
        }
    ) == {
        "ssl.ca.location": "ca.pem",
        "ssl.certificate.location": "both.pem",
        "ssl.key.location": "both.pem",
    }
    assert librdkafka({"ssl.truststore.certificates": "text"}) == {"ssl.ca.pem": "text"}


def test_each_client_may_have_its_own_stores() -> None:
    both = {"ssl.truststore.location": "ca.jks", "ssl.ca.pem": "text"}
    assert librdkafka(both) == {"ssl.ca.pem": "text"}
    assert java(both) == {"ssl.truststore.location": "ca.jks"}


def test_a_clients_id_and_secret_survive_both_translations() -> None:
    given = {
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.client.id": "me",
        "sasl.oauthbearer.client.secret": 'a"b',
        "sasl.oauthbearer.token.endpoint.url": "https://tokens/",
    }
    assert librdkafka(java(given)) == given | {"sasl.oauthbearer.method": "oidc"}


def test_javas_own_names_of_a_clients_id_and_secret_are_known() -> None:
    credentials = "sasl.oauthbearer.client.credentials.client"
    found = librdkafka(
        {"sasl.mechanism": "OAUTHBEARER", f"{credentials}.id": "me", f"{credentials}.secret": "s"}
    )
    assert found["sasl.oauthbearer.client.id"] == "me"
    assert found["sasl.oauthbearer.client.secret"] == "s"


@pytest.mark.parametrize(
    ("store", "instead"),
    [
        ("truststore", "some.jks cannot be read: No such file"),
        ("keystore", "keytool -importkeystore -srckeystore some.jks"),
    ],
)
def test_a_java_key_store_is_refused_when_the_configuration_is_checked(
    store: str, instead: str
) -> None:
    config = {
        "name": "c",
        "connector.class": "postgresql",
        "topics": "t",
        "bootstrap.servers": "nowhere:9092",
        "connection.url": "postgresql://nowhere/d",
        f"consumer.override.ssl.{store}.location": "some.jks",
    }
    with pytest.raises(ConfigError, match=rf"connector c: consumer\.override\..*{instead}"):
        plan(config)


def test_kerberos_is_refused_where_the_client_lacks_it() -> None:
    config = {"security.protocol": "SASL_SSL"}
    ((key, why),) = judged("consumer", config)
    assert key == "security.protocol"
    assert "GSSAPI, which this librdkafka was built without" in why
    assert not list(judged("consumer", {**config, "sasl.mechanism": "PLAIN"}))
