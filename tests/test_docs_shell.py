"""The shell commands of README and docs/, block by block as they stand, from the reader's folder.

Each page begins where its reader is: the quick start's records are in Kafka, its file and those of
the page's own examples are in the folder, and so are the files of Kafka Connect's workers. What
does not end by itself is interrupted once it does its work; a worker stays for the page's next
commands.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest

from semel.spark import jars
from semel_lab.embedded import Kafka
from semel_lab.embedded.connect import DistributedConnect
from semel_lab.embedded.process import LOOPBACK, free_port
from semel_lab.embedded.registry import SchemaRegistry
from semel_lab.jars import DEBEZIUM_JDBC
from tests.conftest import wait_gone
from tests.engine.harness import wait_until
from tests.newcomer import Newcomer, blocks, page
from tests.patience import PATIENCE
from tests.sinks.kafka.copying import consume
from tests.test_docs import PAGES, ROOT, named

LEFT_OUT = {
    r"make ": "tests/test_packaging.py and lab/tests/test_demo.py run demos; the rest is for tests",
    r"(\S*python3 -m venv|\S*pip|\. \.venv|/opt/semel/)": "tests/test_extras_installed.py installs",
    r"apt-get": "installs packages of the system",
    r"semel services up": "its ports may be in use: tests/test_extras_installed.py starts services",
    r"semel ui ": "needs Kafka Connect: tests/cli/test_ui.py starts one",
    r"curl .*connectors/revenue/": "needs a running topology: tests/rest/test_stores.py has one",
    r"semel drill": "takes minutes; lab/tests/ runs drills of each kind",
    r"(useradd|cp|install|systemctl|journalctl) ": "changes the system's services",
    r"docker ": "needs a container engine; tests/test_image.py does what the Dockerfile says",
    r"kubectl ": "needs a cluster; tests/test_deploy.py checks the files against its schemas",
    r"(export SEMEL_TEST_SQLSERVER|pytest .*sqlserver)": "needs a SQL Server",
    r"(export rule=|curl .*\$v3/acls)": "needs an authorizer: tests/proxy/test_limits.py",
    r"kafka-acls\.sh": "needs Kafka's scripts, and brokers with an authorizer",
    r"\S+python -m pytest": "this is what runs here",
    r"python -m benchmarks": "takes hours; tests/test_docs_commands.py checks the names",
}
"""Commands of a block that are not run here, and why."""
ELSEWHERE = {
    "docs/elasticsearch.md": "needs OpenSearch: tests/test_docs_examples.py",
    "docs/write-a-sink.md": "its sink is installed first: tests/engine/test_third_party.py",
    "examples/semel-lmdb/README.md": "the same sink: tests/engine/test_third_party.py",
}
"""Pages whose commands other tests run."""

STANDALONE = """\
bootstrap.servers=localhost:9092
key.converter=org.apache.kafka.connect.json.JsonConverter
value.converter=org.apache.kafka.connect.json.JsonConverter
key.converter.schemas.enable={schemas}
value.converter.schemas.enable={schemas}
offset.storage.file.filename=connect.offsets
offset.flush.interval.ms=10000
"""
"""As Kafka ships connect-standalone.properties."""
DISTRIBUTED = """\
bootstrap.servers=localhost:9092
group.id=connect-cluster
key.converter=org.apache.kafka.connect.storage.StringConverter
value.converter=org.apache.kafka.connect.json.JsonConverter
value.converter.schemas.enable=false
offset.storage.topic=connect-cluster-offsets
offset.storage.replication.factor=1
config.storage.topic=connect-cluster-configs
config.storage.replication.factor=1
status.storage.topic=connect-cluster-statuses
status.storage.replication.factor=1
"""
LISTENERS = "listeners=http://localhost:8083\n"
FILE_SOURCE = """\
name=local-file-source
connector.class=FileStreamSource
tasks.max=1
file=test.txt
topic=connect-test
"""
FILE_SINK = """\
name=local-file-sink
connector.class=FileStreamSink
tasks.max=1
file=test.sink.txt
topics=connect-test
"""
KAFKAS_QUICK_START = """\
echo "plugin.path=libs/connect-file-4.1.0.jar" >> config/connect-standalone.properties
echo "listeners=http://localhost:8083" >> config/connect-standalone.properties  # a free port
echo -e "foo\\nbar" > test.txt
semel worker config/connect-standalone.properties \\
    config/connect-file-source.properties config/connect-file-sink.properties
"""
DEBEZIUM = """\
{
  "name": "orders",
  "config": {
    "connector.class": "io.debezium.connector.jdbc.JdbcSinkConnector",
    "tasks.max": "2",
    "topics": "orders",
    "connection.url": "jdbc:postgresql://127.0.0.1:5432/semel",
    "connection.username": "semel",
    "connection.password": "semel",
    "insert.mode": "upsert",
    "primary.key.mode": "record_value",
    "primary.key.fields": "id",
    "schema.evolution": "basic",
    "value.converter": "org.apache.kafka.connect.json.JsonConverter",
    "value.converter.schemas.enable": "true",
    "consumer.override.auto.offset.reset": "earliest",
    "first.position": "group"
  }
}
"""
WITH = (
    '{"schema": {"type": "struct", "fields": [{"field": "id", "type": "int64"}]},'
    ' "payload": {"id": id}}'
)
QUICKSTART = page("quickstart.md")
ORDERS = blocks(QUICKSTART, "json")[0]

SEMEL = f"""\
#!{sys.executable}
import re, signal, subprocess, sys, time
words = sys.argv[1:]
command = [sys.executable, "-m", "semel", *words]
serves = words[0] in ("worker", "rest") and "--check" not in words
runs = words[0] == "run" and "--until-caught-up" not in words
if not (serves or runs or {{"--follow", "--watch"}} & {{*words}}):
    sys.exit(subprocess.run(command).returncode)
sign = r"listens on" if serves else r"[1-9]\\S* records, .* commits" if runs else r"\\S"
idle = r"(exactly|at-least|at-most)-once"  # a run that has started, and may have nothing to read
with open("long.log", "w") as log, open("long.log") as told:
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    with open("workers", "a") as workers:
        workers.write(f"{{process.pid}}\\n")
    said, until = "", time.monotonic() + {PATIENCE}
    while not re.search(sign, said) and process.poll() is None and time.monotonic() < until:
        time.sleep(0.1)
        said += told.read()
        if runs and re.search(idle, said):
            until = min(until, time.monotonic() + 30)
    if serves and process.poll() is None:
        sys.exit()
    process.send_signal(signal.SIGINT)
    code = process.wait({PATIENCE})
    sys.stderr.write(said + told.read())
    sys.exit(code or not re.search(f"{{sign}}|{{idle}}" if runs else sign, said))
"""
"""``semel`` for a shell that has to go on. What does not end by itself must show its sign."""
CURL = """\
#!/bin/sh
exec /usr/bin/env PATH="${PATH#*:}" curl --fail-with-body --retry 60 --retry-all-errors \
    --retry-delay 1 --silent "$@"
"""
"""``curl`` that fails where a server refuses, and waits for a worker that has just started."""


class Reader(Newcomer):
    """One who runs whole blocks in a shell."""

    def shell(self, block: str) -> str:
        bin_ = self.directory / "bin"
        if not bin_.exists():
            bin_.mkdir()
            for name, program in (("semel", SEMEL), ("curl", CURL)):
                (bin_ / name).write_text(program)
                (bin_ / name).chmod(0o755)
        self._exported |= {
            "HOME": str(self.directory),
            "XDG_CACHE_HOME": str(jars.cache_directory().parent),
            "PATH": f"{bin_}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        }
        return self._run("bash", "-euo", "pipefail", "-c", "exec < <(yes)\n" + self.here(block))

    def end(self) -> None:
        """End the workers, as Ctrl-C does."""
        kept = self.directory / "workers"
        for pid in map(int, kept.read_text().split() if kept.exists() else ()):
            if psutil.pid_exists(pid):
                os.kill(pid, signal.SIGTERM)
                assert wait_gone(pid)


@pytest.fixture
def visitor(kafka: Kafka, database: str, tmp_path: Path) -> Iterator[Reader]:
    """A reader with empty hands."""
    where = urlsplit(database)
    rest = f"{LOOPBACK}:{free_port()}"
    addresses = {
        "localhost:9092": kafka.bootstrap_servers,
        "kafka:9092": kafka.bootstrap_servers,
        "127.0.0.1:5432/semel": f"{where.hostname}:{where.port}{where.path}",
        "localhost:8083": rest,
        "worker:8083": rest,
        "9400": str(free_port()),
        "0.0.0.0": LOOPBACK,
        "connect-cluster": f"cluster-{uuid.uuid4().hex[:8]}",
        "customers": f"customers{uuid.uuid4().hex[:8]}",
        "connect-test": f"connect-test-{uuid.uuid4().hex[:8]}",
    }
    made = Reader(tmp_path, addresses, {"SEMEL_BOOTSTRAP_SERVERS": kafka.bootstrap_servers})
    made.write("connect-standalone.properties", STANDALONE.format(schemas="false") + LISTENERS)
    made.write("worker.properties", STANDALONE.format(schemas="false") + LISTENERS)
    made.write("connect-distributed.properties", DISTRIBUTED + LISTENERS)
    with ExitStack() as ends:
        ends.callback(made.end)
        yield made


@pytest.fixture
def reader(visitor: Reader) -> Reader:
    """One who has followed the quick start up to its first command."""
    produce = blocks(QUICKSTART, "python")[0]
    visitor.python(produce)
    visitor.python(produce.replace("orders", "customers"))
    visitor.write("orders.json", ORDERS)
    visitor.write("customers.json", ORDERS.replace("orders", "customers"))
    return visitor


def connectors(text: str) -> Iterator[tuple[str, str]]:
    """The connectors that a page shows, by name; the first of a name is the page's example."""
    seen = {"orders"}
    for block in blocks(text, "json"):
        try:
            shown = json.loads(block)
        except ValueError:
            continue
        if isinstance(shown, dict) and "config" in shown and shown["name"] not in seen:
            seen.add(shown["name"])
            yield shown["name"], block


def commands(text: str) -> list[str]:
    """The shell blocks of a page, without what is left out."""
    found = []
    for block in shells(text):
        kept = [n for n in block.splitlines() if not any(re.match(each, n) for each in LEFT_OUT)]
        if kept:
            found.append("\n".join(kept))
    return found


def shells(text: str) -> Iterator[str]:
    """The shell blocks of a page, also those in lists, with each command in one line."""
    found = re.findall(r"^( *)```(\w*)\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL)
    for indent, language, block in found:
        if language in ("", "bash"):
            yield re.sub(rf"(?m)^{indent}", "", block).replace("\\\n", " ")


def run_all(reader: Reader, text: str) -> None:
    for block in commands(text):
        reader.shell(block)


@pytest.mark.parametrize("command", LEFT_OUT)
def test_what_is_left_out_is_on_a_page(command: str) -> None:
    lines = "\n".join(block for path in PAGES for block in shells(path.read_text()))
    assert re.search(rf"(?m)^{command}", lines)


def test_pages_whose_commands_run_elsewhere_name_a_test() -> None:
    for path, why in ELSEWHERE.items():
        assert (ROOT / path).exists()
        assert (ROOT / why.rpartition(": ")[2]).exists()


RUN = [p for p in PAGES if commands(p.read_text()) and named(p) not in ELSEWHERE]
ALONE = {"docs/kafka-rest.md", "docs/migrate.md", "docs/sources.md"}
"""Pages whose readers have something else: tests of their own, below."""


@pytest.mark.integration
@pytest.mark.long
@pytest.mark.parametrize("path", [p for p in RUN if named(p) not in ALONE], ids=named)
def test_the_commands_of_a_page_run_as_they_stand(path: Path, reader: Reader) -> None:
    text = path.read_text()
    if named(path) == "docs/filestream.md":  # its topic is that of Kafka's own quick start
        reader.python(blocks(QUICKSTART, "python")[0].replace("orders", "connect-test"))
    for name, block in connectors(text):
        reader.write(f"{name}.json", block)
    # The page's position of 1200 is beyond the quick start's records.
    text = text.replace("orders-0=1200", "orders-0=12")
    if "semel run orders.json" not in text and "semel audit orders.json" in text:
        reader.shell("semel run orders.json --until-caught-up")
    run_all(reader, text)


@pytest.mark.integration
@pytest.mark.long
def test_the_commands_on_source_offsets_run_as_they_stand(reader: Reader) -> None:
    text = page("sources.md")
    shown = dict(connectors(text))["local-file-source"]
    reader.write("local-file-source.json", shown)
    own = json.loads(shown)["config"] | {"offset.storage.file.filename": "connect.offsets"}
    own["topic"] += "-earlier"  # the page's own topic begins empty
    reader.write("with-the-file.json", json.dumps({"name": "local-file-source", "config": own}))
    reader.write("test.txt", "foo\nbar\n")
    reader.shell("semel run with-the-file.json --until-caught-up")
    run_all(reader, text)


@pytest.mark.integration
@pytest.mark.long
def test_the_commands_of_the_rest_proxy_run_as_they_stand(
    reader: Reader, registry: SchemaRegistry
) -> None:
    text = page("kafka-rest.md").replace("orders", "orders-rest")  # the page makes its topics
    reader.meets("http://localhost:8081", registry.url)
    reader.meets("localhost:8082", f"{LOOPBACK}:{free_port()}")
    reader.write("rest.properties", blocks(text, "properties")[0])
    # What a block exports is for the next ones, too.
    reader.shell("\n".join(commands(text)))


@pytest.mark.integration
@pytest.mark.long
def test_a_connector_moves_from_kafka_connect_as_the_page_says(
    kafka: Kafka, visitor: Reader, tmp_path: Path
) -> None:
    group = visitor.here("connect-cluster")
    peer = DistributedConnect(
        tmp_path / "connect",
        kafka.bootstrap_servers,
        group,
        plugin=DEBEZIUM_JDBC,
        exactly_once=True,
    )
    visitor.python(blocks(QUICKSTART, "python")[0].replace('{"id": id, "price": id / 100}', WITH))
    with ExitStack() as ends:
        ends.callback(peer.kill)
        peer.start()
        visitor.meets("connect:8083", f"{LOOPBACK}:{peer.port}")
        connector = json.loads(visitor.here(DEBEZIUM))
        peer.create(connector["name"], connector["config"])
        wait_until(lambda: peer.check(connector["name"]))
        page_ = page("migrate.md")
        one, all_ = page_.split("## All connectors at once")
        run_all(visitor, one)
        peer.stop()  # step 4
        run_all(visitor, all_)


@pytest.mark.integration
@pytest.mark.long
@pytest.mark.parametrize("name", ["ledger.md", "operations.md", "postgresql.md"])
def test_the_sql_of_a_page_runs(name: str, reader: Reader, database: str) -> None:
    psycopg2 = pytest.importorskip("psycopg2")
    config = json.loads(ORDERS)
    if any("ADD COLUMN" in block for block in blocks(page(name), "sql")):
        del config["config"]["provenance"]
    reader.write("orders.json", json.dumps(config))
    reader.shell("semel run orders.json --until-caught-up")
    reader.meets("shop", urlsplit(database).path.lstrip("/"))
    connection = psycopg2.connect(database)
    connection.autocommit = True
    try:
        with connection.cursor() as cursor:
            *grants, last = blocks(page(name), "sql")
            if "__connect" in last:
                grants.insert(0, last)  # the columns that other blocks are about
            for block in dict.fromkeys([*grants, last]):
                cursor.execute(reader.here(block))
    finally:
        connection.close()


@pytest.mark.integration
@pytest.mark.long
def test_kafkas_quick_start_of_connect_runs_with_a_worker_and_the_services(
    services_directory: Path, tmp_path: Path
) -> None:
    """Step 6 of Kafka's documentation, with the files that Kafka ships: it creates no topic."""
    kafka, where = f"localhost:{free_port()}", services_directory / "connect"
    reader = Reader(
        tmp_path, {"localhost:9092": kafka, "localhost:8083": f"{LOOPBACK}:{free_port()}"}
    )
    (tmp_path / "config").mkdir()
    reader.write("config/connect-standalone.properties", STANDALONE.format(schemas="true"))
    reader.write("config/connect-file-source.properties", FILE_SOURCE)
    reader.write("config/connect-file-sink.properties", FILE_SINK)
    try:
        reader.shell(f"semel services up --kafka-port {kafka.partition(':')[2]} --dir {where}")
        reader.shell(KAFKAS_QUICK_START)
        copied = tmp_path / "test.sink.txt"
        wait_until(lambda: copied.exists() and copied.read_text() == "foo\nbar\n")
        reader.shell("echo 'Another line' >> test.txt")
        wait_until(lambda: copied.read_text() == "foo\nbar\nAnother line\n")
        assert [record.value for record in consume(kafka, "connect-test")] == [
            b'{"schema":{"type":"string","optional":false},"payload":"%s"}' % line
            for line in (b"foo", b"bar", b"Another line")
        ]
    finally:
        reader.end()
        reader.shell(f"semel services down --dir {where}")
