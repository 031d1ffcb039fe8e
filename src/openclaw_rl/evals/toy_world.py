"""Toy world: a few hundred facts, questions about them, and the check for a correct answer.

All functions are pure; the caller passes a seeded `random.Random` for random choices. A hash fixes the split of the
facts: during training the simulated user asks only about `asked` facts, and satisfaction is measured on `held_out`
ones. The starter policy knows both.
"""

import hashlib
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Literal

Split = Literal["asked", "held_out"]

# Percentage of facts that may be asked during training.
ASKED_PERCENT = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class FactFamily:
    """A kind of fact: `subject -> answer` pairs, phrasings with `{s}`, and a statement with `{s}` and `{a}`."""

    name: str
    phrasings: tuple[str, ...]
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


def _parse_pairs(text: str) -> Mapping[str, str]:
    """Parse `a=b, c=d` to a mapping."""
    items = (item.split("=") for item in text.split(","))
    return MappingProxyType({subject.strip(): answer.strip() for subject, answer in items})


_NUMBERS = range(2, 10)
_SUMS = MappingProxyType({f"{a} plus {b}": str(a + b) for a in _NUMBERS for b in _NUMBERS if a <= b})

FAMILIES: tuple[FactFamily, ...] = (
    FactFamily(
        name="capital",
        phrasings=("What is the capital of {s}?", "Which city is the capital of {s}?", "Name the capital of {s}."),
        statement="The capital of {s} is {a}",
        pairs=_parse_pairs(
            "France=Paris, Spain=Madrid, Italy=Rome, Germany=Berlin, Portugal=Lisbon, Austria=Vienna, Poland=Warsaw, "
            "Greece=Athens, Norway=Oslo, Sweden=Stockholm, Finland=Helsinki, Denmark=Copenhagen, Ireland=Dublin, "
            "Belgium=Brussels, Hungary=Budapest, Russia=Moscow, Ukraine=Kyiv, Turkey=Ankara, Egypt=Cairo, "
            "Kenya=Nairobi, Ghana=Accra, Morocco=Rabat, Ethiopia=Addis Ababa, Japan=Tokyo, China=Beijing, "
            "Thailand=Bangkok, Vietnam=Hanoi, Nepal=Kathmandu, Iran=Tehran, Iraq=Baghdad, Israel=Jerusalem, "
            "Lebanon=Beirut, Canada=Ottawa, Cuba=Havana, Peru=Lima, Chile=Santiago, Colombia=Bogota, "
            "Ecuador=Quito, Uruguay=Montevideo, Venezuela=Caracas, Iceland=Reykjavik, Bulgaria=Sofia"
        ),
    ),
    FactFamily(
        name="sum",
        phrasings=("What is {s}?", "How much is {s}?", "Please add up {s}."),
        statement="The sum of {s} is {a}",
        pairs=_SUMS,
    ),
    FactFamily(
        name="opposite",
        phrasings=("What is the opposite of {s}?", "Which word is the opposite of {s}?", "Name the opposite of {s}."),
        statement="The opposite of {s} is {a}",
        pairs=_parse_pairs(
            "hot=cold, big=small, fast=slow, up=down, day=night, open=closed, rich=poor, young=old, wet=dry, "
            "early=late, full=empty, hard=soft, heavy=light, high=low, happy=sad, loud=quiet, clean=dirty, "
            "strong=weak, thick=thin, wide=narrow, sweet=sour, near=far, in=out, left=right, war=peace, "
            "love=hate, deep=shallow, sharp=blunt, rough=smooth, win=lose"
        ),
    ),
    FactFamily(
        name="colour",
        phrasings=("What colour is {s}?", "Which colour does {s} have?", "Tell me the colour of {s}."),
        statement="The colour of {s} is {a}",
        pairs=_parse_pairs(
            "grass=green, snow=white, coal=black, blood=red, the sky=blue, the sun=yellow, chocolate=brown, "
            "a flamingo=pink, a carrot=orange, a lemon=yellow, milk=white, a tomato=red, the sea=blue, a raven=black, "
            "a lime=green, a pumpkin=orange, a plum=purple, an elephant=grey, a frog=green, a ruby=red, "
            "a sapphire=blue, an emerald=green, a banana=yellow, lavender=purple"
        ),
    ),
    FactFamily(
        name="sound",
        phrasings=("What does a {s} say?", "Which sound does a {s} make?", "Name the sound of the {s}."),
        statement="The sound of the {s} is {a}",
        pairs=_parse_pairs(
            "dog=woof, cat=meow, cow=moo, sheep=baa, pig=oink, duck=quack, horse=neigh, lion=roar, mouse=squeak, "
            "snake=hiss, bee=buzz, wolf=howl, donkey=bray, rooster=crow, hen=cluck, crow=caw, dove=coo, turkey=gobble"
        ),
    ),
    FactFamily(
        name="symbol",
        phrasings=(
            "What is the chemical symbol of {s}?",
            "Which symbol stands for {s}?",
            "Tell me the chemical symbol of {s}.",
        ),
        statement="The chemical symbol of {s} is {a}",
        pairs=_parse_pairs(
            "hydrogen=H, helium=He, lithium=Li, carbon=C, nitrogen=N, oxygen=O, neon=Ne, sodium=Na, magnesium=Mg, "
            "aluminium=Al, silicon=Si, sulphur=S, chlorine=Cl, potassium=K, calcium=Ca, titanium=Ti, iron=Fe, "
            "nickel=Ni, copper=Cu, zinc=Zn, silver=Ag, tin=Sn, platinum=Pt, gold=Au, mercury=Hg, lead=Pb, "
            "uranium=U"
        ),
    ),
    FactFamily(
        name="young",
        phrasings=("What is a baby {s} called?", "What do you call a young {s}?", "Name the young of the {s}."),
        statement="The young of the {s} is the {a}",
        pairs=_parse_pairs(
            "dog=puppy, cat=kitten, cow=calf, sheep=lamb, pig=piglet, duck=duckling, horse=foal, lion=cub, hen=chick, "
            "goose=gosling, goat=kid, deer=fawn, kangaroo=joey, frog=tadpole, swan=cygnet, owl=owlet, eagle=eaglet, "
            "hare=leveret"
        ),
    ),
    FactFamily(
        name="money",
        phrasings=("What is the currency of {s}?", "How does one pay in {s}?", "Name the money of {s}."),
        statement="The currency of {s} is the {a}",
        pairs=_parse_pairs(
            "Japan=yen, China=yuan, Russia=rouble, Turkey=lira, India=rupee, Mexico=peso, Brazil=real, Poland=zloty, "
            "Sweden=krona, Hungary=forint, Thailand=baht, Vietnam=dong, Israel=shekel, Iran=rial, Iraq=dinar, "
            "Kenya=shilling, Ghana=cedi, Canada=dollar, Britain=pound, Switzerland=franc, France=euro, Ukraine=hryvnia"
        ),
    ),
    FactFamily(
        name="next",
        phrasings=("What comes after {s}?", "Which one follows {s}?", "Name the one right after {s}."),
        statement="The one after {s} is {a}",
        pairs=_parse_pairs(
            "Monday=Tuesday, Tuesday=Wednesday, Wednesday=Thursday, Thursday=Friday, Friday=Saturday, Saturday=Sunday, "
            "Sunday=Monday, January=February, February=March, March=April, April=May, May=June, June=July, "
            "July=August, August=September, September=October, October=November, November=December, December=January"
        ),
    ),
)

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
    return tuple(Question(fact=fact, text=p.format(s=fact.subject)) for p in _BY_NAME[fact.family].phrasings)


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
