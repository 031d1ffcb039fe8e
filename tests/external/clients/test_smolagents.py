"""smolagents' two agents, unmodified."""

from __future__ import annotations

from smolagents import CodeAgent, OpenAIModel, ToolCallingAgent, tool
from tests.external.clients.conftest import Link, Talk, call
from tests.serve.conftest import KEY


@tool
def get_weather(city: str) -> str:
    """The weather in a city.

    Args:
        city: its name
    """
    return f"It is sunny in {city}."


def model(talk: Talk) -> OpenAIModel:
    return OpenAIModel("openclaw", api_base=talk.site.url + "/v1", api_key=KEY)


def test_code_agent(talk: Talk) -> None:
    """It puts its stop string back behind each reply, and its own record of the call behind that."""
    talk.says(
        "Thought: I look.\n<code>\nprint(get_weather('Paris'))\n",
        "Thought: I look again.\n<code>\nprint(get_weather('Rome'))\n",
        "Thought: I know it.\n<code>\nfinal_answer('Sunny in both.')\n",
        "Thought: It is the same.\n<code>\nfinal_answer('Still sunny.')\n",
    )
    agent = CodeAgent(tools=[get_weather], model=model(talk), max_steps=4, verbosity_level=0)
    assert agent.run("How is the weather in Paris and Rome?") == "Sunny in both."
    assert agent.run("And tomorrow?", reset=False) == "Still sunny."
    links = talk.links()
    assert [link.parent for link in links] == [None, 0, 1, 2]
    assert [link.how for link in links] == ["exact", "exact", "exact", None]
    assert not any(link.side or link.unlinked for link in links)
    observed = [link.reaction[-1] if link.reaction else None for link in links]
    expected = ["It is sunny in Paris.", "It is sunny in Rome.", "And tomorrow?"]
    assert all(text in (seen or "") for text, seen in zip(expected, observed, strict=False))
    assert observed[3] is None
    assert all(
        exchange.request.sampling.untrainable_reason() is None
        for exchange, _, _ in talk.collected()
    )


def test_tool_calling_agent(talk: Talk) -> None:
    """It forces each call, so nothing trains, and replaces each call by a text of its own, so nothing links."""
    talk.says(
        call("get_weather", '{"city": "Paris"}'),
        call("get_weather", '{"city": "Rome"}'),
        call("final_answer", '{"answer": "Sunny in both."}'),
    )
    agent = ToolCallingAgent(tools=[get_weather], model=model(talk), max_steps=4, verbosity_level=0)
    assert agent.run("How is the weather in Paris and Rome?") == "Sunny in both."
    links = talk.links()
    assert links[0] == Link()
    assert [link.parent for link in links] == [None, None, None]
    assert [link.reaction for link in links] == [None, None, None]
    for link in links[1:]:
        assert link.unlinked is not None
        assert "another text in place of the reply" in link.unlinked
    assert all(
        "free reply" in str(e.request.sampling.untrainable_reason()) for e, _, _ in talk.collected()
    )
