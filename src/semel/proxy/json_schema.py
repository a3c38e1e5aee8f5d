"""JSON Schema: checks values before they are written.

A schema whose references lead into each other may ask for the same check of a value twice, each of
these twice in turn, and so on: a few hundred bytes keep a validator busy for days. Values of such a
schema are checked in a process that ends in time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import unquote

from semel.converters.registry.client import Schema
from semel.proxy.bodies import loaded
from semel.proxy.errors import Refusal
from semel.tasks import expendable

_MOST_PARTS = 10_000
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_IDS = ("$id", "id")
_LIMITS = expendable.Limits(memory=256 * 1024 * 1024, patience=20.0, seconds=2)


def checker(schema: Schema) -> Callable[[Any], None]:
    """A function that raises ValueError for a value that does not fit a schema, and Refusal if that
    cannot be found out.

    Raises:
        ValueError: the text is not a JSON Schema, or not with these references.
    """
    check = _validator(schema)
    return check if is_bounded(schema) else lambda value: _check_apart(schema, value)


def is_bounded(schema: Schema) -> bool:
    """Whether a schema, with its references written out, ends after 10,000 parts."""
    root = loaded(schema.text.encode())
    documents = {name: loaded(text.encode()) for name, text in schema.references}
    sizes: dict[int, float] = {}

    def size(node: Any, root: Any) -> float:
        if not isinstance(node, dict | list):
            return 1
        if id(node) not in sizes:
            sizes[id(node)] = math.inf  # until it is known: a reference to what holds it
            inner = node.values() if isinstance(node, dict) else node
            total = 1 + sum(size(part, root) for part in inner)
            if isinstance(node, dict):
                if node is not root and any(isinstance(node.get(key), str) for key in _IDS):
                    return math.inf  # a schema of its own: pointers within start from it
                named = [node[key] for key in _REFERENCES if isinstance(node.get(key), str)]
                total += sum(size(*_target(root, name, documents)) for name in named)
            sizes[id(node)] = total
        return sizes[id(node)]

    return size(root, root) <= _MOST_PARTS


def _target(root: Any, reference: str, documents: Mapping[str, Any]) -> tuple[Any, Any]:
    """What a reference points to, with its document. What is not found, or has an anchor for its
    name, is taken for the document that refers to it, which has no end then."""
    name, _, path = reference.partition("#")
    document = documents.get(name) if name else root
    if document is None or (path and not path.startswith("/")):
        return root, root
    node = document
    for part in unquote(path).split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(node, list) and key.isdecimal() and int(key) < len(node):
            node = node[int(key)]
        elif isinstance(node, dict) and key in node:
            node = node[key]
        else:
            return root, root
    return node, document


def _check_apart(schema: Schema, value: Any) -> None:
    try:
        problem = expendable.call(_LIMITS, _problem, schema, value)
    except expendable.Died:
        raise ValueError("it takes too long to check against its schema") from None
    except TimeoutError:
        raise Refusal(503, "Checks against schemas take too long now. Try again", 50302) from None
    if problem is not None:
        raise ValueError(problem)


def _problem(schema: Schema, value: Any) -> str | None:
    """What is wrong with a value."""
    try:
        _validator(schema)(value)
    except ValueError as error:
        return str(error)
    return None


def _validator(schema: Schema) -> Callable[[Any], None]:
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
