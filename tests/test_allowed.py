"""Which files and which plugins the connectors of a worker may use."""

from __future__ import annotations

from pathlib import Path

import pytest

from semel.config import read, resolved
from semel.config.allowed import PATHS, PLUGINS, TRUSTED
from semel.config.worker import WorkerConfig
from semel.core.errors import ConfigError
from semel.driver.planning import plan_source
from semel.sources.directory.places import Places

SOURCE = {
    "name": "c",
    "connector.class": "FileStreamSource",
    "topic": "t",
    "bootstrap.servers": "nowhere:1",
    "value.converter": "StringConverter",
}
FILES = {
    "config.providers": "file",
    "config.providers.file.class": "org.apache.kafka.common.config.provider.FileConfigProvider",
}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that connectors may use, with a link that leads out of it, beside a secret."""
    (tmp_path / "secret").write_text("top secret\n")
    folder = tmp_path / "home"
    folder.mkdir()
    (folder / "lines.txt").write_text("a line\n")
    (folder / "link.txt").symlink_to(tmp_path / "secret")
    (folder / "out").symlink_to(tmp_path)
    monkeypatch.chdir(tmp_path)
    return folder


def worker(home: Path, **keys: str) -> WorkerConfig:
    return read(WorkerConfig, {PATHS: str(home), **keys})


def refused(home: Path, key: str, value: str, **others: str) -> bool:
    value = value.format(home=home, top=home.parent)
    given = {"name": "c", key: value, **{k.replace("_", "."): v for k, v in others.items()}}
    return any(problem.key == key for problem in worker(home).forbidden(given))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("file", "/etc/passwd"),
        ("file", "{home}/../secret"),
        ("file", "secret"),
        ("file", "{home}/link.txt"),
        ("file", "{home}/out/secret"),
        ("file", "~/secret"),
        ("file.pattern", "/etc/*"),
        ("file.pattern", "*"),
        ("file.pattern", "../*"),
        ("file.directory", "{top}"),
        ("input.path", "file:///etc"),
        ("input.path", "file:///{home}/../"),
        ("finished.path", "local:///tmp"),
        ("error.path", ".."),
        ("path", "relative"),
        ("topics.dir", "../../etc"),
        ("path.format", "'../..'/yyyy"),
        ("store.url", "/var/lib"),
        ("delta.table.path", "file:///var/lake"),
        ("iceberg.catalog.warehouse", "{top}/lake"),
        ("iceberg.catalog.uri", "sqlite:////var/catalog.db"),
        ("iceberg.catalog.uri", "sqlite:///catalog.db"),
        ("connection.url", "jdbc:duckdb:/var/d.duckdb"),
        ("connection.url", "jdbc:sqlite:d.sqlite"),
        ("connection.url", "sqlite:{home}/../d.sqlite"),
        ("connection.url", "JDBC:SQLite:/d.sqlite"),
        ("connection.url", "jdbc:sqlite:{home},beside"),
        ("connection.url", "jdbc:duckdb:{home} beside"),
        ("connection.url", "jdbc:duckdb:home/link.txt;threads=2"),
        ("connection.url", "jdbc:sqlite:file:///etc/d.sqlite"),
        ("connection.url", "jdbc:sqlite:file:home/link.txt"),
        ("connection.url", "jdbc:postgresql://h/d?sslkey=/etc/ssl/private/key"),
        ("connection.url", "jdbc:postgresql://h/d?a=b&sslrootcert=/etc/passwd"),
        ("connection.url", "postgresql://h/d?passfile=secret"),
        ("connection.url", "postgresql://h/d?sslmode=verify-ca&sslrootcert=ca.pem"),
        ("connection.url", "postgresql://h/d?sslkey=client.key"),
        ("connection.url", "postgresql://h/d?sslcrldir=crl"),
        ("connection.url", "postgresql://h/d?service=production"),
        ("connection.url", "postgresql://h/d?host=/run/postgresql"),
        ("connection.url", "jdbc:mariadb://h/d?serverSslCert=ca.pem"),
        ("connection.url", "jdbc:mysql://h/d?trustCertificateKeyStoreUrl=file:ca.jks"),
        ("connection.url", "jdbc:sqlserver://h;database=d;trustStore=ca.jks"),
        ("connection.url", "jdbc:sqlserver://h;serverCertificate=ca.pem"),
        ("connection.url", "jdbc:sqlite:file:/etc/d.sqlite?vfs=unix-none"),
        ("offset.storage.file.filename", "/tmp/offsets"),
        ("offset.storage.jdbc.connection.url", "jdbc:sqlite:/tmp/offsets"),
        ("schema.filename", "/etc/passwd"),
        ("schema.string", '{{"options": {{"file": "/etc/passwd", "encoding": "json"}}}}'),
        ("gcs.credentials.path", "key.json"),
        ("storage.options.key_file", "/home/ann/.ssh/id_rsa"),
        ("consumer.override.ssl.ca.location", "/etc/passwd"),
        ("consumer.override.ssl.keystore.location", "relative.p12"),
        ("value.converter.schema.registry.ssl.truststore.location", "/etc/passwd"),
        ("something.of.a.third.party", "/etc/passwd"),
        ("something.of.a.third.party", "one,/etc/passwd"),
        ("something.of.a.third.party", "a|/etc/passwd"),
        ("something.of.a.third.party", "a:/etc/passwd"),
        ("something.of.a.third.party", "a@/etc/passwd"),
        ("something.of.a.third.party", "//etc/passwd"),
        ("something.of.a.third.party", "a,//etc/passwd"),
        ("something.of.a.third.party", "file:///etc/passwd"),
        ("something.of.a.third.party", "file:etc/passwd"),
        ("something.of.a.third.party", "jar:file:/etc/evil.jar!/x"),
        ("something.of.a.third.party", "unix:///run/docker.sock"),
        ("something.of.a.third.party", "../secret"),
        ("something.of.a.third.party", "a/../../secret"),
        ("something.of.a.third.party", "a|../secret"),
        ("something.of.a.third.party", "%2e%2e/secret"),
        ("something.of.a.third.party", "home/link.txt"),
        ("something.of.a.third.party", "{home}/link.txt"),
        ("something.of.a.third.party", "x={home}/out/secret"),
        ("something.of.a.query", "/etc/passwd"),
        ("file", "${{file:/allowed:key}}"),
        ("connection.url", "jdbc:sqlite:/${{env:FILE}}"),
        ("connection.url", "jdbc:sqlite:${{env:FILE}}"),
        ("connection.url", "jdbc:sqlite:{home}/${{env:FILE}}"),
        ("delta.table.path", "file://{home}/%2e%2e/%2e%2e/lake"),
        ("connection.sslkey", "client.key"),
        ("connection.sslcert", "client.crt"),
        ("spark.jars", "/evil.jar"),
        ("spark.driver.extraJavaOptions", "-javaagent:x"),
    ],
)
def test_what_is_outside_of_the_allowed_folders_is_refused(
    key: str, value: str, home: Path
) -> None:
    assert refused(home, key, value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("file", "{home}/lines.txt"),
        ("file", "{home}/new/../lines.txt"),
        ("file.pattern", "{home}/*.txt"),
        ("input.path", "file://{home}"),
        ("input.path", "s3://bucket/etc"),
        ("path", "{home}/${{topic}}"),
        ("topics.dir", "topics"),
        ("connection.url", "jdbc:duckdb:{home}/d.duckdb"),
        ("connection.url", "jdbc:duckdb:{home}/d.duckdb;threads=2"),
        ("connection.url", "jdbc:sqlite:home/d.sqlite"),
        ("connection.url", "jdbc:sqlite:file:{home}/d.sqlite?cache=shared"),
        ("some.text", "copied from sqlite: the small one"),
        ("query", "sqlite: the small one"),
        ("connection.url", "jdbc:postgresql://host:5432/database?user=me"),
        ("connection.url", "https://search:9200/index"),
        ("connection.url", "postgresql://h/d?sslmode=verify-full&sslrootcert=system"),
        ("connection.url", "postgresql://h/d?sslkey={home}/client.key&options=-cx%3Dy"),
        ("connection.url", "jdbc:sqlserver://h;database=d;trustServerCertificate=true"),
        ("connection.password", "${{file:/etc/secrets/db:password}}"),
        ("iceberg.catalog.uri", "sqlite:///{home}/catalog.db"),
        ("query", "SELECT a /b, '/c' FROM t"),
        ("topics.regex", "orders/.*"),
        ("transforms.t.query", "SELECT a /b FROM t"),
        ("consumer.override.ssl.ca.pem", "-----BEGIN CERTIFICATE-----\n/abc/def\n-----END"),
        ("something.of.a.third.party", "https://host:8080/path?to=1"),
        ("something.of.a.third.party", "home/lines.txt"),
        ("something.of.a.third.party", "a/b..c, 1/2"),
        ("something.of.a.third.party", "yyyy/MM/dd"),
        ("bootstrap.servers", "a:9092,b:9092"),
    ],
)
def test_what_is_inside_of_the_allowed_folders_is_not(key: str, value: str, home: Path) -> None:
    assert not refused(home, key, value)


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("connection.url", "jdbc:sqlite:/etc/evil", False),
        ("something.of.a.third.party", "/etc/group", False),
        ("consumer.override.sasl.jaas.config", 'x required keyTab="/etc/keytab";', False),
        ("connection.url", "jdbc:sqlite:{home}/d.sqlite", True),
        ("connection.url", "jdbc:postgresql://host/database", True),
        ("connection.password", "/W8cU+", True),
    ],
)
def test_what_a_reference_stands_for_is_judged_when_it_is_resolved(
    key: str, value: str, allowed: bool, home: Path
) -> None:
    value = value.format(home=home)
    (home / "s.properties").write_text(f"x={value}\n")
    config = worker(home, **FILES)
    reference = f"${{file:{home}/s.properties:x}}"
    run = config.inherited(config.permitted({**SOURCE, key: reference}))
    if allowed:
        assert resolved(run)[key] == value
        return
    with pytest.raises(ConfigError) as error:
        resolved(run)
    assert f"connector c: {key}=" in str(error.value)
    assert "stands for a path that the worker does not allow" in str(error.value)
    assert value not in str(error.value)


def test_what_the_workers_own_references_stand_for_is_not_judged(home: Path) -> None:
    (home / "s.properties").write_text("x=/etc/ca.pem\n")
    own = {"consumer.ssl.ca.location": f"${{file:{home}/s.properties:x}}"}
    servers = {"bootstrap.servers": SOURCE["bootstrap.servers"]}
    config = worker(home, **FILES, **own, **servers)
    run = config.inherited({**SOURCE, "topics": "t", TRUSTED: "file"})
    assert resolved(run)["consumer.override.ssl.ca.location"] == "/etc/ca.pem"
    assert "file" not in run[TRUSTED].split(",")


def test_a_relative_file_is_in_its_directory(home: Path) -> None:
    assert not refused(home, "file", "lines.txt", file_directory=str(home))
    assert refused(home, "file", "../secret", file_directory=str(home))
    assert not refused(home, "file.pattern", "*.txt", file_directory=str(home))


def test_without_a_list_connectors_may_use_any_file() -> None:
    config = read(WorkerConfig, {})
    assert not config.forbidden({**SOURCE, "file": "/etc/passwd", "spark.jars": "/x.jar"})


def test_a_refusal_names_the_key_the_value_and_what_is_allowed(home: Path) -> None:
    config = worker(home)
    with pytest.raises(ConfigError) as error:
        config.permitted({**SOURCE, "file": "/etc/passwd"})
    for told in ("file: '/etc/passwd'", PATHS, str(home)):
        assert told in str(error.value)


def test_a_link_that_appears_later_is_not_followed(home: Path) -> None:
    run = worker(home).inherited({**SOURCE, "file": "later.txt", "file.directory": str(home)})
    with_plan = plan_source(run)
    (home / "later.txt").symlink_to(home.parent / "secret")
    with pytest.raises(ConfigError, match=r"later\.txt is a link to .*secret"):
        next(iter(with_plan.source.read({"filename": "later.txt"}, None)))


def test_a_directory_source_does_not_read_links_that_lead_out(home: Path) -> None:
    paths = {"input.path": str(home), "finished.path": "", "error.path": ""}
    names = {True: {"lines.txt"}, False: {"lines.txt", "link.txt"}}
    for confined, expected in names.items():
        places = Places(paths, {}, [str(home)] if confined else None)
        found = places.files("input.path", recursive=True)
        assert {each.name for each in found or ()} == expected


def test_a_connector_cannot_widen_what_its_worker_allows(home: Path) -> None:
    run = worker(home).inherited({**SOURCE, PATHS: "/"})
    assert run[PATHS] == str(home)
    assert PATHS not in read(WorkerConfig, {}).inherited({**SOURCE, PATHS: "/"})


@pytest.mark.parametrize("folders", ["relative", "/no/such/folder"])
def test_a_folder_that_is_none_is_refused(folders: str) -> None:
    with pytest.raises(ConfigError, match="not the absolute path of a folder"):
        read(WorkerConfig, {PATHS: folders})


def test_only_listed_plugins_may_be_used() -> None:
    listed = "FileStreamSource, StringConverter,org.apache.kafka.connect.transforms.RegexRouter"
    config = read(WorkerConfig, {PLUGINS: listed})
    router = "org.apache.kafka.connect.transforms.RegexRouter"
    assert not config.forbidden(
        {**SOURCE, "transforms": "r", "transforms.r.type": router, "x.type": "any"}
    )
    for key, value in {
        "connector.class": "postgresql",
        "key.converter": "AvroConverter",
        "transforms.p.type": "python",
        "predicates.p.type": "TopicNameMatches",
        "header.converter": "evil.RegexRouter",
    }.items():
        (problem,) = config.forbidden({**SOURCE, key: value})
        assert problem.key == key and f"{value} is not among the plugins" in problem.message
