"""Traps of linking: tool results that a client clears, repeats or changes."""

from __future__ import annotations

from unittest.mock import ANY

from tests.collect.cases import LONG, RESULTS, THANKS, WEATHER, WEATHER_BACK, A, Case, Q, S
from tests.collect.cases_traps_edits import BOOKED, no_reaction, reacts
from tests.collect.world import Ask, calls, result

from openclaw_rl.types import Capture, ExchangeStatus

ID1, ID2, ID3 = (
    "call_3f9c1e7a5b2d4c6e8f0a1b2c",
    "call_a07d44c19be2f35868d1e0b7",
    "call_5512fe90cc3a7b84d6e2190f",
)
CAT = calls((ID1, "shell", '{"command": "cat nowhere.txt"}'))
LIST = calls((ID2, "shell", '{"command": "ls"}'))
BOTH = calls((ID1, "shell", '{"command": "cat nowhere.txt"}'), (ID2, "shell", '{"command": "ls"}'))
READ = calls((ID3, "shell", '{"command": "cat notes.txt"}'))
MISSING = "cat: nowhere.txt: No such file"
CLEARED, PRUNED = "[cleared]", "[Old tool result content cleared]"
CAT_RESULT, LIST_RESULT, READ_RESULT = (
    result(ID1, MISSING),
    result(ID2, "notes.txt"),
    result(ID3, "Dinner: Friday."),
)
NESTED_CALL = (
    "a For context, here is the conversation so far between the user and the previous agent:\n<CONVERSATION HISTORY>\n"
    f'1. user: Dinner?\n2. function_call: {{"call_id": "{ID1}", "name": "shell"}}\n</CONVERSATION HISTORY>'
)
START = Ask(name="1", history=[S, Q], reply=CAT)
TRIED = Ask(name="2", history=[S, Q, CAT, CAT_RESULT], reply=LIST, expect=reacts("1", MISSING))

TOOLS: dict[str, Case] = {
    "a cleared tool result: the first turn keeps its reaction, the second gets the second result": (
        [
            START,
            TRIED,
            Ask(
                name="3",
                history=[S, Q, CAT, result(ID1, CLEARED), LIST, LIST_RESULT],
                expect=reacts("2", "notes.txt", how=ANY) | {"session": "1"},
            ),
        ],
        {"1": "closed", "2": "closed", "3": "served"},
    ),
    "a clock in the system prompt: the short reply after a tool result is the one that continued it": (
        [
            Ask(name="1", history=["s It is 9:00.", Q], reply=CAT),
            Ask(name="2", history=["s It is 9:01.", Q, CAT, CAT_RESULT], reply="Gone."),
            Ask(
                name="3",
                history=["s It is 9:02.", Q, CAT, CAT_RESULT, "a Gone.", THANKS],
                reply="Sure.",
                expect=reacts("2", THANKS[2:], how="sequence"),
            ),
            Ask(
                name="4",
                history=[
                    "s It is 9:03.",
                    Q,
                    CAT,
                    CAT_RESULT,
                    "a Gone.",
                    THANKS,
                    "a Sure.",
                    "u Look again.",
                ],
                expect=reacts("3", "Look again.", how="sequence") | {"session": "1"},
            ),
        ],
        {"1": "closed", "2": "closed", "3": "closed", "4": "served"},
    ),
    "the results of two calls in another order: the short reply behind them keeps its reaction": (
        [
            Ask(name="1", history=[S, Q], reply=BOTH),
            Ask(name="2", history=[S, Q, BOTH, LIST_RESULT, CAT_RESULT], reply="Gone."),
            Ask(
                name="3",
                history=[S, Q, BOTH, CAT_RESULT, LIST_RESULT, "a Gone.", THANKS],
                expect=reacts("2", THANKS[2:], how="sequence"),
            ),
        ],
        {"1": "closed", "2": "closed", "3": "served"},
    ),
    "two equal short replies continued the call: neither is certain": (
        [
            Ask(name="1", history=["s It is 9:00.", Q], reply=CAT),
            Ask(name="2", history=["s It is 9:01.", Q, CAT, CAT_RESULT], reply="Gone."),
            Ask(name="3", history=["s It is 9:02.", Q, CAT, CAT_RESULT], reply="Gone."),
            Ask(
                name="4",
                history=["s It is 9:03.", Q, CAT, CAT_RESULT, "a Gone.", THANKS],
                expect=no_reaction("1"),
            ),
        ],
        {"2": "served", "3": "served"},
    ),
    "another model answered another message after the call, in the same few words": (
        [
            Ask(name="1", history=["s It is 9:00.", Q], reply=CAT),
            Ask(name="2", history=["s It is 9:01.", Q, CAT, CAT_RESULT], reply="Gone."),
            Ask(
                name="3",
                history=[
                    "s It is 9:02.",
                    Q,
                    CAT,
                    result(ID1, "Dinner: Friday."),
                    "a Gone.",
                    THANKS,
                ],
                expect=no_reaction("1"),
            ),
        ],
        {"2": "served"},
    ),
    "results are cleared one after another: every turn keeps the result that it really got": (
        [
            START,
            TRIED,
            Ask(
                name="3",
                history=[S, Q, CAT, result(ID1, PRUNED), LIST, LIST_RESULT],
                reply=READ,
                expect=reacts("2", "notes.txt", how=ANY),
            ),
            Ask(
                name="4",
                history=[
                    S,
                    Q,
                    CAT,
                    result(ID1, PRUNED),
                    LIST,
                    result(ID2, PRUNED),
                    READ,
                    READ_RESULT,
                ],
                reply=LONG,
                expect=reacts("3", "Dinner: Friday.", how=ANY) | {"session": "1"},
            ),
            Ask(
                name="5",
                history=[
                    S,
                    Q,
                    CAT,
                    result(ID1, PRUNED),
                    LIST,
                    result(ID2, PRUNED),
                    READ,
                    READ_RESULT,
                    A,
                    THANKS,
                ],
                expect=reacts("4", THANKS[2:]),
            ),
        ],
        {"1": "closed", "2": "closed", "3": "closed", "4": "closed"},
    ),
    "a result is cleared under a long reply: its own tool result is unchanged, so it links": (
        [
            START,
            TRIED,
            Ask(name="3", history=[S, Q, CAT, CAT_RESULT, LIST, LIST_RESULT], reply=LONG),
            Ask(
                name="4",
                history=[S, Q, CAT, result(ID1, CLEARED), LIST, LIST_RESULT, A, THANKS],
                expect=reacts("3", THANKS[2:], how="distinctive") | {"session": "1"},
            ),
        ],
        {"1": "closed", "2": "closed", "3": "closed"},
    ),
    "arguments are cleared with the result: the later call still links, the first turn is not revised": (
        [
            START,
            TRIED,
            Ask(
                name="3",
                history=[
                    S,
                    Q,
                    calls((ID1, "shell", "{}")),
                    result(ID1, CLEARED),
                    LIST,
                    LIST_RESULT,
                ],
                expect={"answers": {"2": (ANY, ("notes.txt",))}},
            ),
        ],
        {"1": "closed", "2": "closed"},
    ),
    "an old call is removed with its result: the later call links by its id": (
        [
            START,
            TRIED,
            Ask(
                name="3",
                history=[S, Q, LIST, LIST_RESULT],
                expect=reacts("2", "notes.txt", how=ANY),
            ),
        ],
        {"1": "closed", "2": "closed"},
    ),
    "the client runs the tool again and sends the other result: the first result stays": (
        [
            START,
            TRIED,
            Ask(
                name="3",
                history=[S, Q, CAT, result(ID1, "Dinner: Friday.")],
                expect=no_reaction("1"),
            ),
        ],
        {"1": "closed"},
    ),
    "a result is cleared while it is the last message: the first result stays": (
        [
            START,
            TRIED,
            Ask(name="3", history=[S, Q, CAT, result(ID1, CLEARED)], expect=no_reaction("1")),
        ],
        {"1": "closed"},
    ),
    "parallel calls, one result is changed at the end: no revision": (
        [
            Ask(name="1", history=[S, Q], reply=WEATHER),
            Ask(
                name="2",
                history=[S, Q, WEATHER_BACK, *RESULTS],
                expect=reacts("1", "sunny", "1400 km"),
            ),
            Ask(
                name="3",
                history=[S, Q, WEATHER_BACK, RESULTS[0], result("call2", CLEARED)],
                expect=no_reaction("1"),
            ),
        ],
        {"1": "closed"},
    ),
    "parallel calls, one result is changed in the middle: no revision": (
        [
            Ask(name="1", history=[S, Q], reply=WEATHER),
            Ask(name="2", history=[S, Q, WEATHER_BACK, *RESULTS], reply="OK"),
            Ask(
                name="3",
                history=[S, Q, WEATHER_BACK, RESULTS[0], result("call2", CLEARED), "a OK", THANKS],
                expect=no_reaction("1"),
            ),
        ],
        {"1": "closed", "2": "served"},
    ),
    "parallel calls, the texts of the results change places: no revision": (
        [
            Ask(name="1", history=[S, Q], reply=WEATHER),
            Ask(name="2", history=[S, Q, WEATHER_BACK, *RESULTS]),
            Ask(
                name="3",
                history=[S, Q, WEATHER_BACK, result("call1", "1400 km"), result("call2", "sunny")],
                expect=no_reaction("1"),
            ),
        ],
        {"1": "closed"},
    ),
    "parallel results come in another order under one session header: the long reply behind them links": (
        [
            Ask(name="1", history=[S, Q], reply=WEATHER, session="x"),
            Ask(name="2", history=[S, Q, WEATHER_BACK, *RESULTS], reply=LONG, session="x"),
            Ask(
                name="3",
                history=[S, Q, WEATHER_BACK, *RESULTS[::-1], A, THANKS],
                session="x",
                expect=reacts("2", THANKS[2:], how="distinctive"),
            ),
        ],
        {"1": "closed", "2": "closed"},
    ),
    "the person stops the reply to a result and objects: the words at the end are a revision": (
        [
            Ask(name="1", history=[S, Q], reply=WEATHER),
            Ask(
                name="2",
                history=[S, Q, WEATHER_BACK, *RESULTS],
                reply="It",
                status=ExchangeStatus.CANCELLED,
            ),
            Ask(
                name="3",
                history=[S, Q, WEATHER_BACK, *RESULTS, "u Stop, wrong city."],
                expect=reacts("1", "sunny", "1400 km", "Stop, wrong city."),
            ),
        ],
        {"1": "closed", "2": "dropped cancelled"},
    ),
    "a client repeats call and result: the result is recorded once": (
        [
            START,
            Ask(
                name="2",
                history=[S, Q, CAT, CAT_RESULT, CAT, CAT_RESULT],
                reply=LIST,
                expect=reacts("1", MISSING),
            ),
            Ask(
                name="3",
                history=[S, Q, CAT, CAT_RESULT, CAT, result(ID1, CLEARED), LIST, LIST_RESULT],
                expect=reacts("2", "notes.txt", how=ANY),
            ),
        ],
        {"1": "closed", "2": "closed"},
    ),
    "a client merges the calls of two replies into one message: the mixed results are no reaction": (
        [
            START,
            TRIED,
            Ask(
                name="3",
                history=[
                    S,
                    Q,
                    {**CAT, "tool_calls": [*CAT["tool_calls"], *LIST["tool_calls"]]},
                    CAT_RESULT,
                    LIST_RESULT,
                ],
                expect={"answers": {}},
            ),
        ],
        {"1": "closed", "2": "served"},
    ),
    "a summary replaces the history but keeps the last call: it links by its id and keeps the session": (
        [
            START,
            TRIED,
            Ask(
                name="3",
                history=[
                    S,
                    "u Here is a summary of the conversation to date:\n\nA file is missing.",
                    LIST,
                    LIST_RESULT,
                ],
                reply=BOOKED,
                expect=reacts("2", "notes.txt", how=ANY) | {"session": "1"},
            ),
        ],
        {"1": "closed", "2": "closed", "3": "served"},
    ),
    "a hand-off drops the call and keeps its result: the reason names it": (
        [
            START,
            Ask(
                name="2",
                history=["s You are the next agent.", Q, CAT_RESULT],
                agent="next",
                expect=no_reaction()
                | {"session": "2", "unlinked": "names tool calls of this gateway"},
            ),
        ],
        {"1": "served"},
    ),
    "a hand-off puts the conversation into one message: the reason names the call in it": (
        [
            START,
            Ask(
                name="2",
                history=["s You are the next agent.", NESTED_CALL, "u Go on."],
                expect=no_reaction() | {"unlinked": "names tool calls of this gateway"},
            ),
            Ask(
                name="3",
                history=["s You are the next agent.", f"u {NESTED_CALL[2:]}"],
                expect=no_reaction() | {"unlinked": "names tool calls of this gateway"},
            ),
        ],
        {"1": "served"},
    ),
    "a hand-off puts the conversation into one message: the reason names the reply in it": (
        [
            Ask(name="1", history=[S, Q], reply=LONG),
            Ask(
                name="2",
                history=[
                    "s You are the next agent.",
                    f"a For context:\n1. user: Dinner?\n2. assistant: {LONG}",
                    THANKS,
                ],
                expect=no_reaction()
                | {"unlinked": "has a reply of this gateway only inside another message"},
            ),
        ],
        {"1": "served"},
    ),
    "a redacted request has no text to search": (
        [
            Ask(name="1", history=[S, Q], reply=LONG),
            Ask(
                name="2",
                history=[S, "u Dinner?", THANKS],
                capture=Capture.REDACTED,
                expect=no_reaction() | {"unlinked": None},
            ),
        ],
        {"1": "served"},
    ),
    "a person quotes a reply in a new conversation: there is no history, and no reason": (
        [
            Ask(name="1", history=[S, Q], reply=LONG),
            Ask(
                name="2",
                history=[S, f"u Translate: {LONG}"],
                expect=no_reaction() | {"unlinked": None},
            ),
            Ask(
                name="3",
                history=[S, f"u Translate: {LONG}"],
                scope="other",
                expect=no_reaction() | {"unlinked": None},
            ),
            Ask(
                name="4",
                history=[S, CAT_RESULT, "u Which call is this?"],
                expect=no_reaction() | {"unlinked": None},
            ),
        ],
        {"1": "served"},
    ),
}
