"""Report of `make learn-days`: tables of the days and a picture."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.faults.report import replace_tables
from benchmarks.ideal_assistant import IdealMonth

from openclaw_rl.evals.styles import Taste
from openclaw_rl.evals.tables import markdown_table

SECTION = "thirty-days"
LAST_DAYS = 5
AIM = 0.85
_COLOURS = {"without": "#2e4057", "with": "#d1495b"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Day:
    """A day. `satisfied`: share of its turns; `untrained`: what version 0 reaches on all questions of the subject."""

    number: int  # from 1
    subject: str
    drift: float  # share of the sessions in which the person wants the second taste
    satisfied: float
    untrained: float
    version: int  # that answers at the end
    rolled_back: int  # versions so far
    rejected: int  # candidates so far
    minutes: float = 0.0  # since the run began


@dataclass(frozen=True, slots=True, kw_only=True)
class Month:
    """The days of one run; `arm`: "with" or "without" the gate."""

    arm: str
    seed: int
    tastes: tuple[str, str]
    days: tuple[Day, ...]

    @property
    def drift(self) -> str:
        return " to ".join(self.tastes)

    @property
    def below(self) -> list[Day]:
        """The days that satisfied less than the untrained policy."""
        return [day for day in self.days if day.satisfied < day.untrained]

    @property
    def low(self) -> list[Day]:
        """Those of the last days that are below the aim."""
        return [day for day in self.days[-LAST_DAYS:] if day.satisfied < AIM]


def summary_table(months: Sequence[Month]) -> str:
    """Return a row for each run."""
    head = (
        "drift",
        "seed",
        "gate",
        "days below untrained",
        "mean of all days",
        f"worst of the last {LAST_DAYS}",
    )
    rows = [
        (
            month.drift,
            month.seed,
            month.arm,
            f"{len(month.below)} ({', '.join(str(day.number) for day in month.below)})"
            if month.below
            else "0",
            f"{statistics.fmean(day.satisfied for day in month.days):.2f}",
            f"{min(day.satisfied for day in month.days[-LAST_DAYS:]):.2f}",
            month.days[-1].rejected,
            month.days[-1].rolled_back,
        )
        for month in months
    ]
    return markdown_table((*head, "rejected", "rolled back"), rows)


def ideal_table(ideal: Mapping[tuple[Taste, Taste], Sequence[IdealMonth]]) -> str:
    """Return a row for each drift: what an ideal assistant would have reached."""
    head = (
        "drift",
        "months",
        "months with a day below untrained",
        "days below, mean",
        "mean of all days",
    )
    rows = [
        (
            " to ".join(drift),
            len(months),
            f"{statistics.fmean(month.below > 0 for month in months):.0%}",
            f"{statistics.fmean(month.below for month in months):.2f}",
            f"{statistics.fmean(month.satisfied for month in months):.2f}",
            f"{min(month.worst_of_last for month in months):.2f}",
        )
        for drift, months in ideal.items()
    ]
    return markdown_table((*head, f"worst of the last {LAST_DAYS}"), rows)


def conclusion(months: Sequence[Month]) -> str:
    """Return what the aim says about the runs of each arm."""
    lines = []
    for arm in dict.fromkeys(month.arm for month in months):
        own = [month for month in months if month.arm == arm]
        below = sum(len(m.below) for m in own)
        low = sum(len(m.low) for m in own)
        last = sum(len(m.days[-LAST_DAYS:]) for m in own)
        lines.append(
            f"- {arm.capitalize()} the gate: {below} of {sum(len(m.days) for m in own)} days are below the untrained "
            f"policy; {low} of the last {last} days are below {AIM}."
        )
    return "\n".join(lines)


def day_table(pair: Sequence[Month]) -> str:
    """Return the days of one seed and drift, with and without the gate. A day below the untrained policy is bold.

    An arm that was not measured has dashes.
    """
    header = (
        "day",
        "subject",
        "second taste",
        "untrained",
        "with the gate",
        "rejected",
        "rolled back",
        "without",
    )
    rows = []
    by_arm = {month.arm: month.days for month in pair}
    for place, day in enumerate(pair[0].days):
        gated = (
            (_share(one), one.rejected, one.rolled_back)
            if (one := _day(by_arm, "with", place))
            else ("-",) * 3
        )
        plain = _share(one) if (one := _day(by_arm, "without", place)) else "-"
        subject = day.subject.replace("_", " ")
        rows.append(
            (day.number, subject, f"{day.drift:.0%}", f"{day.untrained:.2f}", *gated, plain)
        )
    return markdown_table(header, rows)


def _day(by_arm: Mapping[str, Sequence[Day]], arm: str, place: int) -> Day | None:
    return by_arm[arm][place] if arm in by_arm else None


def _share(day: Day) -> str:
    return f"**{day.satisfied:.2f}**" if day.satisfied < day.untrained else f"{day.satisfied:.2f}"


def plot_months(path: Path, months: Sequence[Month]) -> None:
    """Write a PNG with the satisfaction of each day: a panel for each drift, a thin line for each seed."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    drifts = list(dict.fromkeys(month.drift for month in months))
    figure, axes = plt.subplots(
        len(drifts), figsize=(9, 3.4 * len(drifts)), layout="constrained", squeeze=False
    )
    for axis, drift in zip(axes[:, 0], drifts, strict=True):
        _draw_panel(axis, drift, [month for month in months if month.drift == drift])
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _draw_panel(axis: Any, drift: str, months: Sequence[Month]) -> None:
    numbers = [day.number for day in months[0].days]
    untrained = [[day.untrained for day in month.days] for month in months]
    axis.plot(
        numbers,
        [statistics.fmean(day) for day in zip(*untrained, strict=True)],
        color="#9aa5b1",
        label="untrained",
    )
    for arm, colour in _COLOURS.items():
        lines = [[day.satisfied for day in month.days] for month in months if month.arm == arm]
        if not lines:
            continue
        for line in lines:
            axis.plot(numbers, line, color=colour, linewidth=0.6, alpha=0.5)
        mean = [statistics.fmean(day) for day in zip(*lines, strict=True)]
        axis.plot(numbers, mean, color=colour, linewidth=2.2, label=f"{arm} the gate")
    axis.set(xlabel="day", ylabel="share of satisfying turns", title=drift, ylim=(0, 1.03))
    axis.legend(frameon=False, loc="lower left")
    axis.spines[["top", "right"]].set_visible(False)


def write_page(
    page: Path,
    months: Sequence[Month],
    ideal: Mapping[tuple[Taste, Taste], Sequence[IdealMonth]],
    sets: Sequence[str] = (),
) -> None:
    """Replace the result on the page, and its picture in `images/` beside it.

    `ideal`: months of the ideal assistant, for comparison, by their drift; `sets`: further settings, as KEY=VALUE.
    """
    picture = page.parent / "images" / f"{page.stem}.png"
    plot_months(picture, months)
    minutes = sum(month.days[-1].minutes for month in months)
    seeds = sorted({month.seed for month in months})
    facts = (
        f"Runs of {len(months[0].days)} days: {len(months)}; seeds: {', '.join(map(str, seeds))}; "
        f"{minutes:.0f} minutes in all, one run at a time on one core."
    )
    if sets:
        facts += f" Settings: {', '.join(f'`{text}`' for text in sets)}."
    image = f"![Satisfaction by day](images/{picture.name})"
    pairs = dict.fromkeys((month.drift, month.seed) for month in months)
    tables = [
        f"### {drift}, seed {seed}\n\n"
        + day_table([m for m in months if (m.drift, m.seed) == (drift, seed)])
        for drift, seed in pairs
    ]
    bound = "An ideal assistant (see above), in months with other seeds:\n\n" + ideal_table(ideal)
    parts = [facts, conclusion(months), summary_table(months), bound, image, *tables]
    replace_tables(page, SECTION, "\n\n".join(parts))
