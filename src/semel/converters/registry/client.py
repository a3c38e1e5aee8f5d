"""A schema registry with Confluent's API."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from semel.core.answers import TooLarge, limit_httpx
from semel.core.errors import ConfigError, ServiceError, Unavailable
from semel.core.keystores import authorities

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import SchemaRegistryClient

T = TypeVar("T")

TRUST_STORE, TRUST_PASSWORD = "ssl.truststore.location", "ssl.truststore.password"
"""Settings that Java's clients have and Confluent's Python client lacks."""
AVRO, JSON, PROTOBUF = "AVRO", "JSON", "PROTOBUF"
_REDIRECT, _NOT_FOUND = 3, 404
_MISREAD = (ValueError, TypeError, AttributeError, LookupError)
"""What the client raises if JSON is not what it expects."""
GREATEST_ID = 2**31 - 1
_UNKNOWN = (40401, 40402, 40403)
"""The registry's own codes for a subject, version or schema that was not found."""
_MOST_REFERENCES = 300
_AWAY = frozenset({408, 425, 429, 500, 502, 503, 504})
_URL = "schema.registry.url"
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


def setting(where: str, name: str) -> str:
    """The full name of a setting; the REST proxy has nothing before ``schema.registry``."""
    return f"{where}.{name}".replace("schema.registry.schema.registry.", "schema.registry.")


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
        return self._with_references(registered.schema, registered.schema_id)

    def version(self, subject: str, number: int) -> Schema:
        """A version of a subject.

        Raises:
            UnknownSchema: there is none.
        """
        registered = self._ask(lambda client: client.get_version(subject, number))
        return self._with_references(registered.schema, registered.schema_id)

    def id_of(self, subject: str, kind: str, text: str, *, register: bool) -> int:
        """The id of a schema in a subject; a new schema is registered if that is wanted.

        Raises:
            Incompatible: the subject's rules do not allow it.
            UnknownSchema: it is not registered.
        """
        from confluent_kafka.schema_registry import Schema as Unregistered

        schema = Unregistered(text, kind)
        if register:
            return self._id(self._ask(lambda client: client.register_schema(subject, schema)))
        registered = self._ask(lambda client: client.lookup_schema(subject, schema))
        return self._id(registered.schema_id)

    def _id(self, answer: Any) -> int:
        if not isinstance(answer, int) or not 0 <= answer <= GREATEST_ID:
            raise self._strange(f"{answer!r} is no id of a schema")
        return answer

    def _with_references(self, schema: Any, schema_id: Any) -> Schema:
        texts: dict[str, str] = {}
        self._collect(schema, texts, [0])
        kind = schema.schema_type or AVRO
        return Schema(kind, self._text(schema), tuple(texts.items()), self._id(schema_id))

    def _text(self, schema: Any) -> str:
        text = schema.schema_str
        if not isinstance(text, str):
            raise self._strange("there is no text of a schema")
        return text

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
                return client.get_version(s, v, deleted=True)  # what refers to it remains

            inner = self._ask(ask).schema
            self._collect(inner, texts, asked)
            texts[reference.name] = self._text(inner)

    def _ask(self, question: Callable[[SchemaRegistryClient], T]) -> T:
        from confluent_kafka.schema_registry.error import OAuthTokenError, SchemaRegistryError

        if self._client is None:
            self._client = self._connected()
        try:
            return question(self._client)
        except SchemaRegistryError as error:
            raise self._judged(error) from None
        except OAuthTokenError as error:
            raise Unavailable(f"{self._name}: no token: {error}") from None
        except (json.JSONDecodeError, RecursionError) as error:
            raise self._strange(f"it is not JSON: {error}") from None
        except TimeoutError as error:
            raise Unavailable(f"{self._name}: {error}") from None
        except TooLarge as error:
            raise ServiceError(
                f"{error}, which no schema has. Check {setting(self._where, _URL)}"
            ) from None
        except Exception as error:
            kinds = {base.__name__ for base in type(error).__mro__}
            if "TransportError" in kinds:
                raise Unavailable(
                    f"{self._name} cannot be reached: {type(error).__name__}: {error}"
                ) from None
            if "HTTPError" in kinds or isinstance(error, _MISREAD):
                why = f"its answer has another form ({type(error).__name__}: {error})"
                raise self._strange(why) from None
            raise

    def _strange(self, why: str) -> ServiceError:
        return ServiceError(
            f"{self._name} does not answer as a schema registry: {why}. Check "
            f"{setting(self._where, _URL)}"
        )

    def _connected(self) -> SchemaRegistryClient:
        """A client of the registry. Raises ConfigError: a file cannot be read or used."""
        settings = dict(self._settings)
        location = settings.pop(TRUST_STORE, "")
        password = settings.pop(TRUST_PASSWORD, "")
        if not location:
            return self._made(settings)
        trusted = authorities(location, password, setting(self._where, "schema.registry."))
        with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
            file.write(trusted)
            file.flush()
            return self._made({**settings, "ssl.ca.location": file.name})

    def _made(self, settings: Mapping[str, Any]) -> SchemaRegistryClient:
        from confluent_kafka.schema_registry import SchemaRegistryClient

        try:
            return _limited(SchemaRegistryClient(dict(settings)))
        except (OSError, ValueError) as error:
            prefix = setting(self._where, "schema.registry.")
            files = [f"{prefix}{n}={v}" for n, v in settings.items() if n.endswith(".location")]
            raise ConfigError(
                f"{self._where}: no connection to {self._name} can be set up: {error}"
                + (f". Check {' and '.join(files)}" if files else "")
            ) from None

    @property
    def _name(self) -> str:
        return f"the schema registry at {self.url}"

    def _judged(self, error: Any) -> Exception:
        status, code = error.http_status_code, error.error_code
        if status == _NOT_FOUND and code in _UNKNOWN:
            return UnknownSchema(str(error.error_message))
        if status == _NOT_FOUND:
            return ServiceError(
                f"{self._name} has no such path. Check {setting(self._where, _URL)}; "
                "Apicurio's ends with /apis/ccompat/v7"
            )
        if status // 100 == _REDIRECT:
            return self._strange(f"it redirects (HTTP status code {status})")
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
