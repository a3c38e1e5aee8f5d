"""Java's regular expressions: what they match, and that no text makes them slow."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest

from semel.core.errors import ConfigError
from semel.core.patterns import compiled

SLOW = r"(?!x)(a|a)+(?<=c)b"


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (r"(?<a>x+)y", "xxy"),
        (r"\p{Alpha}+[\p{Digit}_]", "abc1"),
        (r"\P{Alpha}+\d", "123"),
        (r"\p{L}+\p{IsGreek}", "éλ"),
        (r"\Qa.b\E.", "a.bc"),
        (r"\u0041\x42\x{43}", "ABC"),
        (r"[\s]\s\h", "\x0b \u2003"),
        (r"a\Rb", "a\r\nb"),
        (r"[\]a$]+", "]a$"),
        (r"(?i)ab", "AB"),
        (r"(?!internal)(\w+)", "orders"),
        (r"(\w+)(?<!_copy)", "orders"),
        (r"a++b", "aab"),
        (r"(?!foo)[\x41-\x5a]+", "AB"),
        (r"[\[a]\[[b]", "[[b"),
        (r"(a|b)\1", "bb"),
        (r"x{1200}", "x" * 1200),
    ],
)
def test_a_pattern_matches_as_in_java(pattern: str, text: str) -> None:
    found = compiled(pattern)
    assert found.fullmatch(text)
    assert not found.fullmatch(text + "!")
    assert found.matches(pa.array([text, None, text + "!"])).to_pylist() == [True, None, False]
    assert found.finds(pa.array(["", None, text])).to_pylist() == [False, None, True]


def test_the_end_is_also_before_a_last_line_end() -> None:
    texts = pa.array(["ba\n", "ba", "a\n\n", "ab"])
    assert compiled("a$").finds(texts).to_pylist() == [True, True, False, False]


def test_a_replacement_takes_groups_by_number_and_name() -> None:
    pattern = compiled("(?<word>[a-z]+)-([0-9]+)(x)?")
    template = pattern.template(r"$2${word}\$$3")
    assert pattern.first_replaced(template, "ab-12 cd-3") == "12ab$ cd-3"
    assert pattern.all_replaced(template, "ab-12 cd-3") == "12ab$ 3cd$"


def test_a_pattern_that_would_take_for_ever_is_given_up() -> None:
    assert not compiled("(a+)+b").fullmatch("a" * 100_000)
    for call in (lambda: compiled(SLOW).fullmatch("a" * 60), lambda: every(SLOW)):
        with pytest.raises(ConfigError, match="takes too long to match a text of 60 characters"):
            call()


def every(pattern: str) -> pa.Array:
    return compiled(pattern).matches(pa.array(["a" * 60]))


@pytest.mark.parametrize(
    "pattern",
    ["(?=x)((a{1000}){1000}){1000}", "(?=x)" + "a|" * 9_000, "(" * 20_000, "(?=" * 300],
)
def test_a_pattern_that_would_take_for_ever_to_compile_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"is too large|is not a regular expression"):
        compiled(pattern)


def test_a_pattern_is_no_longer_than_it_takes_to_compile_soon() -> None:
    """This one takes RE2 minutes."""
    with pytest.raises(ValueError, match="has more than"):
        compiled(r"(?i)\pL{1000}" * 100_000)


@pytest.mark.parametrize(
    "pattern",
    ["(", "[a", "x**", "a&&b", r"\G", "(?U)a", r"\p{javaLower}", "[a-c[x-z]]+", "(?!a)[b[c]]"],
)
def test_what_is_no_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"is not a regular expression|only Java's"):
        compiled(pattern)


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        (r"(?!a)\p{L}+", r"uses lookaround together with \\p, which is not available"),
        (r"(\w)\1\x{41}", r"uses backreferences together with \\x\{"),
        (r"\p{L}(", "is not a regular expression: missing"),
    ],
)
def test_a_refusal_says_what_does_not_go_together(pattern: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        compiled(pattern)


def test_a_pattern_travels() -> None:
    assert pickle.loads(pickle.dumps(compiled("a+", "i"))).fullmatch("AA")
