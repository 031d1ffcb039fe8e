"""Where the rules are right so often that they decide before the head: measured on the labelled set."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from openclaw_rl.judge.head.labelled_reactions import LabelledReaction
from openclaw_rl.types import JudgeInput, Verdict

MIN_PRECISION = 0.95
MIN_VERDICTS = 10
"""Verdicts of a class that are needed to measure it."""
RuleClass = tuple[bool, int]
"""Whether tool results alone answered, and the score."""


@dataclass(frozen=True, slots=True)
class RuleTrust:
    """The classes of verdicts in which the rules decide."""

    classes: frozenset[RuleClass]

    def covers(self, item: JudgeInput, verdict: Verdict) -> bool:
        """Return whether the rules decide with this verdict."""
        return bool(verdict.score) and _class_of(item, verdict) in self.classes


def measure_rules(reactions: Sequence[LabelledReaction], verdicts: Sequence[Verdict]) -> RuleTrust:
    """Return the classes in which at least `MIN_PRECISION` of the rules' scores are right."""
    given: Counter[RuleClass] = Counter()
    right: Counter[RuleClass] = Counter()
    for labelled, verdict in zip(reactions, verdicts, strict=True):
        if verdict.score:
            one = _class_of(labelled.item, verdict)
            given[one] += 1
            right[one] += verdict.score == labelled.expected
    return RuleTrust(
        frozenset(
            one
            for one, count in given.items()
            if count >= MIN_VERDICTS and right[one] >= MIN_PRECISION * count
        )
    )


def _class_of(item: JudgeInput, verdict: Verdict) -> RuleClass:
    roles = {str(message.get("role")) for message in item.reaction.messages}
    return bool(roles) and "user" not in roles, verdict.score or 0
