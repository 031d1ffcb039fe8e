"""What goes on from what is stored: `previous_response_id`, references, retrieval; and how such turns are linked."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import openai
import pytest
from tests.serve.conftest import OTHER_KEY, USER, Site, Start, wait_for
from tests.serve.dialects.responses_client import FUNCTION, call, stored, whole
from tests.serve.test_sampled_prompts import goes_on, odd

from openclaw_rl.collect.link import link_request
from openclaw_rl.collect.reply_slot import EXACT
from openclaw_rl.collect.traffic import TrafficClassifier
from openclaw_rl.collect.worker import Collector
from openclaw_rl.store import exchanges, turns
from openclaw_rl.store.exchange_index import ExchangeIndex
from openclaw_rl.types import Capture, Exchange, TurnState

MODEL = "openclaw"
GPT_OSS = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Hello.<|return|>"


def say(site: Site, given: Any, **options: Any) -> tuple[Any, Exchange]:
    reply = site.client().responses.create(model=MODEL, input=given, **options)
    return reply, site.get(reply.id)


def answers(site: Site, exchange: Exchange) -> dict[str, tuple[list[str], str]]:
    """What the collector makes of a request: turn -> (the messages of its reaction, how it was found)."""
    with site.store.read() as conn:
        found = link_request(
            exchange.request, exchange.seq, ExchangeIndex(conn), TrafficClassifier([])
        )
    told = exchange.request.messages
    return {
        a.turn: ([str(told[i]["content"]) for i in a.messages], a.how) for a in found.reaction_links
    }


@pytest.mark.parametrize("kind", ["chatml", "keeping", "llama"])
def test_turn_after_turn_by_id(start: Start, kind: str) -> None:
    site = start(kind)
    reply, earlier = None, None
    for turn in range(4):
        odd(site, f"{'Hm.</think>' if kind == 'keeping' else ''}Answer {turn}.")
        previous = {"previous_response_id": reply.id} if reply else {}
        reply, exchange = say(site, f"question {turn}", instructions="Be kind.", **previous)
        assert reply.output_text == f"Answer {turn}."
        if earlier is not None:
            assert goes_on(exchange, earlier)
            assert answers(site, exchange)[earlier.request.id] == ([f"question {turn}"], EXACT)
        assert exchange.reply is not None
        assert exchange.reply.response_ids.tolist() == site.script.ids
        earlier = exchange
    assert earlier is not None
    roles = [m["role"] for m in earlier.request.messages]
    assert roles == ["system"] + ["user", "assistant"] * 3 + ["user"]


def test_no_key_of_a_clients_own_stands_for_a_mark_of_ours(site: Site) -> None:
    """`reference` and `instructions` in messages: they are not replaced, left out or moved."""
    client = site.client()
    own = client.chat.completions.create(model=MODEL, messages=[USER]).id
    marked: Any = {
        "role": "user",
        "content": "my real words",
        "reference": own,
        "instructions": True,
    }
    for first in (marked, marked | {"role": "system"}):
        chat = client.chat.completions.create(model=MODEL, messages=[first, USER]).id
        assert site.get(chat).request.messages[0]["content"] == "my real words"
        assert client.responses.retrieve(chat).instructions is None
        assert len(list(client.responses.input_items.list(chat))) == 2
        on, exchange = say(site, "more", previous_response_id=chat)
        words = ["my real words", "hi", "Hello there."]
        assert [m["content"] for m in exchange.request.messages] == [*words, "more"]
        _, exchange = say(site, "even more", previous_response_id=on.id)
        assert [m["content"] for m in exchange.request.messages] == [
            *words,
            "more",
            "Hello there.",
            "even more",
        ]
        assert client.responses.retrieve(on.id).instructions is None
    _, exchange = say(
        site, [USER | {"reference": own, "instructions": True}, {"role": "user", "content": "b"}]
    )
    assert [dict(m) for m in exchange.request.messages] == [USER, {"role": "user", "content": "b"}]
    body = {"model": MODEL, "max_tokens": 9, "messages": [marked, USER]}
    message = site.http.post("/v1/messages", body).json()
    assert [m["content"] for m in site.get(message["id"]).request.messages] == [
        "my real words",
        "hi",
    ]


def test_a_reference_behind_instructions(site: Site) -> None:
    first, _ = say(site, "hi")
    reference = {"type": "item_reference", "id": first.output[0].id}
    _, exchange = say(
        site, [USER, reference, {"role": "user", "content": "b"}], instructions="Be brief."
    )
    assert [m["content"] for m in exchange.request.messages] == [
        "Be brief.",
        "hi",
        "Hello there.",
        "b",
    ]


def test_feedback_takes_the_id_of_an_item(site: Site) -> None:
    first, _ = say(site, "hi")
    for name in (first.id, first.output[0].id):
        answer = site.http.post("/v1/feedback", {"id": name, "score": 1})
        assert (answer.status_code, answer.json()["target"]) == (200, first.id)


def test_instructions_are_not_carried_over(site: Site) -> None:
    first, _ = say(site, "one", instructions="Be brief.")
    second, exchange = say(site, "two", instructions="Be long.", previous_response_id=first.id)
    assert [m["content"] for m in exchange.request.messages] == [
        "Be long.",
        "one",
        "Hello there.",
        "two",
    ]
    _, exchange = say(site, "three", previous_response_id=second.id)
    assert exchange.request.messages[0]["content"] == "one"


def test_what_goes_on_by_id_is_linked_without_its_instructions(site: Site) -> None:
    """As clients do it: instructions once, then nothing but the id; so the history is another one."""
    odd(site, "OK.")
    first, _ = say(site, "Book a table.", instructions="Be brief.")
    second, two = say(site, "No, for Friday.", previous_response_id=first.id)
    third, _ = say(site, "Thanks.", previous_response_id=second.id)
    assert two.request.previous == first.id
    collector = Collector(site.store, site.config.collect)
    while collector.step():
        pass
    with site.store.read() as conn:
        found = [turns.get(conn, r.id) for r in (first, second, third)]
        reaction = turns.current_reaction(conn, first.id)
    assert [(t.parent, t.session, t.unlinked) for t in found if t] == [
        (None, first.id, None),
        (first.id, first.id, None),
        (second.id, first.id, None),
    ]
    assert [t.state for t in found if t] == [TurnState.CLOSED, TurnState.CLOSED, TurnState.SERVED]
    assert reaction is not None
    assert [m["content"] for m in reaction.messages] == ["No, for Friday."]


@pytest.mark.parametrize("how", ["id", "items", "references"])
def test_a_tool_loop(site: Site, how: str) -> None:
    paris = call("get_weather", '{"city":  1}')
    odd(site, f"I look.\n{paris}\n{call('get_weather', '{}')}")
    first, one = say(site, [USER], tools=[FUNCTION])
    results = [
        {"type": "function_call_output", "call_id": item.call_id, "output": f"{n} degrees"}
        for n, item in enumerate(i for i in first.output if i.type == "function_call")
    ]
    site.script.say("It is 0 and 1.")
    if how == "id":
        second, two = say(site, results, tools=[FUNCTION], previous_response_id=first.id)
    else:
        said = [i.model_dump(exclude_none=True) for i in first.output]
        if how == "references":
            said = [{"type": "item_reference", "id": i["id"]} for i in said]
        second, two = say(site, [USER, *said, *results], tools=[FUNCTION])
    assert goes_on(two, one)
    assert [m["role"] for m in two.request.messages] == ["user", "assistant", "tool", "tool"]
    assert answers(site, two)[first.id] == (["0 degrees", "1 degrees"], EXACT)
    _, three = say(site, "thanks, that was right", tools=[FUNCTION], previous_response_id=second.id)
    assert goes_on(three, two)
    assert answers(site, three)[second.id] == (["thanks, that was right"], EXACT)


def test_a_conversation_may_change_its_dialect(site: Site) -> None:
    odd(site, "Hello, I am here to help you with it.")
    reply, one = say(site, "hi", instructions="Be kind.")
    history = [
        {"role": "system", "content": "Be kind."},
        USER,
        {"role": "assistant", "content": reply.output_text},
        {"role": "user", "content": "more"},
    ]
    chat = site.client().chat.completions.create(model=MODEL, messages=history)
    two = site.get(chat.id)
    assert goes_on(two, one)
    assert answers(site, two)[reply.id] == (["more"], EXACT)
    back, three = say(site, "even more", previous_response_id=chat.id)
    assert goes_on(three, two)
    assert [m["role"] for m in three.request.messages] == [
        "system",
        *["user", "assistant"] * 2,
        "user",
    ]
    assert back.previous_response_id == chat.id


def test_what_cannot_be_gone_on_from(start: Start) -> None:
    site = start(delay=0.02)
    first, _ = say(site, "hi")
    create = site.client().responses.create
    for client, name in (
        (site.client(), "resp_gone"),
        (site.client(OTHER_KEY), first.id),
        (site.client(), "é"),
    ):
        body = {"model": MODEL, "input": "x", "previous_response_id": name}
        key = client.api_key
        answer = site.http.post("/v1/responses", body, {"Authorization": f"Bearer {key}"})
        error = answer.json()["error"]
        assert answer.status_code == 400
        assert (error["code"], error["param"]) == (
            "previous_response_not_found",
            "previous_response_id",
        )
    with pytest.raises(openai.BadRequestError, match="no reply"):
        create(model=MODEL, input=[{"type": "item_reference", "id": "msg_" + "0" * 30}])
    site.script.say("one two three " * 30)
    stream = create(model=MODEL, input="hi", stream=True)
    running = next(iter(stream)).response.id
    with pytest.raises(openai.BadRequestError, match="not complete yet"):
        create(model=MODEL, input="x", previous_response_id=running)
    assert site.client().responses.retrieve(running).status == "in_progress"
    stream.close()
    site.ended(running)
    assert site.client().responses.retrieve(running).status == "cancelled"


def test_a_stored_reply_can_be_had_again(start: Start) -> None:
    site = start("thinking")
    custom = {"type": "custom", "name": "patch"}
    patch = call("patch", '{"input": "x"}')
    site.script.say(f"Hm.</think>I look.\n{call('get_weather', '{}')}\n{patch}")
    first, _ = say(
        site, "hi", instructions="Be kind.", tools=[FUNCTION, custom], max_output_tokens=100
    )
    client = site.client()
    again = client.responses.retrieve(first.id)
    stored(again.to_dict(mode="json"))
    assert again.output == first.output
    assert again.usage == first.usage
    assert again.usage is not None
    assert again.usage.output_tokens_details.reasoning_tokens > 1
    assert (again.instructions, again.status, again.model) == ("Be kind.", "completed", MODEL)
    assert [t.type for t in again.tools] == ["function", "custom"]
    assert again.previous_response_id is None
    results = [
        {"type": "function_call_output", "call_id": i.call_id, "output": "r"}
        for i in first.output[2:]
    ]
    site.script.say("Hm.</think>Done.")
    second, _ = say(site, results, previous_response_id=first.id)
    assert client.responses.retrieve(second.id).previous_response_id == first.id
    items = list(client.responses.input_items.list(second.id, order="asc", limit=2))
    kinds = [
        "message",
        "reasoning",
        "message",
        "function_call",
        "function_call",
        *["function_call_output"] * 2,
    ]
    assert [i.type for i in items] == kinds
    newest = client.responses.input_items.list(second.id)
    assert [i.id for i in newest.data] == [i.id for i in reversed(items)]
    assert len({i.id for i in items}) == len(items)


@pytest.mark.parametrize("kind", ["chatml", "thinking", "gptoss"])
def test_a_request_that_says_little_is_given_again_as_it_was(start: Start, kind: str) -> None:
    """Every field, and not only those that the client's types demand."""
    site = start(kind)
    site.script.say({"thinking": "Well</think>Hello.", "gptoss": GPT_OSS}.get(kind, "Hello."))
    answer = site.http.post(
        "/v1/responses", {"input": "hi", "user": "ann", "reasoning": {"effort": "low"}}
    ).json()
    again = site.http.get(f"/v1/responses/{answer['id']}").json()
    assert answer["created_at"] <= again["completed_at"] <= answer["completed_at"]  # before it left
    assert again | {"completed_at": answer["completed_at"]} == answer
    whole(answer)


def test_what_another_model_thought_is_not_counted(start: Start) -> None:
    site = start("thinking")
    site.script.say("Well</think>Hello.")
    first, _ = say(site, "hi")
    assert site.client().responses.retrieve(first.id).usage == first.usage
    with site.store.write() as conn:
        conn.exec_driver_sql("UPDATE exchanges SET identity = 'another'")
    usage = site.client().responses.retrieve(first.id).usage
    assert usage is not None
    assert usage.output_tokens_details.reasoning_tokens == 0


def test_retrieval_is_refused_with_reason(site: Site) -> None:
    first, _ = say(site, "hi")
    client = site.client()
    for refused in (
        lambda: client.responses.retrieve("resp_gone"),
        lambda: client.responses.retrieve("é"),
        lambda: site.client(OTHER_KEY).responses.retrieve(first.id),
        lambda: client.responses.input_items.list("resp_gone"),
    ):
        with pytest.raises(openai.NotFoundError, match="under this API key"):
            refused()
    with pytest.raises(openai.BadRequestError, match="cannot be deleted"):
        client.responses.delete(first.id)
    with pytest.raises(openai.BadRequestError, match="cannot be streamed"):
        client.responses.retrieve(first.id, stream=True)
    for query, param in (
        ("limit=0", "limit"),
        ("limit=x", "limit"),
        ("order=up", "order"),
        ("after=x", "after"),
    ):
        answer = site.http.get(f"/v1/responses/{first.id}/input_items?{query}")
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=site.url + "/v1", api_key="x", max_retries=0).responses.retrieve(
            first.id
        )


def test_a_reply_that_failed_is_told_as_failed(start: Start) -> None:
    site = start(gone_at=2)
    site.script.say("one two three")
    stream = site.client().responses.create(model=MODEL, input="hi", stream=True)
    name = next(iter(stream)).response.id
    with pytest.raises(openai.APIError):
        list(stream)
    wait_for(lambda: site.get(name).reply, lambda r: r is not None)
    found = site.client().responses.retrieve(name)
    stored(found.to_dict(mode="json"))
    assert found.status == "failed"
    assert found.error is not None
    assert "engine disconnected" in found.error.message
    assert found.created_at <= time.time()


def test_what_was_stored_without_its_words_cannot_be_gone_on_from(site: Site) -> None:
    _, kept = say(site, "hi")
    assert kept.reply is not None
    bare = replace(kept.request, id="resp_" + "0" * 28, capture=Capture.REDACTED)
    with site.store.write() as conn:
        exchanges.admit(conn, [bare])
        exchanges.finish(conn, [replace(kept.reply, id=bare.id)])
    for ask in (
        lambda: site.client().responses.create(
            model=MODEL, input="x", previous_response_id=bare.id
        ),
        lambda: site.client().responses.retrieve(bare.id),
        lambda: site.client().responses.create(
            model=MODEL, input=[{"type": "item_reference", "id": f"msg_{'0' * 28}00"}, USER]
        ),
    ):
        with pytest.raises(openai.BadRequestError, match="without its text"):
            ask()
