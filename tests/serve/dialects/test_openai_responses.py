"""The official client's Responses API, unmodified, against the real app on a socket."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import openai
import pydantic
import pytest
from tests.serve.conftest import SCOPE, USER, Site, Start, statuses, wait_for
from tests.serve.dialects.responses_client import FUNCTION, call, events_of, post, rebuilt, whole

from openclaw_rl.testing import ScriptedEngine
from openclaw_rl.types import ExchangeStatus, FinishReason, Kind

MODEL = "openclaw"
LOGPROBS = ["message.output_text.logprobs"]


def test_a_whole_reply(site: Site) -> None:
    ids = site.script.say("Hello there, é 😀.")
    reply = site.client().responses.create(
        model=MODEL,
        input="hi",
        instructions="Be kind.",
        user="ann",
        metadata={"a": "b"},
        temperature=0.7,
    )
    assert whole(reply.model_dump(mode="json")).status == "completed"
    assert reply.output_text == "Hello there, é 😀."
    assert (reply.model, reply.instructions, reply.metadata, reply.temperature) == (
        MODEL,
        "Be kind.",
        {"a": "b"},
        0.7,
    )
    assert reply.id.startswith("resp_")
    assert reply.output[0].id == f"msg_{reply.id.removeprefix('resp_')}00"
    kept = site.get(reply.id)
    assert kept.reply is not None
    assert reply.usage is not None
    assert (reply.usage.input_tokens, reply.usage.output_tokens) == (
        len(kept.request.prompt_ids),
        len(ids),
    )
    assert kept.reply.response_ids.tolist() == ids
    assert kept.reply.finish_reason is FinishReason.STOP
    assert kept.reply.logprobs.tolist() == pytest.approx(
        [ScriptedEngine.token_logprob(i, 0, 0.7) for i in ids]
    )
    assert (kept.request.scope, kept.request.user, kept.request.dialect) == (
        SCOPE,
        "ann",
        "responses",
    )
    chat = [{"role": "system", "content": "Be kind."}, USER]
    assert kept.request.prompt_ids.tolist() == site.renderer.render(chat).prompt_ids.tolist()


def test_a_streamed_reply_is_the_same_as_a_whole_one(site: Site) -> None:
    site.script.say("One two three, é 😀.")
    events = events_of(post(site, stream=True))
    assert [e["type"] for e in events[:4]] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    last = events[-1]
    assert last["type"] == "response.completed"
    assert last["response"]["output"] == rebuilt(events)
    plain = post(site).json()
    assert _nameless(last["response"]) == _nameless(plain)
    whole(last["response"])


def _nameless(response: dict[str, Any]) -> str:
    """Without its ids and times."""
    hexadecimal = response["id"].removeprefix("resp_")
    kept = {k: v for k, v in response.items() if k not in ("created_at", "completed_at")}
    return json.dumps(kept).replace(hexadecimal, "*")


def test_the_stream_helper(site: Site) -> None:
    site.script.say("One two three.")
    with site.client().responses.stream(model=MODEL, input=[USER]) as stream:
        text = "".join(e.delta for e in stream if e.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert text == final.output_text == "One two three."
    assert site.get(final.id).reply is not None


def test_the_first_words_leave_before_the_last_are_sampled(start: Start) -> None:
    site = start(delay=0.02)
    site.script.say("a b c d e f g h")
    stream = site.client().responses.create(model=MODEL, input="hi", stream=True)
    assert next(e for e in stream if e.type == "response.output_text.delta").delta
    assert site.engine.running[0] == 1
    assert statuses(site) == [ExchangeStatus.RUNNING]
    stream.close()


def test_what_agents_act_on_leaves_when_the_exchange_is_durable(site: Site) -> None:
    site.script.say(f"I look.\n{call('get_weather', '{}')}\n{call('get_weather', '{}')}")
    acts = 0
    for _ in range(5):
        stream = site.client().responses.create(
            model=MODEL, input="hi", tools=[FUNCTION], stream=True
        )
        for event in stream:
            if event.type == "response.output_item.done" and event.item.type == "function_call":
                acts += 1
                assert statuses(site)[-1] is ExchangeStatus.DONE
    assert acts == 10


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("sealed", [False, True])
def test_reasoning(start: Start, stream: bool, sealed: bool) -> None:
    site = start("thinking")
    site.script.say("Two and two.\n</think>\n\nFour.")
    include = ["reasoning.encrypted_content"] if sealed else []
    if stream:
        events = events_of(post(site, stream=True, include=include))
        response = whole(events[-1]["response"])
        assert events[-1]["response"]["output"] == rebuilt(events)
        assert {"response.reasoning_text.delta", "response.reasoning_text.done"} <= {
            e["type"] for e in events
        }
    else:
        response = site.client().responses.create(model=MODEL, input="hi", include=include)
    thought, said = response.output
    assert thought.type == "reasoning"
    assert thought.content is not None
    assert thought.content[0].text == "Two and two."
    assert response.output_text == "Four."
    assert said.type == "message"
    assert bool(thought.encrypted_content) is sealed
    assert response.usage is not None
    assert 0 < response.usage.output_tokens_details.reasoning_tokens < response.usage.output_tokens
    back = thought.model_dump(exclude_none=True)
    if sealed:
        back.pop("content")  # what a client keeps that only passes on what is encrypted
    history = [USER, back, said.model_dump(exclude_none=True), USER]
    again = site.client().responses.create(model=MODEL, input=history)
    assert site.get(again.id).request.messages[1] == {
        "role": "assistant",
        "content": "Four.",
        "reasoning_content": "Two and two.",
    }


@pytest.mark.parametrize("stream", [False, True])
def test_length(site: Site, stream: bool) -> None:
    site.script.say("one two three four five")
    if stream:
        events = events_of(post(site, max_output_tokens=2, stream=True))
        assert events[-1]["type"] == "response.incomplete"
        reply = whole(events[-1]["response"])
        assert events[-1]["response"]["output"] == rebuilt(events)
    else:
        reply = site.client().responses.create(model=MODEL, input="hi", max_output_tokens=2)
    assert reply.status == "incomplete"
    assert reply.incomplete_details is not None
    assert reply.incomplete_details.reason == "max_output_tokens"
    assert reply.output[0].type == "message"
    assert reply.output[0].status == "incomplete"
    assert site.engine.calls[-1].sampling.max_tokens == 2


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", ["chatml", "thinking"])
def test_logprobs_are_those_of_the_words(start: Start, stream: bool, kind: str) -> None:
    site = start(kind)
    thought = "Is é 😀 it?\n</think>\n\n" if kind == "thinking" else ""
    site.script.say(f"{thought}é 😀 is\n{call('get_weather', '{}')}")
    asked = {"include": LOGPROBS, "top_logprobs": 2, "tools": [FUNCTION]}
    if stream:
        events = events_of(post(site, stream=True, **asked))
        response = events[-1]["response"]
        assert response["output"] == rebuilt(events)
    else:
        response = post(site, **asked).json()
    said = next(i for i in response["output"] if i["type"] == "message")
    entries = said["content"][0]["logprobs"]
    assert bytes(b for t in entries for b in t["bytes"]).decode().strip() == "é 😀 is"
    assert all(len(t["top_logprobs"]) == 2 for t in entries)
    describe = site.renderer.detokenizer.decode_token
    known = {tuple(describe(i)[1]): ScriptedEngine.token_logprob(i, 0) for i in site.script.ids}
    assert [t["logprob"] for t in entries] == pytest.approx(
        [known[tuple(t["bytes"])] for t in entries]
    )


def test_an_empty_reply_is_an_empty_message(site: Site) -> None:
    site.script.say("")
    events = events_of(post(site, stream=True))
    assert events[-1]["response"]["output"] == rebuilt(events)
    assert whole(events[-1]["response"]).output_text == ""
    assert _nameless(post(site).json()) == _nameless(events[-1]["response"])


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_away_cancels(start: Start, stream: bool) -> None:
    site = start(delay=0.02)
    ids = site.script.say("one two three " * 200)

    async def leave() -> None:
        async with site.async_client() as client:
            if stream:
                answer = await client.responses.create(model=MODEL, input="hi", stream=True)
                async for event in answer:
                    if event.type == "response.output_text.delta":
                        break
                await answer.close()
                return
            with pytest.raises(openai.APITimeoutError):
                await client.with_options(timeout=1.5).responses.create(model=MODEL, input="hi")

    asyncio.run(leave())
    kept = site.ended(site.last().request.id).reply
    assert kept is not None
    assert kept.status is ExchangeStatus.CANCELLED
    assert kept.response_ids.tolist() == ids[: len(kept.response_ids)]
    wait_for(lambda: site.engine.running[0], lambda n: n == 0)
    with pytest.raises(openai.BadRequestError, match="no complete reply"):
        site.client().responses.create(
            model=MODEL, input="go on", previous_response_id=site.last().request.id
        )


def test_a_stream_that_breaks_says_so(start: Start) -> None:
    site = start(gone_at=3)
    site.script.say("one two three four five")
    events = events_of(post(site, stream=True))
    failed, error = events[-2:]
    assert failed["type"] == "response.failed"
    assert whole(failed["response"]).error is not None
    assert (error["type"], error["code"]) == ("error", "engine_gone")
    assert not any(e["type"] in ("response.completed", "response.output_item.done") for e in events)
    site.engine.revive()
    site.engine.gone_at = 3
    with pytest.raises(openai.APIError, match="engine disconnected"):
        list(site.client().responses.create(model=MODEL, input="hi", stream=True))


def test_typed_errors(site: Site) -> None:
    client = site.client()
    create: Any = client.responses.create
    with pytest.raises(openai.NotFoundError) as missing:
        create(model="gpt-none", input="hi")
    assert (missing.value.code, missing.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=site.url + "/v1", api_key="wrong", max_retries=0).responses.create(
            model=MODEL, input="hi"
        )
    with pytest.raises(openai.BadRequestError) as long:
        create(model=MODEL, input="word " * 4000)
    assert (long.value.code, long.value.param) == ("context_length_exceeded", "input")
    image = {"type": "input_image", "image_url": "data:image/png;base64,AA", "detail": "auto"}
    with pytest.raises(openai.BadRequestError, match="reads text only") as pictured:
        create(
            model=MODEL,
            input=[{"role": "user", "content": [{"type": "input_text", "text": "see"}, image]}],
        )
    assert pictured.value.param == "input"
    for field, value in (
        ("background", True),
        ("conversation", "conv_1"),
        ("prompt", {"id": "p"}),
        ("input", []),
    ):
        with pytest.raises(openai.BadRequestError) as caught:
            create(**({"model": MODEL, "input": "hi"} | {field: value}))
        assert caught.value.param == field
    assert site.count() == 0


def test_store_false_is_told_as_it_is(site: Site) -> None:
    told = post(site, store=False)
    assert told.json()["store"] is True
    assert "store: false" in told.headers["X-OpenClaw-Ignored"]
    assert "X-OpenClaw-Ignored" not in post(site, store=True).headers
    site.get(told.json()["id"])


def test_fields_without_effect_are_named(site: Site) -> None:
    odd = post(site, mood="calm", stop=["x"], n=2, reasoning={"effort": "low"}, metadata={"a": "b"})
    effort = "reasoning_effort (the model's chat template does not use reasoning_effort)"
    assert odd.headers["X-OpenClaw-Ignored"] == f"mood; n; stop; {effort}"
    with pytest.raises(openai.BadRequestError, match="repetition_penalty: not supported"):
        site.client().responses.create(
            model=MODEL, input="hi", extra_body={"repetition_penalty": 1.3}
        )
    assert site.count() == 1


def test_how_long_a_prompt_is(site: Site) -> None:
    first = site.client().responses.create(
        model=MODEL, input="hi", instructions="Be brief.", tools=[FUNCTION]
    )
    counted = site.client().responses.input_tokens.count(
        model=MODEL, input="hi", instructions="Be brief.", tools=[FUNCTION]
    )
    assert first.usage is not None
    assert counted.object == "response.input_tokens"
    assert counted.input_tokens == first.usage.input_tokens
    on = site.client().responses.create(model=MODEL, input="more", previous_response_id=first.id)
    counted = site.client().responses.input_tokens.count(
        model=MODEL, input="more", previous_response_id=first.id
    )
    assert on.usage is not None
    assert counted.input_tokens == on.usage.input_tokens
    assert site.count() == 2
    refused = site.http.post("/v1/responses/compact", {"model": MODEL, "input": "hi"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (404, "not_found")
    assert "summary" in refused.json()["error"]["message"]


def test_who_asks(site: Site) -> None:
    client = site.client()
    turn = json.dumps({"request_kind": "turn"})
    codex = {"session-id": "s1", "thread-id": "t1", "x-codex-turn-metadata": turn}
    reply = client.responses.create(
        model=MODEL, input="hi", extra_headers=codex, prompt_cache_key="k"
    )
    kept = site.get(reply.id).request
    assert (kept.session, kept.kind) == ("s1", None)
    aside = codex | {"x-codex-turn-metadata": json.dumps({"request_kind": "compaction"})}
    reply = client.responses.create(model=MODEL, input="hi", extra_headers=aside)
    assert site.get(reply.id).request.kind is Kind.SIDE
    reply = client.responses.create(
        model=MODEL,
        input="hi",
        extra_headers={"X-Session-Id": "s2", "session_id": "s3", "X-Turn-Type": "main"},
    )
    kept = site.get(reply.id).request
    assert (kept.session, kept.kind) == ("s2", Kind.MAIN)
    reply = client.responses.create(model=MODEL, input="hi", prompt_cache_key="k", store=False)
    assert site.get(reply.id).request.session is None
    assert reply.prompt_cache_key == "k"
    odd = post(site, {"session-id": "\xff", "x-codex-turn-metadata": "\xff{"})
    assert odd.status_code == 200


class Weather(pydantic.BaseModel):
    city: str
    degrees: int


def test_parsed_words(site: Site) -> None:
    site.script.say('{"city": "Oslo", "degrees": 3}')
    reply = site.client().responses.parse(model=MODEL, input="hi", text_format=Weather)
    assert reply.output_parsed == Weather(city="Oslo", degrees=3)
    sampling = site.get(reply.id).request.sampling
    assert "degrees" in (sampling.grammar or "")
