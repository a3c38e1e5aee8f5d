"""The subject under which the schema of written records is registered, and who registers it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from semel.converters.registry.client import Registry, Schema, UnknownSchema
from semel.converters.registry.config import flag
from semel.errors import ConfigError, Problem

AUTO, LATEST = "auto.register.schemas", "use.latest.version"
STRICT = "latest.compatibility.strict"
_STRATEGY = "{}.subject.name.strategy"
_PACKAGE = "io.confluent.kafka.serializers.subject."
_STRATEGIES = ("TopicNameStrategy", "RecordNameStrategy", "TopicRecordNameStrategy")
KEYS = frozenset({AUTO, LATEST, STRICT, _STRATEGY.format("key"), _STRATEGY.format("value")})


@dataclass(frozen=True, slots=True)
class Registration:
    """How writers find the id of their schema."""

    is_key: bool
    registers: bool = True
    latest: bool = False
    strict: bool = True
    strategy: str = _STRATEGIES[0]

    @classmethod
    def configured(cls, config: Mapping[str, str], *, is_key: bool, where: str) -> Registration:
        """Read the keys.

        Raises:
            ConfigError: a value that cannot be used.
        """
        key = _STRATEGY.format("key" if is_key else "value")
        given = config.get(key, "").strip().removeprefix(_PACKAGE) or _STRATEGIES[0]
        if given not in _STRATEGIES:
            raise ConfigError(
                Problem(
                    f"{where}.{key}",
                    f"{where}.{key}={config[key]} must be one of "
                    + ", ".join(_PACKAGE + name for name in _STRATEGIES),
                )
            )
        return cls(
            is_key,
            flag(config, AUTO, True, where),
            flag(config, LATEST, False, where),
            flag(config, STRICT, True, where),
            given,
        )

    def subject(self, topic: str, record: str) -> str:
        """The subject of a schema. ``record`` is its full name, if it has one.

        Raises:
            ConfigError: the strategy needs a name, and there is none.
        """
        if self.strategy == _STRATEGIES[0]:
            return f"{topic}-{'key' if self.is_key else 'value'}"
        if not record:
            raise ConfigError(
                f"{_STRATEGY.format('key' if self.is_key else 'value')}={_PACKAGE}{self.strategy} "
                "uses the names of records, but what is written is not a record"
            )
        return record if self.strategy == _STRATEGIES[1] else f"{topic}-{record}"

    def latest_of(self, registry: Registry, subject: str) -> Schema | None:
        """The latest version, if the configuration says to write with that. Confluent's serializers
        look at that only if they do not register schemas themselves."""
        if self.registers or not self.latest:
            return None
        found = registry.latest(subject)
        if found is None:
            raise ConfigError(
                f"{LATEST}=true, but subject {subject} has no version in {registry.url}: register "
                "one"
            )
        return found

    def id_of(self, registry: Registry, subject: str, kind: str, text: str) -> int:
        """The id of a schema, which is registered if it is new.

        Raises:
            ConfigError: it is not registered, and may not be.
        """
        try:
            return registry.id_of(subject, kind, text, register=self.registers)
        except UnknownSchema:
            raise ConfigError(
                f"subject {subject} in {registry.url} has no schema like {text}. Register it, or "
                f"set {AUTO}=true"
            ) from None


def unfit(latest: Schema, reasons: Sequence[str]) -> str:
    """Why the latest version cannot be used for writing."""
    return (
        f"schema {latest.id}, the latest, does not read what is written: {'; '.join(reasons)}. "
        f"Set {STRICT}=false to try each record"
    )
