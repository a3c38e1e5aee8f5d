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
        (r"(?!x)\p{IsAlphabetic}\Qa.\E\x{41}\h\R\z", "éa.A\u2003\r\n"),
        (r"(?x) a [b c] \# # and no more", "ac#"),
        (r"\0101\cA\N{DIGIT ONE}\ud83d\ude00", "A\x011😀"),
        (r"[\Q]-\E][^\S]", "-\x0b"),
        (r"(?i)[^a-y\x5a][A-Z]\u0041", "éba"),
        (r"(?i)(a)\1|(?<q>c)\k<q>", "aA"),
        (r"(?m)^a$\s+^b$", "a\r\nb"),
        (r"\Qa", "a"),
        (r"{2}x{2}{3}(?=y)?", "xx"),
        (r"x{2}{3}|{2}b", "xx"),
    ],
)
def test_a_pattern_matches_as_in_java(pattern: str, text: str) -> None:
    found = compiled(pattern)
    assert found.fullmatch(text)
    assert not found.fullmatch(text + "!")
    assert found.matches(pa.array([text, None, text + "!"])).to_pylist() == [True, None, False]
    assert found.finds(pa.array(["", None, text])).to_pylist() == [False, None, True]


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("(?i)é", "É"),
        ("(?i)[a-z]", "\u212a"),
        (".", "\r"),
        (".(?=b)?", "\u2028"),
        (r"\p{IsDigit}", "a"),
        (r"\p{IsPunct}", "$"),
        ("(?x)[a b]", " "),
        ("(?m)^$", ""),
        (r"(?!x)a\b", "é"),
    ],
)
def test_a_pattern_does_not_match_what_it_does_not_in_java(pattern: str, text: str) -> None:
    assert not compiled(pattern).fullmatch(text)
    assert compiled(pattern).finds(pa.array([text])).to_pylist() == [False]


@pytest.mark.parametrize("pattern", ["a$", r"a\Z", r"(?!x)a$"])
def test_the_end_is_also_before_a_last_line_end(pattern: str) -> None:
    texts = pa.array(["ba\n", "ba\r\n", "ba\x85", "ba", "a\n\n", "ab"])
    assert compiled(pattern).finds(texts).to_pylist() == [True, True, True, True, False, False]


@pytest.mark.parametrize(
    ("pattern", "text", "replaced"),
    [
        ("$", "name", "name_x"),
        (r"\B", "ab", "a_xb"),
        ("a*", "aab", "_x_xb_x"),
        ("(?!a)|b", "ab", "a_xb_x"),
    ],
)
def test_all_matches_are_replaced_once(pattern: str, text: str, replaced: str) -> None:
    assert compiled(pattern).all_replaced(("_x",), text) == replaced


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
    [
        *("(", ")", "[a", "[", "x**", "*", "a{x}", "x{,2}", "a\\", "[z-a]", r"[a-\d]", r"[\b]"),
        *("(?P<n>a)", "(?<n>a)(?<n>b)", "(?<n_1>a)", "(?#c)", "(?!x)(?R)", "(?z)", "(?"),
        *(r"\C", r"\K", r"(?!x)\m", r"\0", r"\x4", r"\u12", r"\c", r"\ud83d", r"\x{110000}"),
        *(r"\p{Latin}", r"\p{Any}", r"\p{IsNone}", r"\p{", r"\k<n>", r"\1(a)", "(?!x)a{e<=1}"),
        *("[a&&b]", r"\G", "(?U)a", r"\p{javaLower}", "[a-c[x-z]]+", "(?!a)[b[c]]", r"\b{g}"),
    ],
)
def test_what_is_no_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"is not a regular expression|only Java's"):
        compiled(pattern)


def test_a_range_that_ends_with_a_class_is_named() -> None:
    with pytest.raises(ValueError, match="ends with a class"):
        compiled(r"[x-\d]")


def test_a_pattern_travels() -> None:
    assert pickle.loads(pickle.dumps(compiled("a+", "i"))).fullmatch("AA")
