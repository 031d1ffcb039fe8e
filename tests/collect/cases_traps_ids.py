"""Traps of linking: the ids of tool calls, behind changed histories and across agents.

The gateway's ids are unique ("call_" and 24 hex digits). Where a client sends them back unchanged they link a call also
behind a changed history; `how` is open there (ANY).
"""

from __future__ import annotations

from unittest.mock import ANY

from tests.collect.cases import BEAT, LONG, THANKS, A, Case, Q, S
from tests.collect.cases_traps_edits import BYE, clock, no_reaction, reacts
from tests.collect.cases_traps_tools import (
    CAT,
    CAT_RESULT,
    ID1,
    ID2,
    LIST,
    LIST_RESULT,
    MISSING,
    START,
    TRIED,
)
from tests.collect.world import Ask, End, calls, result

CAT_SHORT = calls((ID1.replace("_", ""), "shell", '{"command":"cat nowhere.txt"}'))
TRIAGE, BILLING = "s You are the triage agent.", "s You are the billing agent."
TO_BILLING, TO_TRIAGE = (
    calls((ID1, "transfer_to_billing", "{}")),
    calls((ID2, "transfer_to_triage", "{}")),
)
NOW_BILLING, NOW_TRIAGE = (
    result(ID1, '{"assistant": "Billing"}'),
    result(ID2, '{"assistant": "Triage"}'),
)
REFUND = "I can refund the last invoice. Shall I do it?"
AT_BILLING = [Q, TO_BILLING, NOW_BILLING, f"a {REFUND}"]

IDS: dict[str, Case] = {
    "a clock in the system prompt changes: a call links by its id": (
        [
            Ask(name="1", history=[clock("18:00"), Q], reply=CAT),
            Ask(
                name="2",
                history=[clock("18:01"), Q, CAT, CAT_RESULT],
                expect=reacts("1", MISSING, how=ANY)
                | {"session": "1", "relation": "continuation", "unlinked": None},
            ),
        ],
        {"1": "closed"},
    ),
    "a clock in the system prompt changes with every request: calls and the long reply link, each once": (
        [
            Ask(name="1", history=[clock("18:00"), Q], reply=CAT),
            Ask(
                name="2",
                history=[clock("18:01"), Q, CAT, CAT_RESULT],
                reply=LIST,
                expect=reacts("1", MISSING, how=ANY),
            ),
            Ask(
                name="3",
                history=[clock("18:02"), Q, CAT, CAT_RESULT, LIST, LIST_RESULT],
                reply=LONG,
                expect=reacts("2", "notes.txt", how=ANY),
            ),
            Ask(
                name="4",
                history=[clock("18:03"), Q, CAT, CAT_RESULT, LIST, LIST_RESULT, A, THANKS],
                expect=reacts("3", THANKS[2:], how="distinctive") | {"session": "1"},
            ),
        ],
        {"1": "closed", "2": "closed", "3": "closed"},
    ),
    "a clock changes and the client shortens the ids: the call links nothing": (
        [
            Ask(name="1", history=[clock("18:00"), Q], reply=CAT),
            Ask(
                name="2",
                history=[clock("18:01"), Q, CAT_SHORT, result(ID1.replace("_", ""), MISSING)],
                expect=no_reaction(),
            ),
        ],
        {"1": "served"},
    ),
    "a clock changes, and the client writes the arguments in another order: the call links by its id": (
        [
            Ask(
                name="1",
                history=[clock("18:00"), Q],
                reply=calls((ID1, "maps", '{"to": "Rome", "day": 5}')),
            ),
            Ask(
                name="2",
                history=[
                    clock("18:01"),
                    Q,
                    calls((ID1, "maps", '{"day":5,"to":"Rome"}')),
                    result(ID1, "1400 km"),
                ],
                expect=reacts("1", "1400 km", how=ANY),
            ),
        ],
        {"1": "closed"},
    ),
    "a clock changes, and the client drops the words beside the call: the call links by its id": (
        [
            Ask(
                name="1",
                history=[clock("18:00"), Q],
                reply=calls(
                    (ID1, "shell", '{"command": "cat nowhere.txt"}'), content="Let me look."
                ),
            ),
            Ask(
                name="2",
                history=[clock("18:01"), Q, CAT, CAT_RESULT],
                expect=reacts("1", MISSING, how=ANY),
            ),
        ],
        {"1": "closed"},
    ),
    "the person edits the arguments before the call runs: its result is no reaction to what we wrote": (
        [
            START,
            Ask(
                name="2",
                history=[
                    S,
                    Q,
                    calls((ID1, "shell", '{"command": "cat notes.txt"}')),
                    result(ID1, "Dinner: Friday."),
                ],
                expect={"answers": {}},
            ),
        ],
        {"1": "served"},
    ),
    "a hand-off to another agent: another system prompt, the same ids, one session": (
        [
            Ask(name="1", history=[TRIAGE, Q], reply=TO_BILLING),
            Ask(
                name="2",
                history=[BILLING, Q, TO_BILLING, NOW_BILLING],
                reply=REFUND,
                expect=reacts("1", '{"assistant": "Billing"}', how=ANY) | {"session": "1"},
            ),
        ],
        {"1": "closed", "2": "served"},
    ),
    "a hand-off and back: every turn gets one reaction, and the session is one": (
        [
            Ask(name="1", history=[TRIAGE, Q], reply=TO_BILLING),
            Ask(name="2", history=[BILLING, Q, TO_BILLING, NOW_BILLING], reply=REFUND),
            Ask(
                name="3",
                history=[BILLING, *AT_BILLING, THANKS],
                reply=TO_TRIAGE,
                expect=reacts("2", THANKS[2:]) | {"session": "1"},
            ),
            Ask(
                name="4",
                history=[TRIAGE, *AT_BILLING, THANKS, TO_TRIAGE, NOW_TRIAGE],
                reply="Anything else?",
                expect=reacts("3", '{"assistant": "Triage"}', how=ANY) | {"session": "1"},
            ),
            Ask(
                name="5",
                history=[
                    TRIAGE,
                    *AT_BILLING,
                    THANKS,
                    TO_TRIAGE,
                    NOW_TRIAGE,
                    "a Anything else?",
                    BYE,
                ],
                expect=reacts("4", "Bye") | {"session": "1"},
            ),
        ],
        {"1": "closed", "2": "closed", "3": "closed", "4": "closed"},
    ),
    "a hand-off with a heartbeat in between: the person's words react to the last reply": (
        [
            Ask(name="1", history=[TRIAGE, Q], reply=TO_BILLING),
            Ask(name="2", history=[BILLING, Q, TO_BILLING, NOW_BILLING], reply=REFUND),
            Ask(
                name="beat",
                history=[BILLING, *AT_BILLING, BEAT],
                reply="HEARTBEAT_OK",
                expect={"answers": {}},
            ),
            Ask(
                name="3",
                history=[BILLING, *AT_BILLING, BEAT, "a HEARTBEAT_OK", "u Yes, do it."],
                expect={"answers": {"2": ("exact", ("Yes, do it.",))}, "session": "1"},
            ),
        ],
        {"1": "closed", "2": "closed", "beat": "dropped side"},
    ),
    "a helper agent gets a copy of the history with its own result for the same call: no revision": (
        [
            START,
            TRIED,
            Ask(
                name="3",
                history=[
                    "s You are a helper.",
                    Q,
                    CAT,
                    result(ID1, "You are the helper. List the files."),
                ],
                expect=no_reaction("1") | {"session": "1"},
            ),
        ],
        {"1": "closed"},
    ),
    "a helper agent under another session header sends our call: nothing links, and the reason says why": (
        [
            Ask(name="1", history=[S, Q], reply=CAT, session="main"),
            Ask(
                name="2",
                history=["s You are a helper.", Q, CAT, CAT_RESULT],
                session="helper",
                expect=no_reaction() | {"unlinked": "under another", "session": "helper"},
            ),
        ],
        {"1": "served"},
    ),
    "another user sends a call with our id: nothing links, and the reason says why": (
        [
            Ask(name="1", history=[clock("18:00"), Q], reply=CAT, user="ann"),
            Ask(
                name="2",
                history=[clock("18:01"), Q, CAT, CAT_RESULT],
                user="bob",
                expect=no_reaction() | {"unlinked": "under another"},
            ),
        ],
        {"1": "served"},
    ),
    "a call with our id under another key links nothing": (
        [
            START,
            Ask(name="2", history=[S, Q, CAT, CAT_RESULT], scope="another", expect=no_reaction()),
        ],
        {"1": "served"},
    ),
    "an id that two exchanges could own links nothing behind a changed history": (
        [
            Ask(name="1", history=[clock("18:00"), Q], reply=CAT),
            Ask(name="2", history=[clock("18:00"), "u And where shall we drink?"], reply=CAT),
            Ask(name="3", history=[clock("18:01"), Q, CAT, CAT_RESULT], expect=no_reaction()),
        ],
        {"1": "served", "2": "served"},
    ),
    "an id that two exchanges could own: the unchanged history still decides": (
        [
            Ask(name="1", history=[S, Q], reply=CAT),
            Ask(name="2", history=[S, "u And where shall we drink?"], reply=CAT),
            Ask(name="3", history=[S, Q, CAT, CAT_RESULT], expect=reacts("1", MISSING)),
        ],
        {"1": "closed", "2": "served"},
    ),
    "two runs of one task make the same call with different ids: each result goes to the run with its id": (
        [
            Ask(name="1", history=[S, Q], reply=CAT),
            Ask(
                name="2",
                history=[S, Q],
                reply=calls((ID2, "shell", '{"command": "cat nowhere.txt"}')),
            ),
            Ask(name="3", history=[S, Q, CAT, CAT_RESULT], expect=reacts("1", MISSING, how=ANY)),
            Ask(
                name="4",
                history=[
                    S,
                    Q,
                    calls((ID2, "shell", '{"command": "cat nowhere.txt"}')),
                    result(ID2, MISSING),
                ],
                expect=reacts("2", MISSING, how=ANY),
            ),
        ],
        {"1": "closed", "2": "closed"},
    ),
    "two choices of one call (n=2) make different tool calls: the one that ran gets the result": (
        [
            Ask(name="c", history=[clock("18:00"), Q]),
            Ask(name="c.1", history=[clock("18:00"), Q]),
            End(name="c", reply=CAT),
            End(name="c.1", reply=LIST),
            Ask(
                name="2",
                history=[clock("18:01"), Q, LIST, LIST_RESULT],
                expect=reacts("c.1", "notes.txt", how=ANY),
            ),
        ],
        {"c.1": "closed"},
    ),
}
