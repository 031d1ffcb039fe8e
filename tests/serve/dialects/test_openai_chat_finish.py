"""How a reply ends early: a stop string (which one), or its first tool call; and what the engine had of the prompt."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from tests.serve.conftest import TOOLS, USER, Site, Start

from openclaw_rl.testing import ScriptedEngine
from openclaw_rl.types import Chunk, Generation

MODEL = "openclaw"
CALL = '<tool_call>\n{{"name": "get_weather", "arguments": {{"city": "{}"}}}}\n</tool_call>'
TWO = CALL.format("Paris") + "\n" + CALL.format("Rome") + " Two."


class Lumps(ScriptedEngine):
    """Gives several tokens in each chunk, and says that it had some of the prompt."""

    size, cached = 7, 0

    async def generate(self, generation: Generation) -> Any:
        held: list[Chunk] = []
        cached = self.cached
        async for chunk in super().generate(generation):
            held.append(chunk)
            if len(held) == self.size or chunk.finish:
                ids = tuple(i for c in held for i in c.token_ids)
                logprobs = tuple(lp for c in held for lp in c.logprobs)
                yield replace(chunk, token_ids=ids, logprobs=logprobs, cached=cached)
                held, cached = [], 0


def lumps(site: Site, size: int) -> None:
    site.engine.__class__ = Lumps
    site.engine.size = size  # type: ignore[attr-defined]


def ask(site: Site, *, stream: bool, **given: Any) -> dict[str, Any]:
    """The one choice, whole: message, finish_reason, and what else it has."""
    body = {"model": MODEL, "messages": [USER], "stream": stream, **given}
    answer = site.http.post("/v1/chat/completions", body)
    assert answer.status_code == 200, answer.text
    if not stream:
        found: dict[str, Any] = answer.json()["choices"][0]
        return found
    whole: dict[str, Any] = {"message": {"content": "", "tool_calls": []}}
    for line in answer.text.splitlines():
        if line.startswith("data: {"):
            for choice in json.loads(line[6:])["choices"]:
                whole["message"]["content"] += choice["delta"].get("content", "")
                whole["message"]["tool_calls"] += choice["delta"].get("tool_calls", [])
                whole |= {k: v for k, v in choice.items() if k != "delta"}
    return whole


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("stops", "hit"),
    [
        (["fox", "brown"], "brown"),
        (["own fox", "brown fox"], "brown fox"),
        (["zzz"], None),
        (["over"], "over"),
    ],
)
def test_the_stop_string_that_ended_it(
    site: Site, stream: bool, stops: list[str], hit: str | None
) -> None:
    site.script.say("The quick brown fox jumps over")
    choice = ask(site, stream=stream, stop=stops)
    assert choice.get("stop_reason") == hit
    assert choice["finish_reason"] == "stop"


@pytest.mark.parametrize("size", [1, 7, 400])
@pytest.mark.parametrize("stream", [False, True])
def test_without_parallel_calls_the_reply_ends_after_the_first(
    site: Site, stream: bool, size: int
) -> None:
    lumps(site, size)
    ids = site.script.say("Let me look. " + TWO)
    choice = ask(site, stream=stream, tools=TOOLS, parallel_tool_calls=False, logprobs=True)
    (call,) = choice["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"city": "Paris"}
    assert choice["message"]["content"] == "Let me look."
    assert choice["finish_reason"] == "tool_calls"
    kept = site.last().reply
    assert kept is not None
    got = kept.response_ids.tolist()
    assert got == ids[: len(got)], "nothing that was sampled is thrown away"
    said = site.renderer.tokenizer.backend.decode(
        kept.response_ids[kept.mask].tolist(), skip_special_tokens=False
    )
    assert said.strip() == "Let me look. " + CALL.format("Paris")
    assert not kept.mask.all() or size == 1
    assert len(kept.message["tool_calls"]) == 1


@pytest.mark.parametrize("stream", [False, True])
def test_of_a_list_of_calls_only_the_first_is_given_and_nothing_trains(
    start: Start, stream: bool
) -> None:
    """The older Mistral writes all calls as one list: which tokens made the second cannot be told."""
    site = start("mistral_array")
    calls = [{"name": "get_weather", "arguments": {"city": city}} for city in ("Paris", "Rome")]
    ids = site.script.say("[TOOL_CALLS]" + json.dumps(calls))
    choice = ask(site, stream=stream, tools=TOOLS, parallel_tool_calls=False)
    (call,) = choice["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"city": "Paris"}
    kept = site.last().reply
    assert kept is not None
    assert kept.response_ids.tolist() == ids[:-1]
    assert not kept.mask.any()
    assert len(kept.message["tool_calls"]) == 1


@pytest.mark.parametrize(
    "given", [{}, {"parallel_tool_calls": True}, {"parallel_tool_calls": None}]
)
def test_with_parallel_calls_it_goes_on(site: Site, given: dict[str, Any]) -> None:
    site.script.say(TWO)
    choice = ask(site, stream=False, tools=TOOLS, **given)
    assert len(choice["message"]["tool_calls"]) == 2


def test_the_next_turn_goes_on_from_a_reply_that_was_cut_behind_its_call(site: Site) -> None:
    """Where nothing was sampled behind the call, the stored tokens are what the client has seen."""
    site.script.say(TWO)
    given: dict[str, Any] = {"tools": TOOLS, "parallel_tool_calls": False}
    first = site.client().chat.completions.create(model=MODEL, messages=[USER], **given)
    message = first.choices[0].message
    (call,) = message.tool_calls or ()
    result = {"role": "tool", "tool_call_id": call.id, "content": "Sunny."}
    history = [USER, message.model_dump(exclude_none=True), result]
    site.client().chat.completions.create(model=MODEL, messages=history, **given)
    kept, following = site.get(first.id), site.last().request.prompt_ids.tolist()
    assert kept.reply is not None
    assert kept.reply.mask.all()
    before = [*kept.request.prompt_ids.tolist(), *kept.reply.response_ids.tolist()]
    assert following[: len(before)] == before
    assert following == site.renderer.render(history, TOOLS).prompt_ids.tolist()


@pytest.mark.parametrize("stream", [False, True])
def test_what_the_engine_had_of_the_prompt_is_told(start: Start, stream: bool) -> None:
    site = start()
    lumps(site, 3)
    site.engine.cached = 11  # type: ignore[attr-defined]
    body = {
        "model": MODEL,
        "messages": [USER],
        "stream": stream,
        "stream_options": {"include_usage": True},
    }
    answer = site.http.post("/v1/chat/completions", body)
    text = answer.text.split("data: ")[-2] if stream else answer.text
    assert json.loads(text)["usage"]["prompt_tokens_details"] == {"cached_tokens": 11}
    assert "openclaw_prompt_tokens_cached_total 11.0" in site.http.get("/metrics").text
