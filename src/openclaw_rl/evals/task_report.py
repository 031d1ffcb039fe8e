"""Report of an evaluation, as text for a terminal and as JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from openclaw_rl.evals.personalisation.tasks import KIND_PREFIX
from openclaw_rl.evals.reply_properties import PROPERTIES
from openclaw_rl.evals.tables import markdown_table
from openclaw_rl.evals.task_scores import PROPERTIES_SCORER, EvalResult, TaskScore

# Columns.
_WIDTH = 80


def report_text(result: EvalResult) -> str:
    """Return a Markdown table with a row per kind of task, how each kind was scored, and the measured properties."""
    rows = [(kind, *_counts_row(result.of_kind(kind))) for kind in result.kinds]
    parts = [markdown_table(("tasks", "solved", "of", "share"), rows)]
    parts += [
        _paragraph(f"{', '.join(kinds)}: {_describe_scorer(name)}")
        for name, kinds in _kinds_by_scorer(result)
    ]
    parts += [_property_list(result), *(_paragraph(note) for note in _notes(result))]
    return "\n\n".join(part for part in parts if part)


def report_json(result: EvalResult) -> dict[str, Any]:
    """Return the scores, the definition of each measured property, and every task with its reply and score."""
    return {
        "model": result.model,
        "scores": {kind: _counts(result.of_kind(kind)) for kind in result.kinds},
        "properties": {
            name: {
                "definition": PROPERTIES[name].definition,
                "source": PROPERTIES[name].source,
                "held": satisfied,
                "of": of,
            }
            for name, (satisfied, of) in _property_counts(result).items()
        },
        "tasks": [asdict(one) for one in result.tasks],
    }


def _counts(scores: Sequence[TaskScore]) -> dict[str, Any]:
    return {
        "solved": sum(one.solved is True for one in scores),
        "of": sum(one.solved is not None for one in scores),
        "undecided": sum(one.solved is None and one.error is None for one in scores),
        "errors": sum(one.error is not None for one in scores),
        "scored_by": scores[0].scored_by,
    }


def _counts_row(scores: Sequence[TaskScore]) -> tuple[int, int, str]:
    counts = _counts(scores)
    solved = counts["solved"]
    of = counts["of"]
    return solved, of, f"{solved / of:.2f}" if of else "-"


def _kinds_by_scorer(result: EvalResult) -> list[tuple[str, list[str]]]:
    by_scorer: dict[str, list[str]] = {}
    for kind in result.kinds:
        by_scorer.setdefault(result.of_kind(kind)[0].scored_by, []).append(kind)
    return list(by_scorer.items())


def _describe_scorer(name: str) -> str:
    if name == PROPERTIES_SCORER:
        return "scored by measurable properties. A task is solved if its reply has all of its properties."
    if name.startswith(KIND_PREFIX):
        return f"scored by a simulated person ({name}). A task is solved if the reply is correct and to the taste."
    return f"scored by the judge {name} (model and version of its prompt). A task is solved if the verdict is +1."


def _property_counts(result: EvalResult) -> dict[str, tuple[int, int]]:
    """Return for each property the number of replies that have it, and of those that should."""
    counts: dict[str, tuple[int, int]] = {}
    for score in result.tasks:
        for name, violation in score.violations.items():
            satisfied, of = counts.get(name, (0, 0))
            counts[name] = satisfied + (violation is None), of + 1
    return {name: counts[name] for name in PROPERTIES if name in counts}


def _property_list(result: EvalResult) -> str:
    lines = [
        textwrap.fill(
            f"{name:<17}{f'{satisfied}/{of}':<7}{PROPERTIES[name].definition}",
            _WIDTH,
            subsequent_indent=" " * 24,
        )
        for name, (satisfied, of) in _property_counts(result).items()
    ]
    return (
        "\n".join(["Properties, and how many of the replies that should have them do:", *lines])
        if lines
        else ""
    )


def _notes(result: EvalResult) -> list[str]:
    cut = sum(one.finish_reason == "length" for one in result.tasks)
    undecided = sum(one.solved is None and one.error is None for one in result.tasks)
    notes = [f"{undecided} without a score: the judge is undecided."] if undecided else []
    if cut:
        notes.append(
            f"{cut} replies were cut off at their token limit. Reasoning models need a higher --max-tokens."
        )
    return notes


def _paragraph(text: str) -> str:
    return textwrap.fill(text, _WIDTH, break_long_words=False, break_on_hyphens=False)
