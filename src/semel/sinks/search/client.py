"""One client for Elasticsearch and OpenSearch: opensearch-py's transport, and the meaning of
answers. It does not ask a server which of the two it is: it speaks the protocol that they share."""

from __future__ import annotations

import json
import logging
import re
import ssl
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

from semel.config import under
from semel.config.extras import require
from semel.core.answers import TooLarge, limit_urllib3
from semel.core.errors import (
    ConfigError,
    Problem,
    SemelError,
    ServiceError,
    TransientError,
    Unavailable,
    misconfigured,
)
from semel.core.problems import may_read
from semel.core.quoting import named
from semel.core.watchdog import waiting
from semel.kafka import security
from semel.sinks.search.config import PREFIX, SearchConfig

_BUSY = (429, 502, 503, 504)
_PASSING = ("index_not_found_exception", "index_closed_exception")
_OF_DOCUMENT = ("parsing_exception", "parse_exception", "strict_dynamic_mapping_exception")
_ARGUMENTS = re.compile(
    r"immense term|^limit of |is longer than the limit|\bfield \[|^mapper \[|"
    r"cannot be changed from|can't merge",
    re.IGNORECASE,
)
"""The reasons in an ``illegal_argument_exception`` that blame a document. A missing pipeline and an
alias without a write index raise the same exception."""
_MISTAKES = re.compile("CERTIFICATE|UNKNOWN_CA|PROTOCOL|HANDSHAKE_FAILURE|PEM|KEY_")
"""Permanent reasons for a failed TLS handshake; others mean that a node went down during it."""
_KAFKAS = re.compile(r"(?<![\w./-])(?=ssl\.)")
"""Where the name of one of Kafka's settings begins."""
_HOSTNAME = "ssl.endpoint.identification.algorithm"
_TLS = (
    "ssl.ca.location",
    "ssl.truststore.location",
    "ssl.truststore.type",
    "ssl.truststore.password",
    "ssl.certificate.location",
    "ssl.key.location",
    "ssl.keystore.location",
    "ssl.keystore.type",
)
_PAGE = 10_000
_KEEP = "5m"


class RequestTooLarge(ServiceError):
    """A request is longer than the server, or a proxy before it, takes."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A status and the body of the answer."""

    status: int
    body: Mapping[str, Any]

    @property
    def kind(self) -> str:
        """The type of the error, such as ``index_not_found_exception``."""
        return str(_error(self.body).get("type", ""))

    @property
    def reason(self) -> str:
        return explained(_error(self.body)) or json.dumps(dict(self.body))[:300]


@dataclass(frozen=True, slots=True)
class Failure:
    """An action of a bulk request that the server did not carry out, by its index in the
    request."""

    place: int
    status: int
    kind: str
    reason: str

    @property
    def of_document(self) -> bool:
        """Whether the document is to blame, so that others may succeed."""
        if self.status != 400:
            return False
        if self.kind == "illegal_argument_exception":
            return _ARGUMENTS.search(self.reason) is not None
        return self.kind.endswith(_OF_DOCUMENT)


class Client:
    """Connections to the nodes, opened when first used; serves several threads."""

    def __init__(self, config: SearchConfig, connector: str) -> None:
        self._config = config
        self._name = f"connector {connector}"
        require(
            "the search sink", "search", {"opensearchpy": "opensearch-py"}, key="connector.class"
        )
        self._tls = _tls(under(config.originals, PREFIX))
        self._opened: Any = None

    @property
    def where(self) -> str:
        return ",".join(self._config.urls)

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        expected: Collection[int] = (),
        **parameters: str,
    ) -> Answer:
        """Send one request, to another node if one cannot be reached.

        Raises:
            TransientError: no answer, or the server is busy; the request may have been carried out.
            ServiceError: the server refuses, and its status is not ``expected``.
        """
        from opensearchpy import exceptions

        headers = {"content-type": "application/x-ndjson"} if isinstance(body, bytes) else None
        try:
            with waiting(self.where):
                response = self._transport.perform_request(
                    method, path, params=parameters, body=body, headers=headers
                )
        except exceptions.SSLError as error:
            raise self._refused_handshake(error.info) from None
        except exceptions.ConnectionError as error:  # timeouts, too
            if isinstance(error.info, TooLarge):
                raise ServiceError(f"{self._name}: {error.info}") from None
            raise Unavailable(
                f"{self._name}: no answer from {self.where}: {_short(error.info)}"
            ) from None
        except exceptions.TransportError as error:
            answer = Answer(int(error.status_code), _object(error.info))
            if answer.status in expected:
                return answer
            raise self.problem(answer.status, answer.kind, answer.reason) from None
        except (exceptions.SerializationError, RecursionError) as error:
            raise self._strange(error) from None
        if not isinstance(response, Mapping):  # of a proxy, perhaps
            raise self._strange(repr(response))
        return Answer(200, response)

    def bulk(self, index: str, body: bytes) -> list[Failure]:
        """Send one bulk request; returns the actions that the server did not carry out.

        Raises:
            TransientError, ServiceError: see :meth:`request`; some of it may have been done.
            RequestTooLarge: nothing has been done.
        """
        fields = "errors,items.*.status,items.*.error"
        answer = self.request("POST", f"/{index}/_bulk", body, filter_path=fields)
        try:
            return list(_failures(answer.body["items"])) if answer.body["errors"] else []
        except (AttributeError, KeyError, TypeError, ValueError):
            raise self._strange(json.dumps(dict(answer.body))) from None

    def scan(self, index: str, query: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        """All hits of a search at one instant, that of its first page. Missing indices are empty.

        Raises:
            TransientError: a shard is unavailable, so the answer would be incomplete.
        """
        answer = self.request(
            "POST",
            f"/{index}/_search",
            {"size": _PAGE, "sort": ["_doc"], **query},
            expected=(404,),
            allow_partial_search_results="false",
            scroll=_KEEP,
        )
        if answer.status == 404:
            return
        scroll = None
        try:
            while True:
                page = answer.body
                scroll = page["_scroll_id"]
                if page["_shards"]["failed"]:
                    raise TransientError(f"{self._name}: a shard of index {named(index)} is down")
                yield from page["hits"]["hits"]
                if len(page["hits"]["hits"]) < _PAGE:
                    return
                answer = self.request(
                    "POST", "/_search/scroll", {"scroll": _KEEP, "scroll_id": scroll}
                )
        finally:
            if scroll is not None:
                self.request("DELETE", "/_search/scroll", {"scroll_id": [scroll]}, expected=(404,))

    def refresh(self, index: str) -> None:
        """Make everything that was written visible to searches."""
        self.request("POST", f"/{index}/_refresh", expected=(404,))

    def problem(self, status: int, kind: str, reason: str) -> SemelError:
        """The error for a request that the server refuses."""
        text = f"{self._name}: {self.where}: {reason or kind or 'no reason given'} ({status})"
        if status in _BUSY or "cluster_block" in kind:
            return Unavailable(text)
        if status in (408, 500) or kind in _PASSING:
            return TransientError(text)
        if status in (401, 403):
            return ServiceError(
                f"{text}. Check connection.username and connection.password, and what that user "
                "may do"
            )
        if status == 413:
            return RequestTooLarge(
                f"{text}: the request is too large for the server. Set bulk.size.bytes below its "
                "http.max_content_length"
            )
        return ServiceError(text)

    def _strange(self, answer: object) -> ServiceError:
        return ServiceError(
            f"{self._name}: {self.where} does not answer like a search server: {_short(answer)}"
        )

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    def _refused_handshake(self, error: Any) -> SemelError:
        cause = error.args[0] if error.args else error
        text = f"{self._name}: {self.where}: {_short(cause)}"
        if not isinstance(cause, ssl.SSLError):  # a missing file, or a wrong host name
            return ServiceError(text)
        reason = cause.reason or ""
        if re.search("WRONG_VERSION|HTTP_REQUEST", reason):
            return ServiceError(f"{text}. If the server does not speak TLS there, write http://")
        return ServiceError(text) if _MISTAKES.search(reason) else TransientError(text)

    @property
    def _transport(self) -> Any:
        if self._opened is None:
            self._opened = self._open()
        return self._opened.transport

    def _open(self) -> Any:
        import urllib3
        from opensearchpy import OpenSearch, OpenSearchWarning, Urllib3HttpConnection

        class LimitedConnection(Urllib3HttpConnection):
            def __init__(self, **keys: Any) -> None:
                super().__init__(**keys)
                limit_urllib3(self.pool)

        config = self._config
        # What the client warns about is raised here anyway. The server's warnings come with each
        # answer and do not concern the connector.
        logging.getLogger("opensearch").setLevel(logging.ERROR)
        warnings.simplefilter("ignore", OpenSearchWarning)
        seconds = (config.connection_timeout_ms / 1000, config.read_timeout_ms / 1000)
        secure = any(url.startswith("https:") for url in config.urls)
        return OpenSearch(
            hosts=[_node(url) for url in config.urls],
            http_auth=(config.username, config.password) if config.username else None,
            http_compress=config.compression,
            timeout=urllib3.Timeout(connect=seconds[0], read=seconds[1]),
            pool_maxsize=config.in_flight,
            connection_class=LimitedConnection,
            # The engine retries, and knows whether that is safe; here only other nodes are tried.
            max_retries=len(config.urls) - 1,
            retry_on_status=(),
            **(_with_context(self._tls) if secure else {}),
        )


def _failures(items: Iterable[Mapping[str, Any]]) -> Iterator[Failure]:
    for place, item in enumerate(items):
        (result,) = item.values()
        if "error" in result:
            error = _object(result["error"])
            kind, reason = str(error.get("type", "")), explained(error)
            yield Failure(place, int(result["status"]), kind, reason)


def explained(error: Mapping[str, Any]) -> str:
    """An error's reason with that of its cause, in which the server names field and value."""
    reason = str(error.get("reason", ""))
    cause = error.get("caused_by")
    inner = explained(cause) if isinstance(cause, Mapping) else ""
    return f"{reason}: {inner}" if inner and inner not in reason else reason


def _error(body: Mapping[str, Any]) -> Mapping[str, Any]:
    return _object(body.get("error"))


def _object(value: Any) -> Mapping[str, Any]:
    if isinstance(value, Mapping):
        return value
    return {"error": {"reason": str(value)}} if isinstance(value, str) else {}


def _short(error: object) -> str:
    return str(error).splitlines()[0][:300] if str(error) else type(error).__name__


def _node(url: str) -> dict[str, Any]:
    parts = urlsplit(url)
    secure = parts.scheme == "https"
    port = parts.port or (443 if secure else 80)  # as the clients of Confluent's and Aiven's sinks
    node = {"host": parts.hostname, "port": port, "use_ssl": secure}
    return node | ({"url_prefix": parts.path.strip("/")} if parts.path.strip("/") else {})


def _tls(options: Mapping[str, str]) -> dict[str, Any]:
    """The client's settings for ``elastic.https.ssl.*``, in Kafka's words, and the authorities of a
    trust store. Keys must be PEM files.

    Raises:
        ConfigError: a key store of another kind, or a setting that would have no effect.
    """
    try:
        own = {k: v for k, v in options.items() if k.startswith("ssl.")}
        properties = security.librdkafka(own, reads=may_read())
    except ConfigError as error:
        raise ConfigError(*(_as_given(p) for p in error.problems)) from None
    if "ssl.keystore.location" in properties:
        raise misconfigured(
            f"{PREFIX}ssl.keystore.location",
            f"{PREFIX}ssl.keystore.location={properties['ssl.keystore.location']} is PKCS12, which "
            f"the client cannot read: convert it to PEM and set {PREFIX}ssl.certificate.location "
            f"and {PREFIX}ssl.key.location",
        )
    _check_settings(options)
    names = {
        "ca_certs": "ssl.ca.location",
        "authorities": "ssl.ca.pem",
        "client_cert": "ssl.certificate.location",
        "client_key": "ssl.key.location",
    }
    settings: dict[str, Any] = {
        k: properties[name] for k, name in names.items() if properties.get(name)
    }
    if options.get(_HOSTNAME, "https").strip() == "":
        settings["ssl_assert_hostname"] = False
    return {"verify_certs": True, **settings}


def _with_context(tls: Mapping[str, Any]) -> Mapping[str, Any]:
    """The settings, with a context for authorities that are in no PEM file."""
    if "authorities" not in tls:
        return tls
    context = ssl.create_default_context(cadata=tls["authorities"])
    context.check_hostname = tls.get("ssl_assert_hostname", True)
    if "client_cert" in tls:
        context.load_cert_chain(tls["client_cert"], tls.get("client_key"))
    return {"ssl_context": context}


def _as_given(problem: Problem) -> Problem:
    message = _KAFKAS.sub(PREFIX, problem.message).replace("librdkafka", "the client")
    return replace(problem, key=f"{PREFIX}{problem.key}", message=message)


def _check_settings(options: Mapping[str, str]) -> None:
    others = sorted(options.keys() - {*_TLS, _HOSTNAME})
    if others:
        raise misconfigured(
            f"{PREFIX}{others[0]}",
            f"{', '.join(PREFIX + name for name in others)}: not available. TLS takes "
            f"{', '.join(PREFIX + name for name in _TLS)}; keys have no passwords. Remove it",
        )
    algorithm = options.get(_HOSTNAME, "https").strip()
    if algorithm not in ("", "https"):
        raise misconfigured(
            f"{PREFIX}{_HOSTNAME}",
            f"{PREFIX}{_HOSTNAME}={algorithm!r} must be https, or empty, which leaves the host "
            "name unchecked",
        )
