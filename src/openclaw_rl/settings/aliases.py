"""Aliases of settings: environment variables, flags and file keys of other programs, and earlier keys of our own.

A name in capitals is an environment variable. A name with two dashes is a flag, on the command line and inside the
variables of `ARGUMENTS`. Any other name is a dotted key of a YAML or JSON file. A name without a meaning here is
refused with the reason and the alternative.
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
class SettingAlias:
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


def _same_as(key: str, *names: str, switch: bool = False) -> list[SettingAlias]:
    """Return plain aliases of one setting."""
    return [SettingAlias(name=n, means=f"`{key}`", read=lambda value: {key: value}, switch=switch) for n in names]


def _read_as(means: str, read: Reading, *names: str, switch: bool = False, weak: bool = False) -> list[SettingAlias]:
    return [SettingAlias(name=n, means=means, read=read, switch=switch, weak=weak) for n in names]


def _only_value(value: Any, why: str, *names: str, switch: bool = False) -> list[SettingAlias]:
    """Return aliases that accept one value only, because the program always behaves that way."""

    def read(given: Any) -> Mapping[str, Any]:
        if (parse_bool(given) if isinstance(value, bool) else given) != value:
            raise ValueError(f"expected {_format_value(value)}, got {_format_value(given)}: {why}")
        return {}

    return [SettingAlias(name=n, means=f"{_format_value(value)} only: {why}", read=read, switch=switch) for n in names]


def _refuse_all(why: str, *names: str) -> list[SettingAlias]:
    return [SettingAlias(name=n, means=f"refused: {why}", refused=why) for n in names]


def _only_notice(what: str, *names: str) -> list[SettingAlias]:
    return [SettingAlias(name=n, means=what, notice=what) for n in names]


def _format_value(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def parse_bool(value: Any) -> bool:
    """Parse true, false, 1, 0, yes, no, on or off. Raises `ValueError` for anything else."""
    word = str(value).strip().lower()
    if word in ("1", "true", "yes", "on"):
        return True
    if word in ("0", "false", "no", "off"):
        return False
    raise ValueError(f"expected true or false, got {value!r}")


def parse_number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ValueError(f"expected a number, got {value!r}") from None


def parse_gpus(value: Any) -> tuple[str, ...]:
    """Parse device ids: `0,1` or [0, 1]. Raises `ValueError`."""
    parts = value if isinstance(value, list | tuple) else str(value).split(",")
    found = tuple(str(part).strip() for part in parts)
    if not all(part.isdigit() for part in found):
        raise ValueError(f"expected device ids such as 0,1,2,3, got {value!r}")
    if len(set(found)) < len(found):
        raise ValueError(f"expected each device once, got {value!r}")
    return found


def _read_use_lora(value: Any) -> Mapping[str, Any]:
    return {"train.finetune": "lora" if parse_bool(value) else "full"}


def _read_batch_size(value: Any) -> Mapping[str, Any]:
    return {"train.batch.min_turns": value, "train.batch.max_turns": value}


def _read_clip_ratio(value: Any) -> Mapping[str, Any]:
    ratio = parse_number(value)
    if not 0 < ratio < 1:
        raise ValueError(f"expected a ratio between 0 and 1, got {value!r}")
    return {"train.loss.clip_low": 1 - ratio, "train.loss.clip_high": 1 + ratio}


def _read_trainer_gpus(value: Any) -> Mapping[str, Any]:
    return {"train.gpus": parse_gpus(value), "train.ranks": len(parse_gpus(value))}


def _judge_model(value: Any) -> Mapping[str, Any]:
    return {"judge.kind": "llm", "judge.model": value}


def _judge_path(value: Any) -> Mapping[str, Any]:
    return {"judge.kind": "llm", "judge.path": value}


def _reward_path(value: Any) -> Mapping[str, Any]:
    return {"judge.kind": "classifier", "judge.reward_path": value}


def _reward_plugin(value: Any) -> Mapping[str, Any]:
    return {"judge.kind": "plugin", "judge.plugin_path": value}


def _read_voting(value: Any) -> Mapping[str, Any]:
    return {} if parse_bool(value) else {"judge.num_judges": 1}


def _read_debug(value: Any) -> Mapping[str, Any]:
    return {"run.log_level": "debug"} if parse_bool(value) else {}


def _read_capture(value: Any) -> Mapping[str, Any]:
    return {"serve.capture": "full" if parse_bool(value) else "redacted"}


_SIZES = {"0.6b": "0.6B", "1.7b": "1.7B", "4b": "4B", "7b": "8B", "8b": "8B", "14b": "14B", "32b": "32B"}


def _read_model_size(value: Any) -> Mapping[str, Any]:
    size = str(value).lower()
    if size not in _SIZES:
        raise ValueError(f"expected one of {', '.join(_SIZES)}, got {value!r}; or name any model with MODEL_PATH")
    return {"model.path": f"Qwen/Qwen3-{_SIZES[size]}"}


def _roles_reader(*, needed: str, possible: tuple[str, ...]) -> Reading:
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
    "(train.loss.baseline_decay). Leave it out"
)
_STORE = (
    "collecting reads what the gateway of the same home has stored, and asks no API. Leave it out; --home DIR names "
    "another home"
)
_LOOPS = "the four stages never wait for one another"
_SESSIONS = "a reaction is found through its session"
_VOTES = "votes are counted, and a score needs more than judge.consensus_threshold of them"

ALIASES: tuple[SettingAlias, ...] = tuple(
    spelling
    for rows in (
        # Models
        _same_as("model.path", "MODEL_PATH", "BASE_MODEL_PATH", "CKPT_PATH", "--model-path", "model.checkpoint_path"),
        _same_as("model.tokenizer", "TOKENIZER_PATH", "--tokenizer-path", "model.tokenizer_path"),
        _same_as("model.hf_token", "HF_TOKEN"),
        _read_as("`model.path` Qwen/Qwen3-..., where no other is given", _read_model_size, "MODEL_SIZE", weak=True),
        _read_as("`judge.path`, `judge.kind` llm", _judge_path, "JUDGE_MODEL_PATH", "--judge-model-path"),
        [replace(s, yields=("judge.kind",)) for s in _read_as("`judge.reward_path`; `judge.kind` classifier, where no "
         "other is given", _reward_path, "PRM_MODEL_PATH", "--rm-checkpoint")],
        # Serving
        _same_as("home", "OPENCLAW_HOME", "--home"),
        _same_as("serve.host", "OPENCLAW_HOST", "--host"),
        _same_as("serve.port", "OPENCLAW_PORT", "--port"),
        _same_as("serve.api_key", "OPENCLAW_API_KEY"),
        _same_as("engine.api_key", "OPENCLAW_ENGINE_API_KEY"),
        _same_as("judge.api_key", "OPENCLAW_JUDGE_API_KEY"),
        _same_as("teacher.api_key", "OPENCLAW_TEACHER_API_KEY"),
        _same_as("engine.backend", "--backend"),
        _read_as("`serve.capture` full, or redacted", _read_capture, "--enable-rl-intercept", switch=True),
        _read_as("`engine.gpus`", lambda v: {"engine.gpus": parse_gpus(v)},
                 "ROLLOUT_GPUS", "--gpu-ids", "--rollout-gpus"),
        _read_as("`run.log_level` debug", _read_debug, "OPENCLAW_DEBUG"),
        _read_as("`run.log_level`", lambda v: {"run.log_level": str(v).lower()}, "ROLLOUT_LOG_LEVEL", "--log-level"),
        _same_as("engine.max_batch", "rollout_config.max_concurrent_sessions"),
        # Collecting
        _same_as("collect.session_timeout", "rollout_config.session_timeout"),
        _refuse_all(_STORE, "--api-endpoint"),
        _only_value("async", _LOOPS, "rollout_config.collection_mode"),
        _only_value(True, _LOOPS, "--async-collection", switch=True),
        _only_value("multi_turn", "a session is kept whole", "rollout_config.trajectory_format"),
        _only_value(True, _SESSIONS, "rollout.session_aware"),
        _only_value(True, _SESSIONS, "--session-aware", switch=True),
        _read_as("roles that train or react", _roles_reader(needed="assistant", possible=("user", "assistant")),
              "rollout_config.message_classification.main_line"),
        _read_as("roles that never train as ours",
                 _roles_reader(needed="", possible=("system", "developer", "tool", "function")),
              "rollout_config.message_classification.side"),
        # Data
        _same_as("data.path", "DATA_PATH", "--data-path"),
        _same_as("data.export_dir", "--rl-buffer-dir", "--output-dir"),
        _same_as("data.watch_dir", "--rollout-dir"),
        # Judging
        _read_as("`judge.model`, `judge.kind` llm", _judge_model, "evaluation.judge_model", "--judge-model"),
        _same_as("judge.num_judges", "MAJORITY_VOTE_N", "--majority-vote-n", "evaluation.num_judges",
              "rollout_config.reward_computation.num_samples"),
        _same_as("judge.consensus_threshold", "MAJORITY_VOTE_THRESHOLD", "--majority-vote-threshold",
              "evaluation.consensus_threshold"),
        _read_as("false: `judge.num_judges` 1", _read_voting, "evaluation.majority_voting"),
        _same_as("judge.workers", "--num-judge-workers"),
        _only_value("majority", _VOTES, "--reward-aggregation", "rollout_config.reward_computation.aggregation"),
        _only_value("next_state_feedback", "the reaction is the feedback", "rollout_config.reward_computation.type"),
        _read_as("`judge.plugin_path`, `judge.kind` plugin", _reward_plugin, "--custom-rm-path"),
        _same_as("teacher.model", "training.hint_extraction_model"),
        _same_as("track.eval_every", "evaluation.eval_frequency"),
        # Training
        _same_as("train.method", "training.method", "--method"),
        _read_as("`train.batch.min_turns` and `train.batch.max_turns`", _read_batch_size,
                 "BATCH_SIZE", "--batch-size", "--rollout-batch-size",
              "training.batch_size"),
        _same_as("train.batch.gradient_accumulation_steps", "GRAD_ACCUM_STEPS", "--grad-accum-steps",
                 "training.gradient_accumulation_steps"),
        _same_as("train.optimizer.learning_rate", "LEARNING_RATE", "--lr", "training.learning_rate"),
        _same_as("train.optimizer.weight_decay", "--weight-decay"),
        _same_as("train.optimizer.adam_beta1", "--adam-beta1"),
        _same_as("train.optimizer.adam_beta2", "--adam-beta2"),
        _same_as("train.optimizer.warmup_samples", "--lr-warmup-samples"),
        _same_as("train.optimizer.warmup_steps", "training.warmup_steps"),
        _same_as("train.max_steps", "training.max_steps"),
        _same_as("train.optimizer.clip_grad", "CLIP_GRAD_NORM", "--clip-grad"),
        _same_as("train.batch.epochs", "--num-epochs"),
        _read_as("`train.loss.clip_low` 1 - r, `train.loss.clip_high` 1 + r", _read_clip_ratio,
                 "PPO_CLIP_RATIO", "--ppo-clip-ratio",
              "training.ppo_clip_ratio"),
        _same_as("train.loss.w_binary", "training.binary_weight"),
        _same_as("train.loss.w_opd", "training.opd_weight"),
        _same_as("train.distill.teacher_temperature", "training.teacher_temperature"),
        _same_as("train.loss.path", "--custom-loss-function-path"),
        _refuse_all(_CRITIC, "VALUE_CLIP", "training.value_clip_ratio", "training.gae_lambda"),
        # LoRA and memory
        _read_as("`train.finetune` lora, or full", _read_use_lora, "USE_LORA", "--use-lora", "--lora", switch=True),
        _same_as("train.lora.rank", "LORA_RANK", "--lora-rank"),
        _same_as("train.lora.alpha", "LORA_ALPHA", "--lora-alpha"),
        _same_as("train.lora.dropout", "LORA_DROPOUT", "--lora-dropout"),
        _read_as("`train.lora.targets`", lambda v: {"train.lora.targets": _parse_targets(v)}, "LORA_TARGET_MODULES",
              "--lora-target-modules"),
        _same_as("train.gradient_checkpointing", "USE_GRADIENT_CHECKPOINTING",
                 "--use-gradient-checkpointing", switch=True),
        _same_as("train.optimizer.offload", "--offload-optimizer-state", switch=True),
        # Checkpoints
        _same_as("train.checkpoint.save_dir", "CKPT_SAVE_DIR", "--save-dir", "--checkpoint-dir"),
        _same_as("train.checkpoint.save_interval", "--save-interval"),
        _same_as("train.checkpoint.resume", "RESUME_CKPT", "--resume-from-checkpoint"),
        # Placement
        _read_as("`train.gpus`, `train.ranks`", _read_trainer_gpus, "TRAIN_GPUS", "--gpus", "--train-gpus"),
        _same_as("train.ranks", "GPUS_PER_NODE"),
        _same_as("train.launch.nodes", "NNODES"),
        _same_as("train.launch.node_rank", "NODE_RANK"),
        _same_as("train.launch.master_addr", "MASTER_ADDR"),
        _same_as("train.launch.master_port", "MASTER_PORT"),
        # Rollouts as plug-ins
        _same_as("rollout.function_path", "--rollout-function-path"),
        _same_as("rollout.generate_path", "--custom-generate-function-path"),
        _same_as("rollout.workers", "--num-rollout-workers", "rollout.num_workers"),
        _same_as("rollout.max_turns", "--max-turns"),
        _same_as("rollout.per_prompt", "--num-rollouts-per-prompt"),
        _same_as("rollout.parallel_envs", "PARALLEL_ENVS", "--parallel-envs"),
        _refuse_all(_ENVIRONMENTS, "ENV_TYPE", "TASK_TYPE", "MAX_STEPS", "MAX_GUI_STEPS", "SCREENSHOT_BACKEND",
                 "TOOLS_CONFIG", "SWE_BENCH_PATH"),
        # Elsewhere
        _only_notice("the key alone sends nothing: `track.to` wandb turns W&B on", "WANDB_API_KEY"),
        _only_notice("Tinker is not part of this version: the local trainer is used", 
                     "TINKER_API_KEY", "TINKER_ENDPOINT",
                "TINKER_PROJECT_ID"),
        _only_notice("Fireworks is not part of this version: the local trainer is used", "FIREWORKS_API_KEY"),
    )
    for spelling in rows
)  # fmt: skip


_SERVE_WITH = "Say vllm or sglang to serve on GPUs of your own, or embedded for a small model"
REFUSED_VALUES: Mapping[tuple[str, str], str] = {
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


def _parse_targets(value: Any) -> Any:
    """Parse `all-linear` or module names: a list, or one string with commas. Raises `ValueError`."""
    if value == "all-linear":
        return value
    names = value if isinstance(value, list | tuple) else [part.strip() for part in str(value).split(",")]
    if not names or not all(isinstance(name, str) and _MODULE.match(name) for name in names):
        raise ValueError(f"expected all-linear, or names such as q_proj,v_proj, got {value!r}")
    return names


_MODULE = re.compile(r"[\w.-]+\Z")


def by_form(form: Form) -> dict[str, SettingAlias]:
    """Return the aliases of one form by name."""
    return {s.name: s for s in ALIASES if s.form == form}


def split_flags(words: list[str]) -> list[tuple[str, str | bool]]:
    """Split `--a 1 --b --c=2` into (flag, value). A flag without a value is True. Raises `ValueError`."""
    switches = {s.name for s in ALIASES if s.switch}
    out: list[tuple[str, str | bool]] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--"):
            raise ValueError(f"expected a flag such as --lr 1e-6, got {word!r}")
        name, sign, value = word.partition("=")
        if sign:
            out.append((name, value))
        elif rest and not rest[0].startswith("--") and (name not in switches or _is_bool(rest[0])):
            out.append((name, rest.pop(0)))
        else:
            out.append((name, True))
    return out


def _is_bool(word: str) -> bool:
    return word.lower() in ("1", "0", "true", "false", "yes", "no", "on", "off")
