"""What links to what: the same history again, and several people on one key."""

from __future__ import annotations

from tests.collect.cases import (
    CANCELLED,
    FAILED,
    FIRST,
    LONG,
    OTHER,
    THANKS,
    A,
    B,
    Case,
    Q,
    S,
    answers,
    nothing,
)
from tests.collect.world import Ask, End, Step

AGAIN: dict[str, Case] = {
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
            Ask(
                name="2",
                history=[S, Q, A, THANKS],
                reply="",
                status=FAILED,
                expect={"relation": "continuation"},
            ),
            Ask(
                name="3",
                history=[S, Q, A, THANKS],
                reply="Done.",
                expect={
                    "relation": "retry",
                    "relation_of": "2",
                    "parent": "1",
                    "answers": {},
                    "session": "1",
                },
            ),
        ],
        {"1": "closed", "2": "dropped failed", "3": "served"},
    ),
    "the same history after a cancelled reply is a retry": (
        [
            Ask(name="1", history=[S, Q], reply="There is", status=CANCELLED),
            Ask(
                name="2",
                history=[S, Q],
                reply=LONG,
                expect={"relation": "retry", "relation_of": "1"},
            ),
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
            Ask(
                name="2",
                history=[S, Q],
                reply=OTHER,
                expect={"relation": "sibling", "relation_of": "1"},
            ),
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
            Ask(
                name="4",
                history=[S, Q, A, "u No, too dear."],
                expect=answers("2", words=["No, too dear."]),
            ),
            Ask(
                name="5",
                history=[S, Q, A, THANKS, "a Done.", "u Bye"],
                expect={"answers": {}, "parent": "1"},
            ),
        ],
        {"1": "closed", "2": "closed"},
    ),
    "two people with session headers: never the other's turn": (
        [
            Ask(name="1", history=[S, Q], reply=LONG, session="ann"),
            Ask(
                name="2",
                history=[S, Q],
                reply=LONG,
                session="bob",
                expect={"relation": "fresh", "session": "bob"},
            ),
            Ask(
                name="3",
                history=[S, Q, A, THANKS],
                session="bob",
                expect=answers("2", words=[THANKS[2:]]),
            ),
        ],
        {"1": "served", "2": "closed"},
    ),
    "two users of one key, told apart by `user`": (
        [
            Ask(name="1", history=[S, Q], reply=LONG, user="ann"),
            Ask(
                name="2",
                history=[S, Q, A, THANKS],
                user="bob",
                expect=nothing("under another user"),
            ),
        ],
        {"1": "served"},
    ),
    "a user asks, hears and says what somebody without a name did before: each gets the reaction": (
        [
            FIRST,
            Ask(name="2", history=[S, Q, A, THANKS], expect=answers("1", words=[THANKS[2:]])),
            Ask(name="3", history=[S, Q], reply=LONG, user="ann"),
            Ask(
                name="4",
                history=[S, Q, A, THANKS],
                user="ann",
                expect=answers("3", words=[THANKS[2:]]),
            ),
        ],
        {"1": "closed", "3": "closed"},
    ),
    "somebody without a name asks, hears and says what a user did before": (
        [
            Ask(name="1", history=[S, Q], reply=LONG, user="ann"),
            Ask(
                name="2",
                history=[S, Q, A, THANKS],
                user="ann",
                expect=answers("1", words=[THANKS[2:]]),
            ),
            Ask(name="3", history=[S, Q], reply=LONG),
            Ask(name="4", history=[S, Q, A, THANKS], expect=answers("3", words=[THANKS[2:]])),
        ],
        {"1": "closed", "3": "closed"},
    ),
    "of equal turns, the one of the same session header": (
        [
            Ask(name="1", history=[S, Q], reply=LONG),
            Ask(name="2", history=[S, Q], reply=LONG, session="bob"),
            Ask(
                name="3",
                history=[S, Q, A, THANKS],
                session="bob",
                expect=answers("2", words=[THANKS[2:]]),
            ),
        ],
        {"2": "closed"},
    ),
    "equal turns that are all closed take no third reaction": (
        [
            Ask(name="1", history=[S, Q], reply=LONG),
            Ask(name="2", history=[S, Q], reply=LONG),
            Ask(name="3", history=[S, Q, A, THANKS], expect=answers("2", words=[THANKS[2:]])),
            Ask(
                name="4",
                history=[S, Q, A, "u No, too dear."],
                expect=answers("1", words=["No, too dear."]),
            ),
            Ask(name="5", history=[S, Q, A, "u Hm."], expect={"answers": {}, "parent": "2"}),
        ],
        {"1": "closed", "2": "closed"},
    ),
    "the newest of several with the same history is what a request repeats": (
        [
            Ask(name="1", history=[S, Q], reply="", status=FAILED),
            Ask(
                name="2",
                history=[S, Q],
                reply=LONG,
                expect={"relation": "retry", "relation_of": "1"},
            ),
            Ask(
                name="3",
                history=[S, Q],
                reply=OTHER,
                expect={"relation": "regeneration", "relation_of": "2"},
            ),
        ],
        {"2": "served", "3": "served"},
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
            Ask(
                name="3",
                history=[S, Q, A, "u No, too dear."],
                expect=answers("1", words=["No, too dear."]),
            ),
            Ask(
                name="4",
                history=[S, Q, A, THANKS, "a Done.", "u Bye"],
                expect={"answers": {"2": ("exact", ("Bye",))}},
            ),
        ],
        {"1": "closed", "2": "closed"},
    ),
}

LAGGED: dict[str, tuple[list[Step], dict[str, dict[str, object]], dict[str, str]]] = {
    "a reply that ended after the request came is not in its history": (
        [
            Ask(name="1", history=[S, Q]),
            Ask(name="2", history=[S, "u Elsewhere", A, THANKS]),
            End(name="1", reply=LONG),
        ],
        {"2": {"parent": None, "answers": {}}},
        {"1": "served"},
    ),
    "a reply that ended after the same history came again is its sibling": (
        [Ask(name="1", history=[S, Q]), Ask(name="2", history=[S, Q]), End(name="1", reply=LONG)],
        {"1": {"relation": "fresh"}, "2": {"relation": "sibling", "relation_of": "1"}},
        {"1": "served", "2": "served"},
    ),
    "only earlier replies are superseded": (
        [
            FIRST,
            Ask(name="2", history=[S, Q, A, THANKS]),
            Ask(name="3", history=[S, Q], reply=OTHER),
        ],
        {"2": {"parent": "1"}, "3": {"relation": "regeneration", "relation_of": "1"}},
        {"1": "closed", "3": "served"},
    ),
}
"""Played before collecting begins: what is decided is what was true when each request came."""
