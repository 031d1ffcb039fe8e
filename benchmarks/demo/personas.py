"""The simulated user: likes one style, asks questions, and reacts in text only.

A persona never sends a score. Its reaction to a reply opens its next message, as with people. The log records the
truth with each reaction, for evaluation; policy and judge never see it.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from openclaw_rl.evals import phrases
from openclaw_rl.evals.phrases import PhrasePool
from openclaw_rl.evals.styles import OPPOSITE, VALUES, Taste, Value, has_style
from openclaw_rl.evals.toy_world import Question, draw_question, is_correct

# Reactions are drawn from a shuffled deck without replacement, so that the shares are exact in every run:
# of 20 cards, 11 use phrases that the shipped rules do not match, and 2 state the opposite of the truth.
DECK_SIZE = 20
SUBTLE_CARDS = 11
WRONG_CARDS = 2
# Share of reactions that name the style that they praise or ask for.
STYLE_NAMED_SHARE = 0.75
MAX_SESSION_TURNS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class UserReaction:
    """One reaction and the truth behind it; `session` and `turn` count from 0."""

    session: int
    turn: int
    question: Question
    reply: str
    phrase: str
    satisfied: bool  # truth: correct answer in the style that the persona likes
    correct: bool
    praised: bool  # what the phrase expresses
    known: bool  # whether the shipped rules give the phrase a verdict

    @property
    def is_wrong(self) -> bool:
        """Whether the persona stated the opposite of the truth, on purpose."""
        return self.praised != self.satisfied


@dataclass(frozen=True, slots=True, kw_only=True)
class _ReactionCard:
    subtle: bool
    wrong: bool


def _shuffled_deck(rng: random.Random) -> list[_ReactionCard]:
    """Return a shuffled deck; the subtle and the wrong cards are chosen independently."""
    subtle = set(rng.sample(range(DECK_SIZE), SUBTLE_CARDS))
    wrong = set(rng.sample(range(DECK_SIZE), WRONG_CARDS))
    return [_ReactionCard(subtle=i in subtle, wrong=i in wrong) for i in range(DECK_SIZE)]


def _draw_any(rng: random.Random) -> Question:
    return draw_question("asked", rng)


@dataclass(slots=True, kw_only=True)
class Persona:
    """A user with one taste. Call `next_message` with the messages of the current session, in the API's form:

        while (text := persona.next_message(history)) is not None:
            history += [{"role": "user", "content": text}, {"role": "assistant", "content": reply_to(history)}]

    None ends the session; a call with a history without replies starts the next one. The last message of a session is
    a reaction without a question. The same seed and the same replies give the same messages.
    """

    taste: Taste
    seed: int
    draw: Callable[[random.Random], Question] = _draw_any
    random_hints: float = 0.0  # share of the named styles that are replaced by any style, by chance
    log: list[UserReaction] = field(default_factory=list)
    _rng: random.Random = field(init=False, repr=False)
    _cards: list[_ReactionCard] = field(init=False, repr=False, default_factory=list)
    _question: Question | None = field(init=False, repr=False, default=None)
    _session: int = field(init=False, repr=False, default=-1)
    _turn: int = field(init=False, repr=False, default=0)
    _turns: int = field(init=False, repr=False, default=0)

    def __post_init__(self) -> None:
        self._rng = random.Random(f"{self.taste}/{self.seed}")

    def next_message(self, history: Sequence[Mapping[str, object]]) -> str | None:
        """Return the next user message after `history`, or None if the session is over."""
        replies = [message for message in history if message.get("role") == "assistant"]
        if not replies:
            return self._begin_session()
        if self._question is None:
            return None
        phrase = self._react_to(str(replies[-1].get("content") or ""))
        self._turn += 1
        self._question = self.draw(self._rng) if self._turn < self._turns else None
        return phrase if self._question is None else f"{phrase} {self._question.text}"

    def _begin_session(self) -> str:
        self._session = self._session + 1
        self._turn = 0
        self._turns = self._rng.randint(1, MAX_SESSION_TURNS)
        self._question = self.draw(self._rng)
        return self._question.text

    def _react_to(self, reply: str) -> str:
        """Return a reaction to the last reply, and log it with the ground truth."""
        assert self._question is not None
        self._cards = self._cards or _shuffled_deck(self._rng)
        card = self._cards.pop()
        right = is_correct(self._question, reply)
        liked = has_style(self.taste, reply)
        praised = (right and liked) != card.wrong
        value: Value = OPPOSITE[self.taste] if card.wrong else self.taste
        is_named = self._rng.random() < STYLE_NAMED_SHARE
        if self.random_hints and self._rng.random() < self.random_hints:
            value = self._rng.choice(VALUES)
        pool = _phrase_pool(value if is_named else None, right=right, praised=praised)
        phrase = self._rng.choice(pool.subtle if card.subtle else pool.plain)
        self.log.append(
            UserReaction(
                session=self._session, turn=self._turn, question=self._question, reply=reply, phrase=phrase,
                satisfied=right and liked, correct=right, praised=praised, known=not card.subtle,
            )
        )  # fmt: skip
        return phrase


def _phrase_pool(value: Value | None, *, right: bool, praised: bool) -> PhrasePool:
    """Return the pool from which the phrase is chosen. `value`: the style that is named, or None.

    A wrong reaction is not only a flipped sign: it is the reaction of a user with the opposite taste, so its
    instruction is wrong, too.
    """
    if not right and not praised:
        return phrases.WRONG_ANSWER
    if value is None or not right:
        return phrases.GENERIC_PRAISE if praised else phrases.GENERIC_COMPLAINT
    return phrases.PRAISE[value] if praised else phrases.COMPLAINT[value]
