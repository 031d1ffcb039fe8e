"""Agno's Responses client, unmodified: two parallel calls in one streamed reply."""

from __future__ import annotations

import pytest
from agno.agent import Agent
from agno.models.base import Model
from agno.models.openai import OpenAILike, OpenAIResponses
from tests.external.clients.conftest import Talk, call
from tests.serve.conftest import KEY

CALLS = "\n".join(call("get_weather", f'{{"city": "{city}"}}') for city in ("Rome", "Oslo"))


@pytest.mark.parametrize("api", [OpenAIResponses, OpenAILike])
@pytest.mark.parametrize("is_streamed", [True, False])
def test_two_parallel_calls_are_both_run(talk: Talk, api: type[Model], is_streamed: bool) -> None:
    """An agent that loses one of two calls sends a history with one result, which no later turn can mend."""
    asked: list[str] = []

    def get_weather(city: str) -> str:
        """Say what the weather of a city is.

        Args:
            city: its name.
        """
        asked.append(city)
        return f"It rains in {city}."

    talk.says(CALLS, "It rains in both.", "You are welcome.")
    model = api(id="openclaw", base_url=f"{talk.site.url}/v1", api_key=KEY)
    agent = Agent(model=model, tools=[get_weather], telemetry=False)
    if is_streamed:
        events = agent.run("Does it rain in Rome and Oslo?", stream=True)
        text = "".join(
            str(event.content) for event in events if event.event == "RunContent" and event.content
        )
    else:
        text = agent.run("Does it rain in Rome and Oslo?").content
    assert text == "It rains in both."
    assert sorted(asked) == ["Oslo", "Rome"]
    exchanges = [exchange for exchange, _, _ in talk.collected()]
    results = [m["content"] for m in exchanges[1].request.messages if m["role"] == "tool"]
    assert results == ["It rains in Rome.", "It rains in Oslo."]
    first, second = talk.links()
    assert first.how == "exact"
    assert first.reaction == ("It rains in Rome.", "It rains in Oslo.")
    assert second.parent == 0
