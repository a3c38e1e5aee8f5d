"""JSON Schema: checks values before they are written.

A schema whose references lead into each other may ask for the same check of a value twice, each of
these twice in turn, and so on: a few hundred bytes keep a validator busy for days. Values of such a
schema are checked in a process that ends in time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

from semel.converters.registry.client import Schema
from semel.proxy.bodies import loaded
from semel.tasks import expendable

_MOST_PARTS = 10_000
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_LIMITS = expendable.Limits(memory=256 * 1024 * 1024, patience=10.0, seconds=2)


def checker(schema: Schema) -> Callable[[Any], None]:
    """A function that raises ValueError for a value that does not fit a schema.

    Raises:
        ValueError: the text is not a JSON Schema, or not with these references.
    """
    check = _checker(schema)
    if is_bounded(loaded(schema.text.encode())):
        return check

    def apart(value: Any) -> None:
        try:
            problem = expendable.call(_LIMITS, _problem, schema, value)
        except (expendable.Died, TimeoutError):
            raise ValueError("it takes too long to check against its schema") from None
        if problem is not None:
            raise ValueError(problem)

    return apart


def is_bounded(schema: Any) -> bool:
    """Whether a schema, with its local references written out, ends after 10,000 parts."""
    sizes: dict[int, float] = {}

    def size(node: Any) -> float:
        if not isinstance(node, dict | list):
            return 1
        if id(node) not in sizes:
            sizes[id(node)] = float("inf")  # until it is known: a reference to what holds it
            inner = node.values() if isinstance(node, dict) else node
            names = [node[r] for r in _REFERENCES if r in node] if isinstance(node, dict) else []
            sizes[id(node)] = 1 + sum(map(size, inner)) + sum(size(_at(schema, n)) for n in names)
        return sizes[id(node)]

    return size(schema) <= _MOST_PARTS


def _at(schema: Any, reference: Any) -> Any:
    """What a reference points to; the schema itself, and so no end, if that is not known."""
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return schema
    node = schema
    for part in unquote(reference[2:]).split("/"):
        name = part.replace("~1", "/").replace("~0", "~")
        if not isinstance(node, dict) or name not in node:
            return schema
        node = node[name]
    return node


def _problem(schema: Schema, value: Any) -> str | None:
    """What is wrong with a value."""
    try:
        _checker(schema)(value)
    except ValueError as error:
        return str(error)
    return None


def _checker(schema: Schema) -> Callable[[Any], None]:
    import jsonschema_rs

    def retrieve(uri: str) -> Any:
        references = dict(schema.references)
        if uri not in references:
            raise ValueError(f"it refers to {uri}, which is not among its references")
        return loaded(references[uri].encode())

    try:
        validator = jsonschema_rs.validator_for(
            loaded(schema.text.encode()),
            retriever=retrieve,
            pattern_options=jsonschema_rs.RegexOptions(),
        )
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError) as error:
        raise ValueError(f"not a JSON Schema: {error}") from None

    def check(value: Any) -> None:
        try:
            validator.validate(value)
        except jsonschema_rs.ValidationError as error:
            raise ValueError(error.message) from None

    return check
