"""Every setting, typed, read once at the edge: flag over environment over file over default.

The only file that reads the environment. The tree and its defaults stand in `sections.py`, other spellings in
`spellings.py`, how they are read in `reading.py`. An unknown key fails and names the nearest known one; two spellings
of one setting that disagree are an error.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pydantic import BaseModel, ValidationError

from openclaw_rl import reading
from openclaw_rl.errors import ConfigError
from openclaw_rl.reading import read_value
from openclaw_rl.sections import (
    STARTER,
    CollectConfig,
    Config,
    EndpointConfig,
    EngineConfig,
    JudgeConfig,
    LaunchConfig,
    LoraConfig,
    ModelConfig,
    RunConfig,
    ServeConfig,
    TeacherConfig,
    TrackConfig,
    TrainConfig,
)

__all__ = [
    "ENV_PREFIX",
    "HANDED_DOWN",
    "SECRETS",
    "STARTER",
    "CollectConfig",
    "Config",
    "EndpointConfig",
    "EngineConfig",
    "JudgeConfig",
    "LaunchConfig",
    "Loaded",
    "LoraConfig",
    "ModelConfig",
    "RunConfig",
    "ServeConfig",
    "TeacherConfig",
    "TrackConfig",
    "TrainConfig",
    "foreign_environment",
    "from_flat",
    "inherited",
    "known_keys",
    "load",
    "load_all",
    "read_environment",
    "read_file",
    "read_value",
    "to_environment",
]

ENV_PREFIX = reading.LONG
HANDED_DOWN = "OPENCLAW_RL_CONFIG_JSON"
SECRETS = ("serve.api_key", "engine.api_key", "judge.api_key", "teacher.api_key", "model.hf_token")
SECRET_NAMES = ("OPENCLAW_API_KEY", "OPENCLAW_ENGINE_API_KEY", "OPENCLAW_JUDGE_API_KEY", "OPENCLAW_TEACHER_API_KEY")
"""Not for programs that are not ours (HF_TOKEN is: they download models, too)."""


def _text_keys() -> frozenset[str]:
    """Settings that are text: taken as it is from the environment and the command line."""
    return frozenset(key for key, kind in _leaves() if kind in (str, str | None))


def _leaves(model: type[BaseModel] = Config, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted name, type) of every setting."""
    for name, info in model.model_fields.items():
        kind = info.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from _leaves(kind, f"{prefix}{name}.")
        else:
            yield prefix + name, kind


def known_keys() -> Iterator[str]:
    """Every setting's dotted name."""
    return (key for key, _ in _leaves())


def read_file(path: str | Path) -> dict[str, Any]:
    """A YAML (or JSON) file as dotted keys. Raises `ConfigError` naming the file and the keys."""
    return _values(reading.from_file(path, known_keys()).close())


def read_environment(environ: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Settings from the environment as dotted keys; two spellings that disagree are an error."""
    return _values(_environment(environ).close())


def _environment(environ: Mapping[str, str] | None) -> reading.Layer:
    env = os.environ if environ is None else environ
    return reading.from_environment(env, known_keys(), text=_text_keys(), ours=HANDED_DOWN)


def _values(found: Mapping[str, reading.Given]) -> dict[str, Any]:
    return {key: given.value for key, given in found.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """The settings in force, where each that is not a default came from, and what is to be said about them."""

    config: Config
    sources: Mapping[str, str]
    notices: Sequence[str]


def load(
    *,
    file: str | Path | None = None,
    flags: Mapping[str, Any] | None = None,
    words: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
) -> Config:
    """The settings in force. See `load_all`."""
    return load_all(file=file, flags=flags, words=words, environ=environ).config


def load_all(
    *,
    file: str | Path | None = None,
    flags: Mapping[str, Any] | None = None,
    words: Sequence[str] = (),
    sets: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
) -> Loaded:
    """Flags over the environment over the file over the defaults. Raises `ConfigError`.

    `flags`: dotted keys, None counts as not given. `sets`: `train.batch_min=8`. `words`: flags in other spellings.
    """
    layers = [reading.from_file(file, known_keys())] if file else []
    layers.append(_environment(environ))
    said = reading.from_words(words, known_keys(), text=_text_keys())
    for key, value in (flags or {}).items():
        if value is not None:
            said.say(key, value)
    for item in sets:
        key, sign, value = item.partition("=")
        if not sign:
            raise ConfigError(f"--set {item}: expected KEY=VALUE, e.g. --set train.batch_min=8")
        said.say(key, value, shown=f"--set {key}")
    layers.append(said)
    found: dict[str, reading.Given] = {}
    for layer in layers:
        given = layer.close()
        found |= {key: one for key, one in given.items() if not one.weak or key not in found}
    sources = {key: given.source for key, given in found.items()}
    return Loaded(
        config=_made(_values(found), sources), sources=sources, notices=[n for layer in layers for n in layer.notices]
    )


def from_flat(flat: Mapping[str, Any]) -> Config:
    """A `Config` from dotted keys. Raises `ConfigError` that names the key, the value and what was expected."""
    return _made(flat, {})


def _made(flat: Mapping[str, Any], sources: Mapping[str, str]) -> Config:
    tree: dict[str, Any] = {}
    for key, value in flat.items():
        node = tree
        *parents, leaf = key.split(".")
        for parent in parents:
            node = node.setdefault(parent, {})
        node[leaf] = value
    try:
        config = Config.model_validate(tree)
    except ValidationError as error:
        raise ConfigError("settings: " + "; ".join(_fault(e, sources) for e in error.errors())) from None
    config = _taught_by_the_judge(config)
    _check_together(config)
    return config


def _taught_by_the_judge(config: Config) -> Config:
    """A teacher that is only named lives where the judge does."""
    judge, teacher = config.judge, config.teacher
    if not teacher.model or teacher.base_url or not judge.base_url:
        return config
    where = {"base_url": judge.base_url, "api_key": teacher.api_key or judge.api_key}
    return config.model_copy(update={"teacher": teacher.model_copy(update=where)})


def _fault(error: Any, sources: Mapping[str, str]) -> str:
    key = ".".join(str(part) for part in error["loc"])
    source = next((said for known, said in sources.items() if key == known or key.startswith(known + ".")), "")
    shown = "" if key in SECRETS else f" (got {error['input']!r})"
    return f"{key}: {error['msg']}{shown}" + (f", from {source}" if source else "")


def _check_patterns(key: str, patterns: Iterable[str]) -> None:
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ConfigError(f"{key}: {pattern!r} is no regular expression: {error}") from None


def _check_url(key: str, url: str | None) -> None:
    if not url:
        return
    try:
        parts = urlsplit(url)
        sound = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # brackets that do not match, a port that is none
        sound = False
    if not sound:
        raise ConfigError(f"{key}: expected an address like http://127.0.0.1:8001, got {url!r}")


def _check_together(config: Config) -> None:
    _check_url("engine.url", config.engine.url)
    _check_url("judge.base_url", config.judge.base_url)
    _check_url("teacher.base_url", config.teacher.base_url)
    _check_patterns("collect.side_patterns", config.collect.side_patterns)
    _check_patterns("collect.interlude_patterns", config.collect.interlude_patterns)
    _check_patterns("serve.transient_patterns", config.serve.transient_patterns)
    if config.train.batch_max < config.train.batch_min:
        raise ConfigError(
            f"train.batch_max ({config.train.batch_max}) is below train.batch_min ({config.train.batch_min})"
        )
    if config.train.method == "groups":
        raise ConfigError(
            "train.method groups compares several rollouts of one task, and a conversation has one reply a turn: "
            "nothing could be learned from it. Say combine, binary or opd."
        )
    if config.train.hint_choice == "mixture" and config.train.follows_teacher_topk:
        raise ConfigError(
            "train.hint_choice mixture: each hinted teacher has likeliest tokens of its own, and there is no mixture "
            "over them. Say overlap, or train.distill=student_topk (train.method=sdpo)"
        )
    _check_plugins(config)
    if config.train.teacher_temperature != 1 and config.train.follows_topk:
        raise ConfigError(
            "train.teacher_temperature is for the token that was sampled; over the likeliest tokens a softer teacher "
            "would be another target. Leave it at 1, or set train.distill token (train.method combine or opd)"
        )
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
    if config.engine.backend == "embedded" and (config.engine.url or config.engine.logprobs not in (None, "scaled")):
        raise ConfigError(
            "engine.url and engine.logprobs are for a server; the embedded engine takes neither. Unset it,"
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


def _check_plugins(config: Config) -> None:
    train, judge = config.train, config.judge
    ours: dict[str, tuple[object, tuple[object, ...]]] = {
        "method": (train.method, ("binary", "opd", "combine")),
        "distill": (train.distill, ("token",)),
        "hint_choice": (train.hint_choice, (None, "mixture")),
        "loss": (train.loss, ("clip",)),
        "sequence_mask": (train.sequence_mask, ("geometric", "none")),
    }
    for key, (value, possible) in ours.items():
        if train.loss_path is not None and value not in possible:
            raise ConfigError(
                f"train.loss_path: a loss of your own works on the sampled tokens, and train.{key} {value} would be "
                f"without effect. Say train.{key} {possible[-1]}, or unset train.loss_path."
            )
    rollout = config.rollout
    if rollout.function_path is not None and rollout.generate_path is not None:
        raise ConfigError("rollout.function_path and rollout.generate_path: which of the two? Unset one")
    if rollout.per_prompt > 1 and rollout.function_path is None and rollout.generate_path is None:
        raise ConfigError(
            f"rollout.per_prompt {rollout.per_prompt}: a live conversation happens once; rollouts per prompt "
            "need a rollout plug-in (rollout.function_path, `openclaw-rl rollout`). Leave it at 1"
        )
    if judge.kind == "plugin" and judge.plugin_path is None:
        raise ConfigError("judge.kind is plugin: judge.plugin_path (--custom-rm-path FILE) is needed too")
    if judge.kind == "classifier" and judge.reward_path is None:
        raise ConfigError("judge.kind is classifier: judge.reward_path (PRM_MODEL_PATH) is needed too")
    if judge.reward_low > judge.reward_high:
        raise ConfigError(f"judge.reward_low ({judge.reward_low}) is above judge.reward_high ({judge.reward_high})")


def to_environment(config: Config, room: str = "") -> dict[str, str]:
    """The process environment plus this config: how the supervisor hands settings to its children.

    `room`: the child's; the engine and the trainer see the GPUs that the settings give to each.
    """
    gpus = {"engine": config.engine.gpus, "train": config.train.gpus, "judge-engine": config.judge.gpus}.get(room, ())
    placed = {"CUDA_VISIBLE_DEVICES": ",".join(gpus)} if gpus else {}
    return dict(os.environ) | {HANDED_DOWN: config.model_dump_json(), "OMP_WAIT_POLICY": "passive"} | placed


def foreign_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """The process environment for a program that is not ours: without our settings and keys, and with `extra`."""
    ours = {HANDED_DOWN, *SECRET_NAMES}
    kept = {name: value for name, value in os.environ.items() if name not in ours and not name.startswith(ENV_PREFIX)}
    return kept | dict(extra)


def inherited() -> Config | None:
    """The config that the supervisor handed down, when this process is its child."""
    raw = os.environ.get(HANDED_DOWN)
    return Config.model_validate_json(raw) if raw else None
