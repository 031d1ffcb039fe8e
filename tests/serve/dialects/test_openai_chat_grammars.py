"""The grammars of forced replies against each family's way of writing: accepted, and read back as what was meant."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import llguidance
import pytest
from tests.serve.conftest import TOOLS

from openclaw_rl.errors import RequestError
from openclaw_rl.render.renderer import Renderer
from openclaw_rl.serve.chat_request import ResponseConstraint
from openclaw_rl.serve.structured_output import build_grammar

KINDS = ["chatml", "thinking", "llama", "mistral_args", "mistral_array"]
Renderers = Callable[[str], Renderer]
CALL = ResponseConstraint(tool_names=("get_weather",))
PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {"age": {"type": "integer"}},
    "required": ["age"],
}


def accepts(renderer: Renderer, text: str, ids: Sequence[int]) -> bool:
    """Whether the ids are a whole sentence of the grammar `text`."""
    tokenizer = llguidance.LLTokenizer(str(renderer.files.folder / "tokenizer.json"))
    matcher = llguidance.LLMatcher(tokenizer, text, log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    return matcher.try_consume_tokens(list(ids)) == len(ids) and matcher.is_accepting()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("arguments", ['{"city": "Paris"}', "{}", '{ "city":"São\\nPaulo" }'])
def test_a_call_is_accepted_and_read_back(renderers: Renderers, kind: str, arguments: str) -> None:
    renderer = renderers(kind)
    form = renderer.call_form("get_weather")
    assert form is not None
    ids = renderer.tokenizer.encode(form.before + arguments + form.after).tolist()
    assert accepts(renderer, build_grammar(CALL, TOOLS, renderer, thinking=False), ids)
    reply = renderer.new_reply_decoder(thinking=False, tools=TOOLS)
    reply.push([*ids, renderer.stop_token_ids[0]])
    reply.finish()
    (call,) = reply.parser.calls
    assert (call.name, json.loads(call.arguments)) == ("get_weather", json.loads(arguments))
    assert reply.parser.content == ""


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_else_is_accepted(renderers: Renderers, kind: str) -> None:
    renderer = renderers(kind)
    form = renderer.call_form("get_weather")
    assert form is not None
    text = build_grammar(CALL, TOOLS, renderer, thinking=False)
    for said in ("Sunny.", form.before + '{"city": 5}' + form.after, form.before + '{"town": "Paris"}' + form.after,
                 form.before + '{"city": "Par'):  # fmt: skip
        assert not accepts(renderer, text, renderer.tokenizer.encode(said).tolist()), said


def test_any_of_some_calls_or_an_answer(renderers: Renderers) -> None:
    renderer = renderers("chatml")
    tools = [*TOOLS, {"type": "function", "function": {"name": "stop"}}]
    text = build_grammar(
        ResponseConstraint(schema=PERSON, tool_names=("get_weather", "stop")),
        tools,
        renderer,
        thinking=False,
    )
    for name, arguments in (("get_weather", '{"city": "Rome"}'), ("stop", "{}")):
        form = renderer.call_form(name)
        assert form is not None
        assert accepts(
            renderer, text, renderer.tokenizer.encode(form.before + arguments + form.after).tolist()
        )
    assert accepts(renderer, text, renderer.tokenizer.encode('{"age": 7}').tolist())
    assert accepts(renderer, text, renderer.tokenizer.encode('{\n  "age": 7\n}').tolist())
    assert not accepts(renderer, text, renderer.tokenizer.encode('{"age": 7, "more": 1}').tolist())


def test_white_space_is_what_is_usual(renderers: Renderers) -> None:
    renderer = renderers("chatml")
    text = build_grammar(
        ResponseConstraint(schema={"type": "object"}), (), renderer, thinking=False
    )
    value = {"a": [1, 2, {"b": "c"}], "d": {}}
    compact = json.dumps(value, separators=(",", ":"))
    for usual in (
        compact,
        *(json.dumps(value, indent=n) for n in (None, 0, 2, 4)),
        '{ "a": [ 1, 2 ] }',
    ):
        assert accepts(renderer, text, renderer.tokenizer.encode(usual).tolist()), usual
    for odd in (
        '{"a":  1}',
        '{"a":\n\n1}',
        '{"a":\t1}',
        "{\n" + " " * 17 + '"a":1}',
        ' {"a":1}',
        '{"a":1}\n',
    ):
        assert not accepts(renderer, text, renderer.tokenizer.encode(odd).tolist()), odd


@pytest.mark.parametrize(
    "parameters", [{"type": "array"}, {"type": ["string", "null"]}, {"type": 5}, [1], "x", True]
)
def test_a_call_whose_arguments_are_no_object_is_refused(
    renderers: Renderers, parameters: Any
) -> None:
    tools = [{"type": "function", "function": {"name": "bad", "parameters": parameters}}]
    with pytest.raises(
        RequestError, match=r"parameters of the tool 'bad' must be .* type object, got"
    ) as refused:
        build_grammar(
            ResponseConstraint(tool_names=("bad",)), tools, renderers("chatml"), thinking=False
        )
    assert refused.value.param == "tool_choice"


@pytest.mark.parametrize(
    "parameters", [None, {}, {"type": ["null", "object"]}, {"anyOf": [{"type": "object"}, {}]}]
)
def test_of_what_parameters_allow_objects_are_taken(renderers: Renderers, parameters: Any) -> None:
    renderer = renderers("chatml")
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    text, form = (
        build_grammar(ResponseConstraint(tool_names=("f",)), tools, renderer, thinking=False),
        renderer.call_form("f"),
    )
    assert form is not None
    for arguments, fine in (("{}", True), ("null", False), ('"a"', False), ("[]", False)):
        ids = renderer.tokenizer.encode(form.before + arguments + form.after).tolist()
        assert accepts(renderer, text, ids) is fine, arguments


@pytest.mark.parametrize("kind", KINDS)
def test_a_name_that_cannot_be_read_back_is_refused(renderers: Renderers, kind: str) -> None:
    renderer = renderers(kind)
    special = next(
        t.content
        for t in renderer.tokenizer.backend.get_added_tokens_decoder().values()
        if t.special
    )
    for name, fine in (("my-tool.v2", True), ("größe", True), (f"a{special}", False)):
        tools = [{"type": "function", "function": {"name": name}}]
        if fine:
            assert build_grammar(
                ResponseConstraint(tool_names=(name,)), tools, renderer, thinking=False
            )
            continue
        with pytest.raises(RequestError, match="Rename the tool") as refused:
            build_grammar(ResponseConstraint(tool_names=(name,)), tools, renderer, thinking=False)
        assert repr(name) in str(refused.value)


@pytest.mark.parametrize("gap", ["", "\n", "\n\n"])
def test_reasoning_comes_first_and_only_once(renderers: Renderers, gap: str) -> None:
    renderer = renderers("thinking")
    text = build_grammar(ResponseConstraint(schema=PERSON), (), renderer, thinking=True)
    thought = 'Is {"age": 3} right?\n<b> No.\n'
    whole = f'{thought}</think>{gap}{{"age": 4}}'
    assert accepts(renderer, text, renderer.tokenizer.encode(whole).tolist())
    assert not accepts(renderer, text, renderer.tokenizer.encode('{"age": 4}').tolist()), (
        "the thought has no end"
    )
    assert not accepts(
        renderer, text, renderer.tokenizer.encode(f"{thought}</think>More </think>{{}}").tolist()
    )
    reply = renderer.new_reply_decoder(thinking=True, tools=())
    reply.push(renderer.tokenizer.encode(whole).tolist())
    reply.finish()
    assert reply.parser.content == '{"age": 4}'
