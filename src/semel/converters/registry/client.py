"""A schema registry with Confluent's API."""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from semel.core.answers import TooLarge, limit_httpx
from semel.core.errors import ConfigError, ServiceError, Unavailable
from semel.core.keystores import authorities

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import SchemaRegistryClient

log = logging.getLogger(__name__)
T = TypeVar("T")

TRUST_STORE, TRUST_PASSWORD = "ssl.truststore.location", "ssl.truststore.password"
"""Settings that Java's clients have and Confluent's Python client lacks."""
AVRO, JSON, PROTOBUF = "AVRO", "JSON", "PROTOBUF"
_NOT_FOUND, _INCOMPATIBLE = 404, 409
_UNKNOWN = (40401, 40402, 40403)
"""The registry's own codes for a subject, version or schema that was not found."""
_MOST_REFERENCES = 300
_AWAY = frozenset({408, 425, 429, 500, 502, 503, 504})
_REFUSED = frozenset({401, 403, 407})


@dataclass(frozen=True, slots=True)
class Schema:
    """A schema as it was registered. ``references`` are the schemas that it refers to, by the names
    that it uses; each comes after those that it needs itself."""

    type: str
    text: str
    references: tuple[tuple[str, str], ...] = ()
    id: int = 0


class UnknownSchema(LookupError):
    """The registry has no such schema."""


class Incompatible(ConfigError):
    """The registry refuses a schema: the rules of its subject do not allow it."""


class Registry:
    """The registry of one converter. It connects on first use.

    Every call may raise :class:`~semel.core.errors.Unavailable`, if the registry cannot be reached,
    and :class:`~semel.core.errors.ServiceError`, if it refuses the login.
    """

    def __init__(self, settings: Mapping[str, Any], where: str) -> None:
        self._settings = dict(settings)
        self._where = where
        self._client: SchemaRegistryClient | None = None

    @property
    def url(self) -> str:
        """Where it is, for messages."""
        return str(self._settings["url"])

    def schema(self, schema_id: int) -> Schema:
        """The schema with an id.

        Raises:
            UnknownSchema: there is none.
        """
        registered = self._ask(lambda client: client.get_schema(schema_id))
        return self._with_references(registered, schema_id)

    def latest(self, subject: str) -> Schema | None:
        """The latest version of a subject; None if it has none."""
        try:
            registered = self._ask(lambda client: client.get_latest_version(subject))
        except UnknownSchema:
            return None
        return self._with_references(registered.schema, int(registered.schema_id or 0))

    def version(self, subject: str, number: int) -> Schema:
        """A version of a subject.

        Raises:
            UnknownSchema: there is none.
        """
        registered = self._ask(lambda client: client.get_version(subject, number))
        return self._with_references(registered.schema, int(registered.schema_id or 0))

    def id_of(self, subject: str, kind: str, text: str, *, register: bool) -> int:
        """The id of a schema in a subject; a new schema is registered if that is wanted.

        Raises:
            Incompatible: the subject's rules do not allow it.
            UnknownSchema: it is not registered.
        """
        from confluent_kafka.schema_registry import Schema as Unregistered

        schema = Unregistered(text, kind)
        if register:
            return int(self._ask(lambda client: client.register_schema(subject, schema)))
        registered = self._ask(lambda client: client.lookup_schema(subject, schema))
        return int(registered.schema_id or 0)

    def _with_references(self, schema: Any, schema_id: int) -> Schema:
        texts: dict[str, str] = {}
        self._collect(schema, texts, [0])
        kind = schema.schema_type or AVRO
        return Schema(kind, schema.schema_str, tuple(texts.items()), schema_id)

    def _collect(self, schema: Any, texts: dict[str, str], asked: list[int]) -> None:
        for reference in schema.references or ():
            if reference.name in texts:
                continue
            asked[0] += 1
            if asked[0] > _MOST_REFERENCES:
                raise ServiceError(
                    f"{self._name} has a schema that refers to more than {_MOST_REFERENCES} others"
                )
            subject, version = reference.subject, reference.version

            def ask(client: SchemaRegistryClient, s: str = subject, v: int = version) -> Any:
                return client.get_version(s, v)

            inner = self._ask(ask).schema
            self._collect(inner, texts, asked)
            texts[reference.name] = inner.schema_str

    def _ask(self, question: Callable[[SchemaRegistryClient], T]) -> T:
        from confluent_kafka.schema_registry.error import OAuthTokenError, SchemaRegistryError

        try:
            if self._client is None:
                self._client = self._connected()
            return question(self._client)
        except SchemaRegistryError as error:
            raise self._judged(error) from None
        except OAuthTokenError as error:
            raise Unavailable(f"{self._name}: no token: {error}") from None
        except (json.JSONDecodeError, RecursionError) as error:
            raise ServiceError(
                f"{self._name} does not answer with JSON ({error}). Check "
                f"{self._where}.schema.registry.url"
            ) from None
        except TimeoutError as error:
            raise Unavailable(f"{self._name}: {error}") from None
        except TooLarge as error:
            raise ServiceError(
                f"{error}, which no schema has. Check {self._where}.schema.registry.url"
            ) from None
        except Exception as error:
            if any(base.__name__ == "TransportError" for base in type(error).__mro__):
                raise Unavailable(
                    f"{self._name} cannot be reached: {type(error).__name__}: {error}"
                ) from None
            raise

    def _connected(self) -> SchemaRegistryClient:
        """A client of the registry. Raises ConfigError: the trust store cannot be read."""
        from confluent_kafka.schema_registry import SchemaRegistryClient

        settings = dict(self._settings)
        location = settings.pop(TRUST_STORE, "")
        password = settings.pop(TRUST_PASSWORD, "")
        if not location:
            return _limited(SchemaRegistryClient(settings))
        trusted = authorities(location, password, f"{self._where}.schema.registry.")
        with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
            file.write(trusted)
            file.flush()
            return _limited(SchemaRegistryClient({**settings, "ssl.ca.location": file.name}))

    @property
    def _name(self) -> str:
        return f"the schema registry at {self.url}"

    def _judged(self, error: Any) -> Exception:
        status, code = error.http_status_code, error.error_code
        if status == _NOT_FOUND and code in _UNKNOWN:
            return UnknownSchema(str(error.error_message))
        if status == _NOT_FOUND:
            return ServiceError(
                f"{self._name} has no such path. Check {self._where}.schema.registry.url; "
                "Apicurio's ends with /apis/ccompat/v7"
            )
        if status in _REFUSED:
            return ServiceError(
                f"{self._name} refuses the login: {error}. Check "
                f"{self._where}.basic.auth.user.info or {self._where}.bearer.auth.token"
            )
        if status in _AWAY:
            return Unavailable(f"{self._name} cannot answer now: {error}")
        return Incompatible(f"{self._name} refuses: {error}")


def _limited(client: SchemaRegistryClient) -> SchemaRegistryClient:
    """The client, with limits to the answers of the registry and of whoever issues its tokens."""
    rest: Any = client._rest_client
    limit_httpx(rest.session)
    issuer = getattr(rest.bearer_field_provider, "client", None)
    if issuer is not None:
        limit_httpx(issuer)
    return client
