"""JSON Schema: checks values before they are written.

A schema whose references lead into each other may ask for the same check of a value twice, each of
these twice in turn, and so on: a few hundred bytes keep a validator busy for days. A large schema
and a large value may take minutes, a schema of large patterns gigabytes. Where a check could take
long, a process makes it that ends in time.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import unquote

from semel.converters.registry.client import Schema
from semel.proxy.bodies import loaded
from semel.proxy.errors import Refusal
from semel.tasks import expendable

_MOST_PARTS = 10_000
_MOST_WORK = 20_000_000
"""Parts of a schema times bytes of a value: each takes some 10 ns."""
_UNIQUE = 50
"""Parts whose check takes as long as to find out whether items are unique."""
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_IDS = ("$id", "id")
_UNEVALUATED = ("unevaluatedItems", "unevaluatedProperties")
_COUNT = re.compile(r"(\)?)\{(?:\d*,)?(\d{1,9})")
_LIMITS = expendable.Limits(memory=256 * 1024 * 1024, patience=20.0, seconds=2)

Check = Callable[[Any, int], None]


def checker(schema: Schema) -> Check:
    """A function that raises ValueError for a value that does not fit a schema, and Refusal if that
    cannot be found out. It also takes the number of bytes that the value has as a text.

    Raises:
        ValueError: the text is not a JSON Schema, or not with these references.
        Refusal: that cannot be found out.
    """
    if _states_of(schema) > _MOST_PARTS:
        _check_apart(schema)
        return lambda value, _: _check_apart(schema, value)
    validate, parts = _validator(schema), parts_of(schema)

    def check(value: Any, size: int) -> None:
        if parts * size > _MOST_WORK:
            _check_apart(schema, value)
        else:
            validate(value)

    return check


def is_quick(schema: Schema, size: int) -> bool:
    """Whether values of this size are checked in this process."""
    return parts_of(schema) * size <= _MOST_WORK


def parts_of(schema: Schema) -> float:
    """How many parts a schema has with its references written out, if these are 10,000 at most;
    otherwise infinity. What takes longer than others counts more."""
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
                total += sum(map(_states, _patterns(node)))
                total += _UNIQUE if node.get("uniqueItems") is True else 0
                if any(key in node for key in _UNEVALUATED):  # what is beside them is checked again
                    total *= 3
            sizes[id(node)] = total
        return sizes[id(node)]

    parts = size(root, root)
    return parts if parts <= _MOST_PARTS else math.inf


def _states_of(schema: Schema) -> float:
    """About how large all patterns of a schema are together."""
    states = 0.0
    left = [loaded(text.encode()) for text in (schema.text, *dict(schema.references).values())]
    while left:
        node = left.pop()
        if isinstance(node, dict):
            states += sum(map(_states, _patterns(node)))
            left += node.values()
        elif isinstance(node, list):
            left += node
    return states


def _patterns(node: Mapping[str, Any]) -> list[str]:
    pattern, by_pattern = node.get("pattern"), node.get("patternProperties")
    found = [pattern] if isinstance(pattern, str) else []
    return found + list(by_pattern if isinstance(by_pattern, dict) else ())


def _states(pattern: str) -> float:
    """About how large a pattern is once its counted repetitions are written out. Classes of
    Unicode have thousands of characters."""
    times, more = 1.0, 0
    for group, count in _COUNT.findall(pattern):
        if group:
            times *= max(int(count), 1)
        else:
            more += int(count)
    return (len(pattern) + more) * times * (10 if "\\p" in pattern.lower() else 1)


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


def _check_apart(schema: Schema, *values: Any) -> None:
    try:
        problem = expendable.call(_LIMITS, _problem, schema, values)
    except expendable.Died:
        what = "check against its schema" if values else "read"
        raise ValueError(f"it takes too long to {what}") from None
    except TimeoutError:
        raise Refusal(503, "Checks against schemas take too long now. Try again", 50302) from None
    if problem is not None:
        raise ValueError(problem)


def _problem(schema: Schema, values: tuple[Any, ...]) -> str | None:
    """What is wrong with a schema, or with values of it."""
    try:
        validate = _validator(schema)
        for value in values:
            validate(value)
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
