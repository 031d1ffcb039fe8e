"""Rows of a batch as the fields of slime's `Sample`. Pure; log-probabilities and ids keep their values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from openclaw_rl.other_trainers.slime.interface import COMPLETED

Row = Mapping[str, Any]
Fields = dict[str, Any]


def split_fit_rows(
    rows: Sequence[Row], *, temperature: float, has_teacher: bool
) -> tuple[list[Row], dict[str, str]]:
    """Return the rows that slime trains on, and why the turns without such a row are left out.

    A turn whose prompt had lessons has two rows, one of which has no importance ratio.
    """
    fit = []
    unfit: dict[str, str] = {}
    for row in rows:
        reason = unfit_reason(row, temperature=temperature, has_teacher=has_teacher)
        if reason is None:
            fit.append(row)
        else:
            unfit[row["turn"]] = reason
    turns = {row["turn"] for row in fit}
    return fit, {turn: reason for turn, reason in unfit.items() if turn not in turns}


def unfit_reason(row: Row, *, temperature: float, has_teacher: bool) -> str | None:
    """Return why slime would train wrongly on this row, or None."""
    if row["from_teacher"]:
        return "sampled under a hint: slime has no loss without an importance ratio"
    if row["temperature"] != temperature:
        return f"sampled at temperature {row['temperature']:g}; slime's --rollout-temperature is {temperature:g}"
    if row["reward"] is not None:
        return None
    if not row["hinted_prompts"]:
        return "no score, no hint"
    if not has_teacher:
        return "no score, and slime trains without hints (--use-opd)"
    return None


def sample_fields(
    row: Row, position: int, *, method: str, teacher: Sequence[float] | None
) -> Fields:
    """Return the fields of one sample. `teacher`: [R] log-probabilities; None: slime runs without distillation."""
    has_score = row["reward"] is not None and method != "opd"
    return {
        "group_index": position,
        "index": position,
        "rollout_id": position,
        "tokens": [*row["prompt_ids"], *row["response_ids"]],
        "response_length": len(row["response_ids"]),
        "loss_mask": [int(may_train) for may_train in row["mask"]],
        "rollout_log_probs": list(row["logprobs"]),
        "reward": row["reward"] * row["weight"] if has_score else 0.0,
        "teacher_log_probs": None if teacher is None else list(teacher),
        "weight_versions": [str(row["version"])],
        "remove_sample": False,
        "status": COMPLETED,
        "metadata": {
            "turn": row["turn"],
            "agent": row["agent"],
            "version": row["version"],
            "reward": row["reward"],
            "weight": row["weight"],
            "hints": len(row["hinted_prompts"]),
        },
    }


def fill_up(samples: Sequence[Fields], multiple: int) -> list[Fields]:
    """Return the samples and, up to a multiple, copies of the shortest without any token that trains.

    slime leaves out samples beyond the last whole multiple of its `--global-batch-size`.
    """
    shortest = min(samples, key=lambda fields: len(fields["tokens"]))
    count = -len(samples) % multiple
    return [*samples, *(_empty_copy(shortest, len(samples) + n) for n in range(count))]


def _empty_copy(fields: Fields, position: int) -> Fields:
    length = fields["response_length"]
    return fields | {
        "group_index": position,
        "index": position,
        "rollout_id": position,
        "loss_mask": [0] * length,
        "reward": 0.0,
        "remove_sample": True,
        "teacher_log_probs": None
        if fields["teacher_log_probs"] is None
        else list(fields["rollout_log_probs"]),
        "metadata": {"filled_up": True},
    }
