"""OpenAI's agents SDK, unmodified: one agent hands the conversation over to another."""

from __future__ import annotations

import asyncio
import json

import pytest
from agents import (
    Agent,
    Model,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
)
from tests.external.clients.conftest import Link, Talk, call


@function_tool
def get_invoice(number: int) -> str:
    """Look an invoice up."""
    return f"Invoice {number} is paid."


@pytest.mark.parametrize("api", [OpenAIChatCompletionsModel, OpenAIResponsesModel])
def test_a_hand_off(talk: Talk, api: type[Model]) -> None:
    """The second agent has other instructions: the first agent's turn links by its call, the rest exactly."""
    talk.says(
        call("transfer_to_billing", "{}"),
        call("get_invoice", '{"number": 7}'),
        "Your invoice has been paid.",
        "You are welcome.",
    )

    async def converse() -> None:
        async with talk.site.async_client() as client:
            model = api("openclaw", client)
            billing = Agent(
                name="Billing", instructions="You know invoices.", model=model, tools=[get_invoice]
            )
            front = Agent(
                name="Front desk", instructions="Hand over.", model=model, handoffs=[billing]
            )
            found = await Runner.run(front, "Is invoice 7 paid?")
            assert found.final_output == "Your invoice has been paid."
            assert found.last_agent is billing
            thanks = {"role": "user", "content": "Great, thanks!"}
            await Runner.run(billing, [*found.to_input_list(), thanks])

    asyncio.run(converse())
    rows = talk.collected()
    assert len({turn.session for _, turn, _ in rows}) == 1
    assert talk.links() == [
        Link(None, (json.dumps({"assistant": "Billing"}),), "tool_call"),
        Link(0, ("Invoice 7 is paid.",), "exact"),
        Link(1, ("Great, thanks!",), "exact"),
        Link(2),
    ]
