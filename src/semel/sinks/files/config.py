"""How the files sink's keys combine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from semel.core.errors import ConfigError, Problem, misconfigured
from semel.sinks.checks import problems_of_endpoint, problems_of_field_lists
from semel.sinks.files import folders
from semel.sinks.files.folders import Clock, Folders
from semel.sinks.files.keys import FilesKeys
from semel.sinks.layout import selects
from semel.sinks.routed import RoutedConfig
from semel.storage.options import options_of

HDFS = (
    "io.confluent.connect.hdfs.HdfsSinkConnector",
    "io.confluent.connect.hdfs3.Hdfs3SinkConnector",
)
"""Sinks whose files are Avro unless they say otherwise."""
_CONFLUENT = (
    "io.confluent.connect.s3.S3SinkConnector",
    "io.confluent.connect.gcs.GcsSinkConnector",
    *HDFS,
    "io.confluent.connect.azure.blob.AzureBlobStorageSinkConnector",
)
_AIVEN = (
    "io.aiven.kafka.connect.s3.AivenKafkaConnectS3SinkConnector",
    "io.aiven.kafka.connect.gcs.GcsSinkConnector",
    "io.aiven.kafka.connect.azure.sink.AzureBlobSinkConnector",
)
CLASSES = ("files", "semel.files.FilesSink", *_CONFLUENT, *_AIVEN)

_FORMATS = {"parquet": "parquet", "json": "json", "avro": "avro", "bytearray": "bytes"}
_PARTITIONERS = {
    "defaultpartitioner": "default",
    "fieldpartitioner": "field",
    "timebasedpartitioner": "time",
    "dailypartitioner": "daily",
    "hourlypartitioner": "hourly",
}
_TIMED = ("time", "daily", "hourly")

_APPENDED = "files are only added, never changed"
IGNORED = {
    "auto.create": "folders are made as they are needed",
    "auto.evolve": "fields that appear are added to the files that follow",
    "append.late.data": "each record goes to the folder of its own time",
    "batch.size": "maxOffsetsPerTrigger bounds a commit",
    "connect.hdfs.keytab": "kinit gets the ticket",
    "connect.hdfs.principal": "kinit gets the ticket",
    "file.name.template": "names are <topic>+<partition>+<from>-<until>",
    "format.output.fields.value.encoding": "values are written as columns",
    "directory.delim": "folders are separated by /",
    "hadoop.conf.dir": "libhdfs finds it by HADOOP_CONF_DIR",
    "hadoop.home": "libhdfs finds it by HADOOP_HOME",
    "hdfs.namenode.principal": "over HTTP the NameNode's web server has its own principal",
    "hive.integration": "no metastore is told of new folders. They are named as in Hive: let it "
    "find them there (MSCK REPAIR TABLE)",
    **dict.fromkeys(
        ("hive.conf.dir", "hive.database", "hive.home", "hive.metastore.uris", "hive.table.name"),
        "it belongs to hive.integration",
    ),
    "kerberos.ticket.renew.period.ms": "kinit gets the ticket",
    "locale": "path.format shows numbers only",
    "logs.dir": "the ledger is in _semel below path",
    "s3.part.retries": "storage.options.* sets the store's driver",
    "s3.part.size": "storage.options.* sets the store's driver",
    "s3.retry.backoff.ms": "storage.options.* sets the store's driver",
    "schema.cache.size": "a topic has one schema",
    "schema.compatibility": "a field keeps its type; fields that appear are added",
    "schema.generator.class": "folders do not need a schema",
    "shutdown.timeout.ms": "stopping loses nothing",
    "storage.class": "path says which store it is",
}

_OPTIONS = {
    "aws.access.key.id": "key",
    "aws.secret.access.key": "secret",
    "gcs.credentials.path": "token",
    "azblob.account.name": "account_name",
    "azblob.account.key": "account_key",
}
"""Keys that are options of fsspec's drivers."""


@dataclass(frozen=True)
class FilesConfig(FilesKeys, RoutedConfig):
    """Which files to write, and where."""

    pk_mode: ClassVar[str] = "none"
    pk_fields: ClassVar[tuple[str, ...]] = ()
    folds_names: ClassVar[bool] = False

    def __post_init__(self) -> None:
        problems = self._not_available()
        places = [self.path, self.s3_bucket, self.gcs_bucket, self.azure_container]
        if sum(map(bool, places)) > 1:
            problems.append(
                Problem(
                    "path",
                    "path, s3.bucket.name, gcs.bucket.name and azblob.container.name exclude each "
                    "other: set one",
                )
            )
        if self.store_url and not self.s3_bucket and any(p != self.store_url for p in places if p):
            problems.append(
                Problem(
                    "store.url",
                    "store.url is S3's endpoint with s3.bucket.name, and otherwise the same as "
                    "path: remove it here, or set storage.options.endpoint_url instead",
                )
            )
        scheme, separator, rest = self.path.partition("://")
        if separator and scheme != "file" and not rest.strip("/"):
            problems.append(
                Problem("path", f"path={self.path} names no bucket and no host behind {scheme}://")
            )
        endpoint = "storage.options.endpoint_url"
        if self.s3_bucket and self.store_url:
            problems += problems_of_endpoint("store.url", self.store_url)
        elif endpoint in self.originals:
            problems += problems_of_endpoint(endpoint, self.originals[endpoint])
        if not any(places) and not self.store_url:
            problems.append(
                Problem("path", "path is required. The directory or URL that holds the files")
            )
        problems += problems_of_field_lists(self.include, self.exclude)
        if not self.delimiter or "/" in self.delimiter:
            problems.append(
                Problem("file.delim", f"file.delim={self.delimiter!r} must be text without /")
            )
        kind = self._partitioner()
        if kind is None:
            problems.append(
                Problem(
                    "partitioner.class",
                    f"partitioner.class={self.partitioner!r} must be one of default, none, field, "
                    "time, daily, hourly, or Confluent's class of that kind",
                )
            )
        if kind == "field" and not self.partition_fields:
            problems.append(
                Problem(
                    "partitioner.class",
                    "partitioner.class=field needs partition.field.name: name the fields",
                )
            )
        if kind == "time" and not self.path_format:
            problems.append(
                Problem(
                    "partitioner.class",
                    "partitioner.class=time needs path.format, such as 'day'=YYYY-MM-dd/'hour'=HH",
                )
            )
        if problems:
            raise ConfigError(*problems)
        folders.check_format(self.path_format)
        if kind in _TIMED:
            folders.zone_of(self.timezone or "UTC")
        self.format_name()

    def _not_available(self) -> list[Problem]:
        problems = []
        if self.delete_enabled:
            problems.append(
                Problem(
                    "delete.enabled",
                    f"delete.enabled=true: {_APPENDED}, so a tombstone cannot delete. Remove "
                    "it, or use a table (delta, iceberg)",
                )
            )
        if self.tombstones not in ("fail", "ignore"):
            problems.append(
                Problem(
                    "behavior.on.null.values",
                    f"behavior.on.null.values={self.on_null!r} must be fail or ignore: a null "
                    "has no row that could be written",
                )
            )
        if "{{" in (self.topics_dir or ""):
            problems.append(
                Problem(
                    "topics.dir",
                    f"topics.dir={self.topics_dir!r}: placeholders are not supported here. Set "
                    "partitioner.class for folders by time",
                )
            )
        if self.customer_key:
            problems.append(
                Problem(
                    "s3.sse.customer.key",
                    "s3.sse.customer.key is not available: files would be written without it. Set "
                    "s3.ssea.name and s3.sse.kms.key.id, or remove it",
                )
            )
        return problems

    @property
    def tombstones(self) -> str:
        """What happens to null values: ``fail`` or ``ignore``."""
        default = "fail" if self.connector_class in _CONFLUENT else "ignore"
        return (self.on_null or default).lower()

    def takes(self, topic: str, field: str) -> bool:
        """Whether a value field is written; lists may hold ``field`` or ``topic:field``."""
        return selects(self.include, self.exclude, self.routed(topic), field)

    def format_name(self) -> str:
        """The format that any of the three keys sets.

        Raises:
            ConfigError: they do not agree, or it is not known.
        """
        found = {}
        if self.format:
            found["format"] = self.format
        if self.format_output:
            found["format.output.type"] = {"jsonl": "json"}.get(
                self.format_output, self.format_output
            )
        if self.format_class:
            name = self.format_class.rpartition(".")[2].removesuffix("Format").lower()
            if name not in _FORMATS:
                raise misconfigured(
                    "format.class",
                    f"format.class={self.format_class}: only ParquetFormat, JsonFormat, AvroFormat "
                    "and ByteArrayFormat are available; csv by format=csv",
                )
            found["format.class"] = _FORMATS[name]
        if len(set(found.values())) > 1:
            raise misconfigured(
                next(iter(found)),
                f"{' and '.join(found)} are the same setting with different values",
            )
        return next(iter(found.values()), "avro" if self.connector_class in HDFS else "parquet")

    @property
    def separator(self) -> bytes:
        """What follows each value with format=bytes."""
        return b"\n" if self.bytes_separator is None else self.bytes_separator.encode()

    def _partitioner(self) -> str | None:
        name = self.partitioner.rpartition(".")[2].lower()
        known = {*_PARTITIONERS.values(), "none"}
        return _PARTITIONERS.get(name) or (name if name in known else None)

    def folders(self) -> Folders:
        """The rule that chooses folders."""
        kind = self._partitioner()
        if kind == "none":
            return folders.Flat()
        if kind == "default":
            return folders.ByPartition()
        if kind == "field":
            return folders.ByField(self.partition_fields)
        formats = {"daily": folders.DAILY, "hourly": folders.HOURLY}
        path_format = formats.get(str(kind), self.path_format)
        zone = folders.zone_of(self.timezone or "UTC")
        return folders.ByTime(self.clock(), path_format, self.duration_ms, zone)

    def clock(self) -> Clock:
        return Clock(self.extractor, self.timestamp_field)

    @property
    def reads_times(self) -> bool:
        """Whether Kafka's timestamps decide anything."""
        timed = self._partitioner() in _TIMED or self.rotate_ms > 0
        return timed and self.extractor == "record"

    @property
    def interval(self) -> float | None:
        """Seconds between commits, by this machine's clock, if a key sets them."""
        limits = [self.schedule_ms]
        if self.extractor == "wallclock":
            limits.append(self.rotate_ms)
        given = [ms for ms in limits if ms > 0]
        return min(given) / 1000 if given else None

    def location(self) -> str:
        """The URL or directory that holds the topics' folders."""
        bucket = ""
        if self.s3_bucket:
            bucket = f"s3://{self.s3_bucket}"
        elif self.gcs_bucket:
            bucket = f"gs://{self.gcs_bucket}"
        elif self.azure_container:
            bucket = f"abfs://{self.azure_container}"
        root = (bucket or self.path or self.store_url).rstrip("/")
        below = self.topics_dir if self.topics_dir is not None else ("topics" if bucket else "")
        return f"{root}/{below.strip('/')}".rstrip("/") if below else root or "/"

    def options(self) -> dict[str, Any]:
        """The options for the store's fsspec driver.

        Raises:
            ConfigError: an option without a value, or one that looks like JSON but is not.
        """
        raw = self.originals
        found: dict[str, Any] = {o: raw[n] for n, o in _OPTIONS.items() if raw.get(n)}
        if self.kerberos and self.location().startswith("webhdfs:"):
            found["kerberos"] = True
        if self.region:
            found["client_kwargs"] = {"region_name": self.region}
        if self.s3_bucket and self.store_url:
            found["endpoint_url"] = self.store_url
        written = {
            "ServerSideEncryption": self.encryption,
            "SSEKMSKeyId": self.kms_key,
            "ACL": self.acl,
        }
        if any(written.values()):
            found["s3_additional_kwargs"] = {n: v for n, v in written.items() if v}
        return found | options_of(raw)
