"""What links to what: one row per situation, played to the real store and loop, and to the pure linker in memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.collect.world import Ask, End, Memory, Player, Say, Step, Stored, Wait, calls, message, result

from openclaw_rl.types import Capture, ExchangeStatus, Kind

S = "s You are a helpful agent."
Q = "u Where shall we eat on Friday?"
LONG = "There is a good Italian place by the river."
OTHER = "How about the new noodle bar on Mill Street?"
A, B = f"a {LONG}", f"a {OTHER}"
THANKS = "u Thanks, book a table."
FAILED, CANCELLED = ExchangeStatus.FAILED, ExchangeStatus.CANCELLED
WEATHER = calls(("call_1", "weather", '{"city": "Rome", "day": 5}'), ("call_2", "maps", '{"to": "Rome"}'))
WEATHER_BACK = calls(("call1", "weather", '{"day":5,"city":"Rome"}'), ("call2", "maps", '{"to":"Rome"}'))
RESULTS = [result("call1", "sunny"), result("call2", "1400 km")]
LONG_SYSTEM = (
    "s You are Ada's agent. On a heartbeat poll read HEARTBEAT.md; if all is well say HEARTBEAT_OK. " + "x" * 2000
)


def nothing(reason: str = "") -> dict[str, object]:
    return {"parent": None, "answers": {}, "unlinked": reason or None}


def answers(*turns: str, how: str = "exact", words: Sequence[str]) -> dict[str, object]:
    return {"answers": {t: (how, tuple(words)) for t in turns}, "parent": turns[-1]}


FIRST = Ask(name="1", history=[S, Q], reply=LONG, expect=nothing() | {"relation": "fresh"})

CASES: dict[str, tuple[list[Step], dict[str, str]]] = {
    "the user's next words are the reaction": (
        [
            FIRST,
            Ask(
                name="2",
                history=[S, Q, A, THANKS],
                reply="Done.",
                expect=answers("1", words=["Thanks, book a table."]) | {"relation": "continuation", "session": "1"},
            ),
        ],
        {"1": "closed", "2": "served"},
    ),
    "parallel tool results are one reaction; ids and arguments come back rewritten": (
        [
            Ask(name="1", history=[S, Q], reply=WEATHER),
            Ask(name="2", history=[S, Q, WEATHER_BACK, *RESULTS], expect=answers("1", words=["sunny", "1400 km"])),
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
        [FIRST, Ask(name="2", history=[S, Q, A, "ctx it is 7 pm"], expect={"parent": "1", "answers": {}})],
        {"1": "served"},
    ),
    "line ends, outer white space and reasoning make no difference": (
        [
            Ask(name="1", history=[S, "u Two\nlines"], reply=f"<think>Hm.</think>\n{LONG}"),
            Ask(name="2", history=[S, "u Two\r\nlines ", f"{A}\n", THANKS], expect=answers("1", words=[THANKS[2:]])),
        ],
        {"1": "closed"},
    ),
    "a rewritten history links by a distinctive reply": (
        [
            FIRST,
            Ask(
                name="2",
                history=[S, "u Where shall we eat on SATURDAY?", A, THANKS],
                expect=answers("1", how="distinctive", words=[THANKS[2:]]) | {"relation": "continuation"},
            ),
        ],
        {"1": "closed"},
    ),
    "an edited reply is not ours": (
        [FIRST, Ask(name="2", history=[S, Q, f"{A} (edited)", THANKS], expect=nothing("none of ours"))],
        {"1": "served"},
    ),
    "compaction: the summary replaced the rest, the distinctive reply still stands": (
        [
            FIRST,
            Ask(
                name="2",
                history=[S, "u Summary: we talked about dinner.", A, THANKS],
                expect=answers("1", how="distinctive", words=[THANKS[2:]]) | {"session": "1"},
            ),
        ],
        {"1": "closed"},
    ),
    "compaction: nothing of ours is left": (
        [FIRST, Ask(name="2", history=[S, "u Summary: dinner was agreed.", "u Next thing"], expect=nothing())],
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
        [FIRST, Ask(name="2", history=[S, "u One", A, "u Two", A, THANKS], expect=nothing("ambiguous: 2"))],
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
            Ask(name="2", history=[S, "u Edited", "a OK", THANKS], expect=nothing("under 24 characters")),
        ],
        {"1": "served"},
    ),
    "an empty reply needs its whole history": (
        [
            Ask(name="1", history=[S, Q], reply={"role": "assistant", "content": None}),
            Ask(name="2", history=[S, "u Edited", "a ", THANKS], expect=nothing("under 24 characters")),
        ],
        {},
    ),
    "a reply of tools only needs its whole history": (
        [
            Ask(name="1", history=[S, Q], reply=WEATHER),
            Ask(name="2", history=[S, "u Edited", WEATHER_BACK, *RESULTS], expect=nothing("under 24 characters")),
        ],
        {"1": "served"},
    ),
    "the same history after a delivered reply is a regeneration; the older one goes when the talk goes on": (
        [
            FIRST,
            Ask(
                name="2",
                history=[S, Q, "ctx later"],
                reply=OTHER,
                expect=nothing() | {"relation": "regeneration", "relation_of": "1"},
            ),
            Ask(name="3", history=[S, Q, B, THANKS], expect=answers("2", words=[THANKS[2:]])),
        ],
        {"1": "dropped superseded", "2": "closed"},
    ),
    "after a regeneration the talk may go on with the older reply": (
        [
            FIRST,
            Ask(name="2", history=[S, Q], reply=OTHER),
            Ask(name="3", history=[S, Q, A, THANKS], expect=answers("1", words=[THANKS[2:]])),
        ],
        {"1": "closed", "2": "dropped superseded"},
    ),
    "back to a superseded reply: late evidence reopens it": (
        [
            FIRST,
            Ask(name="2", history=[S, Q], reply=OTHER),
            Ask(name="3", history=[S, Q, B, THANKS]),
            Ask(name="4", history=[S, Q, A, THANKS], expect=answers("1", words=[THANKS[2:]])),
        ],
        {"1": "closed", "2": "closed"},
    ),
    "the same history after a failed reply is a retry": (
        [
            FIRST,
            Ask(name="2", history=[S, Q, A, THANKS], reply="", status=FAILED, expect={"relation": "continuation"}),
            Ask(
                name="3",
                history=[S, Q, A, THANKS],
                reply="Done.",
                expect={"relation": "retry", "relation_of": "2", "parent": "1", "answers": {}, "session": "1"},
            ),
        ],
        {"1": "closed", "2": "dropped failed", "3": "served"},
    ),
    "the same history after a cancelled reply is a retry": (
        [
            Ask(name="1", history=[S, Q], reply="There is", status=CANCELLED),
            Ask(name="2", history=[S, Q], reply=LONG, expect={"relation": "retry", "relation_of": "1"}),
        ],
        {"1": "dropped cancelled", "2": "served"},
    ),
    "a cancelled reply in the history is the parent, but never closed": (
        [
            Ask(name="1", history=[S, Q], reply="There is a good", status=CANCELLED),
            Ask(
                name="2",
                history=[S, Q, "a There is a good", "u Stop."],
                expect={"parent": "1", "answers": {}, "session": "1"},
            ),
        ],
        {"1": "dropped cancelled"},
    ),
    "the same history while the first still runs is a sibling": (
        [
            Ask(name="1", history=[S, Q]),
            Ask(name="2", history=[S, Q], reply=OTHER, expect={"relation": "sibling", "relation_of": "1"}),
            End(name="1", reply=LONG),
            Ask(name="3", history=[S, Q, A, THANKS], expect=answers("1", words=[THANKS[2:]])),
        ],
        {"1": "closed", "2": "dropped superseded"},
    ),
    "two people say and hear the same at once: each gets one turn": (
        [
            Ask(name="1", history=[S, Q]),
            Ask(name="2", history=[S, Q]),
            End(name="2", reply=LONG),
            End(name="1", reply=LONG),
            Ask(name="3", history=[S, Q, A, THANKS], expect=answers("1", words=[THANKS[2:]])),
            Ask(name="4", history=[S, Q, A, "u No, too dear."], expect=answers("2", words=["No, too dear."])),
            Ask(name="5", history=[S, Q, A, THANKS, "a Done.", "u Bye"], expect={"answers": {}, "parent": "1"}),
        ],
        {"1": "closed", "2": "closed"},
    ),
    "two people with session headers: never the other's turn": (
        [
            Ask(name="1", history=[S, Q], reply=LONG, session="ann"),
            Ask(name="2", history=[S, Q], reply=LONG, session="bob", expect={"relation": "fresh", "session": "bob"}),
            Ask(name="3", history=[S, Q, A, THANKS], session="bob", expect=answers("2", words=[THANKS[2:]])),
        ],
        {"1": "served", "2": "closed"},
    ),
    "two users of one key, told apart by `user`": (
        [
            Ask(name="1", history=[S, Q], reply=LONG, user="ann"),
            Ask(name="2", history=[S, Q, A, THANKS], user="bob", expect=nothing("none of ours")),
        ],
        {"1": "served"},
    ),
    "a reaction that was seen is not taken again": (
        [
            FIRST,
            Ask(name="2", history=[S, Q, A, THANKS], reply="Done."),
            Ask(
                name="3",
                history=[S, Q, A, THANKS, "a Done.", "u Bye"],
                expect={"answers": {"2": ("exact", ("Bye",))}, "parent": "2", "session": "1"},
            ),
        ],
        {"1": "closed", "2": "closed"},
    ),
    "the person goes back and says something else: the newer words count": (
        [
            FIRST,
            Ask(name="2", history=[S, Q, A, THANKS], reply="Done."),
            Ask(name="3", history=[S, Q, A, "u No, too dear."], expect=answers("1", words=["No, too dear."])),
            Ask(
                name="4", history=[S, Q, A, THANKS, "a Done.", "u Bye"], expect={"answers": {"2": ("exact", ("Bye",))}}
            ),
        ],
        {"1": "closed", "2": "closed"},
    ),
    "a title request is side traffic and closes nothing": (
        [
            FIRST,
            Ask(
                name="2",
                history=[S, Q, A, "u Generate a short title for this conversation."],
                expect={"answers": {}, "kind": Kind.SIDE},
            ),
            Ask(name="3", history=["s You write a conversation title.", Q], expect={"kind": Kind.SIDE}),
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
            Ask(name="2", history=[S, Q, A, "u Read HEARTBEAT.md and follow it."], reply="HEARTBEAT_OK"),
            Ask(
                name="3",
                history=[S, Q, A, "u Read HEARTBEAT.md and follow it.", "a HEARTBEAT_OK", THANKS],
                expect={"answers": {"1": ("exact", (THANKS[2:],))}},
            ),
        ],
        {"1": "closed", "2": "dropped side"},
    ),
    "the header says side": (
        [
            FIRST,
            Ask(name="2", history=[S, Q, A, THANKS], kind=Kind.SIDE, expect={"answers": {}, "kind": Kind.SIDE}),
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
                expect=answers("1", words=["Write a title for this conversation"]) | {"kind": Kind.MAIN},
            ),
        ],
        {"1": "closed", "2": "served"},
    ),
    "another key never links": (
        [FIRST, Ask(name="2", history=[S, Q, A, THANKS], scope="another", expect=nothing("none of ours"))],
        {"1": "served"},
    ),
    "redacted: linked by its hashes, but there is nothing to judge": (
        [
            Ask(name="1", history=[S, Q], reply=LONG, capture=Capture.REDACTED),
            Ask(name="2", history=[S, Q, A, THANKS], reply="Done.", expect={"parent": "1", "session": "1"}),
            Ask(name="3", history=[S, Q, A, THANKS, "a Done.", "u Bye"], capture=Capture.REDACTED),
        ],
        {},
    ),
}
"""name -> steps, and how the turns stand at the end ("state" or "dropped cause")."""

STORE_ONLY: dict[str, tuple[list[Step], dict[str, str]]] = {
    "redacted turns and reactions are dropped": (
        CASES["redacted: linked by its hashes, but there is nothing to judge"][0],
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
    "the end of a session drops its open turns, the last one included": (
        [
            Ask(name="1", history=[S, Q], reply=LONG, session="x"),
            Ask(name="2", history=[S, Q, A, THANKS], reply="Done.", session="x"),
            Ask(name="other", history=[S, Q], reply=LONG, session="x", scope="another"),
            Ask(name="3", history=[S, Q, A, THANKS, "a Done.", "u Bye"], reply="Bye.", session="x", done=True),
        ],
        {"1": "closed", "2": "closed", "3": "dropped session done", "other": "served"},
    ),
}


def check(player: Player, steps: Sequence[Step]) -> None:
    for step in steps:
        player.play(step)
        if not isinstance(step, Ask):
            continue
        seen = player.seen(step.name)
        for what, expected in step.expect.items():
            got = getattr(seen, what)
            if what == "unlinked" and expected is not None:
                assert str(expected) in str(got), (step.name, got)
            else:
                assert got == expected, (step.name, what, got, expected)


def states(player: Player, names: Sequence[str]) -> dict[str, str]:
    out = {}
    for name in names:
        state, cause = player.state(name)
        out[name] = f"{state} {cause}" if cause else str(state)
    return out


@pytest.mark.parametrize("case", [*CASES, *STORE_ONLY])
def test_case_in_the_store(case: str, tmp_path: Path) -> None:
    steps, expected = (CASES | STORE_ONLY)[case]
    world = Stored(tmp_path / "store.db")
    check(world, steps)
    assert states(world, list(expected)) == expected
    before = world.snapshot()
    world.replay()
    assert world.snapshot() == before, "the same events once more change nothing"
    world.store.close()


@pytest.mark.parametrize("case", CASES)
def test_case_in_memory(case: str) -> None:
    steps, expected = CASES[case]
    world = Memory()
    check(world, steps)
    assert states(world, list(expected)) == expected


def test_a_script_line_is_a_message() -> None:
    assert message("u hello there") == {"role": "user", "content": "hello there"}
