"""The grammars of forced replies against each family's way of writing: accepted, and read back as what was meant."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import llguidance
import pytest
from tests.serve.conftest import TOOLS

from openclaw_rl.render.renderer import Renderer
from openclaw_rl.serve.ask import Forced
from openclaw_rl.serve.grammars import grammar

KINDS = ["chatml", "thinking", "llama", "mistral_args", "mistral_array"]
Renderers = Callable[[str], Renderer]
CALL = Forced(calls=("get_weather",))
PERSON: dict[str, Any] = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}


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
    ids = renderer.tokens.encode(form.before + arguments + form.after).tolist()
    assert accepts(renderer, grammar(CALL, TOOLS, renderer, thinking=False), ids)
    reply = renderer.reply_text(thinking=False, tools=TOOLS)
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
    text = grammar(CALL, TOOLS, renderer, thinking=False)
    for said in ("Sunny.", form.before + '{"city": 5}' + form.after, form.before + '{"town": "Paris"}' + form.after,
                 form.before + '{"city": "Par'):  # fmt: skip
        assert not accepts(renderer, text, renderer.tokens.encode(said).tolist()), said


def test_any_of_some_calls_or_an_answer(renderers: Renderers) -> None:
    renderer = renderers("chatml")
    tools = [*TOOLS, {"type": "function", "function": {"name": "stop"}}]
    text = grammar(Forced(schema=PERSON, calls=("get_weather", "stop")), tools, renderer, thinking=False)
    for name, arguments in (("get_weather", '{"city": "Rome"}'), ("stop", "{}")):
        form = renderer.call_form(name)
        assert form is not None
        assert accepts(renderer, text, renderer.tokens.encode(form.before + arguments + form.after).tolist())
    assert accepts(renderer, text, renderer.tokens.encode('{"age": 7}').tolist())
    assert accepts(renderer, text, renderer.tokens.encode('{\n  "age": 7\n}').tolist())
    assert not accepts(renderer, text, renderer.tokens.encode('{"age": 7, "more": 1}').tolist())


@pytest.mark.parametrize("gap", ["", "\n", "\n\n"])
def test_reasoning_comes_first_and_only_once(renderers: Renderers, gap: str) -> None:
    renderer = renderers("thinking")
    text = grammar(Forced(schema=PERSON), (), renderer, thinking=True)
    thought = 'Is {"age": 3} right?\n<b> No.\n'
    whole = f'{thought}</think>{gap}{{"age": 4}}'
    assert accepts(renderer, text, renderer.tokens.encode(whole).tolist())
    assert not accepts(renderer, text, renderer.tokens.encode('{"age": 4}').tolist()), "the thought has no end"
    assert not accepts(renderer, text, renderer.tokens.encode(f"{thought}</think>More </think>{{}}").tolist())
    reply = renderer.reply_text(thinking=True, tools=())
    reply.push(renderer.tokens.encode(whole).tolist())
    reply.finish()
    assert reply.parser.content == '{"age": 4}'
