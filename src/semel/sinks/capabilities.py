"""What a sink, configured as it is, wants to be given and does with it."""

from __future__ import annotations

from dataclasses import dataclass

from semel.records import KEY

ALL_ENGINES = frozenset({"direct", "bounded", "micro-batch"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """The defaults describe a sink that inserts each value as a row of columns."""

    engines: frozenset[str] = ALL_ENGINES
    """The engines that can run it."""

    uses_key: bool = True
    """Record keys are wanted. Decoding them costs time."""

    key_metadata: frozenset[str] = frozenset({KEY})
    """The metadata columns that the target's key is made of. A transform must not drop them."""

    takes_tombstones: bool = False
    """A null value deletes. Otherwise tombstones are left out."""

    takes_bytes: bool = False
    """Keys and values that no transform has changed are wanted as they came, in the columns
    ``__connect_key`` and ``value``. Converters then only find out bad records."""

    takes_dead_letters: bool = False
    """The sink writes the dead letters of a topic, too, together with the results."""

    commits_dead_letters_first: bool = False
    """Dead letters go to their table by a commit of their own, before the results'."""

    replaces: bool = False
    """A later record of a key replaces or deletes the row of an earlier one."""

    only_updates: bool = False
    """A record whose key has no row yet leaves none either."""

    evolves: bool = False
    """Fields that the target lacks are wanted, too."""

    carries: frozenset[str] = frozenset()
    """The metadata columns that are wanted besides topic, partition, offset and key."""

    enters_whole_topics: bool = False
    """The partitions of a new topic are wanted in the ledger at once, so that one that is missing
    there was added to the topic later."""

    ledger_in_group: bool = False
    """The consumer group's offsets are part of the ledger, so that no copy may go there."""
