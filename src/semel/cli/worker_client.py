"""A client of a worker's REST API: semel's, or Kafka Connect's own. It imports nothing heavy, so
that commands and the completion of names start fast."""

from __future__ import annotations

import base64
import difflib
import json
import os
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from http.client import HTTPException
from typing import Any

from semel.core.errors import ConfigError, SemelError, ServiceError
from semel.worker.rest.token import VARIABLE, is_local, token_for

URL, USER, PASSWORD, CA = (f"SEMEL_WORKER_{what}" for what in ("URL", "USER", "PASSWORD", "CA"))
"""Variables for what the options do not say."""
DEFAULT = "http://localhost:8083"
_ANSWERS_IN = 100.0
"""Seconds: a worker takes up to 90 for some requests."""
_REBALANCES = 20.0
"""Seconds for which a request is repeated while the workers share out their connectors."""
_AGAIN = 0.5
_LARGEST, _PIECE = 64 * 1024 * 1024, 1 << 16
_BUSY = ("conflicting operation", "rebalance", "known leader")


def credentials(url: str, user: str) -> str:
    """The header ``Authorization`` for a worker; empty if nothing is given. A user in the URL or in
    ``user``, as ``NAME`` or ``NAME:PASSWORD``, comes before a token: that of the environment, or
    the one that a worker of this user on this machine has made.

    Raises:
        ConfigError: a user has no password, or the token's file cannot be used.
    """
    parts = urllib.parse.urlsplit(url)
    if not user and parts.username:
        secret = urllib.parse.unquote(parts.password or "")
        user = f"{urllib.parse.unquote(parts.username)}:{secret}"
    if not user:
        token = token_for(url)
        return f"Bearer {token}" if token else ""
    name, colon, password = user.partition(":")
    if not colon:
        password = os.environ.get(PASSWORD, "")
        if not password:
            raise ConfigError(f"user {name} has no password: set {PASSWORD}")
    return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()


class Refused(ServiceError):
    """An answer with an error; ``status`` is its code."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Client:
    """Asks one worker. ``url`` has no user info; ``timeout`` is how long one answer may take."""

    url: str
    authorization: str = field(default="", repr=False)
    tls: ssl.SSLContext | None = None
    timeout: float = _ANSWERS_IN

    @cached_property
    def is_semel(self) -> bool:
        """Whether the worker is semel's."""
        match self.ask("GET", "/"):
            case {"version": _, "commit": str(commit)}:
                return commit.startswith("semel-")
        raise self._stranger()

    def names(self) -> list[str]:
        """The connectors' names."""
        answer = self.ask("GET", "/connectors")
        if not isinstance(answer, list):
            raise self._stranger()
        return sorted(map(str, answer))

    def statuses(self) -> list[dict[str, Any]]:
        """The status of each connector, with its class. One that was just created may have none."""
        answer = self.ask("GET", "/connectors", query={"expand": ["status", "info"]})
        new = {"connector": {"state": "UNASSIGNED", "worker_id": ""}, "tasks": [], "type": ""}
        try:
            return [
                {"name": name, **new, **each.get("status", {}), "class": _class_of(each)}
                for name, each in sorted(answer.items())
            ]
        except (AttributeError, TypeError):  # it has another shape
            raise self._stranger() from None

    def of(self, name: str, method: str, part: str = "", body: Any = None, **query: Any) -> Any:
        """Ask about one connector; ``part`` follows its name in the path.

        Raises:
            ConfigError: there is no such connector, or the request is refused.
            ServiceError: the worker cannot answer.
        """
        return self._about(name, method, "/connectors", part, body, query)

    def semel(self, name: str, method: str, part: str = "", body: Any = None, **query: Any) -> Any:
        """The same for the endpoints that only a semel worker has."""
        return self._about(name, method, "/semel/connectors", part, body, query)

    def _about(
        self, name: str, method: str, base: str, part: str, body: Any, query: Mapping[str, Any]
    ) -> Any:
        try:
            return self.ask(
                method, f"{base}/{urllib.parse.quote(name, safe='')}{part}", body, query
            )
        except Refused as error:
            if error.status == 404:
                raise self._unknown(name, error) from None
            raise

    def _unknown(self, name: str, error: Refused) -> SemelError:
        there = self.names()
        if name in there:
            return error
        near = difflib.get_close_matches(name, there, n=1)
        has = (
            f"It has {', '.join(there[:10])}{', ...' * (len(there) > 10)}"
            if there
            else "It has none"
        )
        hint = f"Did you mean {near[0]}?" if near else has
        return ConfigError(f"{self.url} has no connector {name}. {hint}")

    def ask(
        self, method: str, path: str, body: Any = None, query: Mapping[str, Any] | None = None
    ) -> Any:
        """The answer to a request; None if it has no body. While workers rebalance, the request is
        repeated.

        Raises:
            ConfigError: the request is refused.
            Refused: any other code says so.
            ServiceError: the worker cannot be reached, or is none.
        """
        until = time.monotonic() + min(_REBALANCES, self.timeout)
        while True:
            try:
                return self._answer(method, path, body, query or {})
            except Refused as error:
                busy = error.status == 409 and any(word in str(error) for word in _BUSY)
                if not busy or time.monotonic() > until:
                    raise
            time.sleep(_AGAIN)

    def _answer(self, method: str, path: str, body: Any, query: Mapping[str, Any]) -> Any:
        parameters = urllib.parse.urlencode(
            {k: v for k, v in query.items() if v is not None}, doseq=True
        )
        headers = {"Accept": "application/json", "Content-Type": "application/json"}
        if self.authorization:
            headers["Authorization"] = self.authorization
        request = urllib.request.Request(
            self.url + path + (f"?{parameters}" if parameters else ""),
            None if body is None else json.dumps(body).encode(),
            headers,
            method=method,
        )
        try:
            with self._opened(request) as answer:
                text = self._content(answer)
        except (OSError, HTTPException, ValueError) as error:
            raise self._unreachable(error) from None
        if answer.status >= 300:
            raise self._refusal(answer.status, text)
        try:
            return json.loads(text) if text.strip() else None
        except (ValueError, RecursionError):
            raise self._stranger() from None

    def _opened(self, request: urllib.request.Request) -> Any:
        """The answer, also if that is an error."""
        try:
            return self._opener.open(request, timeout=self.timeout)
        except urllib.error.HTTPError as error:
            return error

    def _content(self, answer: Any) -> bytes:
        """The body of an answer.

        Raises:
            ServiceError: it is too large.
            TimeoutError: it trickles in.
        """
        content, end = bytearray(), time.monotonic() + self.timeout
        while part := answer.read1(_PIECE):
            content += part
            if len(content) > _LARGEST:
                raise ServiceError(f"{self.url}: an answer has more than {_LARGEST:,} bytes")
            if time.monotonic() > end:
                raise TimeoutError
        return bytes(content)

    @cached_property
    def _opener(self) -> urllib.request.OpenerDirector:
        handlers = [urllib.request.HTTPSHandler(context=self.tls), _NoRedirects()]
        host = urllib.parse.urlsplit(self.url).hostname or ""
        if is_local(host):  # a proxy would be sent the token
            handlers.append(urllib.request.ProxyHandler({}))
        return urllib.request.build_opener(*handlers)

    def _refusal(self, code: int, text: bytes) -> SemelError:
        try:
            message = str(json.loads(text)["message"])
        except (ValueError, TypeError, KeyError, RecursionError):
            message = ""
        if code == 401:
            how = "refuses these credentials" if self.authorization else "requires a login"
            hint = f"Give --user, or a token in {VARIABLE}"
            return Refused(401, f"{self.url} {how} (401). {hint}")
        if code == 403:
            return Refused(403, f"{self.url} refuses: {message or 'forbidden'} (403)")
        if code == 400 and message:
            return ConfigError(message)
        if not message:
            return (
                self._stranger(f" (code {code})")
                if code < 500
                else Refused(code, f"{self.url} fails (code {code})")
            )
        return Refused(code, f"{self.url}: {message}")

    def _stranger(self, detail: str = "") -> ServiceError:
        return ServiceError(
            f"{self.url} does not answer as a worker of semel or Kafka Connect does{detail}. Check "
            f"--url or {URL}"
        )

    def _unreachable(self, error: Exception) -> ServiceError:
        reason = getattr(error, "reason", error)
        if isinstance(reason, ssl.SSLCertVerificationError):
            return ServiceError(
                f"the certificate of {self.url} is not trusted: {reason.verify_message}. Name its "
                f"authority with --ca-file or {CA}"
            )
        if isinstance(reason, TimeoutError):
            why = f"no answer within {self.timeout:g} s"
        else:
            why = getattr(reason, "strerror", None) or str(reason) or type(reason).__name__
        return ServiceError(
            f"no worker can be reached at {self.url}: {why}. Check --url or {URL}, and that the "
            "worker runs"
        )


def _class_of(connector: Mapping[str, Any]) -> str:
    return str(connector.get("info", {}).get("config", {}).get("connector.class", ""))


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Credentials go to nobody else."""

    def redirect_request(self, *_arguments: Any) -> None:
        return None


def client(
    url: str = "", user: str = "", ca: str = "", certificate: str = "", timeout: float = _ANSWERS_IN
) -> Client:
    """A client of the worker at a URL.

    Args:
        user: see :func:`credentials`.
        ca: a PEM file of the authorities that are trusted besides the system's.
        certificate: a PEM file with the client's certificate and its key.

    Raises:
        ConfigError: the URL or a file cannot be used.
    """
    address = (url or os.environ.get(URL, "") or DEFAULT).strip()
    try:
        parts = urllib.parse.urlsplit(address)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host = None
    if not host or parts.scheme not in ("http", "https") or parts.query or parts.fragment:
        raise ConfigError(
            f"{address} is not a worker's URL, such as {DEFAULT}: see --url and {URL}"
        )
    bare = parts._replace(netloc=parts.netloc.rpartition("@")[2], path=parts.path.rstrip("/"))
    tls = _tls(ca, certificate) if parts.scheme == "https" else None
    return Client(bare.geturl(), credentials(address, user), tls, timeout)


def _tls(ca: str, certificate: str) -> ssl.SSLContext:
    context = ssl.create_default_context()
    for what, file in (("--ca-file", ca), ("--cert", certificate)):
        try:
            if file and what == "--cert":
                context.load_cert_chain(file)
            elif file:
                context.load_verify_locations(file)
        except ssl.SSLError as error:
            why = error.reason or "it is not PEM"
            raise ConfigError(f"{what} {file} cannot be used: {why}") from None
        except OSError as error:
            raise ConfigError(f"{what} {file} cannot be read: {error.strerror}") from None
    return context
