"""Report of `make learn-rate`: a table and a plot for each part."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.faults.report import replace_tables

from openclaw_rl.evals.tables import markdown_table

AIM = 0.9
COLOURS = ("#d1495b", "#2e4057", "#66a182", "#edae49")
# Reactions after which a person should see the difference.
SOON = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A version when it came into use. `judged`: reactions so far that the judge gave a score."""

    version: int
    reactions: int
    judged: int
    satisfied: float
    correct: float
    distinct: int = 0  # replies that differ
    entropy: float | None = None  # nats per token, of the batch that made the version


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One person, one setting. `reactions`: all that were given; `agreed`: scores that were what the person thought."""

    name: str
    method: str
    batch: int
    replay: bool
    practice: bool = False
    lessons: bool = False
    taste: str
    then: str | None = None  # the taste from reaction `changed` on
    changed: int | None = None
    # Whether the reply to the first wish satisfied; None: there was none.
    next_reply: bool | None = None
    obeys: tuple[
        float, ...
    ] = ()  # share of replies that do what the prompt says: of the first version and of the last
    seed: int
    points: tuple[Point, ...]
    reactions: int
    judged: int
    agreed: int
    seconds: float
    asked: int = 0  # reactions that were asked for; the last conversation may add a few
    questions: int = 0  # on which each version was measured
    command: str = ""

    @staticmethod
    def read(line: str) -> Run:
        """From a line of JSON."""
        values: dict[str, Any] = json.loads(line)
        points = tuple(Point(**p) for p in values["points"])
        obeys = tuple(values.get("obeys") or ())
        return Run(**values | {"points": points, "obeys": obeys})

    def after(self, reactions: int) -> Point:
        """The version in use after so many reactions."""
        return [p for p in self.points if p.reactions <= reactions][-1]

    @property
    def reached(self) -> Point | None:
        """The first version that is as satisfying as is aimed for, before a change of taste."""
        last = self.reactions if self.changed is None else self.changed
        return next((p for p in self.points if p.satisfied >= AIM and p.reactions <= last), None)

    @property
    def returned(self) -> int | None:
        """Reactions after the change of taste until a version was as satisfying again."""
        if self.changed is None:
            return None
        later = [p for p in self.points if p.reactions > self.changed and p.satisfied >= AIM]
        return later[0].reactions - self.changed if later else None

    @property
    def fall(self) -> float:
        """The most that correctness was below where it began."""
        return self.points[0].correct - min(p.correct for p in self.points)

    @property
    def lowest(self) -> float | None:
        """The lowest satisfaction of a version after the aim was reached; None if it was not."""
        return (
            min(p.satisfied for p in self.points if p.version >= self.reached.version)
            if self.reached
            else None
        )


Cell = tuple[str, int, bool, bool, bool]
"""Method, batch, replay, practice, lessons in the prompt."""


def cells(runs: Sequence[Run]) -> dict[Cell, list[Run]]:
    """The runs of each cell, in the order in which cells appear."""
    found: dict[Cell, list[Run]] = {}
    for run in runs:
        found.setdefault((run.method, run.batch, run.replay, run.practice, run.lessons), []).append(
            run
        )
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
    shown = [
        f"{v:.0f}" if v < float("inf") else f"> {max(getattr(r, what) for r in runs)}"
        for v in values
    ]
    return f"{shown[len(shown) // 2]} ({shown[0]} to {shown[-1]})"


def _row(cell: Cell, runs: Sequence[Run]) -> tuple[object, ...]:
    method, batch, *used = cell
    return (
        method,
        batch,
        *("yes" if one else "no" for one in used),
        _until(runs, "reactions"),
        _until(runs, "judged"),
        f"{statistics.fmean(r.after(SOON).satisfied for r in runs):.2f}",
        f"{statistics.fmean(r.points[-1].satisfied for r in runs):.2f}",
        _lowest(runs),
        f"{max(r.fall for r in runs):.3f}",
        f"{statistics.fmean(r.points[0].correct - r.points[-1].correct for r in runs):.3f}",
        _share([r.next_reply for r in runs]),
        _obeys(runs),
        f"{statistics.fmean(r.points[-1].distinct for r in runs):.0f}",
        _entropy(runs),
        _after_change(runs),
        f"{statistics.fmean(len(r.points) - 1 for r in runs):.0f}",
    )


def _share(values: Sequence[bool | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{sum(known)} of {len(known)}" if known else "-"


def _lowest(runs: Sequence[Run]) -> str:
    known = [run.lowest for run in runs if run.changed is None and run.lowest is not None]
    return f"{min(known):.2f}" if known else "-"


def _obeys(runs: Sequence[Run]) -> str:
    """The mean before and at the end, and the lowest at the end."""
    known = [run.obeys for run in runs if run.obeys]
    if not known:
        return "-"
    before, after = (statistics.fmean(shares) for shares in zip(*known, strict=True))
    return f"{before:.3f} to {after:.3f} ({min(last for _, last in known):.3f})"


def _entropy(runs: Sequence[Run]) -> str:
    known = [entropy for run in runs if (entropy := run.points[-1].entropy) is not None]
    return f"{statistics.fmean(known):.2f}" if known else "-"


def _after_change(runs: Sequence[Run]) -> str:
    """Median, and the range, as in `_until`."""
    changed = [run for run in runs if run.changed is not None]
    if not changed:
        return "-"
    values = sorted(float("inf") if run.returned is None else run.returned for run in changed)
    most = max(run.reactions - (run.changed or 0) for run in changed)
    shown = [f"{value:.0f}" if value < float("inf") else f"> {most}" for value in values]
    return f"{shown[len(shown) // 2]} ({shown[0]} to {shown[-1]})"


def table(runs: Sequence[Run]) -> str:
    """A row for each cell."""
    head = (
        "method",
        "batch",
        "replay",
        "practice",
        "lessons in the prompt",
        f"reactions to {AIM:g}",
        "of these judged",
        f"satisfied after {SOON}",
        "at the end",
        f"lowest after {AIM:g}",
        "correctness fell at most",
        "on average, at the end",
        "next reply satisfied",
        "does what the prompt says",
        "distinct replies",
        "entropy",
        f"reactions to {AIM:g} after a change",
        "versions",
    )
    return markdown_table(head, [_row(cell, of) for cell, of in cells(runs).items()])


def plot(path: Path, runs: Sequence[Run]) -> None:
    """Satisfaction against reactions: one panel a method, one line a setting."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    methods = list(dict.fromkeys(run.method for run in runs))
    figure, axes = plt.subplots(
        1, len(methods), figsize=(5.5 * len(methods), 4.2), layout="constrained", squeeze=False
    )
    for axis, method in zip(axes[0], methods, strict=True):
        for number, ((of, batch, *used), group) in enumerate(cells(runs).items()):
            if of == method:
                curve = mean_curve(group, min(run.reactions for run in group))
                names = [
                    name
                    for name, one in zip(("replay", "practice", "lessons"), used, strict=True)
                    if one
                ]
                label = ", ".join([f"batch {batch}", *names])
                colour = COLOURS[number % len(COLOURS)]
                axis.step(range(len(curve)), curve, where="post", color=colour, label=label)
        axis.axhline(AIM, color="#9aa5b1", linewidth=0.8)
        axis.axvline(SOON, color="#9aa5b1", linewidth=0.8)
        axis.set(
            title=method,
            xlabel="reactions of the person",
            ylabel="satisfied on questions never asked",
        )
        axis.set_ylim(0.4, 1.2)
        axis.set_yticks([0.4, 0.6, 0.8, 1.0])
        axis.legend(loc="upper left", frameon=False, ncols=2, fontsize=8, bbox_to_anchor=(0, 1.0))
        axis.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def write(doc: Path, parts: Mapping[str, Sequence[Run]]) -> None:
    """Replace the section of each part in the document, and its picture in `images/` beside it."""
    for part, runs in parts.items():
        picture = doc.parent / "images" / f"{doc.stem}_{part}.png"
        plot(picture, runs)
        image = f"![satisfaction against reactions](images/{picture.name})"
        replace_tables(doc, part, f"{_facts(runs)}\n\n{table(runs)}\n\n{image}")


def _facts(runs: Sequence[Run]) -> str:
    """What was run, and how well the rules judged."""
    made = " and ".join(f"`{command}`" for command in dict.fromkeys(run.command for run in runs))
    people = len({(run.taste, run.then, run.seed) for run in runs})
    questions = ", ".join(map(str, sorted({run.questions for run in runs})))
    judged, given, agreed = (
        sum(getattr(r, name) for r in runs) for name in ("judged", "reactions", "agreed")
    )
    return (
        f"Made by {made}: {people} people in each row, about {max(r.reactions for r in runs)} reactions of each, "
        f"{questions} questions. The rules gave a score to {judged} of {given} reactions ({judged / given:.0%}); "
        f"{agreed} of those ({agreed / max(judged, 1):.0%}) were the person's true opinion. "
        f"{sum(r.seconds for r in runs) / 60:.0f} minutes in total over all runs."
    )
