"""Who may use the REST API, over which connections, and what nobody gets to see."""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from types import EllipsisType
from typing import Any, cast

import httpx
import pytest

from semel.config import read, rest
from semel.config.rest import AUTHENTICATION, BASIC_AUTH, header_rules
from semel.config.worker import WorkerConfig
from semel.core import redact
from semel.core.errors import ConfigError
from semel.driver.runtime import Runtime
from semel.worker.alone import StandaloneHerder
from semel.worker.errors import UnknownWorker
from semel.worker.rest.guard import Hosts
from semel.worker.rest.listening import serving
from semel.worker.rest.tls import client_context
from semel.worker.rest.token import VARIABLE, token_for
from semel.worker.secrets import kept, shown
from semel_lab.embedded.process import LOOPBACK
from tests.engine.harness import LocalSpark
from tests.kafka.secured import java_trust_store
from tests.patience import PATIENCE
from tests.rest.authority import Authority
from tests.rest.still import still_worker

HTTP, HTTPS = f"http://{LOOPBACK}:0", f"https://{LOOPBACK}:0"
JDBC = "io.debezium.connector.jdbc.JdbcSinkConnector"
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
MODULE = "org.apache.kafka.connect.rest.basic.auth.extension.PropertyFileLoginModule"

Serve = Callable[[dict[str, str]], list[int]]
Sends = Callable[..., httpx.Response]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts a worker's API with these keys; returns the ports of its listeners."""
    with ExitStack() as ends:

        def start(keys: dict[str, str]) -> list[int]:
            config = read(WorkerConfig, {"listeners": HTTP, AUTHENTICATION: "none", **keys})
            runtime = ends.enter_context(Runtime(cast(Any, LocalSpark())))
            herder = StandaloneHerder(runtime, config)
            return ends.enter_context(serving(herder, config, cast(Any, None), runtime)).ports

        yield start


@pytest.fixture
def send(serve: Serve) -> Sends:
    """Starts a worker's API with these keys on one ``http`` listener, and sends it requests."""
    ports: dict[str, int] = {}

    def ask(keys: dict[str, str], method: str, path: str, **more: Any) -> httpx.Response:
        port = ports.setdefault(str(keys), 0) or serve(keys)[0]
        ports[str(keys)] = port
        return httpx.request(method, f"http://{LOOPBACK}:{port}{path}", timeout=PATIENCE, **more)

    return ask


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def users(tmp_path: Path) -> dict[str, str]:
    """The keys that demand a user: ada may do all, grace may read; so may the token of a robot."""
    credentials = tmp_path / "credentials.properties"
    credentials.write_text("ada=lovelace\ngrace=hop:per\n")
    jaas = tmp_path / "jaas.conf"
    jaas.write_text(f'// who\nKafkaConnect {{\n  {MODULE} required\n  file="{credentials}";\n}};\n')
    tokens = tmp_path / "tokens.properties"
    tokens.write_text("robot=r0b0t\n")
    return {
        "rest.extension.classes": BASIC_AUTH,
        "semel.rest.jaas.file": str(jaas),
        "semel.rest.tokens.file": str(tokens),
        "semel.rest.read.only.users": "grace,robot",
        "semel.rest.anonymous.paths": "/health",
    }


def encrypted(store: Path, authority: Authority, **more: str) -> dict[str, str]:
    keys = {"ssl.keystore.location": str(store), "ssl.keystore.password": authority.password}
    keys |= {k.replace("_", "."): v for k, v in more.items()}
    return {"listeners": HTTPS} | {f"listeners.https.{k}": v for k, v in keys.items()}


def trusting(authority: Authority, client: Path | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(authority.pem))
    if client is not None:
        context.load_cert_chain(client)
    return context


def get(port: int, context: ssl.SSLContext, path: str = "/connectors") -> httpx.Response:
    return httpx.get(f"https://{LOOPBACK}:{port}{path}", verify=context, timeout=PATIENCE)


# Encryption


@pytest.mark.parametrize("kind", ["pem_store", "key_store"])
def test_a_listener_is_encrypted_with_a_key_in_pem_or_pkcs12(
    kind: str, serve: Serve, authority: Authority
) -> None:
    store: Path = getattr(authority, kind)("worker")
    (port,) = serve(encrypted(store, authority))
    assert get(port, trusting(authority)).json() == []


def test_listeners_of_both_kinds_answer_side_by_side(serve: Serve, authority: Authority) -> None:
    keys = encrypted(authority.pem_store("worker"), authority)
    plain, secret = serve({**keys, "listeners": f"{HTTP},{HTTPS}"})
    assert httpx.get(f"http://{LOOPBACK}:{plain}/connectors", timeout=PATIENCE).json() == []
    assert get(secret, trusting(authority)).json() == []


def test_without_settings_of_its_own_a_listener_has_the_workers(
    serve: Serve, authority: Authority
) -> None:
    location = str(authority.pem_store("worker"))
    (port,) = serve({"listeners": HTTPS, "ssl.keystore.location": location})
    assert get(port, trusting(authority)).status_code == 200
    with pytest.raises(ConfigError, match=r"set listeners\.https\.ssl\.keystore\.location"):
        serve(
            {
                "listeners": HTTPS,
                "ssl.keystore.location": location,
                "listeners.https.ssl.enabled.protocols": "TLSv1.3",
            }
        )


@pytest.mark.parametrize(
    "store",
    [lambda a: a.pem, lambda a: a.trust_store, java_trust_store],
    ids=["pem", "pkcs12", "jks"],
)
def test_a_client_without_a_trusted_certificate_is_turned_away(
    store: Callable[[Authority], Path], serve: Serve, authority: Authority, tmp_path: Path
) -> None:
    more = {
        "ssl.client.auth": "required",
        "ssl.truststore.location": str(store(authority)),
        "ssl.truststore.password": authority.password,
    }
    (port,) = serve(encrypted(authority.pem_store("worker"), authority, **more))
    client = authority.pem_store("client")
    assert get(port, trusting(authority, client)).status_code == 200
    with pytest.raises(httpx.TransportError):
        get(port, trusting(authority))
    (tmp_path / "other").mkdir()
    untrusted = Authority(tmp_path / "other").pem_store("client")
    with pytest.raises(httpx.TransportError):
        get(port, trusting(authority, untrusted))


def test_the_name_in_a_certificate_may_be_one_that_only_reads(
    serve: Serve, authority: Authority
) -> None:
    more = {"ssl.client.auth": "required", "ssl.truststore.location": str(authority.pem)}
    keys = encrypted(authority.pem_store("worker"), authority, **more)
    (port,) = serve({**keys, "semel.rest.read.only.users": "viewer"})
    url = f"https://{LOOPBACK}:{port}/connectors/none"
    for name, status in (("viewer", 403), ("admin", 404)):
        context = trusting(authority, authority.pem_store(name))
        assert httpx.delete(url, verify=context, timeout=PATIENCE).status_code == status
        assert get(port, context).status_code == 200


def test_a_worker_calls_another_with_its_own_certificate(
    serve: Serve, authority: Authority
) -> None:
    more = {
        "ssl.client.auth": "required",
        "ssl.truststore.location": str(authority.trust_store),
        "ssl.truststore.password": authority.password,
    }
    keys = encrypted(authority.key_store("worker"), authority, **more)
    (port,) = serve(keys)
    assert get(port, client_context(read(WorkerConfig, keys))).status_code == 200


def test_old_protocols_are_refused(serve: Serve, authority: Authority) -> None:
    keys = encrypted(
        authority.pem_store("worker"),
        authority,
        **{"ssl.enabled.protocols": "TLSv1.3", "ssl.cipher.suites": "TLS_AES_256_GCM_SHA384"},
    )
    del keys["listeners.https.ssl.cipher.suites"]
    (port,) = serve(keys)
    context = trusting(authority)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(httpx.TransportError):
        get(port, context)


def test_cipher_suites_have_their_standard_names(serve: Serve, authority: Authority) -> None:
    suite = "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"
    more = {"ssl.cipher.suites": suite, "ssl.enabled.protocols": "TLSv1.2"}
    (port,) = serve(encrypted(authority.pem_store("worker"), authority, **more))
    assert get(port, trusting(authority)).status_code == 200
    context = trusting(authority)
    context.set_ciphers("ECDHE-ECDSA-AES256-GCM-SHA384")
    with pytest.raises(httpx.TransportError):
        get(port, context)


def test_what_cannot_be_read_as_a_key_is_refused_with_the_way_out(
    serve: Serve, authority: Authority, tmp_path: Path
) -> None:
    java = tmp_path / "old.jks"
    java.write_bytes(b"\xfe\xed\xfe\xed and so on")
    store = authority.key_store("worker")
    wrong = {
        "keytool -importkeystore": encrypted(java, authority),
        r"ssl\.keystore\.location=/\S+ cannot be read: No such file": encrypted(
            tmp_path / "none", authority
        ),
        "ssl.keystore.password": {
            **encrypted(store, authority),
            "listeners.https.ssl.keystore.password": "no",
        },
        "needs the authorities": encrypted(store, authority, ssl_client_auth="required"),
        "is not one of none, requested, required": encrypted(
            store, authority, ssl_client_auth="maybe"
        ),
        "must hold a private key": encrypted(authority.pem, authority),
    }
    for message, keys in wrong.items():
        with pytest.raises(ConfigError, match=message) as refused:
            serve(keys)
        assert authority.password not in str(refused.value)


# Users


@pytest.mark.parametrize(
    ("credentials", "reads", "writes"),
    [
        ({}, 401, 401),
        ({"auth": ("ada", "lovelace")}, 200, 404),
        ({"auth": ("ada", "wrong")}, 401, 401),
        ({"auth": ("nobody", "")}, 401, 401),
        ({"auth": ("grace", "hop:per")}, 200, 403),
        ({"headers": {"Authorization": "Bearer r0b0t"}}, 200, 403),
        ({"headers": {"Authorization": "bearer other"}}, 401, 401),
        ({"headers": {"Authorization": "Basic %%%"}}, 401, 401),
        ({"headers": {"Authorization": "Negotiate x"}}, 401, 401),
    ],
)
def test_a_request_must_prove_who_sends_it(
    credentials: dict[str, Any], reads: int, writes: int, send: Sends, users: dict[str, str]
) -> None:
    read_answer = send(users, "GET", "/connectors", **credentials)
    assert read_answer.status_code == reads
    if reads == 401:
        assert read_answer.text == "User cannot access the resource."
        assert read_answer.headers["www-authenticate"] == "Basic"
    assert send(users, "DELETE", "/connectors/none", **credentials).status_code == writes
    assert send(users, "PUT", "/connectors/none/pause", **credentials).status_code == writes
    validate = f"/connector-plugins/{JDBC}/config/validate"
    assert send(users, "PUT", validate, json={}, **credentials).status_code == reads


def test_probes_need_no_credentials_where_that_is_wanted(
    send: Sends, users: dict[str, str]
) -> None:
    assert send(users, "GET", "/health").status_code == 200
    assert send(users, "GET", "/openapi.json").status_code == 401


def test_the_jaas_file_may_be_named_in_java_options(
    send: Sends, users: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    jaas = users.pop("semel.rest.jaas.file")
    option = f"-Djava.security.auth.login.config={jaas}"
    monkeypatch.setenv("KAFKA_OPTS", f'-Xmx1g "{option}"')
    assert send(users, "GET", "/connectors", auth=("ada", "lovelace")).status_code == 200
    assert send(users, "GET", "/connectors").status_code == 401


def test_users_that_would_let_in_everybody_are_refused(
    serve: Serve, users: dict[str, str], tmp_path: Path
) -> None:
    extension = {"rest.extension.classes": BASIC_AUTH}
    jaas = Path(users["semel.rest.jaas.file"])

    def with_jaas(text: str) -> dict[str, str]:
        file = tmp_path / f"{abs(hash(text))}.conf"
        file.write_text(text)
        return {**extension, "semel.rest.jaas.file": str(file)}

    empty = tmp_path / "empty.properties"
    empty.write_text("# nobody\n")
    ldap = "org.eclipse.jetty.jaas.spi.LdapLoginModule"
    wrong = {
        "set semel.rest.jaas.file": extension,
        "which is a Java class": {"rest.extension.classes": "com.example.Audit"},
        "has no entry KafkaConnect": with_jaas(jaas.read_text().replace("KafkaConnect", "Kafka")),
        "names nobody: it would let anyone in": with_jaas(
            f'KafkaConnect {{ {MODULE} required file="{empty}"; }};'
        ),
        "has no option file": with_jaas(f"KafkaConnect {{ {MODULE} required; }};"),
        "LdapLoginModule, a Java class": with_jaas(
            f'KafkaConnect {{ {ldap} required debug="true"; }};'
        ),
        "no request could be recognised": {"semel.rest.read.only.users": "viewer"},
        "cannot be read: No such file": {"semel.rest.tokens.file": "/nowhere"},
    }
    for message, keys in wrong.items():
        with pytest.raises(ConfigError, match=message):
            serve(keys)


# The token that is the default


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the user's token is kept."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv(VARIABLE, raising=False)
    return tmp_path / "state" / "semel" / "worker-token"


DEFAULT = {AUTHENTICATION: "token"}


def test_without_a_login_a_worker_makes_a_token_and_asks_for_it(send: Sends, state: Path) -> None:
    refused = send(DEFAULT, "GET", "/connectors")
    assert refused.status_code == refused.json()["error_code"] == 401
    for told in (str(state), VARIABLE, "semel.rest.authentication=none", "Bearer"):
        assert told in refused.json()["message"]
    token = state.read_text().strip()
    assert (state.stat().st_mode & 0o777, state.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert len(token) >= 32 and token not in refused.text
    for right in ({"headers": bearer(token)}, {"auth": ("anybody", token)}):
        assert send(DEFAULT, "GET", "/connectors", **right).status_code == 200
        assert send(DEFAULT, "DELETE", "/connectors/none", **right).status_code == 404
    for wrong in ({"headers": bearer("x")}, {"auth": (token, "")}, {"auth": ("", "")}):
        assert send(DEFAULT, "GET", "/connectors", **wrong).status_code == 401
        assert send(DEFAULT, "DELETE", "/connectors/none", **wrong).status_code == 401


@pytest.mark.parametrize(
    "path",
    ["/", "/connectors", "/connector-plugins", "/metrics", "/admin/loggers", "/openapi.json"],
)
def test_nothing_but_health_is_told_without_the_token(path: str, send: Sends, state: Path) -> None:
    assert send(DEFAULT, "GET", path).status_code == 401
    assert send(DEFAULT, "GET", "/health").status_code == 200


def test_workers_and_commands_of_a_user_share_the_token(state: Path, serve: Serve) -> None:
    assert token_for("http://localhost:8083") is None
    first, second = serve(DEFAULT)[0], serve(DEFAULT)[0]
    token = state.read_text().strip()
    for port in (first, second):
        url = f"http://{LOOPBACK}:{port}"
        assert token_for(url) == token
        asked = httpx.get(f"{url}/connectors", headers=bearer(token), timeout=PATIENCE)
        assert asked.status_code == 200
    assert token_for("http://localhost:8083/") == token
    assert token_for("http://worker.example:8083") is None  # it is for this machine


def test_a_variable_gives_the_token(
    send: Sends, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "given")
    assert VARIABLE in send(DEFAULT, "GET", "/connectors").text
    assert send(DEFAULT, "GET", "/connectors", headers=bearer("given")).status_code == 200
    assert token_for("http://worker.example:8083") == "given"
    assert not state.exists()


def test_a_token_that_others_can_read_is_not_used(serve: Serve, state: Path) -> None:
    state.parent.mkdir(parents=True)
    state.write_text("known\n")
    state.chmod(0o644)
    with pytest.raises(ConfigError, match="is not only yours to read: remove it"):
        serve(DEFAULT)
    state.chmod(0o600)
    state.write_text("\n")
    with pytest.raises(ConfigError, match="is empty: remove it"):
        serve(DEFAULT)


def test_a_worker_that_cannot_keep_a_token_says_what_to_set(serve: Serve, state: Path) -> None:
    state.parent.parent.write_text("a file where the folder should be")
    with pytest.raises(ConfigError, match=f"cannot be kept in .* Set {VARIABLE}"):
        serve(DEFAULT)


def test_a_worker_without_any_login_says_so(
    serve: Serve, users: dict[str, str], state: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def said(keys: dict[str, str]) -> str:
        caplog.clear()
        serve(keys)
        return caplog.text

    caplog.set_level("INFO", "semel")
    local = said({AUTHENTICATION: "none"})
    assert "has no login: any user of this machine controls this worker" in local
    everywhere = said({AUTHENTICATION: "none", "listeners": "http://0.0.0.0:0"})
    assert "has no login: anyone who can reach it controls this worker" in everywhere
    assert f"requests need the token in {state}" in said(DEFAULT)
    for keys in (users, DEFAULT):
        assert "has no login" not in said(keys)


def test_a_certificate_that_is_demanded_is_a_login(
    serve: Serve, authority: Authority, state: Path
) -> None:
    more = {"ssl.client.auth": "required", "ssl.truststore.location": str(authority.pem)}
    keys = encrypted(authority.pem_store("worker"), authority, **more)
    (port,) = serve({**keys, **DEFAULT})
    assert get(port, trusting(authority, authority.pem_store("client"))).status_code == 200
    assert not state.exists()
    more["ssl.client.auth"] = "requested"
    keys = encrypted(authority.pem_store("worker"), authority, **more)
    (port,) = serve({**keys, **DEFAULT})
    assert get(port, trusting(authority, authority.pem_store("client"))).status_code == 200
    assert get(port, trusting(authority)).status_code == 401


# Browsers


HOSTS = {
    **dict.fromkeys(("evil.example", "evil.example:8083", "localhost.evil.example"), False),
    **dict.fromkeys(("127.0.0.1.evil.example",), False),
    **dict.fromkeys(("localhost", "LOCALHOST:8083", "localhost.", "127.0.0.1:8083"), True),
    **dict.fromkeys(("192.0.2.7", "[::1]:8083", "worker.example:80", "proxy.example"), True),
}


@pytest.mark.parametrize("authentication", ["none", "token"])
def test_a_worker_answers_only_to_its_own_names(
    authentication: str, send: Sends, state: Path
) -> None:
    keys = {
        AUTHENTICATION: authentication,
        "rest.advertised.host.name": "worker.example",
        "semel.rest.allowed.hosts": "proxy.example",
    }
    send(keys, "GET", "/health")
    token = bearer(state.read_text().strip()) if authentication == "token" else {}
    requests = (("GET", "/connectors"), ("DELETE", "/connectors/none"))
    for (host, passes), (method, path) in product(HOSTS.items(), requests):
        answer = send(keys, method, path, headers={"Host": host, **token})
        assert (answer.status_code == 403) is not passes, host
        if not passes:
            assert "semel.rest.allowed.hosts does not name" in answer.json()["message"]


@pytest.mark.parametrize(
    ("needed", "server", "passes"),
    [(True, "192.0.2.1", True), (True, "127.0.0.1", False), (False, "192.0.2.1", False)],
)
def test_another_name_is_refused_where_no_token_protects_a_worker_or_it_is_local(
    needed: bool, server: str, passes: bool
) -> None:
    passed: list[object] = []

    async def app(scope: object, _receive: object, _send: object) -> None:
        passed.append(scope)

    async def send(_message: object) -> None:
        pass

    headers = [(b"host", b"connect:8083")]
    scope = {"type": "http", "method": "GET", "headers": headers, "server": (server, 8083)}
    hosts = Hosts(cast(Any, app), {"localhost"}, re.compile("(?!)"), needed=needed)
    asyncio.run(hosts(scope, cast(Any, None), cast(Any, send)))
    assert bool(passed) is passes


@pytest.mark.parametrize("allowed", ["", "https://*.team.example"])
def test_a_foreign_page_cannot_change_anything(send: Sends, allowed: str) -> None:
    keys = {AUTHENTICATION: "none", "access.control.allow.origin": allowed}
    friend = {"Origin": "https://ui.team.example"}
    answer = send(keys, "POST", "/connectors/none/restart", headers=friend)
    assert answer.status_code == (404 if allowed else 403)
    for origin in ("https://evil.example", "null", "http://localhost:1", "http://["):
        answer = send(keys, "POST", "/connectors/none/restart", headers={"Origin": origin})
        assert answer.status_code == 403
        assert "access.control.allow.origin" in answer.json()["message"]


# The log


def test_changes_and_failed_logins_are_logged_with_user_and_address(
    send: Sends, users: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "semel.worker.rest")
    ada, grace = ("ada", "lovelace"), ("grace", "hop:per")
    send(users, "GET", "/connectors", auth=ada)
    send(users, "DELETE", "/connectors/none", auth=ada)
    send(users, "PUT", "/connectors/none/stop", auth=grace)
    send(users, "GET", "/connectors", auth=("ada\nall is well", "x"))
    send(users, "GET", "/connectors", headers=bearer("r0b0t?"))
    send(users, "GET", "/connectors/%0Aforged", headers={"X-Forwarded-For": "10.9.8.7"})
    no_text = send(users, "GET", "/connectors", headers={"Authorization": b"Basic \xed\xa0\x80"})
    assert no_text.status_code == 401
    assert [r.getMessage() for r in caplog.records if r.name == "semel.worker.rest.guard"] == [
        f"DELETE /connectors/none from {LOOPBACK}, by 'ada': 404",
        f"refused: PUT /connectors/none/stop from {LOOPBACK}, by 'grace', who may only read",
        f"login refused: GET /connectors from {LOOPBACK}, by 'ada\\nall is well'",
        f"login refused: GET /connectors from {LOOPBACK}, by a token",
        f"login refused: GET /connectors/%0Aforged from {LOOPBACK}, by nobody",
        f"login refused: GET /connectors from {LOOPBACK}, by a token",
    ]


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


# What passes


def test_a_body_that_is_too_large_is_refused(send: Sends) -> None:
    keys = {"semel.rest.max.request.bytes": "2048"}
    body = {"name": "x", "config": {"note": "x" * 3000}}
    refused = send(keys, "POST", "/connectors", json=body)
    assert refused.status_code == 413
    assert refused.json()["error_code"] == 413
    json = {"Content-Type": "application/json"}
    pieces = send(keys, "POST", "/connectors", content=iter([b"x" * 1500] * 2), headers=json)
    assert pieces.status_code == 413
    small = {"name": "x", "config": {"note": "x"}}
    assert send(keys, "POST", "/connectors", json=small).status_code == 400


def test_answers_have_the_headers_that_are_configured(send: Sends) -> None:
    rules = 'set X-Frame-Options:DENY, "add Cache-Control: no-cache, no-store", setDate Expires:0'
    keys = {"response.http.headers.config": rules}
    for path in ("/connectors", "/connectors/none/status"):
        headers = send(keys, "GET", path).headers
        assert headers["x-frame-options"] == "DENY"
        assert headers["cache-control"] == "no-cache, no-store"
        assert headers["expires"].endswith("GMT")


def test_header_rules_may_be_on_lines_of_their_own() -> None:
    rules = header_rules("\n set X-Frame-Options: \r DENY,\n add Cache-Control:no-store\n")
    assert [(r.name, r.value) for r in rules] == [
        ("X-Frame-Options", "DENY"),
        ("Cache-Control", "no-store"),
    ]


@pytest.mark.parametrize(
    "rule",
    [
        *("X-Frame-Options:DENY", "set nothing", "put A:b", "set A B:c", "setDate Expires:soon"),
        *("setDate Expires:99999999999999999", "set A:\u20ac", "set \xfc:b"),
        "set A:" + 200_000 * "b",
    ],
)
def test_a_malformed_header_rule_is_refused(rule: str) -> None:
    with pytest.raises(ConfigError, match=r"response\.http\.headers\.config="):
        read(WorkerConfig, {"response.http.headers.config": rule})


def test_browsers_may_call_from_the_origins_that_are_allowed(
    send: Sends, users: dict[str, str]
) -> None:
    keys = {
        **users,
        "access.control.allow.origin": "https://console.example,https://*.team.example",
        "access.control.allow.methods": "GET,PUT",
    }
    for origin, allowed in (
        ("https://console.example", True),
        ("https://ui.team.example", True),
        ("https://elsewhere.example", False),
    ):
        asks = {"Origin": origin, "Access-Control-Request-Method": "PUT"}
        preflight = send(keys, "OPTIONS", "/connectors", headers=asks)  # without credentials
        assert ("access-control-allow-origin" in preflight.headers) is allowed
        assert preflight.is_success is allowed
    refused = send(keys, "GET", "/connectors", headers={"Origin": "https://console.example"})
    assert refused.status_code == 401
    assert refused.headers["access-control-allow-origin"] == "https://console.example"


def test_loggers_have_listeners_of_their_own_or_none(serve: Serve) -> None:
    def status(port: int, path: str) -> int:
        return httpx.get(f"http://{LOOPBACK}:{port}{path}", timeout=PATIENCE).status_code

    public, admin = serve({"admin.listeners": HTTP, "semel.rest.max.request.bytes": "2048"})
    large = {"level": "INFO", "note": "x" * 3000}
    url = f"http://{LOOPBACK}:{admin}/admin/loggers/semel"
    assert httpx.put(url, json=large, timeout=PATIENCE).status_code == 413
    assert (status(public, "/connectors"), status(public, "/admin/loggers")) == (200, 404)
    assert (status(admin, "/connectors"), status(admin, "/admin/loggers")) == (404, 200)
    (nowhere,) = serve({"admin.listeners": ""})
    assert (status(nowhere, "/connectors"), status(nowhere, "/admin/loggers")) == (200, 404)


def test_admin_listeners_are_not_mistaken_for_a_setting_of_the_admin_client() -> None:
    config = read(WorkerConfig, {"admin.listeners": HTTP, "admin.client.id": "me"})
    found = config.inherited({})
    assert "admin.override.listeners" not in found
    assert found["admin.override.client.id"] == "me"


V6 = "[2001:db8::5]:1"


@pytest.mark.parametrize(
    ("keys", "scheme", "name"),
    [
        ({"listeners": "https://a:1,http://b:2"}, "http", "b:2"),
        ({"listeners": "https://a:1"}, "https", "a:1"),
        ({"listeners": "http://:1"}, "http", "192.0.2.7:1"),
        ({"listeners": "http://0.0.0.0:1"}, "http", "192.0.2.7:1"),
        ({"listeners": "http://:1", "rest.advertised.host.name": "a"}, "http", "a:1"),
        ({"listeners": "http://[::1]:2"}, "http", "[::1]:2"),
        ({"listeners": "http://:1", "rest.advertised.host.name": "2001:db8::5"}, "http", V6),
        ({"listeners": "http://:1", "rest.advertised.host.name": "[2001:db8::5]"}, "http", V6),
        (
            {"listeners": "http://b:2,HTTPS://a:1", "rest.advertised.listener": "https"},
            "https",
            "a:1",
        ),
    ],
)
def test_other_workers_are_told_of_the_plain_listener_unless_otherwise_said(
    keys: dict[str, str], scheme: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rest, "_this_machine", lambda: "192.0.2.7")
    config = read(WorkerConfig, keys)
    assert (config.scheme, config.id) == (scheme, name)


@pytest.mark.parametrize(
    ("resolved", "address"), [("10.1.2.3", "10.1.2.3"), ("127.0.1.1", "127.0.0.1")]
)
def test_a_worker_is_known_by_an_address_that_other_machines_see(
    resolved: str, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "gethostbyname", lambda _name: resolved)
    monkeypatch.setattr(rest, "_ELSEWHERE", "127.0.0.1")  # which is seen as itself
    assert rest._this_machine.__wrapped__() == address


# What nobody gets to see


def test_secrets_are_hidden_in_answers_and_survive_a_change(
    send: Sends, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SEMEL_TEST_PASSWORD", "resolved-and-secret")
    secrets = {
        "connection.password": "plainly-secret",
        "consumer.override.sasl.jaas.config": f'{PLAIN} required username="me" password="in-jaas";',
        "value.converter.basic.auth.user.info": "me:in-user-info",
    }
    config = {
        "name": "hidden",
        "connector.class": JDBC,
        "topics": "t",
        "connection.url": "postgresql://me:in-the-url@localhost:1/db",
        "key.converter.note": "${env:SEMEL_TEST_PASSWORD}",
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter.schemas.enable": "false",
        **secrets,
    }
    told = ("plainly-secret", "in-jaas", "in-user-info", "in-the-url", "resolved-and-secret")
    provider = "org.apache.kafka.common.config.provider.EnvVarConfigProvider"
    keys = {"config.providers": "env", "config.providers.env.class": provider}
    body = {"name": "hidden", "config": config, "initial_state": "STOPPED"}
    made = send(keys, "POST", "/connectors", json=body)
    assert made.status_code == 201, made.text
    path = "/connectors/hidden"
    validate = f"/connector-plugins/{JDBC}/config/validate"
    answers = [
        made,
        send(keys, "GET", path),
        send(keys, "GET", f"{path}/config"),
        send(keys, "GET", f"{path}/tasks"),
        send(keys, "GET", "/connectors?expand=info&expand=status"),
        send(keys, "PUT", validate, json=config),
    ]
    for answer in answers:
        assert answer.is_success
        assert [secret for secret in told if secret in answer.text] == []
    shown = answers[2].json()
    assert {shown[name] for name in secrets} == {"[hidden]"}
    assert shown["key.converter.note"] == "${env:SEMEL_TEST_PASSWORD}"

    changed = send(keys, "PUT", f"{path}/config", json={**shown, "tasks.max": "3"})
    assert changed.status_code == 200, changed.text
    assert send(
        keys, "PATCH", f"{path}/config", json={"connection.password": "[hidden]"}
    ).is_success
    lost = send(keys, "PUT", "/connectors/other/config", json={**shown, "name": "other"})
    assert lost.status_code == 400
    assert "no secret is stored yet" in lost.json()["message"]


def test_a_configuration_is_shown_as_it_was_sent_whatever_a_secrets_value_is(
    send: Sends, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A value that equals the secret's is not hidden where it appears by itself. Errors, which may
    quote what was resolved, hide it."""
    monkeypatch.setattr(redact, "_hidden", {})
    monkeypatch.setattr(redact, "_patterns", [])
    secrets = tmp_path / "db.properties"
    secrets.write_text("pw=semel\n")
    config = {
        "name": "semel",
        "connector.class": JDBC,
        "topics": "semel",
        "connection.url": "jdbc:postgresql://127.0.0.1:1/semel",
        "connection.username": "semel",
        "connection.password": f"${{file:{secrets}:pw}}",
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter.schemas.enable": "false",
    }
    provider = "org.apache.kafka.common.config.provider.FileConfigProvider"
    keys = {"config.providers": "file", "config.providers.file.class": provider}
    body = {"name": "semel", "config": config, "initial_state": "STOPPED"}
    made = send(keys, "POST", "/connectors", json=body)
    assert made.status_code == 201, made.text
    assert made.json()["config"] == config
    assert send(keys, "GET", "/connectors/semel/config").json() == config
    validate = f"/connector-plugins/{JDBC}/config/validate"
    values = {
        each["value"]["name"]: each["value"]["value"]
        for each in send(keys, "PUT", validate, json=config).json()["configs"]
    }
    assert values["connection.username"] == values["topics"] == "semel"
    wrong = send(keys, "PATCH", "/connectors/semel/config", json={"tasks.max": "semel"})
    assert "tasks.max='***'" in wrong.json()["message"]


def test_a_hidden_value_that_is_sent_back_unchanged_keeps_the_secret() -> None:
    present = {
        "connector.class": JDBC,
        "connection.url": "postgresql://me:in-the-url@localhost:1/db",
        "connection.password": "plainly-secret",
        "tasks.max": "1",
    }
    assert kept({**shown(present), "tasks.max": "3"}, present) == {**present, "tasks.max": "3"}
    moved = {**present, "connection.password": "another"}
    assert kept({**shown(present), "connection.password": "another"}, present) == moved


@pytest.mark.parametrize("given", [{}, {"name": None}])
def test_a_null_is_not_told_as_a_missing_name(given: dict[str, Any]) -> None:
    client, config = still_worker().client, {"connector.class": JDBC, "topics": None, **given}
    for answer in (
        client.put("/connectors/new/config", json=config),
        client.post("/connectors", json={"name": "new", "config": config}),
    ):
        assert answer.status_code == 400, answer.text
        assert "Null value can not be supplied" in answer.json()["message"]
        assert "name is required" not in answer.json()["message"]


def test_what_is_wrong_with_a_body_is_said_with_its_place() -> None:
    headers = {"Content-Type": "application/json"}
    body = '{"name": "new", "config": {}} more'
    answer = still_worker().client.post("/connectors", content=body, headers=headers)
    why = "HTTP 400 The body is not JSON: Extra data: line 1 column 31 (char 30)"
    assert answer.json() == {"error_code": 400, "message": why}


@pytest.mark.parametrize("method", ["PUT", "PATCH"])
def test_only_the_leader_knows_what_a_change_is_about(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that has not yet read of a new connector neither denies it nor its secret."""

    def lead() -> None:
        raise UnknownWorker

    still = still_worker()
    monkeypatch.setattr(still.herder, "lead", lead)
    config = {"connector.class": JDBC, "connection.password": "[hidden]"}
    answer = still.client.request(method, "/connectors/new/config", json=config)
    assert answer.status_code == 409, answer.text


@pytest.mark.parametrize(
    ("url", "seen"),
    [
        ("postgresql://me:secret@db:5432/x", "postgresql://***@db:5432/x"),
        ("jdbc:postgresql://db/x?ssl=true", "jdbc:postgresql://db/x?ssl=true"),
        ("jdbc:sqlserver://db;password={a b;c}", "[hidden]"),
        ("host=db password=secret", "[hidden]"),
        ("${file:/etc/secrets:url}", "${file:/etc/secrets:url}"),
        ("postgresql://me:${env:PW}@db/x?password=${env:PW}", ...),
        ("jdbc:sqlserver://${env:DB};user=${file:/s:u};password=${file:/s:p}", ...),
        ("jdbc:postgresql://db/x?password=${file:/s:p}more", "[hidden]"),
        ("postgresql://me:${env:PW}more@db/x", "postgresql://***@db/x"),
        ("postgresql://me:${more}@db/x", "postgresql://***@db/x"),
    ],
)
def test_an_address_is_shown_unless_it_may_hold_a_secret(
    url: str, seen: str | EllipsisType
) -> None:
    """An ellipsis stands for the URL as it was given."""
    told = shown({"connector.class": JDBC, "connection.url": url})["connection.url"]
    assert told == (url if seen is ... else seen)
