"""`n`: several replies to one prompt, each an exchange of its own; and how the collector links them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from itertools import count
from typing import Any

import openai
import pytest
from tests.serve.conftest import SCOPE, TOOLS, USER, Site, Start, statuses, wait_for

from openclaw_rl.collect.worker import Collector
from openclaw_rl.serve.auth import Caller
from openclaw_rl.serve.chat_request import (
    ChatRequest,
    FinishedChoice,
    ReplyEnd,
    ReplyHeader,
    TokenUsage,
)
from openclaw_rl.serve.dialects.openai_chat import ChatDialect
from openclaw_rl.serve.gateway import Gateway
from openclaw_rl.store import turns
from openclaw_rl.types import ExchangeStatus, FinishReason, Sampling, Turn, TurnState

MODEL = "openclaw"


class InTurn:
    """Each call gets the next of some replies."""

    def __init__(self, *ids: Sequence[int]) -> None:
        self._ids, self._next = ids, count()

    def __call__(self, prompt: Sequence[int], version: int) -> Sequence[int]:
        return self._ids[next(self._next) % len(self._ids)]


WORDS = ("A long reply, the first of them.", "The second one is another.", "Third!")


@pytest.fixture
def three(start: Start) -> Site:
    """Says `WORDS` in turn, a token every millisecond."""
    site = start(delay=0.001)
    site.engine.reply = InTurn(*[site.script.say(text) for text in WORDS])
    return site


def id_of(choice: Any) -> str:
    """The id of a choice's exchange: beside OpenAI's keys."""
    return str(choice.id)


def turn(site: Site, id: str) -> Turn:
    with site.store.read() as conn:
        found = turns.get(conn, id)
    assert found is not None
    return found


def test_three_replies_at_once(three: Site) -> None:
    reply = three.client().chat.completions.create(
        model=MODEL, messages=[USER], n=3, seed=5, logprobs=True
    )
    assert [c.index for c in reply.choices] == [0, 1, 2]
    assert [id_of(c) for c in reply.choices] == [reply.id, f"{reply.id}.1", f"{reply.id}.2"]
    assert {c.message.content for c in reply.choices} == set(WORDS)
    kept = [three.get(id) for id in (reply.id, f"{reply.id}.1", f"{reply.id}.2")]
    for choice, exchange in zip(reply.choices, kept, strict=True):
        assert exchange.reply is not None
        assert exchange.reply.status is ExchangeStatus.DONE
        assert exchange.reply.message["content"] == choice.message.content
        assert choice.logprobs is not None
        assert len(choice.logprobs.content or ()) == len(exchange.reply.response_ids) - 1
        assert (exchange.reply.first_token_at or 0) <= exchange.reply.finished_at
    assert [e.request.sampling.seed for e in kept] == [5, 6, 7]
    assert reply.usage is not None
    assert reply.usage.prompt_tokens == len(kept[0].request.prompt_ids)
    assert reply.usage.completion_tokens == sum(len(e.reply.response_ids) for e in kept if e.reply)


def test_streamed_replies_come_interleaved(three: Site) -> None:
    stream = three.client().chat.completions.create(
        model=MODEL, messages=[USER], n=3, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    texts, ends, order, ids = ["", "", ""], {}, [], {}
    for chunk in chunks[:-1]:
        (choice,) = chunk.choices
        texts[choice.index] += choice.delta.content or ""
        order.append(choice.index)
        if choice.finish_reason:
            ends[choice.index], ids[choice.index] = choice.finish_reason, id_of(choice)
    assert sorted(texts) == sorted(WORDS)
    assert ends == {0: "stop", 1: "stop", 2: "stop"}
    assert ids == {0: chunks[0].id, 1: f"{chunks[0].id}.1", 2: f"{chunks[0].id}.2"}
    for n, id in ids.items():
        kept = three.get(id).reply
        assert kept is not None
        assert kept.message["content"] == texts[n]
        assert three.http.post("/v1/feedback", {"id": id, "score": 1}).status_code == 200
    assert order != sorted(order), "not one reply after the other"
    assert (chunks[-1].choices, len({c.id for c in chunks})) == ([], 1)
    first = three.get(chunks[0].id)
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.prompt_tokens == len(first.request.prompt_ids)
    assert chunks[-1].usage.completion_tokens == len(three.script.ids) + sum(
        len(three.renderer.tokenizer.encode(w)) + 1 for w in WORDS[:2]
    )


def test_of_one_prompt_no_more_is_cached_than_the_first_to_run_found_so() -> None:
    usages = [
        TokenUsage(prompt_tokens=9, completion_tokens=1, reasoning_tokens=0, cached_tokens=cached)
        for cached in (8, 2, 8)
    ]
    choices = [
        FinishedChoice(
            id=f"c.{n}",
            message={},
            tokens=(),
            end=ReplyEnd(finish_reason=FinishReason.STOP, usage=usage),
        )
        for n, usage in enumerate(usages)
    ]
    opening = ReplyHeader(id="c", created=0, model=MODEL, version=0)
    ask = ChatRequest(model="", messages=[USER], tools=(), sampling=Sampling(), n=3)
    usage = json.loads(ChatDialect().encode_response(opening, ask, choices))["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (9, 3)
    assert usage["prompt_tokens_details"] == {"cached_tokens": 2}


def test_tool_calls_are_counted_in_each_reply(start: Start) -> None:
    site = start()
    call = '<tool_call>\n{"name": "get_weather", "arguments": {}}\n</tool_call>'
    site.script.say(f"{call}\n{call}")
    stream = site.client().chat.completions.create(
        model=MODEL, messages=[USER], tools=TOOLS, n=2, stream=True
    )
    seen: dict[int, list[int]] = {0: [], 1: []}
    for chunk in stream:
        for choice in chunk.choices:
            seen[choice.index] += [
                c.index for c in choice.delta.tool_calls or [] if c.function and c.function.name
            ]
    assert seen == {0: [0, 1], 1: [0, 1]}


@pytest.mark.parametrize("chosen", [0, 1, 2])
def test_the_reply_that_the_talk_goes_on_from_gets_the_reaction(three: Site, chosen: int) -> None:
    """The three are siblings; the other two are superseded."""
    client = three.client()
    reply = client.chat.completions.create(model=MODEL, messages=[USER], n=3)
    ids = [reply.id, f"{reply.id}.1", f"{reply.id}.2"]
    said = {"role": "assistant", "content": reply.choices[chosen].message.content}
    client.chat.completions.create(
        model=MODEL, messages=[USER, said, {"role": "user", "content": "Thanks."}]
    )
    collector = Collector(three.store, three.config.collect)
    while collector.step():
        pass
    found = [turn(three, id) for id in ids]
    assert [t.relation for t in found] == ["fresh", "sibling", "sibling"]
    assert [t.relation_of for t in found] == [None, ids[0], ids[1]]
    assert {t.session for t in found} == {reply.id}
    for n, t in enumerate(found):
        if n == chosen:
            assert t.state is TurnState.CLOSED
        else:
            assert t.state is TurnState.DROPPED
            assert "superseded" in (t.reason or "")
    assert turn(three, three.last().request.id).parent == ids[chosen]


def test_one_that_fails_breaks_the_whole_off(three: Site) -> None:
    three.engine.gone_at = 3
    with pytest.raises(openai.APIError, match="engine disconnected"):
        three.client().chat.completions.create(model=MODEL, messages=[USER], n=3)
    wait_for(lambda: statuses(three), lambda s: ExchangeStatus.RUNNING not in s)
    assert set(statuses(three)) <= {ExchangeStatus.FAILED, ExchangeStatus.CANCELLED}
    assert ExchangeStatus.FAILED in statuses(three)
    wait_for(lambda: three.engine.running[0], lambda n: n == 0)
    three.engine.revive()
    assert (
        three.client()
        .chat.completions.create(model=MODEL, messages=[USER], n=2)
        .choices[1]
        .finish_reason
        == "stop"
    )


def test_a_stream_that_fails_has_neither_finish_nor_done(three: Site) -> None:
    three.engine.gone_at = 3
    body = {"model": MODEL, "messages": [USER], "n": 2, "stream": True}
    answer = three.http.post("/v1/chat/completions", body).text
    assert '"error"' in answer
    assert '"finish_reason":"' not in answer
    assert "[DONE]" not in answer


def test_a_client_that_leaves_cancels_all(start: Start) -> None:
    site = start(delay=0.02)
    site.script.say("one two three " * 20)

    async def leave() -> None:
        async with site.async_client() as client:
            answer = await client.chat.completions.create(
                model=MODEL, messages=[USER], stream=True, n=3
            )
            async for _ in answer:
                break
            await answer.close()

    asyncio.run(leave())
    wait_for(lambda: statuses(site), lambda s: s == [ExchangeStatus.CANCELLED] * 3)
    wait_for(lambda: site.engine.running[0], lambda n: n == 0)
    kept = site.last().reply
    assert kept is not None
    assert kept.error == "the client closed the connection"


@pytest.mark.parametrize("n", [0, 17, -1, "2"])
def test_how_many_may_be_asked_for(site: Site, n: Any) -> None:
    answer = site.http.post("/v1/chat/completions", {"messages": [USER], "n": n})
    assert answer.status_code == 400
    assert json.loads(answer.text)["error"]["param"] == "n"


def test_a_refused_prompt_begins_none(site: Site) -> None:
    body = {"messages": [USER | {"content": "word " * 4000}], "n": 4}
    assert site.http.post("/v1/chat/completions", body).status_code == 400
    assert site.count() == 0


def test_a_reply_that_was_never_begun_ends_too(site: Site) -> None:
    """As when the client leaves before the first of them has been asked for."""

    async def begin_and_leave() -> None:
        gateway = Gateway(
            site.config,
            store=site.store,
            engine=site.engine,
            renderer=site.renderer,
            identity="test-identity",
        )
        ask = ChatDialect().decode(json.dumps({"messages": [USER], "n": 3}).encode(), {})
        servings = await gateway.begin_replies(ask, Caller(scope=SCOPE, owner=SCOPE))
        for serving in servings:
            serving.cancel_unstarted()
            serving.cancel_unstarted()
        await gateway.close()

    asyncio.run(begin_and_leave())
    assert statuses(site) == [ExchangeStatus.CANCELLED] * 3
