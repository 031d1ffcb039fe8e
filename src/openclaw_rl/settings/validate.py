"""Checks across settings: combinations that are invalid."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from operator import attrgetter
from urllib.parse import urlsplit

from openclaw_rl.common.linear_regex import LinearPattern, PatternError
from openclaw_rl.errors import ConfigError
from openclaw_rl.methods.registry import make_method
from openclaw_rl.settings.registry import (
    engine_spec,
    engine_specs,
    trainer_spec,
    trainer_specs,
)
from openclaw_rl.settings.schema import SECRETS, Config, ServeConfig
from openclaw_rl.settings.schema_judge import EndpointConfig, JudgeConfig
from openclaw_rl.settings.schema_train import TrainConfig
from openclaw_rl.settings.specs import EngineSpec, TrainerSpec

_ORIGIN = re.compile(r"\*|null|[a-z][a-z0-9+.-]*://[^\s/?#A-Z]+")
# Characters of the API key where other machines reach the gateway.
MIN_KEY_CHARS = 16


def _check_patterns(key: str, patterns: Iterable[str]) -> None:
    for pattern in patterns:
        try:
            LinearPattern(pattern)
        except PatternError as error:
            raise ConfigError(
                f"{key}: {pattern!r} is not a regular expression of RE2: {error}"
            ) from None


def _check_url(key: str, url: str | None) -> None:
    if url and not _is_http_address(url):
        raise ConfigError(f"{key}: expected an address like http://127.0.0.1:8001, got {url!r}")


def _is_http_address(url: str) -> bool:
    has_spaces = url.split() != [url]
    try:
        parts = urlsplit(url)
        has_host = bool(parts.hostname) and parts.port != 0
    except ValueError:
        # Unbalanced brackets, or an invalid port.
        return False
    return parts.scheme in ("http", "https") and has_host and not has_spaces


def _check_sent_keys(config: Config) -> None:
    """Refuse keys that no HTTP header can hold, such as one with the line end of its file. The key is not shown."""
    for name in SECRETS:
        key = attrgetter(name)(config)
        if name != "serve.api_key" and key and not re.fullmatch(r"[!-~]+", key):
            raise ConfigError(
                f"{name}: expected a key of ASCII characters without spaces or line ends, got one of {len(key)} "
                "characters that has others. Set it without what surrounds the key"
            )


def _check_fireworks_ids(config: Config) -> None:
    for name in ("fireworks.account", "fireworks.deployment"):
        value = attrgetter(name)(config)
        if value and not re.fullmatch(r"[A-Za-z0-9._-]+", value):
            raise ConfigError(
                f"{name}: expected the ID alone, without accounts/ or a path, got {value!r}"
            )


def _check_origins(origins: Iterable[str]) -> None:
    """Browsers send an origin as SCHEME://HOST[:PORT] in lower case, without a path; no other text ever matches."""
    for origin in origins:
        if not _ORIGIN.fullmatch(origin):
            raise ConfigError(
                f"serve.cors_origins: expected origins like https://chat.example or http://localhost:3000 (lower case, "
                f"no path, no slash at the end), or *, got {origin!r}"
            )


_PATHS = (
    "home model.path model.tokenizer judge.path judge.rules_path judge.reward_path judge.plugin_path train.loss.path "
    "gate.probes train.checkpoint.save_dir train.checkpoint.resume data.path data.export_dir data.watch_dir "
    "rollout.function_path rollout.generate_path"
)


def _check_home_paths(config: Config) -> None:
    for key in _PATHS.split():
        path = attrgetter(key)(config)
        if path is not None and path.startswith("~") and os.path.expanduser(path) == path:  # noqa: PTH111
            raise ConfigError(
                f"{key} {path}: expected the home folder of a user of this machine. Give the full path"
            )


def validate(config: Config) -> None:
    """Raise `ConfigError` for invalid combinations of settings."""
    _check_url("engine.url", config.engine.url)
    _check_url("tinker.url", config.tinker.url)
    _check_url("fireworks.url", config.fireworks.url)
    _check_url("judge.base_url", config.judge.base_url)
    _check_url("teacher.base_url", config.teacher.base_url)
    _check_sent_keys(config)
    _check_fireworks_ids(config)
    _check_patterns("collect.side_patterns", config.collect.side_patterns)
    _check_patterns("collect.client_prompt_patterns", config.collect.client_prompt_patterns)
    _check_patterns("serve.ephemeral_patterns", config.serve.ephemeral_patterns)
    _check_origins(config.serve.cors_origins)
    _check_home_paths(config)
    _check_train(config.train)
    trainer_spec(config).check_settings(config)
    _check_server_weights(config)
    _check_plugins(config)
    _check_judge(config)
    engine_spec(config).check_settings(config)
    _check_key(config.serve)
    _check_policies(config)


def _check_server_weights(config: Config) -> None:
    """Refuse a trainer that loads its weights into a server where it cannot."""
    if config.engine.weights != "trainer":
        return
    servers = _names(spec for spec in engine_specs() if spec.takes_trainer_weights)
    loaders = _names(spec for spec in trainer_specs() if spec.loads_server)
    required = {
        f"engine.backend to {servers}": engine_spec(config).takes_trainer_weights,
        "engine.url to the address of the trainer's router": config.engine.url is not None,
        f"train.trainer to {loaders}": trainer_spec(config).loads_server,
        "train.finetune to full": config.train.finetune == "full",
        "policy.per to all": config.policy.per == "all",
    }
    changes = [change for change, holds in required.items() if not holds]
    if changes:
        raise ConfigError(
            f"engine.weights is trainer, for slime (docs/guides/slime.md). Set {', '.join(changes)}"
        )


def _names(specs: Iterable[EngineSpec | TrainerSpec]) -> str:
    return " or ".join(spec.name for spec in specs)


def _check_policies(config: Config) -> None:
    if config.policy.per == "all":
        return
    if config.train.checkpoint.save_dir is not None:
        raise ConfigError(
            f"policy.per is {config.policy.per}, but a checkpoint holds one policy. Leave out "
            "train.checkpoint.save_dir; the newest versions of each policy are in the home"
        )
    if not engine_spec(config).loads_versions:
        raise ConfigError(
            f"policy.per is {config.policy.per}, but an endpoint of engine.backend "
            f"{config.engine.backend} need not load versions, and without them it answers everybody alike. Set "
            "engine.backend to vllm, sglang or embedded, or leave out policy.per"
        )


def _check_key(serve: ServeConfig) -> None:
    if serve.is_loopback:
        return
    wide = f"serve.host {serve.host} can be reached from other machines"
    if not serve.api_key:
        raise ConfigError(
            f"{wide}, and no key is set. Set serve.api_key (OPENCLAW_API_KEY), or bind 127.0.0.1."
        )
    if len(serve.api_key) < MIN_KEY_CHARS:
        raise ConfigError(
            f"{wide}, and serve.api_key has {len(serve.api_key)} characters: others could guess it. Set one of "
            f"{MIN_KEY_CHARS} or more, e.g. the output of `openssl rand -hex 16`, or bind 127.0.0.1."
        )


def _check_judge(config: Config) -> None:
    """Check judge and teacher. A model without an endpoint is no error yet: see `missing_endpoints`."""
    signals = config.judge.signals
    teacher = config.teacher
    if signals.abandoned and signals.abandoned_after > config.collect.session_timeout:
        raise ConfigError(
            f"judge.signals.abandoned_after ({signals.abandoned_after:g}) is above collect.session_timeout "
            f"({config.collect.session_timeout:g}): turns are dropped before. Set a shorter time"
        )
    if config.judge.kind == "llm":
        _check_llm_judge(config)
    has_teacher = teacher.base_url and teacher.when != "never"
    if has_teacher and not teacher.model:
        raise ConfigError(
            "teacher.base_url is set: teacher.model is needed too. teacher.when=never turns it off."
        )


def _check_llm_judge(config: Config) -> None:
    judge = config.judge
    if not (judge.path or judge.model):
        raise ConfigError(
            "judge.kind is llm: judge.model and judge.base_url are needed too (an OpenAI-compatible endpoint), or "
            "judge.path"
        )
    if judge.path and not engine_spec(config).loads_judge:
        raise ConfigError(
            "judge.path: a model of the judge's own needs an engine that is started here, and engine.backend is "
            f"{config.engine.backend}. Give judge.base_url and judge.model instead"
        )


def missing_endpoints(config: Config) -> list[str]:
    """Return a message for each model of judge and teacher that no endpoint serves.

    Such settings load, because commands without a judge can use them. The judge refuses to start with them.
    """
    judge = config.judge
    sections: dict[str, EndpointConfig] = {}
    if judge.kind == "llm" and judge.path is None:
        sections["judge"] = judge
    if config.teacher.wanted:
        sections["teacher"] = config.teacher
    return [
        f"{name}.model is {section.model}, and no endpoint serves it: the judge cannot start. Set {name}.base_url to "
        "an OpenAI-compatible endpoint, e.g. https://api.openai.com/v1 with the key in "
        f"OPENCLAW_{name.upper()}_API_KEY"
        for name, section in sections.items()
        if section.base_url is None
    ]


def untrained_lessons(config: Config) -> list[str]:
    """Return a notice if the trainer learns from no turn whose prompt had lessons."""
    method = make_method(config.train)
    needs_hints = method.uses_hints and not method.uses_reward
    has_lessons = config.serve.lessons != "off"
    if trainer_spec(config).trains_under_lessons or not (needs_hints and has_lessons):
        return []
    return [
        f"train.method {config.train.method} with train.trainer {config.train.trainer} learns nothing from turns "
        "whose prompt had lessons, so after the first wish it may learn nothing at all. Set serve.lessons to off, or "
        "train.method to combine"
    ]


def _check_train(t: TrainConfig) -> None:
    for wrong, message in _step_rules(t):
        if wrong:
            raise ConfigError(message if message.endswith(")") else f"{message}.")
    _check_method(t)


def _check_method(t: TrainConfig) -> None:
    try:
        make_method(t)
    except ValueError as error:
        raise ConfigError(f"{error}.") from None


def _step_rules(t: TrainConfig) -> tuple[tuple[bool, str], ...]:
    """Return (whether the settings are wrong, message) for each rule about batches and steps."""
    alone = t.ranks == 1 and t.launch.nodes == 1
    return (
        (
            t.batch.max_turns < t.batch.min_turns,
            f"train.batch.max_turns ({t.batch.max_turns}) is below train.batch.min_turns ({t.batch.min_turns})",
        ),
        (
            t.batch.max_groups < t.batch.min_groups,
            f"train.batch.max_groups ({t.batch.max_groups}) is below train.batch.min_groups ({t.batch.min_groups})",
        ),
        (
            t.safety.max_batch_log_ratio is not None
            and t.safety.max_batch_log_ratio > t.safety.max_turn_log_ratio,
            f"train.safety.max_batch_log_ratio ({t.safety.max_batch_log_ratio}) is above "
            f"train.safety.max_turn_log_ratio ({t.safety.max_turn_log_ratio}), which holds for each turn",
        ),
        (
            t.batch.max_uses > 1
            and (t.batch.replay_ratio == 0 or t.batch.max_turns == t.batch.min_turns),
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
            t.finetune == "full" and t.base_quantization_bits != 16,
            f"train.finetune full trains the base itself, which therefore cannot have {t.base_quantization_bits} bits. "
            "Set train.finetune lora, or train.base_quantization_bits 16",
        ),
        (
            t.launch.shard is True and (t.finetune == "full" or t.base_quantization_bits != 16),
            "train.launch.shard true shards the frozen layers below an adapter, in 16 bits or more. With "
            f"train.finetune {t.finetune} and train.base_quantization_bits {t.base_quantization_bits} every rank holds "
            "the whole model: set it false",
        ),
        (
            t.loss.path is not None and (t.batch.epochs > 1 or t.distill.teacher_temperature != 1),
            "train.loss.path: a loss of your own takes one step a batch, at the temperature of sampling. Leave "
            "train.batch.epochs and train.distill.teacher_temperature at 1",
        ),
    )


def _check_plugins(config: Config) -> None:
    rollout = config.rollout
    if config.train.loss.path is not None:
        _check_own_loss(config.train)
    if rollout.function_path is not None and rollout.generate_path is not None:
        raise ConfigError(
            "rollout.function_path and rollout.generate_path: which of the two? Unset one"
        )
    _check_judge_plugins(config.judge)


_OF_OWN_LOSS: Mapping[str, tuple[str | None, ...]] = {
    "distill.target": ("token",),
    "distill.hint_choice": (None, "mixture"),
    "loss.surrogate": ("clip",),
    "loss.sequence_mask": ("geometric", "none"),
}
"""Setting of `train` -> its values beside `train.loss.path`; others would be without effect."""


def _check_own_loss(train: TrainConfig) -> None:
    for key, values in _OF_OWN_LOSS.items():
        value = attrgetter(key)(train)
        if value not in values:
            raise ConfigError(
                f"train.loss.path: a loss of your own works on the sampled tokens, and train.{key} {value} would be "
                f"without effect. Say train.{key} {values[-1]}, or unset train.loss.path."
            )


def _check_judge_plugins(judge: JudgeConfig) -> None:
    if judge.kind == "plugin" and judge.plugin_path is None:
        raise ConfigError(
            "judge.kind is plugin: judge.plugin_path (--custom-rm-path FILE) is needed too"
        )
    if judge.kind == "classifier" and judge.reward_path is None:
        raise ConfigError(
            "judge.kind is classifier: judge.reward_path (PRM_MODEL_PATH) is needed too"
        )
    if judge.reward_low > judge.reward_high:
        raise ConfigError(
            f"judge.reward_low ({judge.reward_low}) is above judge.reward_high ({judge.reward_high})"
        )
