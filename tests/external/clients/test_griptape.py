"""Griptape, unmodified: a streamed reply that begins with a call."""

from __future__ import annotations

from griptape.artifacts import TextArtifact
from griptape.drivers.prompt.openai import OpenAiChatPromptDriver
from griptape.structures import Agent
from griptape.tools import BaseTool
from griptape.utils.decorators import activity
from schema import Schema
from tests.external.clients.conftest import Link, Talk, call
from tests.serve.conftest import KEY


class Weather(BaseTool):
    """The tool of the agent."""

    @activity(config={"description": "Say the weather.", "schema": Schema({"city": str})})
    def look(self, city: str) -> TextArtifact:
        """Return the weather of a city."""
        return TextArtifact(f"It rains in {city}.")


def test_a_stream_that_begins_with_a_call(talk: Talk) -> None:
    """The call is run, and the agent's second request has its result."""
    talk.says(call("Weather_look", '{"city": "Rome"}'), "It rains.")
    driver = OpenAiChatPromptDriver(
        model="openclaw", base_url=f"{talk.site.url}/v1", api_key=KEY, stream=True
    )
    agent = Agent(prompt_driver=driver, tools=[Weather()])
    assert agent.run("Does it rain in Rome?").output.to_text() == "It rains."
    first, second = talk.links()
    assert first == Link(None, ("It rains in Rome.",), "exact")
    assert second.parent == 0
