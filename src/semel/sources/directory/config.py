"""The keys of kafka-connect-spooldir's connectors, and how those of FilePulse's are translated into
them where that is possible."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from semel.config import HIGH, LOW, Type, key
from semel.core.errors import ConfigError, Problem, misconfigured
from semel.core.patterns import check
from semel.core.problems import refuse
from semel.sources.directory.opencsv import Dialect

_SPOOLDIR = "com.github.jcustenborder.kafka.connect.spooldir."
OF_SPOOLDIR = {
    "SpoolDirCsvSourceConnector": "csv",
    "SpoolDirJsonSourceConnector": "json",
    "SpoolDirSchemaLessJsonSourceConnector": "json",
    "SpoolDirLineDelimitedSourceConnector": "text",
    "SpoolDirAvroSourceConnector": "avro",
}
"""The connectors of kafka-connect-spooldir, with their formats."""
FILEPULSE = "io.streamthoughts.kafka.connect.filepulse.source.FilePulseSourceConnector"
CLASSES = (
    *(f"{_SPOOLDIR}{name}" for name in OF_SPOOLDIR),
    *OF_SPOOLDIR,
    "DirectorySource",
    "Directory",
    FILEPULSE,
)
FORMATS = ("csv", "json", "text", "parquet", "avro")
NONE, DELETE, MOVE, MOVE_BY_DATE = "none", "delete", "move", "movebydate"
ATTRIBUTES = tuple(
    f"{name}{order}" for name in ("Name", "Length", "LastModified") for order in ("Asc", "Desc")
)

IGNORED = {
    "cleanup.policy.maintain.relative.path": "folders below input.path stay",
    "csv.keep.carriage.return": "line ends are not part of values",
    "csv.verify.reader": "files are looked at when they are read",
    "file.buffer.size.bytes": "files are read in blocks of a few megabytes",
    "schema.generation.key.name": "schemas have no name",
    "schema.generation.value.name": "schemas have no name",
    "task.count": "files are assigned to tasks by name",
    "task.index": "files are assigned to tasks by name",
    "task.partitioner": "files are assigned to tasks by name",
}


def _charset(name: str) -> None:
    try:
        "".encode(name)
    except (LookupError, UnicodeError):
        raise ValueError("is not a character set, such as UTF-8 or ISO-8859-1") from None


def _character(value: str) -> str:
    text = value.strip() or value
    if (text.isascii() and text.isdecimal()) or len(text) > 1:  # 9 is a tab, as in spooldir
        if not 0 <= (number := int(text)) < 128:
            raise ValueError(number)
        text = chr(number)
    if not text.isascii() or not text:
        raise ValueError
    return text


def _attributes(names: Sequence[str]) -> None:
    wrong = [n for n in names if n not in ATTRIBUTES]
    if wrong:
        raise ValueError(f"must be one or more of {', '.join(ATTRIBUTES)}")


def _is_character(value: str) -> bool:
    try:
        return bool(_character(value))
    except ValueError:
        return False


@dataclass(frozen=True)
class TextKeys:
    """The format of text."""

    charset: str = key(
        "file.charset",
        "UTF-8",
        "The character set of text, JSON and CSV.",
        aliases=("csv.file.charset",),
        validator=_charset,
        importance=LOW,
        group="Text",
    )
    header: bool = key(
        "csv.first.row.as.header",
        False,
        "The first row names the columns; else they are the fields of value.schema.",
        group="CSV Parsing",
    )
    skip_lines: int = key(
        "csv.skip.lines",
        0,
        "Lines to skip at the beginning of a file.",
        at_least=0,
        type=Type.INT,
        importance=LOW,
    )
    separator: str = key(
        "csv.separator.char",
        "44",
        "The character that separates columns, or its number; 0 for NUL, with the rules of "
        "RFC 4180.",
        importance=LOW,
    )
    quote: str = key(
        "csv.quote.char", "34", "The character that quotes a value, or its number.", importance=LOW
    )
    escape: str = key(
        "csv.escape.char",
        "92",
        "The character that escapes the next one, or its number; 0 for none.",
        importance=LOW,
    )
    rfc_4180: bool = key(
        "csv.rfc.4180.parser.enabled",
        False,
        "Read rows by RFC 4180: no character is an escape character.",
        importance=LOW,
    )
    nulls: str = key(
        "csv.null.field.indicator",
        "neither",
        "Which empty texts are null: neither, empty_separators (those without quotes), "
        "empty_quotes, both. Empty numbers and times are always null.",
        choices=("neither", "empty_separators", "empty_quotes", "both"),
        importance=LOW,
    )
    case_sensitive: bool = key(
        "csv.case.sensitive.field.names",
        False,
        "Whether the case of names matters when columns are matched to fields.",
        importance=LOW,
    )
    ignore_whitespace: bool = key(
        "csv.ignore.leading.whitespace",
        True,
        "Leave out blanks before a quote. Numbers and times may always have blanks around them.",
        importance=LOW,
    )
    ignore_quotations: bool = key(
        "csv.ignore.quotations",
        False,
        "Drop quotes; separators and line ends inside them count.",
        importance=LOW,
    )
    strict_quotes: bool = key(
        "csv.strict.quotes", False, "Leave out what stands outside of quotes.", importance=LOW
    )


@dataclass(frozen=True)
class DirectoryConfig(TextKeys):
    """Which files to read, how, and what happens to them afterwards."""

    topic: str = key("topic", doc="The topic to write to.", group="General")
    input_path: str = key(
        "input.path",
        doc="The directory, or the URL of one, whose files are read.",
        group="File System",
    )
    finished_path: str = key(
        "finished.path",
        "",
        "Where files are moved to once all their records are committed.",
        importance=HIGH,
    )
    error_path: str = key(
        "error.path",
        "",
        "Where files that cannot be read to their end are moved to. Empty: they stay.",
        importance=HIGH,
    )
    pattern: str = key(
        "input.file.pattern",
        ".*",
        "A regular expression that the whole name of a file must match.",
        validator=check,
        importance=HIGH,
    )
    recursive: bool = key(
        "input.path.walk.recursively",
        False,
        "Also read the files of folders below.",
        importance=LOW,
    )
    cleanup: str = key(
        "cleanup.policy",
        MOVE,
        "What becomes of a file once all its records are committed: none, delete, move (to "
        "finished.path) or movebydate (to a folder there, named by the day the file was last "
        "changed, in UTC).",
        choices=(NONE, DELETE, MOVE, MOVE_BY_DATE),
    )
    halt: bool = key(
        "halt.on.error",
        True,
        "Stop the connector at a file that cannot be read to its end; false: continue with others.",
        importance=HIGH,
    )
    minimum_age_ms: int = key(
        "file.minimum.age.ms",
        1000,
        "How long a file must have been left unchanged before it is read.",
        at_least=0,
        importance=LOW,
    )
    sort: tuple[str, ...] = key(
        "files.sort.attributes",
        ("NameAsc",),
        "The order in which a task reads files: NameAsc, NameDesc, LengthAsc, LengthDesc, "
        "LastModifiedAsc, LastModifiedDesc.",
        validator=_attributes,
        importance=LOW,
    )
    processing: str = key(
        "processing.file.extension",
        ".PROCESSING",
        "Files whose names end with this are not read; semel itself creates none.",
        importance=LOW,
    )
    empty_poll_ms: int = key(
        "empty.poll.wait.ms",
        500,
        "Time between two checks for new files.",
        at_least=1,
        importance=LOW,
        group="General",
    )
    batch_size: int = key(
        "batch.size",
        100_000,
        "Maximum number of records in one batch.",
        at_least=1,
        type=Type.INT,
        importance=LOW,
    )
    format_name: str = key(
        "format",
        "",
        "What the files hold: csv, json (values one after another), text (lines), parquet or "
        "avro. Each of spooldir's classes has its own.",
        choices=("", *FORMATS),
        importance=HIGH,
    )
    metadata_location: str = key(
        "metadata.location",
        "headers",
        "Where a record says which file it is from: headers, field (a field of the value) or none.",
        choices=("headers", "field", "none"),
        importance=LOW,
        group="Metadata",
    )
    metadata_field: str = key(
        "metadata.field",
        "metadata",
        "The field of the value with metadata.location=field.",
        importance=LOW,
    )
    timestamp_mode: str = key(
        "timestamp.mode",
        "process_time",
        "The records' timestamps: process_time, file_time (when the file was last changed) or "
        "field.",
        choices=("process_time", "file_time", "field"),
        group="Timestamps",
    )
    timestamp_field: str = key(
        "timestamp.field", "", "The field of the value with timestamp.mode=field."
    )
    date_formats: tuple[str, ...] = key(
        "parser.timestamp.date.formats",
        ("yyyy-MM-dd'T'HH:mm:ss", "yyyy-MM-dd' 'HH:mm:ss"),
        "Patterns of SimpleDateFormat for fields of times, tried in this order.",
    )
    timezone: str = key("parser.timestamp.timezone", "UTC", "The time zone of times without one.")
    key_schema: str = key(
        "key.schema",
        "",
        "The fields of the key, in spooldir's schema format.",
        importance=HIGH,
        group="Schema",
    )
    value_schema: str = key(
        "value.schema", "", "The fields of the value, in spooldir's schema format.", importance=HIGH
    )
    generated: bool = key(
        "schema.generation.enabled",
        False,
        "All fields are text, named as in the file.",
        group="Schema Generation",
    )
    key_fields: tuple[str, ...] = key(
        "schema.generation.key.fields",
        (),
        "The fields of the value that make the key, without key.schema.",
        aliases=("key.fields",),
    )

    def __post_init__(self) -> None:
        refuse(self._problems())

    def _problems(self) -> Iterator[Problem]:
        if "," in self.topic:
            yield Problem("topic", f"topic={self.topic} must be one topic, no commas")
        if self.cleanup in (MOVE, MOVE_BY_DATE) and not self.finished_path:
            yield Problem(
                "finished.path",
                f"finished.path is required with cleanup.policy={self.cleanup}: finished files "
                "are moved there",
            )
        if not self.halt and not self.error_path:
            yield Problem(
                "error.path",
                "error.path is required with halt.on.error=false: files that cannot be read are "
                "moved there",
            )
        root = f"{self.input_path.rstrip('/')}/"
        for name, path in (("finished.path", self.finished_path), ("error.path", self.error_path)):
            there = f"{path.rstrip('/')}/"
            if path and (there == root or (self.recursive and there.startswith(root))):
                yield Problem(
                    name,
                    f"{name}={path} is read as part of input.path={self.input_path}: name another "
                    "place",
                )
        if self.timestamp_mode == "field" and not self.timestamp_field:
            yield Problem(
                "timestamp.field", "timestamp.field is required with timestamp.mode=field"
            )
        texts = {
            "csv.separator.char": self.separator,
            "csv.quote.char": self.quote,
            "csv.escape.char": self.escape,
        }
        wrong = [name for name, text in texts.items() if not _is_character(text)]
        for name in wrong:
            yield Problem(name, f"{name}={texts[name]} must be a character of ASCII, or its number")
        if not wrong and self._clash(self.dialect):
            yield Problem(
                "csv.separator.char",
                f"csv.separator.char={self.separator} must differ from csv.quote.char and "
                "csv.escape.char",
            )

    def format_of(self, connector_class: str) -> str:
        """The format of the files.

        Raises:
            ConfigError: nothing says so, or class and key differ.
        """
        own = OF_SPOOLDIR.get(connector_class.rpartition(".")[2], "")
        if own and self.format_name and own != self.format_name:
            raise misconfigured(
                "format",
                f"format={self.format_name} does not match {connector_class}, which reads "
                f"{own}: remove it, or set connector.class=Directory",
            )
        format_name = own or self.format_name
        if not format_name:
            raise misconfigured("format", f"format is required: one of {', '.join(FORMATS)}")
        return format_name

    def _clash(self, of: Dialect) -> bool:
        return of.separator == of.quote or (of.separator == of.escape and not of.rfc_4180)

    @property
    def dialect(self) -> Dialect:
        separator, quote, escape = map(_character, (self.separator, self.quote, self.escape))
        return Dialect(
            separator,
            quote,
            "\0" if escape == quote else escape,
            self.rfc_4180 or separator == "\0",
            self.strict_quotes,
            self.ignore_quotations,
            self.ignore_whitespace,
            self.nulls,
        )


# FilePulse

FILEPULSE_PREFIXES = ("fs.", "tasks.", "filters", "file.filter.", "offset.", "skip.", "ignore.")

FILEPULSE_PATHS = (
    "fs.listing.directory.path",
    "fs.cleanup.policy.move.success.path",
    "fs.cleanup.policy.move.failure.path",
)
_SAME = {
    "fs.listing.directory.path": "input.path",
    "fs.listing.recursive.enabled": "input.path.walk.recursively",
    "fs.listing.interval.ms": "empty.poll.wait.ms",
    "fs.cleanup.policy.move.success.path": "finished.path",
    "fs.cleanup.policy.move.failure.path": "error.path",
    "file.filter.regex.pattern": "input.file.pattern",
    "file.filter.minimum.age.ms": "file.minimum.age.ms",
}
_POLICIES = {
    "LogCleanupPolicy": "none",
    "DeleteCleanupPolicy": "delete",
    "LocalMoveCleanupPolicy": "move",
}
_READERS = {"Row": "text", "Avro": "avro", "Parquet": "parquet"}
_OF_NO_MEANING = (
    *("fs.listing.class", "fs.listing.filters", "tasks.max", "tasks.empty.poll.wait.ms"),
    *("tasks.file.status.storage.", "tasks.halt.on.error", "offset.policy.class"),
    *("offset.strategy", "offset.attributes.string", "ignore.committed.offsets"),
)
"""Keys whose effect follows from semel's own settings, or that concern what the offsets topic keeps
here."""


def of_filepulse(raw: Mapping[str, str]) -> dict[str, str]:
    """The keys of this source, from those of FilePulse's connector.

    Raises:
        ConfigError: a key has no equivalent.
    """
    config = {name: raw[given] for given, name in _SAME.items() if raw.get(given)}
    policy = _last(raw.get("fs.cleanup.policy.class", "LogCleanupPolicy"))
    if policy not in _POLICIES:
        raise _refused("fs.cleanup.policy.class", policy, f"one of {', '.join(_POLICIES)}")
    config["cleanup.policy"] = _POLICIES[policy]
    config["halt.on.error"] = raw.get(
        "tasks.halt.on.error", "true" if not config.get("error.path") else "false"
    )
    reader = _last(raw.get("tasks.reader.class", ""))
    kind = next((f for name, f in _READERS.items() if f"{name}FileInputReader" in reader), "")
    if not kind:
        raise _refused("tasks.reader.class", reader, "a reader of rows, Avro or Parquet")
    config["format"] = kind
    for name, value in raw.items():
        if name in ("fs.cleanup.policy.class", "tasks.reader.class", *_SAME):
            continue
        if name.startswith(FILEPULSE_PREFIXES) and value and not name.startswith(_OF_NO_MEANING):
            raise _refused(
                name,
                value,
                "left out. connector.class=Directory reads CSV, JSON, text, Parquet and Avro, and "
                "transforms=... stands for filters",
            )
    return {**{k: v for k, v in raw.items() if not k.startswith(FILEPULSE_PREFIXES)}, **config}


def _last(name: str) -> str:
    return name.strip().rpartition(".")[2]


def _refused(name: str, value: str, must: str) -> ConfigError:
    return misconfigured(
        name, f"{name}={value} of FilePulse has no equivalent here: it must be {must}"
    )
