"""Notices about settings that were given and have no effect: because of another setting, or with this command."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from operator import attrgetter
from typing import Any

from openclaw_rl.methods.registry import METHODS, make_method
from openclaw_rl.settings.registry import (
    engine_spec,
    engine_specs,
    setting_keys,
    trainer_spec,
    trainer_specs,
)
from openclaw_rl.settings.schema import Config
from openclaw_rl.settings.schema_practice import PracticeConfig
from openclaw_rl.settings.specs import EngineSpec, TrainerSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class UnusedRule:
    """Settings that have an effect only if `used` is true; `decided_by` is the setting that the notice names."""

    keys: Sequence[str]
    used: Callable[[Config], bool]
    needs: str
    decided_by: str


def _only_with(decided_by: str, values: Sequence[object], *keys: str) -> UnusedRule:
    """Return the rule that `keys` need one of these values."""

    def used(config: Config) -> bool:
        return attrgetter(decided_by)(config) in values

    needs = f"{decided_by} {' or '.join(map(str, values))}"
    return UnusedRule(keys=keys, used=used, needs=needs, decided_by=decided_by)


def _only_beside(decided_by: str, *keys: str) -> UnusedRule:
    """Return the rule that `keys` need another setting to be set."""

    def used(config: Config) -> bool:
        return bool(attrgetter(decided_by)(config))

    return UnusedRule(keys=keys, used=used, needs=decided_by, decided_by=decided_by)


def _follows_hints(config: Config) -> bool:
    return make_method(config.train).uses_hints


def _uses_judge_endpoint(config: Config) -> bool:
    return config.judge.kind == "llm" and config.judge.path is None


def _uses_endpoint_of_judge(config: Config) -> bool:
    """Return whether the judge's endpoint is used, by the judge or by a teacher that has none of its own."""
    teacher = config.teacher
    return _uses_judge_endpoint(config) or (
        teacher.wanted and teacher.base_url == config.judge.base_url
    )


def _uses_top_tokens(config: Config) -> bool:
    method = make_method(config.train)
    return (
        not method.uses_hints
        or method.topk_size > 0
        or config.train.distill.teacher == "ema"
        or config.practice.enabled
    )


def _uses_top_token_term(config: Config) -> bool:
    train = config.train
    return (
        not _follows_hints(config)
        or train.method in ("sdpo", "sdft")
        or train.distill.target != "token"
    )


def _endpoint_keys(section: str) -> tuple[str, ...]:
    return tuple(f"{section}.{key}" for key in ("timeout", "retries", "temperature", "max_tokens"))


_LORA = tuple(f"train.lora.{key}" for key in ("rank", "alpha", "dropout", "targets"))
_DISTILL = tuple(
    f"train.distill.{key}"
    for key in ("opd_clip", "topk", "divergence", "ratio_clip", "hint_choice")
)
_PRACTICE = tuple(f"practice.{key}" for key in PracticeConfig.model_fields if key != "enabled")
_GATE_REPLIES = tuple(f"gate.{key}" for key in ("prompts", "probes", "seconds", "wait", "workers"))
_RULES = (
    _only_with(
        "judge.kind",
        ("llm",),
        "judge.path",
        "judge.num_judges",
        "judge.consensus_threshold",
        "judge.cache",
    ),
    _only_with("judge.kind", ("llm",), *_endpoint_keys("judge")),
    _only_with("judge.kind", ("rules",), "judge.rules_path"),
    _only_with("judge.kind", ("plugin",), "judge.plugin_path"),
    _only_with(
        "judge.kind",
        ("classifier", "plugin"),
        "judge.reward_path",
        "judge.reward_low",
        "judge.reward_high",
    ),
    UnusedRule(
        keys=("judge.model",),
        used=_uses_judge_endpoint,
        needs="judge.kind llm and without judge.path",
        decided_by="judge.kind",
    ),
    UnusedRule(
        keys=("judge.base_url", "judge.api_key"),
        used=_uses_endpoint_of_judge,
        needs="judge.kind llm and without judge.path, or with a teacher.model at this endpoint",
        decided_by="judge.kind",
    ),
    _only_beside("judge.path", "judge.gpus"),
    _only_beside("judge.signals.abandoned", "judge.signals.abandoned_after"),
    _only_with(
        "gate.kind",
        ("probes",),
        "gate.margin",
        "gate.error",
        "gate.strict",
        "gate.held_out",
        "gate.budget",
    ),
    _only_beside("gate.budget", *_GATE_REPLIES),
    _only_with("gate.kind", ("probes",), *_GATE_REPLIES),
    _only_beside("teacher.model", "teacher.api_key", "teacher.when", *_endpoint_keys("teacher")),
    _only_with("teacher.when", ("negative", "always"), "teacher.model", "teacher.base_url"),
    _only_beside("engine.url", "engine.api_key"),
    _only_with("train.finetune", ("lora",), *_LORA, "train.checkpoint.keep_days"),
    UnusedRule(
        keys=("train.batch.min_turns", "train.batch.max_turns", "train.batch.replay_ratio"),
        used=lambda config: not make_method(config.train).uses_episodes,
        needs="a method for conversations",
        decided_by="train.method",
    ),
    *(
        _only_with("train.method", (method.name,), *method.own_settings)
        for method in METHODS.values()
    ),
    _only_with(
        "train.method",
        ("binary", "combine"),
        "train.loss.baseline_decay",
        "train.loss.baseline_shrink",
    ),
    UnusedRule(
        keys=("teacher.model", *_DISTILL),
        used=_follows_hints,
        needs="a method that follows hints",
        decided_by="train.method",
    ),
    UnusedRule(
        keys=("train.distill.opd_clip",),
        used=lambda config: not _follows_hints(config) or not _uses_top_token_term(config),
        needs="train.method opd or combine, and train.distill.target token",
        decided_by="train.distill.target",
    ),
    UnusedRule(
        keys=("train.distill.divergence", "train.distill.ratio_clip"),
        used=_uses_top_token_term,
        needs="train.method sdpo or sdft, or train.distill.target student_topk or teacher_topk",
        decided_by="train.distill.target",
    ),
    UnusedRule(
        keys=("train.distill.topk",),
        used=_uses_top_tokens,
        needs="train.distill.target student_topk or teacher_topk, hint_choice overlap, teacher ema, method sdpo or "
        "sdft, or practice.enabled",
        decided_by="train.distill.target",
    ),
    _only_with(
        "train.distill.teacher", ("ema",), "train.distill.ema_rate", "train.distill.ema_max_kl"
    ),
    _only_beside("gate.watch", "gate.max_fall"),
    UnusedRule(
        keys=("practice.enabled", *_PRACTICE),
        used=_follows_hints,
        needs="a method that follows hints",
        decided_by="train.method",
    ),
    _only_with("practice.enabled", (True,), *_PRACTICE),
    _only_with("sandbox.kind", ("docker", "podman", "gvisor"), "sandbox.image"),
    UnusedRule(
        keys=("gate.canary_turns", "gate.canary_hours"),
        used=lambda config: config.gate.canary > 0,
        needs="a gate.canary above 0",
        decided_by="gate.canary",
    ),
    _only_with("train.batch.max_uses", (2,), "train.batch.replay_ratio"),
    _only_with(
        "train.batch.epochs", (1,), "train.loss.token_ratio_min", "train.loss.token_ratio_max"
    ),
    _only_with("train.loss.surrogate", ("clip",), "train.loss.clip_low", "train.loss.clip_high"),
    _only_with("train.loss.surrogate", ("clip", "gspo"), "train.loss.dual_clip"),
    _only_with("train.loss.sequence_mask", ("opsm",), "train.loss.opsm_delta"),
    _only_with(
        "train.loss.sequence_mask",
        ("geometric",),
        "train.loss.geometric_low",
        "train.loss.geometric_high",
    ),
    UnusedRule(
        keys=("train.loss.clip_high", "train.loss.dual_clip"),
        used=lambda config: config.train.loss.path is None,
        needs="the built-in loss",
        decided_by="train.loss.path",
    ),
    _only_beside("train.checkpoint.save_dir", "train.checkpoint.save_interval"),
    UnusedRule(
        keys=("train.launch.by", "train.launch.shard", "train.launch.timeout"),
        used=lambda config: config.train.ranks * config.train.launch.nodes > 1,
        needs="several ranks",
        decided_by="train.ranks",
    ),
    UnusedRule(
        keys=("train.launch.master_addr", "train.launch.master_port"),
        used=lambda config: config.train.launch.launcher == "torchrun",
        needs="several nodes, or train.launch.by torchrun",
        decided_by="train.launch.nodes",
    ),
    _only_with("train.launch.by", ("ray",), "train.launch.ray"),
    UnusedRule(
        keys=("track.project",),
        used=lambda config: "wandb" in config.track.to,
        needs="wandb in track.to",
        decided_by="track.to",
    ),
    UnusedRule(
        keys=("data.poll",),
        used=lambda config: any((config.data.path, config.data.export_dir, config.data.watch_dir)),
        needs="data.path, data.export_dir or data.watch_dir",
        decided_by="data.watch_dir",
    ),
)


_OF_STARTED_SERVERS = ("engine.python", "engine.args")
_OF_STARTED_ENGINES = ("engine.gpus", "engine.max_batch")


@cache
def _integration_rules() -> tuple[UnusedRule, ...]:
    """Return the rules for settings that only some engines or trainers read."""
    engines_of = _names_by_key(engine_specs())
    trainers_of = _names_by_key(trainer_specs())
    servers = engines_of[_OF_STARTED_SERVERS[0]]
    keys_of: dict[tuple[tuple[str, ...], tuple[str, ...]], list[str]] = {}
    for key in dict.fromkeys([*engines_of, *trainers_of]):
        if key not in (*_OF_STARTED_SERVERS, *_OF_STARTED_ENGINES):
            readers = (tuple(engines_of.get(key, ())), tuple(trainers_of.get(key, ())))
            keys_of.setdefault(readers, []).append(key)
    return (
        UnusedRule(
            keys=_OF_STARTED_SERVERS,
            used=lambda config: (
                _is_read(config, _OF_STARTED_SERVERS[0]) and config.engine.url is None
            ),
            needs=f"a server that is started here (engine.backend {' or '.join(servers)}, without engine.url)",
            decided_by="engine.backend",
        ),
        UnusedRule(
            keys=_OF_STARTED_ENGINES,
            used=lambda config: (
                _is_read(config, _OF_STARTED_ENGINES[0]) and config.engine.url is None
            ),
            needs="an engine that is started here",
            decided_by="engine.url",
        ),
        *(_read_by(engines, trainers, keys) for (engines, trainers), keys in keys_of.items()),
    )


def _names_by_key(specs: Iterable[EngineSpec | TrainerSpec]) -> dict[str, list[str]]:
    """Return the names of the engines, or of the trainers, that read each setting."""
    names: dict[str, list[str]] = {}
    for spec in specs:
        for key in setting_keys(spec):
            names.setdefault(key, []).append(spec.name)
    return names


def _read_by(engines: Sequence[str], trainers: Sequence[str], keys: Sequence[str]) -> UnusedRule:
    """Return the rule that `keys` need one of these engines or trainers."""
    needs = [f"engine.backend {' or '.join(engines)}"] if engines else []
    needs += [f"train.trainer {' or '.join(trainers)}"] if trainers else []
    return UnusedRule(
        keys=keys,
        used=lambda config: _is_read(config, keys[0]),
        needs=" or ".join(needs),
        decided_by="engine.backend" if engines else "train.trainer",
    )


def _is_read(config: Config, key: str) -> bool:
    return key in setting_keys(engine_spec(config)) or key in setting_keys(trainer_spec(config))


def unused_settings(config: Config, sources: Mapping[str, str]) -> list[str]:
    """Return notices about settings that have no effect. `sources`: setting -> where it was given."""
    notices = []
    for rule in (*_integration_rules(), *_RULES):
        names = _given_names(rule.keys, sources)
        if names and not rule.used(config):
            value = _format_value(attrgetter(rule.decided_by)(config))
            notices.append(
                f"{_no_effect(names)}: only with {rule.needs}, and {rule.decided_by} is {value}"
            )
    return notices


_TRAIN = (("up", "train"), ("train",))
_JUDGE = (("up", "judge"), ("judge",))
_OBSERVED = (
    f"judge.signals.{key}"
    for key in ("regenerated", "edited", "copied", "abandoned", "abandoned_after")
)
_READ_BY: Mapping[str, tuple[Sequence[str], Collection[str]]] = {
    "data.path": _TRAIN,
    "data.watch_dir": _TRAIN,
    "data.export_dir": (("up", "serve", "collect"), ("gateway", "collect")),
    "rollout": (("rollout",), ()),
    "sandbox": (("doctor", "env"), ()),
    "rollout.parallel_envs": (("rollout", "env"), ()),
    "rollout.episode_steps": (("env",), ()),
    "rollout.tools_config": (("env",), ()),
    "train": _TRAIN,
    "gate": _TRAIN,
    "train.exit_when_done": (("train",), ()),
    "train.lora.rank": (("up", "train", "serve"), ("train", "engine")),
    "track": _TRAIN,
    "judge": _JUDGE,
    **dict.fromkeys(_OBSERVED, (("up", "judge", "collect"), ("judge", "collect"))),
    "teacher": _JUDGE,
    "collect": (("up", "collect"), ("collect",)),
}
"""Setting or section -> (commands that read it, workers that read it)."""


def unused_by_command(
    sources: Mapping[str, str], command: str, workers: Collection[str]
) -> list[str]:
    """Return notices about settings that a command with these workers does not read. `sources` as above.

    Variables and files are shared by several commands, so of these only settings of `data` and `rollout` are named.
    """
    unread: dict[Sequence[str], list[str]] = {}
    for key, source in sources.items():
        section = key.partition(".")[0]
        known = _READ_BY.get(key) or _READ_BY.get(section)
        if known is None:
            continue
        commands, readers = known
        is_named = section in ("data", "rollout") or source.startswith("flags: ")
        is_read = command in commands or not set(workers).isdisjoint(readers)
        if is_named and not is_read:
            unread.setdefault(commands, []).append(key)
    notices = []
    for commands, keys in unread.items():
        names = _no_effect(_given_names(keys, sources))
        places = _format_commands(commands)
        notices.append(f"{names} on `openclaw-rl {command}`: only on {places}")
    return notices


def _format_commands(names: Sequence[str]) -> str:
    *first, last = (f"`openclaw-rl {name}`" for name in names)
    return f"{', '.join(first)} and {last}" if first else last


def _given_names(keys: Collection[str], sources: Mapping[str, str]) -> list[str]:
    """Return the names under which any of `keys` was given."""
    return sorted({sources[key].partition(": ")[2] for key in keys if key in sources})


def _no_effect(names: Sequence[str]) -> str:
    return f"{', '.join(names)} {'has' if len(names) == 1 else 'have'} no effect"


def _format_value(value: Any) -> str:
    return "not set" if value in (None, ()) else str(value)
