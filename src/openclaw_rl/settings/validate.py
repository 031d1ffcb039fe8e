"""Checks across settings: combinations that are invalid or have no effect."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from operator import attrgetter
from urllib.parse import urlsplit

from openclaw_rl.errors import ConfigError
from openclaw_rl.methods.registry import METHODS, make_method
from openclaw_rl.settings.schema import Config
from openclaw_rl.settings.schema_train import TrainConfig


def _check_patterns(key: str, patterns: Iterable[str]) -> None:
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ConfigError(f"{key}: {pattern!r} is not a regular expression: {error}") from None


def _check_url(key: str, url: str | None) -> None:
    if not url:
        return
    try:
        parts = urlsplit(url)
        sound = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # unbalanced brackets, or an invalid port
        sound = False
    if not sound:
        raise ConfigError(f"{key}: expected an address like http://127.0.0.1:8001, got {url!r}")


_PATHS = (
    "home model.path model.tokenizer judge.path judge.rules_path judge.reward_path judge.plugin_path train.loss.path "
    "train.checkpoint.save_dir train.checkpoint.resume data.path data.export_dir data.watch_dir "
    "rollout.function_path rollout.generate_path"
)


def _check_home_paths(config: Config) -> None:
    for key in _PATHS.split():
        path = attrgetter(key)(config)
        if path is not None and path.startswith("~") and os.path.expanduser(path) == path:  # noqa: PTH111
            raise ConfigError(f"{key} {path}: expected the home folder of a user of this machine. Give the full path")


def validate(config: Config) -> None:
    """Raise `ConfigError` for invalid combinations of settings."""
    _check_url("engine.url", config.engine.url)
    _check_url("judge.base_url", config.judge.base_url)
    _check_url("teacher.base_url", config.teacher.base_url)
    _check_patterns("collect.side_patterns", config.collect.side_patterns)
    _check_patterns("collect.client_prompt_patterns", config.collect.client_prompt_patterns)
    _check_patterns("serve.ephemeral_patterns", config.serve.ephemeral_patterns)
    _check_home_paths(config)
    _check_train(config.train)
    _check_plugins(config)
    if config.judge.kind == "llm" and not config.judge.path and not (config.judge.base_url and config.judge.model):
        raise ConfigError(
            "judge.kind is llm: judge.base_url and judge.model are needed too (an OpenAI-compatible one), or judge.path"
        )
    if config.judge.kind == "llm" and config.judge.path and config.engine.backend == "openai":
        raise ConfigError(
            "judge.path: a model of the judge's own needs an engine that is started here, and engine.backend is "
            "openai. Give judge.base_url and judge.model instead"
        )
    if config.teacher.model and not config.teacher.base_url:
        raise ConfigError("teacher.model is set: teacher.base_url is needed too, or judge.base_url where it is as well")
    if config.engine.backend == "embedded" and (
        config.engine.url or config.engine.logprob_convention not in (None, "scaled")
    ):
        raise ConfigError(
            "engine.url and engine.logprob_convention are for a server; the embedded engine takes neither. Unset it,"
            " or set engine.backend (--backend vllm)"
        )
    if config.engine.backend == "openai" and not config.engine.url:
        raise ConfigError("engine.backend is openai: engine.url is needed too, e.g. http://127.0.0.1:8001/v1")
    if config.teacher.wanted and not config.teacher.model:
        raise ConfigError("teacher.base_url is set: teacher.model is needed too. teacher.when=never turns it off.")
    loopback = config.serve.host in ("127.0.0.1", "localhost", "::1")
    if not loopback and not config.serve.api_key:
        raise ConfigError(
            f"serve.host {config.serve.host} can be reached from other machines, and no key is set. "
            "Set serve.api_key (OPENCLAW_API_KEY), or bind 127.0.0.1."
        )


def unused_settings(config: Config, sources: Mapping[str, str]) -> list[str]:
    """Return notices about settings that have no effect. `sources`: setting -> where it was given."""
    judge, train = config.judge, config.train
    kind, method = f"judge.kind is {judge.kind}", f"train.method is {train.method}"
    rules = (
        (judge.kind == "llm", "judge.kind llm", kind, ("judge.path", "judge.num_judges", "judge.consensus_threshold")),
        (judge.kind == "rules", "judge.kind rules", kind, ("judge.rules_path",)),
        (judge.kind == "plugin", "judge.kind plugin", kind, ("judge.plugin_path",)),
        (judge.kind in ("classifier", "plugin"), "judge.kind classifier or plugin", kind, ("judge.reward_path",)),
        (train.finetune == "lora", "train.finetune lora", "train.finetune is full (USE_LORA false)", _LORA),
        *((train.method == m.name, f"train.method {m.name}", method, m.own_settings) for m in METHODS.values()),
        (make_method(train).uses_hints, "a method that follows hints", method, ("teacher.model",)),
        (
            train.checkpoint.save_dir is not None,
            "train.checkpoint.save_dir",
            "it is not set (--save-dir)",
            ("train.checkpoint.save_interval",),
        ),
    )
    said = []
    for used, whose, why, keys in rules:
        names = sorted({sources[key].partition(": ")[2] for key in keys if key in sources})
        if names and not used:
            verb = "has" if len(names) == 1 else "have"
            said.append(f"{', '.join(names)} {verb} no effect: only with {whose}, and {why}")
    return said


_LORA = ("train.lora.rank", "train.lora.alpha", "train.lora.dropout", "train.lora.targets")


def _check_train(t: TrainConfig) -> None:
    for wrong, words in _step_rules(t):
        if wrong:
            raise ConfigError(words if words.endswith(")") else f"{words}.")
    _check_method(t)


def _check_method(t: TrainConfig) -> None:
    try:
        method = make_method(t)
    except ValueError as error:
        raise ConfigError(f"{error}.") from None
    if method.uses_episodes:
        raise ConfigError(
            f"train.method {t.method} compares several rollouts of one task, and a conversation has one reply a turn: "
            "nothing could be learned from it. Say combine, binary or opd."
        )


def _step_rules(t: TrainConfig) -> tuple[tuple[bool, str], ...]:
    """Return (whether the settings are wrong, message) for each rule about batches and steps."""
    alone = t.ranks == 1 and t.launch.nodes == 1
    return (
        (
            t.batch.max_turns < t.batch.min_turns,
            f"train.batch.max_turns ({t.batch.max_turns}) is below train.batch.min_turns ({t.batch.min_turns})",
        ),
        (
            t.safety.max_batch_log_ratio is not None and t.safety.max_batch_log_ratio > t.safety.max_turn_log_ratio,
            f"train.safety.max_batch_log_ratio ({t.safety.max_batch_log_ratio}) is above "
            f"train.safety.max_turn_log_ratio ({t.safety.max_turn_log_ratio}), which holds for each turn",
        ),
        (
            t.batch.max_uses > 1 and (t.batch.replay_ratio == 0 or t.batch.max_turns == t.batch.min_turns),
            "train.batch.max_uses 2 replays turns beside fresh ones, and a batch has no place for them: "
            "train.batch.replay_ratio must be above 0, and train.batch.max_turns above train.batch.min_turns",
        ),
        (
            alone and (t.launch.by in ("ray", "torchrun") or t.launch.shard is True),
            "train.launch.by and train.launch.shard are for several ranks, and there is one. Set train.ranks to 2 or "
            "more, or leave them out",
        ),
        (
            t.launch.node_rank >= t.launch.nodes,
            f"train.launch.node_rank (NODE_RANK) is {t.launch.node_rank}, and train.launch.nodes (NNODES) "
            f"{t.launch.nodes}: machines are numbered from 0. Set train.launch.nodes to how many there are, or correct "
            "the number",
        ),
        (
            t.launch.by == "local" and t.launch.nodes > 1,
            f"train.launch.by local starts ranks on this machine, and train.launch.nodes (NNODES) is {t.launch.nodes}. "
            "Say torchrun or ray, or leave it out",
        ),
        (
            t.compile and not alone,
            "train.compile is for one rank: it is untested with several. Leave it out, or set train.ranks and "
            "train.launch.nodes to 1",
        ),
        (
            t.loss.path is not None and (t.batch.epochs > 1 or t.distill.teacher_temperature != 1),
            "train.loss.path: a loss of your own takes one step a batch, at the temperature of sampling. Leave "
            "train.batch.epochs and train.distill.teacher_temperature at 1",
        ),
    )


def _check_plugins(config: Config) -> None:
    train, judge = config.train, config.judge
    allowed: dict[str, tuple[str | None, ...]] = {
        "distill.target": ("token",),
        "distill.hint_choice": (None, "mixture"),
        "loss.surrogate": ("clip",),
        "loss.sequence_mask": ("geometric", "none"),
    }
    for key, values in allowed.items():
        if train.loss.path is not None and (value := attrgetter(key)(train)) not in values:
            raise ConfigError(
                f"train.loss.path: a loss of your own works on the sampled tokens, and train.{key} {value} would be "
                f"without effect. Say train.{key} {values[-1]}, or unset train.loss.path."
            )
    rollout = config.rollout
    if rollout.function_path is not None and rollout.generate_path is not None:
        raise ConfigError("rollout.function_path and rollout.generate_path: which of the two? Unset one")
    if rollout.per_prompt > 1 and rollout.function_path is None and rollout.generate_path is None:
        raise ConfigError(
            f"rollout.per_prompt (--num-rollouts-per-prompt) {rollout.per_prompt}: a live conversation happens once; "
            "rollouts per prompt need a rollout plug-in (rollout.function_path, `openclaw-rl rollout`). Leave it at 1"
        )
    if judge.kind == "plugin" and judge.plugin_path is None:
        raise ConfigError("judge.kind is plugin: judge.plugin_path (--custom-rm-path FILE) is needed too")
    if judge.kind == "classifier" and judge.reward_path is None:
        raise ConfigError("judge.kind is classifier: judge.reward_path (PRM_MODEL_PATH) is needed too")
    if judge.reward_low > judge.reward_high:
        raise ConfigError(f"judge.reward_low ({judge.reward_low}) is above judge.reward_high ({judge.reward_high})")
