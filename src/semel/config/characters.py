"""What no name and no value of a configuration may contain."""

from __future__ import annotations

import re

from semel.core.errors import ConfigError, Problem

_IN_VALUES = re.compile(r"[^\t\n\r -~\xa0-\ud7ff\ue000-\U0010ffff]")
_IN_NAMES = re.compile(r"[^ -~\xa0-\ud7ff\ue000-\U0010ffff]")


def check_value(text: str) -> str:
    """The text.

    Raises:
        ValueError: it is no text, or has control characters other than tabs and line ends; the
            message continues after the key.
    """
    return _checked(text, _IN_VALUES)


def check_name(text: str) -> str:
    """The text.

    Raises:
        ValueError: it is no text, or has control characters.
    """
    return _checked(text, _IN_NAMES)


def check_pair(name: str, value: str) -> None:
    """Check a key and its value.

    Raises:
        ConfigError: as :func:`check_value`.
    """
    shown = ascii(name)[1:-1]
    for check, text, what in ((check_name, name, "its name"), (check_value, value, "its value")):
        try:
            check(text)
        except ValueError as error:
            raise ConfigError(Problem(shown, f"{shown}: {what} {error}")) from None


def _checked(text: str, wrong: re.Pattern[str]) -> str:
    found = wrong.search(text)
    if found is None:
        return text
    number = f"U+{ord(found[0]):04X}"
    if "\ud800" <= found[0] <= "\udfff":
        raise ValueError(f"is not UTF-8, or has a lone surrogate, {number}")
    raise ValueError(f"has the control character {number}")
