"""The subject under which the schema of written records is registered, and who registers it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from semel.converters.registry.client import Registry, Schema, UnknownSchema
from semel.converters.registry.config import AUTO, LATEST, STRATEGY, STRICT, RegistryKeys
from semel.core.errors import ConfigError, Problem
from semel.core.quoting import named

_PACKAGE = "io.confluent.kafka.serializers.subject."
_STRATEGIES = ("TopicNameStrategy", "RecordNameStrategy", "TopicRecordNameStrategy")


@dataclass(frozen=True, slots=True)
class Registration:
    """How writers find the id of their schema."""

    is_key: bool
    registers: bool = True
    latest: bool = False
    strict: bool = True
    strategy: str = _STRATEGIES[0]

    @classmethod
    def of(cls, keys: RegistryKeys, *, is_key: bool, where: str) -> Registration:
        """What the keys say.

        Raises:
            ConfigError: a strategy that is not available.
        """
        name = STRATEGY.format("key" if is_key else "value")
        chosen = keys.key_strategy if is_key else keys.value_strategy
        strategy = chosen.removeprefix(_PACKAGE)
        if strategy not in _STRATEGIES:
            raise ConfigError(
                Problem(
                    f"{where}.{name}",
                    f"{where}.{name}={chosen} must be one of "
                    + ", ".join(_PACKAGE + each for each in _STRATEGIES),
                )
            )
        return cls(is_key, keys.registers, keys.latest, keys.strict, strategy)

    def subject(self, topic: str, record: str) -> str:
        """The subject of a schema. ``record`` is its full name, if it has one.

        Raises:
            ConfigError: the strategy needs a name, and there is none.
        """
        if self.strategy == _STRATEGIES[0]:
            return f"{topic}-{'key' if self.is_key else 'value'}"
        if not record:
            raise ConfigError(
                f"{STRATEGY.format('key' if self.is_key else 'value')}={_PACKAGE}{self.strategy} "
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
                f"{LATEST}=true, but subject {named(subject)} has no version in {registry.url}: "
                "register one"
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
                f"subject {named(subject)} in {registry.url} has no schema like {text}. Register "
                f"it, or set {AUTO}=true"
            ) from None


def unfit(latest: Schema, reasons: Sequence[str]) -> str:
    """Why the latest version cannot be used for writing."""
    return (
        f"schema {latest.id}, the latest, does not read what is written: {'; '.join(reasons)}. "
        f"Set {STRICT}=false to try each record"
    )
