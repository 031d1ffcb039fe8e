"""The picture that a demo of episodes leaves: the rewards while it trained, and the held-out tasks before and after."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from openclaw_rl.store.db import Store
from openclaw_rl.store.episodes.group_list import newest_groups

PICTURE = "episodes.png"
_GREEN = "#1b7f5a"
_GREY = "#9aa5b1"
_MAX_GROUPS = 10_000
# Groups in the moving average.
_WINDOW = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutScore:
    """Episodes of held-out tasks: those solved, of how many, and the 95% interval of the share."""

    title: str
    solved: int
    done: int
    low: float
    high: float


def train_rewards(home: Path) -> list[float]:
    """Return the mean reward of each group that was trained on, oldest first."""
    with Store.open(home / "store.db", create=False) as store, store.read() as conn:
        groups = [group for group in newest_groups(conn, _MAX_GROUPS) if group.split == "train"]
    means = [group.mean_reward for group in reversed(groups)]
    return [mean for mean in means if mean is not None]


def draw_picture(path: Path, rewards: Sequence[float], scores: Sequence[HeldOutScore]) -> None:
    """Write a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(
        1, 2, figsize=(9, 4), width_ratios=(3, 1), layout="constrained"
    )
    numbers = range(1, len(rewards) + 1)
    left.scatter(numbers, rewards, s=14, color=_GREY, label="a group of episodes of one task")
    left.plot(numbers, _moving_average(rewards), color=_GREEN, label=f"mean of {_WINDOW} groups")
    left.set_xlabel("groups, in the order in which they were played")
    left.set_ylabel("mean reward")
    left.set_title("while it trains", fontsize=10)
    left.legend(frameon=False, fontsize=8)
    shares = [score.solved / max(score.done, 1) for score in scores]
    errors = [
        [share - score.low for share, score in zip(shares, scores, strict=True)],
        [score.high - share for share, score in zip(shares, scores, strict=True)],
    ]
    titles = [f"{score.title}\n{score.solved} of {score.done}" for score in scores]
    right.bar(titles, shares, yerr=errors, color=(_GREY, _GREEN), capsize=4)
    right.set_title("held-out tasks solved", fontsize=10)
    for axis in (left, right):
        axis.set_ylim(-0.05, 1.05)
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _moving_average(values: Sequence[float]) -> list[float]:
    averages = []
    for end in range(1, len(values) + 1):
        part = values[max(0, end - _WINDOW) : end]
        averages.append(sum(part) / len(part))
    return averages
