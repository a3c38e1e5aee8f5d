"""What only MariaDB does."""

from __future__ import annotations

import datetime as dt
import socket
import struct
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Queue
from threading import Thread
from typing import Any

import pyarrow as pa
import pytest

from semel.config import ConnectorConfig, read
from semel.core.errors import ConfigError, ServiceError, TransientError
from semel.core.ledger import Outcome, TopicPartition, firsts
from semel.core.records import Commit, RowsRejected
from semel.databases import base, mysql
from semel.sinks.sql.mysql import MysqlDialect, MysqlSink
from semel_lab.embedded.mariadb import MariaDB
from tests.databases import Given
from tests.engine.harness import some
from tests.patience import PATIENCE
from tests.sinks.sql.test_sink import VALUES
from tests.sinks.target import advance, found_running, records

T0 = TopicPartition("t", 0)
QUOTE = '"'


class Target:
    """A database, sinks for it, and SQL."""

    def __init__(self, server: MariaDB | Given, name: str) -> None:
        self.server = server
        self.name = name
        self.sinks: list[MysqlSink] = []

    def sink(self, **keys: str) -> MysqlSink:
        raw = {
            "name": "c",
            "connector.class": "mariadb",
            "bootstrap.servers": "nowhere:9092",
            "topics": "t",
            "connection.url": self.server.database_url(self.name),
            "auto.create": "true",
            **{k.replace("_", "."): v for k, v in keys.items()},
        }
        self.sinks.append(MysqlSink(read(ConnectorConfig, raw)))
        self.sinks[-1].prepare(["t"])
        return self.sinks[-1]

    def execute(self, *statements: str) -> list[Any]:
        return self.server.execute(*statements, database=self.name)


@contextmanager
def on(server: MariaDB | Given) -> Iterator[Target]:
    made = Target(server, f"test_{uuid.uuid4().hex[:8]}")
    server.create_database(made.name)
    yield made
    for sink in made.sinks:
        sink.close()
    server.drop_database(made.name)


@pytest.fixture
def target(mariadb: MariaDB | Given) -> Iterator[Target]:
    with on(mariadb) as made:
        yield made


@pytest.fixture
def alone(mariadb: MariaDB | Given, services_directory: Path) -> Iterator[Target]:
    """On a server of the test's own, whose settings it may change."""
    if isinstance(mariadb, Given):
        with on(mariadb) as made:
            yield made
        return
    with MariaDB(services_directory / f"mariadb-{uuid.uuid4().hex[:8]}") as mine, on(mine) as made:
        yield made


@contextmanager
def local_infile(target: Target, on: bool) -> Iterator[None]:
    """Whether the server takes files: MariaDB does unless it is told otherwise, MySQL does not."""
    ((before,),) = target.execute("SELECT @@global.local_infile")
    if before != on:
        target.execute(f"SET GLOBAL local_infile = {int(on)}")
    try:
        yield
    finally:
        if before != on:
            target.execute(f"SET GLOBAL local_infile = {before}")


def put(sink: MysqlSink, values: Any) -> None:
    sink.write(Commit([records(values)]))


def test_an_invalid_port_is_a_configuration_error(target: Target) -> None:
    with pytest.raises(ConfigError, match="with one host"):
        target.sink(connection_url="jdbc:mysql://one:3306,two:3306/d")


def test_tables_without_transactions_are_refused(target: Target) -> None:
    target.execute("CREATE TABLE t (id int) ENGINE=MyISAM")
    with pytest.raises(ConfigError, match="MyISAM, which has no transactions"):
        target.sink()


@pytest.mark.parametrize(
    ("type_", "values"),
    [
        pytest.param("tinyint", [1, 128], marks=pytest.mark.long),
        pytest.param("int unsigned", [1, -1], marks=pytest.mark.long),
        ("varchar(3)", ["abc", "abcd"]),
        pytest.param("varchar(3)", ["abc", "abc "], marks=pytest.mark.long),
        pytest.param("decimal(4,2)", ["1.25", "1.255"], marks=pytest.mark.long),
        pytest.param("date", ["2024-01-01", "2024-02-30"], marks=pytest.mark.long),
        ("datetime", ["2024-01-01T00:00:00", "nonsense"]),
        pytest.param(
            "datetime", ["2024-01-01T00:00:00", "2024-01-01T00:00:00.5"], marks=pytest.mark.long
        ),
        pytest.param(
            "timestamp(3) null",
            ["2024-01-01T00:00:00.123Z", "2024-01-01T00:00:00.1234Z"],
            marks=pytest.mark.long,
        ),
        pytest.param(
            "datetime(1)",
            ["2024-01-01T00:00:00.1", "2024-01-01T00:00:00.12"],
            marks=pytest.mark.long,
        ),
        pytest.param(
            "datetime(5)",
            [dt.datetime(1969, 1, 1, 0, 0, 0, 10), dt.datetime(1969, 1, 1, 0, 0, 0, 1)],
            marks=pytest.mark.long,
        ),
        pytest.param("time", [dt.time(1, 2, 3), dt.time(1, 2, 3, 400_000)], marks=pytest.mark.long),
        pytest.param(
            "time(2)",
            [dt.time(1, 2, 3, 120_000), dt.time(1, 2, 3, 123_000)],
            marks=pytest.mark.long,
        ),
        pytest.param("enum('a','b')", ["a", "c"], marks=pytest.mark.long),
        ("json", ["[1]", "[1"]),
        pytest.param("json", ["[1]", "[" * 200 + "]" * 200], marks=pytest.mark.long),
        pytest.param("int check (v < 5)", [1, 7], marks=pytest.mark.long),
        ("int not null", [1, None]),
        pytest.param("double", [1.5, float("nan")], marks=pytest.mark.long),
        ("varchar(9) character set latin1", ["a", "\u20ac\u4e2d"]),
    ],
)
@pytest.mark.parametrize("mode", some(["insert", "upsert", "update"], {"insert", "upsert"}))
def test_a_value_that_does_not_fit_is_refused_and_nothing_is_changed_in_silence(
    mode: str, type_: str, values: list[Any], target: Target
) -> None:
    target.execute(f"CREATE TABLE t (id int PRIMARY KEY, v {type_})")
    sink = target.sink(insert_mode=mode, pk_mode="record_value", pk_fields="id")
    if mode == "update":
        start = target.sink(insert_mode="upsert", pk_mode="record_value", pk_fields="id")
        put(start, {"id": pa.array([0, 1]), "v": pa.array([values[0]] * 2)})
    with pytest.raises(RowsRejected) as rejection:
        put(sink, {"id": pa.array([0, 1]), "v": pa.array(values)})
    assert [r.offset for r in rejection.value.rejected] == [1]
    put(sink, {"id": pa.array([0]), "v": pa.array(values[:1])})


@pytest.mark.parametrize("name", some(["s", "t", "new t", "rows", "a.b", 'a`b"c'], {"s", 'a`b"c'}))
def test_a_table_and_a_column_may_have_any_name(name: str, target: Target) -> None:
    keys = {"insert_mode": "upsert", "pk_mode": "record_value", "pk_fields": "id"}
    sink = target.sink(table_name_format=f'"{name.replace(QUOTE, QUOTE * 2)}"', **keys)
    for value in (1, 2):
        put(sink, [{"id": 7, name: value}])
    quoted = f"`{name.replace('`', '``')}`"
    assert target.execute(f"SELECT id, {quoted} FROM {quoted}") == [(7, 2)]


def test_rows_that_fit_are_loaded_without_another_try(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    def inserted(*_arguments: object) -> None:
        raise AssertionError("LOAD DATA was undone")

    monkeypatch.setattr(MysqlDialect, "_insert", inserted)
    rows = records(pa.table(VALUES))
    with local_infile(target, True):
        target.sink(provenance="true").write(Commit([rows]))
    assert target.execute("SELECT count(*) FROM t") == [(2,)]


def test_rows_are_inserted_where_the_server_takes_no_files(alone: Target) -> None:
    with local_infile(alone, False):
        sink = alone.sink()
        for i in range(3):
            put(sink, [{"id": i, "v": "it's \\"}])
        assert not sink._dialect._loads  # type: ignore[attr-defined]
    assert alone.execute("SELECT id, v FROM t") == [(i, "it's \\") for i in range(3)]


def test_the_server_gets_no_file_but_rows(target: Target) -> None:
    sink = target.sink()
    put(sink, [{"v": "x"}])
    asks = pytest.raises(ServiceError, match="asks for the file /etc/hostname")
    with asks, sink._dialect.transaction():
        sink._dialect.execute("LOAD DATA LOCAL INFILE '/etc/hostname' INTO TABLE t")
    put(sink, [{"v": "y"}])
    assert target.execute("SELECT v FROM t ORDER BY v") == [("x",), ("y",)]


@pytest.mark.parametrize(
    "statement",
    some([b"LOAD DATA", b"SET sql_mode", b"SELECT", b"COMMIT"], {b"LOAD DATA", b"SET sql_mode"}),
)
def test_a_server_that_asks_for_a_file_instead_of_answering_gets_nothing(
    statement: bytes, target: Target, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text("top secret")
    put(target.sink(), [{"v": "x"}])
    url, port = target.server.database_url(target.name), str(target.server.port)
    asks = pytest.raises((ServiceError, TransientError), match="asks for the file")
    with hostile(int(port), statement, tmp_path / "secret") as (other, received), asks:
        put(target.sink(connection_url=url.replace(port, str(other))), [{"v": "y"}])
    assert received.get(timeout=PATIENCE) == b""


@contextmanager
def hostile(real: int, statement: bytes, file: Path) -> Iterator[tuple[int, Queue[bytes]]]:
    """A server that answers a statement with the name of a file that it wants, and keeps what it
    gets; everything before that is up to the real one."""
    received: Queue[bytes] = Queue()
    listener = socket.create_server(("127.0.0.1", 0))

    def attack(client: socket.socket) -> None:
        with client, socket.create_connection(("127.0.0.1", real)) as server:
            Thread(target=forward, args=(server, client), daemon=True).start()
            while sent := client.recv(1 << 20):
                if statement in sent:
                    wanted = b"\xfb" + str(file).encode()
                    client.sendall(struct.pack("<I", len(wanted))[:3] + b"\1" + wanted)
                    received.put(client.recv(1 << 20))
                    return
                server.sendall(sent)

    def forward(source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while got := source.recv(1 << 20):
                sink.sendall(got)

    def serve() -> None:
        with suppress(OSError):
            while True:
                Thread(target=attack, args=(listener.accept()[0],), daemon=True).start()

    with listener:
        Thread(target=serve, daemon=True).start()
        yield listener.getsockname()[1], received


def test_numbers_that_the_server_gives_out_are_not_given_for_zero(target: Target) -> None:
    target.execute("CREATE TABLE t (id int AUTO_INCREMENT PRIMARY KEY, v int)")
    put(target.sink(), [{"id": 0, "v": 1}, {"id": None, "v": 2}])
    assert target.execute("SELECT id, v FROM t ORDER BY id") == [(0, 1), (1, 2)]


def test_a_session_that_the_server_has_ended_between_commits_is_not_noticed(
    target: Target,
) -> None:
    sink = target.sink()
    sink.claim()
    put(sink, [{"id": 1}])
    for (session,) in target.execute(
        f"SELECT id FROM information_schema.processlist WHERE db = '{target.name}' "
        "AND id <> CONNECTION_ID()"
    ):
        target.execute(f"KILL {session}")
    put(sink, [{"id": 2}])
    assert target.execute("SELECT id FROM t ORDER BY id") == [(1,), (2,)]
    with found_running():
        target.sink().set_positions(None)


def test_more_sessions_than_there_are_locks_go_on_without(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mysql, "_SLOTS", 2)
    for _ in range(3):
        target.sink().claim()
    with found_running():
        target.sink().set_positions(None)


def test_a_run_that_begins_while_positions_are_changed_comes_again(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "RELEASE_TIME", 0.1)
    run, other = target.sink(), target.sink()
    with other._dialect.alone() as alone:
        assert alone
        with pytest.raises(TransientError, match="positions are being changed"):
            run.claim()
    run.claim()
    with found_running():
        other.set_positions(None)


def test_a_writer_that_waits_for_the_ledger_finds_that_it_has_lost(target: Target) -> None:
    first, second = target.sink(), target.sink()
    first.start(firsts({T0: 0}))
    commit = Commit([records([{"id": 1}])])
    with first._dialect.transaction():
        first._ledger.advance([advance(0, 1)])
        with second._dialect.transaction():
            second._dialect.execute("SET innodb_lock_wait_timeout = 1")
        with pytest.raises(TransientError, match="1205"):
            second.commit([advance(0, 1)], commit)
    assert second.commit([advance(0, 1)], commit) is Outcome.REPLAYED


def test_the_server_ends_a_transaction_that_is_idle_for_too_long(target: Target) -> None:
    frozen = target.sink(connection_idle_in_transaction_timeout_ms="1000")
    other = target.sink()
    other.start(firsts({T0: 0}))
    applied: list[Outcome] = []
    deadline = time.monotonic() + PATIENCE
    while not applied:  # it may be slow itself, and lose its transaction before
        assert time.monotonic() < deadline
        with pytest.raises(TransientError), frozen._dialect.transaction():
            frozen._ledger.advance([advance(0, 1)])
            # waits for the row until the server has ended the transaction that holds it
            applied.append(other.commit([advance(0, 2)], Commit([])))
    assert applied == [Outcome.APPLIED]
    assert [e.position for e in frozen.entries()] == [2]


def test_a_table_that_is_altered_while_it_is_read_is_read_again(target: Target) -> None:
    target.execute("CREATE TABLE t (id int)")
    sink = target.sink()
    with pytest.raises(TransientError, match="1412"), sink._dialect.transaction(reading=True):
        target.execute("ALTER TABLE t ADD COLUMN v int, ALGORITHM=COPY")
        sink._dialect.query("SELECT count(*) AS n FROM t")
    assert sink.snapshot(["t"]).rows == {"t": 0}


def test_where_every_table_needs_a_key_rows_are_staged_all_the_same(target: Target) -> None:
    if not target.execute("SHOW VARIABLES LIKE 'sql_require_primary_key'"):
        pytest.skip("MariaDB cannot demand keys")
    target.execute("CREATE TABLE t (id int PRIMARY KEY, u int UNIQUE, v int)")
    target.execute("SET GLOBAL sql_require_primary_key = 1")
    try:
        sink = target.sink(insert_mode="upsert", pk_mode="record_value", pk_fields="id")
        for value in (1, 2):
            put(sink, [{"id": 1, "u": 5, "v": value}, {"id": 2, "u": 6, "v": value}])
    finally:
        target.execute("SET GLOBAL sql_require_primary_key = 0")
    assert target.execute("SELECT id, u, v FROM t ORDER BY id") == [(1, 5, 2), (2, 6, 2)]
