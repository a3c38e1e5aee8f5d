"""The error that refuses a configuration, with all problems and warnings that were found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from semel.config import definitions, title
from semel.config.reading import given_names
from semel.errors import ConfigError, Unresolvable
from semel.problems import Problems, located


def refusal(raw: Mapping[str, str], sections: Sequence[type], problems: Problems) -> ConfigError:
    """The error. ``sections`` declare the keys, and so which values are secret."""
    keys = [d for section in sections for d in definitions(section)]
    secret = {n for d in keys if d.secret for n in d.names}
    known = {n for d in keys for n in d.names} | raw.keys()
    written = {d.name: given[0] for d in keys if (given := given_names(d, raw))}
    kind = ConfigError if problems.found else Unresolvable
    return kind(
        *(
            located(replace(p, key=written.get(p.key, p.key)), raw, known, secret)
            for p in problems.found
        ),
        title=title(raw),
        warnings=problems.warnings,
    )
