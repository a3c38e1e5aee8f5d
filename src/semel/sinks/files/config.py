"""The files sink's keys: Confluent's names and defaults, Aiven's as aliases, some short ones."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from semel.config import key
from semel.errors import ConfigError
from semel.sinks.files import folders
from semel.sinks.files.folders import Clock, Folders

_CONFLUENT = (
    "io.confluent.connect.s3.S3SinkConnector",
    "io.confluent.connect.gcs.GcsSinkConnector",
    "io.confluent.connect.hdfs.HdfsSinkConnector",
    "io.confluent.connect.hdfs3.Hdfs3SinkConnector",
    "io.confluent.connect.azure.blob.AzureBlobStorageSinkConnector",
)
_AIVEN = (
    "io.aiven.kafka.connect.s3.AivenKafkaConnectS3SinkConnector",
    "io.aiven.kafka.connect.gcs.GcsSinkConnector",
    "io.aiven.kafka.connect.azure.sink.AzureBlobSinkConnector",
)
CLASSES = ("files", "semel.files.FilesSink", *_CONFLUENT, *_AIVEN)

_FORMATS = {"parquet": "parquet", "json": "json", "avro": "avro"}
_PARTITIONERS = {
    "defaultpartitioner": "default",
    "fieldpartitioner": "field",
    "timebasedpartitioner": "time",
    "dailypartitioner": "daily",
    "hourlypartitioner": "hourly",
}
_TIMED = ("time", "daily", "hourly")

_APPENDED = "files are only added to"
IGNORED = {
    "auto.create": "folders are made as they are needed",
    "auto.evolve": "fields that appear are added to the files that follow",
    "append.late.data": "each record goes to the folder of its own time",
    "batch.size": "maxOffsetsPerTrigger bounds a commit",
    "connect.hdfs.keytab": "the ticket is kinit's",
    "connect.hdfs.principal": "the ticket is kinit's",
    "file.name.template": "names are <topic>+<partition>+<from>-<until>",
    "format.output.fields.value.encoding": "values are written as columns",
    "directory.delim": "folders are separated by /",
    "hadoop.conf.dir": "libhdfs finds it by HADOOP_CONF_DIR",
    "hadoop.home": "libhdfs finds it by HADOOP_HOME",
    "hdfs.namenode.principal": "over HTTP it is the NameNode's of its web server",
    "kerberos.ticket.renew.period.ms": "the ticket is kinit's",
    "locale": "path.format shows numbers only",
    "logs.dir": "the ledger stands in _semel below path",
    "s3.part.retries": "storage.options.* sets the store's driver",
    "s3.part.size": "storage.options.* sets the store's driver",
    "s3.retry.backoff.ms": "storage.options.* sets the store's driver",
    "schema.cache.size": "a topic has one schema",
    "schema.compatibility": "a field keeps its type; fields that appear are added",
    "schema.generator.class": "folders do not need a schema",
    "shutdown.timeout.ms": "stopping loses nothing",
    "storage.class": "path says which store it is",
}

_INTEGER = re.compile(r"-?\d+")
_TEXTS = frozenset(
    {"key", "secret", "token", "project", "account_name", "account_key", "password", "user"}
)
"""Options of fsspec's drivers that are text even if they look like a number."""
_OPTIONS = {
    "aws.access.key.id": "key",
    "aws.secret.access.key": "secret",
    "gcs.credentials.path": "token",
    "azblob.account.name": "account_name",
    "azblob.account.key": "account_key",
}
"""Keys that are options of fsspec's drivers."""


@dataclass(frozen=True)
class FilesConfig:
    """Which files are made where."""

    connector_class: str = key("connector.class", "files")
    path: str = key(
        "path",
        "",
        "Directory or URL (s3://, gs://, abfss://, webhdfs://, file://) that holds the files.",
        aliases=("hdfs.url",),
    )
    s3_bucket: str = key(
        "s3.bucket.name", "", "Bucket, instead of path.", aliases=("aws.s3.bucket.name",)
    )
    gcs_bucket: str = key("gcs.bucket.name", "", "Bucket, instead of path.")
    azure_container: str = key(
        "azblob.container.name",
        "",
        "Container, instead of path.",
        aliases=("azure.storage.container.name",),
    )
    store_url: str = key(
        "store.url",
        "",
        "The store's address: an S3 endpoint beside s3.bucket.name, else like path.",
        aliases=("aws.s3.endpoint",),
    )
    topics_dir: str | None = key(
        "topics.dir",
        None,
        "Folder below path that holds the topics' folders. With a bucket's name: topics.",
        aliases=("aws.s3.prefix", "file.name.prefix"),
    )
    format: str = key("format", "", "Of the files.", choices=("", "parquet", "json", "csv", "avro"))
    format_class: str = key("format.class", "", "The same, by Confluent's class names.")
    format_output: str = key(
        "format.output.type",
        "",
        "The same, in Aiven's words.",
        choices=("", "parquet", "jsonl", "avro"),
    )
    format_fields: str = key(
        "format.output.fields", "value", "only the value is written.", choices=("value",)
    )
    format_envelope: str = key(
        "format.output.envelope",
        "false",
        "a value is not wrapped in an object.",
        choices=("false",),
    )
    parquet_codec: str = key(
        "parquet.codec",
        "snappy",
        "Compression of Parquet files.",
        choices=("zstd", "snappy", "gzip", "none"),
    )
    avro_codec: str = key(
        "avro.codec",
        "null",
        "Compression of Avro files.",
        choices=("null", "deflate", "bzip2"),
    )
    compression: str = key(
        "file.compression.type",
        "none",
        "Compression of JSON and CSV files.",
        aliases=("s3.compression.type", "gcs.compression.type"),
        choices=("none", "gzip", "zstd"),
    )
    max_records: int = key(
        "flush.size",
        0,
        "Most records of a file; 0 for no limit.",
        aliases=("file.max.records",),
        at_least=0,
    )
    target_file_size: int = key(
        "target.file.size", 128 * 1024 * 1024, "Bytes of a file.", at_least=1024
    )
    rotate_ms: int = key(
        "rotate.interval.ms",
        -1,
        "Most milliseconds from a file's first record to its last, by timestamp.extractor.",
        at_least=-1,
    )
    schedule_ms: int = key(
        "rotate.schedule.interval.ms", -1, "Milliseconds between two commits.", at_least=-1
    )
    partitioner: str = key(
        "partitioner.class",
        "default",
        "Folders below a topic's: default (partition=<n>), none, field, time, daily, hourly, or "
        "the name of Confluent's class.",
    )
    partition_fields: tuple[str, ...] = key(
        "partition.field.name", (), "Fields whose values make folders."
    )
    path_format: str = key("path.format", "", "Folders of partitioner.class=time.")
    duration_ms: int = key(
        "partition.duration.ms",
        -1,
        "Milliseconds of such a folder; -1 for the finest part of path.format.",
        at_least=-1,
    )
    timezone: str = key("timezone", "", "Of such folders; UTC if empty.")
    extractor: str = key(
        "timestamp.extractor",
        "wallclock",
        "A record's time: when it is written, its own timestamp, or a field.",
        choices=("wallclock", "record", "recordfield"),
    )
    timestamp_field: str = key(
        "timestamp.field", "timestamp", "The field of timestamp.extractor=RecordField."
    )
    zero_pad: int = key(
        "filename.offset.zero.pad.width", 10, "Digits of offsets in names.", at_least=0
    )
    delimiter: str = key("file.delim", "+", "Stands between the parts of a name.")
    include: tuple[str, ...] = key("fields.whitelist", (), "Value fields to write.")
    exclude: tuple[str, ...] = key("field.exclude.list", (), "Value fields to leave out.")
    insert_mode: str = key("insert.mode", "insert", "files are only added to.", choices=("insert",))
    on_null: str | None = key(
        "behavior.on.null.values",
        None,
        "ignore: null values are left out; fail: they are bad records, the default of Confluent's "
        "classes.",
    )
    delete_enabled: bool = key("delete.enabled", False, "Not available: files are only added to.")
    hive: str = key(
        "hive.integration",
        "false",
        "no metastore is told of new folders. They are named as Hive's: let it find them there "
        "(MSCK REPAIR TABLE).",
        choices=("false",),
    )
    keys_too: str = key(
        "store.kafka.keys",
        "false",
        "a record's key is not written; copy it into a field in a transform.",
        choices=("false",),
    )
    headers_too: str = key(
        "store.kafka.headers",
        "false",
        "a record's headers are not written.",
        choices=("false",),
    )
    encryption: str = key("s3.ssea.name", "", "S3's server-side encryption: AES256 or aws:kms.")
    customer_key: str = key("s3.sse.customer.key", "", "Not available.", secret=True)
    kms_key: str = key("s3.sse.kms.key.id", "", "The key of aws:kms.")
    acl: str = key("s3.acl.canned", "", "S3's canned ACL of what is written.")
    region: str = key("s3.region", "", "S3's region.", aliases=("aws.s3.region",))
    access_key: str = key("aws.access.key.id", "", "S3's access key.", secret=True)
    secret_key: str = key("aws.secret.access.key", "", "S3's secret key.", secret=True)
    credentials: str = key("gcs.credentials.path", "", "File of GCS's credentials.")
    account: str = key("azblob.account.name", "", "Azure's storage account.")
    account_key: str = key("azblob.account.key", "", "Its key.", secret=True)
    kerberos: bool = key(
        "hdfs.authentication.kerberos", False, "Whether webhdfs:// is asked by Kerberos."
    )

    pk_mode: ClassVar[str] = "none"
    pk_fields: ClassVar[tuple[str, ...]] = ()
    folds_names: ClassVar[bool] = False

    def __post_init__(self) -> None:
        problems = self._not_available()
        places = [self.path, self.s3_bucket, self.gcs_bucket, self.azure_container]
        if sum(map(bool, places)) > 1:
            problems.append(
                "path, s3.bucket.name, gcs.bucket.name and azblob.container.name exclude each "
                "other: set one"
            )
        if self.store_url and not self.s3_bucket and any(p != self.store_url for p in places if p):
            problems.append(
                "store.url is S3's endpoint beside s3.bucket.name, else it stands for path: remove "
                "it here, or set storage.options.endpoint_url instead"
            )
        if not any(places) and not self.store_url:
            problems.append("path is required. The directory or URL that holds the files")
        if self.include and self.exclude:
            problems.append("fields.whitelist and field.exclude.list exclude each other: set one")
        if not self.delimiter or "/" in self.delimiter:
            problems.append(f"file.delim={self.delimiter!r} must be text without /")
        kind = self._partitioner()
        if kind is None:
            problems.append(
                f"partitioner.class={self.partitioner!r} must be one of default, none, field, "
                "time, daily, hourly, or Confluent's class of that kind"
            )
        if kind == "field" and not self.partition_fields:
            problems.append("partitioner.class=field needs partition.field.name: name the fields")
        if kind == "time" and not self.path_format:
            problems.append(
                "partitioner.class=time needs path.format, such as 'day'=YYYY-MM-dd/'hour'=HH"
            )
        if self.duration_ms == 0:
            problems.append("partition.duration.ms=0 must be positive, or -1")
        if problems:
            raise ConfigError(*problems)
        folders.check_format(self.path_format)
        if kind in _TIMED:
            folders.zone_of(self.timezone or "UTC")
        self.format_name()

    def _not_available(self) -> list[str]:
        problems = []
        if self.delete_enabled:
            problems.append(
                f"delete.enabled=true: {_APPENDED}, so a tombstone cannot delete. Remove it, or "
                "use a table (delta, iceberg)"
            )
        if self.tombstones not in ("fail", "ignore"):
            problems.append(
                f"behavior.on.null.values={self.on_null!r} must be fail or ignore: a null has no "
                "row that could be written"
            )
        if "{{" in (self.topics_dir or ""):
            problems.append(
                f"topics.dir={self.topics_dir!r}: nothing is filled in there. Set "
                "partitioner.class for folders by time"
            )
        if self.customer_key:
            problems.append(
                "s3.sse.customer.key is not available: files would be written without it. Set "
                "s3.ssea.name and s3.sse.kms.key.id, or remove it"
            )
        return problems

    @property
    def tombstones(self) -> str:
        """``fail`` or ``ignore``: what becomes of null values."""
        default = "fail" if self.connector_class in _CONFLUENT else "ignore"
        return (self.on_null or default).lower()

    def takes(self, topic: str, field: str) -> bool:
        """Whether a value field is written; lists may hold ``field`` or ``topic:field``."""
        names = (field, f"{topic}:{field}")
        if self.include:
            return any(n in self.include for n in names)
        return not any(n in self.exclude for n in names)

    def format_name(self) -> str:
        """The format that any of the three keys says.

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
                raise ConfigError(
                    f"format.class={self.format_class}: only ParquetFormat, JsonFormat and "
                    "AvroFormat are available; csv by format=csv"
                )
            found["format.class"] = name
        if len(set(found.values())) > 1:
            raise ConfigError(f"{' and '.join(found)} are the same setting with different values")
        return next(iter(found.values()), "parquet")

    def _partitioner(self) -> str | None:
        name = self.partitioner.rpartition(".")[2].lower()
        known = {*_PARTITIONERS.values(), "none"}
        return _PARTITIONERS.get(name) or (name if name in known else None)

    def folders(self) -> Folders:
        """What chooses folders."""
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
        """Seconds between commits, where a key says so: by the clock of this machine."""
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

    def options(self, raw: Mapping[str, str]) -> dict[str, Any]:
        """What fsspec's driver of the store is given.

        Raises:
            ConfigError: an option without a value, or that is no JSON though it looks like it.
        """
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
        prefix = "storage.options."
        given = {k: v for k, v in raw.items() if k.startswith(prefix)}
        return found | {k[len(prefix) :]: _option(k, v) for k, v in given.items()}


def _option(name: str, value: str) -> Any:
    """Text, a whole number, true, false, or an object in JSON."""
    text = value.strip()
    if not text:
        raise ConfigError(f"{name} is empty: set it, or remove it")
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if _INTEGER.fullmatch(text) and name.rpartition(".")[2] not in _TEXTS:
        return int(text)
    if text.startswith("{"):
        try:
            return json.loads(text)
        except ValueError:
            raise ConfigError(f"{name} begins with {{ but is not JSON") from None
    return text
