"""Tools over the official client's Responses API: each kind is shown as a function, and called in its own form."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from tests.serve.conftest import USER, Site
from tests.serve.dialects.responses_client import FUNCTION, call, events_of, post, rebuilt, whole

MODEL = "openclaw"


@pytest.mark.parametrize("stream", [False, True])
def test_parallel_calls(site: Site, stream: bool) -> None:
    paris, oslo = '{"city": "Pa\\u0072is"}', '{"city": "Oslo"}'
    text = f"Let me look.\n{call('get_weather', paris)}\n{call('get_weather', oslo)}"
    site.script.say(text)
    if stream:
        events = events_of(post(site, tools=[FUNCTION], stream=True))
        response = whole(events[-1]["response"])
        assert events[-1]["response"]["output"] == rebuilt(events)
    else:
        response = site.client().responses.create(model=MODEL, input="hi", tools=[FUNCTION])
    said, one, two = response.output
    assert (said.type, one.type, two.type) == ("message", "function_call", "function_call")
    assert response.output_text == "Let me look."
    assert [json.loads(c.arguments) for c in (one, two)] == [{"city": "Paris"}, {"city": "Oslo"}]
    assert one.arguments == '{"city": "Pa\\u0072is"}'  # the model's own JSON
    assert one.call_id != two.call_id
    assert len({said.id, one.id, two.id}) == 3
    assert response.tools[0].model_dump(exclude_none=True) == FUNCTION
    assert response.tool_choice == "auto"


def test_one_call_at_a_time(site: Site) -> None:
    site.script.say(f"{call('get_weather', '{}')}\n{call('get_weather', '{}')}")
    reply = site.client().responses.create(
        model=MODEL, input="hi", tools=[FUNCTION], parallel_tool_calls=False
    )
    assert [item.type for item in reply.output] == ["function_call"]
    assert reply.parallel_tool_calls is False


def test_a_custom_tool_takes_words(site: Site) -> None:
    tool = {
        "type": "custom",
        "name": "apply_patch",
        "description": "Patches.",
        "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "x"'},
    }
    site.script.say(call("apply_patch", '{"input": "*** Begin\\n+é"}'))
    events = events_of(post(site, tools=[tool], stream=True))
    (item,) = rebuilt(events)
    assert (item["type"], item["name"], item["input"]) == (
        "custom_tool_call",
        "apply_patch",
        "*** Begin\n+é",
    )
    shown = site.last().request.tools[0]["function"]
    assert shown["parameters"]["required"] == ["input"]
    assert "lark grammar" in shown["description"]
    answer = {"type": "custom_tool_call_output", "call_id": item["call_id"], "output": "done"}
    again = site.client().responses.create(model=MODEL, input=[USER, item, answer], tools=[tool])
    messages = site.get(again.id).request.messages
    assert [m["role"] for m in messages] == ["user", "assistant", "tool"]
    assert json.loads(messages[1]["tool_calls"][0]["function"]["arguments"]) == {
        "input": "*** Begin\n+é"
    }
    assert messages[2] == {"role": "tool", "tool_call_id": item["call_id"], "content": "done"}
    whole(again.model_dump(mode="json"))


def test_the_local_shell(site: Site) -> None:
    tool = {"type": "local_shell"}
    site.script.say(call("local_shell", '{"command": ["ls", "-l"], "timeout_ms": 5}'))
    (item,) = rebuilt(events_of(post(site, tools=[tool], stream=True)))
    assert item["type"] == "local_shell_call"
    assert item["action"] == {"type": "exec", "command": ["ls", "-l"], "env": {}, "timeout_ms": 5}
    answer = {"type": "local_shell_call_output", "id": item["call_id"], "output": "a\nb"}
    again = site.client().responses.create(model=MODEL, input=[USER, item, answer], tools=[tool])
    made = site.get(again.id).request.messages[1]["tool_calls"][0]["function"]
    assert json.loads(made["arguments"]) == {"command": ["ls", "-l"], "timeout_ms": 5}
    site.script.say(call("local_shell", '{"command": "ls"}'))
    (odd,) = rebuilt(events_of(post(site, tools=[tool], stream=True)))
    assert (odd["type"], odd["name"]) == (
        "function_call",
        "local_shell",
    )  # no command: the client says so


def test_tools_within_a_namespace(site: Site) -> None:
    tool = {
        "type": "namespace",
        "name": "agents",
        "description": "d",
        "tools": [FUNCTION | {"name": "spawn"}],
    }
    site.script.say(call("agents__spawn", "{}"))
    reply = site.client().responses.create(model=MODEL, input="hi", tools=[tool])
    (made,) = reply.output
    assert made.type == "function_call"
    assert (made.name, made.namespace) == ("spawn", "agents")
    back = [USER, made.model_dump(exclude_none=True), _output(made.call_id, "ok")]
    again = site.client().responses.create(model=MODEL, input=back, tools=[tool])
    first, second = site.get(reply.id), site.get(again.id)
    assert first.reply is not None
    assert first.reply.mark is not None
    assert first.reply.mark.chain in [m.chain for m in second.request.marks]


def _output(call_id: str, text: str) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": text}


def test_tools_that_only_their_service_has_are_named(site: Site) -> None:
    tools = [
        FUNCTION,
        {"type": "web_search"},
        {"type": "mcp", "server_label": "x"},
        {"type": "new\r\nthing"},
    ]
    answer = post(site, tools=tools, truncation="auto")
    assert answer.status_code == 200
    noted = answer.headers["X-OpenClaw-Ignored"]
    assert noted.startswith("tools: web_search; tools: mcp; tools: new??thing; truncation")
    assert [t["function"]["name"] for t in site.last().request.tools] == ["get_weather"]
    assert "X-OpenClaw-Ignored" not in post(site).headers


def test_the_choice_of_tools(site: Site) -> None:
    site.script.say(call("get_weather", "{}"))
    client, other = site.client(), FUNCTION | {"name": "other"}
    reply = client.responses.create(model=MODEL, input="hi", tools=[FUNCTION], tool_choice="none")
    assert reply.output[0].type == "message"
    assert not site.get(reply.id).request.tools
    allowed = {
        "type": "allowed_tools",
        "mode": "auto",
        "tools": [{"type": "function", "name": "other"}],
    }
    reply = client.responses.create(
        model=MODEL, input="hi", tools=[FUNCTION, other], tool_choice=allowed
    )
    assert [t["function"]["name"] for t in site.get(reply.id).request.tools] == ["other"]
    must = allowed | {"mode": "required"}
    for choice in ({"type": "function", "name": "other"}, must):
        site.script.say(call("other", "{}"))
        reply = client.responses.create(
            model=MODEL, input="hi", tools=[FUNCTION, other], tool_choice=choice
        )
        kept = site.get(reply.id).request
        assert len(kept.tools) == (1 if choice is must else 2)  # only allowed tools are shown
        assert "other" in (kept.sampling.grammar or "")
        assert "get_weather" not in (kept.sampling.grammar or "")
        assert reply.tool_choice.model_dump(exclude_none=True) == choice
    for choice in (
        {"type": "function", "name": "gone"},
        {"type": "web_search_preview"},
        "sometimes",
        "required",
    ):
        with pytest.raises(openai.BadRequestError) as caught:
            client.responses.create(
                model=MODEL,
                input="hi",
                tools=[] if choice == "required" else [FUNCTION],
                tool_choice=choice,
            )
        assert caught.value.param == "tool_choice"
