"""Documents of a search server, straight from it."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any


def ask(url: str, path: str, body: object = None) -> Any:
    """POST to the server; its answer."""
    content = json.dumps(body or {}).encode()
    headers = {"content-type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(url + path, content, headers)) as answer:
        return json.loads(answer.read())


def documents(url: str, index: str) -> list[dict[str, Any]]:
    """All documents of an index, which need not be there; with ``_id``."""
    try:
        ask(url, f"/{index}/_refresh")
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return []
        raise
    found = ask(url, f"/{index}/_search", {"size": 10_000})
    return [{"_id": h["_id"], **h["_source"]} for h in found["hits"]["hits"]]
