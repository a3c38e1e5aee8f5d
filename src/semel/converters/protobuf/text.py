"""Parses Protobuf's own language, in which registries store schemas."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any, NoReturn

from semel.converters.protobuf.files import Enum, Field, File, Message, SchemaError

_TOKEN = re.compile(
    r"""(?:\s|//[^\n]*|/\*.*?\*/)*
    (?P<token>
        "(?:[^"\\\n]|\\.)*" | '(?:[^'\\\n]|\\.)*'
      | \.?[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*
      | 0[xX][0-9a-fA-F]+ | (?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?
      | [{}\[\]()<>=;,:+-]
    )""",
    re.VERBOSE | re.DOTALL,
)
_REST = re.compile(r"(?:\s|//[^\n]*|/\*.*?\*/)*\Z", re.DOTALL)
_OPENING, _CLOSING = "{[(<", "}])>"
_LABELS = ("optional", "required", "repeated")
_META = "confluent.field_meta"


def parse(text: str) -> File:
    """The file of a text.

    Raises:
        SchemaError: says what is wrong with it, and in which line.
    """
    return _Parser(text).file()


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[tuple[str, int]] = []
        at = 0
        while not _REST.match(text, at):
            found = _TOKEN.match(text, at)
            if found is None:
                self._refuse(f"unexpected {text[at:].split(maxsplit=1)[0][:20]!r}", at)
            self._tokens.append((found["token"], found.start("token")))
            at = found.end()
        self._at = 0

    def _refuse(self, why: str, place: int | None = None) -> NoReturn:
        if place is None:
            last = min(self._at, len(self._tokens) - 1)
            place = self._tokens[last][1] if self._tokens else 0
        line = self._text.count("\n", 0, place) + 1
        raise SchemaError(f"not a Protobuf schema: line {line}: {why}")

    @property
    def _next(self) -> str:
        return self._tokens[self._at][0] if self._at < len(self._tokens) else ""

    def _take(self) -> str:
        found = self._next
        if not found:
            self._refuse("it ends too early")
        self._at += 1
        return found

    def _accept(self, token: str) -> bool:
        if self._next != token:
            return False
        self._at += 1
        return True

    def _expect(self, token: str) -> None:
        if not self._accept(token):
            self._refuse(f"expected {token!r}, but found {self._next!r}")

    def _name(self) -> str:
        found = self._take()
        if not (found[0].isalpha() or found[0] in "_."):
            self._at -= 1
            self._refuse(f"expected a name, but found {found!r}")
        return found

    def _string(self) -> str:
        found = ""
        while self._next[:1] in ("'", '"') and self._next:
            token = self._take()
            try:
                found += str(ast.literal_eval(token))
            except (SyntaxError, ValueError):
                self._refuse(f"a text that cannot be read: {token}")
        return found

    def _integer(self) -> int:
        sign = -1 if self._accept("-") else 1
        token = self._take()
        try:
            octal = len(token) > 1 and token.startswith("0") and token.isdigit()
            return sign * int(token, 8 if octal else 0)
        except ValueError:
            self._at -= 1
            self._refuse(f"expected a whole number, but found {token!r}")

    def _skip(self) -> None:
        """Skip a statement: to its semicolon, or over its braces."""
        depth = 0
        while True:
            token = self._take()
            if token in _OPENING:
                depth += 1
            elif token in _CLOSING:
                depth -= 1
                if depth == 0 and token == "}" and self._next != ";":
                    return
            elif token == ";" and depth == 0:
                return

    def file(self) -> File:
        found = File()
        while self._next:
            word = self._take()
            if word == "syntax":
                self._expect("=")
                found.syntax = self._string()
                self._expect(";")
            elif word == "edition":
                found.syntax = "editions"
                self._skip()
            elif word == "package":
                found.package = self._name()
                self._expect(";")
            elif word == "import":
                if self._next in ("public", "weak"):
                    self._take()
                found.imports.append(self._string())
                self._expect(";")
            elif word == "message":
                found.messages.append(self._message(found.syntax))
            elif word == "enum":
                found.enums.append(self._enum())
            elif word in ("option", "extend", "service"):
                self._skip()
            elif word != ";":
                self._at -= 1
                self._refuse(f"unexpected {word!r}")
        return found

    def _enum(self) -> Enum:
        found = Enum(self._name())
        self._expect("{")
        while not self._accept("}"):
            if self._accept(";"):
                continue
            name = self._name()
            if name in ("option", "reserved") and self._next != "=":
                self._skip()
                continue
            self._expect("=")
            found.values.append((name, self._integer()))
            self._options()
            self._expect(";")
        if not found.values:
            self._refuse(f"enum {found.name} has no value")
        return found

    def _message(self, syntax: str) -> Message:
        found = Message(self._name())
        self._expect("{")
        while not self._accept("}"):
            word = self._next
            if word == "message":
                self._take()
                found.messages.append(self._message(syntax))
            elif word == "enum":
                self._take()
                found.enums.append(self._enum())
            elif word == "oneof":
                self._take()
                self._oneof(found)
            elif word in ("option", "extend", "reserved", "extensions"):
                self._skip()
            elif not self._accept(";"):
                found.fields.append(self._field(found, None))
        return found

    def _oneof(self, message: Message) -> None:
        message.oneofs.append(self._name())
        self._expect("{")
        while not self._accept("}"):
            if self._next == "option":
                self._skip()
            elif not self._accept(";"):
                message.fields.append(self._field(message, len(message.oneofs) - 1))

    def _field(self, message: Message, oneof: int | None) -> Field:
        label = self._take() if self._next in _LABELS else ""
        kind = self._name()
        if kind == "group":
            self._refuse("groups are not read. Make it a message")
        is_map = kind == "map" and self._accept("<")
        if is_map:
            key = self._name()
            self._expect(",")
            value = self._name()
            self._expect(">")
        name = self._name()
        self._expect("=")
        number = self._integer()
        options = self._options()
        self._expect(";")
        if options.get("features.message_encoding") == "DELIMITED":
            self._refuse(f"field {name}: delimited messages are not read")
        if is_map:
            kind, label = entry_name(name), "repeated"
            fields = [Field("key", 1, key), Field("value", 2, value)]
            message.messages.append(Message(kind, fields, is_entry=True))
        default = options.get("default")
        return Field(name, number, kind, label, oneof, default, _parameters(options))

    def _options(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if not self._accept("["):
            return found
        while True:
            name = self._option_name()
            self._expect("=")
            value = self._value()
            found[name] = (
                [*found[name], value]
                if name.endswith(".params") and name in found
                else ([value] if name.endswith(".params") else value)
            )
            if self._accept("]"):
                return found
            self._expect(",")

    def _option_name(self) -> str:
        found = ""
        while self._next != "=":
            token = self._take()
            if token not in "()":
                found += token.lstrip(".") if not found else token
        return found

    def _value(self) -> Any:
        """A constant, a list, or a message in Protobuf's text format: its fields as lists."""
        if self._next[:1] in ("'", '"') and self._next:
            return self._string()
        if self._accept("["):
            items: list[Any] = []
            while not self._accept("]"):
                items.append(self._value())
                self._accept(",")
            return items
        if self._next in ("{", "<"):
            return self._aggregate()
        sign = "-" if self._accept("-") else ""
        self._accept("+")
        return sign + self._take()

    def _aggregate(self) -> Mapping[str, list[Any]]:
        closing = _CLOSING[_OPENING.index(self._take())]
        found: dict[str, list[Any]] = {}
        while not self._accept(closing):
            name = ""
            while self._next not in (":", "{", "<"):
                name += self._take()
            self._accept(":")
            value = self._value()
            found.setdefault(name, []).extend(value if isinstance(value, list) else [value])
            while self._next in (",", ";"):
                self._take()
        return found


def entry_name(field: str) -> str:
    """The name of the message for a map's entries: ``ByNameEntry`` for ``by_name``."""
    return "".join(part[:1].upper() + part[1:] for part in field.split("_")) + "Entry"


def _parameters(options: Mapping[str, Any]) -> Mapping[str, str]:
    pairs = list(options.get(f"{_META}.params", ()))
    whole = options.get(_META)
    if isinstance(whole, Mapping):
        pairs += whole.get("params", ())
    found: dict[str, str] = {}
    for pair in pairs:
        for one in pair if isinstance(pair, list) else [pair]:
            if isinstance(one, Mapping):
                found["".join(one.get("key", ()))] = "".join(one.get("value", ()))
    return found
