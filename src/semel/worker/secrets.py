"""Hides passwords in the configurations that answers show.

Kafka Connect shows them in the clear. Clients that read a configuration, change it and send it back
must not lose any password, so a value that comes back as it was shown leaves the current one alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from semel.config.definition import PATTERN, Type, definitions
from semel.core.redact import setting, without_credentials
from semel.driver.validation import HIDDEN, ConfigKeyInfo
from semel.worker.errors import BadRequest, NotFound
from semel.worker.plugins import sections_of

Difference = dict[str, str | None]

_REFERENCES = rf"(?:{PATTERN})+"
_REFERRED = re.compile(
    rf"(?<=://)(?:{_REFERENCES}|[^\s@/:$]*):{_REFERENCES}@"  # user info of a URL
    rf"|(?<![\w.-])[\w.-]+={_REFERENCES}(?=[&;\s]|$)|{_REFERENCES}"
)
"""What is no secret, because it only refers to one."""
_PARAMETER = re.compile(r"pass|pwd|secret|token|key", re.I)


_learned: dict[str, set[str]] = {}


def learn(plugin: str, keys: Iterable[ConfigKeyInfo]) -> None:
    """From now on, hide the passwords of a connector's class that another worker has."""
    passwords = (key.name for key in keys if key.type == Type.PASSWORD)
    _learned.setdefault(plugin, set()).update(passwords)


def shown(config: Mapping[str, str]) -> dict[str, str]:
    """A configuration as it was given, without its secrets; references to them are shown as they
    are."""
    plugin = config.get("connector.class", "")
    try:
        sections = sections_of(plugin)
    except NotFound:
        sections = ()
    secret = {n for section in sections for d in definitions(section) if d.secret for n in d.names}
    secret.update(_learned.get(plugin, ()))

    def shown_value(name: str, value: str) -> str:
        end = value.rfind("}") + 2  # with the character that shows whether a value goes on
        literal = _REFERRED.sub("", value[:end]) + value[end:]
        if literal and name in secret and not _is_plain_address(literal):
            return HIDDEN
        seen = setting(name, literal, HIDDEN)
        return {literal: value, HIDDEN: HIDDEN}.get(seen) or setting(name, value, HIDDEN)

    return {name: shown_value(name, value) for name, value in config.items()}


def kept(given: Mapping[str, str], present: Mapping[str, str]) -> dict[str, str]:
    """A given configuration, with the current value wherever it has the placeholder that answers
    show.

    Raises:
        BadRequest: a value is hidden, and there is no current one.
    """
    before = shown(present)
    merged = {k: present[k] if k in before and v == before[k] else v for k, v in given.items()}
    lost = [name for name, value in merged.items() if value == HIDDEN]
    if lost:
        raise BadRequest(
            f"{lost[0]} is {HIDDEN}, the placeholder that responses show for a secret, and no "
            "secret is stored yet: give the secret itself, or a reference to it"
        )
    return merged


def differences(present: Mapping[str, str], given: Mapping[str, str]) -> list[Difference]:
    """What a configuration changes in another, without its secrets."""
    before, after = shown(present), shown(given)
    return [
        {"key": key, "before": before.get(key), "after": after.get(key)}
        for key in sorted(present.keys() | given.keys())
        if present.get(key) != given.get(key)
    ]


def _is_plain_address(value: str) -> bool:
    """Whether a value is a URL that has no secret but a password before its host."""
    return "://" in value and _PARAMETER.search(without_credentials(value)) is None
