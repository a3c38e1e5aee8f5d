"""A problem with a store is reported at once, in one sentence, without waiting for Spark.

Spark starts during the checks, so the tests let it hang: only a run that does not need it ends.
"""

from __future__ import annotations

import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import FrameType
from typing import Any
from urllib.parse import urlsplit

import pytest
from pyspark import SparkContext

from semel.core.errors import ServiceError
from semel.kafka.cluster import Cluster
from semel.spark.gateway import Jvm
from semel_lab.embedded import Kafka
from tests.cli.conftest import Semel, Write
from tests.conftest import MakeTopic
from tests.engine.conftest import Config
from tests.engine.harness import name, some, sql
from tests.patience import PATIENCE

pytestmark = pytest.mark.integration

NO_HOST = "no-such-host.invalid"
HIDDEN = "hidden4you"
UPSERT = {"insert.mode": "upsert", "pk.mode": "record_key", "pk.fields": "id"}


class Services:
    """Where the stores are, for those cases that need them."""

    def __init__(self, request: pytest.FixtureRequest, directory: Path) -> None:
        self.request = request
        self.directory = directory
        self.topic = ""

    @property
    def postgres(self) -> str:
        """JDBC's URL of a database, without a user."""
        parts = urlsplit(self.request.getfixturevalue("database"))
        return f"jdbc:postgresql://{parts.hostname}:{parts.port}{parts.path}"

    @property
    def mariadb(self) -> str:
        url: str = self.request.getfixturevalue("mariadb").database_url("semel")
        return url.partition("?")[0]

    @property
    def denying(self) -> str:
        """A web server that knows nobody."""
        url: str = self.request.getfixturevalue("denying")
        return url

    @property
    def closed(self) -> str:
        """A port of this host at which nobody listens."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            return f"127.0.0.1:{free.getsockname()[1]}"


Keys = Callable[[Services], Config]


@dataclass(frozen=True)
class Case:
    """One mistake, and what is said of it."""

    store: str
    what: str
    keys: Keys
    code: int
    parts: tuple[str, ...]


def postgres(**keys: str) -> Keys:
    def make(services: Services) -> Config:
        url = services.postgres
        host = keys.get("host", "")
        if host:
            url = f"jdbc:postgresql://{host}/db"
        login = {"connection.user": "semel", "connection.password": "semel"}
        return {"connector.class": "postgresql", "connection.url": url, **login} | {
            k.replace("_", "."): v for k, v in keys.items() if k != "host"
        }

    return make


def no_postgres(services: Services) -> Config:
    return {**postgres()(services), "connection.url": f"jdbc:postgresql://{services.closed}/db"}


def no_mariadb(services: Services) -> Config:
    return {**mariadb(host=services.closed)(services)}


def nowhere(services: Services) -> Config:
    database = services.postgres.rpartition("/")[0] + "/no_such_db"
    return {**postgres()(services), "connection.url": database}


def keyless(services: Services) -> Config:
    url = services.request.getfixturevalue("database")
    sql(url, f'CREATE TABLE "{services.topic}" (id text, text text)')
    return {**postgres()(services), **UPSERT}


def mariadb(host: str = "", password: str = "", **keys: str) -> Keys:
    def make(services: Services) -> Config:
        url = f"jdbc:mariadb://{host}/db" if host else services.mariadb
        login = {"connection.user": "root", "connection.password": password}
        return {"connector.class": "mysql", "connection.url": url, **login} | {
            k.replace("_", "."): v for k, v in keys.items()
        }

    return make


def file(system: str, content: bytes = b"", path: str = "db", **keys: str) -> Keys:
    def make(services: Services) -> Config:
        where = services.directory / path
        if content:
            where.write_bytes(content)
        return {"connector.class": system, "connection.url": f"jdbc:{system}:{where}"} | {
            k.replace("_", "."): v for k, v in keys.items()
        }

    return make


def kafka(**keys: str) -> Keys:
    def make(_services: Services) -> Config:
        names = {k.replace("_", "."): v for k, v in keys.items()}
        return {"connector.class": "kafka", "topic.rename.format": "${topic}.copy", **names}

    return make


def lake(**keys: str) -> Keys:
    def make(services: Services) -> Config:
        names = {k.replace("_", "."): v for k, v in keys.items()}
        return {
            "connector.class": "delta",
            "delta.table.path": str(services.directory / "lake"),
            **names,
        }

    return make


def bucket(kind: str, where: Callable[[Services], str]) -> Keys:
    def make(services: Services) -> Config:
        key = "delta.table.path" if kind == "delta" else "path"
        credentials = (
            {
                "storage.options.aws_access_key_id": "k",
                "storage.options.aws_secret_access_key": HIDDEN,
                "storage.options.aws_region": "us-east-1",
                "storage.options.aws_allow_http": "true",
                "storage.options.aws_endpoint_url": where(services),
            }
            if kind == "delta"
            else {
                "aws.access.key.id": "k",
                "aws.secret.access.key": HIDDEN,
                "s3.region": "us-east-1",
                "storage.options.endpoint_url": where(services),
            }
        )
        return {"connector.class": kind, key: "s3://bucket/x", **credentials}

    return make


def iceberg(uri: Callable[[Services], str], kind: str = "rest", **keys: str) -> Keys:
    def make(services: Services) -> Config:
        return {
            "connector.class": "iceberg",
            "iceberg.tables": "db.t",
            "iceberg.catalog.type": kind,
            "iceberg.catalog.uri": uri(services),
            "iceberg.catalog.warehouse": f"file://{services.directory}/warehouse",
            "iceberg.catalog.token": HIDDEN,
        } | {k.replace("__", "-").replace("_", "."): v for k, v in keys.items()}

    return make


def files(services: Services) -> Config:
    (services.directory / "taken").write_text("a file")
    return {"connector.class": "files", "path": str(services.directory / "taken" / "out")}


def search(where: Callable[[Services], str]) -> Keys:
    def make(services: Services) -> Config:
        return {
            "connector.class": "opensearch",
            "connection.url": where(services),
            "connection.username": "me",
            "connection.password": HIDDEN,
            "key.ignore": "true",
        }

    return make


def http(host: str) -> Callable[[Services], str]:
    return lambda _services: f"http://{host}"


def closed(services: Services) -> str:
    return f"http://{services.closed}"


def denying(services: Services) -> str:
    return services.denying


def catalog(services: Services) -> str:
    return f"sqlite:///{services.directory}/catalog.db"


def jdbc_source(url: Callable[[Services], str], **keys: str) -> Keys:
    def make(services: Services) -> Config:
        return {
            "connector.class": "JdbcSource",
            "connection.url": url(services),
            "connection.user": "semel",
            "connection.password": "semel",
            "mode": "bulk",
            "topic.prefix": services.topic,
        } | {k.replace("_", "."): v for k, v in keys.items()}

    return make


def directory(where: Callable[[Services], str]) -> Keys:
    def make(services: Services) -> Config:
        return {
            "connector.class": "Directory",
            "format": "text",
            "topic": services.topic,
            "input.path": "s3://bucket/x",
            "cleanup.policy": "none",
            "input.file.pattern": ".*",
            "storage.options.key": "k",
            "storage.options.secret": HIDDEN,
            "storage.options.endpoint_url": where(services),
        }

    return make


def lines_of_a_directory(services: Services) -> Config:
    keys = {"topic": services.topic, "file": str(services.directory)}
    return {"connector.class": "FileStreamSource", **keys}


CASES = [
    Case("any", "topic", postgres(topics="no-such-topic"), 2, ("no-such-topic does not exist",)),
    Case("any", "brokers", postgres(bootstrap_servers=f"{NO_HOST}:9"), 3, (NO_HOST, "bootstrap.")),
    Case(
        "postgresql",
        "password",
        postgres(connection_password=HIDDEN),
        3,
        ("password authentication failed", "connection."),
    ),
    Case("postgresql", "host", postgres(host=NO_HOST), 3, (NO_HOST, "connection.url")),
    Case("postgresql", "database", nowhere, 3, ('"no_such_db" does not exist', "connection.url")),
    Case("postgresql", "table", postgres(), 2, ("Create it, or set auto.create=true",)),
    Case("postgresql", "key", keyless, 2, ("needs a primary key or unique index on (id)",)),
    Case("mariadb", "password", mariadb(password=HIDDEN), 3, ("denied", "connection.")),
    Case("mariadb", "host", mariadb(host=NO_HOST), 3, (NO_HOST, "connection.url")),
    Case("mariadb", "table", mariadb(), 2, ("Create it, or set auto.create=true",)),
    Case("sqlite", "folder", file("sqlite", path="no/db"), 2, ("/no does not exist. Create",)),
    Case("sqlite", "file", file("sqlite", b"text" * 999), 3, ("not a database",)),
    Case("sqlite", "table", file("sqlite"), 2, ("Create it, or set auto.create=true",)),
    Case("duckdb", "folder", file("duckdb", path="no/db"), 2, ("/no does not exist. Create",)),
    Case(
        "duckdb",
        "file",
        file("duckdb", b"text" * 999, connection_lock_timeout_ms="3600000"),  # not waited for
        3,
        ("not a valid DuckDB database file. Replace it with an intact copy", "connection.url"),
    ),
    Case("duckdb", "table", file("duckdb"), 2, ("Create it, or set auto.create=true",)),
    Case(
        "kafka",
        "host",
        kafka(dest_kafka_bootstrap_servers=f"{NO_HOST}:9"),
        3,
        (NO_HOST, "dest.kafka.bootstrap.servers"),
    ),
    Case("kafka", "table", kafka(), 2, (".copy", "auto.create=true")),
    Case("delta", "table", lake(), 2, ("auto.create=true",)),
    Case("delta", "host", bucket("delta", http(NO_HOST)), 3, (NO_HOST,)),
    Case("delta", "password", bucket("delta", denying), 3, ("s3://bucket/x",)),
    Case("files", "folder", files, 3, ("taken",)),
    Case("files", "host", bucket("files", http(NO_HOST)), 3, (NO_HOST,)),
    Case("files", "password", bucket("files", denying), 3, ("s3://bucket/x",)),
    Case("iceberg", "host", iceberg(http(NO_HOST)), 3, (NO_HOST, "iceberg.catalog.uri")),
    Case("iceberg", "password", iceberg(denying), 3, ("iceberg.catalog.",)),
    Case("iceberg", "table", iceberg(catalog, "sql"), 2, ("db.t", "auto-create-enabled")),
    Case(
        "iceberg",
        "folder",
        iceberg(lambda s: f"sqlite:///{s.directory}/no/catalog.db", "sql"),
        3,
        ("iceberg.catalog.uri",),
    ),
    Case("postgresql", "server", no_postgres, 3, ("refused", "connection.url")),
    Case("mariadb", "server", no_mariadb, 3, ("refused", "connection.url")),
    Case("delta", "server", bucket("delta", closed), 3, ("delta.table.path",)),
    Case("files", "server", bucket("files", closed), 3, ("path",)),
    Case("iceberg", "server", iceberg(closed), 3, ("refused", "iceberg.catalog.uri")),
    Case("opensearch", "server", search(closed), 3, ("refused", "connection.url")),
    Case("opensearch", "host", search(http(NO_HOST)), 3, (NO_HOST, "connection.url")),
    Case("opensearch", "password", search(denying), 3, ("connection.username",)),
    Case(
        "jdbc-source",
        "password",
        jdbc_source(lambda s: s.postgres, connection_password=HIDDEN),
        3,
        ("password authentication failed", "connection."),
    ),
    Case(
        "jdbc-source",
        "host",
        jdbc_source(lambda _: f"jdbc:postgresql://{NO_HOST}/db"),
        3,
        (NO_HOST, "connection.url"),
    ),
    Case(
        "jdbc-source",
        "query",
        jdbc_source(lambda s: s.postgres, query="SELECT * FROM no_such_table"),
        2,
        ('"no_such_table" does not exist', "query"),
    ),
    Case(
        "jdbc-source",
        "file",
        jdbc_source(lambda s: f"jdbc:sqlite:{s.directory}/no.db"),
        3,
        ("no such file", "connection.url"),
    ),
    Case("directory-source", "host", directory(http(NO_HOST)), 3, (NO_HOST, "input.path")),
    Case("directory-source", "password", directory(denying), 3, ("access is denied",)),
    Case("filestream-source", "file", lines_of_a_directory, 2, ("is a directory",)),
]


class Denying(BaseHTTPRequestHandler):
    """Answers every request with 401, or 403 where that is how a store says it."""

    def answer(self) -> None:
        signed = "AWS4" in self.headers.get("Authorization", "")
        self.send_response(403 if signed else 401)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = answer

    def log_message(self, *_: Any) -> None:
        """Nothing."""


@pytest.fixture(scope="module")
def denying_server() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Denying) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.fixture(name="denying")
def denying_(denying_server: str) -> str:
    return denying_server


@pytest.fixture
def no_spark(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A Spark that never comes up, and an end to a test that waits for it."""
    given_up = threading.Event()

    def hangs(_jvm: Jvm, *_arguments: object) -> None:
        assert given_up.wait(PATIENCE)
        raise ServiceError("Spark was stopped while it was starting")

    def too_long(_number: int, _frame: FrameType | None) -> None:
        given_up.set()
        raise TimeoutError("the run waits for Spark, or for a store that refuses it")

    others = SparkContext._active_spark_context  # other tests of this process may share one
    monkeypatch.setattr(Jvm, "connect", hangs)
    monkeypatch.setattr(Jvm, "end", lambda _jvm: given_up.set())
    before = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(int(PATIENCE))
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)
    assert SparkContext._active_spark_context is others


QUICK = [c for c in CASES if (c.store, c.what) not in {("delta", "host"), ("delta", "server")}]


@pytest.mark.parametrize("case", some(CASES, QUICK), ids=lambda case: f"{case.store}-{case.what}")
def test_a_mistake_is_reported_in_a_sentence_and_without_spark(
    case: Case,
    kafka: Kafka,
    topic: MakeTopic,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    semel: Semel,
    written: Write,
    no_spark: None,
) -> None:
    services = Services(request, tmp_path)
    services.topic = topic()
    keys = {"bootstrap.servers": kafka.bootstrap_servers, "topics": services.topic}
    ended = semel("run", written({"name": name(), **keys, **case.keys(services)}))
    assert ended.code == case.code, ended.err
    error = ended.err.splitlines()[-1]
    assert error.startswith("error: "), ended.err
    for part in case.parts:
        assert part in error, ended.err
    assert HIDDEN not in ended.err
    assert not [word for word in ("SELECT", "INSERT", "CREATE TABLE") if word in error]


@pytest.mark.parametrize(
    ("module", "config", "extra"),
    [
        ("opensearchpy", {"connector.class": "opensearch", "connection.url": "http://h"}, "search"),
        ("pymysql", {"connector.class": "mysql", "connection.url": "jdbc:mysql://h/d"}, "mysql"),
    ],
)
def test_a_missing_package_is_a_mistake_like_others(
    module: str,
    config: Config,
    extra: str,
    semel: Semel,
    written: Write,
    no_spark: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, module, None)  # as if it were not installed
    needed = {"name": "n", "topics": "t", "bootstrap.servers": f"{NO_HOST}:9"}
    ended = semel("run", written({**needed, **config}))
    assert ended.code == 2
    assert f"pip install 'semel[{extra}]'" in ended.err.splitlines()[-1]


def test_a_topic_that_does_not_exist_is_not_created(kafka: Kafka) -> None:
    assert "no-such-topic" not in Cluster({"bootstrap.servers": kafka.bootstrap_servers}).topics()
