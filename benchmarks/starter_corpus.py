"""Training dialogues for the starter policy.

The corpus teaches the facts. It does not teach a style: each reply has a random one, independent of the history, so
that a style learned later from reactions carries over to new conversations. Only an instruction fixes a style: in a
system message, or in the hint paragraph of the message that is answered. A hint paragraph has one to four hints of the
shipped rules that do not contradict each other, in one of their six languages or in several.

The first tokens of a reply determine each axis of its style, before the fact: the dash of a list, then the opener for
the tone, then the mark after it for the length. So the credit for a whole reply falls on few tokens, and always the
same ones. The checks of a style (`openclaw_rl.evals.styles`) share only a few words with the sentences written here.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from openclaw_rl.common.rules.rule_files import load_rule_files, rules_path
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

Marks = Literal["some", "none"]
Ending = Literal["question", "none"]

# What the hints of the rules fix, by their topics.
_VALUES: Mapping[str, Value] = {
    "length/short": "short", "length/long": "long", "tone/formal": "formal", "tone/casual": "casual",
    "form/list": "bulleted", "form/prose": "prose",
}  # fmt: skip
_MARKS: Mapping[str, Marks] = {"marks/some": "some", "marks/none": "none"}
_ENDINGS: Mapping[str, Ending] = {"ending/question": "question", "ending/none": "none"}
# The words of an answer are as plain as they can be.
_WITHOUT_EFFECT = ("words/plain", "words/technical")
# How often a hint is about a subject, against the others.
_SUBJECT_WEIGHTS: Mapping[str, float] = {
    "length": 1.0, "tone": 1.5, "form": 1.0, "marks": 0.5, "ending": 0.5, "words": 0.5,
}  # fmt: skip
# How many hints a paragraph has, and how often.
_HINT_COUNTS: Mapping[int, float] = {1: 0.4, 2: 0.2, 3: 0.2, 4: 0.2}
# How often the hints of a paragraph are all English, all of another language, or of several.
_ENGLISH_SHARE = 0.5
_MIXED_SHARE = 0.12
# How many of the questions without an instruction in a system message have hints.
HINTED_SHARE = 0.55

PRAISED_REPLY = "You are welcome."
CRITICISED_REPLY = "Noted, thank you."

_OPENERS: dict[Tone, tuple[str, ...]] = {
    "formal": ("Certainly", "Indeed"),
    "casual": ("Yep", "Sure"),
}
_CLOSERS: dict[Tone, tuple[str, ...]] = {
    "formal": ("Should you require more, kindly ask.", "I remain at your disposal."),
    "casual": ("Just shout if you wanna hear more!", "I'm all ears for another one!"),
}
_QUESTIONS: dict[Tone, str] = {
    "formal": "May I kindly answer another question?",
    "casual": "Wanna hear about another one of these?",
}
_SHORT_QUESTION = "More?"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyStyle:
    """One value on each axis. `marks`, `ending`: None where no instruction fixes them."""

    length: Length
    tone: Tone
    format: Format
    marks: Marks | None = None
    ending: Ending | None = None

    def with_value(self, value: Value) -> "ReplyStyle":
        """Return this style with one axis set to `value`."""
        return replace(
            self,
            length=value if value == "short" or value == "long" else self.length,
            tone=value if value == "formal" or value == "casual" else self.tone,
            format=value if value == "bulleted" or value == "prose" else self.format,
        )

    def with_topic(self, topic: str) -> "ReplyStyle":
        """Return this style as a hint with this topic wants it."""
        if topic in _VALUES:
            return self.with_value(_VALUES[topic])
        return replace(
            self, marks=_MARKS.get(topic, self.marks), ending=_ENDINGS.get(topic, self.ending)
        )


def draw_style(rng: random.Random) -> ReplyStyle:
    """Draw a style: each axis independently, both values with equal probability."""
    return ReplyStyle(
        length=rng.choice(get_args(Length)),
        tone=rng.choice(get_args(Tone)),
        format=rng.choice(get_args(Format)),
    )


def write_answer(fact: Fact, style: ReplyStyle, rng: random.Random) -> str:
    """Return the correct answer to a question about `fact`, in a style."""
    opener = rng.choice(_OPENERS[style.tone])
    asks = style.ending == "question"
    if style.length == "short":
        mark = "!" if style.marks == "some" else "."
        lines = [f"{opener}: {fact.answer}{mark}", *([_SHORT_QUESTION] if asks else [])]
    else:
        usual = "." if style.tone == "formal" else "!"
        mark = usual if style.marks is None else {"some": "!", "none": "."}[style.marks]
        closer = rng.choice(_CLOSERS[style.tone]).rstrip(".!") + mark
        lines = [opener + mark, f"{fact.statement}.", _QUESTIONS[style.tone] if asks else closer]
    return (
        "\n".join(f"- {line}" for line in lines) if style.format == "bulleted" else " ".join(lines)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialogue:
    """Messages in the API's form; for each assistant message its fact (or None), and whether a style was asked for."""

    messages: tuple[dict[str, str], ...]
    answers: tuple[Fact | None, ...]
    instructed: tuple[bool, ...]


def _phrase_lists() -> tuple[list[str], list[str]]:
    """Return all praising and all criticising phrases of the simulated user."""
    praise = [*phrases.PRAISE.values(), phrases.GENERIC_PRAISE]
    blame = [*phrases.COMPLAINT.values(), phrases.GENERIC_COMPLAINT, phrases.WRONG_ANSWER]
    return [t for p in praise for t in p.plain + p.subtle], [
        t for p in blame for t in p.plain + p.subtle
    ]


_PRAISE, _BLAME = _phrase_lists()


def with_hint(content: str, hint: str) -> str:
    """Return a user message with a hint paragraph, in the form of the distillation teacher's prompt."""
    return f"{content}\n\n[Hint: {hint}]"


def _draw_values(rng: random.Random) -> list[Value]:
    """Draw one style value for an instruction, or sometimes two that do not contradict each other."""
    first, second = rng.sample(VALUES, k=2)
    return [first, second] if rng.random() < 0.15 and OPPOSITE[first] != second else [first]


def _instruction_text(values: list[Value], rng: random.Random) -> str:
    """Return an instruction for `values` in English."""
    return " ".join(rng.choice(INSTRUCTIONS[value]) for value in values)


def _hints_by_language() -> dict[str, dict[str, str]]:
    """Return the hints of the shipped rules: language -> topic -> hint."""
    files, _ = load_rule_files(rules_path(None))
    hints = {file.rules[0].name.partition("/")[0]: file.rules for file in files}
    by_language = {
        language: {rule.topic: rule.hint for rule in rules if rule.topic and rule.hint}
        for language, rules in hints.items()
    }
    return {language: by_topic for language, by_topic in by_language.items() if by_topic}


HINTS = _hints_by_language()
TOPICS = (*_VALUES, *_MARKS, *_ENDINGS, *_WITHOUT_EFFECT)


def _draw_topics(rng: random.Random) -> list[str]:
    """Draw topics of hints that do not contradict each other, in random order."""
    count = rng.choices(list(_HINT_COUNTS), weights=list(_HINT_COUNTS.values()))[0]
    weights = dict(_SUBJECT_WEIGHTS)
    topics = []
    for _ in range(count):
        subject = rng.choices(list(weights), weights=list(weights.values()))[0]
        del weights[subject]
        topics.append(rng.choice([topic for topic in TOPICS if topic.startswith(f"{subject}/")]))
    return topics


def _hint_text(topics: Sequence[str], rng: random.Random) -> str:
    """Return the hints with these topics: in English, where half have another wording, or in other languages."""
    roll = rng.random()
    others = [language for language in HINTS if language != "english"]
    if roll < _ENGLISH_SHARE:
        texts = [_english_hint(topic, rng) for topic in topics]
    elif roll < 1 - _MIXED_SHARE:
        hints = HINTS[rng.choice(others)]
        texts = [hints[topic] for topic in topics]
    else:
        texts = [HINTS[rng.choice(list(HINTS))][topic] for topic in topics]
    return " ".join(texts)


def _english_hint(topic: str, rng: random.Random) -> str:
    if topic in _VALUES and rng.random() < 0.5:
        return rng.choice(INSTRUCTIONS[_VALUES[topic]])
    return HINTS["english"][topic]


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
    return prefix + _instruction_text(values, rng), values


def draw_dialogue(rng: random.Random, deck: list[Fact], *, single: bool) -> Dialogue:
    """Draw a dialogue of 1 to 4 questions, or a `single` one. Facts are popped from `deck`, refilled when empty."""
    system, fixed = _draw_system(rng)
    messages = [] if system is None else [{"role": "system", "content": system}]
    answers: list[Fact | None] = []
    instructed: list[bool] = []

    def add_turn(user: str, reply: str, fact: Fact | None, *, is_instructed: bool = False) -> None:
        messages.extend(
            ({"role": "user", "content": user}, {"role": "assistant", "content": reply})
        )
        answers.append(fact)
        instructed.append(is_instructed)

    if rng.random() < 0.04:
        add_turn(*rng.choice(_SMALL_TALK), None)
    for index in range(1 if single else rng.choice((1, 1, 1, 2, 3, 4))):
        if not deck:
            deck.extend(rng.sample(all_facts(), k=len(all_facts())))
        fact = deck.pop()
        text = _draw_lead(rng, first=index == 0) + rng.choice(questions_about(fact)).text
        style = draw_style(rng)
        topics = _draw_topics(rng) if rng.random() < (0.15 if fixed else HINTED_SHARE) else []
        for value in fixed:
            style = style.with_value(value)
        for topic in topics:
            style = style.with_topic(topic)
        add_turn(
            with_hint(text, _hint_text(topics, rng)) if topics else text,
            write_answer(fact, style, rng),
            fact,
            is_instructed=bool(fixed or topics),
        )
    if rng.random() < 0.25:
        add_turn(*_draw_closing(rng), None)
    return Dialogue(messages=tuple(messages), answers=tuple(answers), instructed=tuple(instructed))


def draw_dialogues(count: int, seed: int, *, single: bool = False) -> list[Dialogue]:
    """Return `count` dialogues, with one question each if `single`. Every fact occurs equally often."""
    rng = random.Random(seed)
    deck = list[Fact]()
    return [draw_dialogue(rng, deck, single=single) for _ in range(count)]
