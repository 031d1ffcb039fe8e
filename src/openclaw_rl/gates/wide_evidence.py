"""Who speaks for a fall of satisfaction: one that a few people alone see moves nothing for all the others. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TypeVar

from openclaw_rl.store.lineage.live_scores import ScoredTurn
from openclaw_rl.store.person_scores import Person

_Name = TypeVar("_Name", str, Person)
LEFT_OUT_SHARE = 1 / 3
"""Share of the people, those who speak most for a fall, without whom it has to be seen as well."""


def counter_checks(
    before: Sequence[ScoredTurn], since: Sequence[ScoredTurn]
) -> list[frozenset[Person]]:
    """Return groups of people; a fall from `before` to `since` has to be seen without each of them.

    The third of the people who speak most for it, rounded up, and everyone of the key that does, if there are several
    keys. Empty if all turns are of one person.
    """
    people = {score.person for score in (*before, *since)}
    if len(people) < 2:
        return []
    losses = _losses(before, since)
    ranked = _largest_first(losses)
    third = frozenset(ranked[: math.ceil(len(ranked) * LEFT_OUT_SHARE)])
    loudest = _loudest_key(losses)
    of_key = frozenset(person for person in people if person[0] == loudest)
    return [third] if of_key in (frozenset(), people) else [third, of_key]


def _losses(before: Sequence[ScoredTurn], since: Sequence[ScoredTurn]) -> dict[Person, float]:
    """Return by how many satisfied turns each person is below what `before` lets expect."""
    expected = sum(score.satisfied for score in before) / max(len(before), 1)
    losses: defaultdict[Person, float] = defaultdict(float)
    for score in since:
        losses[score.person] += expected - score.satisfied
    return losses


def _loudest_key(losses: Mapping[Person, float]) -> str:
    keys: defaultdict[str, float] = defaultdict(float)
    for (key, _), loss in losses.items():
        keys[key] += loss
    return _largest_first(keys)[0] if keys else ""


def _largest_first(losses: Mapping[_Name, float]) -> list[_Name]:
    return sorted(losses, key=lambda name: (-losses[name], name))


def without_people(scores: Sequence[ScoredTurn], left_out: frozenset[Person]) -> list[ScoredTurn]:
    """Return the scores of all but these people."""
    return [score for score in scores if score.person not in left_out]
