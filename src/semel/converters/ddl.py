"""Schemas as Spark SQL writes them: ``id BIGINT NOT NULL, at TIMESTAMP, tags ARRAY<STRING>``."""

from __future__ import annotations

import difflib
import re

import pyarrow as pa

from semel.core.errors import ConfigError, misconfigured
from semel.core.quoting import named

_TYPES = {
    "BOOLEAN": pa.bool_(),
    "BYTE": pa.int8(),
    "TINYINT": pa.int8(),
    "SHORT": pa.int16(),
    "SMALLINT": pa.int16(),
    "INT": pa.int32(),
    "INTEGER": pa.int32(),
    "LONG": pa.int64(),
    "BIGINT": pa.int64(),
    "FLOAT": pa.float32(),
    "REAL": pa.float32(),
    "DOUBLE": pa.float64(),
    "STRING": pa.string(),
    "TEXT": pa.string(),
    "BINARY": pa.binary(),
    "DATE": pa.date32(),
    "TIMESTAMP": pa.timestamp("us", "UTC"),
    "TIMESTAMP_LTZ": pa.timestamp("us", "UTC"),
    "TIMESTAMP_NTZ": pa.timestamp("us"),
    "TIME": pa.time64("us"),
    "JSON": pa.json_(),
    "VARIANT": pa.json_(),
}

_KNOWN = [*_TYPES, "DECIMAL", "NUMERIC", "DEC", "VARCHAR", "CHAR", "ARRAY", "MAP", "STRUCT"]

_TOKEN = re.compile(
    r"\s*(?:(?P<quoted>`(?:[^`]|``)+`)|(?P<text>'(?:[^'\\]|\\.)*')|(?P<word>[^\W\d]\w*)"
    r"|(?P<number>\d+)|(?P<sign>[<>(),:]))"
)


def parse(text: str, *, where: str = "schema") -> pa.Schema:
    """Parse a schema.

    Args:
        text: fields separated by commas, each ``name TYPE [NOT NULL] [COMMENT '...']``.
        where: names the setting in errors.

    Raises:
        ConfigError: names the part that cannot be read.
    """
    return _Parser(text, where).schema()


class _Parser:
    """A cursor over the text."""

    def __init__(self, text: str, where: str) -> None:
        self._text = text
        self._where = where
        self._tokens: list[tuple[str, str, int]] = []
        at = 0
        while text[at:].strip():
            match = _TOKEN.match(text, at)
            if match is None:
                at += len(text[at:]) - len(text[at:].lstrip())
                raise self._error(f"cannot read {_excerpt(text, at)}", at)
            kind = match.lastgroup or ""
            self._tokens.append((kind, match[kind], match.start(kind)))
            at = match.end()
        self._at = 0

    def schema(self) -> pa.Schema:
        if not self._tokens:
            raise self._error("no fields", 0)
        fields = self._fields(end="")
        return pa.schema(fields)

    def _fields(self, end: str) -> list[pa.Field]:
        fields: list[pa.Field] = []
        while True:
            start = self._position()
            field = self._field(colon=bool(end))
            if field.name in [f.name for f in fields]:
                raise self._error(f"field {named(field.name)} is declared twice", start)
            fields.append(field)
            if self._accept(","):
                continue
            if end:
                self._expect(end, f"after field {named(field.name)}")
            elif self._at < len(self._tokens):
                raise self._unexpected(f"a comma after field {named(field.name)}")
            return fields

    def _field(self, *, colon: bool) -> pa.Field:
        kind, token, at = self._next("a field name")
        if kind not in ("word", "quoted"):
            raise self._error(f"expected a field name, found {token!r}", at)
        name = token[1:-1].replace("``", "`") if kind == "quoted" else token
        if self._peek() == ":":
            self._accept(":")
        elif colon and self._peek() in (",", ">", ""):
            raise self._unexpected(f"a type for field {named(name)}")
        data_type = self._type(f"field {named(name)}")
        nullable = True
        if self._accept("NOT"):
            self._expect("NULL", f"after NOT of field {named(name)}")
            nullable = False
        if self._accept("COMMENT"):
            kind, token, at = self._next("a comment")
            if kind != "text":
                raise self._error(f"expected a comment in quotes, found {token!r}", at)
        return pa.field(name, data_type, nullable=nullable)

    def _type(self, what: str) -> pa.DataType:
        kind, token, at = self._next(f"a type for {what}")
        name = token.upper()
        if kind != "word":
            raise self._error(f"expected a type for {what}, found {token!r}", at)
        if name in _TYPES:
            return _TYPES[name]
        if name in ("DECIMAL", "NUMERIC", "DEC"):
            return self._decimal(what, at)
        if name in ("VARCHAR", "CHAR"):
            self._numbers(what, at, most=1)
            return pa.string()
        if name == "ARRAY":
            self._expect("<", f"after ARRAY of {what}")
            item = self._type(what)
            self._expect(">", f"to close ARRAY of {what}")
            return pa.list_(item)
        if name == "MAP":
            self._expect("<", f"after MAP of {what}")
            key = self._type(what)
            self._expect(",", f"between key and value of MAP of {what}")
            value = self._type(what)
            self._expect(">", f"to close MAP of {what}")
            return pa.map_(key, value)
        if name == "STRUCT":
            self._expect("<", f"after STRUCT of {what}")
            return pa.struct(self._fields(end=">"))
        near = difflib.get_close_matches(name, _KNOWN, n=1)
        hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(_KNOWN)}"
        raise self._error(f"unknown type {token!r} of {what}; {hint}", at)

    def _decimal(self, what: str, at: int) -> pa.DataType:
        numbers = self._numbers(what, at, most=2) or [10]
        precision, scale = (*numbers, 0)[:2]
        if not 1 <= precision <= 38 or scale > precision:
            raise self._error(
                f"DECIMAL({precision},{scale}) of {what}: precision is 1 to 38, scale at most "
                "precision",
                at,
            )
        return pa.decimal128(precision, scale)

    def _numbers(self, what: str, at: int, most: int) -> list[int]:
        numbers: list[int] = []
        if not self._accept("("):
            return numbers
        while True:
            kind, token, position = self._next(f"a number for {what}")
            if kind != "number" or len(numbers) == most:
                raise self._error(f"{token!r} does not belong in the type of {what}", position)
            numbers.append(int(token))
            if not self._accept(","):
                self._expect(")", f"in the type of {what}")
                return numbers

    def _position(self) -> int:
        return self._tokens[self._at][2] if self._at < len(self._tokens) else len(self._text)

    def _peek(self) -> str:
        if self._at == len(self._tokens):
            return ""
        kind, token, _ = self._tokens[self._at]
        return token if kind in ("word", "sign") else ""

    def _accept(self, token: str) -> bool:
        accepted = self._peek().upper() == token
        self._at += accepted
        return accepted

    def _expect(self, token: str, where: str) -> None:
        if not self._accept(token):
            raise self._unexpected(f"{token!r} {where}")

    def _next(self, expected: str) -> tuple[str, str, int]:
        if self._at == len(self._tokens):
            raise self._unexpected(expected)
        self._at += 1
        return self._tokens[self._at - 1]

    def _unexpected(self, expected: str) -> ConfigError:
        at = self._position()
        actual = _excerpt(self._text, at) if at < len(self._text) else "the end"
        return self._error(f"expected {expected}, found {actual}", at)

    def _error(self, problem: str, at: int) -> ConfigError:
        return misconfigured(
            self._where, f"{self._where}: {problem} (at position {at} of {self._text!r})"
        )


def _excerpt(text: str, at: int) -> str:
    return repr(text[at : at + 20].split(",", maxsplit=1)[0].strip() or text[at : at + 1])
