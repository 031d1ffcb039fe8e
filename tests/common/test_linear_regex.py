"""Patterns of Python's syntax on RE2: what they mean, what is refused, and that none takes long."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.growth import check_linear_growth

from openclaw_rl.common.client_patterns import CLIENT_PROMPT_PATTERNS, SIDE_PATTERNS
from openclaw_rl.common.linear_regex import LinearPattern, PatternError, PatternSet


@pytest.mark.parametrize("absent", ["<b>", "<<ab", "</tag>", "x"])
@settings(max_examples=60)
@given(data=st.data())
def test_the_absent_operator_matches_every_text_without_its_operand(
    absent: str, data: st.DataObject
) -> None:
    piece = st.sampled_from(
        [absent, *(absent[:n] for n in range(1, len(absent))), *absent, "z", "\n", "é"]
    )
    text = "".join(data.draw(st.lists(piece, max_size=8)))
    assert LinearPattern(f"(?~{absent})").fullmatch(text) == (absent not in text)
    wrapped = LinearPattern(f"a(?~{absent}){re.escape(absent)}c").find(f"a{text}{absent}c{absent}c")
    expected = re.search(
        f"(?s)a(?:(?!{re.escape(absent)}).)*{re.escape(absent)}c", f"a{text}{absent}c{absent}c"
    )
    assert wrapped == (expected and expected[0])


@pytest.mark.parametrize(
    "members",
    [r"\d", r"\D", r"\s", r"\S", r"\w", r"\W", r"[\d.]", r"[^\s\d]", r"[\w-]", r"[^\w\n]", "[]a]"],
)
def test_character_classes_are_those_of_python(members: str) -> None:
    ours, theirs = LinearPattern(members), re.compile(members)
    different = [
        c for c in map(chr, range(0xD800)) if ours.fullmatch(c) != bool(theirs.fullmatch(c))
    ]
    assert not different, different[:9]


def test_the_end_of_the_text_and_halves_of_surrogate_pairs() -> None:
    assert LinearPattern(r"\Aquota\Z").matches("quota")
    assert not LinearPattern(r"\Aquota\Z").matches("quota\n")
    assert LinearPattern("a.c").find("xa\udc80c") == "a?c"


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("(", r"missing \)"),
        ("a(?=b)", "look-ahead is not supported"),
        ("a(?!b)", r"look-ahead is not supported; \(\?~TEXT\) stands for any text without TEXT"),
        ("(?<!a)b", "look-behind is not supported"),
        (r"(a)\1", "back-references are not supported"),
        ("(?P<x>a)(?P=x)", "back-references are not supported"),
        ("a*+", "possessive repetition is not supported"),
        ("a{1,8000}", "a count is at most 1000"),
        (r"[\W_]", "inside brackets is not supported"),
        ("\\bж", "knows ASCII letters only"),
        ("(?~aba)", "first character does not occur again"),
        ("(?~<<)", "first character does not occur again"),
        ("\udc80", "surrogates not allowed"),
    ],
)
def test_patterns_that_need_backtracking_are_refused_with_the_reason(
    expression: str, reason: str
) -> None:
    with pytest.raises(PatternError, match=reason):
        LinearPattern(expression)


@pytest.mark.parametrize(
    ("expression", "unit"),
    [
        ("(a+)+$", "a"),
        (r"^(please |(could|can) you (please )?)*$", "could you please "),
        (r"^\s*(?:\s*x\s*)*$", " "),
    ],
)
def test_an_ambiguous_expression_takes_linear_time(expression: str, unit: str) -> None:
    def text(size: int) -> str:
        return unit * (size // len(unit)) + "!"

    pattern = LinearPattern(expression)
    assert not pattern.matches(text(65_000))
    check_linear_growth(pattern.matches, text, 65_000)


def check_matching(patterns: PatternSet, members: list[LinearPattern], text: str) -> None:
    """Check a set against searches for each of its members."""
    matching = patterns.matching(text)
    expected = [member.matches(text) for member in members]
    assert [member in matching for member in members] == expected
    assert bool(matching) == matching.has_any(members) == any(expected)


def made_set(*expressions: str) -> tuple[PatternSet, list[LinearPattern]]:
    patterns = PatternSet()
    members = [patterns.add(expression) for expression in expressions]
    patterns.compile()
    return patterns, members


@settings(max_examples=80)
@given(
    st.lists(
        st.sampled_from(
            ["Thanks", "thanks", "ÉTÉ", "ﬁn", "a1", "K", "ſ", "\n", " ", "你好", "\udc80", "ß"]
        ),
        max_size=8,
    ).map("".join)
)
def test_a_set_finds_the_patterns_that_match_one_by_one(text: str) -> None:
    patterns, members = made_set(
        "(?i)thanks",
        "(?i)\u00e9t\u00e9",
        "(?i)fin",
        "^a\\d",
        "(?i)k$",
        "[^\\n]s",
        "你.",
        ".*",
        "(?i)SS",
        "x|",
    )
    check_matching(patterns, members, text)


def test_a_set_of_the_shipped_patterns_finds_what_they_find() -> None:
    expressions = [*SIDE_PATTERNS, *CLIENT_PROMPT_PATTERNS]
    patterns, members = made_set(*expressions)
    texts = [*expressions, "What is the capital of France?", ""]
    for text in texts:
        check_matching(patterns, members, text)


def test_an_empty_set_matches_nothing() -> None:
    patterns, _ = made_set()
    assert not patterns.matching("any text")


def test_an_expression_that_a_set_refuses_is_described() -> None:
    with pytest.raises(PatternError, match="look-ahead"):
        PatternSet().add("a(?=b)")
