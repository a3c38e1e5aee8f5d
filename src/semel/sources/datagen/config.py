"""The keys of Confluent's Datagen connector."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from semel.config import HIGH, LOW, Type, key
from semel.core.answers import content_of
from semel.core.errors import ConfigError, Problem, misconfigured
from semel.core.problems import check_read
from semel.sources.datagen.quickstarts import FILES, QUICKSTARTS, Schema

CLASSES = (
    "io.confluent.kafka.connect.datagen.DatagenConnector",
    "DatagenConnector",
    "Datagen",
)


_NO_SCHEMA = Problem(
    "quickstart",
    "one of quickstart, schema.string and schema.filename is required, such as quickstart=orders",
)


def _check_quickstart(name: str) -> None:
    if name and name.lower() not in QUICKSTARTS:
        raise ValueError(f"must be one of {', '.join(QUICKSTARTS)}")


@dataclass(frozen=True)
class DatagenConfig:
    """Which records to generate, how many and how fast."""

    topic: str = key("kafka.topic", doc="The topic to write to.", group="Datagen")
    quickstart: str = key(
        "quickstart",
        "",
        "A schema that comes with semel, such as orders, users or pageviews.",
        importance=HIGH,
        validator=_check_quickstart,
    )
    schema_string: str = key(
        "schema.string", "", "The Avro schema of the records, with arg.properties.", importance=HIGH
    )
    schema_filename: str = key(
        "schema.filename",
        "",
        "A file that holds the schema, on each machine that runs tasks.",
        importance=HIGH,
    )
    keyfield: str = key(
        "schema.keyfield",
        "",
        "The field that is the key. If empty, the quickstart's; without a quickstart there is "
        "no key.",
        importance=HIGH,
    )
    max_interval_ms: int = key(
        "max.interval",
        500,
        "The longest time between two records of a task in milliseconds, half of it on average; "
        "0: as fast as possible.",
        importance=HIGH,
    )
    iterations: int = key(
        "iterations",
        -1,
        "How many records each task makes; unlimited if less than 1.",
        importance=HIGH,
    )
    seed: int | None = key(
        "random.seed",
        None,
        "The seed of random values. By default it is derived from the connector's name.",
        type=Type.LONG,
        importance=LOW,
    )

    def __post_init__(self) -> None:
        values = {
            "quickstart": self.quickstart,
            "schema.string": self.schema_string,
            "schema.filename": self.schema_filename,
        }
        names = [name for name, value in values.items() if value.strip()]
        if len(names) > 1:
            raise misconfigured(names[0], f"{' and '.join(names)} exclude each other: set one")
        if not names:
            raise ConfigError(_NO_SCHEMA)
        if "," in self.topic:
            raise misconfigured(
                "kafka.topic", f"kafka.topic={self.topic} must be one topic, without commas"
            )

    @property
    def origin(self) -> str:
        """The key that gives the schema, with its value."""
        if self.quickstart:
            return f"quickstart={self.quickstart}"
        if self.schema_filename:
            return f"schema.filename={self.schema_filename}"
        return "schema.string"

    def schema(self) -> Schema:
        """The schema and the name of the key field.

        Raises:
            ConfigError: it cannot be read.
        """
        if self.schema_string.strip():
            return Schema(self.schema_string, self.keyfield)
        quickstart = QUICKSTARTS.get(self.quickstart.lower())
        if quickstart is None:
            quickstart = self._of_file()
        return Schema(quickstart.avro, self.keyfield or quickstart.keyfield)

    def _of_file(self) -> Schema:
        if not self.schema_filename.strip():
            raise ConfigError(_NO_SCHEMA)
        check_read("schema.filename")
        path = Path(self.schema_filename)
        own = FILES.get(path.name)
        if own is not None and not path.exists():
            return Schema(QUICKSTARTS[own].avro, "")
        try:
            return Schema(content_of(path).decode(), "")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise misconfigured(
                "schema.filename",
                f"schema.filename={path} cannot be read: {reason}. Name an Avro schema, or "
                "set quickstart",
            ) from None
