"""The upper bound for `make learn-days`: an assistant that knows all answers and reads each reaction in the best way.

Before the first reaction, nobody can know more of a session's taste than this assistant: it knows how far the drift is,
the share of reactions that say the opposite of the truth, and what the shipped rules understand. How often even its
days are below the untrained policy shows how much of a month's result is chance.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from benchmarks.demo.personas import DECK_SIZE, WRONG_CARDS, Persona, UserReaction

from openclaw_rl.evals.styles import OPPOSITE, Taste
from openclaw_rl.evals.toy_world import Fact, Question

_ADDED_WORDS = "which is what everybody says who had to learn it by heart at school once"
_OPENINGS = {"formal": "Certainly,", "casual": "Sure,"}


@dataclass(frozen=True, slots=True, kw_only=True)
class IdealMonth:
    """A month of the ideal assistant, of the same kind as the measured ones."""

    below: int  # days below the untrained policy
    satisfied: float  # mean of all days
    worst_of_last: float  # of the last days


@dataclass(frozen=True, slots=True, kw_only=True)
class IdealAssistant:
    """Chooses the style that most likely satisfies: both tastes, or the one that drift and reactions make likelier."""

    tastes: tuple[Taste, Taste]

    def choose_styles(
        self, drift: float, heard: list[tuple[frozenset[Taste], UserReaction]]
    ) -> frozenset[Taste]:
        """Return the tastes of the next reply. `heard`: the styles of the session's replies, and the reactions."""
        first, second = self.tastes
        if OPPOSITE[first] != second:
            return frozenset(self.tastes)
        wrong = WRONG_CARDS / DECK_SIZE
        shares = {first: 1 - drift, second: drift}
        for styles, reaction in heard:
            if reaction.known:
                for taste in self.tastes:
                    shares[taste] *= 1 - wrong if (taste in styles) == reaction.praised else wrong
        return frozenset({max(self.tastes, key=lambda taste: shares[taste])})

    def write_reply(self, fact: Fact, styles: frozenset[Taste]) -> str:
        """Return a correct reply that has these styles."""
        opening = " ".join(word for style, word in _OPENINGS.items() if style in styles)
        mark = "- " if "bulleted" in styles else ""
        added = f", {_ADDED_WORDS}" if "long" in styles else ""
        return f"{mark}{opening} {fact.answer}{added}.".replace("  ", " ").strip()


def simulate_month(
    tastes: tuple[Taste, Taste],
    subjects: Sequence[str],
    *,
    turns: int,
    last: int,
    seed: int,
    draw: Callable[[str, random.Random], Question],
    untrained: Callable[[Taste, str], float],
) -> IdealMonth:
    """Return a month with the ideal assistant.

    `subjects`: of the days; `turns`: of a day, at least; `last`: how many days count as the last ones; `draw`: a
    question about a subject; `untrained`: what version 0 reaches for a taste and a subject.
    """
    assistant = IdealAssistant(tastes=tastes)
    chance = random.Random(f"ideal/{seed}")
    personas = {taste: Persona(taste=taste, seed=seed) for taste in tastes}
    shares = []
    below = 0
    for number, subject in enumerate(subjects, 1):
        drift = min(1.0, max(0.0, 3 * number / len(subjects) - 1))
        log: list[tuple[Taste, UserReaction]] = []
        while len(log) < turns:
            taste = tastes[chance.random() < drift]
            reactions = _run_session(assistant, personas[taste], drift, partial(draw, subject))
            log += [(taste, reaction) for reaction in reactions]
        shares.append(statistics.fmean(reaction.satisfied for _, reaction in log))
        below += shares[-1] < statistics.fmean(untrained(taste, subject) for taste, _ in log)
    return IdealMonth(
        below=below, satisfied=statistics.fmean(shares), worst_of_last=min(shares[-last:])
    )


def _run_session(
    assistant: IdealAssistant,
    persona: Persona,
    drift: float,
    draw: Callable[[random.Random], Question],
) -> list[UserReaction]:
    drawn: list[Question] = []

    def draw_and_note(rng: random.Random) -> Question:
        drawn.append(draw(rng))
        return drawn[-1]

    persona.draw = draw_and_note
    begin = len(persona.log)
    history: list[dict[str, str]] = []
    replied: list[frozenset[Taste]] = []
    while (text := persona.next_message(history)) is not None:
        reactions = persona.log[begin:]
        replied.append(assistant.choose_styles(drift, list(zip(replied, reactions, strict=True))))
        reply = assistant.write_reply(drawn[-1].fact, replied[-1])
        history += [{"role": "user", "content": text}, {"role": "assistant", "content": reply}]
    return persona.log[begin:]
