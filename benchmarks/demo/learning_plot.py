"""Plot of what the starter policy learned from a simulated user."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.demo.lesson_timeline import LessonTimeline
from benchmarks.demo.user_driver import ConversationLog, TasteEvaluation

# Replies in the moving average.
AVERAGE_WINDOW = 25
_LIKED = "#1b7f5a"
_DISLIKED = "#c2413b"
_LESSON = "#6a4c93"


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
    lesson: LessonTimeline | None = None,
) -> None:
    """Write a PNG: each reply as a dot, where the lesson was, and held-out questions before and after training.

    `break_after`: number of reactions before the break in which the trainer practised.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, side) = plt.subplots(
        1, 2, figsize=(11, 4.6), width_ratios=(3, 1), layout="constrained"
    )
    _draw_replies(left, taste, talk)
    _draw_lesson(left, lesson)
    if break_after is not None:
        left.axvline(break_after + 0.5, color="#66a182", linestyle="--", label="a break: practice")
    left.legend(loc="upper left", frameon=False, ncols=2, fontsize=8, bbox_to_anchor=(0, -0.16))
    _draw_evaluation(side, before, after)
    for axis in (left, side):
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _draw_replies(axis: Any, taste: str, talk: ConversationLog) -> None:
    """Draw a dot for each reply, the share of those to the user's taste, and the swaps of the weights."""
    liked = [u.satisfied for _, u in talk.reactions]
    versions = [s.version for s, _ in talk.reactions]
    turns = range(1, len(liked) + 1)
    styles = ((True, 1.06, _LIKED, "reply to the taste"), (False, -0.06, _DISLIKED, "not to it"))
    for is_liked, height, colour, label in styles:
        places = [turn for turn, value in zip(turns, liked, strict=True) if value is is_liked]
        axis.scatter(places, [height] * len(places), s=14, color=colour, label=label, zorder=3)
    axis.plot(turns, moving_average(liked), color=_LIKED, linewidth=2, label="their share")
    right = [u.correct for _, u in talk.reactions]
    axis.plot(turns, moving_average(right), color="#9aa5b1", linewidth=1.2, label="right answers")
    swaps = [i for i in range(1, len(versions)) if versions[i] != versions[i - 1]]
    axis.vlines([at + 1 for at in swaps], 0, 1, color="#2e4057", alpha=0.15, linewidth=1)
    refused = f"{len(talk.failures)} rejected or failed" if talk.failures else "none rejected"
    axis.set_title(
        f"a user who likes {taste} answers: {len(swaps)} new versions while {len(talk.replies)} replies were served, "
        f"{refused}",
        fontsize=10,
    )
    axis.set(
        xlabel="replies so far",
        ylabel=f"share of the last {AVERAGE_WINDOW}",
        ylim=(-0.16, 1.28),
        yticks=(0, 0.25, 0.5, 0.75, 1),
    )


def _draw_lesson(axis: Any, lesson: LessonTimeline | None) -> None:
    """Draw which prompts had the lesson, and when the weights followed it."""
    if lesson is None or not lesson.in_prompt:
        return
    first = lesson.in_prompt[0] + 1
    last = lesson.in_prompt[-1] + 1
    places = [place + 1 for place in lesson.in_prompt]
    axis.scatter(places, [1.16] * len(places), s=10, marker="s", color=_LESSON, zorder=3)
    text = f'"{lesson.text}" is in the prompts from reply {first} to {last}'
    axis.annotate(text, (first, 1.2), fontsize=8, color=_LESSON)
    if lesson.learned_at is not None:
        learned = lesson.learned_at + 1
        axis.axvline(learned, color=_LESSON, linewidth=2, label=f"in the weights: reply {learned}")


def _draw_evaluation(axis: Any, before: TasteEvaluation, after: TasteEvaluation) -> None:
    """Draw the held-out questions before and after training."""
    width = 0.36
    for offset, (label, measured, colour) in enumerate(
        (("before", before, "#c8d0d9"), ("after", after, _LIKED))
    ):
        heights = (measured.satisfaction, measured.correctness)
        bars = axis.bar(
            [i + offset * width for i in range(2)], heights, width * 0.92, color=colour, label=label
        )
        axis.bar_label(bars, [f"{h:.0%}" for h in heights], fontsize=9)
    axis.set_xticks([i + width / 2 for i in range(2)], ("taste", "correct"))
    axis.set(ylim=(0, 1.12), yticks=[])
    axis.set_title(f"{len(before.satisfied)} held-out questions,\nwithout lessons", fontsize=9)
    axis.legend(loc="lower center", frameon=False, ncols=2, bbox_to_anchor=(0.5, -0.24))
