"""Statistics of policy versions and of judges, computed from the store without a model.

Of a version: satisfaction and number of turns. Of a judge: agreement with what people said.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, Text, case, cast, func, select

from openclaw_rl.store import schema as t
from openclaw_rl.store.behaviour.observations import is_signal
from openclaw_rl.store.lineage.policy_paths import resolved_path
from openclaw_rl.store.trust.score_pairs import as_scores, common_pairs, read_pairs
from openclaw_rl.store.turns import VERDICT_PRECEDENCE, count_rows, count_unjudged
from openclaw_rl.types import FinishReason, Kind, TurnState


class VersionFiles(NamedTuple):
    """The folder of a version, and whether it has a certain file; no folder: the base."""

    version: int
    path: str | None
    has_file: bool


def files_of_versions(conn: Connection, versions: Collection[int], file: str) -> list[VersionFiles]:
    """Return the folders of versions, newest first, without reading their metrics. `file`: the one that is sought."""
    c = t.policies.c
    digest = _json_value(c.files, file)
    query = select(c.version, c.path, digest).where(c.version.in_(list(versions)))
    rows = conn.execute(query.order_by(c.version.desc()))
    return [VersionFiles(row[0], resolved_path(conn, row[1]), bool(row[2])) for row in rows]


def metrics_of_versions(
    conn: Connection, versions: Collection[int], names: Sequence[str]
) -> dict[int, dict[str, float]]:
    """Return these metrics of the versions that have them, by version, without reading the others."""
    c = t.policies.c
    columns = [_json_value(c.metrics, name) for name in names]
    query = select(c.version, *columns).where(c.version.in_(list(versions)))
    metrics = {}
    for version, *values in conn.execute(query):
        pairs = zip(names, values, strict=True)
        metrics[int(version)] = {name: float(value) for name, value in pairs if value is not None}
    return metrics


def _json_value(column: ColumnElement[Any], key: str) -> ColumnElement[Any]:
    """Return the value of a key in a column of JSON bytes; NULL if the column cannot be read."""
    content = cast(column, Text)
    value = func.json_extract(content, f'$."{key}"')
    return case((func.json_valid(content) == 1, value), else_=None)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreCount:
    """Scores of +1 or -1 of the replies of one version."""

    version: int
    is_explicit: bool
    """The person's own, or else a judge's."""
    good: int
    scored: int


def newest_scores(conn: Connection, turns: int) -> list[ScoreCount]:
    """Return the scores of the newest `turns` turns by version and source, oldest version first.

    Of each source the newest score of a turn counts; signals from behaviour do not count.
    """
    v = t.verdicts.c
    last = select(func.coalesce(func.max(t.turns.c.seq), 0)).scalar_subquery()
    query = (
        select(v.turn, v.explicit, v.score, v.judge, t.exchanges.c.version)
        .select_from(t.turns)
        .join(t.exchanges, t.exchanges.c.seq == t.turns.c.seq)
        .join(t.verdicts, v.turn == t.turns.c.id)
        .where(
            t.turns.c.seq > last - turns,
            t.equals_literal(t.turns.c.kind, Kind.MAIN),
            t.exchanges.c.origin.is_(None),
            t.exchanges.c.episode.is_(None),
            v.score.is_not(None),
        )
        .order_by(v.revision.desc(), v.at.desc())
    )
    newest: dict[tuple[str, int], tuple[int, int]] = {}
    for row in conn.execute(query):
        if not is_signal(row.judge):
            newest.setdefault((row.turn, row.explicit), (row.version, row.score))
    counts: dict[tuple[int, int], list[int]] = {}
    for (_, explicit), (version, score) in newest.items():
        if score:
            count = counts.setdefault((version, explicit), [0, 0])
            count[0] += score > 0
            count[1] += 1
    return [
        ScoreCount(version=version, is_explicit=bool(explicit), good=good, scored=scored)
        for (version, explicit), (good, scored) in sorted(counts.items())
    ]


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
    """Return (score by the judge, score by the person) of the turns that count in the common estimate, by judge.

    The newest turns come first (`trust.score_pairs`).
    """
    return {judge: as_scores(common_pairs(pairs)) for judge, pairs in read_pairs(conn).items()}


def judge_user_agreement(conn: Connection) -> tuple[int, int]:
    """Return `count_agreement` of `judge_user_pairs`."""
    return count_agreement(judge_user_pairs(conn))


def count_agreement(scores_by_judge: Mapping[str, Sequence[tuple[int, int]]]) -> tuple[int, int]:
    """Return (pairs with equal scores, all pairs), without those of signals."""
    pairs = [
        pair
        for judge, of_judge in scores_by_judge.items()
        if not is_signal(judge)
        for pair in of_judge
    ]
    return sum(judge == user for judge, user in pairs), len(pairs)
