"""Traps of linking: replies that come back with a stop string, as other JSON text, or joined with other text."""

from __future__ import annotations

from unittest.mock import ANY

from tests.collect.cases import FIRST, LONG, THANKS, A, Case, Q, S
from tests.collect.cases_traps_edits import HELLO, no_reaction, reacts
from tests.collect.world import Ask

CODE = "Thought: I add them.\n<code>\nprint(2 + 2)\n</code>"
STOP = "<end_code>"
SEEN = "u Observation:\n4"
PLACE = '{"place": "Osteria Zürich", "seats": [2, 4], "open": true}'
PLACE_BACK = (
    '{\n  "open": true,\n  "place": "Osteria Z\\u00fcrich",\n  "seats": [\n    2,\n    4\n  ]\n}'
)
MORE = "And it has a terrace with a view of the bridge."

TEXT: dict[str, Case] = {
    "the client puts the requested stop string back behind our reply": (
        [
            Ask(name="1", history=[S, Q], reply=CODE, stop=("Observation:", STOP)),
            Ask(
                name="2",
                history=[S, Q, f"a {CODE}{STOP}", SEEN],
                expect=reacts("1", SEEN[2:], how=ANY),
            ),
        ],
        {"1": "closed"},
    ),
    "the client puts the requested stop string on a line of its own, behind a short reply": (
        [
            Ask(name="1", history=[S, Q], reply="2 + 2", stop=(STOP,)),
            Ask(
                name="2",
                history=[S, Q, f"a 2 + 2\n{STOP}", SEEN],
                expect=reacts("1", SEEN[2:], how=ANY),
            ),
        ],
        {"1": "closed"},
    ),
    "every step of an agent gets its stop string back: each observation reacts to its own step": (
        [
            Ask(name="1", history=[S, Q], reply=CODE, stop=(STOP,)),
            Ask(name="2", history=[S, Q, f"a {CODE}{STOP}", SEEN], reply="final(4)", stop=(STOP,)),
            Ask(
                name="3",
                history=[S, Q, f"a {CODE}{STOP}", SEEN, f"a final(4){STOP}", THANKS],
                expect=reacts("2", THANKS[2:], how=ANY) | {"session": "1"},
            ),
        ],
        {"1": "closed", "2": "closed"},
    ),
    "the client adds a string that it did not request as a stop: the text is not our reply": (
        [
            Ask(name="1", history=[S, Q], reply=CODE, stop=("Observation:",)),
            Ask(name="2", history=[S, Q, f"a {CODE}{STOP}", SEEN], expect=no_reaction()),
        ],
        {"1": "served"},
    ),
    "the client writes more behind the stop string: the text is not our reply": (
        [
            Ask(name="1", history=[S, Q], reply=CODE, stop=(STOP,)),
            Ask(
                name="2",
                history=[S, Q, f"a {CODE}{STOP}\nIt is done.", THANKS],
                expect=no_reaction(),
            ),
        ],
        {"1": "served"},
    ),
    "behind its stop string the client writes its own record under another one (smolagents' CodeAgent)": (
        [
            Ask(name="1", history=[S, Q], reply=CODE, stop=("Calling tools:", STOP)),
            Ask(
                name="2",
                history=[S, Q, f"a {CODE}{STOP}\nCalling tools:\n[{{'id': 'call_1'}}]", SEEN],
                expect=reacts("1", SEEN[2:], how=ANY),
            ),
        ],
        {"1": "closed"},
    ),
    "a short reply does not become distinctive by its stop string": (
        [
            Ask(name="1", history=[S, Q], reply="Booked for Friday.", stop=(STOP,)),
            Ask(
                name="2",
                history=[S, HELLO, f"a Booked for Friday.{STOP}", THANKS],
                expect=no_reaction(),
            ),
        ],
        {"1": "served"},
    ),
    "one reply ends with the text that another request has as its stop string: the equal one counts": (
        [
            Ask(name="1", history=[S, Q], reply=LONG, stop=(STOP,)),
            Ask(name="2", history=[S, Q], reply=f"{LONG}{STOP}"),
            Ask(name="3", history=[S, Q, f"{A}{STOP}", THANKS], expect=reacts("2", THANKS[2:])),
        ],
        {"2": "closed"},
    ),
    "the client indents and sorts a JSON reply": (
        [
            Ask(name="1", history=[S, Q], reply=PLACE),
            Ask(
                name="2",
                history=[S, Q, f"a {PLACE_BACK}", THANKS],
                expect=reacts("1", THANKS[2:], how=ANY),
            ),
        ],
        {"1": "closed"},
    ),
    "the client indents a short JSON array": (
        [
            Ask(name="1", history=[S, Q], reply="[2, 4]"),
            Ask(
                name="2",
                history=[S, Q, "a [\n  2,\n  4\n]", THANKS],
                expect=reacts("1", THANKS[2:], how=ANY),
            ),
        ],
        {"1": "closed"},
    ),
    "the client changes a value in a JSON reply: the text is not our reply": (
        [
            Ask(name="1", history=[S, Q], reply=PLACE),
            Ask(
                name="2",
                history=[S, Q, f"a {PLACE.replace('true', 'false')}", THANKS],
                expect=no_reaction(),
            ),
        ],
        {"1": "served"},
    ),
    "a number is no JSON object: 2.0 is not the reply 2": (
        [
            Ask(name="1", history=[S, Q], reply="2"),
            Ask(name="2", history=[S, Q, "a 2.0", THANKS], expect=no_reaction()),
        ],
        {"1": "served"},
    ),
    "JSON inside other text is compared letter by letter": (
        [
            Ask(name="1", history=[S, Q], reply=f"Here you are:\n{PLACE}"),
            Ask(
                name="2",
                history=[S, Q, f"a Here you are:\n{PLACE_BACK}", THANKS],
                expect=no_reaction(),
            ),
        ],
        {"1": "served"},
    ),
    "the client begins the reply and keeps its words as a message of their own (prefill)": (
        [
            Ask(name="1", history=[S, Q, "a There is"], reply="a good Italian place by the river."),
            Ask(
                name="2",
                history=[S, Q, "a There is", "a a good Italian place by the river.", THANKS],
                expect=reacts("1", THANKS[2:]),
            ),
        ],
        {"1": "closed"},
    ),
    "the client lets the model continue its reply and joins both: the longer text is neither of them": (
        [
            FIRST,
            Ask(name="2", history=[S, Q, A], reply=MORE, expect=no_reaction("1")),
            Ask(name="3", history=[S, Q, f"{A} {MORE}", THANKS], expect=no_reaction()),
        ],
        {"1": "served", "2": "served"},
    ),
}
