"""Traps of linking: a summary in place of the history. What the person writes next reacts to the turn before it."""

from __future__ import annotations

from dataclasses import replace

from tests.collect.cases import BEAT, FIRST, LONG, OTHER, THANKS, A, Case, Q, S
from tests.collect.cases_traps_clients import ASK_SUMMARY, NOW_SUMMARY, SUMMARY
from tests.collect.cases_traps_edits import BOOKED, BYE, EDITED, no_reaction, reacts
from tests.collect.world import Ask

from openclaw_rl.types import Kind

SUMMARISE = Ask(
    name="sum", history=[S, Q, A, ASK_SUMMARY], reply=SUMMARY, expect={"kind": Kind.SIDE}
)
TO_DATE = f"u Here is a summary of the conversation to date:\n\n{SUMMARY}"
NOT_OURS = "no reply of this gateway"
UNKNOWN = "the turn before the summary"
OPENCODE_SYSTEM = "s You are opencode, an interactive CLI tool."
SO_FAR = "u What did we do so far?"
GO_ON = "u Continue if you have next steps, or stop and ask for clarification if you are unsure how to proceed."
CODEX = (
    "u Another language model started to solve this problem and produced a summary of its thinking process. You also "
    "have access to the state of the tools that were used by that language model. Use this to build on the work that "
    "has already been done and avoid duplicating work. Here is the summary produced by the other language model, use "
    f"the information in this summary to assist with your own analysis:\n{SUMMARY}"
)
GEMINI_CONTEXT = (
    "u <session_context>\nThis is the Gemini CLI. We are setting up the context for our chat.\n"
    "Today's date is Friday.\n</session_context>"
)
GEMINI_SUMMARISE = (
    "u Generate a new <state_snapshot> based on the provided history.\n\n"
    "First, reason in your scratchpad. Then, generate the updated <state_snapshot>."
)
GEMINI_CHECK = (
    "u Critically evaluate the <state_snapshot> you just generated. Did you omit any details?"
)
GEMINI_DONE = "a Got it. Thanks for the additional context!"
DRAFT = "<state_snapshot><overall_goal>Eat on Friday.</overall_goal></state_snapshot>"
SNAPSHOT = "<state_snapshot><overall_goal>Eat by the river on Friday at eight.</overall_goal></state_snapshot>"
GEMINI_TASK = "s You are a specialized system component responsible for distilling chat history into a snapshot."
GEMINI_CALLS = [
    Ask(name="1", history=[S, GEMINI_CONTEXT, Q], reply=LONG),
    Ask(
        name="sum",
        history=[GEMINI_TASK, GEMINI_CONTEXT, Q, A, GEMINI_SUMMARISE],
        reply=DRAFT,
        expect={"kind": Kind.SIDE},
    ),
    Ask(
        name="check",
        history=[GEMINI_TASK, GEMINI_CONTEXT, Q, A, f"a {DRAFT}", GEMINI_CHECK],
        reply=SNAPSHOT,
        expect={"kind": Kind.SIDE},
    ),
]
ENVIRONMENT = "u <environment_context>\n  <cwd>/work</cwd>\n</environment_context>"


def transcript(*replies: str) -> str:
    """Return opencode's request for a summary: it quotes the conversation, and has no message of it."""
    said = "\n\n".join(
        f"[User]: Where shall we eat on Friday?\n\n[Assistant]: {reply}" for reply in replies
    )
    return (
        f"u Here is the conversation so far:\n\n<conversation>\n{said}\n</conversation>\n\n"
        "Create a new anchored summary from the conversation history in the <conversation> tags above so another "
        "coding agent can continue the work."
    )


def quoting(*replies: str, session: str | None = None) -> Ask:
    return replace(SUMMARISE, history=["s You summarize.", transcript(*replies)], session=session)


SUMMARIES: dict[str, Case] = {
    "langmem puts the summary into a system message: the words react to the reply before it": (
        [
            FIRST,
            SUMMARISE,
            Ask(
                name="2",
                history=[NOW_SUMMARY, THANKS],
                reply=BOOKED,
                expect=reacts("1", THANKS[2:], how="distinctive")
                | {"session": "1", "relation": "continuation", "unlinked": None},
            ),
            Ask(
                name="3",
                history=[NOW_SUMMARY, THANKS, f"a {BOOKED}", BYE],
                expect=reacts("2", BYE[2:]) | {"session": "1"},
            ),
        ],
        {"1": "closed", "sum": "dropped side", "2": "closed"},
    ),
    "Crush sends its summary as a user message without other words": (
        [
            FIRST,
            Ask(
                name="sum",
                history=[
                    "s You are summarizing a conversation to preserve context for continuing work later.",
                    Q,
                    A,
                    "u Provide a detailed summary of our conversation above.",
                ],
                reply=SUMMARY,
                expect={"kind": Kind.SIDE},
            ),
            Ask(
                name="2",
                history=[S, f"u {SUMMARY}", THANKS],
                reply=BOOKED,
                expect=reacts("1", THANKS[2:], how="distinctive")
                | {"session": "1", "unlinked": None},
            ),
            Ask(
                name="3",
                history=[S, f"u {SUMMARY}", THANKS, f"a {BOOKED}", BYE],
                expect=reacts("2", BYE[2:]) | {"session": "1"},
            ),
        ],
        {"1": "closed", "sum": "dropped side", "2": "closed"},
    ),
    "Gemini CLI checks its summary, and puts a reply of its own behind it": (
        [
            *GEMINI_CALLS,
            Ask(
                name="2",
                history=[S, GEMINI_CONTEXT, f"u {SNAPSHOT}", GEMINI_DONE, THANKS],
                reply=BOOKED,
                expect=reacts("1", THANKS[2:], how="distinctive")
                | {"session": "1", "unlinked": None},
            ),
            Ask(
                name="3",
                history=[
                    S,
                    GEMINI_CONTEXT,
                    f"u {SNAPSHOT}",
                    GEMINI_DONE,
                    THANKS,
                    f"a {BOOKED}",
                    BYE,
                ],
                expect=reacts("2", BYE[2:]) | {"session": "1"},
            ),
        ],
        {"1": "closed", "sum": "dropped side", "check": "dropped side", "2": "closed"},
    ),
    "Gemini CLI's words behind a text of the person are no summary": (
        [
            *GEMINI_CALLS,
            Ask(
                name="2",
                history=[S, "u Remember that I like fish, and nothing else.", GEMINI_DONE, THANKS],
                expect=no_reaction() | {"session": "2", "unlinked": "not from this gateway"},
            ),
        ],
        {"1": "served"},
    ),
    "a person sends the text of a main reply as a message of a new conversation: it is no summary": (
        [
            FIRST,
            Ask(
                name="2",
                history=[S, f"u {LONG}", THANKS],
                expect=no_reaction() | {"unlinked": None},
            ),
        ],
        {"1": "served"},
    ),
    "langmem keeps the system message of the application before the summary": (
        [
            FIRST,
            SUMMARISE,
            Ask(
                name="2",
                history=[S, NOW_SUMMARY, THANKS],
                expect=reacts("1", THANKS[2:], how="distinctive"),
            ),
        ],
        {"1": "closed"},
    ),
    "LangChain's prompt quotes the conversation, and its summary is a user message": (
        [
            FIRST,
            Ask(
                name="sum",
                history=[
                    "u <role>\nContext Extraction Assistant\n</role>\n\n<messages>\nMessages to summarize:\n"
                    f"Human: Where shall we eat on Friday?\nAI: {LONG}\n</messages>"
                ],
                reply=SUMMARY,
                expect={"kind": Kind.SIDE},
            ),
            Ask(
                name="2",
                history=[S, TO_DATE, THANKS],
                expect=reacts("1", THANKS[2:], how="distinctive") | {"session": "1"},
            ),
        ],
        {"1": "closed"},
    ),
    "Codex keeps the person's messages before the summary, and adds its environment after it": (
        [
            FIRST,
            SUMMARISE,
            Ask(
                name="2",
                history=[S, Q, CODEX, ENVIRONMENT, THANKS],
                expect=reacts("1", THANKS[2:], how="distinctive"),
            ),
        ],
        {"1": "closed"},
    ),
    "opencode's prompt quotes the conversation, and its summary is the only reply that is left": (
        [
            Ask(name="1", history=[OPENCODE_SYSTEM, Q], reply=LONG, session="x"),
            quoting(LONG, session="x"),
            Ask(
                name="2",
                history=[OPENCODE_SYSTEM, SO_FAR, f"a {SUMMARY}", THANKS],
                session="x",
                expect={"answers": {"1": ("distinctive", (THANKS[2:],))}, "parent": "sum"},
            ),
        ],
        {"1": "closed", "sum": "dropped side"},
    ),
    "opencode goes on by itself behind its summary: the words react to what it said then": (
        [
            Ask(name="1", history=[OPENCODE_SYSTEM, Q], reply=LONG, session="x"),
            quoting(LONG, session="x"),
            Ask(
                name="2",
                history=[OPENCODE_SYSTEM, SO_FAR, f"a {SUMMARY}", GO_ON],
                session="x",
                reply=BOOKED,
                expect=no_reaction("sum"),
            ),
            Ask(
                name="3",
                history=[OPENCODE_SYSTEM, SO_FAR, f"a {SUMMARY}", GO_ON, f"a {BOOKED}", THANKS],
                session="x",
                expect=reacts("2", THANKS[2:]),
            ),
        ],
        {"1": "served", "2": "closed"},
    ),
    "other words behind the same summary may react to a later reply: the first words stay": (
        [
            FIRST,
            SUMMARISE,
            Ask(name="2", history=[NOW_SUMMARY, THANKS], reply=BOOKED),
            Ask(name="3", history=[NOW_SUMMARY, EDITED], expect=no_reaction("1")),
        ],
        {"1": "closed", "2": "served"},
    ),
    "the same request once more adds nothing": (
        [
            FIRST,
            SUMMARISE,
            Ask(name="2", history=[NOW_SUMMARY, THANKS], reply=BOOKED),
            Ask(
                name="3",
                history=[NOW_SUMMARY, THANKS],
                expect=no_reaction("1") | {"relation": "regeneration"},
            ),
        ],
        {"1": "closed", "2": "served"},
    ),
    "a heartbeat stands between the summary and the words: it is no part of the reaction": (
        [
            FIRST,
            SUMMARISE,
            Ask(
                name="2",
                history=[NOW_SUMMARY, BEAT, THANKS],
                expect=reacts("1", THANKS[2:], how="distinctive"),
            ),
        ],
        {"1": "closed"},
    ),
    "only the summary is left and the agent works on: no reaction, but the same conversation": (
        [
            FIRST,
            SUMMARISE,
            Ask(
                name="2",
                history=[S, Q, CODEX],
                expect=no_reaction("1") | {"session": "1", "unlinked": None},
            ),
        ],
        {"1": "served"},
    ),
    "what a side call remembered stands in another conversation's system message: it is no summary of that one": (
        [
            FIRST,
            replace(SUMMARISE, name="memory"),
            Ask(
                name="2",
                history=[
                    f"s You are a helpful agent. What you know of the user: {SUMMARY}",
                    "u What is 2 + 2?",
                ],
                expect=no_reaction() | {"unlinked": None},
            ),
            Ask(
                name="3",
                history=[f"s {SUMMARY}", "u What is 3 + 3?"],
                expect=no_reaction() | {"session": "3"},
            ),
        ],
        {"1": "served"},
    ),
    "another model wrote the summary: the reason says so": (
        [
            FIRST,
            Ask(
                name="2",
                history=[NOW_SUMMARY, THANKS],
                expect=no_reaction() | {"unlinked": NOT_OURS},
            ),
        ],
        {"1": "served"},
    ),
    "the summary quotes our reply: the quotation is not a summary of ours": (
        [
            FIRST,
            Ask(
                name="2",
                history=[f"s Summary of the conversation so far: I said: {LONG}", THANKS],
                expect=no_reaction() | {"unlinked": NOT_OURS},
            ),
        ],
        {"1": "served"},
    ),
    "the client adds words of its own to our summary: it is not our text": (
        [
            FIRST,
            SUMMARISE,
            Ask(
                name="2",
                history=[f"{NOW_SUMMARY} Dinner is at eight.", THANKS],
                expect=no_reaction() | {"unlinked": NOT_OURS},
            ),
        ],
        {"1": "served"},
    ),
    "a short summary may be anybody's": (
        [
            FIRST,
            replace(SUMMARISE, reply="Dinner on Friday."),
            Ask(
                name="2",
                history=["s Summary of the conversation so far: Dinner on Friday.", THANKS],
                expect=no_reaction() | {"unlinked": "under 24 characters"},
            ),
        ],
        {"1": "served"},
    ),
    "two conversations have the same summary: either could be meant, so none": (
        [
            FIRST,
            SUMMARISE,
            Ask(name="b", history=[S, "u Dinner?"], reply=OTHER),
            Ask(name="sum b", history=[S, "u Dinner?", f"a {OTHER}", ASK_SUMMARY], reply=SUMMARY),
            Ask(
                name="2",
                history=[NOW_SUMMARY, THANKS],
                expect=no_reaction() | {"unlinked": "ambiguous: 2"},
            ),
        ],
        {"1": "served", "b": "served"},
    ),
    "two conversations have the same summary: the session header decides": (
        [
            replace(FIRST, session="x"),
            replace(SUMMARISE, session="x"),
            Ask(name="b", history=[S, "u Dinner?"], reply=OTHER, session="y"),
            Ask(
                name="sum b",
                history=[S, "u Dinner?", f"a {OTHER}", ASK_SUMMARY],
                reply=SUMMARY,
                session="y",
            ),
            Ask(
                name="2",
                history=[NOW_SUMMARY, THANKS],
                session="y",
                expect=reacts("b", THANKS[2:], how="distinctive"),
            ),
        ],
        {"1": "served", "b": "closed"},
    ),
    "another user's summary is not theirs": (
        [
            replace(FIRST, user="ann"),
            replace(SUMMARISE, user="ann"),
            Ask(
                name="2",
                history=[NOW_SUMMARY, THANKS],
                user="bob",
                expect=no_reaction() | {"unlinked": "another user"},
            ),
        ],
        {"1": "served"},
    ),
    "the summary was still being written": (
        [
            FIRST,
            replace(SUMMARISE, reply=None),
            Ask(
                name="2",
                history=[NOW_SUMMARY, THANKS],
                expect=no_reaction() | {"unlinked": NOT_OURS},
            ),
        ],
        {"1": "served"},
    ),
    "a reply follows the summary: the words react to it, whoever wrote it": (
        [
            FIRST,
            SUMMARISE,
            Ask(
                name="2",
                history=[NOW_SUMMARY, Q, "a I asked the chef, and he expects us.", THANKS],
                expect=no_reaction() | {"unlinked": "not from this gateway"},
            ),
        ],
        {"1": "served"},
    ),
    "the quoted reply is not the last of its conversation: the words react to a reply that is not quoted": (
        [
            FIRST,
            Ask(name="2", history=[S, Q, A, THANKS], reply="Done."),
            quoting(LONG),
            Ask(name="3", history=[S, TO_DATE, BYE], expect=no_reaction() | {"unlinked": UNKNOWN}),
        ],
        {"1": "closed", "2": "served"},
    ),
    "the quoted reply is the last one of two conversations: either could be meant, so none": (
        [
            FIRST,
            Ask(name="b", history=[S, "u Dinner?"], reply=LONG),
            quoting(LONG),
            Ask(
                name="3", history=[S, TO_DATE, THANKS], expect=no_reaction() | {"unlinked": UNKNOWN}
            ),
        ],
        {"1": "served", "b": "served"},
    ),
    "the quoted reply is the last one of two conversations: the session header decides": (
        [
            replace(FIRST, session="x"),
            Ask(name="b", history=[S, "u Dinner?"], reply=LONG, session="y"),
            quoting(LONG, session="x"),
            Ask(
                name="3",
                history=[S, TO_DATE, THANKS],
                session="x",
                expect=reacts("1", THANKS[2:], how="distinctive"),
            ),
        ],
        {"1": "closed", "b": "served"},
    ),
    "the last reply before the summary was a heartbeat's: the turn is not known": (
        [
            FIRST,
            Ask(name="beat", history=[S, Q, A, BEAT], reply="HEARTBEAT_OK"),
            replace(SUMMARISE, history=[S, Q, A, BEAT, "a HEARTBEAT_OK", ASK_SUMMARY]),
            Ask(
                name="2",
                history=[NOW_SUMMARY, THANKS],
                expect=no_reaction() | {"unlinked": UNKNOWN},
            ),
        ],
        {"1": "served", "beat": "dropped side"},
    ),
}
