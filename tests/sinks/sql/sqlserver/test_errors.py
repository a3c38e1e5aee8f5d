"""What the errors of SQL Server and of Babelfish mean for a connector."""

from __future__ import annotations

import pytds
import pytest

from semel.core.errors import ServiceError, TransientError, Unavailable
from semel.databases.errors import DataRefused, SchemaChanged
from semel.databases.login import Login, Timeouts
from semel.databases.sqlserver import SqlServer

NOT_MAPPED = 33557097


@pytest.mark.parametrize(
    ("number", "text", "meaning"),
    [
        (1205, "Transaction was deadlocked", TransientError),
        (1222, "Lock request time out period exceeded.", TransientError),
        (NOT_MAPPED, "canceling statement due to lock timeout", TransientError),
        (NOT_MAPPED, "the database system is shutting down", Unavailable),
        (NOT_MAPPED, "the database system is not yet accepting connections", Unavailable),
        (NOT_MAPPED, "terminating connection due to administrator command", Unavailable),
        (3906, "the database is read-only", Unavailable),
        (NOT_MAPPED, 'column "gone" does not exist', SchemaChanged),
        (NOT_MAPPED, "value overflows numeric format", DataRefused),
        (2627, "Violation of PRIMARY KEY constraint", DataRefused),
        (50_001, "not on Sundays", DataRefused),
        (207, "Invalid column name", SchemaChanged),
        (229, "The INSERT permission was denied", ServiceError),
        (0, "the connection was closed", TransientError),
    ],
)
def test_an_error_is_tried_again_refuses_rows_or_ends_the_run(
    number: int, text: str, meaning: type[Exception]
) -> None:
    url = "jdbc:sqlserver://h;databaseName=d"
    error = pytds.OperationalError(text, None)
    error.number = number
    translated = SqlServer(Login(url), "c", Timeouts())._translated(error)
    assert type(translated) is meaning
    assert text in str(translated)
