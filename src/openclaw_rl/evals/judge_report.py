"""Report of a judge's evaluation, as text for a terminal and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from openclaw_rl.common.statistics.rater_agreement import wilson_interval
from openclaw_rl.evals.judge_scores import JudgedReaction, JudgeEvaluation
from openclaw_rl.evals.tables import markdown_table

_NOTE = (
    "right: the expected score, or none where none is expected. abstained: no score where one is expected. wrong:\n"
    "another score, or one where none is expected; such a verdict trains the wrong thing. In brackets: 95% intervals\n"
    "(Wilson)."
)


def report_text(result: JudgeEvaluation) -> str:
    """Return Markdown tables by class and by language, and the shares of right and wrong verdicts."""
    tables = [
        _table("class", result.rows, _kind_of),
        _table("language", result.rows, _language_of),
    ]
    scored = [row for row in result.rows if row.score is not None]
    right = sum(row.outcome == "right" for row in scored)
    precision = (
        f"Of {len(scored)} verdicts of +1 or -1, {_share_text(right, len(scored))} are right."
    )
    return "\n\n".join([f"{result.judge} on {result.reactions}:", *tables, precision, _NOTE])


def report_json(result: JudgeEvaluation) -> dict[str, Any]:
    """Return the counts by class and by language, and every reaction with its verdict."""
    scored = [row for row in result.rows if row.score is not None]
    return {
        "judge": result.judge,
        "reactions": result.reactions,
        "all": _counts(result.rows),
        "classes": {kind: _counts(rows) for kind, rows in _groups(result.rows, _kind_of).items()},
        "languages": {
            name: _counts(rows) for name, rows in _groups(result.rows, _language_of).items()
        },
        "scored": {"right": sum(row.outcome == "right" for row in scored), "of": len(scored)},
        "rows": [_row_json(row) for row in result.rows],
    }


def _kind_of(row: JudgedReaction) -> str:
    return row.labelled.kind


def _language_of(row: JudgedReaction) -> str:
    return row.labelled.language


def _groups(
    rows: Sequence[JudgedReaction], key: Callable[[JudgedReaction], str]
) -> dict[str, list[JudgedReaction]]:
    groups: dict[str, list[JudgedReaction]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups


def _counts(rows: Sequence[JudgedReaction]) -> dict[str, Any]:
    """Return the number of each outcome, and the share of right ones with its interval, without the failed ones."""
    count = Counter[str](row.outcome for row in rows)
    of = len(rows) - count["failed"]
    names = ("right", "abstained", "wrong", "failed")
    return {
        "of": of,
        **{name: count[name] for name in names},
        "interval": list(wilson_interval(count["right"], of)),
    }


def _table(title: str, rows: Sequence[JudgedReaction], key: Callable[[JudgedReaction], str]) -> str:
    cells = [
        _table_row(name, members) for name, members in (*_groups(rows, key).items(), ("all", rows))
    ]
    return markdown_table(
        (title, "reactions", "right", "abstained", "wrong", "share right", "share wrong"), cells
    )


def _table_row(name: str, rows: Sequence[JudgedReaction]) -> tuple[object, ...]:
    counts = _counts(rows)
    of = counts["of"]
    right = counts["right"]
    wrong = counts["wrong"]
    return (
        name,
        of,
        right,
        counts["abstained"],
        wrong,
        _share_text(right, of),
        _share_text(wrong, of),
    )


def _share_text(count: int, of: int) -> str:
    low, high = wilson_interval(count, of)
    return f"{count / of:.2f} ({low:.2f}-{high:.2f})" if of else "-"


def _row_json(row: JudgedReaction) -> dict[str, Any]:
    labelled = row.labelled
    verdict = row.verdict
    return {
        "id": labelled.id,
        "language": labelled.language,
        "class": labelled.kind,
        "expected": labelled.expected,
        "score": None if verdict is None else verdict.score,
        "outcome": row.outcome,
        "reason": "" if verdict is None else verdict.reason,
        "hints": [] if verdict is None else list(verdict.hints),
        "votes": []
        if verdict is None
        else [{"score": v.score, "reason": v.reason, "error": v.error} for v in verdict.votes],
        "error": row.error,
        "reaction": dict(labelled.item.reaction.messages[0]),
    }
