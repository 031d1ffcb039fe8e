"""What links to what: side traffic, keys, redaction, feedback, and the end of a session."""

from __future__ import annotations

from dataclasses import replace

from tests.collect.cases import (
    BEAT,
    CANCELLED,
    FAILED,
    FIRST,
    LONG,
    LONG_SYSTEM,
    NOTES,
    RESULTS,
    THANKS,
    WEATHER,
    A,
    Case,
    Q,
    S,
    answers,
    nothing,
)
from tests.collect.world import Ask, End, Say, Wait, result

from openclaw_rl.types import Capture, Kind

SUMMARY = "u Please summarize this conversation in one line."
TITLES = "s You help users write a good title for their conversation and chat."
NAME, TEAM = (
    "u Suggest a name for my chat app",
    "u Perfect, thanks! Now write a title for our next team discussion.",
)
BETWEEN = "u <system-reminder>a</system-reminder>\nNo, wrong!\n<system-reminder>b</system-reminder>"
CLIENTS = (
    "u ### Task:\nGenerate a concise, 3-5 word title with an emoji summarizing the chat history.",
    "u Provide a concise, 5-word-or-less title for the conversation, using title case conventions.",
    "u Generate a title for this conversation:\n",
    "u Summarize this conversation in 5 words or less",
    "u [Fri 2026-11-20 18:24 UTC] " + BEAT[2:],
    "u Pre-compaction memory flush. Store durable memories now. If there is nothing to store, reply with NO_REPLY.",
)

KINDS: dict[str, Case] = {
    "a title request is side traffic and closes nothing": (
        [
            FIRST,
            Ask(
                name="2",
                history=[S, Q, A, "u Generate a short title for this conversation."],
                expect={"answers": {}, "kind": Kind.SIDE},
            ),
            Ask(
                name="3",
                history=["s You write a conversation title.", Q],
                expect={"kind": Kind.SIDE},
            ),
            Ask(name="4", history=[S, Q, A, THANKS], expect=answers("1", words=[THANKS[2:]])),
        ],
        {"1": "closed", "2": "dropped side", "3": "dropped side"},
    ),
    "an agent whose long system prompt mentions heartbeats is main traffic": (
        [Ask(name="1", history=[LONG_SYSTEM, Q], reply=LONG, expect={"kind": Kind.MAIN})],
        {"1": "served"},
    ),
    "a heartbeat left in the history is stepped over": (
        [
            FIRST,
            Ask(name="2", history=[S, Q, A, BEAT], reply="HEARTBEAT_OK"),
            Ask(
                name="3",
                history=[S, Q, A, BEAT, "a HEARTBEAT_OK", THANKS],
                expect={"answers": {"1": ("exact", (THANKS[2:],))}},
            ),
        ],
        {"1": "closed", "2": "dropped side"},
    ),
    "a heartbeat that used tools is stepped over whole": (
        [
            FIRST,
            Ask(name="2", history=[S, Q, A, BEAT], reply=NOTES),
            Ask(
                name="3",
                history=[S, Q, A, BEAT, NOTES, result("n", "nothing due")],
                reply="HEARTBEAT_OK",
            ),
            Ask(
                name="4",
                history=[
                    S,
                    Q,
                    A,
                    BEAT,
                    NOTES,
                    result("n", "nothing due"),
                    "a HEARTBEAT_OK",
                    THANKS,
                ],
                expect={"answers": {"1": ("exact", (THANKS[2:],))}},
            ),
        ],
        {"1": "closed", "2": "dropped side", "3": "dropped side"},
    ),
    "words that only look like side traffic are a person's once the talk goes on after their reply": (
        [
            FIRST,
            Ask(
                name="2",
                history=[S, Q, A, SUMMARY],
                reply="You asked for food.",
                expect={"answers": {}, "kind": Kind.SIDE},
            ),
            Ask(
                name="3",
                history=[S, Q, A, SUMMARY, "a You asked for food.", "u No, wrong."],
                expect={
                    "answers": {"1": ("exact", (SUMMARY[2:],)), "2": ("exact", ("No, wrong.",))},
                    "parent": "2",
                },
            ),
        ],
        {"1": "closed", "2": "closed", "3": "served"},
    ),
    "what only looks like side traffic and failed stays dropped": (
        [
            FIRST,
            Ask(name="2", history=[S, Q, A, SUMMARY], reply="You asked", status=FAILED),
            Ask(
                name="3",
                history=[S, Q, A, SUMMARY, "a You asked", "u Go on."],
                expect={"parent": "2"},
            ),
        ],
        {"1": "closed", "2": "dropped failed"},
    ),
    "a person may name chats, and a system prompt may speak of titles": (
        [
            Ask(name="1", history=[TITLES, Q], reply=LONG, expect={"kind": Kind.MAIN}),
            Ask(
                name="2",
                history=[TITLES, Q, A, NAME],
                expect=answers("1", words=[NAME[2:]]) | {"kind": Kind.MAIN},
            ),
            Ask(name="3", history=[TITLES, Q, A, TEAM], expect={"kind": Kind.MAIN}),
        ],
        {"1": "closed"},
    ),
    "what known clients ask for is side traffic": (
        [
            Ask(name=f"{n}", history=[words], expect={"kind": Kind.SIDE})
            for n, words in enumerate(CLIENTS)
        ],
        {},
    ),
    "words between two blocks of transient context are a person's": (
        [
            FIRST,
            Ask(name="2", history=[S, Q, A, BETWEEN], expect=answers("1", words=[BETWEEN[2:]])),
        ],
        {"1": "closed"},
    ),
    "the results of parallel calls in another order are no news": (
        [
            Ask(name="1", history=[S, Q], reply=WEATHER),
            Ask(name="2", history=[S, Q, WEATHER, *RESULTS], expect={"parent": "1"}),
            Ask(
                name="3",
                history=[S, Q, WEATHER, *RESULTS[::-1]],
                expect={"answers": {}, "parent": "1"},
            ),
        ],
        {"1": "closed"},
    ),
    "a side call known by its header only is stepped over": (
        [
            FIRST,
            Ask(name="2", history=[S, Q, A], reply="Nothing to do.", kind=Kind.SIDE),
            Ask(
                name="3",
                history=[S, Q, A, "a Nothing to do.", THANKS],
                expect={"answers": {"1": ("exact", (THANKS[2:],))}},
            ),
        ],
        {"1": "closed", "2": "dropped side"},
    ),
    "a side call that another model answered is stepped over": (
        [
            FIRST,
            Ask(
                name="2",
                history=[S, Q, A, BEAT, "a all is well", THANKS],
                expect=answers("1", words=[THANKS[2:]]),
            ),
        ],
        {"1": "closed"},
    ),
    "the header says side": (
        [
            FIRST,
            Ask(
                name="2",
                history=[S, Q, A, THANKS],
                kind=Kind.SIDE,
                expect={"answers": {}, "kind": Kind.SIDE},
            ),
        ],
        {"1": "served", "2": "dropped side"},
    ),
    "the header says main, whatever the words": (
        [
            FIRST,
            Ask(
                name="2",
                history=[S, Q, A, "u Write a title for this conversation"],
                kind=Kind.MAIN,
                expect=answers("1", words=["Write a title for this conversation"])
                | {"kind": Kind.MAIN},
            ),
        ],
        {"1": "closed", "2": "served"},
    ),
    "another key never links": (
        [
            FIRST,
            Ask(
                name="2",
                history=[S, Q, A, THANKS],
                scope="another",
                expect=nothing("not from this gateway"),
            ),
        ],
        {"1": "served"},
    ),
    "redacted: linked by its hashes, but there is nothing to judge": (
        [
            Ask(name="1", history=[S, Q], reply=LONG, capture=Capture.REDACTED),
            Ask(
                name="2",
                history=[S, Q, A, THANKS],
                reply="Done.",
                expect={"parent": "1", "session": "1"},
            ),
            Ask(name="3", history=[S, Q, A, THANKS, "a Done.", "u Bye"], capture=Capture.REDACTED),
        ],
        {},
    ),
}

STORE_ONLY: dict[str, Case] = {
    "redacted turns and reactions are dropped": (
        KINDS["redacted: linked by its hashes, but there is nothing to judge"][0],
        {
            "1": "dropped redacted",
            "2": "dropped redacted",
            "3": "served",
        },
    ),
    "an empty reply is dropped": (
        [Ask(name="1", history=[S, Q], reply={"role": "assistant", "content": None})],
        {"1": "dropped degenerate"},
    ),
    "no reaction in time, then one after all": (
        [
            FIRST,
            Wait(seconds=2000),
            Ask(name="2", history=[S, Q, A, THANKS], expect=answers("1", words=[THANKS[2:]])),
        ],
        {"1": "closed", "2": "served"},
    ),
    "no reaction in time": ([FIRST, Wait(seconds=2000)], {"1": "dropped timeout"}),
    "late feedback reopens a turn that timed out": (
        [FIRST, Wait(seconds=2000), Say(name="1", score=-1)],
        {"1": "closed"},
    ),
    "feedback joins what the conversation said": (
        [FIRST, Ask(name="2", history=[S, Q, A, THANKS], reply="Done."), Say(name="1", score=1)],
        {"1": "closed"},
    ),
    "feedback first, the conversation later": (
        [
            FIRST,
            Say(name="1", score=1),
            Ask(name="2", history=[S, Q, A, THANKS], expect=answers("1", words=[THANKS[2:]])),
        ],
        {"1": "closed"},
    ),
    "feedback on a reply that still runs waits for its end": (
        [Ask(name="1", history=[S, Q]), Say(name="1", score=1), End(name="1", reply=LONG)],
        {"1": "closed"},
    ),
    "feedback never reopens what failed": (
        [Ask(name="1", history=[S, Q], reply="", status=FAILED), Say(name="1", score=1)],
        {"1": "dropped failed"},
    ),
    "feedback never reopens what was cancelled": (
        [Ask(name="1", history=[S, Q], reply="", status=CANCELLED), Say(name="1", score=1)],
        {"1": "dropped cancelled"},
    ),
    "feedback never reopens side traffic": (
        [Ask(name="1", history=[S, Q], reply=LONG, kind=Kind.SIDE), Say(name="1", score=1)],
        {"1": "dropped side"},
    ),
    "feedback first, the conversation later and compacted": (
        [
            replace(FIRST, user="ann"),
            Say(name="1", score=1),
            Ask(
                name="2",
                user="ann",
                history=[S, "u Summary", A, THANKS],
                expect=answers("1", how="distinctive", words=[THANKS[2:]]),
            ),
        ],
        {"1": "closed"},
    ),
    "redacted words never undo a reaction that was kept": (
        [
            FIRST,
            Ask(name="2", history=[S, Q, A, THANKS]),
            Ask(
                name="3",
                history=[S, Q, A, "u No, too dear."],
                capture=Capture.REDACTED,
                expect={"parent": "1"},
            ),
        ],
        {"1": "closed"},
    ),
    "the end of a session drops its open turns, the last one included": (
        [
            Ask(name="1", history=[S, Q], reply=LONG, session="x"),
            Ask(name="2", history=[S, Q, A, THANKS], reply="Done.", session="x"),
            Ask(name="other", history=[S, Q], reply=LONG, session="x", scope="another"),
            Ask(
                name="3",
                history=[S, Q, A, THANKS, "a Done.", "u Bye"],
                reply="Bye.",
                session="x",
                done=True,
            ),
        ],
        {"1": "closed", "2": "closed", "3": "dropped session done", "other": "served"},
    ),
}
