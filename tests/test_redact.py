"""Credentials are taken out of whatever a user, a log or a ledger gets to see."""

from __future__ import annotations

import json
import logging
import pickle
import re
from types import EllipsisType

import pytest

from semel.config.definition import definitions
from semel.core.context import TextFormatter
from semel.core.errors import ConfigError
from semel.core.redact import names_secret, redacted, setting, without_pieces
from semel.worker import plugins
from semel.worker.errors import NotFound


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("s3://user:secret@bucket/x", "s3://***@bucket/x"),
        ("s3://AK:ab/cd+e,f@g@bucket/p and b@c", "s3://***@bucket/p and b@c"),
        ("https://token@host/x", "https://***@host/x"),
        ("jdbc:postgresql://h/db?password=a&x=1", "jdbc:postgresql://h/db?password=***&x=1"),
        ("aws_secret_access_key='zz'", "aws_secret_access_key=***"),
        (
            'Module required username="a" password="b c";',
            'Module required username="a" password=***;',
        ),
        (r'password="a\"b c" x=1', "password=*** x=1"),
        ('{"aws_secret": "a\\"b", "x": "y"}', '{"aws_secret": ***, "x": "y"}'),
        ("{'s3.secret-access-key': 'a', 'n': 1}", "{'s3.secret-access-key': ***, 'n': 1}"),
        ("s3.secret-access-key=abc, n=1", "s3.secret-access-key=***, n=1"),
        ("basic.auth.user.info=me:abc", "basic.auth.user.info=***"),
        ("SharedAccessKey=abc;sas.token=x", "SharedAccessKey=***;sas.token=***"),
        ("cannot reach pg://me:a b@h/db: no", "cannot reach pg://***@h/db: no"),
        ("url='pg://me:it's mine@h/db'", "url='pg://***@h/db'"),
        ("fs.azure.account.key.acme.dfs.core.windows.net=abc==", ...),
        ("https://b/x?X-Amz-Signature=ab12&n=1", "https://b/x?X-Amz-Signature=***&n=1"),
        ("https://b/x?sv=2024&sig=ab%2B12", "https://b/x?sv=2024&sig=***"),
        ("AccountName=me;AccountKey=ab==;x=1", "AccountName=me;AccountKey=***;x=1"),
        ("Authorization: Bearer abc.def-123", "Authorization: ***"),
        ("X-Auth-Token: ab12", "X-Auth-Token: ***"),
        ("headers=Authorization:ab12", "headers=Authorization:***"),
        (
            "jdbc:mysql://address=(host=h)(password=ab)",
            "jdbc:mysql://address=(host=h)(password=***",
        ),
        ("host=h password  =  ab", "host=h password  =  ***"),
        ('a required\npassword\n=\n"ab";', "a required\npassword\n=\n***;"),
        ('{"password": ["ab", "ab"], "n": 1}', '{"password": ***, "n": 1}'),
        ("sent Bearer abcDEF123456 to it", "sent Bearer *** to it"),
        ("got eyJhbGciOiJIUzI1NiJ9.eyJzdWIi.sig-na_ture", "got ***"),
        ("{'body': '{\\\"client_secret\\\": \\\"ab\\\"}'}", ...),
        ('{"pin": 1, "dbPwd": 1234}', '{"pin": 1, "dbPwd": ***}'),
        ("jdbc:sqlserver://h;password={a b;c};n=1", "jdbc:sqlserver://h;password=***;n=1"),
        ("-----BEGIN PRIVATE KEY-----\nMII\n-----END", "-----BEGIN PRIVATE KEY-----***"),
    ],
)
def test_what_is_secret_is_hidden(text: str, shown: str | EllipsisType) -> None:
    """An ellipsis stands for a text without its secret, which is ``ab...``."""
    if shown is ...:
        assert "***" in redacted(text)
        assert re.search(r"\bab", redacted(text)) is None
    else:
        assert redacted(text) == shown


@pytest.mark.parametrize(
    "name",
    [
        "fs.azure.account.key.acme.dfs.core.windows.net",
        "spark.hadoop.fs.azure.sas.box.acme.blob.core.windows.net",
        "fs.azure.account.oauth2.client.secret.acme.dfs.core.windows.net",
        "connection.header.Authorization",
        "http.headers.Proxy-Authorization",
        "http.header.Cookie",
        "header.X-Api-Key",
        "db.pwd",
        "my.pwd.value",
        "elastic.jwt",
        "es.pass",
        "dbPassword",
        "clientSecret",
        "accessToken",
        "privateKeyPem",
        "ssl.keystore.key",
        "consumer.override.sasl.jaas.config",
        "transforms.x.basic.auth.user.info",
        "storage.options.azure_storage_account_key",
        "storage.options.azure_storage_sas_key",
        "storage.options.AWS_SESSION_TOKEN",
        "apikey",
        "key.passphrase",
        "url.signature",
        "hmac.key",
        "sshKey",
        "tls.key",
        "keypass",
        "x" * 1000 + ".password",
    ],
)
def test_a_setting_whose_name_has_a_word_for_a_secret_is_hidden(name: str) -> None:
    assert setting(name, "ab") == "***"
    assert redacted(f"{name}='ab'") == f"{name}=***"
    assert redacted(json.dumps({name: "ab"})) == f'{{"{name}": ***}}'


@pytest.mark.parametrize(
    "name",
    [
        "key.converter",
        "pk.fields",
        "primary.key.mode",
        "partition.keys",
        "routing.key",
        "aws.access.key.id",
        "s3.sse.kms.key.id",
        "basic.auth.credentials.source",
        "gcs.credentials.path",
        "password.file",
        "sasl.oauthbearer.token.endpoint.url",
        "sasl.oauthbearer.client.credentials.client.id",
        "ssl.client.auth",
        "session.timeout.ms",
        "bearer.auth.scope",
        "search.tokenizer",
        "transforms.maskPassword.type",
        "transforms.maskPassword.replacement",
        "connection.user",
    ],
)
def test_a_setting_that_is_no_secret_is_shown(name: str) -> None:
    assert setting(name, "ab") == "ab"
    assert redacted(f"{name}=ab") == f"{name}=ab"


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:a b@h/db",
        "postgresql://me:a@b c@h/db",
        "postgresql://me:a'b@h:port/db",
        "http://me:ab@[h/db?x@y",
        "jdbc:sqlserver://h;password=a b;n=1",
        "http://h1:9200, http://me:ab@h2:9200 x",
    ],
)
def test_an_address_in_which_the_end_of_a_password_is_unclear_is_hidden_whole(url: str) -> None:
    shown = setting("some.url", url)
    assert shown == "***" or not re.search(r"ab|[ab] |@[ab]", shown), shown


def test_no_key_of_semels_own_is_taken_for_a_secret() -> None:
    declared = {
        name: definition.secret
        for plugin in plugins.listed(connectors_only=False)
        for section in _sections(plugin["class"])
        for definition in definitions(section)
        for name in definition.names
    }
    assert len(declared) > 100
    assert [n for n, secret in declared.items() if names_secret(n) and not secret] == []


def test_hiding_takes_time_in_proportion_to_the_text() -> None:
    """Each of these takes hours where time grows with the square of the length."""
    for part in (
        "a.",
        "a://",
        "a://b:",
        "a='",
        'a="b',
        '"a":',
        '\\"a\\": \\"',
        "eyJ-",
        "Bearer ",
        "\\",
        "://",
        "a={ ",
        "pwd={ ",
    ):
        redacted(part * (200_000 // len(part)))


def _sections(plugin: str) -> tuple[type, ...]:
    try:
        return plugins.sections_of(plugin)
    except NotFound:  # a converter or a transform
        return ()


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://host:5432/db",
        "http://h1:9200,http://h2:9200",
        "file:///tmp/a@b/c",
        "mail me@home",
        "set connection.user and connection.password, or x=1",
        "pk.fields=password",
        "connection.password= is empty",
        "the registry has no token: not found",
        "Basic authentication is required",
    ],
)
def test_what_is_not_secret_is_left_alone(text: str) -> None:
    assert redacted(text) == text


def test_errors_and_logs_hide_credentials_wherever_they_come_from() -> None:
    error = ConfigError("delta.table.path=s3://me:hidden@bucket: no")
    assert str(error) == "delta.table.path=s3://***@bucket: no"
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    try:
        raise OSError("cannot open s3://me:hidden@bucket")
    except OSError as failure:
        record = logging.LogRecord(
            "other", 40, "", 0, "%s", ("s3://me:hidden@b",), (OSError, failure, None)
        )
    text = TextFormatter("%(message)s").format(record)
    assert "hidden" not in text
    assert "cannot open s3://***@bucket" in text


@pytest.mark.parametrize("text", ["a." * 200_000, "a://a" * 100_000, "a://b:" * 100_000 + "'@"])
def test_long_texts_are_redacted_in_linear_time(text: str) -> None:
    assert redacted(text + " password=x").endswith(" password=***")


def test_nothing_is_left_of_a_value_in_another_case_or_cut() -> None:
    shown = without_pieces("index treasure_of_the is missing; TREAS", "Treasure of the Sierra")
    assert shown == "index ***_of_***is missing; ***"
