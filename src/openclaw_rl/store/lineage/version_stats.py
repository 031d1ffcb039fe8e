"""Statistics of policy versions and of judges, computed from the store without a model.

Of a version: satisfaction and number of turns. Of a judge: agreement with what people said, and whether it is trusted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, select
from sqlalchemy.dialects.sqlite import insert

from openclaw_rl.common.statistics.rater_agreement import Kappa, cohens_kappa
from openclaw_rl.store import schema as t
from openclaw_rl.store.behaviour.observations import is_signal
from openclaw_rl.store.rows import from_json, to_json
from openclaw_rl.store.turns import VERDICT_PRECEDENCE, count_rows, count_unjudged
from openclaw_rl.types import FinishReason, Kind, TurnState

MAX_SCORED_TURNS = 1000
MIN_PAIRS = 20
"""Pairs of scores by judge and person from which a judge's kappa decides whether it is trusted."""
MIN_PAIRS_EACH = 5
"""Of them, pairs in which the person said +1, and in which -1: one-sided feedback says nothing about a judge."""
_UNTRUSTED_KEY = "untrusted_judges"


def satisfaction_metrics(conn: Connection, versions: Sequence[int]) -> dict[str, float]:
    """Return metrics of the main turns that these versions answered here; shares with a zero denominator are omitted.

    `eval/satisfaction`: share of +1 among scores of +1 or -1. `eval/truncated`: share cut at the token limit.
    `eval/untrainable`: share of the judged turns. `eval/agreement`: share of equal scores by judge and users, of all
    turns. `eval/turns`: number of turns. `eval/waiting`: turns of all versions that wait for a verdict.
    """
    rows = _answered_turns(conn, versions)
    scored = [score for _, score in _version_scores(conn, versions) if score]
    judged = [row for row in rows if row.state == TurnState.JUDGED]
    satisfied = sum(score > 0 for score in scored)
    truncated = sum(row.finish_reason == FinishReason.LENGTH for row in rows)
    untrainable = sum(row.untrainable is not None for row in judged)
    # Name -> (numerator, denominator).
    shares = {
        "eval/satisfaction": (satisfied, len(scored)),
        "eval/truncated": (truncated, len(rows)),
        "eval/untrainable": (untrainable, len(judged)),
        "eval/agreement": judge_user_agreement(conn),
    }
    metrics = {
        "eval/turns": float(len(rows)),
        "eval/waiting": float(count_unjudged(conn)[0]),
    }
    for name, (part, whole) in shares.items():
        if whole:
            metrics[name] = part / whole
    return metrics


def _answered_turns(conn: Connection, versions: Sequence[int]) -> Sequence[Any]:
    query = select(t.turns.c.state, t.turns.c.untrainable, t.exchanges.c.finish_reason)
    return conn.execute(
        query.join(t.exchanges, t.exchanges.c.seq == t.turns.c.seq).where(*_of_versions(versions))
    ).all()


def satisfaction_by_version(
    conn: Connection, versions: Sequence[int]
) -> dict[int, tuple[int, int]]:
    """Return (turns scored +1, turns scored +1 or -1) of each version that has any."""
    out: dict[int, tuple[int, int]] = {}
    for version, score in _version_scores(conn, versions):
        if score:
            good, scored = out.get(version, (0, 0))
            out[version] = good + (score > 0), scored + 1
    return out


def _version_scores(conn: Connection, versions: Sequence[int]) -> list[tuple[int, int | None]]:
    """Return (version, score of the current verdict) of each turn that has one.

    The score of a signal from behaviour counts as none: it is weak evidence, and nobody said that much.
    """
    query = select(t.verdicts.c.turn, t.exchanges.c.version, t.verdicts.c.score, t.verdicts.c.judge)
    query = query.join(t.turns, t.turns.c.id == t.verdicts.c.turn)
    query = (
        query.join(t.exchanges, t.exchanges.c.seq == t.turns.c.seq)
        .where(*_of_versions(versions))
        .order_by(*VERDICT_PRECEDENCE)
    )
    first: dict[str, tuple[int, int | None]] = {}
    for row in conn.execute(query):
        first.setdefault(row.turn, (row.version, None if is_signal(row.judge) else row.score))
    return list(first.values())


def turns_by_version(conn: Connection, versions: Sequence[int]) -> dict[int, tuple[int, int]]:
    """Return (turns that it was trained on, main turns that it answered here) of each version."""
    used = count_rows(conn, t.uses.c.policy, t.uses.c.policy.in_(versions))
    is_main = t.turns.c.seq == t.exchanges.c.seq, t.equals_literal(t.turns.c.kind, Kind.MAIN)
    here = (
        t.exchanges.c.version.in_(versions),
        t.exchanges.c.origin.is_(None),
        select(t.turns.c.seq).where(*is_main),
    )
    served = count_rows(conn, t.exchanges.c.version, *here[:2], here[2].exists())
    return {version: (used.get(version, 0), served.get(version, 0)) for version in versions}


def _of_versions(versions: Sequence[int]) -> tuple[ColumnElement[bool], ...]:
    return (
        t.exchanges.c.version.in_(list(versions)),
        t.exchanges.c.origin.is_(None),
        # What satisfies people.
        t.exchanges.c.episode.is_(None),
        t.equals_literal(t.turns.c.kind, Kind.MAIN),
    )


def judge_user_pairs(conn: Connection) -> dict[str, list[tuple[int, int]]]:
    """Return (score by the judge, score by the person) of each turn that both scored, by judge; newest turns first.

    Of several verdicts by the same side, the one on the newest revision of the reaction counts. Abstaining does not
    count as a score. At most the `MAX_SCORED_TURNS` turns with the newest feedback are compared.
    """
    scored = (
        select(t.feedback.c.target)
        .where(
            t.feedback.c.score.is_not(None),
            t.feedback.c.revision.is_not(None),
            t.feedback.c.retracted_at.is_(None),
        )
        .order_by(t.feedback.c.seq.desc())
        .limit(MAX_SCORED_TURNS)
    )
    newest = list(dict.fromkeys(conn.execute(scored).scalars()))
    v = t.verdicts.c
    rows = conn.execute(
        select(v.turn, v.judge, v.explicit, v.score)
        .where(v.turn.in_(newest), v.score.is_not(None))
        .order_by(v.revision, v.at)
    )
    user_scores: dict[str, int] = {}
    # Judge -> turn -> score.
    judge_scores: dict[str, dict[str, int]] = {}
    for turn, judge, explicit, score in rows:
        scores = user_scores if explicit else judge_scores.setdefault(judge, {})
        scores[turn] = score
    pairs_by_judge = {}
    for judge, scores in judge_scores.items():
        both = [turn for turn in newest if turn in scores and turn in user_scores]
        if both:
            pairs_by_judge[judge] = [(scores[turn], user_scores[turn]) for turn in both]
    return pairs_by_judge


def judge_user_agreement(conn: Connection) -> tuple[int, int]:
    """Return (pairs of `judge_user_pairs` with equal scores, all pairs), without those of signals."""
    pairs = [
        pair
        for judge, of_judge in judge_user_pairs(conn).items()
        if not is_signal(judge)
        for pair in of_judge
    ]
    return sum(judge == user for judge, user in pairs), len(pairs)


def training_kappa(pairs: Sequence[tuple[int, int]]) -> Kappa | None:
    """Return the kappa of the verdicts that train: a judge's 0, which trains nothing, counts as abstaining."""
    return cohens_kappa([(judge, user) for judge, user in pairs if judge])


def kappa_by_judge(conn: Connection) -> dict[str, Kappa]:
    """Return `training_kappa` of each judge and signal, without signals that gave all scored turns the same score."""
    kappas = {}
    for judge, pairs in judge_user_pairs(conn).items():
        kappa = training_kappa(pairs)
        if kappa is not None and (not is_signal(judge) or len({score for score, _ in pairs}) > 1):
            kappas[judge] = kappa
    return kappas


def is_below_kappa(pairs: Sequence[tuple[int, int]], min_kappa: float) -> bool:
    """Return whether pairs of scores, by judge and person, are enough and leave a kappa of `min_kappa` possible.

    That is: the lower bound of the 95% interval is not above it.
    """
    user_counts = Counter(user for judge, user in pairs if judge)
    if user_counts.total() < MIN_PAIRS:
        return False
    if min(user_counts[1], user_counts[-1]) < MIN_PAIRS_EACH:
        return False
    kappa = training_kappa(pairs)
    if kappa is None:
        return False
    return kappa.low <= min_kappa


def _is_rare(judge: str, pairs: Sequence[tuple[int, int]]) -> bool:
    """Return whether a signal occurred, or was absent, too seldom to be measured; its absence is a score, too."""
    scores = Counter(score for score, _ in pairs)
    return is_signal(judge) and min(scores[1], scores[-1]) < MIN_PAIRS_EACH


def update_untrusted_judges(conn: Connection, min_kappa: float) -> tuple[set[str], set[str]]:
    """Store which judges' verdicts are not trained on; none with a `min_kappa` of -1. Returns (before, now)."""
    before = untrusted_judges(conn)
    now = set[str]()
    if min_kappa > -1:
        measured = {
            judge: pairs
            for judge, pairs in judge_user_pairs(conn).items()
            if not _is_rare(judge, pairs)
        }
        now = {judge for judge, pairs in measured.items() if is_below_kappa(pairs, min_kappa)}
    if before != now:
        row = {"key": _UNTRUSTED_KEY, "value": to_json(sorted(now))}
        statement = insert(t.meta).values(row)
        conn.execute(
            statement.on_conflict_do_update(index_elements=["key"], set_={"value": row["value"]})
        )
    return before, now


def untrusted_judges(conn: Connection) -> set[str]:
    """Return the judges whose verdicts are not trained on, by the last `update_untrusted_judges`."""
    raw = conn.scalar(select(t.meta.c.value).where(t.meta.c.key == _UNTRUSTED_KEY))
    return set() if raw is None else set(from_json(raw))
