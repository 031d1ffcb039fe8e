"""The format of calls that is derived from a template reads back what the template writes, for all real templates."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tests.growth import check_linear_growth
from transformers.utils.chat_template_utils import _compile_jinja_template

from openclaw_rl.render import derived_format
from openclaw_rl.render.derived_format import TemplateSamples, derive_format, derive_think_tags
from openclaw_rl.render.families import DerivedFamily, ModelFamily, detect_family
from openclaw_rl.render.template_probe import RenderFunction, reads_calls
from openclaw_rl.types import Message

_SPEC = find_spec("trl")
assert _SPEC is not None
assert _SPEC.origin is not None
FOLDER = Path(_SPEC.origin).parent / "chat_templates"
TEMPLATES = sorted(path.stem for path in FOLDER.glob("*.jinja") if "_training" not in path.stem)
NO_CALLS = {
    "cohere",
    "cohere2",
    "deepseek_r1_distill",
    "gemma",
    "gemma3",
    "idefics3",
    "lfm2",
    "llama3",
    "llava_next",
    "phi3",
    "phi3_5",
    "qwen2_5_vl",
    "smolvlm",
}
"""Templates that write no calls, or refuse them."""
ONE_CALL = {"gptoss"}
"""Templates that write one call a turn."""
SPECIAL = re.compile(r"<[|｜][^|｜<>]*[|｜]>|\[[A-Z_]+\]|<\|tool_call>|<tool_call\|>")
TYPES = {"city": "string", "days": "integer", "more": "object", "deep": "boolean", "list": "array"}
PARAMETERS = {"type": "object", "properties": {key: {"type": one} for key, one in TYPES.items()}}
TOOLS = [
    {"type": "function", "function": {"name": name, "description": "e", "parameters": PARAMETERS}}
    for name in ("get_weather", "get_time")
]
WEATHER = {
    "city": 'Pa"ris é\n{x} a, b: c',
    "days": 3,
    "more": {"a": [1, "x"]},
    "deep": True,
    "list": ["a", 2],
}


def call(number: int, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    function = {"name": name, "arguments": dict(arguments)}
    return {"id": f"callabc1{number}", "type": "function", "function": function}


REPLIES: dict[str, Message] = {
    "one": {"content": "", "tool_calls": [call(0, "get_weather", WEATHER)]},
    "words": {"content": "I look.", "tool_calls": [call(0, "get_weather", WEATHER)]},
    "two": {
        "content": "",
        "tool_calls": [call(0, "get_weather", WEATHER), call(1, "get_time", {"city": "12"})],
    },
    "no arguments": {"content": "", "tool_calls": [call(0, "get_time", {})]},
}


def render_with(template: str) -> RenderFunction:
    """Render as transformers does; the arguments as text where the template wants that."""
    compiled = _compile_jinja_template(template)

    def render(messages: Any, tools: Any, generation: bool) -> str | None:
        for as_text in (False, True):
            try:
                return str(
                    compiled.render(
                        messages=[_with_arguments(one, as_text=as_text) for one in messages],
                        tools=tools,
                        bos_token="<s>",
                        eos_token="</s>",
                        add_generation_prompt=generation,
                        strftime_now=lambda form: "2026",
                    )
                )
            except Exception:  # noqa: BLE001 - templates raise anything
                continue
        return None

    return render


def _with_arguments(message: Message, *, as_text: bool) -> dict[str, Any]:
    out = dict(message)
    if as_text and out.get("tool_calls"):
        out["tool_calls"] = [
            one
            | {
                "function": one["function"]
                | {"arguments": json.dumps(one["function"]["arguments"])}
            }
            for one in out["tool_calls"]
        ]
    return out


def family_of(template: str, render: RenderFunction) -> ModelFamily:
    special = frozenset(SPECIAL.findall(template))
    family = detect_family({"default": template}, special)
    if reads_calls(render, family):
        return family
    calls = derive_format(render)
    assert calls is not None
    return DerivedFamily(derive_think_tags(render, calls) or family.think_tags, calls, special)


@pytest.mark.parametrize("name", TEMPLATES)
def test_calls_that_a_template_writes_are_read_back(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    template = (FOLDER / f"{name}.jinja").read_text(encoding="utf-8")
    render = render_with(template)
    family = family_of(template, render)
    monkeypatch.setattr(derived_format, "TOOLS", TOOLS)
    samples = TemplateSamples(render)
    read = {kind: _read_back(samples, family, reply) for kind, reply in REPLIES.items()}
    known = {kind: equal for kind, equal in read.items() if equal is not None}
    if name in ONE_CALL:
        del known["two"]
    assert all(known.values()) == (name not in NO_CALLS) or not known, known
    assert bool(known) or name in NO_CALLS


def _read_back(samples: TemplateSamples, family: ModelFamily, reply: Message) -> bool | None:
    """Return whether the calls are read back however the text is cut; None if the template refuses the reply."""
    calls = reply["tool_calls"]
    results = [
        {"role": "tool", "content": "r", "tool_call_id": one["id"], "name": one["function"]["name"]}
        for one in calls
    ]
    text = samples.of_reply({"role": "assistant", **reply}, results)
    if text is None:
        return None
    end = samples.end.strip()
    text = (text.rpartition(end)[0] or text) if end else text
    expected = [(one["function"]["name"], one["function"]["arguments"]) for one in calls]
    for size in (1, 5, len(text) or 1):
        parser = family.new_parser(thinking=False, tools=TOOLS)
        for start in range(0, len(text), size):
            parser.push(text[start : start + size])
        parser.finish()
        if [(one.name, json.loads(one.arguments)) for one in parser.calls] != expected:
            return False
    return True


DERIVED = ["diffusion_gemma", "gemma4", "glm4moe", "lfm2_2_5", "muse_glimmer"]
PROSE = [
    "A call begins with {opener}, then comes the name.",
    "{opener}",
    "{opener} the weather",
    "{opener}weather",
    "I would call get_weather(city='Rome').",
    '{{"name": "get_weather", "arguments": {{}}}}',
    "{opener}{{}}",
]


@pytest.mark.parametrize("name", DERIVED)
def test_prose_is_no_call_in_a_derived_format(name: str) -> None:
    template = (FOLDER / f"{name}.jinja").read_text(encoding="utf-8")
    family = family_of(template, render_with(template))
    assert isinstance(family, DerivedFamily)
    opener = family._new_call_reader(TOOLS).openers[0]
    for text in PROSE:
        for size in (1, 1000):
            parser = family.new_parser(thinking=False, tools=TOOLS)
            words = text.format(opener=opener)
            for start in range(0, len(words), size):
                parser.push(words[start : start + size])
            parser.finish()
            assert parser.calls == [], words


@pytest.mark.parametrize("name", DERIVED)
def test_a_derived_call_without_its_end_is_read_unless_a_limit_cut_it(name: str) -> None:
    template = (FOLDER / f"{name}.jinja").read_text(encoding="utf-8")
    render = render_with(template)
    calls = derive_format(render)
    assert calls is not None
    one = TemplateSamples(render).of_calls({derived_format.KEYS[0]: derived_format.VALUES[0]})
    assert one is not None
    text = one.rstrip()
    for literal in (calls.closer, calls.after):
        text = text.removesuffix(literal).rstrip()
    family = DerivedFamily(("<think>", "</think>"), calls, ())
    tools = derived_format.TOOLS
    parser = family.new_parser(thinking=False, tools=tools)
    parser.push(text)
    parser.finish()
    assert [one.name for one in parser.calls] == [derived_format.NAMES[0]], text


@pytest.mark.parametrize("name", ["gemma4", "gemma4_v3", "diffusion_gemma"])
def test_reasoning_that_stands_before_calls_only_is_found(name: str) -> None:
    """A word behind the opening tag names the channel, and belongs to the tag."""
    render = render_with((FOLDER / f"{name}.jinja").read_text(encoding="utf-8"))
    assert derive_think_tags(render, derive_format(render)) == ("<|channel>thought", "<channel|>")


def test_long_calls_are_read_in_linear_time() -> None:
    template = (FOLDER / "glm4moe.jinja").read_text(encoding="utf-8")
    family = family_of(template, render_with(template))

    def read(value: str) -> None:
        text = (
            "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>"
            f"{value}</arg_value>\n</tool_call>"
        )
        parser = family.new_parser(thinking=False, tools=TOOLS)
        for start in range(0, len(text), 4):
            parser.push(text[start : start + 4])
        parser.finish()
        assert json.loads(parser.calls[0].arguments) == {"city": value}

    check_linear_growth(read, lambda size: "x" * size, 50_000)
