"""Translates Java's regular expressions into syntax that RE2 and ``regex`` read alike."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto

Ranges = Sequence[tuple[int, int]]
"""Characters, from the first to the last of each range."""
_LAST = 0x10FFFF


class Anchor(Enum):
    """What the two engines write in different ways."""

    END = auto()
    """Java's ``$``: the end, or before a line end that ends the text."""
    TEXT_END = auto()
    LINE_START = auto()
    LINE_END = auto()
    BOUNDARY = auto()
    NO_BOUNDARY = auto()


@dataclass(frozen=True, slots=True)
class Translation:
    """A translated pattern in pieces. ``needs`` names the first feature that RE2 lacks; it is empty
    if RE2 can run the pattern."""

    pieces: Sequence[str | Anchor]
    needs: str

    def text(self, anchors: Mapping[Anchor, str]) -> str:
        """The pattern with the anchors of an engine."""
        return "".join(p if isinstance(p, str) else anchors[p] for p in self.pieces)


def _ranges(*spans: str) -> Ranges:
    return [(ord(span[0]), ord(span[-1])) for span in spans]


def _others(ranges: Ranges) -> Ranges:
    """All other characters."""
    others, begin = [], 0
    for first, last in sorted(ranges):
        if begin < first:
            others.append((begin, first - 1))
        begin = max(begin, last + 1)
    return [*others, (begin, _LAST)] if begin <= _LAST else others


_ALPHA, _DIGIT = _ranges("AZ", "az"), _ranges("09")
_LINE_ENDS = _ranges("\n", "\r", "\x85", "\u2028\u2029")
_SETS: Mapping[str, Ranges] = {
    "d": _DIGIT,
    "h": _ranges(
        "\t", " ", "\xa0", "\u1680", "\u180e", "\u2000\u200a", "\u202f", "\u205f", "\u3000"
    ),
    "s": _ranges("\t\r", " "),
    "v": _ranges("\n\r", "\x85", "\u2028\u2029"),
    "w": [*_ALPHA, *_DIGIT, *_ranges("_")],
}
_POSIX: Mapping[str, Ranges] = {
    "Lower": _ranges("az"),
    "Upper": _ranges("AZ"),
    "ASCII": _ranges("\x00\x7f"),
    "Alpha": _ALPHA,
    "Digit": _DIGIT,
    "Alnum": [*_ALPHA, *_DIGIT],
    "Punct": _ranges("!/", ":@", "[`", "{~"),
    "Graph": _ranges("!~"),
    "Print": _ranges(" ~"),
    "Blank": _ranges("\t", " "),
    "Cntrl": _ranges("\x00\x1f", "\x7f"),
    "XDigit": _ranges("09", "AF", "af"),
    "Space": _SETS["s"],
    "L1": _ranges("\x00\xff"),
}
_UNICODE = {
    **{"Alpha": "Alphabetic", "Lower": "Lowercase", "Upper": "Uppercase", "Space": "White_Space"},
    **{"Digit": "Nd", "Punct": "P", "Punctuation": "P", "Cntrl": "Cc", "Control": "Cc"},
    **{"Letter": "L"},
}
"""Java's names of properties after ``Is``, where the engines have others."""
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "a": "\a", "e": "\x1b"}
_BLANKS = " \t\n\v\f\r"

_QUOTED = re.compile(r"\\Q(.*?)(?:\\E|\Z)|\\?.", re.DOTALL)
_COMMENT = re.compile(r"#[^\n\r\x85\u2028\u2029]*")
_FLAGS = re.compile(r"\?([a-zA-Z]*)(-[a-zA-Z]*)?([:)])")
_GROUP = re.compile(r"\?(?:<([a-zA-Z][a-zA-Z0-9]*)>|(<?[=!]|>))")
_REPEAT = re.compile(r"\{\d+(?:,\d*)?\}")
_NAME = re.compile(r"<([a-zA-Z][a-zA-Z0-9]*)>")
_OCTAL = re.compile(r"[0-3][0-7]{2}|[0-7]{1,2}")
_HEX = re.compile(r"[0-9a-fA-F]{2}|\{([0-9a-fA-F]{1,6})\}")
_UNIT = re.compile(r"([0-9a-fA-F]{4})")
_HALVES = re.compile(r"([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})")
_PROPERTY = re.compile(r"\{([\w=]+)\}|([A-Z])")
_CHARACTER = re.compile(r"\{([^}]*)\}")


def translated(text: str, flags: str = "") -> Translation:
    """A pattern of Java's with flags such as ``is``.

    Raises:
        ValueError: it is not a pattern, or it has no equivalent; the message continues after its
            value.
    """
    reader = _Reader(_QUOTED.sub(_unquoted, text), flags)
    reader.read()
    return Translation(reader.pieces, reader.needs)


def _unquoted(match: re.Match[str]) -> str:
    if match[1] is None:
        return match[0]
    return "".join(c if c.isalpha() or not c.isascii() else f"\\x{ord(c):02x}" for c in match[1])


def _wrong(why: str) -> ValueError:
    return ValueError(f"is not a regular expression: {why}")


def _only_javas(what: str, instead: str = "Write it in another way") -> ValueError:
    return ValueError(f"{what}, which only Java's regular expressions have. {instead}")


def _written(code: int) -> str:
    """A character that stands for itself."""
    if 0xD800 <= code <= 0xDFFF:
        raise _wrong("it has half of a surrogate pair")
    character = chr(code)
    plain = code > 126 or code < 32 or character.isalnum() or character in "_ "
    return character if plain else f"\\{character}"


def _class(ranges: Ranges, others: str = "") -> str:
    """A class of these characters, and of what ``others`` stands for."""
    inside = "".join(
        _written(a) if a == b else f"{_written(a)}-{_written(b)}" for a, b in _whole(ranges)
    )
    return f"[{inside}{others}]" if inside or others else f"[^{chr(0)}-{chr(_LAST)}]"


def _whole(ranges: Ranges) -> Ranges:
    """The ranges without halves of surrogate pairs, which no text has."""
    whole = []
    for first, last in ranges:
        parts = ((first, min(last, 0xD7FF)), (max(first, 0xE000), last))
        whole += [part for part in parts if part[0] <= part[1]]
    return whole


def _folded(ranges: Ranges) -> Ranges:
    """The ranges with ASCII letters in both cases."""
    folded = list(ranges)
    for first, last in ranges:
        for begin, end, by in ((65, 90, 32), (97, 122, -32)):
            low, high = max(first, begin), min(last, end)
            if low <= high:
                folded.append((low + by, high + by))
    return folded


class _Reader:
    """Reads a pattern from left to right."""

    def __init__(self, text: str, flags: str) -> None:
        self.pieces: list[str | Anchor] = []
        self.needs = ""
        self._text = text
        self._at = 0
        self._flags = frozenset(flags)
        self._outer: list[frozenset[str]] = []
        self._names: set[str] = set()
        self._groups = 0

    def read(self) -> None:
        """Fill ``pieces`` and ``needs``."""
        repeatable = False
        while self._more():
            character = self._next()
            if character in "*+?{":
                if not repeatable:
                    self._repeat_nothing(character)
                self._repeat(character)
                repeatable = False
            elif character == "|":
                self.pieces.append("|")
                repeatable = False
            elif character == "(":
                self._open()
                repeatable = False
            else:
                self._one(character)
                repeatable = True
        if self._outer:
            raise _wrong("missing )")

    def _more(self) -> bool:
        """Whether there is something to read, beyond blanks and comments with the flag ``x``."""
        while "x" in self._flags and self._at < len(self._text):
            comment = _COMMENT.match(self._text, self._at)
            if comment:
                self._at = comment.end()
            elif self._text[self._at] in _BLANKS:
                self._at += 1
            else:
                break
        return self._at < len(self._text)

    def _next(self) -> str:
        self._at += 1
        return self._text[self._at - 1]

    def _takes(self, what: re.Pattern[str]) -> re.Match[str] | None:
        match = what.match(self._text, self._at)
        if match:
            self._at = match.end()
        return match

    def _need(self, what: str) -> None:
        self.needs = self.needs or what

    def _one(self, character: str) -> None:
        """What a quantifier may follow."""
        if character == ")":
            if not self._outer:
                raise _wrong("unmatched )")
            self._flags = self._outer.pop()
            self.pieces.append(")")
        elif character == "^":
            self._anchor(Anchor.LINE_START) if "m" in self._flags else self.pieces.append(r"\A")
        elif character == "$":
            self._anchor(Anchor.LINE_END if "m" in self._flags else Anchor.END)
        elif character == ".":
            self.pieces.append(_class(_others(() if "s" in self._flags else _LINE_ENDS)))
        elif character == "[":
            self._class()
        elif character == "\\":
            self._escape()
        else:
            self._literal(ord(character))

    def _anchor(self, anchor: Anchor) -> None:
        if anchor in (Anchor.LINE_START, Anchor.LINE_END):
            self._need("lines")
        self.pieces.append(anchor)

    def _literal(self, code: int) -> None:
        if "i" not in self._flags:
            self.pieces.append(_written(code))
        elif "u" in self._flags:
            self.pieces.append(f"(?i:{_written(code)})")
        else:
            self._set([(code, code)])

    def _set(self, ranges: Ranges) -> None:
        self.pieces.append(_class(_folded(ranges) if "i" in self._flags else ranges))

    def _repeat_nothing(self, character: str) -> None:
        """A count without an atom, such as the second one of ``x{2}{3}``: in Java, it repeats the
        empty text."""
        if character != "{":
            raise _wrong(f"nothing to repeat at {character}")
        self.pieces.append("(?:)")

    def _repeat(self, character: str) -> None:
        if character == "{":
            self._at -= 1
            counts = self._takes(_REPEAT)
            if counts is None:
                raise _wrong("illegal repetition at {")
            character = counts[0]
        more = self._text[self._at : self._at + 1] if self._more() else ""
        if more == "+":
            self._need("possessive quantifiers")
        if more and more in "+?":
            self._at += 1
            character += more
        self.pieces.append(character)

    def _open(self) -> None:
        """A group, or flags."""
        before = self._flags
        if not self._text.startswith("?", self._at):
            self._groups += 1
            self.pieces.append("(")
        elif group := self._takes(_GROUP):
            self._special(group)
        elif (flags := self._takes(_FLAGS)) and not self._unknown(flags):
            self._flags = before.union(flags[1]) - set(flags[2] or "")
            if flags[3] == ")":
                return
            self.pieces.append("(?:")
        else:
            raise _wrong(f"unknown group {self._text[self._at - 1 : self._at + 4]}")
        self._outer.append(before)

    def _unknown(self, flags: re.Match[str]) -> bool:
        letters = {*flags[1], *(flags[2] or "-")[1:]}
        only = sorted(letters & set("Ud"))
        if only:
            raise _only_javas(f"uses (?{only[0]}")
        return not letters <= set("imsux")

    def _special(self, group: re.Match[str]) -> None:
        name, kind = group.groups()
        if name in self._names:
            raise _wrong(f"two groups with the name {name}")
        if name:
            self._groups += 1
            self._names.add(name)
            self.pieces.append(f"(?P<{name}>")
            return
        self._need("possessive quantifiers" if kind == ">" else "lookaround")
        self.pieces.append(f"(?{kind}")

    def _escape(self) -> None:
        """What a backslash begins outside of a class."""
        character = self._text[self._at : self._at + 1]
        anchors = {"Z": Anchor.END, "z": Anchor.TEXT_END}
        anchors |= {"b": Anchor.BOUNDARY, "B": Anchor.NO_BOUNDARY}
        if character in anchors:
            self._at += 1
            if character == "b" and self._text.startswith("{", self._at):
                raise _only_javas(r"uses \b{")
            self._anchor(anchors[character])
        elif character == "A":
            self._at += 1
            self.pieces.append(r"\A")
        elif character == "R":
            self._at += 1
            self.pieces.append(rf"(?:\r\n|{_class(_SETS['v'])})")
        elif character == "k" or ("1" <= character <= "9" and character.isascii()):
            self._reference()
        else:
            self._escaped()

    def _escaped(self) -> None:
        meant = self._character()
        if isinstance(meant, int):
            self._literal(meant)
        else:
            self.pieces.append(meant if isinstance(meant, str) else _class(meant))

    def _reference(self) -> None:
        """A reference to a group: its number has as many digits as there are groups for."""
        self._need("backreferences")
        if self._next() == "k":
            named = self._takes(_NAME)
            if named is None or named[1] not in self._names:
                raise _wrong(r"\k names no group before it")
            reference = f"(?P={named[1]})"
        else:
            number = int(self._text[self._at - 1])
            while (digit := self._text[self._at : self._at + 1]) and digit in "0123456789":
                if number * 10 + int(digit) > self._groups:
                    break
                number = number * 10 + int(digit)
                self._at += 1
            if number > self._groups:
                raise _wrong(rf"\{number} names no group before it")
            reference = rf"\g<{number}>"
        self.pieces.append(f"(?i:{reference})" if "i" in self._flags else reference)

    def _character(self) -> int | str | Ranges:
        """What a backslash stands for inside and outside of classes: a character, several, or those
        of a property."""
        if self._at == len(self._text):
            raise _wrong("it ends with a backslash")
        character = self._next()
        if character in _ESCAPES:
            return ord(_ESCAPES[character])
        if character.lower() in _SETS:
            ranges = _SETS[character.lower()]
            return _others(ranges) if character.isupper() else ranges
        if character in "pP":
            return self._property(is_other=character == "P")
        if character in "0xucN":
            return self._number(character)
        if character in "GX":
            raise _only_javas(rf"uses \{character}")
        if character.isascii() and character.isalnum():
            raise _wrong(rf"unknown escape \{character}")
        return ord(character)

    def _number(self, kind: str) -> int:
        """A character by its code or name."""
        match kind:
            case "0" if found := self._takes(_OCTAL):
                return int(found[0], 8)
            case "x" if (found := self._takes(_HEX)) and int(found[1] or found[0], 16) <= _LAST:
                return int(found[1] or found[0], 16)
            case "u" if found := self._takes(_HALVES):
                high, low = (int(half, 16) for half in found.groups())
                return 0x10000 + ((high & 0x3FF) << 10) + (low & 0x3FF)
            case "u" if found := self._takes(_UNIT):
                return int(found[0], 16)
            case "c" if self._at < len(self._text):
                return ord(self._next()) ^ 64
            case "N" if found := self._takes(_CHARACTER):
                try:
                    return ord(unicodedata.lookup(found[1]))
                except (KeyError, TypeError):
                    pass
        raise _wrong(rf"a character is not complete after \{kind}")

    def _property(self, *, is_other: bool) -> str | Ranges:
        found = self._takes(_PROPERTY)
        if found is None:
            raise _wrong(r"no property follows \p")
        name = found[1] or found[2]
        if "i" in self._flags:
            cased = {"Lower": "Alpha", "Upper": "Alpha", "Lu": "LC", "Ll": "LC", "Lt": "LC"}
            bare = name.removeprefix("Is")
            name = name.removesuffix(bare) + cased.get(bare, bare)
        if name in _POSIX:
            return _others(_POSIX[name]) if is_other else _POSIX[name]
        is_java = name.startswith(("In", "java", "block=", "blk="))
        kind, _, value = name.rpartition("=")
        of_script = name.startswith("Is") or kind in ("script", "sc")
        if is_java or not (
            of_script or kind in ("gc", "general_category") or len(value) <= 2 or value == "LC"
        ):
            raise _only_javas(rf"uses \p{{{name}}}")
        value = value.removeprefix("Is")
        return rf"\{'P' if is_other else 'p'}{{{_UNICODE.get(value, value)}}}"

    def _class(self) -> None:
        is_negated = self._text.startswith("^", self._at)
        self._at += is_negated
        ranges: list[tuple[int, int]] = []
        others, is_first = "", True
        while True:
            if not self._more():
                raise _wrong("missing ]")
            character = self._next()
            if character == "]" and not is_first:
                break
            is_first = False
            meant = self._member(character)
            if isinstance(meant, str):
                others += meant
            elif isinstance(meant, int):
                one = [(meant, self._end_of(meant))]
                ranges += _folded(one) if "i" in self._flags else one
            else:
                ranges += meant
        text = _class(_others(ranges) if is_negated and not others else ranges, others)
        if is_negated and others:
            text = f"[^{text[1:]}"
        self.pieces.append(f"(?i:{text})" if {"i", "u"} <= self._flags else text)

    def _member(self, character: str) -> int | str | Ranges:
        if character == "[":
            raise _only_javas(
                "has a class inside a class", r"Write [a-cx-z] for [a-c[x-z]], and \[ for a bracket"
            )
        if character == "&" and self._text.startswith("&", self._at):
            raise _only_javas("uses &&")
        return self._character() if character == "\\" else ord(character)

    def _end_of(self, first: int) -> int:
        """The last character of a range in a class; the first one if it is no range."""
        if not self._more() or self._text[self._at] != "-":
            return first
        after = self._text[self._at + 1 : self._at + 2]
        if after in ("", "]", "["):
            return first
        self._at += 1
        self._more()
        last = self._member(self._next())
        if not isinstance(last, int):
            raise _wrong("a range of characters ends with a class")
        if last < first:
            raise _wrong("a range of characters ends before it begins")
        return last
