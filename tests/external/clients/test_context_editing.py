"""LangChain's agent with ContextEditingMiddleware, unmodified."""

from __future__ import annotations

from langchain.agents import create_agent
from langchain.agents.middleware import ClearToolUsesEdit, ContextEditingMiddleware
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from tests.external.clients.conftest import Link, Talk, call
from tests.serve.conftest import KEY


@tool
def read_file(name: str) -> str:
    """Read a file."""
    return f"cat: {name}: No such file"


def test_cleared_results_are_no_reactions(talk: Talk) -> None:
    """Each turn keeps the result that the model saw first. Behind cleared text, a turn links by its call."""
    talk.says(
        call("read_file", '{"name": "one.txt"}'),
        call("read_file", '{"name": "two.txt"}'),
        call("read_file", '{"name": "three.txt"}'),
        "None of the three files exists.",
        "I am sorry about that.",
    )
    agent = create_agent(
        ChatOpenAI(model="openclaw", base_url=talk.site.url + "/v1", api_key=KEY, max_retries=0),
        tools=[read_file],
        middleware=[ContextEditingMiddleware(edits=[ClearToolUsesEdit(trigger=1, keep=1)])],
    )
    state = agent.invoke({"messages": [{"role": "user", "content": "Read the three files."}]})
    agent.invoke(
        {
            "messages": [
                *state["messages"],
                {"role": "user", "content": "You read the wrong folder."},
            ]
        }
    )
    assert "[cleared]" in str(talk.collected()[2][0].request.messages)
    assert talk.links() == [
        Link(None, ("cat: one.txt: No such file",), "exact"),
        Link(0, ("cat: two.txt: No such file",), "tool_call"),
        Link(1, ("cat: three.txt: No such file",), "tool_call"),
        Link(2, ("You read the wrong folder.",), "exact"),
        Link(3),
    ]
