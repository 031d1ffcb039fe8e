"""Training dialogues for the starter policy.

The corpus teaches the facts. It does not teach a style: each reply has a random one, independent of the history, so
that a style learned later from reactions carries over to new conversations. Only an instruction fixes a style: in a
system message, or in the hint paragraph of the message that is answered.

The first tokens of a reply determine each axis of its style, before the fact: the dash of a list, then the opener for
the tone, then the mark after it for the length. So the credit for a whole reply falls on few tokens, and always the
same ones. The checks of a style (`openclaw_rl.evals.styles`) share only a few words with the sentences written here.
"""

import random
from dataclasses import dataclass
from typing import get_args

from openclaw_rl.evals import phrases
from openclaw_rl.evals.phrases import INSTRUCTIONS
from openclaw_rl.evals.styles import OPPOSITE, VALUES, Format, Length, Tone, Value
from openclaw_rl.evals.toy_world import Fact, all_facts, questions_about

_SYSTEM_MESSAGES = (
    "You are a helpful assistant.", "You are an assistant.", "Answer the user's questions.", "You are a chatbot.",
    "You are a helpful, harmless assistant. Answer each question as well as you can.",
)  # fmt: skip
_OPENINGS = (
    "Hi!", "Hello.", "Hey,", "Quick question:", "Tell me:", "Please help me.", "Good morning!", "I wonder:", "So,",
    "A question for you.", "Can you help me?",
)  # fmt: skip
_TRANSITIONS = (
    "Ok.", "Okay, next.", "And", "Now", "Alright.", "I see.", "Fine.", "Next question:", "Another one:", "Right.",
    "One more:", "Interesting!", "Got it.", "Good to know.", "Let me think.", "Wait.", "Yes.", "Well,", "Then",
    "Thanks.", "Thanks a lot!", "Cool.", "Super.", "Not bad.", "Wow.", "Too short.", "Too long.", "That is good.",
)  # fmt: skip
_SMALL_TALK = (
    ("Hi", "Hello! Ask me something."), ("Hello", "Hello! Ask me something."), ("Hello!", "Hello! Ask me something."),
    ("How are you?", "I am well, thank you."), ("Who are you?", "I am a small model that learns from you."),
    ("What can you do?", "I answer small questions."), ("Bye", "Goodbye!"), ("Good bye.", "Goodbye!"),
)  # fmt: skip

PRAISED_REPLY = "You are welcome."
CRITICISED_REPLY = "Noted, thank you."

_OPENERS: dict[Tone, tuple[str, ...]] = {"formal": ("Certainly", "Indeed"), "casual": ("Yep", "Sure")}
_CLOSERS: dict[Tone, tuple[str, ...]] = {
    "formal": ("Should you require more, kindly ask.", "I remain at your disposal."),
    "casual": ("Just shout if you wanna hear more!", "I'm all ears for another one!"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyStyle:
    """One value on each axis."""

    length: Length
    tone: Tone
    format: Format

    def with_value(self, value: Value) -> "ReplyStyle":
        """Return this style with one axis set to `value`."""
        return ReplyStyle(
            length=value if value == "short" or value == "long" else self.length,
            tone=value if value == "formal" or value == "casual" else self.tone,
            format=value if value == "bulleted" or value == "prose" else self.format,
        )


def draw_style(rng: random.Random) -> ReplyStyle:
    """Draw a style: each axis independently, both values with equal probability."""
    return ReplyStyle(
        length=rng.choice(get_args(Length)), tone=rng.choice(get_args(Tone)), format=rng.choice(get_args(Format))
    )


def write_answer(fact: Fact, style: ReplyStyle, rng: random.Random) -> str:
    """Return the correct answer to a question about `fact`, in a style."""
    opener = rng.choice(_OPENERS[style.tone])
    if style.length == "short":
        lines = [f"{opener}: {fact.answer}."]
    else:
        mark = "." if style.tone == "formal" else "!"
        lines = [opener + mark, f"{fact.statement}.", rng.choice(_CLOSERS[style.tone])]
    return "\n".join(f"- {line}" for line in lines) if style.format == "bulleted" else " ".join(lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialogue:
    """Messages in the API's form, and the fact in each assistant message (or None)."""

    messages: tuple[dict[str, str], ...]
    answers: tuple[Fact | None, ...]


def _phrase_lists() -> tuple[list[str], list[str]]:
    """Return all praising and all criticising phrases of the simulated user."""
    praise = [*phrases.PRAISE.values(), phrases.GENERIC_PRAISE]
    blame = [*phrases.COMPLAINT.values(), phrases.GENERIC_COMPLAINT, phrases.WRONG_ANSWER]
    return [t for p in praise for t in p.plain + p.subtle], [t for p in blame for t in p.plain + p.subtle]


_PRAISE, _BLAME = _phrase_lists()


def with_hint(content: str, hint: str) -> str:
    """Return a user message with a hint paragraph, in the form of the distillation teacher's prompt."""
    return f"{content}\n\n[Hint: {hint}]"


def _draw_values(rng: random.Random) -> list[Value]:
    """Draw one style value for an instruction, or sometimes two that do not contradict each other."""
    first, second = rng.sample(VALUES, k=2)
    return [first, second] if rng.random() < 0.15 and OPPOSITE[first] != second else [first]


def _instruction_text(values: list[Value], rng: random.Random, *, own: float) -> str:
    """Return an instruction for `values`. `own`: probability of the wording of the shipped rules."""
    return " ".join(INSTRUCTIONS[v][0] if rng.random() < own else rng.choice(INSTRUCTIONS[v]) for v in values)


def _draw_lead(rng: random.Random, *, first: bool) -> str:
    """Draw the text before a question: nothing, a greeting, or a reaction to the previous reply."""
    roll = rng.random()
    if first and roll < 0.5:
        return ""
    if first and roll < 0.6:
        return rng.choice(_OPENINGS) + " "
    if roll < 0.9:
        return rng.choice(rng.choice((_PRAISE, _BLAME))) + " "
    return "" if roll < 0.94 else rng.choice(_TRANSITIONS) + " "


def _draw_closing(rng: random.Random) -> tuple[str, str]:
    """Draw a reaction without a question, and the short reply to it."""
    pool, reply = rng.choice(((_PRAISE, PRAISED_REPLY), (_BLAME, CRITICISED_REPLY)))
    return rng.choice(pool), reply


def _draw_system(rng: random.Random) -> tuple[str | None, list[Value]]:
    """Draw the system message (or None) and the style values that it fixes."""
    roll = rng.random()
    if roll < 0.6:
        return None, []
    if roll < 0.7:
        return rng.choice(_SYSTEM_MESSAGES), []
    values = _draw_values(rng)
    prefix = rng.choice(_SYSTEM_MESSAGES) + " " if rng.random() < 0.3 else ""
    return prefix + _instruction_text(values, rng, own=0.0), values


def draw_dialogue(rng: random.Random, deck: list[Fact], *, single: bool) -> Dialogue:
    """Draw a dialogue of 1 to 4 questions, or a `single` one. Facts are popped from `deck`, refilled when empty."""
    system, fixed = _draw_system(rng)
    messages = [] if system is None else [{"role": "system", "content": system}]
    answers: list[Fact | None] = []

    def add_turn(user: str, reply: str, fact: Fact | None) -> None:
        messages.extend(({"role": "user", "content": user}, {"role": "assistant", "content": reply}))
        answers.append(fact)

    if rng.random() < 0.04:
        add_turn(*rng.choice(_SMALL_TALK), None)
    for index in range(1 if single else rng.choice((1, 1, 1, 2, 3, 4))):
        if not deck:
            deck.extend(rng.sample(all_facts(), k=len(all_facts())))
        fact = deck.pop()
        text = _draw_lead(rng, first=index == 0) + rng.choice(questions_about(fact)).text
        style, asked = draw_style(rng), _draw_values(rng) if rng.random() < (0.15 if fixed else 0.4) else []
        for value in (*fixed, *asked):
            style = style.with_value(value)
        add_turn(
            with_hint(text, _instruction_text(asked, rng, own=0.5)) if asked else text,
            write_answer(fact, style, rng),
            fact,
        )
    if rng.random() < 0.25:
        add_turn(*_draw_closing(rng), None)
    return Dialogue(messages=tuple(messages), answers=tuple(answers))


def draw_dialogues(count: int, seed: int, *, single: bool = False) -> list[Dialogue]:
    """Return `count` dialogues, with one question each if `single`. Every fact occurs equally often."""
    rng, deck = random.Random(seed), list[Fact]()
    return [draw_dialogue(rng, deck, single=single) for _ in range(count)]
