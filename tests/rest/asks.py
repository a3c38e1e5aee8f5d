"""The requests that are sent to both Kafka Connect and semel to compare their answers.

``NAME`` stands for the connector's name, ``CONFIG`` for its configuration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

JDBC = "io.debezium.connector.jdbc.JdbcSinkConnector"
NO_NUMBERS = (
    "1_0",
    " 1",
    "1 ",
    "",
    "+",
    "1.0",
    "1e3",
    "0x1",
    "\u00b2",
    1.5,
    True,
    "9" * 20,
    10**20,
)
"""What neither an offset nor a partition may be."""
SINK = "org.apache.kafka.connect.file.FileStreamSinkConnector"
FILE = "org.apache.kafka.connect.file.FileStreamSourceConnector"


@dataclass(frozen=True)
class Ask:
    """A request. Without ``words``, only the code of the answer is compared, because its words are
    the worker's own. It is repeated until the answer contains ``until``."""

    method: str
    path: str
    body: Any = None
    words: bool = True
    until: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    content: str | None = None


def of_an_unknown_connector() -> Iterator[Ask]:
    for part in ("", "/config", "/tasks", "/status", "/offsets", "/tasks/0/status"):
        yield Ask("GET", f"/connectors/none{part}")
    for part in ("/pause", "/resume"):
        yield Ask("PUT", f"/connectors/none{part}")
    # Without flags Kafka Connect answers with 500 and a NullPointerException.
    for flags in ("includeTasks=true", "onlyFailed=true", "includeTasks=true&onlyFailed=true"):
        yield Ask("POST", f"/connectors/none/restart?{flags}")
    yield Ask("DELETE", "/connectors/none")
    yield Ask("PATCH", "/connectors/none/config", {"tasks.max": "1"})
    yield Ask("PATCH", "/connectors/none/offsets", {"offsets": []})
    yield Ask("PATCH", "/connectors/none/offsets", {})
    yield Ask("DELETE", "/connectors/none/offsets")
    partition = {"kafka_topic": "t", "kafka_partition": 0}
    offsets = {"offsets": [{"partition": partition, "offset": {"kafka_offset": 1}}]}
    yield Ask("PATCH", "/connectors/none/offsets", offsets)


def of_mistakes() -> Iterator[Ask]:
    yield Ask("GET", "/nowhere")
    yield Ask("GET", "/connectors/NAME/nowhere")
    yield Ask("DELETE", "/connectors")
    yield Ask("PUT", "/connectors")
    yield Ask("PATCH", "/connectors/none")
    yield Ask("GET", "/connectors/none/pause")
    yield Ask("POST", "/connectors", {"name": "x", "config": {}}, words=False)
    yield Ask("POST", "/connectors", {"config": "CONFIG"}, words=False)
    yield Ask("POST", "/connectors", {"name": "other", "config": "CONFIG"})
    # Bodies that are no JSON objects are 500 there, with the parser's words, and 400 here.
    for wrong in ({"tasks.max": "0"}, {"tasks.max": "two"}, {"errors.tolerance": "some"}):
        body = {"name": "x", "connector.class": JDBC, **wrong}
        yield Ask("PUT", "/connectors/x/config", body, words=False)
        yield Ask("POST", "/connectors", {"name": "x", "config": body}, words=False)


def of_nulls_and_numbers() -> Iterator[Ask]:
    path = f"/connector-plugins/{JDBC}/config/validate"
    given = {"name": "x", "connector.class": JDBC, "topics": "t"}
    yield Ask("PUT", path, {**given, "connection.url": None}, words=False)
    for key in ("tasks.max", "topics", "errors.tolerance", "no.such.key"):
        yield Ask("PUT", path, {**given, key: None}, words=False)
        yield Ask("PUT", "/connectors/x/config", {**given, key: None}, words=False)
        body = {"name": "x", "config": {**given, key: None}}
        yield Ask("POST", "/connectors", body, words=False)
    for number in (*NO_NUMBERS, "\u0661", "+1", "-1", "2147483648", "-2147483649", 1e3):
        if number not in (" 1", "1 "):  # values are trimmed
            body = {"name": "NAME", "config": {"name": "NAME", **given, "tasks.max": number}}
            yield Ask("POST", "/connectors", body, words=False)


def of_plugins_and_loggers() -> Iterator[Ask]:
    yield Ask("GET", "/connector-plugins/none/config")
    yield Ask("GET", f"/connector-plugins/{JDBC}/config", words=False)
    yield Ask("PUT", "/connector-plugins/Other/config/validate", {"connector.class": JDBC})
    for plugin in (JDBC, "JdbcSinkConnector", "JdbcSink"):
        path = f"/connector-plugins/{plugin}/config/validate"
        yield Ask("PUT", path, {"connector.class": JDBC}, words=False)
    yield Ask("PUT", "/admin/loggers/org.probe", {"level": "DEBUG"})
    yield Ask("GET", "/admin/loggers/org.probe")
    yield Ask("PUT", "/admin/loggers/org.probe", {"level": "loud"})
    yield Ask("PUT", "/admin/loggers/org.probe", {})
    yield Ask("PUT", "/admin/loggers/org.probe?scope=cluster", {"level": "INFO"})
    yield Ask("GET", "/admin/loggers/never.heard.of")
    yield Ask("GET", "/admin/loggers", words=False)


def of_paths_and_methods() -> Iterator[Ask]:
    for path in (
        "/connectors/",
        "/connector-plugins/none/config/",
        "/health/",
        "/connectors/none/",
    ):
        yield Ask("GET", path)
    for path in ("/", "/connectors", "/connectors/none", "/connectors/none/config"):
        yield Ask("HEAD", path)
        yield Ask("OPTIONS", path, words=False)
    for method in ("POST", "PUT", "PATCH", "DELETE"):
        yield Ask(method, "/")
        yield Ask(method, "/health")
        yield Ask(method, "/connector-plugins")
    for method, path in (
        ("POST", "/connectors/none"),
        ("PUT", "/connectors/none"),
        ("PATCH", "/connectors/none/status"),
        ("GET", "/connectors/none/restart"),
        ("POST", "/connectors/none/pause"),
        ("DELETE", "/connectors/none/config"),
        ("GET", "/connectors/none/topics/reset"),
        ("POST", "/admin/loggers"),
        ("DELETE", "/admin/loggers/org.probe"),
        ("GET", f"/connector-plugins/{JDBC}/config/validate"),
    ):
        yield Ask(method, path)
    for task in ("abc", "99999999999", "1.5"):
        yield Ask("GET", f"/connectors/none/tasks/{task}/status")
        yield Ask("POST", f"/connectors/none/tasks/{task}/restart")
    yield Ask("GET", "/connectors/none/tasks-config")
    yield Ask("GET", "/connectors/none/tasks/0")
    for name in ("with%20space", "%E2%98%83", "a+b", "%7Bname%7D"):
        yield Ask("GET", f"/connectors/{name}")
        yield Ask("GET", f"/connectors/{name}/status")
        yield Ask("DELETE", f"/connectors/{name}")


def of_headers_and_queries() -> Iterator[Ask]:
    for accepted in (
        "application/json",
        "*/*",
        "application/*",
        "text/html,application/xhtml+xml,*/*;q=0.8",
        "text/html",
        "application/xml",
    ):
        yield Ask("GET", "/connectors", headers={"Accept": accepted})
    body = '{"name": "x", "config": {}}'
    for kind in ("text/plain", "application/xml", "application/x-www-form-urlencoded"):
        yield Ask("POST", "/connectors", content=body, headers={"Content-Type": kind})
        yield Ask("PUT", "/connectors/x/config", content="{}", headers={"Content-Type": kind})
    charset = {"Content-Type": "application/json; charset=utf-8"}
    path, content = f"/connector-plugins/{JDBC}/config/validate", f'{{"connector.class": "{JDBC}"}}'
    yield Ask("PUT", path, content=content, headers=charset, words=False)
    yield Ask("GET", "/connectors?expand=")
    yield Ask("GET", "/connectors?expand=status,info")
    yield Ask("GET", "/connectors?unknown=1")
    yield Ask("GET", "/connectors?forward=false")
    for given in ("true", "false", "maybe", ""):
        yield Ask("GET", f"/connector-plugins?connectorsOnly={given}", words=False)
    for flags in ("includeTasks=yes&onlyFailed=true", "includeTasks=TRUE", "onlyFailed=True"):
        yield Ask("POST", f"/connectors/none/restart?{flags}")
    for path in ("/topics", "/tasks-config"):
        yield Ask("GET", f"/connectors/none{path}")
    # To stop an unknown connector, or to restart a task of it, is 500 there and 404 here.


def of_more_loggers() -> Iterator[Ask]:
    for level in ("warn", "ERROR", "FATAL", "trace", "OFF", "ALL"):
        yield Ask("PUT", "/admin/loggers/org.probe.level", {"level": level})
        yield Ask("GET", "/admin/loggers/org.probe.level")
    yield Ask("PUT", "/admin/loggers/org.probe.level", {"level": None})
    yield Ask("PUT", "/admin/loggers/org.probe.level?scope=banana", {"level": "INFO"})
    yield Ask("PUT", "/admin/loggers/org.probe.level?scope=WORKER", {"level": "INFO"})


def of_initial_states() -> Iterator[Ask]:
    """KIP-980."""
    for given, state in (("PAUSED", "PAUSED"), ("stopped", "STOPPED"), ("Running", "RUNNING")):
        body = {"name": "NAME", "config": "CONFIG", "initial_state": given}
        yield Ask("POST", "/connectors", body, words=state != "PAUSED")
        first = f'"connector":{{"state":"{state}"'
        yield Ask("GET", "/connectors/NAME/status", words=state == "STOPPED", until=first)
        if state == "PAUSED":
            # One that was created so has no tasks there until it is resumed.
            yield Ask("PUT", "/connectors/NAME/resume")
            yield Ask("GET", "/connectors/NAME/tasks/1/status", until="RUNNING")
        if state == "STOPPED":
            yield Ask("GET", "/connectors/NAME")
            yield Ask("GET", "/connectors/NAME/tasks")
            yield Ask("POST", "/connectors/NAME/restart")
            yield Ask("POST", "/connectors/NAME/restart?includeTasks=true")
        yield Ask("DELETE", "/connectors/NAME")
        yield Ask("DELETE", "/connectors/NAME")
    numbers = {"tasks.max": 1, "max.retries": 0, "delete.enabled": False}
    yield Ask("PATCH", "/connectors/NAME/config", numbers)


def of_names() -> Iterator[Ask]:
    """Names that a path cannot hold as they are. Those with a slash, a percent sign or a backslash
    can be created with Kafka Connect, but not be asked for; here they can. To create one with
    braces is 500 there, although it is made, and 201 here."""
    for name in (
        "sp ace",
        "\u00fc\u2603",
        "a?b",
        "#h",
        "a;b=c",
        "[x]",
        "a,b",
        " around ",
    ):
        place = "/connectors/" + quote(f"NAME {name}".strip(), safe="")
        body = {"name": f"NAME {name}", "config": "NAMELESS", "initial_state": "STOPPED"}
        yield Ask("POST", "/connectors", body)
        yield Ask("POST", "/connectors", body)
        for part in ("", "/config", "/tasks"):
            yield Ask("GET", f"{place}{part}")
        yield Ask("GET", f"{place}/status", until='"connector":{"state":"STOPPED"')
        yield Ask("DELETE", place)
        yield Ask("GET", place)
    for name in ("", "x\ny"):
        yield Ask("POST", "/connectors", {"name": name, "config": "NAMELESS"}, words=False)


def of_values() -> Iterator[Ask]:
    """Numbers and booleans where texts are expected, and keys without effect here."""
    yield Ask("PUT", "/admin/loggers/org.probe", {"level": 5})
    yield Ask("POST", "/connectors", {"name": 5, "config": {}}, words=False)
    keys = {"tasks.max.enforce": False, "connector.plugin.version": "[1.0,)", "max.retries": 3}
    body = {"name": "NAME", "config": "CONFIG", "initial_state": "STOPPED"}
    yield Ask("POST", "/connectors", body)
    yield Ask("PATCH", "/connectors/NAME/config", keys)
    yield Ask("GET", "/connectors/NAME/config")
    yield Ask("PATCH", "/connectors/NAME/config", dict.fromkeys(keys))
    yield Ask("GET", "/connectors/NAME")
    yield Ask("PATCH", "/connectors/NAME/offsets", {"offsets": None})
    yield Ask("GET", "/connectors/NAME/offsets")
    for part in ("/pause", "/resume", "/stop"):
        yield Ask("PUT", f"/connectors/NAME{part}")
    yield Ask("GET", "/connectors/NAME/status", until='"connector":{"state":"STOPPED"', words=False)
    yield Ask("DELETE", "/connectors/NAME")
    yield Ask("GET", "/connectors", {"a": "body where none is expected"})


def of_a_failure() -> Iterator[Ask]:
    """A connector that fails is restarted, stopped and deleted like any other. Which of its parts
    has failed differs."""
    body = {"name": "NAME-bad", "config": "SINK"}
    yield Ask("POST", "/connectors", body)
    yield Ask("GET", "/connectors/NAME-bad/tasks/0/status", until="FAILED", words=False)
    yield Ask("GET", "/connectors/NAME-bad/tasks/0/status")
    for flags in (
        "?onlyFailed=true",
        "?includeTasks=true&onlyFailed=true",
        "?includeTasks=true",
        "",
    ):
        yield Ask("POST", f"/connectors/NAME-bad/restart{flags}", words=False)
    yield Ask("POST", "/connectors/NAME-bad/tasks/0/restart")
    yield Ask("GET", "/connectors/NAME-bad/tasks/0/status", until="FAILED")
    yield Ask("PUT", "/connectors/NAME-bad/pause")
    yield Ask("PUT", "/connectors/NAME-bad/stop")
    yield Ask("GET", "/connectors/NAME-bad/status", until='"connector":{"state":"STOPPED"')
    yield Ask("GET", "/connectors/NAME-bad/tasks")
    yield Ask("DELETE", "/connectors/NAME-bad")


def of_a_source() -> Iterator[Ask]:
    yield Ask("POST", "/connectors", {"name": "NAME-lines", "config": "SOURCE"}, words=False)
    yield Ask("GET", "/connectors/NAME-lines/tasks/0/status", until="RUNNING")
    yield Ask("GET", "/connectors/NAME-lines/status")
    yield Ask("GET", "/connectors/NAME-lines")
    yield Ask("GET", "/connectors/NAME-lines/tasks", words=False)
    # Beside the position, semel stores a checksum.
    yield Ask("GET", "/connectors/NAME-lines/offsets", words=False, until="position")
    yield Ask("GET", "/connectors/NAME-lines/topics", until='["')
    yield Ask("GET", "/connectors?expand=info&expand=status")
    yield Ask("PUT", "/connectors/NAME-lines/topics/reset")
    yield Ask("GET", "/connectors/NAME-lines/topics")
    yield Ask("DELETE", "/connectors/NAME-lines/offsets")
    yield Ask("PUT", "/connectors/NAME-lines/stop")
    yield Ask("GET", "/connectors/NAME-lines/status", until='"connector":{"state":"STOPPED"')
    place = {"filename": "FILE"}
    # What the source cannot have is 500 there and 400 here.
    altered = {"offsets": [{"partition": place, "offset": {"position": 4}}]}
    yield Ask("PATCH", "/connectors/NAME-lines/offsets", altered)
    yield Ask("GET", "/connectors/NAME-lines/offsets")
    yield Ask("DELETE", "/connectors/NAME-lines/offsets")
    yield Ask("GET", "/connectors/NAME-lines/offsets")
    yield Ask("PUT", "/connectors/NAME-lines/resume")
    yield Ask("GET", "/connectors/NAME-lines/tasks/0/status", until="RUNNING")
    yield Ask("DELETE", "/connectors/NAME-lines")


def of_kcctl(state: str) -> Iterator[Ask]:
    """``kcctl get``, ``describe``, ``patch``, ``restart`` and ``apply``."""
    yield Ask("GET", "/")
    yield Ask("GET", "/connectors?expand=status&expand=info")
    yield Ask("GET", "/connectors/NAME")
    yield Ask("GET", "/connectors/NAME/status")
    yield Ask("GET", "/connectors/NAME/config")
    yield Ask("GET", "/connectors/")
    yield Ask("POST", "/connectors/", {"name": "NAME", "config": "CONFIG"})
    yield Ask("GET", "/connectors/NAME/tasks-config")
    yield Ask("GET", "/admin/loggers/root", words=False)
    yield Ask("GET", f"/connector-plugins/{JDBC}/config", words=False)
    yield Ask("GET", "/connector-plugins?connectorsOnly=false", words=False)
    if state == "RUNNING":
        yield Ask("POST", "/connectors/NAME/restart?onlyFailed=true")


def of_kafka_ui(state: str) -> Iterator[Ask]:
    """The pages of kafbat's Kafka UI, whose WebClient accepts JSON alone."""
    for path in (
        "/",
        "/connectors",
        "/connectors/NAME",
        "/connectors/NAME/config",
        "/connectors/NAME/status",
        "/connectors/NAME/topics",
        "/connectors?expand=status&expand=info",
    ):
        words = not path.endswith("/topics")
        yield Ask("GET", path, words=words, headers={"Accept": "application/json"})
    yield Ask("GET", "/connectors?search=NAME", headers={"Accept": "application/json"})
    validate = f"/connector-plugins/{JDBC}/config/validate"
    yield Ask("PUT", validate, "CONFIG", words=False)
    if state == "RUNNING":
        yield Ask("POST", "/connectors/NAME/restart?includeTasks=true&onlyFailed=true")


def of_redpanda_console(state: str) -> Iterator[Ask]:
    """What its Go client sends."""
    yield Ask("GET", "/connectors?expand=info&expand=status", headers={"User-Agent": "Redpanda"})
    yield Ask("GET", "/connector-plugins", words=False)
    yield Ask("GET", "/connectors/NAME/tasks", words=state != "RUNNING")
    if state == "STOPPED":
        yield Ask("PUT", "/connectors/NAME/config", "CONFIG")
        yield Ask("GET", "/connectors/NAME/status")


def of_akhq(state: str) -> Iterator[Ask]:
    """What its Java client sends: all requests call their content JSON, even where there is none.
    Former versions then send an empty text."""
    json = {"Accept": "application/json", "Content-Type": "application/json"}
    yield Ask("GET", "/connectors?expand=info&expand=status", headers=json)
    for path in ("/connectors", "/connectors/NAME", "/connectors/NAME/status"):
        yield Ask("GET", path, headers=json)
    yield Ask("GET", "/connectors/NAME/tasks", words=state != "RUNNING", headers=json)
    yield Ask("GET", "/connectors/NAME/tasks/0/status", headers=json)
    yield Ask("GET", "/connector-plugins", words=False, headers=json)
    plugin = {"connector.class": JDBC, "topics": "getPlugins"}
    validate = f"/connector-plugins/{JDBC}/config/validate"
    yield Ask("PUT", validate, plugin, words=False, headers=json)
    yield Ask("POST", "/connectors", {"name": "NAME", "config": "CONFIG"}, headers=json)
    if state != "RUNNING":
        return
    for part, content, then in (("/pause", None, "PAUSED"), ("/resume", '""', "RUNNING")):
        yield Ask("PUT", f"/connectors/NAME{part}", headers=json, content=content)
        for task in (0, 1):
            yield Ask("GET", f"/connectors/NAME/tasks/{task}/status", until=then)
    yield Ask("POST", "/connectors/NAME/tasks/0/restart", headers=json, content='""')
    yield Ask("GET", "/connectors/NAME/tasks/0/status", until="RUNNING")
    yield Ask("PUT", "/connectors/NAME/config", {}, words=False, headers=json)
    yield Ask("DELETE", "/connectors/none", headers=json)


def of_tools(state: str) -> Iterator[Ask]:
    for tool in (of_kcctl, of_kafka_ui, of_redpanda_console, of_akhq):
        yield from tool(state)


def of_a_life() -> Iterator[Ask]:
    yield Ask("GET", "/")
    yield Ask("GET", "/health")
    yield Ask("GET", "/connectors")
    yield Ask("POST", "/connectors", {"name": "NAME", "config": "CONFIG"})
    yield Ask("POST", "/connectors", {"name": "NAME", "config": "CONFIG"})
    yield Ask("GET", "/connectors/NAME/tasks/1/status", until="RUNNING")
    yield Ask("GET", "/connectors/NAME/tasks/0/status", until="RUNNING")
    yield Ask("GET", "/connectors/NAME/status")
    yield Ask("GET", "/connectors/NAME")
    yield Ask("GET", "/connectors/NAME/config")
    yield Ask("GET", "/connectors/NAME/tasks", words=False)
    yield Ask("GET", "/connectors?expand=status")
    yield Ask("GET", "/connectors?expand=info")
    yield Ask("GET", "/connectors?expand=status&expand=info")
    yield Ask("GET", "/connectors?expand=nonsense")
    yield Ask("GET", "/connectors/NAME/topics", words=False)
    yield Ask("GET", "/connectors/NAME/tasks/7/status")
    yield from of_tools("RUNNING")
    # In Kafka Connect, restarting a task that does not exist creates one, which fails.
    yield Ask("PATCH", "/connectors/NAME/offsets", {"offsets": []})
    yield Ask("DELETE", "/connectors/NAME/offsets")
    yield Ask("PUT", "/connectors/NAME/config", {"name": "other", "connector.class": JDBC})
    yield Ask("PUT", "/connectors/NAME/pause")
    yield Ask("PUT", "/connectors/NAME/pause")
    yield Ask("GET", "/connectors/NAME/tasks/0/status", until="PAUSED")
    yield Ask("GET", "/connectors/NAME/tasks/1/status", until="PAUSED")
    yield Ask("GET", "/connectors/NAME/status", until='"connector":{"state":"PAUSED"')
    yield Ask("PUT", "/connectors/NAME/resume")
    yield Ask("GET", "/connectors/NAME/tasks/0/status", until="RUNNING")
    yield Ask("GET", "/connectors/NAME/tasks/1/status", until="RUNNING")
    yield Ask("POST", "/connectors/NAME/restart")
    yield Ask("POST", "/connectors/NAME/restart?onlyFailed=true")
    yield Ask("POST", "/connectors/NAME/restart?includeTasks=true&onlyFailed=true")
    yield Ask("POST", "/connectors/NAME/tasks/0/restart")
    yield Ask("GET", "/connectors/NAME/tasks/0/status", until="RUNNING")
    yield Ask("PATCH", "/connectors/NAME/config", {"tasks.max": "1"})
    yield Ask("GET", "/connectors/NAME/tasks/0/status", until="RUNNING")
    yield Ask("GET", "/connectors/NAME")
    yield Ask("PATCH", "/connectors/NAME/config", {"errors.tolerance": None})
    yield Ask("GET", "/connectors/NAME/config")
    yield Ask("PUT", "/connectors/NAME/topics/reset")
    yield Ask("PUT", "/connectors/NAME/stop")
    yield Ask("PUT", "/connectors/NAME/stop")
    yield Ask("GET", "/connectors/NAME/status", until='"connector":{"state":"STOPPED"')
    yield Ask("GET", "/connectors/NAME")
    yield Ask("GET", "/connectors/NAME/tasks")
    yield from of_tools("STOPPED")
    for wrong in (
        {"offset": {"kafka_offset": 1}},
        {"partition": {"kafka_topic": "t"}, "offset": {"kafka_offset": 1}},
        {"partition": {"kafka_topic": None, "kafka_partition": 0}, "offset": {}},
        {"partition": {"kafka_topic": "t", "kafka_partition": None}, "offset": {}},
        {"partition": {"kafka_topic": "t", "kafka_partition": "x"}, "offset": {}},
        {"partition": {"kafka_topic": "t", "kafka_partition": 0}, "offset": {}},
        {"partition": {"kafka_topic": "t", "kafka_partition": 0}, "offset": {"kafka_offset": "x"}},
    ):
        yield Ask("PATCH", "/connectors/NAME/offsets", {"offsets": [wrong]})
    for number in NO_NUMBERS:
        partition = {"kafka_topic": "t", "kafka_partition": number}
        yield Ask("PATCH", "/connectors/NAME/offsets", {"offsets": [{"partition": partition}]})
        partition = {"kafka_topic": "t", "kafka_partition": 0}
        wrong = {"partition": partition, "offset": {"kafka_offset": number}}
        yield Ask("PATCH", "/connectors/NAME/offsets", {"offsets": [wrong]})
    yield Ask("DELETE", "/connectors/NAME/offsets", words=False)  # a connector may keep its own
    yield Ask("GET", "/connectors/NAME/offsets")
    yield Ask("PUT", "/connectors/NAME/resume")
    yield Ask("GET", "/connectors/NAME/tasks/0/status", until="RUNNING")
    yield Ask("DELETE", "/connectors/NAME")
    yield Ask("GET", "/connectors/NAME")
    yield Ask("GET", "/connectors")


ASKED: list[Callable[[], Iterator[Ask]]] = [
    of_an_unknown_connector,
    of_mistakes,
    of_nulls_and_numbers,
    of_plugins_and_loggers,
    of_paths_and_methods,
    of_headers_and_queries,
    of_more_loggers,
    of_names,
    of_values,
    of_a_failure,
    of_a_source,
    of_a_life,
    of_initial_states,
]
