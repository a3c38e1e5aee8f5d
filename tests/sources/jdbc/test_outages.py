"""A database that is silent or away."""

from __future__ import annotations

import time

import pytest
from adbc_driver_postgresql import dbapi as adbc

from semel.core.errors import TransientError, Unavailable
from semel.driver.planning import plan_source
from semel.sources.jdbc.postgresql import Postgresql
from semel.sources.jdbc.source import JdbcSource
from semel_lab.embedded.proxy import Proxy
from tests.sources.jdbc.conftest import rows

pytestmark = pytest.mark.integration


def test_a_silent_database_is_left_and_read_on_from_over_a_new_connection(database: str) -> None:
    with adbc.connect(database, autocommit=True) as other, other.cursor() as cursor:
        cursor.executemany("CREATE TABLE lines (id int PRIMARY KEY)", None)
        cursor.executemany("INSERT INTO lines SELECT generate_series(1, 3)", None)
        with Proxy.before(database) as proxy:
            keys = {"mode": "incrementing", "incrementing.column.name": "id", "name": "rows"}
            keys |= {"connector.class": "JdbcSource", "topic.prefix": "t-"}
            keys |= {"connection.url": proxy.url(database), "bootstrap.servers": "localhost:1"}
            source = plan_source({**keys, "table.whitelist": "lines"}).source
            assert isinstance(source, JdbcSource)
            session = source._database
            assert isinstance(session, Postgresql)
            found, offset = rows(source)
            assert found == [{"id": 1}, {"id": 2}, {"id": 3}]
            session._connection._watchdog._timeout = 1.0  # a minute is long for a test
            assert proxy.silence() == 1
            began = time.monotonic()
            with pytest.raises(Unavailable, match="dropped the connection"):
                rows(source, offset)
            assert time.monotonic() - began < 60
            cursor.executemany("INSERT INTO lines VALUES (4)", None)
            assert rows(source, offset)[0] == [{"id": 4}]
            proxy.refuse()
            proxy.cut()
            with pytest.raises(TransientError):
                rows(source, offset)  # over the connection that was cut
            with pytest.raises(Unavailable):
                source.check()
            proxy.accept()
            assert rows(source, offset)[0] == [{"id": 4}]
            source.close()
