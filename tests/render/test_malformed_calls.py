"""Calls as models really write them are read as they were meant, and nothing else becomes a call."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from openclaw_rl.render.families import (
    DeepSeekFamily,
    HarmonyFamily,
    HermesFamily,
    LlamaFamily,
    MistralFamily,
    ModelFamily,
    QwenXmlFamily,
)
from openclaw_rl.render.lenient_json import read_value, read_values
from openclaw_rl.render.reply_parser import ReplyParser

FAMILIES: dict[str, ModelFamily] = {
    family.name: family
    for family in (
        HermesFamily(),
        QwenXmlFamily(),
        LlamaFamily(),
        MistralFamily(),
        DeepSeekFamily(),
        HarmonyFamily(),
    )
}
CASES = yaml.safe_load(Path(__file__).with_name("malformed_calls.yaml").read_text())
ROWS = [(format_, row) for format_, rows in CASES.items() for row in rows]
PARAMETERS = {
    "type": "object",
    "$defs": {"Count": {"type": "integer"}},
    "properties": {
        "cmd": {"type": "string"},
        "n": {"type": "integer"},
        "r": {"$ref": "#/$defs/Count"},
        "c": {"const": 3},
        "l": {"type": "array"},
        "o": {"type": "object"},
        "a": {},
        "b": {},
    },
}
TOOLS = [{"type": "function", "function": {"name": "run", "parameters": PARAMETERS}}]


def parse(format_: str, text: str, *, size: int | None = None, is_cut: bool = False) -> ReplyParser:
    parser = FAMILIES[format_].new_parser(thinking=False, tools=TOOLS)
    step = size or len(text) or 1
    for start in range(0, len(text), step):
        parser.push(text[start : start + step])
    parser.finish(is_cut=is_cut)
    return parser


@pytest.mark.parametrize("size", [1, 7, None])
@pytest.mark.parametrize(("format_", "row"), ROWS, ids=[f"{f}: {r['is']}" for f, r in ROWS])
def test_a_whole_call_is_read(format_: str, row: dict[str, Any], size: int | None) -> None:
    parser = parse(format_, row["text"], size=size)
    read = [(call.name, json.loads(call.arguments)) for call in parser.calls]
    assert read == [("run", row.get("reads", {"cmd": "ls"}))] * row.get("count", 1)
    assert parser.content == "", "a client would take it for the answer"


@pytest.mark.parametrize(
    ("format_", "text"),
    [
        ("hermes", '<tool_call>\n{"name": "run", "arguments": {"cmd": "rm -rf /tm'),
        ("hermes", '<tool_call>\n{"name": "run", "arguments": {"cmd": "ls"}'),
        ("hermes", '<tool_call>\n{"name": "run"'),
        ("qwen-xml", "<tool_call>\n<function=run>\n<parameter=cmd>\nrm -rf /tm"),
        ("llama", '{"name": "run", "parameters": {"cmd": "ls"}'),
        ("mistral", '[TOOL_CALLS]run[ARGS]{"cmd": "ls"'),
        ("deepseek", '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>run<｜tool▁sep｜>{"cmd": "ls"}'),
    ],
)
def test_what_a_limit_cut_off_is_not_completed(format_: str, text: str) -> None:
    assert parse(format_, text, is_cut=True).calls == []


@pytest.mark.parametrize(
    ("format_", "text"),
    [
        # Of functions that nobody declared, only what is written as the model was taught is a call.
        ("hermes", '<tool_call>\n{"name": "walk"}\n</tool_call>'),
        ("hermes", "<tool_call>\n{'name': 'walk', 'arguments': {}}\n</tool_call>"),
        ("llama", '{"name": "Bob"}'),
        ("llama", '{"name": "Bob", "age": 3,}'),
        # Other keys may be meant as arguments.
        ("hermes", '<tool_call>\n{"name": "run", "cmd": "ls"}\n</tool_call>'),
        ("hermes", '<tool_call>\n{"name": "run", "arguments": [1]}\n</tool_call>'),
        ("hermes", '<tool_call>\n{"name": "run", "arguments": ls}\n</tool_call>'),
        ("hermes", '<tool_call>\n{"name": "run", "arguments": {"cmd": "ls}}\n</tool_call>'),
        ("hermes", '<tool_call>\n{"name": "run", "arguments": {"n": NaN}}\n</tool_call>'),
        ("hermes", "<tool_call> is the tag that begins a call."),
        ("hermes", 'Write {"name": "run", "arguments": {"cmd": "ls"}} to list.'),
        ("hermes", '<think>\n<tool_call>{"name": "run"}</tool_call>\nNo, better not.'),
        ("qwen-xml", "<function=run> begins a call of run."),
        ("qwen-xml", "<tool_call>\n<function=run>\nls\n</function>\n</tool_call>"),
        ("qwen-xml", "<tool_call>\n<function=>\n</function>\n</tool_call>"),
        ("mistral", "[TOOL_CALLS] is a token."),
        ("mistral", '[TOOL_CALLS]run[ARGS]["ls"]'),
        ("deepseek", "<｜tool▁calls▁begin｜>run"),
        ("harmony", "<|channel|>commentary to=functions.run<|message|>ls<|call|>"),
    ],
)
def test_what_only_looks_like_a_call_is_none(format_: str, text: str) -> None:
    for size in (1, None):
        assert parse(format_, text, size=size).calls == []


def test_a_call_that_text_follows_without_a_closing_tag_is_read() -> None:
    text = '<tool_call>\n{"name": "run", "arguments": {"cmd": "ls"}}\nI wait.'
    parser = parse("hermes", text)
    assert [call.name for call in parser.calls] == ["run"]
    assert parser.content.strip() == "I wait."


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ('{"a": 1}', [{"a": 1}]),
        ("[1, +2, -3.5e2,]", [[1, 2, -350.0]]),
        ("{a: 1}", [{"a": 1}]),
        ("{'a': 'it\\'s \"b\"'}", [{"a": 'it\'s "b"'}]),
        ('{"a": 1}\n{"b": 2}', [{"a": 1}, {"b": 2}]),
        ('{"a": 1}}] ;', [{"a": 1}]),
        ("{a: b}", None),
        ('{"a": 1} and more', None),
        ('{"a": 1]', None),
        ('{"a": "\\ud800"}', None),
        ("", None),
        ("1", None),
    ],
)
def test_values_that_are_not_quite_json(text: str, values: list[Any] | None) -> None:
    assert read_values(text) == values


def test_missing_brackets_are_added_only_where_asked() -> None:
    assert read_value('{"a": [1, {"b": 2', may_complete=False) is None
    completed = read_value('{"a": [1, {"b": 2', may_complete=True)
    assert completed is not None
    assert completed.value == {"a": [1, {"b": 2}]}
    for unclear in ('{"a": "x', '{"a":', '{"a": [1}'):
        assert read_value(unclear, may_complete=True) is None
