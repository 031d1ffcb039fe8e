"""What several votes come to. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from openclaw_rl.judge.vote_parser import sound
from openclaw_rl.types import Verdict, Vote


def majority(votes: Sequence[Vote], threshold: float) -> tuple[int | None, str]:
    """The score that holds more than `threshold` (a share in [0, 1)) of the usable votes, and the reason in words.

    A vote with score None is unusable: it counts neither for nor against. None: no score is over the threshold, or
    two share the lead. Raises `ValueError` when no vote is usable, for that is no verdict but a failure.
    """
    counts = Counter(vote.score for vote in votes if vote.score is not None)
    usable = counts.total()
    if not usable:
        raise ValueError(f"expected at least one usable vote, got {len(votes)} unusable ones")
    (score, most), *others = counts.most_common()
    tally = ", ".join(f"{value:+d}: {count}" for value, count in sorted(counts.items(), reverse=True))
    if others and others[0][1] == most:
        return None, f"abstained: a tie ({tally})"
    if most / usable <= threshold:
        return None, f"abstained: no score has more than {threshold:g} of {usable} usable votes ({tally})"
    return score, f"{most} of {usable} usable votes say {score:+d}"


def sound_verdict(verdict: Verdict) -> Verdict:
    """The same in words that a store holds (`answer.sound`), whoever gave it."""
    votes = (
        replace(v, hint=v.hint and sound(v.hint), reason=sound(v.reason), error=v.error and sound(v.error))
        for v in verdict.votes
    )
    return replace(verdict, votes=tuple(votes), hints=tuple(map(sound, verdict.hints)), reason=sound(verdict.reason))


def distinct(hints: Iterable[str | None]) -> tuple[str, ...]:
    """The hints that say different things, in order: case, white space and the final full stop do not count."""
    kept: dict[str, str] = {}
    for hint in hints:
        text = " ".join((hint or "").split())
        if text:
            kept.setdefault(text.rstrip(".!").casefold(), text)
    return tuple(kept.values())


def agreeing(votes: Iterable[Vote], score: int | None) -> tuple[str, ...]:
    """The distinct hints of the votes that agree with the verdict; none when there was no verdict."""
    return distinct(vote.hint for vote in votes if score is not None and vote.score == score)
