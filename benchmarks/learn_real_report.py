"""Runs of `make learn-real`: reading them, their table, and the picture of their curves."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.demo.everyday_person import MAX_TOKENS, TEMPERATURE
from benchmarks.demo.everyday_tastes import EVERYDAY_TASTES

from openclaw_rl.common.statistics.rater_agreement import wilson_interval
from openclaw_rl.evals.tables import markdown_table

SHOWN_SAMPLES = 3
_COLOURS = ("#d1495b", "#2e4057", "#66a182", "#edae49", "#00798c")


@dataclass(frozen=True, slots=True, kw_only=True)
class RealPoint:
    """One version on held-out questions under the plain prompt. `words`: mean of a reply."""

    version: int
    reactions: int
    satisfied: int
    questions: int
    words: float
    distinct: int

    @property
    def share(self) -> float:
        return self.satisfied / self.questions


@dataclass(frozen=True, slots=True, kw_only=True)
class RealRun:
    """One person. `liked`: by reaction; `with_lesson`: by reply after the first lesson.

    `closed`: right answers of 100, at the first version and the last. `logprobs`: mean log-probability per token of the
    base's own replies under both, in nats.
    """

    name: str
    taste: str
    seed: int
    model: str
    reactions: int
    liked: Sequence[bool]
    first_lesson: int | None
    with_lesson: Sequence[bool]
    points: Sequence[RealPoint]
    closed: tuple[int, int]
    logprobs: tuple[float, float]
    rejected: Sequence[str]
    lessons: Sequence[str]
    samples: Sequence[str]
    seconds: float

    @staticmethod
    def read(line: str) -> RealRun:
        """Read one line of the file of runs."""
        row: dict[str, Any] = json.loads(line)
        points = [RealPoint(**point) for point in row["points"]]
        return RealRun(
            **row
            | {"points": points, "closed": tuple(row["closed"]), "logprobs": tuple(row["logprobs"])}
        )


def read_runs(file: Path) -> list[RealRun]:
    """Return the runs of a file; none if it is missing."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return [RealRun.read(line) for line in lines]


def summary_line(run: RealRun) -> str:
    """Return one line about a run."""
    first = run.points[0]
    last = run.points[-1]
    return (
        f"{run.name}: satisfied {first.share:.0%} -> {last.share:.0%} after {run.reactions} reactions "
        f"({last.version} versions, {len(run.rejected)} rejected), closed {run.closed[0]} -> {run.closed[1]}, "
        f"{run.seconds / 60:.0f} minutes of processor time"
    )


def write_page(page: Path, runs: Sequence[RealRun], *, command: str) -> None:
    """Write the table of all runs with the picture of their curves beside it."""
    picture = page.parent / "images" / "real_model.png"
    plot_curves(picture, runs)
    rows = [
        _row(run)
        for run in sorted(runs, key=lambda run: (list(EVERYDAY_TASTES).index(run.taste), run.seed))
    ]
    header = (
        "taste", "seed", "reactions", "versions", "satisfied before", "satisfied after", "words",
        "first lesson after", "replies liked before a lesson", "with one", "closed questions right",
        "log-probability of the base's replies", "rejected", "processor minutes",
    )  # fmt: skip
    definitions = "\n".join(
        f"- `{taste.name}`: {taste.definition}" for taste in EVERYDAY_TASTES.values()
    )
    samples = "\n".join(_sample_lines(run) for run in runs)
    page.write_text(
        f"""# What a real model learned

`make learn-real` writes this page (arguments: `{command}`). SmolLM2-135M-Instruct, 4-bit weights that were converted to
bfloat16, computed in float32 on a processor. A simulated person asks everyday questions, gets replies of at most
{MAX_TOKENS} tokens at temperature {TEMPERATURE}, and says in plain English what they think of them. The shipped rules
judge; all settings are the defaults, but for the limit on practice by time. Satisfied: the share of replies to
{runs[0].points[0].questions} questions that were never asked which are to the person's taste, **under the plain
prompt: in the weights alone**, with the 95% Wilson interval. The tastes, each decided by a program:

{definitions}

![satisfaction by policy version](images/real_model.png)

{markdown_table(header, rows)}

"with one" are the replies of the conversation after the first lesson: with the lesson in the prompt or, later, in the
weights.

## Replies of the last version

{samples}
""",
        encoding="utf-8",
    )


def _row(run: RealRun) -> Sequence[object]:
    first = run.points[0]
    last = run.points[-1]
    before = run.liked[: run.first_lesson]
    return (
        run.taste,
        run.seed,
        run.reactions,
        last.version,
        _share(first.satisfied, first.questions),
        _share(last.satisfied, last.questions),
        f"{first.words:.0f} → {last.words:.0f}",
        "none" if run.first_lesson is None else run.first_lesson,
        f"{sum(before)} of {len(before)}",
        f"{sum(run.with_lesson)} of {len(run.with_lesson)}",
        f"{run.closed[0]} → {run.closed[1]}",
        f"{run.logprobs[0]:.2f} → {run.logprobs[1]:.2f}",
        len(run.rejected),
        f"{run.seconds / 60:.0f}",
    )


def _share(count: int, of: int) -> str:
    low, high = wilson_interval(count, of)
    return f"{count / of:.0%} ({low:.0%} to {high:.0%})"


def _sample_lines(run: RealRun) -> str:
    quoted = "\n".join(f"  - {text!r}" for text in run.samples[:SHOWN_SAMPLES])
    return f"- {run.taste}, seed {run.seed}; lessons: {', '.join(run.lessons) or 'none'}\n{quoted}"


def plot_curves(path: Path, runs: Sequence[RealRun]) -> None:
    """Write a PNG: satisfaction on held-out questions by version, one line a person."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axis = plt.subplots(figsize=(9, 4.2), layout="constrained")
    labelled: set[str] = set()
    for run in runs:
        colour = _COLOURS[list(EVERYDAY_TASTES).index(run.taste)]
        label = (
            None
            if run.taste in labelled
            else f"{run.taste}: {EVERYDAY_TASTES[run.taste].definition}"
        )
        labelled.add(run.taste)
        versions = [point.version for point in run.points]
        shares = [point.share for point in run.points]
        axis.plot(
            versions, shares, color=colour, marker="o", markersize=3, linewidth=2, label=label
        )
    axis.set(
        xlabel="policy version",
        ylabel="satisfied, plain prompt",
        ylim=(0, 1.03),
        title="SmolLM2-135M-Instruct on questions that were never asked",
    )
    axis.legend(loc="upper left", frameon=False, fontsize=9)
    axis.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)
