"""What a configured sink takes and what it does with it."""

from __future__ import annotations

from dataclasses import dataclass

from semel.core.records import KEY

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
    """The sink wants the bytes of keys and values that no transform has changed, in the columns
    ``__connect_key`` and ``value``. Converters then only find bad records."""

    takes_text: bool = False
    """The sink wants each value as text, or bytes, in the column ``value``, as
    :func:`semel.sinks.flatten.lines` writes it."""

    writes_text: bool = False
    """It writes fields as text, such as JSON: text that looks like a date stays as it is."""

    tells_schemas: bool = False
    """A field that a record's schema lacks is not null, but left as it is. Records whose schemas
    have different fields come in parts of their own. Without a schema, after transforms, rows say
    which fields a record lacks, see :func:`semel.core.records.absences`."""

    writes_documents: bool = False
    """The same, and rows without a schema always say so."""

    takes_change_events: bool = False
    """Debezium's change events are written as the rows and deletes they stand for, as by Debezium's
    own sink."""

    takes_dead_letters: bool = False
    """The sink writes the dead letters of a topic, too, together with the results."""

    traces: bool = True
    """Rows can hold the origin of their records (``provenance``)."""

    commits_dead_letters_first: bool = False
    """Dead letters go to their table in a separate commit, before the results."""

    replaces: bool = False
    """A later record of a key replaces or deletes the row of an earlier one."""

    any_order: bool = False
    """The parts of a commit may come in any order: the sink puts their records into the order of
    partition and offset, or needs none. Otherwise it writes one part after another."""

    routes: bool = False
    """Transforms may change where a topic's records go: the sink names its targets by
    :meth:`semel.sinks.config.RoutedConfig.routed`."""

    splits: bool = False
    """It also writes the records of one topic to several targets that are not known in
    advance, in one commit."""

    ignores_topics: bool = False
    """No target is named by topics, so it does not matter where transforms send records."""

    only_updates: bool = False
    """A record whose key has no row yet writes nothing."""

    only_objects: bool = False
    """A value without a schema that is not an object is a bad record, as in Kafka Connect's sinks
    of tables. Otherwise, it is the field ``value``."""

    evolves: bool = False
    """The sink also wants fields that the target lacks."""

    most_columns: int | None = None
    """A record with more fields is a bad one: the target has no room for them."""

    carries: frozenset[str] = frozenset()
    """The metadata columns that the sink wants besides topic, partition, offset and key."""

    enters_whole_topics: bool = False
    """The ledger must get all partitions of a new topic at once, so that a missing one must have
    been added to the topic later."""

    ledger_in_group: bool = False
    """The consumer group's offsets are part of the ledger, so no copies may be written there."""
