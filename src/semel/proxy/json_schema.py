"""JSON Schema: checks values before they are written.

A schema whose references lead into each other may ask for the same check of a value twice, each of
these twice in turn, and so on: a few hundred bytes keep a validator busy for days. A large schema
and a large value may take minutes, a schema of large patterns gigabytes. Where a check could take
long, a process makes it that ends in time.
"""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import unquote

from semel.converters.registry.client import Schema
from semel.proxy.bodies import loaded
from semel.proxy.errors import Refusal
from semel.tasks import expendable

_MOST_STATES = 10_000
"""States of patterns that are compiled in this process."""
_MANY_STATES, _MOST_HEAVY = 1000, 20
"""From how many states on a schema takes megabytes, and how many such ones are kept."""
_MOST_WORK = 20_000_000
"""Parts of a schema times bytes of a value: each takes some 10 ns."""
_UNIQUE = 50
"""Parts whose check takes as long as to find out whether items are unique."""
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_IDS = ("$id", "id")
_UNEVALUATED = ("unevaluatedItems", "unevaluatedProperties")
_MAPS = ("$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties")
"""Keywords whose objects have schemas by name. Those of ``properties`` are for other parts of a
value each."""
_COUNT = re.compile(r"([)}*+?]?)\{(?:\d*,)?(\d{1,9})")
_WITH_BLANKS = re.compile(r"\(\?[a-zA-Z-]*x")
"""A flag that lets blanks stand anywhere in a pattern, even before and within its counts."""
_LIMITS = expendable.Limits(memory=256 * 1024 * 1024, patience=20.0, seconds=2)

_at_once = threading.BoundedSemaphore(8)
"""Processes that check values: each may take half a gigabyte."""

Check = Callable[[Any, bytes], None]


def checker(schema: Schema) -> Check:
    """A function that raises ValueError for a value that does not fit a schema, and Refusal if that
    cannot be found out. It also takes the value's text.

    Raises:
        ValueError: the text is not a JSON Schema, or not with these references.
        Refusal: that cannot be found out.
    """
    states = _states_of(schema)
    if states > _MOST_STATES:
        _check_apart(schema)
        return lambda _, text: _check_apart(schema, text)
    parts, is_heavy = parts_of(schema), states > _MANY_STATES
    first = (_heavy if is_heavy else _validator)(schema)
    kept = None if is_heavy else first

    def check(value: Any, text: bytes) -> None:
        if parts * len(text) > _MOST_WORK:
            _check_apart(schema, text)
        else:
            (kept or _heavy(schema))(value)

    return check


def is_quick(schema: Schema, size: int) -> bool:
    """Whether values of this size are checked in this process, by a validator that is kept."""
    return _states_of(schema) <= _MANY_STATES and parts_of(schema) * size <= _MOST_WORK


def parts_of(schema: Schema) -> float:
    """How many parts of a schema, with its references written out, look at a part of a value, at
    most; infinity if there is no end, or a far one. What takes longer than others counts more."""
    root = loaded(schema.text.encode())
    documents = {name: loaded(text.encode()) for name, text in schema.references}
    sizes: dict[int, float] = {}

    def size(node: Any, root: Any) -> float:
        if not isinstance(node, dict | list):
            return 1
        if id(node) not in sizes:
            sizes[id(node)] = math.inf  # until it is known: a reference to what holds it
            if isinstance(node, list):
                sizes[id(node)] = 1 + sum(size(part, root) for part in node)
            elif node is root or not any(isinstance(node.get(key), str) for key in _IDS):
                sizes[id(node)] = size_of_schema(node, root)
            # else it is a schema of its own: pointers within start from it
        return sizes[id(node)]

    def size_of_schema(node: dict[str, Any], root: Any) -> float:
        total = 1.0
        for keyword, inner in node.items():
            if not isinstance(inner, dict) or keyword not in ("properties", *_MAPS):
                total += size(inner, root)
                continue
            named = [size(part, root) for part in inner.values()]
            total += 1 + (sum(named) if keyword in _MAPS else len(named) + max(named, default=0))
        references = [node[key] for key in _REFERENCES if isinstance(node.get(key), str)]
        total += sum(size(*_target(root, name, documents)) for name in references)
        total += sum(map(_states, _patterns(node)))
        total += _UNIQUE if node.get("uniqueItems") is True else 0
        if any(key in node for key in _UNEVALUATED):  # what is beside them is checked again
            total *= 3
        return total

    try:
        return size(root, root)
    except RecursionError:  # a long chain of references
        return math.inf


def _states_of(schema: Schema) -> float:
    """About how large all patterns of a schema are together. Equal ones are compiled once."""
    patterns: set[str] = set()
    left = [loaded(text.encode()) for text in (schema.text, *dict(schema.references).values())]
    while left:
        node = left.pop()
        if isinstance(node, dict):
            patterns.update(_patterns(node))
            left += node.values()
        elif isinstance(node, list):
            left += node
    return sum(map(_states, patterns))


def _patterns(node: Mapping[str, Any]) -> list[str]:
    pattern, by_pattern = node.get("pattern"), node.get("patternProperties")
    found = [pattern] if isinstance(pattern, str) else []
    return found + list(by_pattern if isinstance(by_pattern, dict) else ())


def _states(pattern: str) -> float:
    """About how large a pattern is once its counted repetitions are written out. Classes of
    Unicode have thousands of characters."""
    if _WITH_BLANKS.search(pattern):
        return math.inf
    times, more = 1.0, 0
    for repeated, count in _COUNT.findall(pattern):
        if repeated:
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


def _check_apart(schema: Schema, *texts: bytes) -> None:
    busy = Refusal(503, "Checks against schemas take too long now. Try again", 50302)
    if not _at_once.acquire(timeout=_LIMITS.patience):
        raise busy
    try:
        problem = expendable.call(_LIMITS, _problem, schema, texts)
    except expendable.Died:
        what = "check against its schema" if texts else "read"
        raise ValueError(f"it takes too long to {what}") from None
    except TimeoutError:
        raise busy from None
    finally:
        _at_once.release()
    if problem is not None:
        raise ValueError(problem)


def _problem(schema: Schema, texts: tuple[bytes, ...]) -> str | None:
    """What is wrong with a schema, or with values of it."""
    try:
        validate = _validator(schema)
        for text in texts:
            validate(loaded(text))
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


_heavy = lru_cache(maxsize=_MOST_HEAVY)(_validator)
