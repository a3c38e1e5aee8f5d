"""The files sink's keys: Confluent's names and defaults, Aiven's as aliases, some short ones."""

from __future__ import annotations

from dataclasses import dataclass

from semel.config import HIGH, LOW, Type, connector_class_key, key
from semel.sinks.files.format_keys import FormatKeys
from semel.sinks.table_keys import exclude_key, include_key
from semel.sinks.unavailable import placeholder_key


def _duration(milliseconds: int) -> None:
    if milliseconds == 0:
        raise ValueError("must be positive, or -1")


@dataclass(frozen=True)
class FilesKeys(FormatKeys):
    """Which files are made where, as the user has said."""

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
