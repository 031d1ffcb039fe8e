"""Detokenising and parsing: whatever the tokens are, the deltas joined are the final message."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.growth import check_linear_growth

from openclaw_rl.render.call_body import parse_call
from openclaw_rl.render.detokenizer import WindowStream
from openclaw_rl.render.families import HermesFamily
from openclaw_rl.render.renderer import Renderer
from openclaw_rl.render.reply_parser import Delta, ReplyDecoder, ReplyParser, partial_match_length
from openclaw_rl.render.tool_calls import (
    DS_CALL,
    DS_CALLS,
    DS_END_CALLS,
    DS_SEP,
    CallReader,
    DeepSeekCallReader,
    MistralCallReader,
)
from openclaw_rl.render.tool_calls_xml import XmlCallReader

Renderers = Callable[[str], Renderer]
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": "</think> \\u00e9"}}\n</tool_call>'


def fed(
    text: str, cuts: list[int], *, thinking: bool = False, tools: bool = True
) -> tuple[ReplyParser, list[Delta]]:
    parser = HermesFamily().new_parser(thinking=thinking, tools=[{}] if tools else [])
    places = sorted({min(c, len(text)) for c in cuts} | {0, len(text)})
    deltas = [parser.push(text[a:b]) for a, b in itertools.pairwise(places)]
    return parser, [*deltas, parser.finish()]


def joined(deltas: list[Delta]) -> tuple[str, str, list[tuple[str, str]]]:
    calls = [(c.name, c.arguments) for d in deltas for c in d.calls]
    return "".join(d.content for d in deltas), "".join(d.reasoning for d in deltas), calls


TAGS = st.sampled_from(
    [
        "<think>",
        "</think>",
        "<tool_call>",
        "</tool_call>",
        "<",
        "</",
        "\n",
        " ",
        CALL,
        '{"name": "f"}',
    ]
)
OUTPUT = st.lists(TAGS | st.text(max_size=5), max_size=12).map("".join)


@given(
    text=OUTPUT,
    cuts=st.lists(st.integers(0, 80), max_size=8),
    thinking=st.booleans(),
    tools=st.booleans(),
)
@settings(max_examples=400, deadline=None)
def test_deltas_do_not_depend_on_how_the_text_arrives(
    text: str, cuts: list[int], thinking: bool, tools: bool
) -> None:
    parser, deltas = fed(text, cuts, thinking=thinking, tools=tools)
    content, reasoning, calls = joined(deltas)
    assert (content, reasoning) == (parser.content, parser.reasoning)
    assert calls == [(c.name, c.arguments) for c in parser.calls]
    assert (content, reasoning, calls) == joined(fed(text, [], thinking=thinking, tools=tools)[1])
    if not thinking and not tools and not text.lstrip().startswith("<think>"):
        assert content == text


@pytest.mark.parametrize(
    ("text", "thinking", "expected"),
    [
        ("Hello. ", False, ("Hello. ", "", 0)),
        ("<think>\nHm.\n</think>\n\nYes.", False, ("Yes.", "Hm.", 0)),
        ("\n<think>Hm.</think>Yes.", False, ("Yes.", "Hm.", 0)),
        ("Hm.\n</think>\nYes.", True, ("Yes.", "Hm.", 0)),
        ("Never ends", True, ("", "Never ends", 0)),
        ("It says <think> here", False, ("It says <think> here", "", 0)),
        (f"Look.\n{CALL}\n{CALL}\n", False, ("Look.", "", 2)),
        (f"Hm.</think>\n\n{CALL}", True, ("", "Hm.", 1)),
        ("<tool_call>{}</tool_call>!", False, ("<tool_call>{}</tool_call>!", "", 0)),
        ("a <tool_call>\n{", False, ("a <tool_call>\n{", "", 0)),
        ("a <tool", False, ("a <tool", "", 0)),
        ("<thi", False, ("<thi", "", 0)),
        ("  ", False, ("  ", "", 0)),
    ],
)
def test_replies_are_parsed_into_messages(
    text: str, thinking: bool, expected: tuple[str, str, int]
) -> None:
    for cuts in ([], list(range(len(text)))):
        content, reasoning, calls = joined(fed(text, cuts, thinking=thinking)[1])
        assert (content, reasoning, len(calls)) == expected


def test_the_message_for_clients_is_complete() -> None:
    parser, _ = fed(f"Hm.</think>{CALL}", [], thinking=True)
    message = parser.to_message()
    assert message["content"] is None
    assert message["reasoning_content"] == "Hm."
    assert json.loads(message["tool_calls"][0]["function"]["arguments"]) == {"a": "</think> é"}


MALFORMED = [
    "",
    "{}",
    "[]",
    "NaN",
    '{"name": "f"}',
    '{"name": "", "arguments": {}}',
    '{"name": 1, "arguments": {}}',
    '{"name": "f", "arguments": [1]}',
    '{"name": "f", "arguments": {}} x',
    '{"name": "f", "arguments": "no json"}',
    '{"name": "f", "arguments": ' + '{"a":' * 3000 + "1" + "}" * 3001,
]


@pytest.mark.parametrize("body", MALFORMED, ids=range(len(MALFORMED)))
def test_a_malformed_call_is_none(body: str) -> None:
    assert parse_call(body) is None


def test_quoted_arguments_are_unquoted() -> None:
    call = parse_call('{"name": "f", "arguments": "{\\"a\\": 1}", "more": 1}')
    assert call is not None
    assert call.arguments == '{"a": 1}'


@given(text=st.text("ab<", max_size=8), tag=st.text("ab<", min_size=1, max_size=5))
@settings(max_examples=200, deadline=None)
def test_text_that_could_become_a_tag_is_held_back(text: str, tag: str) -> None:
    n = partial_match_length(text, [tag])
    assert tag.startswith(text[len(text) - n :])
    assert n < len(tag)
    assert all(not tag.startswith(text[-m:]) for m in range(n + 1, min(len(tag), len(text) + 1)))


# Tokens.


def reply(
    r: Renderer, ids: list[int], sizes: list[int], *, stops: tuple[str, ...] = ()
) -> tuple[ReplyDecoder, str]:
    text = r.new_reply_decoder(thinking=False, tools=(), stops=stops)
    out, at = "", 0
    for size in [*sizes, len(ids)]:
        out += text.push(ids[at : at + size]).content
        at += size
    return text, out + text.finish().content


@given(data=st.data(), sizes=st.lists(st.integers(0, 5), max_size=10))
@settings(max_examples=200, deadline=None)
def test_any_tokens_decode_like_the_tokenizer(
    data: st.DataObject, sizes: list[int], renderer: Renderers
) -> None:
    r = renderer("chatml")
    ids = data.draw(st.lists(st.integers(0, r.vocabulary_size - 1), max_size=20))
    text, out = reply(r, ids, sizes)
    plain = str(r.tokenizer.backend.decode(ids, skip_special_tokens=True))
    assert text.parser.content == out
    if "<think>" not in plain:
        assert out == plain
    window = WindowStream(r.detokenizer)
    at, slow = 0, ""
    for size in [*sizes, len(ids)]:
        slow += window.push(ids[at : at + size])
        at += size
    assert slow + window.flush() == plain


@given(
    words=st.text("abé😀 ", max_size=20),
    stops=st.lists(st.text("abé😀 ", min_size=1, max_size=3), min_size=1, max_size=3),
    sizes=st.lists(st.integers(0, 5), max_size=10),
)
@settings(max_examples=200, deadline=None)
def test_stop_strings(words: str, stops: list[str], sizes: list[int], renderer: Renderers) -> None:
    r = renderer("chatml")
    ids = r.tokenizer.encode(words).tolist()
    text, out = reply(r, ids, sizes, stops=tuple(stops))
    if not any(s in words for s in stops):
        assert (out, text.tokens_to_keep, text.shown_tokens) == (words, None, len(ids))
        return
    shown = [
        text.token_count and len(str(r.tokenizer.backend.decode(ids[:n])))
        for n in range(text.shown_tokens + 1)
    ]
    assert shown[-1] >= len(out)
    assert (text.shown_tokens == 0) == (not out)
    assert not any(s in out for s in stops)
    assert words.startswith(out)
    assert text.tokens_to_keep is not None
    assert any(words[len(out) :].startswith(s) for s in stops)
    upto = str(r.tokenizer.backend.decode(ids[: text.tokens_to_keep]))
    assert any(s in upto for s in stops)
    before = str(r.tokenizer.backend.decode(ids[: text.tokens_to_keep - 1]))
    assert not any(s in before for s in stops)


def test_an_incomplete_character_is_held_back(renderer: Renderers) -> None:
    r = renderer("chatml")
    ids = r.tokenizer.encode("😀").tolist()
    assert len(ids) == 4
    text = r.new_reply_decoder(thinking=False, tools=())
    assert [text.push([i]).content for i in ids] == ["", "", "", "😀"]
    cut = r.new_reply_decoder(thinking=False, tools=())
    cut.push(ids[:2])
    assert cut.finish().content == "\ufffd"


def test_tokens_have_texts_for_logprobs(renderer: Renderers) -> None:
    r = renderer("chatml")
    ids = r.tokenizer.encode("é is").tolist()
    assert b"".join(bytes(r.detokenizer.decode_token(i)[1]) for i in ids).decode() == "é is"


@pytest.mark.parametrize(
    ("reader", "text"),
    [
        (MistralCallReader(), lambda size: "[TOOL_CALLS]x" + "[CALL_ID] " + " " * size + "!{}"),
        (
            DeepSeekCallReader(),
            lambda size: f"{DS_CALLS}{DS_CALL}" + DS_SEP * (size // 4) + DS_END_CALLS,
        ),
        (
            XmlCallReader(()),
            lambda size: (
                f"<tool_call><function=f><parameter=x>{' ' * size}y</parameter></function></tool_call>"
            ),
        ),
        (
            XmlCallReader(()),
            lambda size: "<function=f>" + "\n<parameter=x>\n" * (size // 10) + "</function>",
        ),
    ],
    ids=["mistral", "deepseek", "xml spaces", "xml parameters"],
)
def test_a_hostile_tool_call_is_parsed_in_linear_time(
    reader: CallReader, text: Callable[[int], str]
) -> None:
    check_linear_growth(reader.read, text, 20_000)
