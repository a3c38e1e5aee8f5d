"""The error that refuses a configuration, with all problems and warnings that were found."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from semel.config import Resolved, definitions, title
from semel.config.reading import given_names
from semel.core.errors import ConfigError, Unresolvable
from semel.core.problems import Problems, located
from semel.core.redact import without_pieces


def refusal(
    raw: Mapping[str, str], found: Resolved, sections: Sequence[type], problems: Problems
) -> ConfigError:
    """The error, which shows nothing of what references stand for in ``found``. ``sections``
    declare the keys, and so which values are secret."""
    keys = [d for section in sections for d in definitions(section)]
    secret = {n for d in keys if d.secret for n in d.names}
    known = {n for d in keys for n in d.names} | raw.keys()
    shown = partial(without_references, found=found, known=known)
    written = {d.name: given[0] for d in keys if (given := given_names(d, raw))}
    kind = ConfigError if problems.found else Unresolvable
    return kind(
        *(
            located(
                replace(p, key=written.get(p.key, p.key), message=shown(p.message)),
                raw,
                known,
                secret,
            )
            for p in problems.found
        ),
        title=title(raw),
        warnings=[shown(w) for w in problems.warnings],
    )


def without_references(text: str, found: Mapping[str, str], known: Iterable[str] = ()) -> str:
    """A text without anything that it shares with what references stand for, which is often made
    into something else, such as a name in lower case. What is ``known`` stays."""
    if not isinstance(found, Resolved) or not found.references:
        return text
    words = {*known, *found.references, *found.references.values(), title(found)}
    longest_first = sorted((w for w in words if len(w) > 2), key=len, reverse=True)
    parts = re.split(f"({'|'.join(map(re.escape, longest_first))})", text)
    for key in found.references:
        parts[::2] = [without_pieces(part, found[key]) for part in parts[::2]]
    return "".join(parts)
