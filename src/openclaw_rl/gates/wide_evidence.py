"""Who speaks for a fall of satisfaction: one that a few people alone see moves nothing for all the others. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from openclaw_rl.store.lineage.live_scores import ScoredTurn
from openclaw_rl.store.person_scores import Person

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
    expected = sum(score.satisfied for score in before) / len(before) if before else 1.0
    losses: dict[Person, float] = {}
    keys: dict[str, float] = {}
    for score in since:
        loss = expected - score.satisfied
        losses[score.person] = losses.get(score.person, 0.0) + loss
        key = score.person[0]
        keys[key] = keys.get(key, 0.0) + loss
    ranked = sorted(losses, key=lambda person: (-losses[person], person))
    groups = [frozenset(ranked[: math.ceil(len(ranked) * LEFT_OUT_SHARE)])]
    if len({person[0] for person in people}) > 1 and keys:
        loudest = min(keys, key=lambda key: (-keys[key], key))
        groups.append(frozenset(person for person in people if person[0] == loudest))
    return groups


def without_people(scores: Sequence[ScoredTurn], left_out: frozenset[Person]) -> list[ScoredTurn]:
    """Return the scores of all but these people."""
    return [score for score in scores if score.person not in left_out]
