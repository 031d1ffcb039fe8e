"""Traps of linking: histories that change behind a reaction, branches, regenerations and equal replies."""

from __future__ import annotations

from typing import Any

from tests.collect.cases import CANCELLED, FAILED, FIRST, LONG, OTHER, THANKS, A, B, Case, Q, S
from tests.collect.world import Ask, End, Step

HELLO, GREETING = "u Hi", "Hello!"
EDITED = "u No, too dear."
BOOKED = "Your table is booked for Friday at eight."
DONE, BYE = "a Done.", "u Bye"


def reacts(turn: str, *words: str, how: Any = "exact") -> dict[str, Any]:
    """Return what is expected of a request that reacts with these words to `turn`, its parent."""
    return {"answers": {turn: (how, words)}, "parent": turn}


def no_reaction(parent: str | None = None) -> dict[str, Any]:
    return {"answers": {}, "parent": parent}


def clock(time: str) -> str:
    return f"s You are a helpful agent. It is {time}."


def branches(count: int, recorded: int) -> list[Step]:
    """Return `count` different next messages after the same reply; the first `recorded` of them are reactions."""
    return [
        Ask(
            name=f"branch {n}",
            history=[S, Q, A, f"u Question {n}?"],
            expect=reacts("1", f"Question {n}?") if n < recorded else no_reaction("1"),
        )
        for n in range(count)
    ]


EDITS: dict[str, Case] = {
    "the person edits the last message after its reply failed: the newer text is the reaction": (
        [
            FIRST,
            Ask(
                name="2",
                history=[S, Q, A, THANKS],
                status=FAILED,
                reply="",
                expect=reacts("1", THANKS[2:]),
            ),
            Ask(
                name="3", history=[S, Q, A, EDITED], reply="Sorry.", expect=reacts("1", EDITED[2:])
            ),
        ],
        {"1": "closed", "2": "dropped failed", "3": "served"},
    ),
    "the person stops a reply and edits the message before it: the newer text is the reaction": (
        [
            FIRST,
            Ask(name="2", history=[S, Q, A, THANKS], status=CANCELLED, reply="Your table"),
            Ask(
                name="3", history=[S, Q, A, EDITED], reply="Sorry.", expect=reacts("1", EDITED[2:])
            ),
        ],
        {"1": "closed", "2": "dropped cancelled", "3": "served"},
    ),
    "a page lets the person edit a message in the middle and keeps the replies behind it: no revision": (
        [
            FIRST,
            Ask(name="2", history=[S, Q, A, THANKS], reply="Done."),
            Ask(name="3", history=[S, Q, A, EDITED, DONE, BYE], expect=no_reaction("1")),
        ],
        {"1": "closed", "2": "served"},
    ),
    "a clock changes and a message in the middle was edited: no revision": (
        [
            Ask(name="1", history=[clock("18:00"), Q], reply=LONG),
            Ask(name="2", history=[clock("18:01"), Q, A, THANKS], reply="Done."),
            Ask(
                name="3", history=[clock("18:02"), Q, A, EDITED, DONE, BYE], expect=no_reaction("1")
            ),
        ],
        {"1": "closed", "2": "served"},
    ),
    "a message in the middle was edited: under one session header the reply behind it still links": (
        [
            Ask(name="1", history=[S, Q], reply=LONG, session="x"),
            Ask(name="2", history=[S, Q, A, THANKS], reply=BOOKED, session="x"),
            Ask(
                name="3",
                history=[S, Q, A, EDITED, f"a {BOOKED}", BYE],
                session="x",
                expect=reacts("2", "Bye", how="distinctive"),
            ),
        ],
        {"1": "closed", "2": "closed"},
    ),
    "a client merges two messages of the person afterwards: the first reaction stays as it was": (
        [
            Ask(name="1", history=[S, Q], reply=LONG, session="x"),
            Ask(
                name="2",
                history=[S, Q, A, "u Thanks.", "u Book it."],
                reply=BOOKED,
                session="x",
                expect=reacts("1", "Thanks.", "Book it."),
            ),
            Ask(
                name="3",
                history=[S, Q, A, "u Thanks.\n\nBook it.", f"a {BOOKED}", BYE],
                session="x",
                expect=reacts("2", "Bye", how="distinctive"),
            ),
        ],
        {"1": "closed", "2": "closed"},
    ),
    "a client merges two messages of the person before the reply: the session header keeps the link": (
        [
            Ask(name="1", history=[S, HELLO, Q], reply=LONG, session="x"),
            Ask(
                name="2",
                history=[S, f"{HELLO}\n\n{Q[2:]}", A, THANKS],
                session="x",
                expect=reacts("1", THANKS[2:], how="distinctive"),
            ),
        ],
        {"1": "closed"},
    ),
    "another model answered in between: a first reaction may be in the middle, a revision may not": (
        [
            FIRST,
            Ask(
                name="2",
                history=[S, Q, A, THANKS, f"a {BOOKED}", BYE],
                expect=reacts("1", THANKS[2:]),
            ),
            Ask(name="3", history=[S, Q, A, EDITED, f"a {BOOKED}", BYE], expect=no_reaction("1")),
        ],
        {"1": "closed"},
    ),
    "a client drops the oldest messages: a long reply is still known by the message before it": (
        [
            Ask(name="1", history=[S, HELLO], reply=GREETING),
            Ask(name="2", history=[S, HELLO, f"a {GREETING}", Q], reply=LONG),
            Ask(
                name="3",
                history=[S, Q, A, THANKS],
                expect=reacts("2", THANKS[2:], how="distinctive"),
            ),
        ],
        {"1": "closed", "2": "closed"},
    ),
    "a client drops the oldest messages: a short reply links nothing": (
        [
            Ask(name="1", history=[S, HELLO], reply=GREETING),
            Ask(name="2", history=[S, HELLO, f"a {GREETING}", Q], reply="Mill Street."),
            Ask(name="3", history=[S, Q, "a Mill Street.", THANKS], expect=no_reaction()),
        ],
        {"1": "closed", "2": "served"},
    ),
    "a client drops the system prompt": (
        [
            FIRST,
            Ask(
                name="2", history=[Q, A, THANKS], expect=reacts("1", THANKS[2:], how="distinctive")
            ),
        ],
        {"1": "closed"},
    ),
    "a clock in the system prompt changes: a long reply after the same message links": (
        [
            Ask(name="1", history=[clock("18:00"), Q], reply=LONG),
            Ask(
                name="2",
                history=[clock("18:01"), Q, A, THANKS],
                expect=reacts("1", THANKS[2:], how="distinctive") | {"session": "1"},
            ),
        ],
        {"1": "closed"},
    ),
    "a clock in the system prompt changes: a short reply links nothing": (
        [
            Ask(name="1", history=[clock("18:00"), Q], reply="Mill Street."),
            Ask(
                name="2",
                history=[clock("18:01"), Q, "a Mill Street.", THANKS],
                expect=no_reaction(),
            ),
        ],
        {"1": "served"},
    ),
    "a clock in the system prompt changes between failure and retry: the retry gets the reaction": (
        [
            Ask(name="1", history=[clock("18:00"), Q], reply="There is", status=FAILED),
            Ask(name="2", history=[clock("18:01"), Q], reply=LONG),
            Ask(name="3", history=[clock("18:01"), Q, A, THANKS], expect=reacts("2", THANKS[2:])),
        ],
        {"1": "dropped failed", "2": "closed"},
    ),
    "a client on Windows sends other line ends in every message": (
        [
            Ask(
                name="1",
                history=["s Be\nkind.", "u Two\nlines"],
                reply=f"{LONG}\n{OTHER}\n\n- both",
            ),
            Ask(
                name="2",
                history=[
                    "s Be\r\nkind.",
                    "u Two\r\nlines",
                    f"{A}\r\n{OTHER}\r\n\r\n- both",
                    "u Which\r\none?",
                ],
                expect={"parent": "1", "answers": {"1": ("exact", ("Which\r\none?",))}},
            ),
        ],
        {"1": "closed"},
    ),
    "a regeneration gives the same words again: the reply delivered last gets the reaction, once": (
        [
            FIRST,
            Ask(
                name="2",
                history=[S, Q],
                reply=LONG,
                expect={"relation": "regeneration", "relation_of": "1"},
            ),
            Ask(name="3", history=[S, Q, A, THANKS], reply="Done.", expect=reacts("2", THANKS[2:])),
            Ask(name="4", history=[S, Q, A, THANKS, DONE, BYE], expect=reacts("3", "Bye")),
        ],
        {"1": "dropped superseded", "2": "closed", "3": "closed"},
    ),
    "the second reply is regenerated: nothing new for the first turn, the kept reply gets the next": (
        [
            FIRST,
            Ask(name="2", history=[S, Q, A, THANKS], reply="Done."),
            Ask(name="3", history=[S, Q, A, THANKS], reply="Booked.", expect=no_reaction("1")),
            Ask(
                name="4",
                history=[S, Q, A, THANKS, "a Booked.", "u Good."],
                expect=reacts("3", "Good."),
            ),
        ],
        {"1": "closed", "2": "dropped superseded", "3": "closed"},
    ),
    "two tabs get the same greeting: the tab opened last is answered first, then the other": (
        [
            Ask(name="1", history=[S, HELLO], reply=GREETING),
            Ask(name="2", history=[S, HELLO], reply=GREETING),
            Ask(name="3", history=[S, HELLO, f"a {GREETING}", Q], expect=reacts("2", Q[2:])),
            Ask(
                name="4",
                history=[S, HELLO, f"a {GREETING}", "u Write a poem."],
                expect=reacts("1", "Write a poem."),
            ),
        ],
        {"1": "closed", "2": "closed"},
    ),
    "equal greetings: the one delivered last counts, not the one asked for last": (
        [
            Ask(name="1", history=[S, HELLO]),
            Ask(name="2", history=[S, HELLO], reply=GREETING),
            End(name="1", reply=GREETING),
            Ask(name="3", history=[S, HELLO, f"a {GREETING}", Q], expect=reacts("1", Q[2:])),
        ],
        {"1": "closed"},
    ),
    "equal greetings: one of the same session comes before one delivered later": (
        [
            Ask(name="1", history=[S, HELLO], reply=GREETING, session="x"),
            Ask(name="2", history=[S, HELLO], reply=GREETING),
            Ask(
                name="3",
                history=[S, HELLO, f"a {GREETING}", Q],
                session="x",
                expect=reacts("1", Q[2:]),
            ),
        ],
        {"1": "closed"},
    ),
    "equal greetings: one of the same version comes before one delivered later": (
        [
            Ask(name="old", history=[S, HELLO], version=0),
            Ask(name="new", history=[S, HELLO], version=1, reply=GREETING),
            End(name="old", reply=GREETING),
            Ask(
                name="3",
                history=[S, HELLO, f"a {GREETING}", Q],
                version=1,
                expect=reacts("new", Q[2:]),
            ),
        ],
        {"new": "closed"},
    ),
    "equal greetings of two older versions: the one delivered last": (
        [
            Ask(name="1", history=[S, HELLO], version=0, reply=GREETING),
            Ask(name="2", history=[S, HELLO], version=1, reply=GREETING),
            Ask(
                name="3",
                history=[S, HELLO, f"a {GREETING}", Q],
                version=2,
                expect=reacts("2", Q[2:]),
            ),
        ],
        {"2": "closed"},
    ),
    "an eval harness asks twenty different questions after one reply: two are recorded": (
        [FIRST, *branches(20, 2)],
        {"1": "closed", "branch 19": "served"},
    ),
    "a branching client continues each branch: the base keeps two reactions, every branch gets its own": (
        [
            FIRST,
            *branches(4, 2),
            *(
                Ask(
                    name=f"leaf {n}",
                    history=[S, Q, A, f"u Branch {n}?"],
                    reply=f"Leaf {n}.",
                    expect=no_reaction("1"),
                )
                for n in range(3)
            ),
            *(
                Ask(
                    name=f"end {n}",
                    history=[S, Q, A, f"u Branch {n}?", f"a Leaf {n}.", BYE],
                    expect=reacts(f"leaf {n}", "Bye"),
                )
                for n in range(3)
            ),
        ],
        {"1": "closed", "leaf 0": "closed", "leaf 1": "closed", "leaf 2": "closed"},
    ),
    "three choices of one call (n=3): the chosen one gets the reaction, the others are superseded": (
        [
            *(Ask(name=name, history=[S, Q]) for name in ("c", "c.1", "c.2")),
            End(name="c", reply=LONG),
            End(name="c.1", reply=OTHER),
            End(name="c.2", reply="Stay home."),
            Ask(name="2", history=[S, Q, B, THANKS], expect=reacts("c.1", THANKS[2:])),
        ],
        {"c": "dropped superseded", "c.1": "closed", "c.2": "dropped superseded"},
    ),
    "two choices of one call (n=2) are equal: only one of them gets the reaction": (
        [
            Ask(name="c", history=[S, Q]),
            Ask(name="c.1", history=[S, Q]),
            End(name="c", reply=LONG),
            End(name="c.1", reply=LONG),
            Ask(
                name="2", history=[S, Q, A, THANKS], reply="Done.", expect=reacts("c.1", THANKS[2:])
            ),
            Ask(name="3", history=[S, Q, A, THANKS, DONE, BYE], expect=reacts("2", "Bye")),
        ],
        {"c": "dropped superseded", "c.1": "closed", "2": "closed"},
    ),
    "two users behind one key hold the same conversation: each reaction goes to the own turn": (
        [
            Ask(name="a1", history=[S, Q], reply=LONG, user="ann"),
            Ask(name="b1", history=[S, Q], reply=LONG, user="bob"),
            Ask(
                name="a2",
                history=[S, Q, A, THANKS],
                reply="Done.",
                user="ann",
                expect=reacts("a1", THANKS[2:]),
            ),
            Ask(
                name="b2",
                history=[S, Q, A, THANKS],
                reply="Done.",
                user="bob",
                expect=reacts("b1", THANKS[2:]),
            ),
            Ask(
                name="b3",
                history=[S, Q, A, THANKS, DONE, BYE],
                user="bob",
                expect=reacts("b2", "Bye"),
            ),
            Ask(
                name="a3",
                history=[S, Q, A, THANKS, DONE, BYE],
                user="ann",
                expect=reacts("a2", "Bye"),
            ),
        ],
        {"a1": "closed", "b1": "closed", "a2": "closed", "b2": "closed"},
    ),
    "two conversations without headers are equal to the last word: one reaction is recorded": (
        [
            FIRST,
            Ask(name="2", history=[S, Q], reply=LONG),
            Ask(name="3", history=[S, Q, A, THANKS], reply="Done.", expect=reacts("2", THANKS[2:])),
            Ask(name="4", history=[S, Q, A, THANKS], reply="Done.", expect=no_reaction("2")),
        ],
        {"2": "closed"},
    ),
    "the reply is ours but another user sends it: the reason says so": (
        [
            Ask(name="1", history=[S, Q], reply=LONG, user="ann"),
            Ask(
                name="2",
                history=[S, Q, A, THANKS],
                user="bob",
                expect=no_reaction() | {"unlinked": "under another"},
            ),
        ],
        {"1": "served"},
    ),
    "a short reply is ours but another session sends it: the reason says so": (
        [
            Ask(name="1", history=[S, Q], reply="OK", session="x"),
            Ask(
                name="2",
                history=[S, Q, "a OK", THANKS],
                session="y",
                expect=no_reaction() | {"unlinked": "under another"},
            ),
        ],
        {"1": "served"},
    ),
    "the reply is ours but under another key: the reason does not reveal it": (
        [
            Ask(name="1", history=[S, Q], reply=LONG, session="x", user="ann"),
            Ask(
                name="2",
                history=[S, Q, A, THANKS],
                scope="another",
                user="bob",
                expect=no_reaction() | {"unlinked": "its replies are not from this gateway"},
            ),
        ],
        {"1": "served"},
    ),
    "a client repeats our reply later in the history: the words behind the repetition revise nothing": (
        [
            Ask(name="1", history=[S, Q], reply=LONG, session="x"),
            Ask(name="2", history=[S, Q, A, THANKS], reply="", status=FAILED, session="x"),
            Ask(
                name="3",
                history=[S, Q, A, THANKS, A, "u I said thanks!"],
                session="x",
                expect=no_reaction("1"),
            ),
        ],
        {"1": "closed"},
    ),
    "the model gives the same reply twice in one conversation: each gets the words behind it": (
        [
            FIRST,
            Ask(name="2", history=[S, Q, A, "u Where?"], reply=LONG, expect=reacts("1", "Where?")),
            Ask(
                name="3",
                history=[S, Q, A, "u Where?", A, "u You said that."],
                expect=reacts("2", "You said that."),
            ),
        ],
        {"1": "closed", "2": "closed"},
    ),
    "a client leaves out an empty reply: the next words react to nothing": (
        [
            Ask(name="1", history=[S, Q], reply={"role": "assistant", "content": None}),
            Ask(
                name="2",
                history=[S, Q, "u Are you there?"],
                expect=no_reaction() | {"unlinked": None},
            ),
        ],
        {},
    ),
    "an empty reply that the client sends is not the one that another conversation got": (
        [
            Ask(name="1", history=[S, Q], reply={"role": "assistant", "content": None}),
            Ask(name="2", history=[S, HELLO, "a ", "u Are you there?"], expect=no_reaction()),
        ],
        {},
    ),
}
