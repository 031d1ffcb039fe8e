"""Aliases of settings: environment variables, flags and file keys of other programs, and earlier keys of our own.

A name in capitals is an environment variable. A name with two dashes is a flag, on the command line and inside the
variables of `ARGUMENTS`. Any other name is a dotted key of a YAML or JSON file. A name without a meaning here is refused
with the reason and the alternative.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

ARGUMENTS = ("CKPT_ARGS", "ROLLOUT_ARGS", "REWARD_ARGS", "OPTIMIZER_ARGS", "LORA_ARGS")
"""Environment variables that hold flags, as launch scripts assemble them."""

Form = Literal["environment", "flag", "file"]
Reading = Callable[[Any], Mapping[str, Any]]
"""Converts a given value to settings. Raises `ValueError` with what was expected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spelling:
    """One alias. `weak`: any other value of the same setting overrides it."""

    name: str
    means: str  # for the reference page
    read: Reading | None = None
    refused: str = ""  # the reason, and the alternative
    notice: str = ""  # shown when it is set; it has no effect by itself
    switch: bool = False  # a flag whose value may be omitted: true
    weak: bool = False
    yields: tuple[str, ...] = ()  # settings of it that any other value overrides

    @property
    def form(self) -> Form:
        if self.name.startswith("--"):
            return "flag"
        return "environment" if self.name.isupper() else "file"


def _same(key: str, *names: str, switch: bool = False) -> list[Spelling]:
    """Return plain aliases of one setting."""
    return [Spelling(name=n, means=f"`{key}`", read=lambda value: {key: value}, switch=switch) for n in names]


def _read(means: str, read: Reading, *names: str, switch: bool = False, weak: bool = False) -> list[Spelling]:
    return [Spelling(name=n, means=means, read=read, switch=switch, weak=weak) for n in names]


def _only(value: Any, why: str, *names: str, switch: bool = False) -> list[Spelling]:
    """Return aliases that accept one value only, because the program always behaves that way."""

    def read(given: Any) -> Mapping[str, Any]:
        if (truth(given) if isinstance(value, bool) else given) != value:
            raise ValueError(f"expected {_shown(value)}, got {_shown(given)}: {why}")
        return {}

    return [Spelling(name=n, means=f"{_shown(value)} only: {why}", read=read, switch=switch) for n in names]


def _refused(why: str, *names: str) -> list[Spelling]:
    return [Spelling(name=n, means=f"refused: {why}", refused=why) for n in names]


def _notice(what: str, *names: str) -> list[Spelling]:
    return [Spelling(name=n, means=what, notice=what) for n in names]


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def truth(value: Any) -> bool:
    """Parse true, false, 1, 0, yes, no, on or off. Raises `ValueError` for anything else."""
    word = str(value).strip().lower()
    if word in ("1", "true", "yes", "on"):
        return True
    if word in ("0", "false", "no", "off"):
        return False
    raise ValueError(f"expected true or false, got {value!r}")


def number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ValueError(f"expected a number, got {value!r}") from None


def gpus(value: Any) -> tuple[str, ...]:
    """Parse device ids: `0,1` or [0, 1]. Raises `ValueError`."""
    parts = value if isinstance(value, list | tuple) else str(value).split(",")
    found = tuple(str(part).strip() for part in parts)
    if not all(part.isdigit() for part in found):
        raise ValueError(f"expected device ids such as 0,1,2,3, got {value!r}")
    if len(set(found)) < len(found):
        raise ValueError(f"expected each device once, got {value!r}")
    return found


def _weights(value: Any) -> Mapping[str, Any]:
    return {"train.weights": "lora" if truth(value) else "full"}


def _batch(value: Any) -> Mapping[str, Any]:
    return {"train.batch_min": value, "train.batch_max": value}


def _clip_ratio(value: Any) -> Mapping[str, Any]:
    ratio = number(value)
    if not 0 < ratio < 1:
        raise ValueError(f"expected a ratio between 0 and 1, got {value!r}")
    return {"train.clip_low": 1 - ratio, "train.clip_high": 1 + ratio}


def _trainer_gpus(value: Any) -> Mapping[str, Any]:
    return {"train.gpus": gpus(value), "train.ranks": len(gpus(value))}


def _judge_model(value: Any) -> Mapping[str, Any]:
    return {"judge.kind": "llm", "judge.model": value}


def _judge_path(value: Any) -> Mapping[str, Any]:
    return {"judge.kind": "llm", "judge.path": value}


def _reward_path(value: Any) -> Mapping[str, Any]:
    return {"judge.kind": "classifier", "judge.reward_path": value}


def _reward_plugin(value: Any) -> Mapping[str, Any]:
    return {"judge.kind": "plugin", "judge.plugin_path": value}


def _voting(value: Any) -> Mapping[str, Any]:
    return {} if truth(value) else {"judge.num_judges": 1}


def _debug(value: Any) -> Mapping[str, Any]:
    return {"run.log_level": "debug"} if truth(value) else {}


def _capture(value: Any) -> Mapping[str, Any]:
    return {"serve.capture": "full" if truth(value) else "redacted"}


_SIZES = {"0.6b": "0.6B", "1.7b": "1.7B", "4b": "4B", "7b": "8B", "8b": "8B", "14b": "14B", "32b": "32B"}


def _size(value: Any) -> Mapping[str, Any]:
    size = str(value).lower()
    if size not in _SIZES:
        raise ValueError(f"expected one of {', '.join(_SIZES)}, got {value!r}; or name any model with MODEL_PATH")
    return {"model.path": f"Qwen/Qwen3-{_SIZES[size]}"}


def _roles(*, needed: str, possible: tuple[str, ...]) -> Reading:
    def read(value: Any) -> Mapping[str, Any]:
        roles = [value] if isinstance(value, str) else value
        if not isinstance(roles, list | tuple):
            raise ValueError(f"expected a list of roles such as {', '.join(possible)}, got {value!r}")
        wrong = [role for role in roles if role not in possible]
        if wrong or (needed and needed not in roles):
            raise ValueError(
                f"expected roles of {', '.join(possible)}{f', {needed} among them' if needed else ''}, got {roles}: "
                "only the assistant's own tokens ever train, and what answers them is the reaction"
            )
        return {}

    return read


_ENVIRONMENTS = (
    "it belongs to environments (terminal, gui, toolcall, swe), which this version does not have. Unset it; "
    "your own episodes run as a plug-in (rollout.function_path, such as examples/plugins/gui_rollout.py)"
)
_CRITIC = (
    "it belongs to a critic, and live conversations have none: the baseline is a moving average of scores "
    "(train.baseline_decay). Leave it out"
)
_STORE = (
    "collecting reads what the gateway of the same home has stored, and asks no API. Leave it out; --home DIR names "
    "another home"
)
_LOOPS = "the four stages never wait for one another"
_SESSIONS = "a reaction is found through its session"
_VOTES = "votes are counted, and a score needs more than judge.consensus_threshold of them"

SPELLINGS: tuple[Spelling, ...] = tuple(
    spelling
    for rows in (
        # Models
        _same("model.path", "MODEL_PATH", "BASE_MODEL_PATH", "CKPT_PATH", "--model-path", "model.checkpoint_path"),
        _same("model.tokenizer", "TOKENIZER_PATH", "--tokenizer-path", "model.tokenizer_path"),
        _same("model.hf_token", "HF_TOKEN"),
        _read("`model.path` Qwen/Qwen3-..., where no other is given", _size, "MODEL_SIZE", weak=True),
        _read("`judge.path`, `judge.kind` llm", _judge_path, "JUDGE_MODEL_PATH", "--judge-model-path"),
        [replace(s, yields=("judge.kind",)) for s in _read("`judge.reward_path`; `judge.kind` classifier, where no "
         "other is given", _reward_path, "PRM_MODEL_PATH", "--rm-checkpoint")],
        # Serving
        _same("home", "OPENCLAW_HOME", "--home"),
        _same("serve.host", "OPENCLAW_HOST", "--host"),
        _same("serve.port", "OPENCLAW_PORT", "--port"),
        _same("serve.api_key", "OPENCLAW_API_KEY"),
        _same("engine.api_key", "OPENCLAW_ENGINE_API_KEY"),
        _same("judge.api_key", "OPENCLAW_JUDGE_API_KEY"),
        _same("teacher.api_key", "OPENCLAW_TEACHER_API_KEY"),
        _same("engine.backend", "--backend"),
        _read("`serve.capture` full, or redacted", _capture, "--enable-rl-intercept", switch=True),
        _read("`engine.gpus`", lambda v: {"engine.gpus": gpus(v)}, "ROLLOUT_GPUS", "--gpu-ids", "--rollout-gpus"),
        _read("`run.log_level` debug", _debug, "OPENCLAW_DEBUG"),
        _read("`run.log_level`", lambda v: {"run.log_level": str(v).lower()}, "ROLLOUT_LOG_LEVEL", "--log-level"),
        _same("engine.max_batch", "rollout_config.max_concurrent_sessions"),
        # Collecting
        _same("collect.session_timeout", "rollout_config.session_timeout"),
        _refused(_STORE, "--api-endpoint"),
        _only("async", _LOOPS, "rollout_config.collection_mode"),
        _only(True, _LOOPS, "--async-collection", switch=True),
        _only("multi_turn", "a session is kept whole", "rollout_config.trajectory_format"),
        _only(True, _SESSIONS, "rollout.session_aware"),
        _only(True, _SESSIONS, "--session-aware", switch=True),
        _read("roles that train or react", _roles(needed="assistant", possible=("user", "assistant")),
              "rollout_config.message_classification.main_line"),
        _read("roles that never train as ours", _roles(needed="", possible=("system", "developer", "tool", "function")),
              "rollout_config.message_classification.side"),
        # Data
        _same("data.path", "DATA_PATH", "--data-path"),
        _same("data.buffer_dir", "--rl-buffer-dir", "--output-dir"),
        _same("data.rollout_dir", "--rollout-dir"),
        # Judging
        _read("`judge.model`, `judge.kind` llm", _judge_model, "evaluation.judge_model", "--judge-model"),
        _same("judge.num_judges", "MAJORITY_VOTE_N", "--majority-vote-n", "evaluation.num_judges",
              "rollout_config.reward_computation.num_samples"),
        _same("judge.consensus_threshold", "MAJORITY_VOTE_THRESHOLD", "--majority-vote-threshold",
              "evaluation.consensus_threshold"),
        _read("false: `judge.num_judges` 1", _voting, "evaluation.majority_voting"),
        _same("judge.workers", "--num-judge-workers"),
        _only("majority", _VOTES, "--reward-aggregation", "rollout_config.reward_computation.aggregation"),
        _only("next_state_feedback", "the reaction is the feedback", "rollout_config.reward_computation.type"),
        _read("`judge.plugin_path`, `judge.kind` plugin", _reward_plugin, "--custom-rm-path"),
        _same("teacher.model", "training.hint_extraction_model"),
        _same("track.eval_every", "evaluation.eval_frequency"),
        # Training
        _same("train.method", "training.method", "--method"),
        _read("`train.batch_min` and `train.batch_max`", _batch, "BATCH_SIZE", "--batch-size", "--rollout-batch-size",
              "training.batch_size"),
        _same("train.accumulation", "GRAD_ACCUM_STEPS", "--grad-accum-steps", "training.gradient_accumulation_steps"),
        _same("train.learning_rate", "LEARNING_RATE", "--lr", "training.learning_rate"),
        _same("train.weight_decay", "--weight-decay"),
        _same("train.adam_beta1", "--adam-beta1"),
        _same("train.adam_beta2", "--adam-beta2"),
        _same("train.warmup_samples", "--lr-warmup-samples"),
        _same("train.warmup_steps", "training.warmup_steps"),
        _same("train.max_steps", "training.max_steps"),
        _same("train.clip_grad", "CLIP_GRAD_NORM", "--clip-grad"),
        _same("train.epochs", "--num-epochs"),
        _read("`train.clip_low` 1 - r, `train.clip_high` 1 + r", _clip_ratio, "PPO_CLIP_RATIO", "--ppo-clip-ratio",
              "training.ppo_clip_ratio"),
        _same("train.w_binary", "training.binary_weight"),
        _same("train.w_opd", "training.opd_weight"),
        _same("train.teacher_temperature", "training.teacher_temperature"),
        _same("train.loss_path", "--custom-loss-function-path"),
        _refused(_CRITIC, "VALUE_CLIP", "training.value_clip_ratio", "training.gae_lambda"),
        # LoRA and memory
        _read("`train.weights` lora, or full", _weights, "USE_LORA", "--use-lora", "--lora", switch=True),
        _same("train.lora.rank", "LORA_RANK", "--lora-rank"),
        _same("train.lora.alpha", "LORA_ALPHA", "--lora-alpha"),
        _same("train.lora.dropout", "LORA_DROPOUT", "--lora-dropout"),
        _read("`train.lora.targets`", lambda v: {"train.lora.targets": _targets(v)}, "LORA_TARGET_MODULES",
              "--lora-target-modules"),
        _same("train.checkpointing", "USE_GRADIENT_CHECKPOINTING", "--use-gradient-checkpointing", switch=True),
        _same("train.offload_optimizer", "--offload-optimizer-state", switch=True),
        # Checkpoints
        _same("train.save_dir", "CKPT_SAVE_DIR", "--save-dir", "--checkpoint-dir"),
        _same("train.save_interval", "--save-interval"),
        _same("train.resume", "RESUME_CKPT", "--resume-from-checkpoint"),
        # Placement
        _read("`train.gpus`, `train.ranks`", _trainer_gpus, "TRAIN_GPUS", "--gpus", "--train-gpus"),
        _same("train.ranks", "GPUS_PER_NODE"),
        _same("train.launch.nodes", "NNODES"),
        _same("train.launch.node_rank", "NODE_RANK"),
        _same("train.launch.master_addr", "MASTER_ADDR"),
        _same("train.launch.master_port", "MASTER_PORT"),
        # Rollouts as plug-ins
        _same("rollout.function_path", "--rollout-function-path"),
        _same("rollout.generate_path", "--custom-generate-function-path"),
        _same("rollout.workers", "--num-rollout-workers", "rollout.num_workers"),
        _same("rollout.max_turns", "--max-turns"),
        _same("rollout.per_prompt", "--num-rollouts-per-prompt"),
        _same("rollout.parallel_envs", "PARALLEL_ENVS", "--parallel-envs"),
        _refused(_ENVIRONMENTS, "ENV_TYPE", "TASK_TYPE", "MAX_STEPS", "MAX_GUI_STEPS", "SCREENSHOT_BACKEND",
                 "TOOLS_CONFIG", "SWE_BENCH_PATH"),
        # Elsewhere
        _notice("the key alone sends nothing: `track.to` wandb turns W&B on", "WANDB_API_KEY"),
        _notice("Tinker is not part of this version: the local trainer is used", "TINKER_API_KEY", "TINKER_ENDPOINT",
                "TINKER_PROJECT_ID"),
        _notice("Fireworks is not part of this version: the local trainer is used", "FIREWORKS_API_KEY"),
    )
    for spelling in rows
)  # fmt: skip


_SERVE_WITH = "Say vllm or sglang to serve on GPUs of your own, or embedded for a small model"
NOT_HERE: Mapping[tuple[str, str], str] = {
    ("engine.backend", "tinker"): f"Tinker is not part of this version, neither to serve nor to train. {_SERVE_WITH}",
    ("engine.backend", "fireworks"): f"Fireworks is not part of this version. {_SERVE_WITH}",
    ("engine.backend", "slime"): "slime trains and does not serve, and is not part of this version: the local trainer "
    f"is used. {_SERVE_WITH}",
    ("train.method", "grpo"): "GRPO compares several replies to one prompt, and a conversation has one reply a turn. "
    "Say binary, which learns from the scores, or combine",
    ("train.method", "ppo"): "PPO's critic is not here: the baseline is a moving average of scores, and the clipped "
    "surrogate is PPO's. Say binary, which learns from the scores, or combine",
}
"""(setting, value known from another program) -> why the value is refused, and the alternative."""


def _targets(value: Any) -> Any:
    """Parse `all-linear` or module names: a list, or one string with commas. Raises `ValueError`."""
    if value == "all-linear":
        return value
    names = value if isinstance(value, list | tuple) else [part.strip() for part in str(value).split(",")]
    if not names or not all(isinstance(name, str) and _MODULE.match(name) for name in names):
        raise ValueError(f"expected all-linear, or names such as q_proj,v_proj, got {value!r}")
    return names


_MODULE = re.compile(r"[\w.-]+\Z")


def by_form(form: Form) -> dict[str, Spelling]:
    """Return the aliases of one form by name."""
    return {s.name: s for s in SPELLINGS if s.form == form}


def pairs(words: list[str]) -> list[tuple[str, str | bool]]:
    """Split `--a 1 --b --c=2` into (flag, value). A flag without a value is True. Raises `ValueError` for other words."""
    switches = {s.name for s in SPELLINGS if s.switch}
    out: list[tuple[str, str | bool]] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--"):
            raise ValueError(f"expected a flag such as --lr 1e-6, got {word!r}")
        name, sign, value = word.partition("=")
        if sign:
            out.append((name, value))
        elif rest and not rest[0].startswith("--") and (name not in switches or _is_truth(rest[0])):
            out.append((name, rest.pop(0)))
        else:
            out.append((name, True))
    return out


def _is_truth(word: str) -> bool:
    return word.lower() in ("1", "0", "true", "false", "yes", "no", "on", "off")
