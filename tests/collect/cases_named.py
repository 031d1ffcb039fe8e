"""What links where the client names the exchange that it goes on from: turns by `previous_response_id`."""

from __future__ import annotations

from tests.collect.cases import BEAT, LONG, THANKS, Case, Q, S, answers, nothing
from tests.collect.world import Ask

OK = "a OK"
SHORT = Ask(name="1", history=[S, Q], reply="OK")

NAMED: dict[str, Case] = {
    "instructions that are left out make no difference": (
        [
            SHORT,
            Ask(
                name="2",
                history=[Q, OK, THANKS],
                previous="1",
                expect=answers("1", words=[THANKS[2:]])
                | {"session": "1", "relation": "continuation"},
                reply="OK",
            ),
            Ask(
                name="3",
                history=["s Be brief.", Q, OK, THANKS, OK, "u Where is it?"],
                previous="2",
                expect=answers("2", words=["Where is it?"]) | {"session": "1"},
            ),
        ],
        {"1": "closed", "2": "closed", "3": "served"},
    ),
    "without the name they do": (
        [
            SHORT,
            Ask(
                name="2",
                history=[Q, OK, THANKS],
                expect=nothing("under 24 characters") | {"session": "2"},
            ),
        ],
        {"1": "served"},
    ),
    "the named one of two that are equal": (
        [
            SHORT,
            Ask(name="twin", history=[S, Q], reply="OK"),
            Ask(
                name="2",
                history=[S, Q, OK, THANKS],
                previous="twin",
                expect=answers("twin", words=[THANKS[2:]]),
            ),
        ],
        {"1": "dropped superseded", "twin": "closed"},
    ),
    "on the way to the named one no other conversation is taken for its beginning": (
        [
            SHORT,
            Ask(name="2", history=[Q, OK, THANKS], previous="1", reply="OK"),
            Ask(name="stranger", history=[Q], reply="OK"),
            Ask(
                name="3",
                history=[Q, OK, THANKS, OK, "u Where?"],
                previous="2",
                expect=answers("2", words=["Where?"]),
            ),
        ],
        {"1": "closed", "2": "closed", "stranger": "served"},
    ),
    "a heartbeat on the way is stepped over": (
        [
            SHORT,
            Ask(name="beat", history=[Q, OK, BEAT], previous="1", reply="HEARTBEAT_OK"),
            Ask(
                name="2",
                history=[Q, OK, BEAT, "a HEARTBEAT_OK", THANKS],
                previous="beat",
                expect={"answers": {"1": ("exact", (THANKS[2:],))}, "session": "1"},
            ),
        ],
        {"1": "closed", "beat": "dropped side"},
    ),
    "one of another key, of other words, of another session, or unknown, is nothing": (
        [
            Ask(name="1", history=[S, Q], reply="OK", scope="another"),
            Ask(
                name="a",
                history=[Q, OK, THANKS],
                previous="1",
                expect=nothing("under 24 characters"),
            ),
            Ask(name="x", history=[S, Q], reply="No", session="x"),
            Ask(
                name="b",
                history=[Q, OK, THANKS],
                previous="x",
                expect=nothing("under 24 characters"),
            ),
            Ask(
                name="c",
                history=[Q, "a No", THANKS],
                previous="x",
                session="y",
                expect=nothing("under 24"),
            ),
            Ask(
                name="d",
                history=[Q, OK, THANKS],
                previous="gone",
                expect=nothing("under 24 characters"),
            ),
        ],
        {"1": "served", "x": "served"},
    ),
    "nor one that had not ended": (
        [
            Ask(name="1", history=[S, Q]),
            Ask(
                name="2",
                history=[Q, OK, THANKS],
                previous="1",
                expect=nothing("under 24 characters"),
            ),
        ],
        {"1": "served"},
    ),
    "a reply that was sent back with other words is not the named one": (
        [
            SHORT,
            Ask(
                name="2",
                history=[Q, f"a {LONG}", THANKS],
                previous="1",
                expect=nothing("not from this gateway"),
            ),
        ],
        {"1": "served"},
    ),
}
