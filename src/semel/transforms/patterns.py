"""Java's regular expressions and replacements, with Python's ``re``."""

from __future__ import annotations

import re

_GROUP = re.compile(r"\(\?<(?![=!])")
_UNLIKE = re.compile(r"\\[pPQEGhHRXz]|&&")
"""What Python does not have, or reads differently."""


def compiled(text: str) -> re.Pattern[str]:
    """A pattern of Java's.

    Raises:
        ValueError: it is not a pattern, or Python has no equivalent; the message continues after
            its value.
    """
    unlike = _UNLIKE.search(text.replace("\\\\", ""))
    if unlike:
        raise ValueError(
            f"uses {unlike[0]}, which only Java's regular expressions have. Write it in another way"
        )
    try:
        return re.compile(_GROUP.sub("(?P<", text), re.ASCII)
    except re.error as error:
        raise ValueError(f"Invalid regex: {error}") from None


def replacement(text: str, pattern: re.Pattern[str]) -> str:
    """Java's replacement as a template of Python's: ``$1`` and ``${name}`` stand for groups, a
    backslash takes the next character as it is.

    Raises:
        ValueError: it names a group that the pattern does not have.
    """
    made: list[str] = []
    at = 0
    while at < len(text):
        character = text[at]
        if character == "\\":
            if at + 1 == len(text):
                raise ValueError("character to be escaped is missing")
            made.append(text[at + 1].replace("\\", r"\\"))
            at += 2
        elif character == "$":
            group, at = _group(text, at + 1, pattern)
            made.append(rf"\g<{group}>")
        else:
            made.append(character)
            at += 1
    return "".join(made)


def _group(text: str, at: int, pattern: re.Pattern[str]) -> tuple[str, int]:
    if named := re.compile(r"\{([a-zA-Z][a-zA-Z0-9]*)\}").match(text, at):
        if named[1] not in pattern.groupindex:
            raise ValueError(f"No group with name {{{named[1]}}}")
        return named[1], named.end()
    digits = re.compile(r"[0-9]+").match(text, at)
    if digits is None:
        raise ValueError("Illegal group reference")
    length = 1
    if int(digits[0][0]) > pattern.groups:
        raise ValueError(f"No group {digits[0][0]}")
    while length < len(digits[0]) and int(digits[0][: length + 1]) <= pattern.groups:
        length += 1
    return digits[0][:length].lstrip("0") or "0", at + length


def first_replaced(pattern: re.Pattern[str], template: str, text: str) -> str:
    """The result of Java's ``replaceFirst``. A group that has not matched is empty."""
    return pattern.sub(template, text, count=1)
