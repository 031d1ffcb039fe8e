"""Long replies in small pieces are read in linear time, also those that no model writes unless it is led to."""

from __future__ import annotations

import json
import random

import pytest
from tests.growth import check_linear_growth
from tests.render.test_derived_calls import DERIVED, FOLDER, call, family_of, render_with
from tests.render.test_derived_calls import TOOLS as DERIVED_TOOLS
from tests.render.test_malformed_calls import FAMILIES
from tests.render.test_malformed_corpus import SIZES, malformed_calls, parse

from openclaw_rl.render.derived_format import TemplateSamples
from openclaw_rl.render.families import ModelFamily

SIZE = 40_000
DEEPSEEK = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_time<｜tool▁sep｜>"
HARMONY = "<|channel|>commentary to=functions.get_time <|constrain|>json<|message|>"
TEXTS: dict[str, tuple[str, str, str]] = {
    "hermes string": ("hermes", '<tool_call>\n{"name": "get_time", "arguments": {"city": "', "x"),
    "hermes closing tags in a string": (
        "hermes",
        '<tool_call>\n{"name": "get_time", "arguments": {"city": "',
        "</tool_call>",
    ),
    "hermes brackets": ("hermes", "<tool_call>", "<"),
    "hermes opening tags": ("hermes", "<tool_call>", "<tool_call> "),
    "white space": ("hermes", "word", " "),
    "xml value": ("qwen-xml", "<tool_call>\n<function=get_time>\n<parameter=city>\n", "x"),
    "xml closing tags in a value": (
        "qwen-xml",
        "<tool_call>\n<function=get_time>\n<parameter=city>\n",
        "</tool_call>",
    ),
    "xml brackets": ("qwen-xml", "<tool_call>", "<"),
    "llama string": ("llama", '{"name": "get_time", "parameters": {"city": "', "x"),
    "llama separators": ("llama", '{"name": "get_time", "parameters": {"city": "a"}}', ", "),
    "mistral string": ("mistral", '[TOOL_CALLS]get_time[ARGS]{"city": "', "x"),
    "mistral quoted": ("mistral", '[TOOL_CALLS]get_time[ARGS]"', "x"),
    "mistral quoted escapes": ("mistral", '[TOOL_CALLS]get_time[ARGS]"', '\\"'),
    "mistral quoted backslashes": ("mistral", '[TOOL_CALLS]get_time[ARGS]"', "\\"),
    "mistral space before a fence": (
        "mistral",
        '[TOOL_CALLS]get_time[ARGS]```json\n{"city": "a"}\n',
        " ",
    ),
    "mistral head": ("mistral", "[TOOL_CALLS]get_time[ARGS]", " "),
    "deepseek string": ("deepseek", DEEPSEEK + '{"city": "', "x"),
    "deepseek ends": ("deepseek", DEEPSEEK + '{"city": "', "<｜tool▁call▁end｜>"),
    "deepseek brackets": ("deepseek", DEEPSEEK, "<"),
    "harmony string": ("harmony", HARMONY + '{"city": "', "x"),
    "harmony brackets": ("harmony", HARMONY, "<"),
}
"""Name -> family, beginning of a reply, and what is repeated behind it."""


def check_reading(family: ModelFamily, beginning: str, unit: str, piece: int) -> None:
    def read(text: str) -> None:
        parser = family.new_parser(thinking=False, tools=DERIVED_TOOLS)
        for start in range(0, len(text), piece):
            parser.push(text[start : start + piece])
        parser.finish()

    check_linear_growth(read, lambda size: beginning + unit * (size // len(unit)), SIZE)


@pytest.mark.parametrize("piece", [1, 4])
@pytest.mark.parametrize("name", TEXTS)
def test_a_long_reply_is_read_in_linear_time(name: str, piece: int) -> None:
    family, beginning, unit = TEXTS[name]
    check_reading(FAMILIES[family], beginning, unit, piece)


@pytest.mark.parametrize("piece", [1, 4])
@pytest.mark.parametrize("unit", ["x", " ", "<"])
@pytest.mark.parametrize("name", DERIVED)
def test_a_long_call_of_a_derived_format_is_read_in_linear_time(
    name: str, unit: str, piece: int
) -> None:
    render = render_with((FOLDER / f"{name}.jinja").read_text(encoding="utf-8"))
    family = family_of((FOLDER / f"{name}.jinja").read_text(encoding="utf-8"), render)
    one = call(0, "get_time", {"city": "kXq9"})
    result = {"role": "tool", "content": "r", "tool_call_id": one["id"], "name": "get_time"}
    reply = {"role": "assistant", "content": "", "tool_calls": [one]}
    text = TemplateSamples(render).of_reply(reply, [result])
    assert text is not None
    check_reading(family, text.partition("kXq9")[0], unit, piece)


def test_a_quoted_call_is_the_same_in_all_pieces() -> None:
    arguments = {"cmd": 'a "b" \\ c\\\\"', "n": 3}
    text = f"[TOOL_CALLS]run_it[ARGS]{json.dumps(json.dumps(arguments))}"
    for ending in ("", " ", "[TOOL_CALLS]look.up[ARGS]{}"):
        for size in (1, 2, 3, 4, 7, 10**6):
            calls = parse(FAMILIES["mistral"], text + ending, size).calls
            assert json.loads(calls[0].arguments) == arguments, size
            assert len(calls) == 1 + ending.startswith("["), size


def test_what_follows_a_fenced_call_is_the_same_in_all_pieces() -> None:
    call_text = '[TOOL_CALLS]run_it[ARGS]```json\n{"cmd": "a"}\n'
    for ending, content in (("```", ""), ("  ```", ""), ("", ""), ("so ``` it is", "so ``` it is")):
        for size in (1, 2, 4, 10**6):
            parser = parse(FAMILIES["mistral"], call_text + ending, size)
            assert [json.loads(one.arguments) for one in parser.calls] == [{"cmd": "a"}], ending
            assert parser.content.strip() == content, (ending, size)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_call_behind_a_broken_one_is_the_same_in_all_pieces(name: str) -> None:
    """Nothing that was kept of the broken call is taken for a part of the next one."""
    calls = list(malformed_calls(name, random.Random(5)))
    for broken in calls[::3]:
        text = broken.text[: len(broken.text) * 2 // 3] + "\n" + calls[0].text
        read = [
            [(one.name, json.loads(one.arguments)) for one in parse(FAMILIES[name], text, n).calls]
            for n in SIZES
        ]
        assert all(one == read[-1] for one in read), text


def test_an_unclosed_call_with_a_closing_tag_in_a_string_is_the_same_in_all_pieces() -> None:
    first = '<tool_call>{"name": "run_it", "arguments": {"cmd": "a </tool_call> b"}}\n'
    second = '<tool_call>{"name": "look.up", "arguments": {"cmd": "c"}}\n</tool_call>'
    for size in (1, 2, 4, 10**6):
        calls = parse(FAMILIES["hermes"], first + second, size).calls
        assert [one.name for one in calls] == ["run_it", "look.up"], size
