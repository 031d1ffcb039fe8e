"""Rehearsal: some prompts of a round are short questions that nobody asked, so that the weights keep their answers.

A person's own prompts are few and alike. A policy that practises on them alone also changes its answers to what it was
never asked. Rehearsal has the same teacher as the rest of the round: the base with the person's lessons.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from openclaw_rl.common.assets import ASSETS
from openclaw_rl.settings.strict_yaml import read_yaml
from openclaw_rl.types import Exchange, Message


@cache
def rehearsal_questions() -> Sequence[str]:
    """Return the shipped questions (`assets/evals/rehearsal.yaml`)."""
    text = (ASSETS / "evals" / "rehearsal.yaml").read_text(encoding="utf-8")
    return tuple(str(question) for question in read_yaml(text))


def rehearsed_places(count: int, share: float, rng: random.Random) -> frozenset[int]:
    """Return which of `count` prompts are rehearsal: `share` of them, at random places."""
    return frozenset(rng.sample(range(count), round(count * share)))


def ask_instead(exchange: Exchange, question: str) -> Exchange:
    """Return an exchange of the same person in which the only user message is the question.

    System messages stay; tools and earlier messages do not.
    """
    system: list[Message] = [
        message for message in exchange.request.messages if message.get("role") == "system"
    ]
    messages = (*system, {"role": "user", "content": question})
    return replace(exchange, request=replace(exchange.request, messages=messages, tools=()))
