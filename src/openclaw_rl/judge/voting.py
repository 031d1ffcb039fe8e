"""Combine several votes into a score and hints. Pure functions, except for the time of a verdict."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from openclaw_rl.judge.answer_schemas import NO_EVIDENCE
from openclaw_rl.judge.vote_parser import replace_surrogates
from openclaw_rl.reasons import ReasonCode
from openclaw_rl.types import JudgeInput, Verdict, Vote


@dataclass(frozen=True, slots=True)
class Majority:
    """The score of several votes and how it came about, as text; `code`: why the votes give no score."""

    score: int | None
    reason: str
    code: ReasonCode | None = None


def majority_score(votes: Sequence[Vote], threshold: float) -> Majority:
    """Return the score with at least `threshold` (a share in [0, 1]) of the usable votes.

    A vote with an error is unusable and not counted; one without a score says that there is no evidence, and counts
    like a score. The score is None if that is the majority, if none reaches the threshold, or if two are tied. Raises
    `ValueError` if no vote is usable, because that is a failure of the judge and not a verdict.
    """
    counts = Counter(vote.score for vote in votes if vote.error is None)
    usable = counts.total()
    if not usable:
        raise ValueError(f"expected at least one usable vote, got {len(votes)} unusable ones")
    (score, most), *others = counts.most_common()
    values = [value for value in (1, 0, -1, None) if value in counts]
    tally = ", ".join(f"{_score_words(value)}: {counts[value]}" for value in values)
    if others and others[0][1] == most:
        return Majority(None, f"abstained: a tie ({tally})", ReasonCode.TIE)
    # Exact for a decimal share: 3 / 5 and 0.6 are the same float.
    if most / usable < threshold:
        reason = f"abstained: no score has a share of at least {threshold:g} of {usable} usable votes ({tally})"
        return Majority(None, reason, ReasonCode.NO_MAJORITY)
    return Majority(score, f"{most} of {usable} usable votes say {_score_words(score)}")


def _score_words(score: int | None) -> str:
    return NO_EVIDENCE if score is None else f"{score:+d}"


def make_verdict(
    item: JudgeInput,
    judge: str,
    score: int | None,
    reason: str,
    *,
    votes: Iterable[Vote] = (),
    hints: tuple[str, ...] = (),
    explicit: bool = False,
    reason_code: ReasonCode | None = None,
    at: float | None = None,
) -> Verdict:
    """Return a verdict on the turn. `at`: its time, by default now."""
    return Verdict(
        turn=item.turn,
        revision=item.reaction.revision,
        judge=judge,
        score=score,
        votes=tuple(votes),
        hints=hints,
        explicit=explicit,
        reason=reason,
        reason_code=reason_code,
        at=time.time() if at is None else at,
    )


def replace_verdict_surrogates(verdict: Verdict) -> Verdict:
    """Return the verdict with `replace_surrogates` applied to all its texts, so that it can be stored."""
    text = replace_surrogates
    votes = tuple(
        replace(
            v,
            hint=v.hint and text(v.hint),
            reason=text(v.reason),
            error=v.error and text(v.error),
            fact=v.fact and text(v.fact),
            words=v.words and text(v.words),
        )
        for v in verdict.votes
    )
    return replace(
        verdict, votes=votes, hints=tuple(map(text, verdict.hints)), reason=text(verdict.reason)
    )


def distinct_hints(hints: Iterable[str | None]) -> tuple[str, ...]:
    """Return the distinct hints in order; case, white space and final `.` or `!` are ignored in the comparison."""
    distinct: dict[str, str] = {}
    for hint in hints:
        text = " ".join((hint or "").split())
        if text:
            distinct.setdefault(text.rstrip(".!").casefold(), text)
    return tuple(distinct.values())


def hints_of_majority(votes: Iterable[Vote], score: int | None) -> tuple[str, ...]:
    """Return the distinct hints of the votes with the verdict's score; empty if the score is None."""
    return distinct_hints(vote.hint for vote in votes if score is not None and vote.score == score)
