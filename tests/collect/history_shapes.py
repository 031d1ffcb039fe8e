"""Shapes of histories as real programs send them, with the links that a person expects: loops, contexts, memories.

The expected links were written before the linker was run on them. `history_shapes_changed.py` has the other half.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tests.collect.world import Ask, calls, result

from openclaw_rl.types import Message

Line = str | Message


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Requests in order, and by the name of a request: the turn that its person reacts to -> the person's words.

    A request that is not named must put no words of a person on any turn.
    """

    steps: Sequence[Ask]
    links: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    # Turns that are equal to the last word: either may get the reaction.
    equal: frozenset[str] = frozenset()
    # The sessions that the requests belong to, where people begin alike.
    sessions: Mapping[str, str] = field(default_factory=dict)


S = "s You are a helpful assistant."
Q = "u What will the weather be in Rome on Friday?"
CALL = calls(("call_a1", "weather", '{"city": "Rome", "day": 5}'))
RESULT = result("call_a1", "sunny, 31 degrees")
FINAL = "On Friday it will be sunny in Rome, with 31 degrees."
NO = "u No, that is wrong. I meant next Friday."
NEXT_CALL = calls(("call_b2", "weather", '{"city": "Rome", "day": 12}'))
NEXT_RESULT = result("call_b2", "rain, 18 degrees")
NEXT_FINAL = "Next Friday it will rain in Rome, with 18 degrees."
THANKS = "u Thank you, that is what I needed."
AGAIN = "u And what about the weather in Milan on that day?"
ASKED = Ask(name="1", history=[S, Q], reply=CALL)
LOOP = [ASKED, Ask(name="2", history=[S, Q, CALL, RESULT], reply=FINAL)]
SHORT_LOOP = [ASKED, Ask(name="2", history=[S, Q, CALL, RESULT], reply="Sunny.")]
EAT = "u Where shall we eat on Friday evening?"
PLACE = "There is a good Italian place by the river."
DEAR = "u That place is too expensive for the four of us."


def last(*history: Line, name: str = "3", **names: str) -> Ask:
    """Return a request whose reply is not looked at."""
    return Ask(name=name, history=[S, *history], **names)


def no_to(turn: str, *, by: str = "3") -> dict[str, dict[str, str]]:
    return {by: {turn: NO[2:]}}


LOOPS: dict[str, Shape] = {
    "loop: question and final answer are sent back": Shape(
        steps=[*LOOP, last(Q, f"a {FINAL}", NO)], links=no_to("2")
    ),
    "loop: question and a short final answer are sent back": Shape(
        steps=[*SHORT_LOOP, last(Q, "a Sunny.", NO)], links=no_to("2")
    ),
    "loop: two loops in a row, both without their tools": Shape(
        steps=[
            *LOOP,
            Ask(name="3", history=[S, Q, f"a {FINAL}", NO], reply=NEXT_CALL),
            Ask(
                name="4",
                history=[S, Q, f"a {FINAL}", NO, NEXT_CALL, NEXT_RESULT],
                reply=NEXT_FINAL,
            ),
            last(Q, f"a {FINAL}", NO, f"a {NEXT_FINAL}", THANKS, name="5"),
        ],
        links={"3": {"2": NO[2:]}, "5": {"4": THANKS[2:]}},
    ),
    "loop: two loops in a row with short answers": Shape(
        steps=[
            *SHORT_LOOP,
            Ask(name="3", history=[S, Q, "a Sunny.", NO], reply=NEXT_CALL),
            Ask(
                name="4", history=[S, Q, "a Sunny.", NO, NEXT_CALL, NEXT_RESULT], reply="It rains."
            ),
            last(Q, "a Sunny.", NO, "a It rains.", THANKS, name="5"),
        ],
        links={"3": {"2": NO[2:]}, "5": {"4": THANKS[2:]}},
    ),
    "loop: three steps are left out": Shape(
        steps=[
            *LOOP[:1],
            Ask(name="2", history=[S, Q, CALL, RESULT], reply=NEXT_CALL),
            Ask(name="3", history=[S, Q, CALL, RESULT, NEXT_CALL, NEXT_RESULT], reply=FINAL),
            last(Q, f"a {FINAL}", NO, name="4"),
        ],
        links={"4": {"3": NO[2:]}},
    ),
    "loop: words beside the call are left out with it": Shape(
        steps=[
            Ask(name="1", history=[S, Q], reply={**CALL, "content": "Let me look that up."}),
            Ask(
                name="2",
                history=[S, Q, {**CALL, "content": "Let me look that up."}, RESULT],
                reply=FINAL,
            ),
            last(Q, f"a {FINAL}", NO),
        ],
        links=no_to("2"),
    ),
    "loop: a clock in the system prompt changes, too": Shape(
        steps=[
            Ask(name="1", history=["s It is 9:00.", Q], reply=CALL),
            Ask(name="2", history=["s It is 9:01.", Q, CALL, RESULT], reply=FINAL),
            Ask(name="3", history=["s It is 9:02.", Q, f"a {FINAL}", NO]),
        ],
        links=no_to("2"),
    ),
    "loop: the oldest messages are dropped, too": Shape(
        steps=[
            Ask(name="1", history=[S, EAT], reply=PLACE),
            Ask(name="2", history=[S, EAT, f"a {PLACE}", Q], reply=CALL),
            Ask(name="3", history=[S, EAT, f"a {PLACE}", Q, CALL, RESULT], reply=FINAL),
            last(Q, f"a {FINAL}", NO, name="4"),
        ],
        links={"2": {"1": Q[2:]}, "4": {"3": NO[2:]}},
    ),
    "loop: the client writes a line of its own in place of call and result": Shape(
        steps=[*LOOP, last(Q, "a (used the tool weather)", f"a {FINAL}", NO)], links=no_to("2")
    ),
    "loop: only the results are left out": Shape(
        steps=[*LOOP, last(Q, CALL, f"a {FINAL}", NO)], links=no_to("2")
    ),
    "loop: only the results are left out, and the answer is short": Shape(
        steps=[*SHORT_LOOP, last(Q, CALL, "a Sunny.", NO)], links=no_to("2")
    ),
    "loop: another conversation got the same answer to another question": Shape(
        steps=[
            *LOOP,
            Ask(name="other", history=[S, "u Rome, Friday: hat or umbrella, please?"], reply=FINAL),
            last(Q, f"a {FINAL}", NO),
        ],
        links=no_to("2"),
    ),
    "loop: two conversations are equal but for their calls, so neither is certain": Shape(
        steps=[
            *LOOP,
            Ask(name="a", history=[S, Q], reply=NEXT_CALL),
            Ask(name="b", history=[S, Q, NEXT_CALL, NEXT_RESULT], reply=FINAL),
            last(Q, f"a {FINAL}", NO),
        ],
    ),
    "loop: the person asks something else after the loop, then the loop's answer is repeated": Shape(
        steps=[
            *LOOP,
            Ask(name="3", history=[S, Q, f"a {FINAL}", AGAIN], reply=FINAL),
            last(Q, f"a {FINAL}", AGAIN, f"a {FINAL}", NO, name="4"),
        ],
        links={"3": {"2": AGAIN[2:]}, "4": {"3": NO[2:]}},
    ),
    "loop: a short reply to another message stands right behind the last known reply": Shape(
        steps=[
            Ask(name="1", history=[S, EAT], reply=PLACE),
            Ask(name="2", history=[S, EAT, f"a {PLACE}", THANKS], reply="OK."),
            last(EAT, f"a {PLACE}", "a OK.", NO),
        ],
        links={"2": {"1": THANKS[2:]}},
    ),
    "loop: the client leaves out an empty answer of the loop": Shape(
        steps=[
            ASKED,
            Ask(name="2", history=[S, Q, CALL, RESULT], reply={"role": "assistant", "content": ""}),
            last(Q, "a ", NO),
        ],
    ),
    "loop: a few-shot example ends with the loop's answer": Shape(
        steps=[*LOOP, last("u Write a forecast, please.", f"a {FINAL}", "u Now one for Milan.")],
    ),
}

RAG = (
    "### Task:\nRespond to the user query using the provided context, incorporating inline citations in the format "
    "[id] **only when the <source> tag includes an explicit id attribute**.\n\n"
    '<context>\n<source id="1">{}</source>\n</context>'
)
MENU = "Menu of the Italian place: pasta 18, fish 32. Open from six."
HOURS = "The noodle bar is on Mill Street. Closed on Mondays."


def webui(question: str, document: str = MENU) -> str:
    """Return the question as Open WebUI sends it with a file: the newest one alone has the context."""
    return f"u {RAG.format(document)}\n\n{question[2:]}"


def plain(question: str, document: str = MENU) -> str:
    """Return the question with documents around it, as a program of somebody's own sends them."""
    return f"u Documents:\n{document}\n\nQuestion: {question[2:]}\nAnswer from the documents only."


def crew(question: str) -> str:
    return (
        f"u \nCurrent Task: {question[2:]}\n\nThis is the expected criteria for your final answer: "
        "A short answer.\nyou MUST return the actual complete content as the final answer, not a summary."
    )


RETRIEVAL: dict[str, Shape] = {
    "retrieval: Open WebUI puts a file around the newest question": Shape(
        steps=[
            Ask(name="1", history=[S, webui(EAT)], reply=PLACE),
            Ask(name="2", history=[S, EAT, f"a {PLACE}", webui(DEAR)], reply=FINAL),
            last(EAT, f"a {PLACE}", DEAR, f"a {FINAL}", webui(NO)),
        ],
        links={"2": {"1": DEAR[2:]}, "3": {"2": NO[2:]}},
    ),
    "retrieval: Open WebUI with a file, short questions and short answers": Shape(
        steps=[
            Ask(name="1", history=[S, webui("u What is dear?")], reply="Fish."),
            Ask(
                name="2",
                history=[S, "u What is dear?", "a Fish.", webui("u Says who?")],
                reply="Menu.",
            ),
            last("u What is dear?", "a Fish.", "u Says who?", "a Menu.", webui("u Wrong.")),
        ],
        links={"2": {"1": "Says who?"}, "3": {"2": "Wrong."}},
    ),
    "retrieval: documents of a program of one's own around the newest question": Shape(
        steps=[
            Ask(name="1", history=[S, plain(EAT)], reply=PLACE),
            Ask(name="2", history=[S, EAT, f"a {PLACE}", plain(DEAR, HOURS)], reply=FINAL),
            last(EAT, f"a {PLACE}", DEAR, f"a {FINAL}", plain(NO)),
        ],
        links={"2": {"1": DEAR[2:]}, "3": {"2": NO[2:]}},
    ),
    "retrieval: CrewAI's current task around each question": Shape(
        steps=[
            Ask(name="1", history=[S, crew(EAT)], reply=PLACE),
            last(EAT, f"a {PLACE}", crew(DEAR), name="2"),
        ],
        links={"2": {"1": DEAR[2:]}},
    ),
    "retrieval: the context behind the question": Shape(
        steps=[
            Ask(name="1", history=[S, f"{EAT}\n\nContext: {MENU}"], reply=PLACE),
            last(EAT, f"a {PLACE}", f"{DEAR}\n\nContext: {HOURS}", name="2"),
        ],
        links={"2": {"1": DEAR[2:]}},
    ),
    "retrieval: a context is added to the old question": Shape(
        steps=[
            Ask(name="1", history=[S, EAT], reply=PLACE),
            last(f"{EAT}\n\n[Relevant: {MENU}]", f"a {PLACE}", DEAR, name="2"),
        ],
        links={"2": {"1": DEAR[2:]}},
    ),
    "retrieval: documents as a system message before the newest question": Shape(
        steps=[
            Ask(name="1", history=[S, f"s {MENU}", EAT], reply=PLACE),
            last(EAT, f"a {PLACE}", f"s {HOURS}", DEAR, name="2"),
        ],
        links={"2": {"1": DEAR[2:]}},
    ),
    "retrieval: documents as a user message behind the newest question": Shape(
        steps=[
            Ask(name="1", history=[S, EAT, f"u Documents: {MENU}"], reply=PLACE),
            last(EAT, f"a {PLACE}", DEAR, name="2"),
        ],
        links={"2": {"1": DEAR[2:]}},
    ),
    "retrieval: documents around the question of a tool loop": Shape(
        steps=[
            Ask(name="1", history=[S, plain(Q)], reply=CALL),
            Ask(name="2", history=[S, plain(Q), CALL, RESULT], reply=FINAL),
            last(Q, f"a {FINAL}", NO),
        ],
        links=no_to("2"),
    ),
    "retrieval: two conversations with the same document, question and answer": Shape(
        steps=[
            Ask(name="1", history=[S, plain(EAT)], reply=PLACE),
            Ask(name="2", history=["s You are a waiter.", plain(EAT)], reply=PLACE),
            last(EAT, f"a {PLACE}", DEAR),
        ],
    ),
    "retrieval: a person pastes the question of another conversation, which got the same answer": Shape(
        steps=[
            Ask(name="1", history=[S, EAT], reply=PLACE),
            Ask(name="2", history=[S, f"u Ann asked me: {EAT[2:]} What is best?"], reply=PLACE),
            last(f"u Ann asked me: {EAT[2:]} What is best?", f"a {PLACE}", DEAR),
        ],
        links={"3": {"2": DEAR[2:]}},
    ),
}

REMINDER = "<system-reminder>\n{}\n</system-reminder>"
DETAILS = "<environment_details>\n# VSCode Visible Files\nsrc/{}.py\n\n# Current Time\n{}\n</environment_details>"
EDITOR = "<editorContext>\nThe user's current file is /home/ann/{}.py.\n</editorContext>"
MEMORY = "Things you know about the person: Ann likes fish. {}"

MEMORIES: dict[str, Shape] = {
    "memory: the block in the system prompt changes": Shape(
        steps=[
            Ask(name="1", history=[f"s {MEMORY.format('')}", EAT], reply=PLACE),
            Ask(name="2", history=[f"s {MEMORY.format('Bo, too.')}", EAT, f"a {PLACE}", DEAR]),
        ],
        links={"2": {"1": DEAR[2:]}},
    ),
    "memory: a block before the newest words, gone the next time": Shape(
        steps=[
            Ask(name="1", history=[S, f"u {MEMORY.format('')}\n\n{EAT[2:]}"], reply=PLACE),
            last(EAT, f"a {PLACE}", f"u {MEMORY.format('')}\n\n{DEAR[2:]}", name="2"),
        ],
        links={"2": {"1": DEAR[2:]}},
    ),
    "memory: a first user message that changes each time": Shape(
        steps=[
            Ask(name="1", history=[S, f"u {MEMORY.format('')}", EAT], reply=PLACE),
            last(f"u {MEMORY.format('Bo, too.')}", EAT, f"a {PLACE}", DEAR, name="2"),
        ],
        links={"2": {"1": DEAR[2:]}},
    ),
    "memory: a reminder beside the newest words, gone the next time, with short answers": Shape(
        steps=[
            Ask(name="1", history=[S, f"u {REMINDER.format('Be kind.')}\nFish?"], reply="Yes."),
            last("u Fish?", "a Yes.", f"u Sure?\n{REMINDER.format('Be brief.')}", name="2"),
        ],
        links={"2": {"1": "Sure?"}},
    ),
    "memory: a reminder alone is no reaction": Shape(
        steps=[
            Ask(name="1", history=[S, EAT], reply=PLACE),
            last(EAT, f"a {PLACE}", f"u {REMINDER.format('The todo list is empty.')}", name="2"),
        ],
    ),
    "memory: what a person types during a run arrives in a reminder": Shape(
        steps=[
            Ask(name="1", history=[S, EAT], reply=PLACE),
            last(
                EAT,
                f"a {PLACE}",
                f"u {REMINDER.format(f'The user sent a new message while you were working: {DEAR[2:]}')}",
                name="2",
            ),
        ],
        links={"2": {"1": DEAR[2:]}},
    ),
    "memory: Cline's environment details change in every message": Shape(
        steps=[
            Ask(name="1", history=[S, f"u Fish?\n{DETAILS.format('a', '9:00')}"], reply="Yes."),
            last(
                f"u Fish?\n{DETAILS.format('b', '9:01')}",
                "a Yes.",
                f"u Sure?\n{DETAILS.format('b', '9:01')}",
                name="2",
            ),
        ],
        links={"2": {"1": "Sure?"}},
    ),
    "memory: environment details alone are no reaction": Shape(
        steps=[
            Ask(name="1", history=[S, EAT], reply=PLACE),
            last(EAT, f"a {PLACE}", f"u {DETAILS.format('a', '9:00')}", name="2"),
        ],
    ),
    "memory: an editor's context around a short question, gone the next time": Shape(
        steps=[
            Ask(
                name="1",
                history=[S, f"u {EDITOR.format('a')}\n<userRequest>\nFish?\n</userRequest>"],
                reply="Yes.",
            ),
            last(
                "u Fish?",
                "a Yes.",
                f"u {EDITOR.format('b')}\n<userRequest>\nSure?\n</userRequest>",
                name="2",
            ),
        ],
        links={"2": {"1": "Sure?"}},
    ),
}

MERGES: dict[str, Shape] = {
    "merge: two messages of the person become one afterwards": Shape(
        steps=[
            Ask(name="1", history=[S, "u Hello there.", EAT], reply=PLACE),
            last(f"u Hello there.\n\n{EAT[2:]}", f"a {PLACE}", DEAR, name="2"),
        ],
        links={"2": {"1": DEAR[2:]}},
    ),
    "merge: the instructions are put into the first user message": Shape(
        steps=[
            Ask(name="1", history=[S, EAT], reply=PLACE),
            Ask(name="2", history=[f"u {S[2:]}\n\n{EAT[2:]}", f"a {PLACE}", DEAR]),
        ],
        links={"2": {"1": DEAR[2:]}},
    ),
    "merge: the person's words come as two messages": Shape(
        steps=[
            Ask(name="1", history=[S, EAT], reply=PLACE),
            last(EAT, f"a {PLACE}", "u Hm.", DEAR, name="2"),
        ],
        links={"2": {"1": DEAR[2:]}},
    ),
    "merge: one message is split into two afterwards": Shape(
        steps=[
            Ask(name="1", history=[S, f"u Hello there.\n\n{EAT[2:]}"], reply=PLACE),
            last("u Hello there.", EAT, f"a {PLACE}", DEAR, name="2"),
        ],
        links={"2": {"1": DEAR[2:]}},
    ),
    "merge: the person's words come with the tool result": Shape(
        steps=[ASKED, last(Q, CALL, RESULT, NO, name="2")], links={"2": {"1": NO[2:]}}
    ),
}

SHAPES: dict[str, Shape] = LOOPS | RETRIEVAL | MEMORIES | MERGES
