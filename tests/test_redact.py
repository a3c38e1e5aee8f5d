"""Credentials are taken out of whatever a user, a log or a ledger gets to see."""

from __future__ import annotations

import logging
import pickle

import pytest

from semel.cli.console import RedactingFormatter
from semel.errors import ConfigError
from semel.redact import redacted, without_pieces


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
    ],
)
def test_what_is_secret_is_hidden(text: str, shown: str) -> None:
    assert redacted(text) == shown


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
    text = RedactingFormatter("%(message)s").format(record)
    assert "hidden" not in text
    assert "cannot open s3://***@bucket" in text


@pytest.mark.parametrize("text", ["a." * 200_000, "a://a" * 100_000, "a://b:" * 100_000 + "'@"])
def test_long_texts_are_redacted_in_linear_time(text: str) -> None:
    assert redacted(text + " password=x") == text + " password=***"


def test_nothing_is_left_of_a_value_in_another_case_or_cut() -> None:
    shown = without_pieces("index treasure_of_the is missing; TREAS", "Treasure of the Sierra")
    assert shown == "index ***_of_***is missing; ***"
