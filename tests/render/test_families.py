"""The families' parsers on real templates: what a template writes for a reply is read back as the same reply."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.render.trl_templates import KINDS, LLAMA
from transformers import AutoTokenizer

from openclaw_rl.errors import RequestError
from openclaw_rl.render.families import HermesFamily, detect_family, short_call_id
from openclaw_rl.render.renderer import Renderer
from openclaw_rl.render.reply_parser import Delta
from openclaw_rl.render.value_types import allowed_types, convert_value

Renderers = Callable[..., Renderer]
PROPERTIES = {"city": {"type": "string"}, "days": {"type": "integer"}, "more": {"type": "object"}}
PARAMETERS = {"type": "object", "properties": PROPERTIES}
TOOLS = [
    {
        "type": "function",
        "function": {"name": name, "description": "Tells it.", "parameters": PARAMETERS},
    }
    for name in ("get_weather", "get_time")
]


def call(number: int, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": f"callabc1{number}",
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


ONE = call(1, "get_weather", {"city": 'Pa"r}is é\n{x}', "days": 3, "more": {"a": [1, "</b>"]}})
TWO = call(2, "get_time", {"city": "12"})
USER = {"role": "user", "content": "How is it?"}
REPLIES: dict[str, dict[str, Any]] = {
    "words": {"role": "assistant", "content": "It is fine.\n\nReally [so] <b>fine</b>."},
    "thought": {"role": "assistant", "content": "Fine.", "reasoning_content": "Let me see.\nHm."},
    "call": {"role": "assistant", "content": "", "tool_calls": [ONE]},
    "words and call": {"role": "assistant", "content": "I look.", "tool_calls": [ONE]},
    "thought and call": {
        "role": "assistant",
        "content": "",
        "reasoning_content": "Hm.",
        "tool_calls": [ONE],
    },
    "calls": {"role": "assistant", "content": "", "tool_calls": [ONE, TWO]},
}
RESULTS = {
    n: {"role": "tool", "tool_call_id": f"callabc1{n}", "content": f"{n} degrees"} for n in (1, 2)
}
NEVER_WRITTEN = {  # what a family's template refuses, or leaves out
    "llama": {"words and call", "calls", "thought", "thought and call"},
    "harmony": {"words and call", "calls"},
    "deepseek": {"thought", "thought and call"},
    "mistral_array": {"words and call", "thought", "thought and call"},
    "qwen3_5_nothink": {"thought", "thought and call"},
    "qwen2_5": {"thought", "thought and call"},
    "qwen3_instruct_2507": {"thought", "thought and call"},
}


def shapes(kind: str) -> list[str]:
    unwritten = NEVER_WRITTEN.get(kind) or NEVER_WRITTEN.get(KINDS[kind].family, set())
    return [shape for shape in REPLIES if shape not in unwritten]


CASES = [(kind, shape) for kind in KINDS for shape in shapes(kind)]


def written(r: Renderer, reply: dict[str, Any]) -> str:
    """What the template writes for a reply, as a model would say it after the prompt, stop token included."""
    opening, whole = r.text([USER], TOOLS), r.text([USER, reply], TOOLS, generation=False)
    if whole.startswith(opening):
        return whole[len(opening) :]
    closed = r.text(
        [USER], TOOLS, generation=False
    )  # the prompt opens reasoning that this template never writes
    header = opening[len(closed) :].replace("<think>\n", "")
    assert whole.startswith(closed + header)
    return "Hm.\n</think>\n\n" + whole[len(closed + header) :]


def read(
    r: Renderer, said: str, *, size: int = 1, tools: Any = TOOLS
) -> tuple[dict[str, Any], list[Delta]]:
    ids = r.tokenizer.encode(said).tolist()
    stop = next((n + 1 for n, i in enumerate(ids) if i in r.stop_token_ids), len(ids))
    text = r.new_reply_decoder(thinking=r.render([USER], tools).thinking, tools=tools)
    deltas = [text.push(ids[n : min(n + size, stop)]) for n in range(0, stop, size)]
    deltas.append(text.finish())
    return text.parser.to_message(), deltas


@pytest.mark.parametrize("kind", KINDS)
def test_the_family_is_chosen_by_the_template(kind: str, renderer: Renderers) -> None:
    assert renderer(kind).family.name == KINDS[kind].family


@pytest.mark.parametrize(("kind", "shape"), CASES)
def test_rendered_replies_are_parsed_back(kind: str, shape: str, renderer: Renderers) -> None:
    r, reply = renderer(kind), REPLIES[shape]
    for size in (1, 3, 1000):
        message, _ = read(r, written(r, reply), size=size)
        assert (message["content"] or "") == reply["content"]
        wanted = "Hm." if KINDS[kind].family == "deepseek" else reply.get("reasoning_content")
        assert message.get("reasoning_content") == wanted
        made = [
            (c["function"]["name"], json.loads(c["function"]["arguments"]))
            for c in message.get("tool_calls", ())
        ]
        assert made == [
            (c["function"]["name"], c["function"]["arguments"]) for c in reply.get("tool_calls", ())
        ]


CONVERSATIONS: list[list[dict[str, Any]]] = [
    [USER],
    [USER, REPLIES["words"], USER],
    [{"role": "system", "content": "Be kind."}, USER, REPLIES["thought"], USER],
    [USER, REPLIES["call"], RESULTS[1]],
    [USER, REPLIES["thought and call"], RESULTS[1], REPLIES["words"], USER],
    [USER, REPLIES["calls"], RESULTS[1], RESULTS[2]],
]


@pytest.mark.parametrize("kind", KINDS)
def test_prompts_equal_transformers(
    kind: str, renderer: Renderers, folder: Callable[[str], Path]
) -> None:
    r, theirs = renderer(kind), AutoTokenizer.from_pretrained(str(folder(kind)))
    for messages, tools in itertools.product(CONVERSATIONS, ([], TOOLS)):
        try:
            ours = r.tokenize(r.text(messages, tools))
        except RequestError:
            continue  # two calls at once, with Llama
        ready = [
            (m := r.prepare_message(message)) | {"content": m["content"] or ""}
            for message in messages
        ]
        ids = theirs.apply_chat_template(
            ready, tools=tools or None, add_generation_prompt=True, return_dict=False
        )
        assert ours.prompt_ids.tolist() == list(ids)


@pytest.mark.parametrize("kind", KINDS)
def test_a_forced_call_is_read(kind: str, renderer: Renderers) -> None:
    r = renderer(kind)
    form = r.call_form("get_weather")
    if KINDS[kind].family == "qwen-xml":
        assert form is None
        return
    assert form is not None
    before = "Hm.</think>" if r.render([USER], TOOLS).thinking else ""
    message, _ = read(r, f'{before}{form.before}{{"city": "Rome"}}{form.after}')
    assert [c["function"] for c in message["tool_calls"]] == [
        {"name": "get_weather", "arguments": '{"city": "Rome"}'}
    ]
    assert not message["content"]


@pytest.mark.parametrize("kind", KINDS)
def test_call_ids_are_accepted_by_the_template_again(kind: str, renderer: Renderers) -> None:
    r = renderer(kind)
    message, _ = read(r, written(r, REPLIES["call"]))
    result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "21"}
    assert "21" in r.text([USER, message, result], TOOLS)
    other = {"role": "tool", "tool_call_id": "call_of_another_model", "content": "21"}
    foreign = {
        **message,
        "tool_calls": [{**message["tool_calls"][0], "id": "call_of_another_model"}],
    }
    assert "21" in r.text([USER, foreign, other], TOOLS)


def test_mistral_call_ids_have_nine_characters() -> None:
    assert short_call_id("abcDEF123") == "abcDEF123"
    assert short_call_id("call_1") == short_call_id("call_1") != short_call_id("call_2")
    assert len(short_call_id("call_1")) == 9


# Text, in pieces of any size.

FRAGMENTS = {
    "hermes": [
        "<tool_call>",
        "</tool_call>",
        '{"name": "f", "arguments": {"a": "</tool_call>"}}',
        "<think>",
        "</think>",
    ],
    "qwen-xml": [
        *(
            "<tool_call>",
            "</tool_call>",
            "<function=f>",
            "</function>",
            "<parameter=a>",
            "</parameter>",
            "</think>",
        ),
        "<tool_call>\n<function=get_time>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>",
    ],
    "llama": ["<|python_tag|>", '{"name": "f", "parameters": {"a": "}"}}', "{", "}", ";", '"'],
    "mistral": [
        *(
            "[TOOL_CALLS]",
            "[ARGS]",
            'f[ARGS]{"a": "]"}',
            '[{"name": "f", "arguments": {}}]',
            "[",
            "{",
            "}",
        ),
        *("[THINK]", "[/THINK]"),
    ],
    "deepseek": [
        *(KINDS["deepseekv3"].specials[4:9]),
        *("</think>", "function", 'f\n```json\n{"a": 1}\n```', "\n"),
    ],
    "harmony": [
        *(
            "<|start|>assistant",
            "<|channel|>analysis",
            "<|channel|>final",
            "<|channel|>commentary",
            "<|message|>",
        ),
        *(" to=functions.f", " <|constrain|>json", '{"a": 1}', "<|end|>", "<|call|>", "to="),
        '<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}<|call|>',
    ],
}
FAMILIES = {KINDS[kind].family: kind for kind in KINDS}


@given(
    data=st.data(),
    thinking=st.booleans(),
    tools=st.booleans(),
    cuts=st.lists(st.integers(0, 200), max_size=9),
)
@settings(max_examples=300, deadline=None)
def test_deltas_do_not_depend_on_how_the_text_arrives(
    data: st.DataObject, thinking: bool, tools: bool, cuts: list[int], renderer: Renderers
) -> None:
    name = data.draw(st.sampled_from(sorted(FAMILIES)))
    piece = st.sampled_from([*FRAGMENTS[name], " ", "\n", "a", "<", "["]) | st.text(max_size=4)
    said = "".join(data.draw(st.lists(piece, max_size=12)))
    family = renderer(FAMILIES[name]).family
    parts, whole = (
        family.new_parser(thinking=thinking, tools=TOOLS if tools else ()) for _ in range(2)
    )
    places = sorted({min(c, len(said)) for c in cuts} | {0, len(said)})
    deltas = [parts.push(said[a:b]) for a, b in itertools.pairwise(places)] + [parts.finish()]
    all_at_once = whole.push(said).merge_with(whole.finish())
    for parser in (parts, whole):
        assert parser.content == "".join(d.content for d in deltas) == all_at_once.content
        assert parser.reasoning == "".join(d.reasoning for d in deltas) == all_at_once.reasoning
        assert [c[1:] for c in parser.calls] == [c[1:] for d in deltas for c in d.calls]
        assert all(isinstance(json.loads(c.arguments), dict) and c.name for c in parser.calls)
    assert [c[1:] for c in parts.calls] == [c[1:] for c in whole.calls]
    assert not parts.calls or tools
    if name == "harmony" or tools:
        hidden = family.kept_tokens(tools=tools) - {
            "<tool_call>",
            "</tool_call>",
            "<think>",
            "</think>",
        }
        assert not [t for t in hidden if t in parts.content and name != "deepseek"]


def test_a_mark_within_what_is_no_call_is_dropped(renderer: Renderers) -> None:
    family = renderer(FAMILIES["llama"]).family
    for said, content in (("{<|python_tag|>}", "{}"), ('{"a": <|python_tag|>1} b', '{"a": 1} b')):
        parser = family.new_parser(thinking=False, tools=TOOLS)
        assert parser.push(said).merge_with(parser.finish()) == Delta(content)


@given(text=st.text(max_size=40), tools=st.booleans())
@settings(max_examples=200, deadline=None)
def test_plain_text_is_content_verbatim(text: str, tools: bool) -> None:
    for kind in KINDS.values():
        family = detect_family(
            {"default": ""} if kind.family == "hermes" else {"default": MADE_OF[kind.family]}, ()
        )
        assert family.name == kind.family
        parser = family.new_parser(thinking=False, tools=TOOLS if tools else ())
        said = f"Yes: {text}.".replace("<", "").replace("[", "").replace("{", "")
        assert parser.push(said).merge_with(parser.finish()) == Delta(said)


MADE_OF = {
    "qwen-xml": "<tool_call><function=",
    "llama": "<|start_header_id|>",
    "mistral": "[TOOL_CALLS]",
    "deepseek": "<｜tool▁calls▁begin｜>",
    "harmony": "<|channel|><|message|>",
}

MALFORMED = {
    "qwen2_5": ("I look. <tool_call>{}</tool_call>!", "I look. <tool_call>{}</tool_call>!"),
    "qwen3_5_nothink": (
        "<tool_call>\n<parameter=a>\n</tool_call>",
        "<tool_call>\n<parameter=a>\n</tool_call>",
    ),
    "llama3_1": ('<|python_tag|>f.call(x="1")', 'f.call(x="1")'),
    "mistral_args": ('[TOOL_CALLS]f[ARGS]{"a": }', 'f{"a": }'),
    "mistral_array": ('[TOOL_CALLS][{"name": "f"}]', '[{"name": "f"}]'),
    "gptoss": ("<|channel|>commentary to=functions.f<|message|>no json<|call|>", "no json"),
}


@pytest.mark.parametrize("kind", MALFORMED)
def test_a_malformed_call_is_content_without_special_tokens(kind: str, renderer: Renderers) -> None:
    said, content = MALFORMED[kind]
    message, deltas = read(renderer(kind), said)
    assert message == {"role": "assistant", "content": content}
    assert "".join(d.content for d in deltas) == content


SAID = {
    "llama3_1": [
        ('{"name": "a", "parameters": {}}; {"name": "b", "parameters": {"x": 1}}', "", ["a", "b"]),
        ('<|python_tag|>{"type": "function", "name": "a", "parameters": {}}<|eom_id|>', "", ["a"]),
        ('Look: {"name": "a", "parameters": {}}', 'Look: {"name": "a", "parameters": {}}', []),
        ('{"temperature": 3}', '{"temperature": 3}', []),
    ],
    "mistral_args": [
        (
            'I look.[TOOL_CALLS]a[CALL_ID]abc123def[ARGS]{}[TOOL_CALLS]b{"x": "[ARGS]"}',
            "I look.",
            ["a", "b"],
        ),
        (
            '[TOOL_CALLS] [{"name": "a", "arguments": "{}"}, {"name": "b", "arguments": {}}]',
            "",
            ["a", "b"],
        ),
    ],
    "gptoss": [
        (
            "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary<|message|>I look."
            "<|start|>assistant<|channel|>commentary to=functions.a <|constrain|>json<|message|>{}<|call|>",
            "I look.",
            ["a"],
        ),
        ("Hello there.", "Hello there.", []),
        (
            "<|channel|>final<|message|>One.<|end|><|start|>assistant<|channel|>final<|message|>Two.",
            "One.\nTwo.",
            [],
        ),
        ("<|channel|>analy", "", []),
    ],
    "qwen3": [
        (
            '<think>\nHm.\n</think>\n\n<tool_call>{"name": "a", "arguments": {"x": "</tool_call>"}}</tool_call>',
            "",
            ["a"],
        ),
        ('<tool_call> <tool_call>{"name": "a", "arguments": {}}</tool_call>', "<tool_call>", ["a"]),
    ],
    "qwen3_5_nothink": [
        (
            "I look.\n<function=a>\n<parameter=x>\n1\n</parameter>\n</function>\n</tool_call>\n",
            "I look.",
            ["a"],
        ),
        (
            "<tool_call><function=a><parameter=x>\n1\n<parameter=y>\n2\n</function></tool_call>"
            "\n<function=b>\n</function>",
            "",
            ["a", "b"],
        ),
        ("<function=a> is a tag", "<function=a> is a tag", []),
    ],
    "deepseekv3": [
        (
            "Hm.</think>Look.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>a<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
            "Look.",
            ["a"],
        ),
    ],
}


@pytest.mark.parametrize(
    ("kind", "number"), [(kind, n) for kind in SAID for n in range(len(SAID[kind]))]
)
def test_replies_of_models_are_parsed(kind: str, number: int, renderer: Renderers) -> None:
    said, content, names = SAID[kind][number]
    for size in (1, 1000):
        message, _ = read(renderer(kind), said, size=size)
        assert (message["content"] or "") == content
        assert [c["function"]["name"] for c in message.get("tool_calls", ())] == names


def test_a_value_without_closing_tag_is_parsed(renderer: Renderers) -> None:
    said = "<tool_call><function=get_time><parameter=city>\nRome\n<parameter=days>\n2\n</function></tool_call>"
    message, _ = read(renderer("qwen3_5_nothink"), said)
    assert json.loads(message["tool_calls"][0]["function"]["arguments"]) == {
        "city": "Rome",
        "days": 2,
    }


def test_channel_text_is_streamed_token_by_token(renderer: Renderers) -> None:
    r = renderer("gptoss")
    text = r.new_reply_decoder(thinking=False, tools=TOOLS)
    out = [
        text.push([i])
        for i in r.tokenizer.encode("<|channel|>analysis<|message|>Hm<|end|>").tolist()
    ]
    assert [d.reasoning for d in out if d] == list("Hm")
    assert not text.parser.in_reasoning


def test_without_tools_calls_are_text_and_no_special_token_leaks(renderer: Renderers) -> None:
    message, _ = read(renderer("mistral_args"), "[TOOL_CALLS]f[ARGS]{}", tools=())
    assert message == {"role": "assistant", "content": "f{}"}
    message, _ = read(
        renderer("gptoss"), "<|channel|>commentary to=functions.f<|message|>{}<|call|>", tools=()
    )
    assert message == {"role": "assistant", "content": "{}"}


@pytest.mark.parametrize(
    ("text", "schema", "value"),
    [
        ("12", {"type": "integer"}, 12),
        ("12", {"type": "string"}, "12"),
        ("12", None, "12"),
        ("[1]", None, [1]),
        ("True", {"type": "boolean"}, True),
        ("None", {"type": ["string", "null"]}, None),
        ("x", {"type": "integer"}, "x"),
        ("1.5", {"anyOf": [{"type": "number"}, {"type": "null"}]}, 1.5),
        ("true", {"type": "integer"}, "true"),
        ("2", {"enum": [1, 2]}, 2),
        ("NaN", {"type": "number"}, "NaN"),
        ("1e999", {"type": "number"}, "1e999"),
        ('["\\ud800"]', {"type": "array"}, '["\\ud800"]'),
        ('{"a"', {"type": "object"}, '{"a"'),
    ],
)
def test_values_in_tags(text: str, schema: Any, value: Any) -> None:
    converted = convert_value(text, allowed_types(schema))
    assert converted == value
    assert type(converted) is type(value)


def test_unknown_families_are_parsed_as_hermes() -> None:
    assert isinstance(detect_family({"default": "{{ messages }}"}, LLAMA), HermesFamily)


# What templates do to the past.

PAST = {
    "qwen2_5": ("keeps everything", None),
    "qwen3": ("drops the reasoning of earlier turns (keeps it inside a tool loop)", "reasoning"),
    "qwen3_8": ("keeps everything", None),
    "llama3_2": ("keeps everything", None),
    "gptoss": ("keeps only one of several tool calls", "reasoning"),
    "deepseekv3": ("drops the reasoning of earlier turns;", "reasoning"),
    "mistral_args": ("keeps everything", None),
    "mistral_array": ("depends on what came before", "came before"),
}


@pytest.mark.parametrize("kind", PAST)
def test_changes_of_history_by_a_template_are_reported(kind: str, renderer: Renderers) -> None:
    words, why = PAST[kind]
    r = renderer(kind)
    assert words in r.history_description
    assert (why is None) == (r.bridge_unsupported_reason is None)
    assert why is None or why in str(r.bridge_unsupported_reason)
    assert ("rendered again" in r.history_description) == (why is not None)


# Variables.


def test_variables_reach_the_template(renderer: Renderers) -> None:
    r = renderer("qwen3_5_think")
    assert r.render([USER]).thinking
    plain = r.render([USER], variables={"enable_thinking": False})
    assert not plain.thinking
    assert r.text([USER], variables={"enable_thinking": False}).endswith("<think>\n\n</think>\n\n")
    assert "Reasoning: high" in renderer("gptoss").text(
        [USER], variables={"reasoning_effort": "high"}
    )


@pytest.mark.parametrize(
    "name", ["messages", "tools", "add_generation_prompt", "raise_exception", "eos_token", "_x"]
)
def test_reserved_variables_are_refused(name: str, renderer: Renderers) -> None:
    with pytest.raises(RequestError, match=f"chat_template_kwargs.{name}"):
        renderer("qwen3").render([USER], variables={name: 1})
