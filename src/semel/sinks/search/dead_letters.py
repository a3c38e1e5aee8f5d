"""Dead letters in an index: raw record and reason, with their place in Kafka as id."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from semel.core.ledger import LETTERS_FORMAT
from semel.core.records import DeadLetter
from semel.sinks.letters import SHOWN, Place, headers_text, known, shown
from semel.sinks.rows import places
from semel.sinks.search import indices
from semel.sinks.search.client import Client

_WORD = {"type": "keyword"}
_MAPPING = {
    "connector": _WORD,
    "topic": _WORD,
    "partition": {"type": "integer"},
    "offset": {"type": "long"},
    "timestamp": {"type": "date"},
    "key": {"type": "binary"},
    "value": {"type": "binary"},
    "headers": {"type": "object", "enabled": False},
    "stage": _WORD,
    "exception": _WORD,
    "message": {"type": "text"},
    "failed_at": {"type": "date"},
    "format": {"type": "integer"},
}
_STAMP = pa.field("timestamp", pa.timestamp("ms", "UTC"))
_PLACE = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        _STAMP,
        ("format", pa.int32()),
    ]
)


def create(client: Client, index: str, where: str) -> None:
    """Create the index, unless it is there."""
    if indices.find(client, index, where) is None:
        indices.create(client, index, _MAPPING, where)


def write(
    client: Client,
    index: str,
    connector: str,
    letters: Sequence[DeadLetter],
    split: Callable[[pa.Array], Iterable[tuple[object, bytes]]],
) -> None:
    """Write dead letters, in the requests that ``split`` makes of their lines; a letter that
    exists already is replaced by the last failure."""
    now = datetime.now(UTC).isoformat()
    lines = []
    for x in letters:
        place = f"{connector}/{x.topic}+{x.partition}+{x.offset}"
        action = json.dumps({"index": {"_id": place}})
        lines.append(f"{action}\n{json.dumps(_source(connector, x, now))}\n")
    for _, body in split(pa.array(lines, pa.large_string())):
        for failure in client.bulk(index, body):
            raise client.problem(failure.status, failure.kind, failure.reason)


def _source(connector: str, letter: DeadLetter, now: str) -> dict[str, Any]:
    return {
        "connector": connector,
        "topic": letter.topic,
        "partition": letter.partition,
        "offset": letter.offset,
        "timestamp": letter.timestamp,
        "key": _base64(letter.key),
        "value": _base64(letter.value),
        "headers": [{"key": k, "value": _base64(v)} for k, v in letter.headers],
        "stage": letter.stage,
        "exception": letter.exception,
        "message": letter.message.encode("utf-8", "backslashreplace").decode(),
        "failed_at": now,
        "format": LETTERS_FORMAT,
    }


def places_of(client: Client, index: str, connector: str) -> dict[str, pa.Table]:
    """Partition, offset and time of a connector's dead letters, by topic."""
    client.refresh(index)
    query = {
        "query": {"term": {"connector": connector}},
        "_source": list(_PLACE.names),
    }
    rows = [hit["_source"] for hit in client.scan(index, query)]
    if not rows:
        return {}
    for row in rows:  # a user's index may have another format
        row["timestamp"] = t if isinstance(t := row.get("timestamp"), int) else None
    letters = known(connector, pa.Table.from_pylist(rows, _PLACE))
    return {topic: places(letters, topic) for topic in letters.column(0).unique().to_pylist()}


def some_of(
    client: Client, index: str, connector: str, beyond: Place | None, most: int, *, backwards: bool
) -> pa.Table:
    """See :class:`~semel.sinks.letters.LetterStore`."""
    client.refresh(index)
    order = "desc" if backwards else "asc"
    query: dict[str, Any] = {
        "size": most,
        "query": {"term": {"connector": connector}},
        "sort": [{name: order} for name in ("topic", "partition", "offset")],
    }
    if beyond is not None:
        query["search_after"] = list(beyond)
    answer = client.request("POST", f"/{index}/_search", query, expected=(404,))
    if answer.status == 404:
        return SHOWN.empty_table()
    rows = []
    for hit in answer.body["hits"]["hits"]:
        row = dict(hit["_source"])
        at = row.get("timestamp")
        row["timestamp"] = at if isinstance(at, int) else None
        row |= {name: _bytes(row.get(name)) for name in ("key", "value")}
        pairs = [[h["key"], _bytes(h["value"])] for h in row.get("headers") or ()]
        row["headers"] = headers_text(pairs)
        rows.append(row)
    formats_ = pa.table({"format": pa.array([r.get("format") for r in rows], pa.int32())})
    known(connector, formats_)
    types = pa.schema([_STAMP if f.name == "timestamp" else f for f in SHOWN])
    return shown(pa.Table.from_pylist(rows, types))


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def _base64(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()
