"""Toy world: a few hundred facts (`assets/evals/toy_world.yaml`), questions about them, and the check of an answer.

All functions are pure; the caller passes a seeded `random.Random` for random choices. A hash fixes the split of the
facts: during training the simulated user asks only about `asked` facts, and satisfaction is measured on `held_out`
ones. The starter policy knows both.
"""

import hashlib
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from openclaw_rl.common.assets import read_yaml_asset

Split = Literal["asked", "held_out"]

# Percentage of facts that may be asked during training.
ASKED_PERCENT = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class FactFamily:
    """A kind of fact: `subject -> answer` pairs, phrasings with `{s}`, and a statement with `{s}` and `{a}`."""

    name: str
    phrasings: Sequence[str]
    statement: str
    pairs: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One fact. `statement`: the whole sentence without its final mark."""

    family: str
    subject: str
    answer: str
    statement: str

    @property
    def key(self) -> str:
        """Identifier of the fact, stable over processes and versions."""
        return f"{self.family}/{self.subject}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question about a fact. `text`: the user's message."""

    fact: Fact
    text: str


_NUMBERS = range(2, 10)
_SUMS = {f"{a} plus {b}": str(a + b) for a in _NUMBERS for b in _NUMBERS if a <= b}
FAMILIES: Sequence[FactFamily] = [
    FactFamily(**{"pairs": _SUMS, **family}) for family in read_yaml_asset("evals/toy_world.yaml")
]
_BY_NAME = {family.name: family for family in FAMILIES}


@lru_cache(maxsize=1)
def all_facts() -> tuple[Fact, ...]:
    """Return all facts, in a fixed order."""
    return tuple(
        Fact(family=f.name, subject=s, answer=a, statement=f.statement.format(s=s, a=a))
        for f in FAMILIES
        for s, a in f.pairs.items()
    )


def split_of(fact: Fact) -> Split:
    """Return the split of a fact: a hash of its key, the same on every machine and in every version."""
    digest = hashlib.sha256(fact.key.encode()).digest()
    return "asked" if int.from_bytes(digest[:4], "big") % 100 < ASKED_PERCENT else "held_out"


@lru_cache(maxsize=2)
def facts_of(split: Split) -> tuple[Fact, ...]:
    """Return the facts of one split, in a fixed order."""
    return tuple(fact for fact in all_facts() if split_of(fact) == split)


def questions_about(fact: Fact) -> tuple[Question, ...]:
    """Return the questions about a fact, one per phrasing."""
    return tuple(
        Question(fact=fact, text=p.format(s=fact.subject)) for p in _BY_NAME[fact.family].phrasings
    )


def draw_question(split: Split, rng: random.Random) -> Question:
    """Draw a question about a fact of one split."""
    return rng.choice(questions_about(rng.choice(facts_of(split))))


def held_out_questions(count: int, rng: random.Random) -> tuple[Question, ...]:
    """Draw `count` held-out questions, spread evenly over the facts, in random phrasings and order."""
    pool = facts_of("held_out")
    chosen: list[Fact] = []
    while len(chosen) < count:
        chosen.extend(rng.sample(pool, k=min(len(pool), count - len(chosen))))
    return tuple(rng.choice(questions_about(fact)) for fact in chosen)


def _contains_word(word: str, text: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text) is not None


@lru_cache(maxsize=1024)
def _rival_answers(fact: Fact) -> tuple[str, ...]:
    """Return the other answers of the family, without those that occur in the fact's own statement."""
    answers = dict.fromkeys(_BY_NAME[fact.family].pairs.values())
    return tuple(a for a in answers if not _contains_word(a, fact.statement) and a != fact.answer)


def is_correct(question: Question, reply: str) -> bool:
    """Return whether a reply contains the answer and no other answer of the same family."""
    fact = question.fact
    return _contains_word(fact.answer, reply) and not any(
        _contains_word(rival, reply) for rival in _rival_answers(fact)
    )
