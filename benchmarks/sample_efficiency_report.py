"""Report of `make learn-rate`: a table and a plot."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openclaw_rl.evals.plots import markdown_table

AIM = 0.9
SOON = 30  # reactions after which a person should see the difference


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A version when it came into use. `judged`: reactions so far that the judge gave a score."""

    version: int
    reactions: int
    judged: int
    satisfied: float
    correct: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One person, one setting. `reactions`: all that were given; `agreed`: scores that were what the person thought."""

    name: str
    method: str
    batch: int
    replay: bool
    taste: str
    seed: int
    points: tuple[Point, ...]
    reactions: int
    judged: int
    agreed: int
    seconds: float

    @staticmethod
    def read(line: str) -> Run:
        """From a line of JSON."""
        values: dict[str, Any] = json.loads(line)
        return Run(**values | {"points": tuple(Point(**p) for p in values["points"])})

    def after(self, reactions: int) -> Point:
        """The version in use after so many reactions."""
        return [p for p in self.points if p.reactions <= reactions][-1]

    @property
    def reached(self) -> Point | None:
        """The first version that is as satisfying as is aimed for."""
        return next((p for p in self.points if p.satisfied >= AIM), None)

    @property
    def fall(self) -> float:
        """The most that correctness was below where it began."""
        return self.points[0].correct - min(p.correct for p in self.points)


Cell = tuple[str, int, bool]
"""Method, batch, replay."""


def cells(runs: Sequence[Run]) -> dict[Cell, list[Run]]:
    """The runs of each cell, in the order in which cells appear."""
    found: dict[Cell, list[Run]] = {}
    for run in runs:
        found.setdefault((run.method, run.batch, run.replay), []).append(run)
    return found


def mean_curve(runs: Sequence[Run], reactions: int) -> list[float]:
    """[reactions + 1] mean satisfaction of the versions in use after 0, 1, ... reactions."""
    return [statistics.fmean(run.after(n).satisfied for run in runs) for n in range(reactions + 1)]


def line(run: Run) -> str:
    """One run for a person who waits."""
    got = run.reached
    when = f"{got.reactions} reactions ({got.judged} judged)" if got else f"not in {run.reactions}"
    return (
        f"{run.name}: {AIM:g} after {when}; after {SOON}: {run.after(SOON).satisfied:.2f}; at the end "
        f"{run.points[-1].satisfied:.2f}, correct {run.points[0].correct:.2f} -> {run.points[-1].correct:.2f} "
        f"(fell by {run.fall:.3f} at most); {len(run.points) - 1} versions, {run.seconds:.0f} s"
    )


def _until(runs: Sequence[Run], what: str) -> str:
    """Median, and the range; one that never came there counts as later than all others."""
    values = sorted(getattr(r.reached, what) if r.reached else float("inf") for r in runs)
    shown = [f"{v:.0f}" if v < float("inf") else f"> {max(getattr(r, what) for r in runs)}" for v in values]
    return f"{shown[len(shown) // 2]} ({shown[0]} to {shown[-1]})"


def _row(cell: Cell, runs: Sequence[Run]) -> tuple[object, ...]:
    method, batch, replay = cell
    return (
        method,
        batch,
        "yes" if replay else "no",
        _until(runs, "reactions"),
        _until(runs, "judged"),
        f"{statistics.fmean(r.after(SOON).satisfied for r in runs):.2f}",
        f"{statistics.fmean(r.points[-1].satisfied for r in runs):.2f}",
        f"{max(r.fall for r in runs):.3f}",
        f"{statistics.fmean(len(r.points) - 1 for r in runs):.0f}",
    )


def table(runs: Sequence[Run]) -> str:
    """A row for each cell."""
    head = (
        "method",
        "batch",
        "replay",
        f"reactions to {AIM:g}",
        "of these judged",
        f"satisfied after {SOON}",
        "at the end",
        "correctness fell at most",
        "versions",
    )
    return markdown_table(head, [_row(cell, of) for cell, of in cells(runs).items()])


def plot(path: Path, runs: Sequence[Run]) -> None:
    """Satisfaction against reactions: one panel a method, one line a setting."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    methods = list(dict.fromkeys(run.method for run in runs))
    batches = sorted({run.batch for run in runs})
    colours = dict(zip(batches, ("#d1495b", "#2e4057", "#66a182", "#edae49"), strict=False))
    figure, axes = plt.subplots(1, len(methods), figsize=(5.5 * len(methods), 4.2), layout="constrained", squeeze=False)
    for axis, method in zip(axes[0], methods, strict=True):
        for (of, batch, replay), group in cells(runs).items():
            if of == method:
                curve = mean_curve(group, min(run.reactions for run in group))
                label = f"batch {batch}" + (", replay" if replay else "")
                style = "--" if replay else "-"
                axis.step(range(len(curve)), curve, where="post", color=colours[batch], linestyle=style, label=label)
        axis.axhline(AIM, color="#9aa5b1", linewidth=0.8)
        axis.axvline(SOON, color="#9aa5b1", linewidth=0.8)
        axis.set(title=method, xlabel="reactions of the person", ylabel="satisfied on questions never asked")
        axis.set_ylim(0.4, 1.2)
        axis.set_yticks([0.4, 0.6, 0.8, 1.0])
        axis.legend(loc="upper left", frameon=False, ncols=2, fontsize=8, bbox_to_anchor=(0, 1.0))
        axis.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def write(doc: Path, runs: Sequence[Run], *, questions: int) -> None:
    """The document, and its picture in `images/` beside it."""
    plot(doc.parent / "images" / f"{doc.stem}.png", runs)
    people = len({(run.taste, run.seed) for run in runs})
    judged, given = sum(r.judged for r in runs), sum(r.reactions for r in runs)
    text = PREFACE.format(people=people, questions=questions, reactions=max(r.reactions for r in runs))
    agreed = sum(r.agreed for r in runs)
    facts = (
        f"- The rules gave a score to {judged} of {given} reactions ({judged / given:.0%}); {agreed} of those "
        f"({agreed / max(judged, 1):.0%}) were the person's true opinion.\n"
        f"- {sum(r.seconds for r in runs) / 60:.0f} minutes in total over all runs.\n"
    )
    picture = f"![satisfaction against reactions](images/{doc.stem}.png)\n"
    doc.write_text(f"{text}\n{table(runs)}\n\n{facts}\n{picture}", encoding="utf-8")


PREFACE = """# Sample efficiency: reactions until satisfied

Made by `make learn-rate` on the shipped starter policy. The question is how many reactions of one person the policy
needs to match the person's taste. People are simulated; the number of people per row is {people}. Each has a taste
and a fresh system, and reacts in text only, about {reactions} times. More than half of the reactions use phrases that
the rules do not match, and a tenth are wrong on purpose. The column "batch" is the number of new judged turns per
step. With replay, the step also takes as many turns that were trained on once before (`train.batch.max_uses` 2).

All stages run one after the other in one process (`benchmarks/in_process.py`). Before each message, every earlier
turn is judged and trained on, and the new version is loaded, as for a person who takes minutes to answer. The result
does not depend on the speed of the machine, and the same seed gives the same figures.

Each version is measured when it becomes the head: the share of replies that are correct and match the person's taste,
at temperature 1, on {questions} questions that were never asked (the same questions and seeds for all versions).
"Reactions to 0.9" is the number of reactions
that a person had given when the first version with 0.9 or more became the head: the median over people, and the range.
"Of these judged" is the number of these reactions that the rules scored; only these turns can be trained on.
"""
