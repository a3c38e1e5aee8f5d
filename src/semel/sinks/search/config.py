"""How the search sink's keys combine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from semel.core.errors import ConfigError, Problem, misconfigured
from semel.core.quoting import named
from semel.core.records import KEY, TIMESTAMP
from semel.sinks.checks import problems_of_names
from semel.sinks.routed import RoutedConfig
from semel.sinks.search import streams
from semel.sinks.search.keys import SearchKeys

AIVEN = (
    "io.aiven.kafka.connect.opensearch.OpensearchSinkConnector",
    "io.aiven.kafka.connect.opensearch.OpenSearchSinkConnector",
    "io.aiven.connect.elasticsearch.ElasticsearchSinkConnector",
)
CLASSES = (
    "elasticsearch",
    "opensearch",
    "semel.search.SearchSink",
    "io.confluent.connect.elasticsearch.ElasticsearchSinkConnector",
    *AIVEN,
)

IGNORED = {
    "max.buffered.records": "max.poll.records and max.poll.bytes bound what a task reads ahead",
    "linger.ms": "see poll.linger.ms",
    "flush.timeout.ms": "a commit waits for its requests; see read.timeout.ms and max.retries",
    "flush.synchronously": "positions always wait for their documents",
    "max.connection.idle.time.ms": "a lost connection is opened again",
    "behavior.on.version.conflict": "the server holds a newer version only after a replay",
    "type.name": "Elasticsearch has had no document types since version 7",
    "log.sensitive.data": "documents are not logged",
    "insert.mode": "documents are written by id; see key.ignore",
    "external.resource.usage": "index names are looked up: an alias of one index is fine",
}

PREFIX = "elastic.https."
_FORBIDDEN = '\\/*?"<>| ,#:'


@dataclass(frozen=True)
class SearchConfig(SearchKeys, RoutedConfig):
    """What the sink writes, where, and under which id."""

    def __post_init__(self) -> None:
        urls = tuple(url if "://" in url else f"http://{url}" for url in self.urls)
        object.__setattr__(self, "urls", urls)
        problems = [*self._connection_problems(), *self._writing_problems()]
        problems += problems_of_names(
            "index.name.format",
            self.index_format,
            "topic.to.external.resource.mapping",
            self.index_mapping,
            "index",
        )
        if problems:
            raise ConfigError(*problems)

    def _connection_problems(self) -> list[Problem]:
        problems = []
        for url in self.urls:
            parts = _parsed(url)
            if parts is None or parts.scheme not in ("http", "https") or not parts.hostname:
                problems.append(
                    Problem(
                        "connection.url",
                        f"connection.url: {_shown(url)} is not a URL such as http://host:9200",
                    )
                )
            elif parts.username or parts.password:
                problems.append(
                    Problem(
                        "connection.url",
                        f"connection.url: {_shown(url)} holds a user: set connection.username and "
                        "connection.password instead",
                    )
                )
        if not self.urls:
            problems.append(
                Problem("connection.url", "connection.url is empty: set it to http://host:9200")
            )
        if bool(self.username) != bool(self.password):
            problems.append(
                Problem(
                    "connection.username",
                    "connection.username and connection.password go together: set both",
                )
            )
        if self.proxy_host:
            problems.append(
                Problem(
                    "proxy.host",
                    f"proxy.host={self.proxy_host}: proxies are not available. Remove it, and "
                    "name a host in connection.url that can be reached",
                )
            )
        if self.kerberos_principal:
            problems.append(
                Problem(
                    "kerberos.user.principal",
                    f"kerberos.user.principal={self.kerberos_principal}: Kerberos is not "
                    "available. Set connection.username and connection.password",
                )
            )
        if self.security_protocol == "ssl" and any(u.startswith("http:") for u in self.urls):
            problems.append(
                Problem(
                    "elastic.security.protocol",
                    "elastic.security.protocol=SSL needs https:// in connection.url",
                )
            )
        return problems

    def _writing_problems(self) -> list[Problem]:
        problems = [*streams.problems(self), *self._routing_problems()]
        if self.version_header:
            problems.append(
                Problem(
                    "external.version.header",
                    f"external.version.header={self.version_header} is not available: the "
                    "version of a document is its record's offset, by which a replay is "
                    "recognised. Remove it",
                )
            )
        if not self.compact_maps:
            problems.append(
                Problem(
                    "compact.map.entries",
                    "compact.map.entries=false is not available: maps become objects. Remove it",
                )
            )
        return problems

    def _routing_problems(self) -> Iterator[Problem]:
        if not self.routing:
            return
        if not self.routing_field and not self.routing_key:
            yield Problem(
                "routing.field.path",
                "routing.enabled=true needs a field in routing.field.path, or routing.key=true",
            )
        if self.makes_ids:
            yield Problem(
                "routing.enabled",
                "routing.enabled=true needs ids that follow from records. Set "
                "use.autogenerated.ids=false and key.ignore.id.strategy=topic.partition.offset",
            )
        elif self.routing_field and self.ids_are_keys(""):
            yield Problem(
                "routing.enabled",
                f"routing.field.path={self.routing_field}: an id is unique in one shard only, so "
                "two records of a key with different fields would be two documents. Set "
                "key.ignore=true, or route by the whole key with routing.key=true",
            )

    @property
    def tombstones(self) -> str:
        """``ignore``, ``delete`` or ``fail``: Confluent's default is fail, Aiven's ignore."""
        return self.null_values or ("ignore" if self.connector_class in AIVEN else "fail")

    @property
    def merges(self) -> bool:
        """Whether a record changes only the fields that it has."""
        return self.write_method == "upsert"

    @property
    def streams(self) -> bool:
        """Whether documents are appended to data streams."""
        return self.stream_enabled or self.stream_type != "none"

    @property
    def kind(self) -> str:
        """What a topic's documents go to, for messages."""
        return "data stream" if self.streams else "index"

    @property
    def times(self) -> Sequence[str]:
        """The fields that may hold the time of a document of a data stream."""
        return self.stream_timestamp or ((streams.TIME,) if self.stream_enabled else ())

    @property
    def routes_by_key(self) -> bool:
        """Whether the record's key decides a document's shard."""
        return self.routing and self.routing_key

    @property
    def metadata(self) -> frozenset[str]:
        """What documents need of their records besides ids."""
        times = {TIMESTAMP} if self.streams else set()
        return frozenset(times | ({KEY} if self.routes_by_key else set()))

    @property
    def makes_ids(self) -> bool:
        """Whether the server makes the ids of some topics."""
        return self.autogenerated or (
            self.id_strategy == "none" and (self.key_ignore or bool(self.key_ignore_topics))
        )

    def ids_are_keys(self, topic: str) -> bool:
        """Whether a topic's document ids are its record keys."""
        if self.autogenerated:
            return False
        ignored = self.key_ignore or topic in self.key_ignore_topics
        return not ignored or self.id_strategy == "record.key"

    def ignores_schema(self, topic: str) -> bool:
        """Whether the server alone finds the types of a topic's fields."""
        return self.schema_ignore or topic in self.schema_ignore_topics

    def index(self, topic: str) -> str:
        """The index of a topic. Names of indices are in lower case.

        Raises:
            ConfigError: an index may not have this name.
        """
        topic = self.routed(topic)
        mapping: Mapping[str, str] = dict(p.split(":", maxsplit=1) for p in self.index_mapping)
        name = mapping.get(topic)
        if name is None and self.streams:
            name = streams.name(self, topic)
        elif name is None:
            name = self.index_format.replace("${topic}", topic).lower().lstrip("-_+")
        where = (
            f"topic {named(topic)}: set it in topic.to.external.resource.mapping, as topic:index"
        )
        return self.index_name(name, where)

    @staticmethod
    def index_name(name: str, where: str) -> str:
        """The name, if an index may have it."""
        if (
            not name
            or name in (".", "..")
            or name != name.lower()
            or name[0] in "-_+"
            or len(name.encode()) > 255
            or any(c in _FORBIDDEN for c in name)
        ):
            raise misconfigured(
                "topic.to.external.resource.mapping",
                f"{name!r} cannot be the name of an index; {where}",
            )
        return name


def _parsed(url: str) -> SplitResult | None:
    """The parts of a URL; None if the host or the port is not valid."""
    try:
        parts = urlsplit(url if "://" in url else f"//{url}")
        _ = parts.port
    except ValueError:
        return None
    return parts


def _shown(url: str) -> str:
    """A URL without its password."""
    scheme, at, rest = url.rpartition("@")
    return f"...@{rest}" if at and scheme else repr(url)
