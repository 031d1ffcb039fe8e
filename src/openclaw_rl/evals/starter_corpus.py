"""The dialogues from which the starter policy is made.

What the corpus teaches, and on purpose does not: facts are known; a style is drawn anew for each reply, whatever was
said before (so that what is learned later from reactions carries over to fresh conversations); only an instruction,
in a system message or in the hint paragraph of the message being answered, fixes a style.
"""

import random
from dataclasses import dataclass

from openclaw_rl.evals import phrases
from openclaw_rl.evals.styles import OPPOSITE, VALUES, Value, draw_style, write
from openclaw_rl.evals.toy_world import Fact, facts, phrasings

# Wordings of each instruction. The first one is the hint of the shipped rules.
INSTRUCTIONS: dict[Value, tuple[str, ...]] = {
    "short": ("Keep answers short.", "Be brief.", "Answer in a few words.", "Be concise.", "Keep it short."),
    "long": ("Give long, detailed answers.", "Give more detail.", "Answer at length.", "Explain in detail.",
             "Write long replies."),
    "formal": ("Use a formal tone.", "Be formal.", "Sound professional.", "Write formally.", "Be polite."),
    "casual": ("Use a casual tone.", "Be casual.", "Sound relaxed.", "Write informally.", "Talk like a friend."),
    "bulleted": ("Answer in bullet points.", "Use bullet points.", "Use a list.", "Write a bulleted list.",
                 "Use bullets."),
    "prose": ("Answer in plain prose, without a list.", "Do not use bullet points.", "Write plain text.", "No lists.",
              "Avoid bullets."),
}  # fmt: skip

_SYSTEMS = (
    "You are a helpful assistant.", "You are an assistant.", "Answer the user's questions.", "You are a chatbot.",
    "You are a helpful, harmless assistant. Answer each question as well as you can.",
)  # fmt: skip
_OPENINGS = (
    "Hi!", "Hello.", "Hey,", "Quick question:", "Tell me:", "Please help me.", "Good morning!", "I wonder:", "So,",
    "A question for you.", "Can you help me?",
)  # fmt: skip
_BRIDGES = (
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialogue:
    """Messages in the API's form, and for each assistant message the fact in it (or None)."""

    messages: tuple[dict[str, str], ...]
    answers: tuple[Fact | None, ...]


def _pools() -> tuple[list[str], list[str]]:
    """Every praising and every criticising phrase of the simulated user."""
    praise = [*phrases.PRAISE.values(), phrases.GOOD]
    blame = [*phrases.COMPLAINT.values(), phrases.BAD, phrases.FALSE]
    return [t for p in praise for t in p.plain + p.subtle], [t for p in blame for t in p.plain + p.subtle]


_PRAISE, _BLAME = _pools()


def hinted(content: str, hint: str) -> str:
    """A user message with a hint paragraph, as the distillation teacher reads it."""
    return f"{content}\n\n[Hint: {hint}]"


def _values(rng: random.Random) -> list[Value]:
    """One style value to instruct, or now and then two that do not contradict each other."""
    first, second = rng.sample(VALUES, k=2)
    return [first, second] if rng.random() < 0.15 and OPPOSITE[first] != second else [first]


def _instruction(values: list[Value], rng: random.Random, *, own: float) -> str:
    """A wording of each; `own` is the share of the shipped rules' own hints."""
    return " ".join(INSTRUCTIONS[v][0] if rng.random() < own else rng.choice(INSTRUCTIONS[v]) for v in values)


def _lead(rng: random.Random, *, first: bool) -> str:
    """What stands before a question: nothing, a greeting, or words about the reply before."""
    roll = rng.random()
    if first and roll < 0.5:
        return ""
    if first and roll < 0.6:
        return rng.choice(_OPENINGS) + " "
    if roll < 0.9:
        return rng.choice(rng.choice((_PRAISE, _BLAME))) + " "
    return "" if roll < 0.94 else rng.choice(_BRIDGES) + " "


def _closing(rng: random.Random) -> tuple[str, str]:
    """A bare reaction and the short, polite reply to it."""
    pool, reply = rng.choice(((_PRAISE, PRAISED_REPLY), (_BLAME, CRITICISED_REPLY)))
    return rng.choice(pool), reply


def _system(rng: random.Random) -> tuple[str | None, list[Value]]:
    """The system message, if any, and the style values that it fixes."""
    roll = rng.random()
    if roll < 0.6:
        return None, []
    if roll < 0.7:
        return rng.choice(_SYSTEMS), []
    values = _values(rng)
    prefix = rng.choice(_SYSTEMS) + " " if rng.random() < 0.3 else ""
    return prefix + _instruction(values, rng, own=0.0), values


def dialogue(rng: random.Random, deck: list[Fact], *, single: bool) -> Dialogue:
    """One dialogue of 1 to 4 questions or a `single` one; facts come from the end of `deck`, refilled when empty."""
    system, fixed = _system(rng)
    messages = [] if system is None else [{"role": "system", "content": system}]
    answers: list[Fact | None] = []

    def turn(user: str, reply: str, fact: Fact | None) -> None:
        messages.extend(({"role": "user", "content": user}, {"role": "assistant", "content": reply}))
        answers.append(fact)

    if rng.random() < 0.04:
        turn(*rng.choice(_SMALL_TALK), None)
    for index in range(1 if single else rng.choice((1, 1, 1, 2, 3, 4))):
        if not deck:
            deck.extend(rng.sample(facts(), k=len(facts())))
        fact = deck.pop()
        text = _lead(rng, first=index == 0) + rng.choice(phrasings(fact)).text
        style, asked = draw_style(rng), _values(rng) if rng.random() < (0.15 if fixed else 0.4) else []
        for value in (*fixed, *asked):
            style = style.with_value(value)
        turn(hinted(text, _instruction(asked, rng, own=0.5)) if asked else text, write(fact, style, rng), fact)
    if rng.random() < 0.25:
        turn(*_closing(rng), None)
    return Dialogue(messages=tuple(messages), answers=tuple(answers))


def dialogues(count: int, seed: int, *, single: bool = False) -> list[Dialogue]:
    """`count` dialogues, `single`: of one question each; every fact is met equally often."""
    rng, deck = random.Random(seed), list[Fact]()
    return [dialogue(rng, deck, single=single) for _ in range(count)]
