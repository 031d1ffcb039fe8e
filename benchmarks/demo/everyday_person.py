"""A simulated person who asks everyday questions and says in plain English what they think of the replies.

The person never sends a score. What they like is decided by a program (`everyday_tastes.py`), which policy and judge
never see.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from benchmarks.demo.everyday_tastes import EVERYDAY_TASTES, TasteName

MAX_SESSION_TURNS = 3
MAX_TOKENS = 60
"""Limit of a reply to the person."""
TEMPERATURE = 0.7
"""Sampling temperature of the person's client."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedQuestion:
    """A question, and words: a right answer has one of them."""

    question: str
    answers: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class EverydayReaction:
    """One reaction: question and reply, the person's phrase about it, and whether the reply met their taste."""

    question: str
    reply: str
    phrase: str
    satisfied: bool


@cache
def _tables() -> Mapping[str, Any]:
    tables: Mapping[str, Any] = yaml.safe_load(
        Path(__file__).with_name("everyday.yaml").read_text(encoding="utf-8")
    )
    return tables


def held_out_prompts() -> Sequence[str]:
    """Return the questions that the person never asks, which measure what was learned."""
    return tuple(_tables()["held_out"])


def asked_prompts() -> Sequence[str]:
    """Return the questions that the person asks."""
    return tuple(_tables()["asked"])


def closed_questions() -> Sequence[ClosedQuestion]:
    """Return the 100 questions that measure what a model knows."""
    return tuple(ClosedQuestion(**row) for row in _tables()["closed"])


def complaints(taste: TasteName) -> Sequence[str]:
    """Return phrases of a person with this taste about a reply that does not meet it."""
    return tuple(_tables()["tastes"][taste]["complaint"])


def praises() -> Sequence[str]:
    """Return phrases of a person about a reply that meets their taste."""
    return tuple(_tables()["praise"])


@dataclass(slots=True, kw_only=True)
class EverydayPerson:
    """A person with one taste. Call `next_message` with the messages of the current conversation, in the API's form.

    None ends the conversation; a call with a history without replies starts the next one. The last message of a
    conversation is a reaction without a question. The same seed and the same replies give the same messages.
    """

    taste: TasteName
    seed: int
    log: list[EverydayReaction] = field(default_factory=list)
    _rng: random.Random = field(init=False, repr=False)
    _questions: list[str] = field(init=False, repr=False, default_factory=list)
    _question: str | None = field(init=False, repr=False, default=None)
    _turns_left: int = field(init=False, repr=False, default=0)

    def __post_init__(self) -> None:
        self._rng = random.Random(f"everyday/{self.taste}/{self.seed}")

    def next_message(self, history: Sequence[Mapping[str, object]]) -> str | None:
        """Return the next user message after `history`, or None if the conversation is over."""
        replies = [message for message in history if message.get("role") == "assistant"]
        if not replies:
            self._turns_left = self._rng.randint(1, MAX_SESSION_TURNS)
            self._question = self._draw_question()
            return self._question
        if self._question is None:
            return None
        phrase = self._react_to(str(replies[-1].get("content") or ""))
        self._turns_left -= 1
        self._question = self._draw_question() if self._turns_left else None
        return phrase if self._question is None else f"{phrase} {self._question}"

    def _draw_question(self) -> str:
        """Return the next question; all are asked before one is asked again."""
        if not self._questions:
            self._questions = list(asked_prompts())
            self._rng.shuffle(self._questions)
        return self._questions.pop()

    def _react_to(self, reply: str) -> str:
        assert self._question is not None
        satisfied = EVERYDAY_TASTES[self.taste].is_met(reply)
        phrase = self._rng.choice(praises() if satisfied else complaints(self.taste))
        self.log.append(
            EverydayReaction(
                question=self._question, reply=reply, phrase=phrase, satisfied=satisfied
            )
        )
        return phrase
