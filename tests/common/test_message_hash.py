"""When two messages count as the same, and when they never do."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openclaw_rl.common import message_hash
from openclaw_rl.settings.load import ServeConfig
from openclaw_rl.types import Mark, Message

KEY = b"k" * 32
TRANSIENT = message_hash.EphemeralMatcher(ServeConfig().ephemeral_patterns)


def user(text: Any) -> Message:
    return {"role": "user", "content": text}


def called(arguments: Any, name: str = "look", id_: str = "call_1", content: Any = None) -> Message:
    function = {"name": name, "arguments": arguments}
    return {
        "role": "assistant",
        "content": content,
        "tool_calls": [{"id": id_, "type": "function", "function": function}],
    }


SAME: list[tuple[str, Message, Message]] = [
    ("outer white space", user("hi"), user(" hi\n")),
    ("line ends", user("a\nb"), user("a\r\nb")),
    ("old line ends", user("a\nb"), user("a\rb")),
    ("composed accents", user("caf\u00e9"), user("cafe\u0301")),
    (
        "words in parts",
        user("hello"),
        user([{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]),
    ),
    (
        "keys that we do not know",
        user("hi"),
        {"role": "user", "content": "hi", "provider_specific_fields": None},
    ),
    (
        "developer is system",
        {"role": "system", "content": "x"},
        {"role": "developer", "content": "x"},
    ),
    (
        "function is tool",
        {"role": "tool", "content": "x"},
        {"role": "function", "name": "f", "content": "x"},
    ),
    (
        "the id of a tool result",
        {"role": "tool", "tool_call_id": "call_1", "content": "x"},
        {"role": "tool", "content": "x"},
    ),
    ("the id of a call", called("{}"), called("{}", id_="call1")),
    ("arguments, spaced and ordered anew", called('{"a": 1, "b": [2]}'), called('{"b":[2],"a":1}')),
    ("arguments as an object", called('{"a": 1}'), called({"a": 1})),
    ("numbers through JavaScript", called('{"a": 2.0, "b": 1e2}'), called('{"a":2,"b":100}')),
    ("escapes in arguments", called('{"a": "\\u00e9"}'), called('{"a":"é"}')),
    ("no content, empty content", called("{}", content=None), called("{}", content="")),
    (
        "reasoning that was stripped",
        {"role": "assistant", "content": "<think>\nHm.\n</think>\n\nYes."},
        {"role": "assistant", "content": "Yes."},
    ),
    (
        "reasoning in a field",
        {"role": "assistant", "content": "Yes.", "reasoning_content": "Hm."},
        {"role": "assistant", "content": "Yes."},
    ),
]

IMAGE = {"type": "image", "sha256": "ab" * 32, "media_type": "image/png", "width": 1, "height": 1}
DIFFERENT: list[tuple[str, Message, Message]] = [
    ("words", user("yes"), user("no")),
    ("case", user("yes"), user("Yes")),
    ("inner white space", user("a b"), user("a  b")),
    ("roles", user("hi"), {"role": "assistant", "content": "hi"}),
    ("tool names", called("{}"), called("{}", name="other")),
    ("argument values", called('{"a": 1}'), called('{"a": 2}')),
    ("argument types", called('{"a": 1}'), called('{"a": "1"}')),
    ("a call and none", called("{}", content="x"), {"role": "assistant", "content": "x"}),
    (
        "images",
        user([{"type": "image_url", "image_url": "a"}]),
        user([{"type": "image_url", "image_url": "b"}]),
    ),
    ("digests of images", user([IMAGE]), user([IMAGE | {"sha256": "cd" * 32}])),
    ("a user's own think tags", user("<think>a</think>b"), user("b")),
    (
        "words moved between fields",
        called("{}", name="ab", content="c"),
        called("{}", name="b", content="ca"),
    ),
]


@pytest.mark.parametrize(("a", "b"), [c[1:] for c in SAME], ids=[c[0] for c in SAME])
def test_the_same(a: Message, b: Message) -> None:
    assert message_hash.own_hash(a, KEY) == message_hash.own_hash(b, KEY)


@pytest.mark.parametrize(("a", "b"), [c[1:] for c in DIFFERENT], ids=[c[0] for c in DIFFERENT])
def test_different(a: Message, b: Message) -> None:
    assert message_hash.own_hash(a, KEY) != message_hash.own_hash(b, KEY)


@pytest.mark.parametrize(
    "odd",
    [
        called("no JSON"),
        called("[" * 100_000),
        called(None),
        {"role": "assistant", "tool_calls": 3},
        {"role": "assistant", "tool_calls": ["x", {"function": "y"}]},
        {"role": "user", "content": {"a": 1}},
        {"role": "user", "content": "half \ud800"},
        {},
    ],
    ids=lambda m: str(m)[:40],
)
def test_malformed_messages_have_a_hash(odd: Message) -> None:
    assert len(message_hash.own_hash(odd, KEY)) == 16


def test_another_key_gives_other_hashes() -> None:
    assert message_hash.own_hash(user("hi"), KEY) != message_hash.own_hash(user("hi"), b"j" * 32)


def test_a_chain_hash_covers_all_earlier_messages() -> None:
    one = message_hash.mark_messages([user("a"), user("b")], KEY, TRANSIENT)
    two = message_hash.mark_messages([user("c"), user("b")], KEY, TRANSIENT)
    assert one[1].own == two[1].own
    assert one[1].chain != two[1].chain
    assert one[1] == message_hash.mark_message(user("b"), index=1, chain=one[0].chain, key=KEY)


@pytest.mark.parametrize(
    ("message", "transient"),
    [
        (
            user("<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>\nx\n<<<END_OPENCLAW_INTERNAL_CONTEXT>>>\n"),
            True,
        ),
        (user([{"type": "text", "text": "<system-reminder>x\ny</system-reminder>"}]), True),
        (user("<system-reminder>x</system-reminder> and a question"), False),
        (user("what is <system-reminder>?"), False),
        ({"role": "assistant", "content": "<system-reminder>x</system-reminder>"}, False),
        ({"role": "tool", "content": "<system-reminder>x</system-reminder>"}, False),
    ],
)
def test_transient(message: Message, transient: bool) -> None:
    assert TRANSIENT(message) is transient


def test_transient_messages_leave_no_mark_and_keep_the_positions() -> None:
    context = user("<system-reminder>now</system-reminder>")
    with_it = message_hash.mark_messages([user("a"), context, user("b")], KEY, TRANSIENT)
    without = message_hash.mark_messages([user("a"), user("b")], KEY, TRANSIENT)
    assert [m.index for m in with_it] == [0, 2]
    assert [m.chain for m in with_it] == [m.chain for m in without]


@pytest.mark.parametrize(
    ("text", "distinctive"), [("x" * 23, False), ("x" * 24, True), ("  " + "x" * 23 + "\n", False)]
)
def test_distinctive(text: str, distinctive: bool) -> None:
    assert (
        message_hash.mark_message(
            user(text), index=0, chain=message_hash.CHAIN_ROOT, key=KEY
        ).distinctive
        is distinctive
    )


def test_reasoning_makes_no_reply_distinctive() -> None:
    reply = {"role": "assistant", "content": f"<think>{'long ' * 20}</think>OK"}
    assert not message_hash.mark_message(
        reply, index=0, chain=message_hash.CHAIN_ROOT, key=KEY
    ).distinctive


digests = st.binary(min_size=16, max_size=16)
any_mark = st.builds(
    Mark,
    index=st.integers(0, 2**24 - 1),
    role=st.sampled_from(["system", "user", "assistant", "tool"]),
    own=digests,
    chain=digests,
    distinctive=st.booleans(),
)


@given(st.lists(any_mark, max_size=5))
@settings(max_examples=50)
def test_packed_marks_come_back(items: list[Mark]) -> None:
    assert list(message_hash.unpack_marks(message_hash.pack_marks(items))) == items


def test_damaged_marks_are_refused() -> None:
    with pytest.raises(ValueError, match="multiple of 36 bytes, got 35"):
        message_hash.unpack_marks(b"x" * 35)


scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(-1e9, 1e9)
    | st.text(max_size=8)
)
structures = st.recursive(
    scalars, lambda s: st.lists(s, max_size=3) | st.dictionaries(st.text(max_size=4), s, max_size=3)
)


@given(
    st.dictionaries(st.text(max_size=4), structures, max_size=3)
)  # a tool's arguments are an object
@settings(max_examples=50)
def test_arguments_survive_another_serialisation(value: Any) -> None:
    """Spaced or not, ASCII or not, whole floats as JavaScript writes them."""
    plain = json.dumps(value)
    other = json.dumps(json.loads(plain), indent=1, ensure_ascii=False)
    assert message_hash.own_hash(called(plain), KEY) == message_hash.own_hash(called(other), KEY)
    assert message_hash.own_hash(called(plain), KEY) == message_hash.own_hash(
        called(json.loads(plain, parse_float=_script)), KEY
    )


def _script(words: str) -> float:
    value = float(words)
    return int(value) if value.is_integer() else value


@given(st.text(max_size=30), st.text(max_size=30))
@settings(max_examples=100)
def test_only_normalised_equals_hash_the_same(a: str, b: str) -> None:
    same = message_hash.normalise_text(a) == message_hash.normalise_text(b)
    assert (message_hash.own_hash(user(a), KEY) == message_hash.own_hash(user(b), KEY)) is same
    assert message_hash.normalise_text(
        message_hash.normalise_text(a)
    ) == message_hash.normalise_text(a)
