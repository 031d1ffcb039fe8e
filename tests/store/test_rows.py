"""Whatever strings come, what is written is read back the same."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openclaw_rl.store import rows
from openclaw_rl.types import Sampling, Span, Vote

# With halves of surrogate pairs, which clients do send. Two halves that meet are one character to JSON.
WORDS = st.text(st.characters(exclude_categories=()), max_size=6).filter(
    lambda s: s.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass") == s
)
VOTES = st.builds(
    Vote,
    score=st.sampled_from([1, 0, -1, None]),
    hint=st.none() | WORDS,
    reason=WORDS,
    error=st.none() | WORDS,
)
ANYTHING: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=6,
)


@given(st.lists(VOTES, max_size=3).map(tuple))
def test_verdicts_are_read_back(votes: tuple[Vote, ...]) -> None:
    assert rows._decode_json(rows._votes_decoder, rows.to_json(votes)) == votes


@given(st.lists(WORDS, max_size=3).map(tuple))
def test_hints_are_read_back(hints: tuple[str, ...]) -> None:
    assert rows._decode_json(rows._strings_decoder, rows.to_json(hints)) == hints


@given(st.lists(WORDS, max_size=3).map(tuple))
def test_sampling_is_read_back(stop: tuple[str, ...]) -> None:
    made = Sampling(temperature=0.5, stop=stop)
    assert rows._decode_json(rows._sampling_decoder, rows.to_json(made)) == made


@given(ANYTHING)
def test_messages_are_read_back(value: Any) -> None:
    assert rows.from_json(rows.to_json(value)) == value


def test_values_of_a_wrong_type_are_refused() -> None:
    raw = rows.to_json((Span(start=0, end=1, version=0), "\ud800"))
    with pytest.raises(msgspec.ValidationError):
        rows._decode_json(rows._votes_decoder, raw)
