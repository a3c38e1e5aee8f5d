"""A Kafka that lets nobody in without TLS and a login, and an OAuth server that it trusts."""

from __future__ import annotations

import base64
import json
import subprocess
import threading
import time
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from semel_lab.embedded import Kafka
from semel_lab.embedded.process import LOOPBACK
from tests.patience import PATIENCE
from tests.rest.authority import Authority

USER, PASSWORD = "me", 'se"cret;\\'
_LOGIN = "org.apache.kafka.common.security"
_LISTENER = "listener.name.sasl_ssl"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")


def _escaped(text: str) -> str:
    """As Java reads it from a JAAS configuration."""
    return text.replace("\\", "\\\\").replace('"', '\\"')


class SecuredKafka(Kafka):
    """A Kafka with a secured listener. Its plain one is only for the setup of the tests."""

    port_names = ("kafka", "controller", "secure")

    def __init__(self, directory: Path, authority: Authority) -> None:
        super().__init__(directory, heap="256m", short_lived=True)
        self._authority = authority
        self._key_store = authority.key_store("broker")

    @property
    def bootstrap_servers(self) -> str:
        return f"{LOOPBACK}:{self._ports['secure']}"

    @property
    def plain(self) -> str:
        return self.address

    def add_user(self, name: str, password: str) -> None:
        admin = AdminClient({"bootstrap.servers": self.plain})
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
            change = UserScramCredentialUpsertion(
                name, ScramCredentialInfo(mechanism, 4096), password.encode()
            )
            admin.alter_user_scram_credentials([change])[name].result(PATIENCE)

    def allow(self, user: str, operation: AclOperation, kind: ResourceType, name: str) -> None:
        """Allow an operation to a user who has no rights otherwise."""
        admin = AdminClient({"bootstrap.servers": self.plain})
        rule = AclBinding(
            *(kind, name, ResourcePatternType.LITERAL),
            *(f"User:{user}", "*", operation, AclPermissionType.ALLOW),
        )
        admin.create_acls([rule])[rule].result(PATIENCE)

    def _settings(self) -> dict[str, Any]:
        given = super()._settings()
        scram = f"{_LOGIN}.scram.ScramLoginModule required;"
        # Java reads "\\" in a file of properties as "\".
        password = _escaped(PASSWORD).replace("\\", "\\\\")
        return {
            **given,
            "listeners": f"{given['listeners']},SASL_SSL://{self.bootstrap_servers}",
            "advertised.listeners": f"PLAINTEXT://{self.address},SASL_SSL://{self.bootstrap_servers}",
            "listener.security.protocol.map": (
                "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL_SSL:SASL_SSL"
            ),
            "auto.create.topics.enable": "true",
            "num.partitions": "3",
            "sasl.enabled.mechanisms": ",".join(MECHANISMS),
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": f"User:ANONYMOUS;User:{USER}",
            "ssl.keystore.location": self._key_store,
            "ssl.keystore.type": "PKCS12",
            "ssl.keystore.password": self._authority.password,
            f"{_LISTENER}.plain.sasl.jaas.config": (
                f'{_LOGIN}.plain.PlainLoginModule required user_{USER}="{password}";'
            ),
            f"{_LISTENER}.scram-sha-256.sasl.jaas.config": scram,
            f"{_LISTENER}.scram-sha-512.sasl.jaas.config": scram,
            f"{_LISTENER}.oauthbearer.sasl.jaas.config": (
                f"{_LOGIN}.oauthbearer.OAuthBearerLoginModule required;"
            ),
        }


class OAuthServer:
    """Gives tokens, which nobody has signed, to a client that knows its secret."""

    def __init__(self) -> None:
        given: list[str] = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                login = f"{USER}:secret".encode()
                allowed = self.headers["Authorization"] == (
                    "Basic " + base64.b64encode(login).decode()
                )
                body = json.dumps({"access_token": _token(), "expires_in": 300}).encode()
                self.send_response(200 if allowed else 401)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body) if allowed else 0))
                self.end_headers()
                if allowed:
                    given.append(USER)
                    self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self.given = given
        self._server = ThreadingHTTPServer((LOOPBACK, 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self._server.server_address[1]}/token"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(PATIENCE)


def _token() -> str:
    now = int(time.time())
    parts = ({"alg": "none"}, {"sub": USER, "iat": now, "exp": now + 300, "scope": "kafka"})
    texts = (base64.urlsafe_b64encode(json.dumps(p).encode()).rstrip(b"=") for p in parts)
    return ".".join(t.decode() for t in texts) + "."


def java_trust_store(authority: Authority) -> Path:
    """A store of Java's own kind, JKS."""
    made = authority.folder / "trusted.jks"
    subprocess.run(
        [
            *("keytool", "-importcert", "-noprompt", "-alias", "authority", "-storetype", "JKS"),
            *("-file", authority.pem, "-keystore", made, "-storepass", authority.password),
        ],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=True,
        timeout=PATIENCE,
    )
    return made


def login(mechanism: str, tokens: str = "", user: str = USER) -> Mapping[str, str]:
    """A client's settings as Kafka Connect's users write them."""
    if mechanism == "OAUTHBEARER":
        module = f"{_LOGIN}.oauthbearer.OAuthBearerLoginModule"
        return {
            "sasl.mechanism": mechanism,
            "sasl.jaas.config": f'{module} required clientId="{USER}" clientSecret="secret";',
            "sasl.oauthbearer.token.endpoint.url": tokens,
            "sasl.login.callback.handler.class": (
                f"{_LOGIN}.oauthbearer.OAuthBearerLoginCallbackHandler"
            ),
        }
    kind = "plain.Plain" if mechanism == "PLAIN" else "scram.Scram"
    return {
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": (
            f'{_LOGIN}.{kind}LoginModule required username="{user}" '
            f'password="{_escaped(PASSWORD)}";'
        ),
    }
