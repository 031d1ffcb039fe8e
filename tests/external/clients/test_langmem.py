"""LangChain's ChatOpenAI with langmem's short-term memory, unmodified."""

from __future__ import annotations

from langchain_core.messages import AnyMessage, HumanMessage
from langchain_openai import ChatOpenAI
from langmem.short_term import RunningSummary, summarize_messages
from tests.external.clients.conftest import Link, Talk
from tests.serve.conftest import KEY

SAID = [
    "What is the capital of France?",
    "What is the capital of Italy?",
    "You forgot to name the river.",
    "Much better, thanks.",
    "Now tell me about Spain.",
]
REPLIES = [
    "The capital of France is Paris.",
    "The capital of Italy is Rome, of course.",
    "The Tiber flows through the city of Rome.",
    "It was a pleasure to help you.",
    "The capital of Spain is Madrid, on a plateau.",
]
SUMMARY = "The user asked for the capitals of two countries."
LONGER = "The user asked for the capitals of two countries and for a river."
MESSAGES = 4
"""As many are summarised at a time. Each counts as one token."""


def test_summaries_are_side_traffic(talk: Talk) -> None:
    """langmem summarises everything up to the last reply. What the person writes next reacts to that reply, which the
    request no longer has."""
    talk.says(*REPLIES[:2], SUMMARY, *REPLIES[2:4], LONGER, REPLIES[4])
    model = ChatOpenAI(model="openclaw", base_url=talk.site.url + "/v1", api_key=KEY, max_retries=0)
    history: list[AnyMessage] = []
    running: RunningSummary | None = None
    for text in SAID:
        history.append(HumanMessage(text, id=text))
        result = summarize_messages(
            history,
            running_summary=running,
            model=model,
            token_counter=len,
            max_tokens=MESSAGES + 1,
            max_tokens_before_summary=MESSAGES,
            max_summary_tokens=1,
        )
        running = result.running_summary or running
        history.append(model.invoke(result.messages))
    assert running is not None
    assert running.summary == LONGER
    assert talk.links() == [
        Link(None, (SAID[1],), "exact"),
        Link(0, (SAID[2],), "distinctive"),
        Link(1, side=True),
        Link(1, (SAID[3],), "exact"),
        Link(3, (SAID[4],), "distinctive"),
        Link(4, side=True),
        Link(4),
    ]
    assert len({turn.session for _, turn, _ in talk.collected()}) == 1
