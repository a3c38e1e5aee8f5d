"""A limit on schemas: a few names that each refer to another twice describe more fields than fit
into memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

Node = TypeVar("Node")

MOST, DEEPEST = 10_000, 100


def check_size(root: Node, parts: Callable[[Node], Iterable[Node]]) -> None:
    """Check how many fields a schema has, counting those of a type wherever it is referred to, and
    how deeply they are nested.

    Raises:
        ValueError: there are too many.
    """
    sizes: dict[int, tuple[int, Node]] = {}

    def count(node: Node, depth: int) -> int:
        if depth > DEEPEST:
            raise ValueError(f"its fields are nested more than {DEEPEST} levels deep")
        if id(node) not in sizes:
            size = 1 + sum(count(part, depth + 1) for part in parts(node))
            if size > MOST:
                raise ValueError(f"it has more than {MOST} fields, with those it refers to")
            sizes[id(node)] = size, node  # the node keeps its id from being used again
        return sizes[id(node)][0]

    count(root, 0)
