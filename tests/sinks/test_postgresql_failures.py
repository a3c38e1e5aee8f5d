"""What cannot be reached or is not allowed, and what a killed or frozen process leaves behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from semel.config import read
from semel.core import failpoints
from semel.core.errors import ConfigError, LedgerConflict, ServiceError, TransientError, Unavailable
from semel.core.ledger import Outcome, TopicPartition, firsts
from semel.core.records import Commit
from semel.databases.login import Login
from semel.databases.postgresql.connection import Connection
from semel.databases.postgresql.url import libpq_uri, shown
from semel.sinks.postgresql import PostgresSink
from semel.sinks.sql.config import PostgresConfig
from semel_lab.embedded import Postgres
from tests.engine.harness import some, wait_until
from tests.patience import PATIENCE
from tests.sinks.target import Target, advance, backend, found_running, put, records

TP = TopicPartition("t", 0)
KEYED = {"insert_mode": "upsert", "pk_mode": "record_key", "pk_fields": "id"}


# URLs


@pytest.mark.parametrize(
    ("url", "user", "password", "expected"),
    [
        ("postgresql://h:5/d", "", "", "postgresql://h:5/d"),
        ("postgres://u:p@h/d", "", "", "postgresql://h/d?user=u&password=p"),
        ("jdbc:postgresql://h/d", "u", "p &?", "postgresql://h/d?user=u&password=p%20%26%3F"),
        ("jdbc:postgresql:d", "", "", "postgresql://localhost/d"),
        ("jdbc:postgresql:/", "", "", "postgresql://localhost/"),
        (
            "jdbc:postgresql://h1:1,h2:2/d",
            "",
            "",
            "postgresql://h1:1,h2:2/d?target_session_attrs=read-write",
        ),
        ("jdbc:postgresql://h/d?ssl=true", "", "", "postgresql://h/d?sslmode=verify-full"),
        ("jdbc:postgresql://h/d?ssl=false", "", "", "postgresql://h/d"),
        (
            "jdbc:postgresql://h/d?ssl=true&sslmode=require",
            "",
            "",
            "postgresql://h/d?sslmode=require",
        ),
        (
            "jdbc:postgresql://h/d?currentSchema=a,b&reWriteBatchedInserts=true",
            "",
            "",
            "postgresql://h/d?options=-csearch_path%3Da%2Cb",
        ),
        (
            "jdbc:postgresql://h/d?targetServerType=primary",
            "",
            "",
            "postgresql://h/d?target_session_attrs=read-write",
        ),
        ("postgresql:///d?host=/run/pg", "", "", "postgresql:///d?host=%2Frun%2Fpg"),
        ("jdbc:postgresql://h/d#1?password=a#b", "", "", "postgresql://h/d%231?password=a%23b"),
        ("postgresql://me:a#b@h/d", "", "", "postgresql://h/d?user=me&password=a%23b"),
    ],
)
def test_jdbc_urls_become_libpq_uris(url: str, user: str, password: str, expected: str) -> None:
    base, _, parameters = libpq_uri(Login(url, user, password), "me").partition("?")
    mine = ("connect_timeout", "keepalives", "tcp_user_timeout", "application_name")
    rest = [p for p in parameters.split("&") if not p.startswith(mine)]
    assert base + ("?" + "&".join(rest) if rest else "") == expected
    assert "application_name=me" in parameters


@pytest.mark.parametrize(
    ("url", "mode"),
    [
        ("jdbc:postgresql://h/d", "verify-full"),
        ("jdbc:postgresql://h/d?sslmode=require", "require"),
        ("postgresql://h/d", "verify-full"),
    ],
)
def test_confluents_driver_parameters_are_those_of_the_url(url: str, mode: str) -> None:
    keys = {"sslmode": "verify-full", "sslrootcert": "/ca.pem", "currentSchema": "shop"}
    more = {f"connection.{name}": value for name, value in keys.items()}
    config = read(PostgresConfig, {"connection.url": url, **more})
    uri = libpq_uri(config.login, "me")
    assert "sslrootcert=%2Fca.pem" in uri
    assert "-csearch_path%3Dshop" in uri
    assert f"sslmode={mode}&" in f"{uri}&"
    assert uri.count("sslmode=") == 1


def test_the_users_timeouts_come_before_ours() -> None:
    uri = libpq_uri(Login("jdbc:postgresql://h/d?connectTimeout=3"), "me")
    assert "connect_timeout=3" in uri
    assert uri.count("connect_timeout") == 1


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:hid/den@h/d",
        "postgresql://me:hid[den@h/d",
        "postgresql://me:hid\u2100den@h/d",
        "postgresql://me:hid:den@h:port/d",
        "postgresql://me:99999/hidden@h/d",
    ],
)
def test_a_malformed_url_is_refused_without_showing_its_password(url: str) -> None:
    with pytest.raises(ConfigError, match="%2F") as refused:
        libpq_uri(Login(url), "me")
    assert "hid" not in str(refused.value).replace("postgresql://host", "")
    assert "***" not in str(refused.value), "the message itself was taken for a URL"


@pytest.mark.parametrize("port", ["0", "65536", "99999"])
def test_an_impossible_port_is_refused(port: str) -> None:
    with pytest.raises(ConfigError, match=r"connection.url: a port is between 1 and 65535"):
        libpq_uri(Login(f"jdbc:postgresql://h1:5432,h2:{port}/d"), "me")


@pytest.mark.parametrize(
    "url", ["postgresql://h/d", "jdbc:postgresql://h/d", "postgresql://h/d?sslmode=nonsense"]
)
def test_an_unknown_ssl_mode_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match=r"sslmode=nonsense .*must be one of disable, allow"):
        libpq_uri(Login(url, parameters={"sslmode": "nonsense"}), "me")
    assert "sslmode=require&" in libpq_uri(Login("postgresql://h/d?sslmode=Require&a=b"), "me")


def test_a_password_in_the_url_may_hold_anything_that_is_encoded() -> None:
    uri = libpq_uri(Login("postgresql://m%40e:a%2Fb%25c%3Fd:e@h:5432/d"), "me")
    assert "user=m%40e" in uri
    assert "password=a%2Fb%25c%3Fd%3Ae" in uri
    assert uri.startswith("postgresql://h:5432/d?")
    assert shown(uri) == "PostgreSQL at h:5432/d"


@pytest.mark.parametrize(
    "url",
    [
        "jdbc:mysql://root:hunter2@h/d",
        "jdbc:oracle:thin:scott/hunter2@h:1521:x",
        "jdbc:sqlserver://h;user=sa;password=hunter2",
        "mysql://h/d?password=hunter2",
        "nonsense",
        "",
    ],
)
def test_other_urls_are_refused_without_showing_secrets(url: str) -> None:
    with pytest.raises(ConfigError, match=r"is not a PostgreSQL URL. Set jdbc:postgresql://") as e:
        libpq_uri(Login(url), "me")
    assert "hunter2" not in str(e.value)


def test_messages_name_the_server_without_credentials() -> None:
    assert shown("postgresql://u:hunter2@h:5/d?password=hunter2") == "PostgreSQL at h:5/d"
    assert shown("postgresql:///d?host=/run/pg") == "PostgreSQL at /run/pg/d"


# Connecting


def test_a_wrong_password_is_reported_without_it(target: Target) -> None:
    sink = target.sink(connection_password="hunter2")
    with pytest.raises(ServiceError, match=r"password authentication failed.*Check") as caught:
        sink.prepare([])
    assert "hunter2" not in str(caught.value)


def test_no_such_database(target: Target) -> None:
    sink = target.sink(connection_url=target.url + "_not")
    with pytest.raises(ServiceError, match=r'database ".*_not" does not exist'):
        sink.entries()


def test_a_missing_server_is_a_transient_error(target: Target) -> None:
    sink = target.sink(connection_url="postgresql://u:p@127.0.0.1:1/d")
    with pytest.raises(TransientError, match=r"cannot connect to PostgreSQL at 127\.0\.0\.1:1/d"):
        sink.entries()


@pytest.mark.parametrize(
    ("says", "error"),
    [
        ("the database system is starting up", Unavailable),
        ("canceling authentication due to timeout", Unavailable),
        ("server login has been failing, cached error: connect failed (server_log", Unavailable),
        ("client_login_timeout (server down)", Unavailable),
        ("no more connections allowed (max_client_conn)", Unavailable),
        ('database "d" does not exist', ServiceError),
        ("no such user", ServiceError),
    ],
)
def test_some_fatal_connection_errors_are_transient(says: str, error: type[Exception]) -> None:
    found = Connection("postgresql://h/d", 1000)._connect_error(
        f'IO: [libpq] Failed to connect: connection to server at "h", port 1 failed: FATAL:  {says}'
    )
    assert type(found) is error


def test_too_many_connections_may_pass(target: Target) -> None:
    name = target.url.rsplit("/", 1)[-1]
    role = f"limited_{name}"
    target.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'x' CONNECTION LIMIT 0")
    try:
        sink = target.sink(connection_user=role, connection_password="x")
        with pytest.raises(TransientError, match="too many connections"):
            sink.entries()
    finally:
        target.execute(f"DROP ROLE {role}")


@pytest.fixture
def clerk(target: Target) -> Iterator[str]:
    """A role that may log in and nothing else."""
    name = f"clerk_{target.url.rsplit('/', 1)[-1]}"
    target.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'x'")
    yield name
    target.execute(f"DROP OWNED BY {name}", f"DROP ROLE {name}")


def test_permission_denied_is_reported(target: Target, clerk: str) -> None:
    target.execute("CREATE TABLE t (a int)")
    sink = target.sink(connection_user=clerk, connection_password="x")
    with pytest.raises(ServiceError, match=r"permission denied for schema public .42501."):
        sink.prepare(["t"])
    with pytest.raises(ServiceError, match=r"permission denied for table t .42501."):
        put(sink, records([{"a": 1}]))


def test_a_role_that_may_not_create_uses_a_ledger_made_for_it(target: Target, clerk: str) -> None:
    target.execute("CREATE TABLE t (a int)")
    owner = target.sink(errors_deadletterqueue_table="dead")
    owner.prepare(["t"])
    target.execute(
        f"GRANT SELECT, INSERT, UPDATE ON t, semel_offsets, semel_holes, dead TO {clerk}"
    )
    sink = target.sink(
        connection_user=clerk, connection_password="x", errors_deadletterqueue_table="dead"
    )
    sink.prepare(["t"])
    sink.start(firsts({TP: 0}))
    assert sink.commit([advance(0, 1)], Commit([records([{"a": 1}])])) is Outcome.APPLIED


# Lost sessions


def test_a_killed_session_may_pass_and_the_next_call_reconnects(target: Target) -> None:
    target.execute("CREATE TABLE t (id int PRIMARY KEY, v int)", "INSERT INTO t VALUES (1, 0)")
    sink = target.sink(**KEYED)
    sink.prepare(["t"])
    sink.start(firsts({TP: 0}))
    batch = Commit([records([{"v": 1}], keys=[1])])
    assert sink.commit([advance(0, 1)], batch) is Outcome.APPLIED  # makes a staging table
    for n in (1, 2):
        target.execute(f"SELECT pg_terminate_backend({backend(sink)}, 600000)")
        with pytest.raises(TransientError, match=r"57P01|closed the connection|lost|no SQLSTATE"):
            sink.commit([advance(n, n + 1)], batch)
        assert sink.commit([advance(n, n + 1)], batch) is Outcome.APPLIED
    assert target.values("SELECT v FROM t") == [1]


def test_a_session_killed_within_a_transaction_leaves_nothing(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    target.execute("CREATE TABLE t (a int)")
    sink = target.sink()
    sink.prepare(["t"])
    sink.start(firsts({TP: 0}))
    pid = backend(sink)

    def kill(place: str) -> None:
        if place == "sink.before_commit":
            monkeypatch.undo()
            target.execute(f"SELECT pg_terminate_backend({pid}, 600000)")

    monkeypatch.setattr(failpoints, "hit", kill)
    batch = Commit([records([{"a": 1}])])
    with pytest.raises(TransientError):
        sink.commit([advance(0, 1)], batch)
    assert target.values("SELECT a FROM t") == []
    assert sink.commit([advance(0, 1)], batch) is Outcome.APPLIED
    assert target.values("SELECT a FROM t") == [1]


def test_an_idle_session_stays(target: Target) -> None:
    """Between commits no transaction is open, so the server's timeout does not apply."""
    sink = target.sink()
    sink.prepare([])
    pid = backend(sink)
    state = f"SELECT state FROM pg_stat_activity WHERE pid = {pid}"
    assert target.values(state) == ["idle"]
    assert backend(sink) == pid


def test_a_restarted_server_is_found_again(own_postgres: Callable[[], Postgres]) -> None:
    server = own_postgres()
    target = Target(server.create_database("mine"))
    target.execute("CREATE TABLE t (a int)")
    sink = target.sink()
    sink.prepare(["t"])
    sink.claim()
    sink.start(firsts({TP: 0}))
    batch = Commit([records([{"a": 1}])])
    for n, stop in enumerate((server.stop, server.kill)):
        stop()
        with pytest.raises(TransientError):
            sink.commit([advance(n, n + 1)], batch)
        with pytest.raises(TransientError, match="cannot connect"):
            sink.commit([advance(n, n + 1)], batch)
        server.start()
        assert sink.commit([advance(n, n + 1)], batch) is Outcome.APPLIED
    after = Target(target.url)
    assert after.values("SELECT count(*) FROM t") == [2]
    with found_running():  # the claim was made again
        after.sink().set_positions(None)
    after.close()


def test_a_lock_timeout_is_a_transient_error(target: Target) -> None:
    target.execute("CREATE TABLE t (id int PRIMARY KEY, v int)", "INSERT INTO t VALUES (1, 0)")
    sink = target.sink(**KEYED, connection_url=target.url + "?options=-clock_timeout%3D100")
    other = target.sink("other", **KEYED)
    with other._connection.transaction():
        other._connection.execute("UPDATE t SET v = 5")
        with pytest.raises(TransientError, match="55P03"):
            put(sink, records([{"v": 1}], keys=[1]))
    put(sink, records([{"v": 1}], keys=[1]))
    assert target.values("SELECT v FROM t") == [1]


@pytest.mark.long
def test_a_full_disk_may_pass(own_postgres: Callable[[], Postgres], tmp_path: Path) -> None:
    disk = Path("/tmp") / f"semel-small-disk-{os.getpid()}"
    disk.mkdir(mode=0o777)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m,mode=777", "tmpfs", str(disk)],
        check=False,
        capture_output=True,
        timeout=PATIENCE,
    )
    try:
        if mounted.returncode:
            pytest.skip("no right to mount a small disk")
        server = own_postgres()
        place = disk / "space"
        place.mkdir(mode=0o700)
        owner = server.data.stat()
        os.chown(place, owner.st_uid, owner.st_gid)
        target = Target(server.create_database("mine"))
        target.execute(f"CREATE TABLESPACE small LOCATION '{place}'")
        target.execute("CREATE TABLE t (a int, pad text) TABLESPACE small")
        target.execute("ALTER TABLE t ALTER pad SET STORAGE PLAIN")
        sink = target.sink()
        sink.prepare(["t"])
        sink.start(firsts({TP: 0}))
        big = Commit([records([{"a": n, "pad": "x" * 2000} for n in range(4000)])])
        with pytest.raises(TransientError, match=r"No space left on device.*53100"):
            sink.commit([advance(0, 4000)], big)
        small = Commit([records([{"a": 1, "pad": ""}])])
        assert sink.commit([advance(0, 1)], small) is Outcome.APPLIED
        assert target.values("SELECT a FROM t") == [1]
        target.close()
        server.stop()
    finally:
        if not mounted.returncode:
            subprocess.run(["umount", "-l", str(disk)], check=True, timeout=PATIENCE)
        disk.rmdir()


# Killed and frozen processes

COMMITTER = """
import sys
from semel.core.ledger import Outcome
from semel.core.records import Commit
from tests.sinks.target import Target, advance, records

url, mode, until, *more = sys.argv[1:]
keys = dict(pair.split("=") for pair in more)
sink = Target(url).sink(insert_mode=mode, pk_mode="record_key", pk_fields="id", **keys)
batch = records([{"v": 1}, {"v": 2}], keys=[1, 2])
try:
    print(sink.commit([advance(0, int(until))], Commit([batch])).value, flush=True)
except Exception as error:
    print(type(error).__name__, error, flush=True)
"""


def committer(target: Target, points: Path, mode: str, *more: str) -> subprocess.Popen[str]:
    """A process that commits offsets 0 and 1."""
    return subprocess.Popen(
        [sys.executable, "-c", COMMITTER, target.url, mode, "2", *more],
        env={**os.environ, failpoints.DIRECTORY: str(points)},
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def ledgered(target: Target) -> PostgresSink:
    target.execute("CREATE TABLE t (id int PRIMARY KEY, v int)")
    sink = target.sink(**KEYED)
    sink.prepare(["t"])
    sink.start(firsts({TP: 0}))
    return sink


BLOCKED = (
    "SELECT count(*) FROM pg_stat_activity "
    "WHERE datname = current_database() AND wait_event_type = 'Lock'"
)


@pytest.mark.parametrize("guarded", [False, True], ids=["commit", "guarded write"])
def test_whoever_has_waited_for_a_commit_sees_what_it_has_done(
    guarded: bool, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A zombie commits while its successor waits for the ledger."""
    zombie, successor = ledgered(target), target.sink(**KEYED)
    assert successor.entries()
    batch, span = Commit([records([{"v": 7}], keys=[1])]), [advance(0, 1)]
    outcomes: list[Outcome] = []

    def late() -> None:
        outcomes.append(successor.write(batch, span) if guarded else successor.commit(span, batch))

    waiting = threading.Thread(target=late)

    def hit(place: str) -> None:
        if place == "sink.before_commit" and threading.current_thread() is not waiting:
            waiting.start()
            wait_until(lambda: target.values(BLOCKED) == [1])

    monkeypatch.setattr(failpoints, "hit", hit)
    assert zombie.commit(span, batch) is Outcome.APPLIED
    waiting.join(PATIENCE)
    assert outcomes == [Outcome.REPLAYED]


@pytest.mark.parametrize("mode", some(["insert", "upsert"], {"upsert"}))
@pytest.mark.parametrize(
    ("place", "written"),
    some(
        [("sink.after_positions", 0), ("sink.before_commit", 0), ("sink.after_commit", 2)],
        {("sink.before_commit", 0)},
    ),
)
def test_a_killed_process_leaves_all_or_nothing(
    target: Target, tmp_path: Path, place: str, written: int, mode: str
) -> None:
    sink = ledgered(target)
    failpoints.arm(tmp_path, place, "kill-worker")
    assert committer(target, tmp_path, mode).wait(PATIENCE) == -signal.SIGKILL
    assert target.values("SELECT count(*) FROM t") == [written]
    assert sink.start(firsts({TP: 99})) == {TP: written}

    again = committer(target, tmp_path, mode)  # the failpoint is used up
    assert again.communicate(timeout=PATIENCE)[0].strip() == ("replayed" if written else "applied")
    assert target.tuples("SELECT id, v FROM t ORDER BY id") == [(1, 1), (2, 2)]
    entry = sink.entries()[0]
    assert (entry.position, entry.records_read, entry.rows_written) == (2, 2, 2)


@pytest.mark.long
def test_a_frozen_process_loses_its_transaction_and_cannot_commit_when_it_wakes(
    target: Target, tmp_path: Path
) -> None:
    sink = ledgered(target)
    failpoints.arm(tmp_path, "sink.before_commit", "freeze")
    patience = "connection_idle_in_transaction_timeout_ms=1000"
    frozen = committer(target, tmp_path, "upsert", patience)
    deadline = time.monotonic() + PATIENCE
    try:
        while not failpoints.fired(tmp_path):
            assert time.monotonic() < deadline
            if frozen.poll() is not None:  # its transaction was ended before it froze
                frozen = committer(target, tmp_path, "upsert", patience)
            time.sleep(0.02)
        batch = Commit([records([{"v": 7}, {"v": 8}], keys=[1, 2])])
        assert sink.commit([advance(0, 2)], batch) is Outcome.APPLIED  # waits for the ledger's row
        failpoints.thaw(tmp_path, frozen.pid)
        said = frozen.communicate(timeout=PATIENCE)[0]
    finally:
        frozen.kill()
    assert said.startswith("TransientError")
    assert target.values("SELECT v FROM t ORDER BY id") == [7, 8]
    assert sink.entries()[0].rows_written == 2


@pytest.mark.long
def test_a_process_frozen_after_its_commit_finds_itself_overtaken(
    target: Target, tmp_path: Path
) -> None:
    sink = ledgered(target)
    failpoints.arm(tmp_path, "sink.after_positions", "freeze")
    frozen = committer(target, tmp_path, "upsert")
    try:
        wait_until(lambda: bool(failpoints.fired(tmp_path)))
        name = target.url.rsplit("/", 1)[-1]
        target.execute(
            "SELECT pg_terminate_backend(pid, 600000) FROM pg_stat_activity WHERE "
            f"state = 'idle in transaction' AND datname = '{name}'"
        )
        batch = Commit([records([{"v": 7}], keys=[1])])
        assert sink.commit([advance(0, 1)], batch) is Outcome.APPLIED
        failpoints.thaw(tmp_path, frozen.pid)
        assert frozen.communicate(timeout=PATIENCE)[0].startswith("TransientError")
    finally:
        frozen.kill()
    with pytest.raises(LedgerConflict):
        sink.commit([advance(0, 2)], Commit([records([{"v": 0}], keys=[1])]))
    assert target.values("SELECT v FROM t") == [7]


FREEZES_IN_COPY = """
import os, signal, sys
import pyarrow as pa
from semel.core.records import Commit
from semel.databases.postgresql.connection import Connection
from tests.sinks.target import Target, advance, records

def copy(self, table, rows, schema):
    def parts():
        yield from rows.to_batches()
        os.kill(os.getpid(), signal.SIGSTOP)
    self._begin()
    with self._connection.cursor() as cursor:
        reader = pa.RecordBatchReader.from_batches(rows.schema, parts())
        cursor.adbc_ingest(table, reader, mode="append", db_schema_name=schema)

Connection.copy = copy
sink = Target(sys.argv[1]).sink()
sink.commit([advance(0, 2)], Commit([records([{"id": 1}, {"id": 2}])]))
"""


@pytest.mark.long
@pytest.mark.parametrize("mechanism", ["transactional", "idempotent"])
def test_a_process_that_froze_in_a_copy_gives_the_ledger_up(target: Target, mechanism: str) -> None:
    target.execute("CREATE TABLE t (id int8)")
    sink = target.sink(connection_idle_in_transaction_timeout_ms="1000")
    sink.prepare(["t"])
    sink.start(firsts({TopicPartition("t", 0): 0}))
    frozen = subprocess.Popen(
        [sys.executable, "-c", FREEZES_IN_COPY, target.url], stderr=subprocess.DEVNULL
    )
    try:
        while psutil.Process(frozen.pid).status() != psutil.STATUS_STOPPED:
            assert frozen.poll() is None
            time.sleep(0.05)
        commit = Commit([records([{"id": 1}, {"id": 2}])])
        told: list[str] = []

        def outcome_of(step: Callable[[], Outcome]) -> Outcome:
            deadline = time.monotonic() + PATIENCE
            while time.monotonic() < deadline:
                try:
                    return step()
                except TransientError as error:  # it may be slow itself, and lose its transaction
                    told.append(str(error))
            raise AssertionError(told)

        if mechanism == "transactional":
            assert outcome_of(lambda: sink.commit([advance(0, 2)], commit)) is Outcome.APPLIED
        else:
            assert outcome_of(lambda: sink.write(commit, [advance(0, 2)])) is Outcome.APPLIED
            assert outcome_of(lambda: sink.advance([advance(0, 2)])) is Outcome.APPLIED
        assert any("lock timeout" in each for each in told)
        frozen.send_signal(signal.SIGCONT)
        assert frozen.wait(PATIENCE) != 0
    finally:
        frozen.kill()
        frozen.wait(PATIENCE)
    assert target.values("SELECT id FROM t ORDER BY id") == [1, 2]


def test_only_the_wait_for_the_ledger_is_bounded(target: Target) -> None:
    """A user may lock the table for longer, and may bound waits in the URL."""
    target.execute("CREATE TABLE t (id int8)")
    target.url += ("&" if "?" in target.url else "?") + "options=-c%20lock_timeout%3D7777"
    sink = target.sink()
    sink.prepare(["t"])
    sink.start(firsts({TopicPartition("t", 0): 0}))
    for first, guarded in ((0, False), (1, True)):
        with sink._connection.transaction():
            moved = [advance(first, first + 1)]
            (sink._ledger.guard if guarded else sink._ledger.advance)(moved)
            shown = sink._connection.query("SHOW lock_timeout").column(0)[0].as_py()
        assert shown == "7777ms"
