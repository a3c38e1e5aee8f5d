"""References to files and variables: resolved where they are used, shown as they were written."""

from __future__ import annotations

import json
import logging
import pickle
import traceback
from pathlib import Path

import pytest
from pyspark import cloudpickle
from typer.testing import CliRunner

from semel.cli.commands import app
from semel.config import ConnectorConfig, SourceConnectorConfig, read, resolved
from semel.config.allowed import outside
from semel.config.worker import WorkerConfig
from semel.core import redact
from semel.core.context import TextFormatter
from semel.core.errors import ConfigError, Unresolvable
from semel.driver.planning import plan, plan_any
from semel.driver.validation import validate
from semel.spark.job_errors import not_shipped
from semel.worker import plugins
from semel.worker.rest import insight
from semel.worker.secrets import shown

SECRET = "pa55-of-the-shop"


@pytest.fixture(autouse=True)
def _nothing_hidden_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redact, "_hidden", {})
    monkeypatch.setattr(redact, "_patterns", [])


@pytest.fixture
def secrets(tmp_path: Path) -> Path:
    file = tmp_path / "db.properties"
    file.write_text(f"user=shop\npassword={SECRET}\nretries=12\n")
    return file


def raw(**more: str) -> dict[str, str]:
    return {
        "name": "orders",
        "connector.class": "postgresql",
        "topics": "orders",
        "bootstrap.servers": "kafka:9092",
        "connection.url": "jdbc:postgresql://db/shop",
    } | {k.replace("_", "."): v for k, v in more.items()}


# Looking up


def test_files_variables_and_directories_are_there_without_being_named(
    secrets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_USER", "me")
    (secrets.parent / "token").write_text("abc\n")
    found = resolved(
        raw(
            a=f"x${{file:{secrets}:user}}y${{file:{secrets}:password}}",
            b="${env:SHOP_USER}",
            c=f"${{dir:{secrets.parent}:token}}",
            d="${topic}",
        )
    )
    assert (found["a"], found["b"], found["c"]) == (f"xshopy{SECRET}", "me", "abc\n")
    assert found["d"] == "${topic}"
    assert found.given == raw(**{k: found.given[k] for k in "abcd"})


def test_providers_are_kafkas_by_the_names_that_are_given_to_them(secrets: Path) -> None:
    more = raw(x=f"${{vault:{secrets}:user}}") | {
        "config.providers": "vault",
        "config.providers.vault.class": (
            "org.apache.kafka.common.config.provider.FileConfigProvider"
        ),
    }
    assert resolved(more)["x"] == "shop"
    with pytest.raises(
        ConfigError, match=r"x=\$\{env:HOME\}: there is no config provider 'env' \("
    ):
        resolved({**more, "x": "${env:HOME}"})


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            {"x": "${file:/nowhere:k}"},
            r"x=\$\{file:/nowhere:k\}: cannot read /nowhere on .*No such",
        ),
        ({"x": "${env:SEMEL_NO_SUCH}"}, r"env has no 'SEMEL_NO_SUCH' on "),
        ({"x": "${env:a:HOME}"}, r"environment variables have no path, 'a': write \$\{env:NAME\}"),
        ({"x": "${dir:/tmp:no-such}"}, r"/tmp has no 'no-such' on "),
        ({"x": "${dir:/tmp:../etc/hostname}"}, r"/tmp has no '../etc/hostname'"),
        (
            {"x": "${vault:a:b}"},
            r"there is no config provider 'vault' \(there are: file, env, dir\)",
        ),
        ({"config.providers": "v"}, r"names v, but config.providers.v.class is missing: set it"),
        (
            {"config.providers": "v", "config.providers.v.class": "org.x.Vault"},
            r"config.providers.v.class=org.x.Vault: no such provider. Available are .*File",
        ),
        (
            {"config.providers.env.param.allowlist.pattern": "("},
            r"'\(' is not a regular expression",
        ),
        ({"config.providers.file.param.allowed.paths": "/no/such"}, r"/no/such does not exist"),
        ({"config.providers.file.param.allowed.paths": "tmp"}, r"paths: tmp is not absolute"),
    ],
)
def test_what_cannot_be_resolved_is_reported_with_key_and_reason(
    more: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        resolved(raw() | more)


def test_a_provider_reads_only_what_it_may(secrets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_USER", "me")
    allowed = {
        "config.providers.file.param.allowed.paths": str(secrets.parent),
        "config.providers.env.param.allowlist.pattern": "SHOP_.*",
    }
    assert resolved(allowed | {"x": f"${{file:{secrets}:user}}"})["x"] == "shop"
    assert resolved(allowed | {"x": "${env:SHOP_USER}"})["x"] == "me"
    for text in (f"${{file:{secrets.parent}/../x:user}}", "${env:HOME}"):
        with pytest.raises(ConfigError, match=r"allowed\.paths|does not allow HOME"):
            resolved(allowed | {"x": text})


@pytest.mark.parametrize("provider", ["file", "dir"])
def test_a_link_does_not_lead_a_provider_out_of_what_it_may_read(
    provider: str, tmp_path: Path
) -> None:
    folder = tmp_path / "allowed"
    folder.mkdir()
    (tmp_path / "secret").write_text("key=top secret")
    (folder / "inside").write_text("key=inside")
    (folder / "link").symlink_to("inside")
    (folder / "out").symlink_to("../secret")
    (folder / "up").symlink_to("..")
    allowed = {f"config.providers.{provider}.param.allowed.paths": str(folder)}

    def value(name: str) -> str:
        path, _, file = name.rpartition("/")
        where = f"{folder}/{name}:key" if provider == "file" else f"{folder}/{path}:{file}"
        return resolved({**allowed, "x": f"${{{provider}:{where}}}"})["x"]

    assert value("inside").endswith("inside") and value("link").endswith("inside")
    for name in ("out", "up/secret"):
        with pytest.raises(ConfigError, match=r"not below the provider's allowed\.paths"):
            value(name)


# What leaves the process


def test_a_closure_holds_references_and_not_what_they_stand_for(secrets: Path) -> None:
    connection = {"connection.password": f"${{file:{secrets}:password}}"}
    planned = plan(raw(max_retries=f"${{file:{secrets}:retries}}") | connection)
    connector = planned.connector
    assert connector.originals["connection.password"] == SECRET
    assert connector.max_retries == 12
    shipped = cloudpickle.dumps(connector)
    assert SECRET.encode() not in shipped
    secrets.write_text("password=rotated-since\nretries=3\n")
    arrived = pickle.loads(shipped)
    assert isinstance(arrived, ConnectorConfig)
    assert arrived.originals["connection.password"] == "rotated-since"
    assert arrived.max_retries == 3
    again = pickle.loads(pickle.dumps(arrived))  # from one process to the next
    assert again.originals == arrived.originals


def test_what_the_driver_changed_in_a_connector_travels(secrets: Path) -> None:
    made = read(ConnectorConfig, resolved(raw(x=f"${{file:{secrets}:user}}")))
    object.__setattr__(made, "offset_out_of_range", "earliest")
    assert pickle.loads(pickle.dumps(made)).offset_out_of_range == "earliest"


def test_a_node_without_the_file_ends_the_connector_with_its_name(secrets: Path) -> None:
    made = read(ConnectorConfig, resolved(raw(x=f"${{file:{secrets}:user}}")))
    shipped = pickle.dumps(made)
    secrets.unlink()
    with pytest.raises(Unresolvable) as told:
        pickle.loads(shipped)
    trace = "".join(traceback.format_exception_only(told.value))
    report = f"org.apache.spark.SparkException: ...\n{trace}  at x"
    error = not_shipped(made, report)
    assert error is not None
    assert "a task cannot resolve a reference" in str(error)
    assert f"x=${{file:{secrets}:user}}: cannot read {secrets}" in str(error)


def test_a_connector_that_starts_again_resolves_anew(secrets: Path) -> None:
    planned = plan(raw() | {"connection.password": f"${{file:{secrets}:password}}"})
    secrets.write_text("password=rotated-since\n")
    again = plan_any(planned.connector.originals)
    assert again.connector.originals["connection.password"] == "rotated-since"


# What a user sees


def test_values_are_shown_as_they_were_written(secrets: Path) -> None:
    given = raw(tasks_max=f"${{file:{secrets}:password}}")
    with pytest.raises(ConfigError) as told:
        plan(given)
    assert SECRET not in str(told.value)
    assert f"tasks.max='${{file:{secrets}:password}}' must be a whole number" in str(told.value)
    infos, _ = validate(given)
    text = repr(infos)
    assert SECRET not in text
    assert f"${{file:{secrets}:password}}" in text


def test_logs_and_errors_hide_what_a_reference_stood_for(secrets: Path) -> None:
    resolved(raw(x=f"${{file:{secrets}:password}}", y=f"${{file:{secrets}:user}}"))
    record = logging.LogRecord("x", 1, "", 1, "login of shop, %s; shops", (SECRET,), None)
    shown = TextFormatter("%(message)s").format(record)
    assert shown == (f"login of ${{file:{secrets}:user}}, ${{file:{secrets}:password}}; shops")
    assert SECRET not in str(ConfigError(f"no login with {SECRET}"))


def test_what_this_machine_lacks_is_a_warning_of_validate(tmp_path: Path) -> None:
    file = tmp_path / "orders.json"
    password = {"connection.password": "${file:/nowhere/db:password}"}
    file.write_text(json.dumps(raw() | password))
    answer = CliRunner().invoke(app, ["validate", str(file)])
    assert answer.exit_code == 0
    assert (
        "connection.password=${file:/nowhere/db:password}: cannot read /nowhere/db" in answer.output
    )
    assert "valid; exactly-once" in answer.output
    file.write_text(json.dumps(raw() | {"connection.url": "${file:/nowhere/db:url}"}))
    answer = CliRunner().invoke(app, ["validate", str(file)])
    assert answer.exit_code == 0, answer.output
    assert "no mistakes found" in answer.output
    with pytest.raises(ConfigError, match="cannot read /nowhere/db"):
        plan(raw() | password)


# A worker


def test_requests_read_what_the_workers_providers_read_and_no_more(secrets: Path) -> None:
    alone = read(WorkerConfig, resolved({"bootstrap.servers": "kafka:9092"}))
    given = raw(x=f"${{file:{secrets}:user}}")
    of_its_own = {
        "config.providers": "file",
        "config.providers.file.class": "org.apache.kafka.common.config.provider.FileConfigProvider",
    }
    infos, _ = plugins.checked({"connector.class": "postgresql", **given, **of_its_own}, alone)
    assert infos.error_count == 1
    worker = resolved(of_its_own | {"bootstrap.servers": "kafka:9092"})
    inherited = read(WorkerConfig, worker).inherited(given)
    assert inherited["x"] == given["x"]
    assert resolved(inherited)["x"] == "shop"


def test_a_workers_own_references_stay_references_in_its_connectors(secrets: Path) -> None:
    worker = resolved({"consumer.ssl.key.password": f"${{file:{secrets}:password}}"})
    found = read(WorkerConfig, worker).inherited({"name": "x"})
    assert found["consumer.override.ssl.key.password"] == f"${{file:{secrets}:password}}"


def test_sources_have_references_too(secrets: Path) -> None:
    given = {
        "name": "lines",
        "connector.class": "FileStreamSource",
        "topic": "lines",
        "file": str(secrets),
        "bootstrap.servers": f"${{file:{secrets}:user}}:9092",
    }
    connector = plan_any(given).connector
    assert isinstance(connector, SourceConnectorConfig)
    assert connector.bootstrap_servers == "shop:9092"
    assert b"shop:9092" not in pickle.dumps(connector)


def test_the_facts_of_a_connector_hide_what_its_references_stand_for(tmp_path: Path) -> None:
    file = tmp_path / "names.properties"
    file.write_text("index=Xylophone-Quartz\n")
    given = {
        "connector.class": "OpenSearchSink",
        "connection.url": "http://search:9200",
        "key.ignore": "true",
        "index.name.format": f"${{file:{file}:index}}",
    }
    wanted = {k: v for k, v in raw().items() if k in ("name", "topics", "bootstrap.servers")}
    told = insight.guarantee_of(plan(wanted | given))
    assert "xylo" not in str(told).lower()
    assert told["delivery"] == "exactly-once"


@pytest.mark.parametrize("text", ["${" * 200_000 + "}", "${a:" * 200_000, "a:" * 200_000 + "}"])
def test_a_value_with_many_beginnings_of_references_is_judged_at_once(text: str) -> None:
    config = {"name": "x", "a": text}
    assert shown(config)["a"] == text
    assert list(outside(config, ["/data"])) == []
