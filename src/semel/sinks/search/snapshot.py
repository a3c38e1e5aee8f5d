"""Reads the indices for an audit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

import pyarrow as pa

from semel.core.errors import ConfigError
from semel.core.quoting import named
from semel.core.records import OFFSET, PARTITION, TOPIC
from semel.sinks.base import Snapshot
from semel.sinks.rereading import below
from semel.sinks.search import dead_letters, indices
from semel.sinks.search.client import Client
from semel.sinks.search.ledger import SearchLedger


def take(
    client: Client,
    ledger: SearchLedger,
    names: Mapping[str, Collection[str]],
    unkeyed: Collection[str],
    provenance: Mapping[str, str],
    dead_letter_index: str,
    together: str = "",
    *,
    streams: bool = False,
) -> Snapshot:
    """Read the ledger, then the results: documents are written before positions, so everything that
    the ledger covers is there. Documents above a position belong to an attempt that is under way or
    was interrupted. The next attempt writes them again, so they are left out if ids are places in
    Kafka (``unkeyed``). If ids are keys, they may have replaced documents that the ledger covers:
    while a write is under way, missing documents cannot be judged.

    Each topic has one index, unless all of them are one target, whose name is ``together``.
    """
    entries, holes = ledger.entries(), ledger.holes()
    positions = {e.topic_partition: e.position for e in entries}
    records: dict[str, pa.Table] = {}
    rows: Counter[str] = Counter()
    untraced: Counter[str] = Counter()
    under_way = set()
    counted: set[tuple[str, str]] = set()
    for topic, name in [(topic, name) for topic, of_it in names.items() for name in of_it]:
        target = together or name
        where = f"connector {ledger.connector}: topic {named(topic)}"
        index = indices.find(client, name, where, stream=streams)
        if index is None:
            continue
        missing = [c for c in provenance.values() if c not in index.fields]
        if missing:
            raise ConfigError(
                f"{where}: provenance=true, but index {named(name)} has no field "
                f"{named(missing[0])}. Run the connector with auto.evolve=true, or audit by counts "
                "with provenance=false"
            )
        client.refresh(index.name)
        if (target, name) not in counted:
            counted.add((target, name))
            number = _count(client, index.name)
            rows[target] += number
            if provenance:
                traced = {"query": {"exists": {"field": provenance[OFFSET]}}}
                untraced[target] += number - _count(client, index.name, traced)
        if provenance:
            read = _places_in_stream if streams else _places
            places = read(client, index.name, topic, provenance)
            covered = below(places, topic, positions)
            if topic not in unkeyed and len(covered) < len(places):
                under_way.add(topic)
            records[topic] = pa.concat_tables([records.get(topic, covered.slice(0, 0)), covered])
    moved = {e.topic for e in ledger.entries() if positions.get(e.topic_partition) != e.position}
    under_way |= moved - set(unkeyed if provenance else ())  # a count has rows of any position
    dead = {}
    if dead_letter_index:
        dead = dead_letters.places_of(client, dead_letter_index, ledger.connector)
    targets = {topic: together or next(iter(of_it)) for topic, of_it in names.items()}
    unjudged = {}
    if together and not provenance:
        keyed = names.keys() - set(unkeyed)
        unjudged = dict.fromkeys(keyed, "documents replace each other in several indices")
    return Snapshot(
        entries,
        holes,
        records,
        rows,
        untraced,
        targets,
        dead,
        frozenset(under_way),
        unjudged=unjudged,
    )


def _count(client: Client, index: str, query: Mapping[str, object] | None = None) -> int:
    body = {"size": 0, "track_total_hits": True, **(query or {})}
    path = f"/{index}/_search"
    answer = client.request("POST", path, body, allow_partial_search_results="false").body
    return int(answer["hits"]["total"]["value"])


def _places(client: Client, index: str, topic: str, provenance: Mapping[str, str]) -> pa.Table:
    partition, offset = provenance[PARTITION], provenance[OFFSET]
    query = {
        "query": {"term": {provenance[TOPIC]: topic}},
        "_source": False,
        "docvalue_fields": [partition, offset],
    }
    columns: tuple[list[int], list[int]] = ([], [])
    for hit in client.scan(index, query):
        columns[0].append(hit["fields"][partition][0])
        columns[1].append(hit["fields"][offset][0])
    arrays = [pa.array(columns[0], pa.int32()), pa.array(columns[1], pa.int64())]
    return pa.table(arrays, names=["partition", "offset"])


def _places_in_stream(
    client: Client, stream: str, topic: str, provenance: Mapping[str, str]
) -> pa.Table:
    """The same for a data stream. Its template decides how the fields of a new backing index are
    mapped, so topics are compared here."""
    named, partition, offset = provenance[TOPIC], provenance[PARTITION], provenance[OFFSET]
    query = {"query": {"exists": {"field": offset}}, "_source": [named, partition, offset]}
    sources = [hit["_source"] for hit in client.scan(stream, query)]
    topic_sources = [source for source in sources if source[named] == topic]
    return pa.table(
        {
            "partition": pa.array([source[partition] for source in topic_sources], pa.int32()),
            "offset": pa.array([source[offset] for source in topic_sources], pa.int64()),
        }
    )
