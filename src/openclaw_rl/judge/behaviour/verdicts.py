"""Verdicts from signals. They count only where nobody scored the turn and the judge found no evidence."""

from __future__ import annotations

from dataclasses import replace

from openclaw_rl.judge.behaviour.signals import SIGNALS, may_occur
from openclaw_rl.judge.voting import make_verdict
from openclaw_rl.settings.load import SignalsConfig
from openclaw_rl.store.behaviour.observations import BEHAVIOUR_JUDGE
from openclaw_rl.types import JudgeInput, Verdict

NO_SIGNAL = f"{BEHAVIOUR_JUDGE}none"
"""The judge's name in a verdict without a score."""


def has_only_behaviour(item: JudgeInput) -> bool:
    """Return whether there are neither words nor tool results that a judge could read."""
    if item.reaction.messages:
        return False
    feedback = item.reaction.feedback
    return not any(f.comment or f.correction or f.score is not None for f in feedback)


def behaviour_verdict(item: JudgeInput, weights: SignalsConfig) -> Verdict:
    """Return the verdict of the signal with the largest weight; no score if none occurred or if they disagree."""
    sizes: dict[str, float] = {}
    reasons = []
    for name in SIGNALS:
        reason = _occurred(name, item, weights)
        if reason:
            sizes[name] = abs(_weight(name, weights))
            reasons.append(f"{name}: {reason} (weight {sizes[name]:g})")
    if not sizes:
        reason = "abstained: there is no evidence in what the person did"
        return make_verdict(item, NO_SIGNAL, None, reason)
    reason = "; ".join(reasons)
    signs = {_sign(name, weights) for name in sizes}
    if len(signs) > 1:
        reason = f"abstained: the signals disagree: {reason}"
        return make_verdict(item, NO_SIGNAL, None, reason)
    strongest = max(sizes, key=lambda name: sizes[name])
    verdict = make_verdict(item, BEHAVIOUR_JUDGE + strongest, signs.pop(), reason)
    return replace(verdict, weight=sizes[strongest])


def apply_signals(item: JudgeInput, judged: Verdict, weights: SignalsConfig) -> Verdict:
    """Return the judge's verdict, or that of the signals if the judge found no evidence and they have one."""
    if judged.score is not None or judged.hints or judged.explicit:
        return judged
    observed = behaviour_verdict(item, weights)
    if observed.score is None:
        return judged
    reason = f"{observed.reason}; {judged.judge}: {judged.reason}"
    return replace(observed, votes=judged.votes, reason=reason)


def comparison_verdicts(item: JudgeInput, weights: SignalsConfig) -> list[Verdict]:
    """Return a verdict of each signal on a turn that a person scored, to measure the signal; it is never trained on.

    Where a signal did not occur although it could have, it is compared with the opposite score. Without these pairs it
    would always give the same score, and its kappa would always be 0.
    """
    out = []
    for name in SIGNALS:
        if not _weight(name, weights) or not may_occur(name, item):
            continue
        occurred = _occurred(name, item, weights)
        score = _sign(name, weights)
        if not occurred:
            score = -score
        reason = f"for comparison: {occurred or f'not {name}'}"
        verdict = make_verdict(item, BEHAVIOUR_JUDGE + name, score, reason)
        out.append(replace(verdict, weight=abs(_weight(name, weights))))
    return out


def _occurred(name: str, item: JudgeInput, weights: SignalsConfig) -> str | None:
    return SIGNALS[name](item) if _weight(name, weights) else None


def _weight(name: str, weights: SignalsConfig) -> float:
    value: float = getattr(weights, name)
    return value


def _sign(name: str, weights: SignalsConfig) -> int:
    return 1 if _weight(name, weights) > 0 else -1
