"""Items to messages and back: what a client sends back is what was said, however much of it it kept."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openclaw_rl.common import message_hash
from openclaw_rl.errors import RequestError
from openclaw_rl.serve.chat_request import TokenInfo
from openclaw_rl.serve.dialects.openai_responses import ResponsesDialect
from openclaw_rl.serve.dialects.openai_responses_input import (
    decode_reasoning,
    encode_reasoning,
    read_input,
)
from openclaw_rl.serve.dialects.openai_responses_output import (
    ItemIdGenerator,
    PendingTokens,
    output_items,
)
from openclaw_rl.serve.dialects.openai_responses_tools import ToolOrigin
from openclaw_rl.serve.dialects.validation import image_placeholder

KEY = b"k" * 16
ORIGINS = {"patch": ToolOrigin("custom", "patch"), "ns__f": ToolOrigin("function", "f", "ns")}
USER = {"role": "user", "content": "hi"}


def messages(*items: dict[str, Any]) -> list[dict[str, Any]]:
    return [dict(m) for m in read_input(items)[0]]


def response_id(number: int) -> str:
    return f"resp_{number:028x}"


words = st.text(max_size=20)
calls = st.lists(
    st.one_of(
        st.tuples(st.just("patch"), words.map(lambda w: json.dumps({"input": w}))),
        st.tuples(
            st.sampled_from(["f", "ns__f"]), st.dictionaries(words, st.integers()).map(json.dumps)
        ),
    ),
    max_size=3,
)


def turn(text: str, reasoning: str, made: list[tuple[str, str]]) -> dict[str, Any]:
    out: dict[str, Any] = {"role": "assistant", "content": text if text or not made else None}
    if reasoning:
        out["reasoning_content"] = reasoning
    if made:
        out["tool_calls"] = [
            {
                "id": f"call_{n}",
                "type": "function",
                "function": {"name": name, "arguments": arguments},
            }
            for n, (name, arguments) in enumerate(made)
        ]
    return out


turns = st.builds(turn, words, words, calls)


@given(turns, st.booleans())
def test_a_turn_comes_back_as_it_was(said: dict[str, Any], named: bool) -> None:
    items = output_items(said, ItemIdGenerator(response_id(1)), ORIGINS, seal=True)
    if not named:
        items = [{k: v for k, v in i.items() if k != "id"} for i in items]
        if [i["type"] for i in items] == ["reasoning"]:
            return
    back = messages(USER, *items)[1]
    assert message_hash.own_hash(back, KEY) == message_hash.own_hash(said, KEY)
    assert back.get("reasoning_content", "") == said.get("reasoning_content", "")
    assert [c["id"] for c in back.get("tool_calls", ())] == [
        c["id"] for c in said.get("tool_calls", ())
    ]


@given(st.lists(turns, min_size=1, max_size=4))
def test_turns_that_follow_each_other_are_told_apart_by_their_ids(
    said: list[dict[str, Any]],
) -> None:
    items = [
        i
        for n, t in enumerate(said)
        for i in output_items(t, ItemIdGenerator(response_id(n)), ORIGINS)
    ]
    back = messages(*items)
    assert [message_hash.own_hash(m, KEY) for m in back] == [
        message_hash.own_hash(m, KEY) for m in said
    ]


def test_calls_and_outputs_in_turn_are_still_one_turn() -> None:
    said = turn("I look.", "", [("f", "{}"), ("f", '{"a": 1}')])
    text, one, two = output_items(said, ItemIdGenerator(response_id(3)), {})
    results = [
        {"type": "function_call_output", "call_id": f"call_{n}", "output": f"r{n}"} for n in (0, 1)
    ]
    back = messages(USER, text, one, results[0], two, results[1])
    assert [m["role"] for m in back] == ["user", "assistant", "tool", "tool"]
    assert len(back[1]["tool_calls"]) == 2


def test_every_kind_of_message() -> None:
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]
    back = messages(
        {"role": "developer", "content": "d"},
        {"type": "message", "role": "user", "content": parts[:1]},
        {"type": "message", "role": "user", "content": parts},
        {
            "role": "assistant",
            "content": [{"type": "output_text", "text": "x"}, {"type": "refusal", "refusal": "y"}],
        },
        {"type": "function_call_output", "call_id": "c", "output": parts},
        {
            "type": "reasoning",
            "summary": [],
            "encrypted_content": "gAAAA",
        },  # another service's: nothing to be read
        {"role": "user", "content": "z"},
    )
    assert [m["content"] for m in back] == [
        "d",
        "a",
        [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
        "xy",
        "ab",
        "z",
    ]


def test_items_of_tools_that_are_not_here_are_passed_over() -> None:
    found, ignored, *_ = read_input(
        [USER, {"type": "web_search_call", "id": "ws_1", "status": "completed"}, USER]
    )
    assert len(found) == 2
    assert ignored == ["input: web_search_call"]


@pytest.mark.parametrize(
    ("kind", "words"), [("function_call", "arguments"), ("custom_tool_call", "input")]
)
def test_a_namespace_that_is_no_string_is_refused(kind: str, words: str) -> None:
    call = {"type": kind, "call_id": "c", "name": "f", words: "{}"}
    assert messages(call | {"namespace": None}) == messages(call)
    with pytest.raises(RequestError, match="namespace: expected a string, got a number"):
        read_input([call | {"namespace": 7}])


def test_what_a_tool_shows_is_told_of_in_words() -> None:
    shown = [
        {"type": "input_text", "text": "a: "},
        {"type": "input_image", "image_url": "x"},
        {"type": "input_file"},
    ]
    (result,) = messages({"type": "function_call_output", "call_id": "c", "output": shown})
    words = {"type": "text", "text": image_placeholder("input_file")}
    image = {"type": "image", "url": "x"}
    assert result["content"] == [{"type": "text", "text": "a: "}, image, words]
    (result,) = messages({"type": "function_call_output", "call_id": "c", "output": shown[::2]})
    assert result["content"] == "a: " + words["text"]
    (message,) = messages({"role": "user", "content": shown[1:2]})
    assert message["content"] == [image]
    with pytest.raises(RequestError, match="got a file; expected text"):
        read_input([{"role": "user", "content": shown}])
    with pytest.raises(
        RequestError, match="got an image; expected text; images are read in user messages"
    ):
        read_input([{"role": "developer", "content": shown[1:2]}])


def test_the_parts_of_a_turn_are_joined_once() -> None:
    """However many there are: 100 000 take no longer than their number."""
    said = {"role": "assistant", "content": "word " * 10}
    thought = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "t"}]}
    (turn,) = messages(*[said, thought] * 100_000)
    assert (len(turn["content"]), turn["reasoning_content"]) == (5_000_000, "t" * 100_000)


@pytest.mark.parametrize(
    ("item", "param"),
    [
        ({"type": "nonsense"}, "input[0].type"),
        ({"type": ["x"]}, "input[0].type"),
        ({"role": "robot", "content": "x"}, "input[0].role"),
        ({"role": ["user"], "content": "x"}, "input[0].role"),
        ({"role": "user"}, "input[0].content"),
        ({"role": "user", "content": [{"type": "input_audio"}]}, "input[0].content[0]"),
        ({"role": "user", "content": [{"type": "input_text"}]}, "input[0].content[0].text"),
        ({"role": "user", "content": [None]}, "input[0].content[0]"),
        ({"type": "function_call", "call_id": "c", "arguments": "{}"}, "input[0].name"),
        ({"type": "function_call", "name": "f", "arguments": "{}"}, "input[0].call_id"),
        (
            {"type": "function_call", "name": "f", "call_id": "c", "arguments": {}},
            "input[0].arguments",
        ),
        ({"type": "function_call_output", "output": "x"}, "input[0].call_id"),
        ({"type": "function_call_output", "call_id": "c"}, "input[0].output"),
        ({"type": "local_shell_call", "call_id": "c"}, "input[0].action"),
        ({"type": "item_reference", "id": "msg_1"}, "input[0].id"),
        ({}, "input[0].id"),
        ({"type": "compaction", "encrypted_content": "x"}, "input[0].type"),
    ],
)
def test_what_cannot_be_read_is_named(item: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        read_input([item])
    assert (caught.value.param, caught.value.status) == (param, 400)


@given(st.text())
def test_what_is_sealed_can_be_opened(text: str) -> None:
    assert decode_reasoning(encode_reasoning(text)) == text
    assert decode_reasoning(text) == ""
    assert decode_reasoning("openclaw1." + text) is not None


@given(st.lists(st.tuples(st.text(min_size=1, max_size=4), st.booleans()), min_size=1, max_size=8))
def test_tokens_go_with_their_words(pieces: list[tuple[str, bool]]) -> None:
    """Words and tags in turn, cut into single bytes: each word gets its own bytes back, tags are skipped."""
    tokens = PendingTokens()
    for number, (word, tag) in enumerate(pieces):
        text = f"\x01{number}\x02" if tag else f"\x03{number}{word}\x04"
        tokens.add([TokenInfo(text="?", utf8_bytes=[b], logprob=-1.0) for b in text.encode()])
    for number, (word, tag) in enumerate(pieces):
        if not tag:
            text = f"\x03{number}{word}\x04"
            assert (
                bytes(b for t in tokens.take_for_text(text) for b in t.utf8_bytes) == text.encode()
            )


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)
KEYS = [
    "input", "instructions", "tools", "tool_choice", "text", "reasoning", "include", "stream", "temperature", "top_p",
    "previous_response_id", "metadata", "max_output_tokens", "top_logprobs", "conversation", "truncation", "background",
]  # fmt: skip
ITEM = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(
            ["message", "reasoning", "function_call", "function_call_output", "custom_tool_call", "local_shell_call",
             "item_reference", "web_search_call", "x"]
        ),
        "role": st.sampled_from(["user", "assistant", "tool"]),
        "id": st.sampled_from(["msg_" + "0" * 30, "rs_1", ""]) | json_values,
        **dict.fromkeys(("content", "name", "call_id", "arguments", "output", "input", "action"), json_values),
    },
)  # fmt: skip
TOOL = st.fixed_dictionaries(
    {
        "type": st.sampled_from(["function", "custom", "namespace", "local_shell", "web_search"])
        | json_values
    },
    optional=dict.fromkeys(
        ("name", "description", "parameters", "format", "tools", "strict"), json_values
    ),
)
bodies = st.fixed_dictionaries(
    {},
    optional=dict.fromkeys(KEYS, json_values)
    | {"input": st.text() | st.lists(ITEM, max_size=4), "tools": st.lists(TOOL, max_size=3)},
)


@given(bodies)
def test_any_body_is_read_or_refused_with_reason(body: dict[str, Any]) -> None:
    try:
        ask = ResponsesDialect().decode(json.dumps(body).encode(), {})
    except RequestError:
        return
    assert len(ask.raw) == len(ask.messages) > 0


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    with pytest.raises(RequestError):
        ResponsesDialect().decode(body, {})
