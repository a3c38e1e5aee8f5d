"""The files sink's keys: Confluent's names and defaults, Aiven's as aliases, some short ones, and
how they combine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from semel.config import HIGH, LOW, Type, connector_class_key, key
from semel.core.errors import Problem, misconfigured
from semel.core.problems import refuse
from semel.sinks.config import (
    RoutedConfig,
    exclude_key,
    include_key,
    problems_of_endpoint,
    problems_of_field_lists,
    selects,
)
from semel.sinks.files import folders
from semel.sinks.files.folders import Clock, Folders
from semel.sinks.unavailable import placeholder_key
from semel.storage import options_of

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
    "azure.storage.connection.string": "set storage.options.connection_string",
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
    "s3.credentials.provider.class": "without keys, the store's driver finds credentials as AWS's "
    "own programs do; storage.options.* sets it",
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


def _duration(milliseconds: int) -> None:
    if milliseconds == 0:
        raise ValueError("must be positive, or -1")


@dataclass(frozen=True)
class FilesConfig(RoutedConfig):
    """Which files to write, where, and how."""

    format: str = key(
        "format",
        "",
        "Format of the files: parquet, json (one object per line), csv, avro, or bytes (values "
        "of the ByteArrayConverter, unchanged).",
        choices=("", "parquet", "json", "csv", "avro", "bytes"),
        importance=HIGH,
        group="Connector",
    )
    format_class: str = key(
        "format.class",
        "",
        "Format of the files, by Confluent's class names.",
        type=Type.CLASS,
        importance=HIGH,
    )
    format_output: str = key(
        "format.output.type",
        "",
        "Format of the files, in Aiven's words.",
        choices=("", "parquet", "jsonl", "avro"),
    )
    bytes_extension: str = key(
        "format.bytearray.extension",
        ".bin",
        "The extension of files with format=bytes.",
        importance=LOW,
    )
    bytes_separator: str | None = key(
        "format.bytearray.separator",
        None,
        "What follows each value with format=bytes; a line feed if nothing is set.",
        importance=LOW,
    )
    format_fields: str = key(
        "format.output.fields", "value", "Only the value is written.", choices=("value",)
    )
    format_envelope: str = key(
        "format.output.envelope",
        "false",
        "A value is not wrapped in an object.",
        choices=("false",),
    )
    parquet_codec: str = key(
        "parquet.codec",
        "snappy",
        "Compression of Parquet files: zstd, snappy, gzip or none.",
        choices=("zstd", "snappy", "gzip", "none"),
        importance=LOW,
    )
    avro_codec: str = key(
        "avro.codec",
        "null",
        "Compression of Avro files: null, deflate or bzip2.",
        choices=("null", "deflate", "bzip2"),
        importance=LOW,
    )
    compression: str = key(
        "file.compression.type",
        "none",
        "Compression of JSON, CSV and bytes files: none, gzip or zstd.",
        aliases=("s3.compression.type", "gcs.compression.type"),
        choices=("none", "gzip", "zstd"),
        importance=LOW,
    )
    connector_class: str = connector_class_key("files")
    path: str = key(
        "path",
        "",
        "Directory or URL (s3://, gs://, abfss://, webhdfs://, file://) that holds the files.",
        aliases=("hdfs.url",),
        importance=HIGH,
        group="Storage",
    )
    s3_bucket: str = key(
        "s3.bucket.name",
        "",
        "S3 bucket, instead of path.",
        aliases=("aws.s3.bucket.name",),
        importance=HIGH,
    )
    gcs_bucket: str = key(
        "gcs.bucket.name", "", "Google Cloud Storage bucket, instead of path.", importance=HIGH
    )
    azure_container: str = key(
        "azblob.container.name",
        "",
        "Azure container, instead of path.",
        aliases=("azure.storage.container.name",),
        importance=HIGH,
    )
    store_url: str = key(
        "store.url",
        "",
        "With s3.bucket.name, the S3 endpoint; otherwise the same as path.",
        aliases=("aws.s3.endpoint",),
        importance=HIGH,
    )
    topics_dir: str | None = key(
        "topics.dir",
        None,
        "Folder below the location that holds the topics' folders; topics with a bucket's name.",
        aliases=("aws.s3.prefix", "file.name.prefix"),
        importance=HIGH,
    )
    max_records: int = key(
        "flush.size",
        0,
        "Maximum number of records in a file; 0 for no limit.",
        aliases=("file.max.records",),
        at_least=0,
        type=Type.INT,
        importance=HIGH,
        group="Connector",
    )
    target_file_size: int = key(
        "target.file.size",
        128 * 1024 * 1024,
        "A file is closed when it has reached this size.",
        at_least=1024,
        importance=LOW,
    )
    rotate_ms: int = key(
        "rotate.interval.ms",
        -1,
        "Maximum time from a file's first record to its last, by timestamp.extractor.",
        at_least=-1,
        importance=HIGH,
    )
    schedule_ms: int = key(
        "rotate.schedule.interval.ms",
        -1,
        "Time from one commit to the next, like processingTime, which takes precedence.",
        at_least=-1,
    )
    partitioner: str = key(
        "partitioner.class",
        "default",
        "Folders below a topic's: default (partition=<n>), none, field, time, daily, hourly, or "
        "the name of Confluent's class.",
        importance=HIGH,
        group="Partitioner",
        recommended=("default", "none", "field", "time", "daily", "hourly"),
    )
    partition_fields: tuple[str, ...] = key(
        "partition.field.name",
        (),
        "The fields whose values name the folders, with partitioner.class=field; a.b is field b "
        "of field a.",
    )
    path_format: str = key(
        "path.format",
        "",
        "The folders of partitioner.class=time, such as 'day'=YYYY-MM-dd/'hour'=HH.",
    )
    duration_ms: int = key(
        "partition.duration.ms",
        -1,
        "The time span of a folder of partitioner.class=time; -1 for the finest unit in "
        "path.format.",
        at_least=-1,
        validator=_duration,
    )
    timezone: str = key("timezone", "", "Time zone of the folders; UTC if not set.")
    extractor: str = key(
        "timestamp.extractor",
        "wallclock",
        "A record's time: wallclock (when it is written), record (its timestamp in Kafka) or "
        "recordfield (the field timestamp.field).",
        choices=("wallclock", "record", "recordfield"),
    )
    timestamp_field: str = key(
        "timestamp.field",
        "timestamp",
        "The field that holds the time, with timestamp.extractor=recordfield: a time, an ISO "
        "8601 string, or milliseconds.",
    )
    zero_pad: int = key(
        "filename.offset.zero.pad.width",
        10,
        "Offsets in file names are padded with zeros to this many digits.",
        at_least=0,
        type=Type.INT,
        importance=LOW,
        group="Storage",
    )
    delimiter: str = key("file.delim", "+", "Separates topic, partition and offsets in file names.")
    include: tuple[str, ...] = include_key(group="Connector")
    exclude: tuple[str, ...] = exclude_key(group="Connector")
    insert_mode: str = key(
        "insert.mode",
        "insert",
        "Files are only added, never changed.",
        choices=("insert",),
        importance=LOW,
        group="Connector",
    )
    on_null: str | None = key(
        "behavior.on.null.values",
        None,
        "Tombstones: ignore leaves them out; fail, the default of Confluent's classes, makes "
        "them bad records.",
        importance=LOW,
    )
    delete_enabled: bool = key(
        "delete.enabled",
        False,
        "Not available: files are only added, never changed.",
        importance=LOW,
    )
    keys_too: str = key(
        "store.kafka.keys",
        "false",
        "A record's key is not written; copy it into a field in a transform.",
        choices=("false",),
        importance=LOW,
    )
    headers_too: str = key(
        "store.kafka.headers",
        "false",
        "A record's headers are not written.",
        choices=("false",),
        importance=LOW,
    )
    encryption: str = key(
        "s3.ssea.name",
        "",
        "Server-side encryption in S3: AES256 or aws:kms.",
        importance=LOW,
        group="Store",
    )
    customer_key: str = key(
        "s3.sse.customer.key", "", "Not available.", secret=True, importance=LOW
    )
    kms_key: str = key(
        "s3.sse.kms.key.id", "", "The KMS key, with s3.ssea.name=aws:kms.", importance=LOW
    )
    acl: str = key("s3.acl.canned", "", "The canned ACL of what is written to S3.", importance=LOW)
    region: str = key("s3.region", "", "The S3 region.", aliases=("aws.s3.region",))
    access_key: str = key(
        "aws.access.key.id", "", "The access key of S3.", secret=True, importance=HIGH
    )
    secret_key: str = key(
        "aws.secret.access.key", "", "The secret key of S3.", secret=True, importance=HIGH
    )
    credentials: str = key(
        "gcs.credentials.path",
        "",
        "File with the credentials of Google Cloud Storage.",
        importance=HIGH,
    )
    account: str = key("azblob.account.name", "", "The Azure storage account.", importance=HIGH)
    account_key: str = key(
        "azblob.account.key",
        "",
        "The key of the Azure storage account.",
        secret=True,
        importance=HIGH,
    )
    kerberos: bool = key(
        "hdfs.authentication.kerberos",
        False,
        "Authenticate to webhdfs:// with Kerberos.",
        importance=HIGH,
    )
    placeholder: str = placeholder_key()

    pk_mode: ClassVar[str] = "none"
    pk_fields: ClassVar[tuple[str, ...]] = ()
    folds_names: ClassVar[bool] = False

    def __post_init__(self) -> None:
        refuse(self._problems())
        folders.check_format(self.path_format)
        if self._partitioner() in _TIMED:
            folders.zone_of(self.timezone or "UTC")
        self.format_name()

    def _problems(self) -> Iterator[Problem]:
        yield from self._not_available()
        places = [self.path, self.s3_bucket, self.gcs_bucket, self.azure_container]
        if sum(map(bool, places)) > 1:
            yield Problem(
                "path",
                "path, s3.bucket.name, gcs.bucket.name and azblob.container.name exclude each "
                "other: set one",
            )
        if self.store_url and not self.s3_bucket and any(p != self.store_url for p in places if p):
            yield Problem(
                "store.url",
                "store.url is S3's endpoint with s3.bucket.name, and otherwise the same as "
                "path: remove it here, or set storage.options.endpoint_url instead",
            )
        scheme, separator, rest = self.path.partition("://")
        if separator and scheme != "file" and not rest.strip("/"):
            yield Problem(
                "path", f"path={self.path} names no bucket and no host behind {scheme}://"
            )
        endpoint = "storage.options.endpoint_url"
        if self.s3_bucket and self.store_url:
            yield from problems_of_endpoint("store.url", self.store_url)
        elif endpoint in self.originals:
            yield from problems_of_endpoint(endpoint, self.originals[endpoint])
        if not any(places) and not self.store_url:
            yield Problem("path", "path is required. The directory or URL that holds the files")
        yield from problems_of_field_lists(self.include, self.exclude)
        if not self.delimiter or "/" in self.delimiter:
            yield Problem("file.delim", f"file.delim={self.delimiter!r} must be text without /")
        if "/" in self.bytes_extension:
            yield Problem(
                "format.bytearray.extension",
                f"format.bytearray.extension={self.bytes_extension!r} must be text without /",
            )
        kind = self._partitioner()
        if kind is None:
            yield Problem(
                "partitioner.class",
                f"partitioner.class={self.partitioner!r} must be one of default, none, field, "
                "time, daily, hourly, or Confluent's class of that kind",
            )
        if kind == "field" and not self.partition_fields:
            yield Problem(
                "partitioner.class",
                "partitioner.class=field needs partition.field.name: name the fields",
            )
        if kind == "time" and not self.path_format:
            yield Problem(
                "partitioner.class",
                "partitioner.class=time needs path.format, such as 'day'=YYYY-MM-dd/'hour'=HH",
            )

    def _not_available(self) -> Iterator[Problem]:
        if self.delete_enabled:
            yield Problem(
                "delete.enabled",
                f"delete.enabled=true: {_APPENDED}, so a tombstone cannot delete. Remove "
                "it, or use a table (delta, iceberg)",
            )
        if self.tombstones not in ("fail", "ignore"):
            yield Problem(
                "behavior.on.null.values",
                f"behavior.on.null.values={self.on_null!r} must be fail or ignore: a null "
                "has no row that could be written",
            )
        if "{{" in (self.topics_dir or ""):
            yield Problem(
                "topics.dir",
                f"topics.dir={self.topics_dir!r}: placeholders are not supported here. Set "
                "partitioner.class for folders by time",
            )
        if self.customer_key:
            yield Problem(
                "s3.sse.customer.key",
                "s3.sse.customer.key is not available: files would be written without it. Set "
                "s3.ssea.name and s3.sse.kms.key.id, or remove it",
            )

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
        formats = {}
        if self.format:
            formats["format"] = self.format
        if self.format_output:
            formats["format.output.type"] = {"jsonl": "json"}.get(
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
            formats["format.class"] = _FORMATS[name]
        if len(set(formats.values())) > 1:
            raise misconfigured(
                next(iter(formats)),
                f"{' and '.join(formats)} are the same setting with different values",
            )
        return next(iter(formats.values()), "avro" if self.connector_class in HDFS else "parquet")

    @property
    def separator(self) -> bytes:
        """What follows each value with format=bytes."""
        return b"\n" if self.bytes_separator is None else self.bytes_separator.encode()

    def _partitioner(self) -> str | None:
        name = self.partitioner.rpartition(".")[2].lower()
        names = {*_PARTITIONERS.values(), "none"}
        return _PARTITIONERS.get(name) or (name if name in names else None)

    def folders(self) -> Folders:
        """The rule that chooses folders."""
        kind = self._partitioner()
        if kind == "none":
            return folders.FlatFolders()
        if kind == "default":
            return folders.PartitionFolders()
        if kind == "field":
            return folders.FieldFolders(self.partition_fields)
        formats = {"daily": folders.DAILY, "hourly": folders.HOURLY}
        path_format = formats.get(str(kind), self.path_format)
        zone = folders.zone_of(self.timezone or "UTC")
        return folders.TimeFolders(self.clock(), path_format, self.duration_ms, zone)

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
        intervals = [ms for ms in limits if ms > 0]
        return min(intervals) / 1000 if intervals else None

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
        options: dict[str, Any] = {o: raw[n] for n, o in _OPTIONS.items() if raw.get(n)}
        if self.kerberos and self.location().startswith("webhdfs:"):
            options["kerberos"] = True
        if self.region:
            options["client_kwargs"] = {"region_name": self.region}
        if self.s3_bucket and self.store_url:
            options["endpoint_url"] = self.store_url
        written = {
            "ServerSideEncryption": self.encryption,
            "SSEKMSKeyId": self.kms_key,
            "ACL": self.acl,
        }
        if any(written.values()):
            options["s3_additional_kwargs"] = {n: v for n, v in written.items() if v}
        return options | options_of(raw)
