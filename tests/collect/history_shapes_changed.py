"""Shapes of histories as real programs send them: transcripts, summaries, several people, changed replies.

The expected links were written before the linker was run on them.
"""

from __future__ import annotations

from dataclasses import replace

from tests.collect.cases_traps_clients import ASK_SUMMARY, NOW_SUMMARY, SUMMARY
from tests.collect.history_shapes import (
    AGAIN,
    ASKED,
    CALL,
    DEAR,
    EAT,
    FINAL,
    LOOP,
    NEXT_CALL,
    NEXT_RESULT,
    NO,
    PLACE,
    RESULT,
    SHORT_LOOP,
    THANKS,
    Line,
    Q,
    S,
    Shape,
    last,
    no_to,
)
from tests.collect.world import Ask, calls, result

SAID = {"2": {"1": DEAR[2:]}}
TURN = Ask(name="1", history=[S, EAT], reply=PLACE)


def spoken(*lines: str) -> str:
    """Return a conversation as one user message, which ends where the assistant should speak."""
    names = {"u": "User", "a": "Assistant"}
    return "u " + "\n".join([*(f"{names[line[0]]}: {line[2:]}" for line in lines), "Assistant:"])


TRANSCRIPTS: dict[str, Shape] = {
    "transcript: the whole talk grows in one user message": Shape(
        steps=[
            Ask(name="1", history=[S, spoken(EAT)], reply=PLACE),
            Ask(name="2", history=[S, spoken(EAT, f"a {PLACE}", DEAR)], reply=FINAL),
            last(spoken(EAT, f"a {PLACE}", DEAR, f"a {FINAL}", NO)),
        ],
        links={**SAID, "3": {"2": NO[2:]}},
    ),
    "transcript: the talk so far stands in the instructions, the newest words are a message": Shape(
        steps=[
            TURN,
            Ask(
                name="2",
                history=[f"{S}\n\nConversation so far:\nUser: {EAT[2:]}\nAI: {PLACE}", DEAR],
            ),
        ],
        links=SAID,
    ),
    "transcript: a person quotes a reply in a new conversation": Shape(
        steps=[TURN, last(f"u My brother wrote: {PLACE} What do you think of it?", name="2")],
    ),
    "transcript: a person asks for a judgement of an earlier talk": Shape(
        steps=[
            TURN,
            last(
                f"u Is this polite?\nUser: {EAT[2:]}\nAssistant: {PLACE}\nAnswer yes or no.",
                name="2",
            ),
        ],
    ),
}

SUMMARISED = [TURN, Ask(name="sum", history=[S, EAT, f"a {PLACE}", ASK_SUMMARY], reply=SUMMARY)]
COMPACTIONS: dict[str, Shape] = {
    "compaction: a summary in a system message, then the person's words": Shape(
        steps=[*SUMMARISED, Ask(name="2", history=[NOW_SUMMARY, DEAR])], links=SAID
    ),
    "compaction: a summary in front of the last exchange": Shape(
        steps=[*SUMMARISED, Ask(name="2", history=[NOW_SUMMARY, EAT, f"a {PLACE}", DEAR])],
        links=SAID,
    ),
    "compaction: a summary in front of the last exchange of a tool loop": Shape(
        steps=[
            *LOOP,
            Ask(name="sum", history=[S, Q, CALL, RESULT, f"a {FINAL}", ASK_SUMMARY], reply=SUMMARY),
            Ask(name="3", history=[NOW_SUMMARY, Q, f"a {FINAL}", NO]),
        ],
        links=no_to("2"),
    ),
    "compaction: the whole first user message is the summary": Shape(
        steps=[*SUMMARISED, last(f"u {SUMMARY}", DEAR, name="2")], links=SAID
    ),
    "compaction: only the last exchange is left": Shape(
        steps=[
            Ask(name="0", history=[S, AGAIN], reply=FINAL),
            Ask(name="1", history=[S, AGAIN, f"a {FINAL}", EAT], reply=PLACE),
            last(EAT, f"a {PLACE}", DEAR, name="2"),
        ],
        links={"1": {"0": EAT[2:]}, **SAID},
    ),
}

HI = "u Hello"
WELCOME = "a Hello! How can I help you today?"
GREETED = WELCOME[2:]


def greet(name: str, *history: Line, system: str = S, **names: str) -> Ask:
    return Ask(name=name, history=[system, HI, *history], reply=GREETED, **names)


def person(name: str, words: str, *, system: str = S, **names: str) -> Ask:
    return Ask(name=name, history=[system, HI, WELCOME, words], reply=PLACE, **names)


PEOPLE: dict[str, Shape] = {
    "people: two users of one key begin alike": Shape(
        steps=[
            greet("ann", user="ann"),
            greet("bo", user="bo"),
            person("ann2", EAT, user="ann"),
            person("bo2", DEAR, user="bo"),
        ],
        links={"ann2": {"ann": EAT[2:]}, "bo2": {"bo": DEAR[2:]}},
        sessions={"ann": "ann", "ann2": "ann", "bo": "bo", "bo2": "bo"},
    ),
    "people: two users begin alike and the first one is slow": Shape(
        steps=[
            greet("ann", user="ann"),
            greet("bo", user="bo"),
            person("bo2", DEAR, user="bo"),
            person("ann2", DEAR, user="ann"),
        ],
        links={"ann2": {"ann": DEAR[2:]}, "bo2": {"bo": DEAR[2:]}},
        sessions={"ann": "ann", "ann2": "ann", "bo": "bo", "bo2": "bo"},
    ),
    "people: two chats of one user begin alike": Shape(
        steps=[
            greet("a", user="ann", session="chat-a"),
            greet("b", user="ann", session="chat-b"),
            person("a2", EAT, user="ann", session="chat-a"),
            person("b2", DEAR, user="ann", session="chat-b"),
        ],
        links={"a2": {"a": EAT[2:]}, "b2": {"b": DEAR[2:]}},
        sessions={"a": "chat-a", "a2": "chat-a", "b": "chat-b", "b2": "chat-b"},
    ),
    "people: three users begin alike while a clock changes": Shape(
        steps=[
            *(greet(name, system=f"s It is 9:0{at}.", user=name) for at, name in enumerate("abc")),
            *(
                person(f"{name}2", words, system=f"s It is 9:1{at}.", user=name)
                for at, (name, words) in enumerate({"b": EAT, "a": DEAR, "c": NO}.items())
            ),
        ],
        links={"b2": {"b": EAT[2:]}, "a2": {"a": DEAR[2:]}, "c2": {"c": NO[2:]}},
        sessions={"a": "a", "a2": "a", "b": "b", "b2": "b", "c": "c", "c2": "c"},
    ),
    "people: two nameless tabs get the same greeting": Shape(
        steps=[greet("a"), greet("b"), person("a2", EAT)],
        links={"a2": {"b": EAT[2:]}},
        equal=frozenset({"a", "b"}),
    ),
    "people: another user sends what the first one heard": Shape(
        steps=[greet("ann", user="ann"), person("bo", DEAR, user="bo")],
    ),
    "people: a nameless stranger has the same talk up to the answer of a loop": Shape(
        steps=[
            *(replace(step, user="ann") for step in LOOP),
            last(Q, f"a {FINAL}", NO, user="bo"),
        ],
    ),
    "people: the loops of two users end alike": Shape(
        steps=[
            *(replace(step, user="ann") for step in LOOP),
            Ask(name="b1", history=[S, Q], reply=NEXT_CALL, user="bo"),
            Ask(name="b2", history=[S, Q, NEXT_CALL, NEXT_RESULT], reply=FINAL, user="bo"),
            last(Q, f"a {FINAL}", NO, user="ann"),
        ],
        links=no_to("2"),
    ),
}

LIST = "Two places:\n- The Italian place by the river.\n- The noodle bar on Mill Street.\nBoth are open."
SPACED = LIST.replace("\n", "\n\n")
LOOK = {**CALL, "content": "Let me look that up for you."}
BOTH = calls(
    ("call_a1", "weather", '{"city": "Rome", "day": 5}'),
    ("call_b2", "weather", '{"city": "Rome", "day": 12}'),
)
TWO_STEPS = [
    ASKED,
    Ask(name="2", history=[S, Q, CALL, RESULT], reply=NEXT_CALL),
]
JOINED = f"a Let me look that up for you.\n\n{FINAL}"

CHANGED: dict[str, Shape] = {
    "changed: blank lines are added to a reply": Shape(
        steps=[
            Ask(name="1", history=[S, EAT], reply=LIST),
            last(EAT, f"a {SPACED}", DEAR, name="2"),
        ],
        links=SAID,
    ),
    "changed: a blank line is added to a short reply, and the talk goes on": Shape(
        steps=[
            Ask(name="1", history=[S, EAT], reply="Yes.\nAt eight."),
            Ask(name="2", history=[S, EAT, "a Yes.\n\nAt eight.", DEAR], reply="No.\nAt ten."),
            last(EAT, "a Yes.\n\nAt eight.", DEAR, "a No.\n\nAt ten.", NO),
        ],
        links={**SAID, **no_to("2")},
    ),
    "changed: white space at the ends of lines is removed": Shape(
        steps=[
            Ask(name="1", history=[S, EAT], reply=LIST.replace("\n", "  \n")),
            last(EAT, f"a {LIST}", DEAR, name="2"),
        ],
        links=SAID,
    ),
    "changed: words and call of one reply as two messages": Shape(
        steps=[
            Ask(name="1", history=[S, Q], reply=LOOK),
            Ask(name="2", history=[S, Q, f"a {LOOK['content']}", CALL, RESULT], reply=FINAL),
            last(Q, f"a {LOOK['content']}", CALL, RESULT, f"a {FINAL}", NO),
        ],
        links=no_to("2"),
    ),
    "changed: words and call of one reply as two messages, only afterwards": Shape(
        steps=[
            Ask(name="1", history=[S, Q], reply=LOOK),
            Ask(name="2", history=[S, Q, LOOK, RESULT], reply="Sunny."),
            last(Q, f"a {LOOK['content']}", CALL, RESULT, "a Sunny.", NO),
        ],
        links=no_to("2"),
    ),
    "changed: the calls of two steps in one message": Shape(
        steps=[
            *TWO_STEPS,
            Ask(name="3", history=[S, Q, BOTH, RESULT, NEXT_RESULT], reply=FINAL),
            last(Q, BOTH, RESULT, NEXT_RESULT, f"a {FINAL}", NO, name="4"),
        ],
        links={"4": {"3": NO[2:]}},
    ),
    "changed: the calls of two steps in one message only afterwards, and a short answer": Shape(
        steps=[
            *TWO_STEPS,
            Ask(name="3", history=[S, Q, CALL, RESULT, NEXT_CALL, NEXT_RESULT], reply="Both dry."),
            last(Q, BOTH, RESULT, NEXT_RESULT, "a Both dry.", NO, name="4"),
        ],
        links={"4": {"3": NO[2:]}},
    ),
    "changed: the texts of two steps joined": Shape(
        steps=[
            Ask(name="1", history=[S, Q], reply=LOOK),
            Ask(name="2", history=[S, Q, LOOK, RESULT], reply=FINAL),
            last(Q, JOINED, NO),
        ],
        links=no_to("2"),
    ),
    "changed: the texts of three steps joined, with other white space": Shape(
        steps=[
            Ask(name="1", history=[S, Q], reply=LOOK),
            Ask(
                name="2", history=[S, Q, LOOK, RESULT], reply={**NEXT_CALL, "content": "Once more."}
            ),
            Ask(
                name="3",
                history=[S, Q, LOOK, RESULT, {**NEXT_CALL, "content": "Once more."}, NEXT_RESULT],
                reply=FINAL,
            ),
            last(Q, f"a {LOOK['content']} Once more. {FINAL}", NO, name="4"),
        ],
        links={"4": {"3": NO[2:]}},
    ),
    "changed: the result is moved into the instructions": Shape(
        steps=[
            ASKED,
            Ask(name="2", history=[f"{S}\nThe tool said: sunny, 31 degrees", Q], reply=FINAL),
            last(Q, f"a {FINAL}", NO),
        ],
        links=no_to("2"),
    ),
    "changed: CAMEL sends the answer before the last call": Shape(
        steps=[*LOOP, last(Q, f"a {FINAL}", CALL, RESULT, NO)], links=no_to("2")
    ),
    "changed: a short answer before the last call": Shape(
        steps=[*SHORT_LOOP, last(Q, "a Sunny.", CALL, RESULT, NO)], links=no_to("2")
    ),
    "changed: the answer to a call's result is left out, the person objects": Shape(
        steps=[*LOOP, last(Q, CALL, RESULT, NO)], links=no_to("2")
    ),
    "changed: the person edits the answer of a loop": Shape(
        steps=[*LOOP, last(Q, f"a {FINAL.replace('sunny', 'rainy')}", NO)],
    ),
    "changed: the person objects, and a page repeats the tool result behind the words": Shape(
        steps=[
            *LOOP,
            last(Q, CALL, RESULT, f"a {FINAL}", NO),
            last(
                Q, CALL, RESULT, f"a {FINAL}", NO, "a Sorry, I meant next Friday.", THANKS, name="4"
            ),
        ],
        links=no_to("2"),
    ),
    "changed: the same call id stands in two conversations": Shape(
        steps=[
            *LOOP,
            Ask(name="b1", history=["s You are terse.", Q], reply=CALL),
            Ask(
                name="b2",
                history=["s You are terse.", Q, CALL, result("call_a1", "rain")],
                reply="Rain.",
            ),
            Ask(
                name="3",
                history=["s You are terse.", Q, CALL, result("call_a1", "rain"), "a Rain.", NO],
            ),
        ],
        links={"3": {"b2": NO[2:]}},
    ),
}

SHAPES: dict[str, Shape] = TRANSCRIPTS | COMPACTIONS | PEOPLE | CHANGED
