"""ReplaceField: drop, keep and rename fields."""

from __future__ import annotations

from dataclasses import dataclass, field

from semel.config import key
from semel.core.errors import ConfigError, Problem
from semel.core.quoting import named
from semel.transforms.base import Batch, Contents, ContentsTransform
from semel.transforms.fields import Defaults
from semel.transforms.structs import (
    Columns,
    columns,
    refuse_all,
    refuse_duplicate,
    required,
    struct,
)


@dataclass(frozen=True)
class ReplaceFieldConfig(Defaults):
    """The keys of ReplaceField."""

    exclude: tuple[str, ...] = key(
        "exclude", (), "Fields to drop; wins over include.", aliases=("blacklist",)
    )
    include: tuple[str, ...] = key(
        "include", (), "Fields to keep; all others are dropped.", aliases=("whitelist",)
    )
    renames: tuple[str, ...] = key("renames", (), "Pairs of an old and a new name, old:new.")
    new_names: dict[str, str] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        pairs = [mapping.rstrip(":").split(":") for mapping in self.renames]
        wrong = [m for m, pair in zip(self.renames, pairs, strict=True) if len(pair) != 2]
        if wrong:
            raise ConfigError(Problem("renames", f"Invalid rename mapping: {wrong[0]}"))
        object.__setattr__(self, "new_names", dict(pairs))


class ReplaceField(ContentsTransform):
    """See Kafka Connect's ReplaceField."""

    section = ReplaceFieldConfig

    def __init__(self, config: ReplaceFieldConfig, *, of_key: bool) -> None:
        super().__init__(config, of_key=of_key)
        self._config = config

    def changed(self, batch: Batch, contents: Contents) -> Contents:
        config = self._config
        array = required(contents, "field replacement", nulls=True)
        found = columns(array, defaults=config.replace_nulls)
        old_names = {new: old for old, new in config.new_names.items()}
        kept: Columns = {}
        for name in found:
            if name in config.exclude or (config.include and name not in config.include):
                continue
            new = config.new_names.get(name, name)
            refuse_duplicate(new, kept, contents, array)
            old = old_names.get(new, new) if contents.has_schema else name
            if old not in found:
                refuse_all(array, f"{named(old)} is not a valid field name")
            else:
                kept[new] = found[old].over(kept.get(new))
        return contents.holding(struct(kept, array))
