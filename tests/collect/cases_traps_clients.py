"""Traps of linking: prompts that clients write, replaced histories, and replies that are equal by chance."""

from __future__ import annotations

from tests.collect.cases import BEAT, FIRST, LONG, NOTES, THANKS, A, Case, Q, S
from tests.collect.cases_traps_edits import BOOKED, BYE, HELLO, clock, no_reaction, reacts
from tests.collect.world import Ask, result

from openclaw_rl.types import Kind

PROMPTS = {
    "langmem": "Create a summary of the conversation above:",
    "langmem, for the second time,": (
        "This is summary of the conversation so far: Dinner on Friday.\n\n"
        "Extend this summary by taking into account the new messages above:"
    ),
    "a LangGraph agent": (
        "This is summary of the conversation to date: Dinner on Friday.\n\n"
        "Extend the summary by taking into account the new messages above:"
    ),
    "opencode": (
        "Provide a detailed prompt for continuing our conversation above. Focus on information that would be helpful "
        "for continuing the conversation, including what we did, what we're doing, which files we're working on, and "
        "what we're going to do next considering new session will not have access to our conversation."
    ),
    "Codex": (
        "You are performing a CONTEXT CHECKPOINT COMPACTION. Create a handoff summary for another LLM that will resume "
        "the task.\n\nInclude:\n- Current progress and key decisions made\n- Important context, constraints, or user "
        "preferences\n- What remains to be done (clear next steps)\n- Any critical data, examples, or references "
        "needed to continue\n\nBe concise, structured, and focused on helping the next LLM seamlessly continue the "
        "work."
    ),
    "Gemini CLI": "First, reason in your scratchpad. Then, generate the <state_snapshot>.",
    "Zed": (
        "Generate a detailed summary of this conversation. Include:\n1. A brief overview of what was discussed\n"
        "2. Key facts or information discovered\n3. Outcomes or conclusions reached\n"
        "4. Any action items or next steps if any\nFormat it in Markdown with headings and bullet points."
    ),
    "a chat page that wants a title": (
        "Generate a concise 3-7 word title for this conversation, omitting punctuation. Go straight to the title."
    ),
    "OpenClaw before a compaction": (
        "Pre-compaction memory flush. Store durable memories now. If there is nothing to store, reply with NO_REPLY."
    ),
}
ASK_SUMMARY = f"u {PROMPTS['langmem']}"
SUMMARY = "Ada wants to eat out on Friday; an Italian place by the river was suggested."
NOW_SUMMARY = f"s Summary of the conversation so far: {SUMMARY}"
WELCOME = "Welcome to Mill Street Books. How can I help you?"
NUDGE = "s The user has been silent for five minutes. Say something."

CLIENTS: dict[str, Case] = {
    **{
        f"the prompt of {client} is no reaction; the person's next words are": (
            [
                FIRST,
                Ask(
                    name="2",
                    history=[S, Q, A, f"u {prompt}"],
                    reply=SUMMARY,
                    expect=no_reaction("1") | {"kind": Kind.SIDE},
                ),
                Ask(name="3", history=[S, Q, A, THANKS], expect=reacts("1", THANKS[2:])),
            ],
            {"1": "closed", "2": "dropped side"},
        )
        for client, prompt in PROMPTS.items()
    },
    "a summary replaces the history, the last reply is kept: by the session header the words react to it": (
        [
            Ask(name="1", history=[S, Q], reply=LONG, session="x"),
            Ask(
                name="2",
                history=[S, Q, A, ASK_SUMMARY],
                reply=SUMMARY,
                session="x",
                expect=no_reaction("1"),
            ),
            Ask(
                name="3",
                history=[S, NOW_SUMMARY, A, THANKS],
                session="x",
                expect=reacts("1", THANKS[2:], how="distinctive"),
            ),
        ],
        {"1": "closed", "2": "dropped side"},
    ),
    "a summary replaces the history, the last two messages are kept: the words react to the last reply": (
        [
            FIRST,
            Ask(name="2", history=[S, Q, A, ASK_SUMMARY], reply=SUMMARY, expect=no_reaction("1")),
            Ask(
                name="3",
                history=[NOW_SUMMARY, Q, A, THANKS],
                expect=reacts("1", THANKS[2:], how="distinctive"),
            ),
        ],
        {"1": "closed", "2": "dropped side"},
    ),
    "opencode's title: the known task is long, and its last user message is the person's": (
        [
            Ask(
                name="1",
                history=[
                    "s You are a title generator. You output ONLY a thread title.\n"
                    + "- Be brief.\n" * 120,
                    Q,
                ],
                expect={"kind": Kind.SIDE},
            ),
        ],
        {"1": "dropped side"},
    ),
    "prompt and summary stay in the history: the words react to the reply before them, not to the summary": (
        [
            FIRST,
            Ask(name="2", history=[S, Q, A, ASK_SUMMARY], reply=SUMMARY, expect=no_reaction("1")),
            Ask(
                name="3",
                history=[S, Q, A, ASK_SUMMARY, f"a {SUMMARY}", THANKS],
                expect={"answers": {"1": ("exact", (THANKS[2:],))}},
            ),
        ],
        {"1": "closed", "2": "dropped side"},
    ),
    "the summary is the only reply that is left: the words react to the reply before it": (
        [
            Ask(name="1", history=[S, Q], reply=LONG, session="x"),
            Ask(
                name="2", history=[S, Q, A, f"u {PROMPTS['opencode']}"], reply=SUMMARY, session="x"
            ),
            Ask(
                name="3",
                history=[S, "u What did we do so far?", f"a {SUMMARY}", THANKS],
                session="x",
                expect={"answers": {"1": ("distinctive", (THANKS[2:],))}},
            ),
        ],
        {"1": "closed", "2": "dropped side"},
    ),
    "a prompt that nobody knows is taken for a reaction: the real words behind the summary revise it": (
        [
            Ask(name="1", history=[S, Q], reply=LONG, session="x"),
            Ask(
                name="2",
                history=[S, Q, A, "u Boil the above down to five lines."],
                reply=SUMMARY,
                session="x",
            ),
            Ask(
                name="3",
                history=[S, NOW_SUMMARY, A, THANKS],
                session="x",
                expect=reacts("1", THANKS[2:], how="distinctive"),
            ),
        ],
        {"1": "closed", "2": "served"},
    ),
    "a memory flush with tools stays in the history: the words react to the reply before it": (
        [
            FIRST,
            Ask(
                name="2",
                history=[S, Q, A, f"u {PROMPTS['OpenClaw before a compaction']}"],
                reply=NOTES,
            ),
            Ask(
                name="3",
                history=[
                    S,
                    Q,
                    A,
                    f"u {PROMPTS['OpenClaw before a compaction']}",
                    NOTES,
                    result("n", "ok"),
                ],
                reply="NO_REPLY",
                expect={"answers": {}},
            ),
            Ask(
                name="4",
                history=[
                    *[
                        S,
                        Q,
                        A,
                        f"u {PROMPTS['OpenClaw before a compaction']}",
                        NOTES,
                        result("n", "ok"),
                    ],
                    *["a NO_REPLY", THANKS],
                ],
                expect={"answers": {"1": ("exact", (THANKS[2:],))}},
            ),
        ],
        {"1": "closed", "2": "dropped side", "3": "dropped side"},
    ),
    "a person asks for a summary in a longer sentence: the words are a person's": (
        [
            FIRST,
            Ask(
                name="2",
                history=[
                    S,
                    Q,
                    A,
                    "u Create a summary of the conversation above and mail it to Bob.",
                ],
                reply=BOOKED,
            ),
            Ask(
                name="3",
                history=[
                    S,
                    Q,
                    A,
                    "u Create a summary of the conversation above and mail it to Bob.",
                    f"a {BOOKED}",
                    BYE,
                ],
            ),
        ],
        {"1": "closed", "2": "closed"},
    ),
    "a lone system message after the reply is no reaction": (
        [
            FIRST,
            Ask(name="2", history=[S, Q, A, "s Keep your replies short."], expect=no_reaction("1")),
            Ask(name="3", history=[S, Q, A, THANKS], expect=reacts("1", THANKS[2:])),
        ],
        {"1": "closed"},
    ),
    "a system message makes the model speak again: the words react to what it said then": (
        [
            FIRST,
            Ask(
                name="2",
                history=[S, Q, A, NUDGE],
                reply="Still there, Ada?",
                expect=no_reaction("1"),
            ),
            Ask(
                name="3",
                history=[S, Q, A, NUDGE, "a Still there, Ada?", "u Yes, I was on the phone."],
                expect=reacts("2", "Yes, I was on the phone."),
            ),
        ],
        {"1": "served", "2": "closed"},
    ),
    "a heartbeat is removed from later histories: the long reply behind it still gets its reaction": (
        [
            FIRST,
            Ask(name="beat", history=[S, Q, A, BEAT], reply="HEARTBEAT_OK"),
            Ask(name="2", history=[S, Q, A, BEAT, "a HEARTBEAT_OK", THANKS], reply=BOOKED),
            Ask(
                name="3",
                history=[S, Q, A, THANKS, f"a {BOOKED}", BYE],
                expect=reacts("2", "Bye", how="distinctive") | {"session": "1"},
            ),
        ],
        {"1": "closed", "beat": "dropped side", "2": "closed"},
    ),
    "a web page shows its own greeting, which a model once said, too: it is not that turn": (
        [
            Ask(name="1", history=[S, HELLO], reply=WELCOME),
            Ask(name="2", history=[S, f"a {WELCOME}", "u Do you have maps?"], expect=no_reaction()),
            Ask(name="3", history=[f"a {WELCOME}", "u When do you open?"], expect=no_reaction()),
        ],
        {"1": "served"},
    ),
    "a few-shot example equals a real reply by chance: it is not that turn": (
        [
            FIRST,
            Ask(
                name="2",
                history=[S, "u Name a place to eat.", A, "u Name a place to swim."],
                expect=no_reaction(),
            ),
        ],
        {"1": "served"},
    ),
    "few-shot examples that nobody here wrote link nothing": (
        [
            FIRST,
            Ask(
                name="2",
                history=[
                    S,
                    "u Capital of France?",
                    "a The capital of France is Paris.",
                    "u Capital of Italy?",
                ],
                reply="The capital of Italy is Rome.",
                expect=no_reaction() | {"unlinked": "its replies are not from this gateway"},
            ),
            Ask(
                name="3",
                history=[
                    S,
                    "u Capital of France?",
                    "a The capital of France is Paris.",
                    "u Capital of Spain?",
                ],
                expect=no_reaction() | {"session": "3"},
            ),
        ],
        {"1": "served", "2": "served"},
    ),
    "the message before the reply was edited: the same user keeps the link": (
        [
            Ask(name="1", history=[S, Q], reply=LONG, user="ann"),
            Ask(
                name="2",
                history=[S, "u Where do we eat?", A, THANKS],
                user="ann",
                expect=reacts("1", THANKS[2:], how="distinctive"),
            ),
        ],
        {"1": "closed"},
    ),
    "the message before the reply was edited: the same agent keeps the link": (
        [
            Ask(name="1", history=[S, Q], reply=LONG, agent="cook"),
            Ask(
                name="2",
                history=[S, "u Where do we eat?", A, THANKS],
                agent="cook",
                expect=reacts("1", THANKS[2:], how="distinctive"),
            ),
        ],
        {"1": "closed"},
    ),
    "the message before the reply is another and only one side names a user: no link": (
        [
            Ask(name="1", history=[S, Q], reply=LONG, user="ann"),
            Ask(name="2", history=[S, "u Where do we eat?", A, THANKS], expect=no_reaction()),
        ],
        {"1": "served"},
    ),
    "two apps got the same greeting and one changes its clock: either could be meant, so none": (
        [
            Ask(name="1", history=[clock("18:00"), HELLO], reply=WELCOME),
            Ask(name="2", history=["s You sell books.", HELLO], reply=WELCOME),
            Ask(name="3", history=[clock("18:01"), HELLO, f"a {WELCOME}", Q], expect=no_reaction()),
        ],
        {"1": "served", "2": "served"},
    ),
    "two apps got the same greeting and one changes its clock: the session header decides": (
        [
            Ask(name="1", history=[clock("18:00"), HELLO], reply=WELCOME, session="x"),
            Ask(name="2", history=["s You sell books.", HELLO], reply=WELCOME, session="y"),
            Ask(
                name="3",
                history=[clock("18:01"), HELLO, f"a {WELCOME}", Q],
                session="x",
                expect=reacts("1", Q[2:], how="distinctive"),
            ),
        ],
        {"1": "closed", "2": "served"},
    ),
    "a summary quotes our reply: the quotation is not the reply": (
        [
            FIRST,
            Ask(
                name="2", history=[S, f"u Summary: you said: {LONG}", THANKS], expect=no_reaction()
            ),
            Ask(
                name="3", history=[S, Q, f"a Summary: I said: {LONG}", THANKS], expect=no_reaction()
            ),
        ],
        {"1": "served"},
    ),
    "a summary is our reply word for word: the words react to the reply, not to the summary": (
        [
            FIRST,
            Ask(name="2", history=[S, Q, A, ASK_SUMMARY], reply=LONG),
            Ask(
                name="3",
                history=[f"s Summary of the conversation so far: {LONG}", Q, A, THANKS],
                expect=reacts("1", THANKS[2:], how="distinctive"),
            ),
        ],
        {"1": "closed", "2": "dropped side"},
    ),
}
