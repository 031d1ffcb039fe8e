"""What links to what: a reply found again, or not, in a later history."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tests.collect.world import Ask, Step, calls, result

from openclaw_rl.types import ExchangeStatus, Kind

Case = tuple[list[Step], dict[str, str]]
"""Steps, and how the turns stand at the end ("state", or "dropped cause")."""

S = "s You are a helpful agent."
Q = "u Where shall we eat on Friday?"
LONG = "There is a good Italian place by the river."
OTHER = "How about the new noodle bar on Mill Street?"
A, B = f"a {LONG}", f"a {OTHER}"
THANKS = "u Thanks, book a table."
FAILED, CANCELLED = ExchangeStatus.FAILED, ExchangeStatus.CANCELLED
WEATHER = calls(
    ("call_1", "weather", '{"city": "Rome", "day": 5}'), ("call_2", "maps", '{"to": "Rome"}')
)
WEATHER_BACK = calls(
    ("call1", "weather", '{"day":5,"city":"Rome"}'), ("call2", "maps", '{"to":"Rome"}')
)
RESULTS = [result("call1", "sunny"), result("call2", "1400 km")]
LONG_SYSTEM = (
    "s You are Ada's agent. On a heartbeat poll read HEARTBEAT.md; if all is well say HEARTBEAT_OK. "
    + "x" * 2000
)


def nothing(reason: str = "") -> dict[str, object]:
    return {"parent": None, "answers": {}, "unlinked": reason or None}


def answers(*turns: str, how: str = "exact", words: Sequence[str]) -> dict[str, object]:
    return {"answers": {t: (how, tuple(words)) for t in turns}, "parent": turns[-1]}


BEAT = "u Read HEARTBEAT.md and follow it. If nothing needs attention, reply HEARTBEAT_OK."
NOTES = calls(("n", "read", '{"path":"HEARTBEAT.md"}'))
FIRST = Ask(name="1", history=[S, Q], reply=LONG, expect=nothing() | {"relation": "fresh"})

FINDING: dict[str, Case] = {
    "the user's next words are the reaction": (
        [
            FIRST,
            Ask(
                name="2",
                history=[S, Q, A, THANKS],
                reply="Done.",
                expect=answers("1", words=["Thanks, book a table."])
                | {"relation": "continuation", "session": "1"},
            ),
        ],
        {"1": "closed", "2": "served"},
    ),
    "parallel tool results are one reaction; ids and arguments come back rewritten": (
        [
            Ask(name="1", history=[S, Q], reply=WEATHER),
            Ask(
                name="2",
                history=[S, Q, WEATHER_BACK, *RESULTS],
                expect=answers("1", words=["sunny", "1400 km"]),
            ),
        ],
        {"1": "closed"},
    ),
    "transient context is last, and gone the next time": (
        [
            Ask(name="1", history=[S, Q, "ctx it is 6 pm"], reply=LONG),
            Ask(
                name="2",
                history=[S, Q, A, THANKS, "ctx it is 7 pm"],
                expect=answers("1", words=["Thanks, book a table."]),
            ),
        ],
        {"1": "closed"},
    ),
    "transient context alone is no reaction": (
        [
            FIRST,
            Ask(
                name="2", history=[S, Q, A, "ctx it is 7 pm"], expect={"parent": "1", "answers": {}}
            ),
        ],
        {"1": "served"},
    ),
    "line ends, outer white space and reasoning make no difference": (
        [
            Ask(name="1", history=[S, "u Two\nlines"], reply=f"<think>Hm.</think>\n{LONG}"),
            Ask(
                name="2",
                history=[S, "u Two\r\nlines ", f"{A}\n", THANKS],
                expect=answers("1", words=[THANKS[2:]]),
            ),
        ],
        {"1": "closed"},
    ),
    "a rewritten history links by a distinctive reply": (
        [
            FIRST,
            Ask(
                name="2",
                history=["s You are another agent.", Q, A, THANKS],
                expect=answers("1", how="distinctive", words=[THANKS[2:]])
                | {"relation": "continuation"},
            ),
        ],
        {"1": "closed"},
    ),
    "an edited reply is not ours": (
        [
            FIRST,
            Ask(
                name="2",
                history=[S, Q, f"{A} (edited)", THANKS],
                expect=nothing("another text in place of the reply"),
            ),
        ],
        {"1": "served"},
    ),
    "compaction by a summary of this gateway: the distinctive reply still links": (
        [
            FIRST,
            Ask(
                name="sum",
                history=["u Summarize the conversation: dinner was discussed"],
                reply="They talked about dinner by the river.",
                expect={"kind": Kind.SIDE},
            ),
            Ask(
                name="2",
                history=[S, "u Before: They talked about dinner by the river.", A, THANKS],
                expect=answers("1", how="distinctive", words=[THANKS[2:]]) | {"session": "1"},
            ),
        ],
        {"1": "closed", "sum": "dropped side"},
    ),
    "compaction: the summary replaced the rest, the distinctive reply still stands": (
        [
            replace(FIRST, session="x"),
            Ask(
                name="2",
                session="x",
                history=[S, "u Summary: we talked about dinner.", A, THANKS],
                expect=answers("1", how="distinctive", words=[THANKS[2:]]) | {"session": "x"},
            ),
        ],
        {"1": "closed"},
    ),
    "compaction: nothing of ours is left": (
        [
            FIRST,
            Ask(
                name="2",
                history=[S, "u Summary: dinner was agreed.", "u Next thing"],
                expect=nothing(),
            ),
        ],
        {"1": "served"},
    ),
    "a distinctive reply that two exchanges gave is ambiguous": (
        [
            FIRST,
            Ask(name="2", history=[S, "u Dinner?"], reply=LONG),
            Ask(name="3", history=[S, "u Edited", A, THANKS], expect=nothing("ambiguous: 2")),
        ],
        {"1": "served", "2": "served"},
    ),
    "a distinctive reply that stands twice in the history is ambiguous": (
        [
            FIRST,
            Ask(
                name="2",
                history=[S, "u One", A, "u Two", A, THANKS],
                expect=nothing("ambiguous: 2"),
            ),
        ],
        {"1": "served"},
    ),
    "OK with its whole history": (
        [
            Ask(name="1", history=[S, Q], reply="OK"),
            Ask(name="2", history=[S, Q, "a OK", THANKS], expect=answers("1", words=[THANKS[2:]])),
        ],
        {"1": "closed"},
    ),
    "OK with another history is nobody's": (
        [
            Ask(name="1", history=[S, Q], reply="OK"),
            Ask(
                name="2",
                history=[S, "u Edited", "a OK", THANKS],
                expect=nothing("under 24 characters"),
            ),
        ],
        {"1": "served"},
    ),
    "an empty reply needs its whole history": (
        [
            Ask(name="1", history=[S, Q], reply={"role": "assistant", "content": None}),
            Ask(
                name="2",
                history=[S, "u Edited", "a ", THANKS],
                expect=nothing("under 24 characters"),
            ),
        ],
        {},
    ),
    "a reply of tools only needs its whole history": (
        [
            Ask(name="1", history=[S, Q], reply=WEATHER),
            Ask(
                name="2",
                history=[S, "u Edited", WEATHER_BACK, *RESULTS],
                expect=nothing("under 24 characters"),
            ),
        ],
        {"1": "served"},
    ),
}
