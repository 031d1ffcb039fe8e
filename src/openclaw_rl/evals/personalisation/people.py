"""The three people of the protocol, and how each reacts to a reply.

They are those of the field: a student, a teaching assistant and a teacher (arXiv:2603.10165, section on personal
agents). Each has a taste that only its reactions reveal.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from openclaw_rl.common.assets import read_yaml_asset
from openclaw_rl.errors import JudgeError
from openclaw_rl.evals import phrases
from openclaw_rl.evals.styles import Taste, has_style
from openclaw_rl.evals.toy_world import Question, is_correct
from openclaw_rl.judge.answer_schemas import AnswerSchema
from openclaw_rl.judge.chat_client import ChatClient
from openclaw_rl.settings.load import Config

_ASSET = read_yaml_asset("evals/people.yaml")


@dataclass(frozen=True, slots=True, kw_only=True)
class PersonProfile:
    """A person. `taste`: what it likes in the toy world; `wishes`: the same for a person that a model simulates."""

    name: str
    taste: Taste
    wishes: str


PEOPLE: Mapping[str, PersonProfile] = {
    one["name"]: PersonProfile(**one) for one in _ASSET["people"]
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PersonReaction:
    """A person's reaction to a reply. `text`: what it writes; `satisfied` and `correct` never reach the system."""

    text: str
    satisfied: bool
    correct: bool


class SimulatedPerson(Protocol):
    """Reacts to replies."""

    async def react_to(self, question: Question, reply: str) -> PersonReaction:
        """Return the reaction to `reply`. Raises `JudgeError` if a model that simulates the person fails."""


@dataclass(slots=True, kw_only=True)
class RulePerson:
    """A person of the toy world, by rules. It says plainly what it misses, in words that the shipped rules match.

    `subtle`: share of reactions in words that they do not match. A reply satisfies if it is correct and in its taste.
    """

    taste: Taste
    seed: int
    subtle: float = 0.0
    _rng: random.Random = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._rng = random.Random(f"{self.taste}/{self.seed}/reactions")

    async def react_to(self, question: Question, reply: str) -> PersonReaction:
        """See `SimulatedPerson.react_to`."""
        right = is_correct(question, reply)
        liked = has_style(self.taste, reply)
        pool = phrases.PRAISE if liked else phrases.COMPLAINT
        chosen = pool[self.taste] if right else phrases.WRONG_ANSWER
        text = self._rng.choice(chosen.subtle if self._rng.random() < self.subtle else chosen.plain)
        return PersonReaction(text=text, satisfied=right and liked, correct=right)


PERSON_ANSWER: AnswerSchema = {
    "type": "json_schema",
    "json_schema": {
        "name": "reaction",
        "strict": True,
        "schema": {
            "type": "object",
            "properties": {"satisfied": {"type": "boolean"}, "message": {"type": "string"}},
            "required": ["satisfied", "message"],
            "additionalProperties": False,
        },
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PersonEndpoint:
    """An OpenAI-compatible endpoint with a model that simulates people."""

    url: str
    model: str | None

    def make_client(self, config: Config) -> ChatClient:
        """Return a client. Its limits and its key are those of `judge`."""
        endpoint = config.judge.model_copy(update={"base_url": self.url, "model": self.model})
        return ChatClient("judge", endpoint, connections=config.judge.workers, answer=PERSON_ANSWER)


class ModelPerson:
    """A person that a language model simulates. The answer is checked by rules: a wrong reply never satisfies."""

    def __init__(self, profile: PersonProfile, client: ChatClient) -> None:
        self._system = _ASSET["instructions"].format(wishes=profile.wishes)
        self._client = client

    async def react_to(self, question: Question, reply: str) -> PersonReaction:
        """See `SimulatedPerson.react_to`."""
        right = has_answer(question, reply)
        shown = _ASSET["question"].format(
            question=question.text,
            reply=reply,
            correct="right" if right else f"wrong: {question.fact.answer}",
        )
        messages = [{"role": "system", "content": self._system}, {"role": "user", "content": shown}]
        satisfied, text = parse_reaction(await self._client.complete_chat(messages))
        return PersonReaction(text=text, satisfied=satisfied and right, correct=right)


def has_answer(question: Question, reply: str) -> bool:
    """Return whether the answer is in the reply as whole words, in any case.

    Unlike `is_correct`, it accepts other answers beside it: a long reply of a large model compares.
    """
    return (
        re.search(rf"(?<!\w){re.escape(question.fact.answer)}(?!\w)", reply, re.IGNORECASE)
        is not None
    )


def parse_reaction(answer: str) -> tuple[bool, str]:
    """Return (satisfied, message) from the JSON object in a model's answer. Raises `JudgeError` without one."""
    start = answer.find("{")
    end = answer.rfind("}")
    try:
        reaction = json.loads(answer[start : end + 1])
        satisfied = reaction["satisfied"]
        message = reaction["message"]
    except (ValueError, LookupError, TypeError):
        satisfied = None
        message = ""
    if not isinstance(satisfied, bool) or not isinstance(message, str) or not message.strip():
        raise JudgeError(
            'the person: expected {"satisfied": true or false, "message": "..."} as its answer'
        )
    return satisfied, message.strip()


def preference_notes(notes: Sequence[str]) -> list[dict[str, str]]:
    """Return the system message of a memory with these notes, as memory features of chat programs write it."""
    if not notes:
        return []
    listed = "".join(f"\n- {note}" for note in dict.fromkeys(notes))
    return [{"role": "system", "content": _ASSET["memory"] + listed}]
