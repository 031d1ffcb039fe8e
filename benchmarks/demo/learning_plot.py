"""Plot of what the starter policy learned from a simulated user."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.demo.user_driver import ConversationLog, TasteEvaluation

# Replies in the moving average.
AVERAGE_WINDOW = 25


def moving_average(values: Sequence[bool], window: int = AVERAGE_WINDOW) -> list[float]:
    """Return [n] the mean of each value and up to `window - 1` values before it."""
    out = []
    for end in range(1, len(values) + 1):
        part = values[max(0, end - window) : end]
        out.append(sum(part) / len(part))
    return out


def plot_learning(
    path: Path,
    taste: str,
    talk: ConversationLog,
    before: TasteEvaluation,
    after: TasteEvaluation,
    break_after: int | None = None,
) -> None:
    """Write a PNG: satisfaction by turn and version, and on held-out questions before and after training.

    `break_after`: number of reactions before the break in which the trainer practised.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    liked = [u.satisfied for _, u in talk.reactions]
    right = [u.correct for _, u in talk.reactions]
    versions = [s.version for s, _ in talk.reactions]
    figure, (left, side) = plt.subplots(
        1, 2, figsize=(11, 4.2), width_ratios=(3, 1), layout="constrained"
    )
    turns = range(1, len(liked) + 1)
    left.plot(turns, moving_average(right), color="#9aa5b1", linewidth=1.5, label="correct answers")
    left.plot(
        turns,
        moving_average(liked),
        color="#d1495b",
        linewidth=2.5,
        label=f"correct and in the user's taste ({taste})",
    )
    swaps = [i for i in range(1, len(versions)) if versions[i] != versions[i - 1]]
    for number, at in enumerate(swaps):
        left.axvline(
            at + 1,
            color="#2e4057",
            alpha=0.18,
            linewidth=1,
            label=None if number else "new weights in use",
        )
    if break_after is not None:
        left.axvline(
            break_after + 0.5,
            color="#66a182",
            linewidth=2,
            linestyle="--",
            label="a break: practice",
        )
    left.set(xlabel="replies so far", ylabel=f"share of the last {AVERAGE_WINDOW}", ylim=(0, 1.03))
    refused = f"{len(talk.failures)} rejected or failed" if talk.failures else "none rejected"
    left.set_title(
        f"{len(swaps)} weight swaps while {len(talk.replies)} replies were served, {refused}",
        fontsize=11,
    )
    left.legend(loc="lower right", frameon=False)
    names = ("taste", "correct")
    width = 0.36
    for offset, (label, measured, colour) in enumerate(
        (("before", before, "#c8d0d9"), ("after", after, "#d1495b"))
    ):
        heights = (measured.satisfaction, measured.correctness)
        bars = side.bar(
            [i + offset * width for i in range(2)], heights, width * 0.92, color=colour, label=label
        )
        side.bar_label(bars, [f"{h:.0%}" for h in heights], fontsize=9)
    side.set_xticks([i + width / 2 for i in range(2)], names)
    side.set(ylim=(0, 1.12), yticks=[])
    side.set_title(f"{len(before.satisfied)} held-out questions", fontsize=11)
    side.legend(loc="lower center", frameon=False, ncols=2, bbox_to_anchor=(0.5, -0.24))
    for axis in (left, side):
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130)
    plt.close(figure)
