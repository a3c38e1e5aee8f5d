"""Predicates of JSON paths, ``$.a[?(@.b == 'x' && @.c < 5)]``, on columns.

They compare as Jayway's JsonPath, the usual library in Java, does: a number equals the text that
reads the same, only two numbers or two texts have an order, and what is missing equals only null.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.converters.json.columns import JSON
from semel.converters.json.infer import of_one_kind
from semel.core.patterns import compiled
from semel.core.quoting import named
from semel.transforms.base import flags

Path = tuple[str, ...]
Find = Callable[[Path], pa.Array | None]
"""Gives the values of a field, or None if no record has it."""
Test = Callable[[Find, int], pa.Array]
"""For each of this many records, whether it holds; boolean without nulls."""

_TOKEN = re.compile(
    r"""\s*(?:
      (?P<path>@(?:\.[\w$-]+|\[\s*(?:'[^']*'|"[^"]*")\s*\])*)
    | (?P<text>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
    | (?P<pattern>/(?:[^/\\]|\\.)+/[a-z]*)
    | (?P<number>-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)
    | (?P<word>\b(?:true|false|null|in|nin|IN|NIN)\b)
    | (?P<sign>&&|\|\||==|!=|<=|>=|=~|[<>!(),\[\]])
    )""",
    re.VERBOSE,
)
_STEP = re.compile(r"\.([\w$-]+)|\[\s*(?:'([^']*)'|\"([^\"]*)\")\s*\]")
_WHOLE = re.compile(
    r"\$(?P<path>(?:\.[\w$-]+|\[\s*(?:'[^']*'|\"[^\"]*\")\s*\])*)\.?\[\?\s*\((?P<inner>.*)\)\s*\]\s*",
    re.DOTALL,
)
_ORDERS = {
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}
_LONGEST, _DEEPEST = 10_000, 100
"""How many characters a path may have, and how many brackets and negations its predicate."""
_DIGITS = 18
"""How many digits a number may have and still fit into 64 bits, whatever they are."""
_TURNED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}

Literal = str | Decimal | bool | None
Compare = Callable[[pa.Array, pa.Scalar], pa.Array]


@dataclass(frozen=True, slots=True)
class Condition:
    """Where the objects are, and the test for them."""

    path: Path
    test: Test


def condition(text: str) -> Condition:
    """Read a path that ends with a predicate.

    Raises:
        ValueError: it is not such a path, or one that is not supported here; the message continues
            after its value.
    """
    if len(text) > _LONGEST:
        raise ValueError(f"has more than {_LONGEST:,} characters")
    whole = _WHOLE.fullmatch(text.strip())
    if whole is None:
        raise ValueError(
            "must be a path of fields with one predicate at its end, such as "
            "$[?(@.status == 'open' && @.amount > 10)]"
        )
    tokens = list(_tokens(whole["inner"]))
    if sum(sign in ("!", "(") for _, sign in tokens) > _DEEPEST:
        raise ValueError(f"has more than {_DEEPEST} brackets and negations")
    parser = _Parser(tokens)
    test = parser.either()
    parser.end()
    return Condition(_steps(whole["path"]), test)


def _steps(text: str) -> Path:
    return tuple(next(g for g in m.groups() if g is not None) for m in _STEP.finditer(text))


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    at, text = 0, text.rstrip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None or match.lastgroup is None:
            raise ValueError(f"has {named(text[at:].strip())}, which is not known")
        yield match.lastgroup, match[match.lastgroup]
        at = match.end()


class _Parser:
    """Reads tokens from left to right."""

    def __init__(self, tokens: Sequence[tuple[str, str]]) -> None:
        self._tokens = tokens
        self._at = 0

    def either(self) -> Test:
        tests = [self._all()]
        while self._takes("||"):
            tests.append(self._all())
        return _joined(tests, pc.or_)

    def end(self) -> None:
        if self._at < len(self._tokens):
            raise ValueError(f"has {named(self._tokens[self._at][1])} where it should end")

    def _all(self) -> Test:
        tests = [self._one()]
        while self._takes("&&"):
            tests.append(self._one())
        return _joined(tests, pc.and_)

    def _one(self) -> Test:
        if self._takes("!"):
            negated = self._one()
            return lambda find, count: pc.invert(negated(find, count))
        if self._takes("("):
            test = self.either()
            self._expect(")")
            return test
        kind, text = self._next()
        if kind == "path":
            return self._of(_steps(text))
        literal = _literal(kind, text)
        sign = self._sign()
        kind, text = self._next()
        if kind != "path":
            raise ValueError("compares two constants")
        return _comparison(_steps(text), _TURNED.get(sign, sign), literal)

    def _of(self, path: Path) -> Test:
        if self._at == len(self._tokens) or self._tokens[self._at][1] in (")", "&&", "||"):
            return lambda find, count: _present(find(path), count)
        if self._takes("=~"):
            kind, text = self._next()
            if kind != "pattern":
                raise ValueError(f"has {text!r} where a pattern like /.*x/ should be")
            return _matching(path, text)
        word = self._tokens[self._at][1].lower()
        if word in ("in", "nin"):
            self._at += 1
            among = _joined([_comparison(path, "==", v) for v in self._list()], pc.or_)
            return among if word == "in" else lambda find, n: pc.invert(among(find, n))
        sign = self._sign()
        return _comparison(path, sign, _literal(*self._next()))

    def _list(self) -> list[Literal]:
        self._expect("[")
        literals = [_literal(*self._next())]
        while self._takes(","):
            literals.append(_literal(*self._next()))
        self._expect("]")
        return literals

    def _sign(self) -> str:
        _, sign = self._next()
        if sign not in ("==", "!=", *_ORDERS):
            raise ValueError(f"has {sign!r}; known are ==, !=, <, <=, >, >=, =~, in and nin")
        return sign

    def _next(self) -> tuple[str, str]:
        if self._at == len(self._tokens):
            raise ValueError("ends too early")
        self._at += 1
        return self._tokens[self._at - 1]

    def _takes(self, sign: str) -> bool:
        there = self._at < len(self._tokens) and self._tokens[self._at][1] == sign
        self._at += there
        return there

    def _expect(self, sign: str) -> None:
        if not self._takes(sign):
            raise ValueError(f"lacks {sign!r}")


def _literal(kind: str, text: str) -> Literal:
    if kind == "text":
        return re.sub(r"\\(.)", r"\1", text[1:-1])
    if kind == "number":
        try:
            return Decimal(text)
        except InvalidOperation:
            raise ValueError(f"has {named(text)}, which is too large for a number") from None
    if kind == "word" and text in ("true", "false", "null"):
        return {"true": True, "false": False, "null": None}[text]
    raise ValueError(f"has {named(text)} where a text, a number, true, false or null should be")


def _joined(tests: Sequence[Test], together: Callable[[pa.Array, pa.Array], pa.Array]) -> Test:
    def test(find: Find, count: int) -> pa.Array:
        holds = tests[0](find, count)
        for other in tests[1:]:
            holds = together(holds, other(find, count))
        return holds

    return tests[0] if len(tests) == 1 else test


def _all_of(answer: bool, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(answer), count)


def _present(values: pa.Array | None, count: int) -> pa.Array:
    return _all_of(False, count) if values is None else values.is_valid()


def _comparison(path: Path, sign: str, literal: Literal) -> Test:
    def equal(find: Find, count: int) -> pa.Array:
        values = find(path)
        if values is None:  # null, as in a batch in which another record has it
            return _all_of(literal is None, count)
        if literal is None:
            return values.is_null()
        return _by_kind(values, lambda of_kind: _equal(of_kind, literal))

    def unequal(find: Find, count: int) -> pa.Array:
        return pc.invert(equal(find, count))

    def ordered(find: Find, count: int) -> pa.Array:
        values = find(path)
        if values is None:
            return _all_of(False, count)
        return _by_kind(values, lambda of_kind: _ordered(sign, of_kind, literal))

    return {"==": equal, "!=": unequal}.get(sign, ordered)


def _by_kind(values: pa.Array, test: Callable[[pa.Array], pa.Array | None]) -> pa.Array:
    """Which values pass a test of one type, which gives None if none of that type does. In plain
    JSON, a field may have values of several types."""
    if values.type != JSON:
        passed = test(values)
        return _all_of(False, len(values)) if passed is None else pc.fill_null(passed, False)
    passes = np.zeros(len(values), bool)
    for rows, of_kind in of_one_kind(values.storage):
        if of_kind.type != JSON:
            passes[rows] = flags(_by_kind(of_kind, test))
    return pa.array(passes)


def _ordered(sign: str, values: pa.Array, literal: Literal) -> pa.Array | None:
    is_same = _same_kind(values.type, literal)
    return _compared(_ORDERS[sign], values, literal) if is_same else None


def _equal(values: pa.Array, literal: Literal) -> pa.Array | None:
    if _same_kind(values.type, literal):
        return _compared(pc.equal, values, literal)
    if _is_text(values.type) and isinstance(literal, Decimal):
        return pc.equal(values, str(literal))
    if _is_number(values.type) and isinstance(literal, str):
        try:
            number = Decimal(literal)
        except InvalidOperation:
            return None
        return _compared(pc.equal, values, number) if number.is_finite() else None
    return None


def _matching(path: Path, text: str) -> Test:
    body, _, flags = text[1:].rpartition("/")
    if flags.strip("i"):
        raise ValueError(f"has the flags {flags!r} at a pattern; only i is known")
    pattern = compiled(body.replace("\\/", "/"), flags[:1])

    def test(find: Find, count: int) -> pa.Array:
        values = find(path)
        if values is None:
            return _all_of(False, count)
        return _by_kind(values, lambda v: pattern.matches(v) if _is_text(v.type) else None)

    return test


def _same_kind(kind: pa.DataType, literal: Literal) -> bool:
    if isinstance(literal, bool):
        return bool(pa.types.is_boolean(kind))
    return _is_number(kind) if isinstance(literal, Decimal) else _is_text(kind)


def _compared(compare: Compare, values: pa.Array, literal: Literal) -> pa.Array:
    if not isinstance(literal, Decimal):
        return compare(values, pa.scalar(literal))
    if pa.types.is_floating(values.type):
        return compare(values, pa.scalar(float(literal), values.type))
    with suppress(pa.ArrowInvalid):
        if pa.types.is_uint64(values.type):
            values = values.cast(pa.decimal128(20, 0))
        return compare(values, _exact(literal))
    return compare(values.cast(pa.float64(), safe=False), float(literal))


def _exact(literal: Decimal) -> pa.Scalar:
    """Raises ArrowInvalid: it has too many digits."""
    if literal.adjusted() < _DIGITS and literal == literal.to_integral_value():
        return pa.scalar(int(literal))
    return pa.scalar(literal)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_number(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    )
