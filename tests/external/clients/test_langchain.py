"""LangChain's ChatOpenAI, unmodified."""

from __future__ import annotations

import json

import pytest
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel
from tests.external.clients.conftest import Talk, call
from tests.serve.conftest import KEY


@tool
def get_weather(city: str) -> str:
    """The weather in a city."""
    return f"It is sunny in {city}."


class Person(BaseModel):
    """Somebody."""

    name: str
    age: int


def chat(talk: Talk, **given: object) -> ChatOpenAI:
    return ChatOpenAI(
        model="openclaw", base_url=talk.site.url + "/v1", api_key=KEY, max_retries=0, **given
    )


@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_using_exchange(talk: Talk, stream: bool) -> None:
    both = call("get_weather", '{"city": "Paris"}') + "\n" + call("get_weather", '{"city": "Rome"}')
    talk.says(f"Let me look.\n{both}", "Sunny in both.")
    model = chat(talk).bind_tools([get_weather])
    history = [HumanMessage("How is the weather in Paris and Rome?")]
    for _ in range(2):
        if stream:
            whole: AIMessageChunk | None = None
            for chunk in model.stream(history):
                whole = chunk if whole is None else whole + chunk
            assert whole is not None
            answer = AIMessage(content=whole.content, tool_calls=whole.tool_calls)
        else:
            answer = model.invoke(history)
        history.append(answer)
        history += [get_weather.invoke(c) for c in answer.tool_calls]
    assert history[1].content == "Let me look."
    assert [c["args"] for c in history[1].tool_calls] == [{"city": "Paris"}, {"city": "Rome"}]
    assert history[-1].content == "Sunny in both."
    first, second = talk.check_captured()
    results = [m.content for m in history if isinstance(m, ToolMessage)]
    assert first[2] is not None
    assert [m["content"] for m in first[2].messages] == results
    assert first[0].request.tools[0]["function"]["name"] == "get_weather"
    assert second[2] is None


def test_usage_while_streaming(talk: Talk) -> None:
    talk.says("One two three.")
    chunks = list(chat(talk, stream_usage=True).stream("hi"))
    usage = next(c.usage_metadata for c in chunks if c.usage_metadata)
    (row,) = talk.check_captured()
    assert usage["output_tokens"] == len(row[0].reply.response_ids)
    assert usage["input_tokens"] == len(row[0].request.prompt_ids)


@pytest.mark.parametrize("method", ["json_schema", "function_calling", "json_mode"])
def test_structured_output(talk: Talk, method: str) -> None:
    """The grammar goes to the engine; what came under it is not trained on, and the reason says so."""
    value = json.dumps({"name": "Ada", "age": 36})
    talk.says(call("Person", value) if method == "function_calling" else value)
    found = (
        chat(talk)
        .with_structured_output(Person, method=method)
        .invoke("Who was Ada? Answer in JSON.")
    )
    assert found == Person(name="Ada", age=36)
    ((exchange, _, _),) = talk.collected()
    grammar = exchange.request.sampling.grammar
    assert grammar is not None
    assert ("age" in grammar) == (method != "json_mode")
    assert "free reply" in str(exchange.request.sampling.untrainable_reason())


def test_several_generations(talk: Talk) -> None:
    talk.says("A.", "B.", "C.")
    result = chat(talk, n=3).generate([[HumanMessage("hi")]])
    assert sorted(g.text for g in result.generations[0]) == ["A.", "B.", "C."]
    assert len(talk.collected()) == 3
