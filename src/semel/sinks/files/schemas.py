"""The fields of each topic's files: all fields seen so far, each with one type.

A task that finds a new field adds it by creating the next version exclusively, so that all tasks
agree on its type; a value that does not fit makes its record a bad one. Files have all fields that
were known when they were begun.
"""

from __future__ import annotations

import base64
import json
import re

import pyarrow as pa

from semel.converters.json.columns import JSON
from semel.core.errors import ServiceError, TransientError
from semel.sinks import convert
from semel.sinks.files.ledger import folder_of
from semel.storage.store import Store

_VERSION = re.compile(r"(\d{6})\.schema")


class Schemas:
    """The fields that one connector knows of its topics."""

    def __init__(self, store: Store, folder: str) -> None:
        self.store = store
        self._folder = f"{folder}/schemas"
        self._known: dict[str, tuple[int, pa.Schema]] = {}

    def find(self, topic: str) -> pa.Schema | None:
        """The fields as they were when the topic was first asked for, or last extended here."""
        if topic not in self._known:
            self.renew(topic)
        version, schema = self._known.get(topic, (0, None))
        return schema if version else None

    def renew(self, topic: str) -> None:
        """Read the fields again: another task may have added some."""
        folder = self._of(topic)
        found = [int(m[1]) for m in map(_VERSION.fullmatch, self.store.names(folder)) if m]
        newest = max(found, default=0)
        if newest and self._known.get(topic, (0, None))[0] != newest:
            name = f"{folder}/{newest:06}.schema"
            try:
                content = self.store.read(name)
            except FileNotFoundError:
                raise TransientError(f"{self.store.where}/{name} has been removed") from None
            self._known[topic] = newest, _schema(name, content)

    def widened(self, topic: str, fields: list[pa.Field]) -> pa.Schema:
        """The topic's fields, with these added where they are new."""
        while True:
            version, known = self._known.get(topic, (0, pa.schema([])))
            new = [f for f in fields if f.name not in known.names]
            if not new:
                return known
            self.renew(topic)
            if self._known.get(topic, (0, None))[0] != version:
                continue
            wider = pa.schema([*known, *map(stored, new)])
            try:
                name = f"{self._of(topic)}/{version + 1:06}.schema"
                self.store.create(name, _text(topic, wider))
                self._known[topic] = version + 1, wider
            except FileExistsError:
                self.renew(topic)

    def _of(self, topic: str) -> str:
        return f"{self._folder}/{folder_of(topic)}"


def stored(field: pa.Field) -> pa.Field:
    """A field in a type that files have."""
    kind = convert.column_type(field.type, convert.common_type)
    says = {convert.HOLDS_JSON: b"1"} if field.type == JSON else None
    return pa.field(field.name, kind, metadata=says)


def _text(topic: str, schema: pa.Schema) -> bytes:
    facts = {
        "topic": topic,
        "fields": {f.name: str(f.type) for f in schema},
        "arrow": base64.b64encode(schema.serialize()).decode(),
    }
    return json.dumps(facts, indent=1).encode()


def _schema(name: str, content: bytes) -> pa.Schema:
    try:
        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(json.loads(content)["arrow"])))
    except (ValueError, KeyError, TypeError, pa.ArrowException):
        raise ServiceError(f"{name} is not a schema. Was it changed by hand? Restore it") from None
