"""Arguments of slime on which the adapter depends. Those that would train wrongly are refused with the cure."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openclaw_rl.other_trainers.slime.interface import HOOK_PATH

_NORMALIZES = ("grpo", "gspo", "cispo", "reinforce_plus_plus_baseline")
_TEACHER_METHODS = ("opd", "combine")
_METHODS = ("binary", *_TEACHER_METHODS)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlimeOptions:
    """The arguments of slime that the adapter uses. `teacher_url`: None without distillation."""

    home: Path
    mailbox: Path  # folder that the rollout manager and the trainer share
    global_batch_size: int
    temperature: float
    teacher_url: str | None

    @classmethod
    def from_args(cls, args: Any) -> SlimeOptions:
        """Read slime's arguments. Raises `ValueError` for those that do not fit."""
        problems = []
        for check in _CHECKS:
            problems += check(args)
        if problems:
            raise ValueError(
                "OpenClaw-RL cannot feed slime with these arguments: " + "; ".join(problems)
            )
        return cls(
            home=Path(getattr(args, "openclaw_home", "~/.openclaw-rl")).expanduser(),
            mailbox=mailbox_folder(args),
            global_batch_size=int(args.global_batch_size),
            temperature=float(args.rollout_temperature),
            teacher_url=str(args.rm_url) if args.use_opd else None,
        )


def mailbox_folder(args: Any) -> Path:
    """Return the folder in which the rollout function and the hook leave messages, beside the weights on disk."""
    return Path(args.update_weight_disk_dir).expanduser() / "openclaw-rl"


def method_problem(method: str, finetune: str, *, has_teacher: bool) -> str | None:
    """Return why slime cannot train with this `train.method` and `train.finetune`, or None."""
    if finetune != "full":
        return f"train.finetune is {finetune}, and slime trains full weights. Set train.finetune to full"
    if method not in _METHODS:
        known = ", ".join(_METHODS)
        return f"train.method is {method}, for which slime has no loss. Set it to {known}"
    needs_teacher = method in _TEACHER_METHODS
    if needs_teacher and not has_teacher:
        return f"train.method is {method}. Add --use-opd --opd-type sglang --rm-url URL"
    if has_teacher and not needs_teacher:
        return f"train.method is {method}. Leave out --use-opd"
    return None


def _check_weights(args: Any) -> list[str]:
    problems = []
    transport = (args.update_weight_mode, args.update_weight_transport)
    if transport != ("full", "disk") or not args.update_weight_disk_dir:
        problems.append(
            "set --update-weight-mode full --update-weight-transport disk --update-weight-disk-dir DIR"
        )
    if args.custom_update_weight_post_write_path != HOOK_PATH:
        problems.append(f"set --custom-update-weight-post-write-path {HOOK_PATH}")
    if args.rollout_top_p != 1:
        problems.append(
            f"--rollout-top-p is {args.rollout_top_p}; expected 1, because slime replays what it cut"
        )
    if args.update_weights_interval != 1:
        problems.append(f"--update-weights-interval is {args.update_weights_interval}; expected 1")
    return problems


def _check_rewards(args: Any) -> list[str]:
    problems = []
    if args.n_samples_per_prompt != 1:
        problems.append(
            f"--n-samples-per-prompt is {args.n_samples_per_prompt}; a turn of a conversation has one reply"
        )
    normalizes = args.advantage_estimator in _NORMALIZES and args.rewards_normalization
    if normalizes and args.custom_reward_post_process_path is None:
        problems.append(
            "set --disable-rewards-normalization, because with one reply to a prompt all rewards become 0"
        )
    return problems


def _check_teacher(args: Any) -> list[str]:
    if not args.use_opd:
        return []
    problems = []
    if args.opd_type != "sglang" or not args.rm_url:
        problems.append(
            "set --opd-type sglang and --rm-url to a server with the base: the teacher reads the hint"
        )
    if not args.use_rollout_logprobs:
        problems.append(
            "set --use-rollout-logprobs, so that samples without a hint have no distillation term"
        )
    if args.rollout_temperature != 1:
        problems.append(
            f"--rollout-temperature is {args.rollout_temperature}; the teacher is scored at 1"
        )
    return problems


_CHECKS = (_check_weights, _check_rewards, _check_teacher)
