"""Report of two versions side by side: text, JSON, and a folder with an HTML page that contains its picture."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment

from openclaw_rl.common.assets import read_asset
from openclaw_rl.common.printable import to_printable_json
from openclaw_rl.errors import ConfigError
from openclaw_rl.evals.tables import markdown_table
from openclaw_rl.evals.task_report import report_json
from openclaw_rl.evals.task_scores import EvalResult, TaskScore
from openclaw_rl.evals.versions.paired_differences import (
    PairedDifference,
    paired_difference,
    paired_scores,
)

PAGE = "comparison.html"
PICTURE = "comparison.png"
DATA = "comparison.json"
NOTE = (
    "In brackets: 95% interval of the paired difference over tasks, exact for any number of "
    "tasks (arXiv:2010.09686)."
)


def prepare_folder(folder: Path) -> None:
    """Create the folder of the report. Raises `ConfigError` if that fails, or if matplotlib is not installed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ConfigError(
            "--report needs matplotlib: pip install 'openclaw-rl[demo]', or use --out"
        ) from None
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"--report {folder}: cannot be created ({error.strerror}). Choose another folder."
        ) from None


def _differences(new: EvalResult, old: EvalResult) -> list[PairedDifference]:
    differences = (paired_difference(new, old, kind) for kind in new.kinds)
    return [one for one in differences if one is not None]


def comparison_text(new: EvalResult, old: EvalResult) -> str:
    """Return a Markdown table with a row per kind of task."""
    rows = [
        (d.kind, d.tasks, f"{d.new:.2f}", f"{d.old:.2f}", _difference_text(d), d.verdict)
        for d in _differences(new, old)
    ]
    table = markdown_table(
        ("tasks", "number", new.model, old.model, "difference", f"{new.model} is"), rows
    )
    return f"{table}\n\n{NOTE}"


def _difference_text(one: PairedDifference) -> str:
    return f"{one.mean:+.2f} ({one.low:+.2f} to {one.high:+.2f})"


def comparison_json(new: EvalResult, old: EvalResult) -> dict[str, Any]:
    """Return the differences, and the report of each version."""
    return {
        "policy": new.model,
        "against": old.model,
        "differences": {
            d.kind: {
                "tasks": d.tasks,
                "policy": d.new,
                "against": d.old,
                "difference": d.mean,
                "interval": [d.low, d.high],
                "verdict": d.verdict,
            }
            for d in _differences(new, old)
        },
        "results": [report_json(new), report_json(old)],
    }


def write_folder(folder: Path, new: EvalResult, old: EvalResult) -> None:
    """Write the page, the picture and the data."""
    differences = _differences(new, old)
    plot_shares(folder / PICTURE, new.model, old.model, differences)
    (folder / DATA).write_text(
        to_printable_json(comparison_json(new, old), indent=2) + "\n", encoding="utf-8"
    )
    template = Environment(autoescape=True).from_string(read_asset("evals/comparison.html.j2"))
    page = template.render(
        new=new.model,
        old=old.model,
        note=NOTE,
        picture=base64.b64encode((folder / PICTURE).read_bytes()).decode(),
        differences=[(d, _difference_text(d)) for d in differences],
        kinds=[(kind, list(_changed_first(new, old, kind))) for kind in new.kinds],
    )
    (folder / PAGE).write_text(page, encoding="utf-8")


def _changed_first(
    new: EvalResult, old: EvalResult, kind: str
) -> Iterator[tuple[TaskScore, TaskScore]]:
    """Yield the pairs of scores; those that differ come first."""
    pairs = [pair for group in paired_scores(new, old, kind).values() for pair in group]
    yield from sorted(pairs, key=lambda pair: pair[0].solved == pair[1].solved)


def plot_shares(path: Path, new: str, old: str, differences: Sequence[PairedDifference]) -> None:
    """Write a PNG: the share of solved tasks of both versions by kind, and the difference with its interval."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(
        1, 2, figsize=(11, 1.6 + 0.6 * len(differences)), layout="constrained"
    )
    places = range(len(differences))
    for offset, label, values, colour in (
        (0.19, old, [d.old for d in differences], "#c8d0d9"),
        (-0.19, new, [d.new for d in differences], "#d1495b"),
    ):
        left.barh([place + offset for place in places], values, 0.36, color=colour, label=label)
    left.set(title="share of tasks solved", xlim=(0, 1.02))
    left.legend(loc="lower center", frameon=False, ncols=2, bbox_to_anchor=(0.5, -0.3))
    errors = [[d.mean - d.low for d in differences], [d.high - d.mean for d in differences]]
    right.errorbar(
        [d.mean for d in differences],
        list(places),
        xerr=errors,
        fmt="o",
        color="#2e4057",
        capsize=3,
    )
    right.axvline(0, color="#9aa5b1", linewidth=0.8)
    right.set(title=f"difference, {new} less {old}", xlim=(-1.05, 1.05), ylim=left.get_ylim())
    for axis in (left, right):
        axis.set_yticks(list(places), [d.kind for d in differences])
        axis.invert_yaxis()
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130)
    plt.close(figure)
