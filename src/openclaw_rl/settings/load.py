"""Load the settings: flags over environment over file over defaults.

The only module that reads the environment. `schema.py` and `schema_judge.py` define the settings, `aliases.py` their
other names, `sources.py` reads each source. An unknown key is an error that names the nearest known key; two names of
one setting with different values are an error.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ValidationError

from openclaw_rl.common.assets import STARTER
from openclaw_rl.common.http.proxy_rule import with_direct_hosts
from openclaw_rl.errors import ConfigError
from openclaw_rl.settings import aliases, sources, unused, validate
from openclaw_rl.settings.aliases import current_key
from openclaw_rl.settings.schema import (
    INSTALLED_SECRETS,
    SECRETS,
    CollectConfig,
    Config,
    EngineConfig,
    ModelConfig,
    SamplingOverride,
    ServeConfig,
    TrackConfig,
)
from openclaw_rl.settings.schema_fireworks import FireworksConfig
from openclaw_rl.settings.schema_judge import EndpointConfig, SignalsConfig
from openclaw_rl.settings.schema_tinker import TinkerConfig
from openclaw_rl.settings.schema_train import LoraConfig, TrainConfig

__all__ = [
    "SECRETS",
    "STARTER",
    "CollectConfig",
    "Config",
    "EndpointConfig",
    "EngineConfig",
    "LoraConfig",
]
__all__ += [
    "ModelConfig",
    "SamplingOverride",
    "ServeConfig",
    "SignalsConfig",
    "TinkerConfig",
    "TrackConfig",
]
__all__ += ["FireworksConfig", "TrainConfig"]
ENV_PREFIX = sources.ENV_PREFIX
CONFIG_VARIABLE = "OPENCLAW_RL_CONFIG_JSON"
SECRET_NAMES = (
    *(f"OPENCLAW_{name}API_KEY" for name in ("", "ENGINE_", "JUDGE_", "TEACHER_")),
    "TINKER_API_KEY",
    "FIREWORKS_API_KEY",
)
"""Removed from the environment of programs that are not ours."""
HUB_TOKENS = frozenset({"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HUGGINGFACE_HUB_TOKEN"})
"""Kept for those that download models, and removed for all others."""

_WORKER_SECRETS = {
    "engine": ("engine.api_key", "tinker.api_key", "fireworks.api_key", "model.hf_token"),
    "gateway": ("serve.api_key", "engine.api_key", "fireworks.api_key", "model.hf_token"),
    "judge": ("judge.api_key", "teacher.api_key", "model.hf_token"),
    "judge-engine": ("model.hf_token",),
    # The judge compares replies for the gate.
    "train": ("judge.api_key", "tinker.api_key", "model.hf_token"),
    "data": ("engine.api_key", "model.hf_token"),
    "page": (),
}

_INTEGRATION_WORKERS = ("engine", "gateway", "train")
"""Workers that run engines and trainers of packages, and get the keys of their sections."""


@cache
def _text_keys() -> frozenset[str]:
    """Return the settings of type text: the environment and the command line give their value unparsed."""
    return frozenset(key for key, kind in _setting_types() if kind in (str, str | None))


def _setting_types(model: type[BaseModel] = Config, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, type) of every setting."""
    for name, info in model.model_fields.items():
        kind = info.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from _setting_types(kind, f"{prefix}{name}.")
        else:
            yield prefix + name, kind


@cache
def known_keys() -> tuple[str, ...]:
    """Return the dotted key of every setting."""
    return tuple(key for key, _ in _setting_types())


def read_environment(environ: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Read the environment into dotted keys. Raises `ConfigError` if two names of a setting disagree."""
    return _plain_values(_environment(environ).close())


def _environment(
    environ: Mapping[str, str] | None, *, strict: bool = True
) -> sources.SettingsSource:
    env = os.environ if environ is None else environ
    return sources.from_environment(
        env, known_keys(), text=_text_keys(), ours=CONFIG_VARIABLE, strict=strict
    )


def _plain_values(values: Mapping[str, sources.GivenValue]) -> dict[str, Any]:
    return {key: setting.value for key, setting in values.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedSettings:
    """Effective settings, the source of each non-default value, and notices for the user."""

    config: Config
    sources: Mapping[str, str]
    notices: Sequence[str]


def load(
    *,
    file: str | Path | None = None,
    flags: Mapping[str, Any] | None = None,
    arguments: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
) -> Config:
    """Return the effective settings. See `load_all`."""
    return load_all(file=file, flags=flags, arguments=arguments, environ=environ).config


def load_all(
    *,
    file: str | Path | None = None,
    flags: Mapping[str, Any] | None = None,
    arguments: Sequence[str] = (),
    sets: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
    strict: bool = True,
    used_sections: Collection[str] = (),
) -> LoadedSettings:
    """Merge flags over the environment over the file over the defaults. Raises `ConfigError`.

    `flags`: dotted keys; None means not given. `sets`: items like `train.seed=8`. `arguments`: flags under
    alias names.
    `strict`: refuse wrong variables that may be those of another program (`sources.from_environment`).
    `used_sections`: sections that the caller reads, whatever the engine and the trainer are.
    """
    layers = [sources.from_file(file, known_keys())] if file else []
    layers.append(_environment(environ, strict=strict))
    layers.append(_command_line(arguments, flags or {}, sets))
    values = _merge_layers(layers)
    if not strict:
        values = _without_foreign_faults(values)
    chosen = _chosen_judge(_plain_values(values))
    if chosen is not None:
        kind, key = chosen
        values["judge.kind"] = sources.GivenValue(value=kind, source=values[key].source)
    origins = {key: setting.source for key, setting in values.items()}
    config = _build_config(_plain_values(values), origins)
    notices: list[str] = []
    for layer in layers:
        notices += layer.notices
    may_be_unused = dict(origins)
    for section in used_sections:
        may_be_unused = _without_section(may_be_unused, section)
    notices += unused.unused_settings(config, may_be_unused)
    notices += validate.missing_endpoints(config) + validate.untrained_lessons(config)
    return LoadedSettings(config=config, sources=origins, notices=notices)


def _without_section(origins: Mapping[str, str], section: str) -> dict[str, str]:
    return {key: origin for key, origin in origins.items() if key.partition(".")[0] != section}


def _command_line(
    arguments: Sequence[str], flags: Mapping[str, Any], sets: Sequence[str]
) -> sources.SettingsSource:
    """Return the settings of a command line. The parameters are those of `load_all`."""
    layer = sources.from_flags(arguments, known_keys(), text=_text_keys())
    for key, value in flags.items():
        if value is not None:
            layer.add_setting(key, value)
    for item in sets:
        key, sign, value = item.partition("=")
        if not sign:
            raise ConfigError(f"--set {item}: expected KEY=VALUE, e.g. --set train.seed=8")
        layer.add_setting(key, value)
    return layer


def _merge_layers(layers: Sequence[sources.SettingsSource]) -> dict[str, sources.GivenValue]:
    """Return the settings of all layers. A later layer wins, except with a weak value."""
    values: dict[str, sources.GivenValue] = {}
    for layer in layers:
        for key, setting in layer.close().items():
            if not setting.weak or key not in values:
                values[key] = setting
    return values


def _without_foreign_faults(
    values: Mapping[str, sources.GivenValue],
) -> dict[str, sources.GivenValue]:
    """Return the settings without wrong values of variables that may be those of another program."""
    try:
        Config.model_validate(_nested(_plain_values(values)))
    except ValidationError as error:
        wrong = {".".join(map(str, one["loc"])) for one in error.errors()}
        foreign = {key for key, setting in values.items() if sources.is_foreign(setting)}
        return {key: setting for key, setting in values.items() if key not in wrong & foreign}
    return dict(values)


def from_flat(flat: Mapping[str, Any]) -> Config:
    """Build a `Config` from dotted keys.

    Raises `ConfigError` with the key, the value and what was expected.
    """
    current = dict(flat)
    chosen = _chosen_judge(current)
    if chosen is not None:
        current["judge.kind"] = chosen[0]
    return _build_config(current, {})


_JUDGE_KINDS = {
    "judge.plugin_path": "plugin",
    "judge.path": "llm",
    "judge.model": "llm",
    "judge.base_url": "llm",
    "judge.reward_path": "classifier",
}
"""Settings that choose the judge if `judge.kind` is not given; of several, the first."""


def _chosen_judge(flat: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the kind of judge that the other settings imply, and the setting that does; None if `judge.kind` is set.

    `judge.base_url` without `judge.model`, but with `teacher.model`, is the endpoint of the teacher alone.
    """
    chosen_keys = [key for key in _JUDGE_KINDS if flat.get(key)]
    is_of_teacher = flat.get("teacher.model") and chosen_keys == ["judge.base_url"]
    if not chosen_keys or is_of_teacher or flat.get("judge.kind"):
        return None
    return _JUDGE_KINDS[chosen_keys[0]], chosen_keys[0]


def train_settings(flat: Mapping[str, Any]) -> TrainConfig:
    """Build the train section from keys below `train.`, without the checks across sections."""
    current = {
        current_key(f"train.{key}").removeprefix("train."): value for key, value in flat.items()
    }
    return TrainConfig.model_validate(_nested(current))


def _build_config(flat: Mapping[str, Any], origins: Mapping[str, str]) -> Config:
    try:
        config = Config.model_validate(_nested(flat))
    except ValidationError as error:
        raise ConfigError(
            "settings: " + "; ".join(_format_error(e, origins) for e in error.errors())
        ) from None
    config = _with_teacher_endpoint(config)
    validate.validate(config)
    return config


def with_policy_owner(config: Config, per: Literal["all", "agent", "user", "key"]) -> Config:
    """Return the settings with this `policy.per`. Raises `ConfigError` if others exclude it."""
    changed = config.model_copy(update={"policy": config.policy.model_copy(update={"per": per})})
    validate.validate(changed)
    return changed


def _with_teacher_endpoint(config: Config) -> Config:
    """Give a teacher without an endpoint the judge's endpoint and key."""
    judge = config.judge
    teacher = config.teacher
    if not teacher.model or teacher.base_url or not judge.base_url:
        return config
    where = {"base_url": judge.base_url, "api_key": teacher.api_key or judge.api_key}
    return config.model_copy(update={"teacher": teacher.model_copy(update=where)})


def _nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Turn dotted keys into nested dictionaries."""
    tree: dict[str, Any] = {}
    for key, value in flat.items():
        node = tree
        *parents, leaf = key.split(".")
        for parent in parents:
            node = node.setdefault(parent, {})
        node[leaf] = value
    return tree


_HINTS = {"string_type": ": put it in quotes", "tuple_type": ", that is a list: [a, b]"}


def _format_error(error: Any, origins: Mapping[str, str]) -> str:
    key = ".".join(str(part) for part in error["loc"])
    hint = _HINTS.get(error["type"], "")
    matches = [origin for known, origin in origins.items() if f"{key}.".startswith(f"{known}.")]
    origin = f", from {matches[0]}" if matches and matches[0] else ""
    shown = "" if key in SECRETS else f" (got {error['input']!r})"
    text = aliases.refusal_reason(key, error["input"]) or error["msg"].removeprefix("Value error, ")
    return f"{key}: {text}{hint}{shown}{origin}"


# Waiting OpenMP threads sleep instead of spinning.
_OPENMP_VARIABLES = {"OMP_WAIT_POLICY": "passive"}
_TRAINER_VARIABLES = _OPENMP_VARIABLES | {"THP_MEM_ALLOC_ENABLE": "1"}


def trainer_variables() -> dict[str, str]:
    """Return environment variables for a trainer process; values that the owner set are kept.

    THP_MEM_ALLOC_ENABLE makes torch on a CPU use huge pages: two thirds of the memory or less, at the same speed.
    """
    return {name: os.environ.get(name, ours) for name, ours in _TRAINER_VARIABLES.items()}


def to_environment(config: Config, worker: str = "") -> dict[str, str]:
    """Return the environment for a child process of the supervisor: ours plus the serialized config.

    `worker`: its name. Engine, trainer and judge engine see only the GPUs of their settings, and each worker only the
    secrets that it uses.
    """
    gpus = {
        "engine": config.engine.gpus,
        "train": config.train.gpus,
        "judge-engine": config.judge.gpus,
    }.get(worker, ())
    placed = {"CUDA_VISIBLE_DEVICES": ",".join(gpus)} if gpus else {}
    ours = trainer_variables() if worker == "train" else _OPENMP_VARIABLES
    inherited = dict(os.environ)
    if worker:
        loads_models = "model.hf_token" in _WORKER_SECRETS.get(worker, ())
        inherited = foreign_environment({}, loads_models=loads_models)
        config = _without_other_secrets(config, worker)
    settings = {CONFIG_VARIABLE: config.model_dump_json()}
    return ours | with_direct_hosts(inherited) | settings | placed


def _without_other_secrets(config: Config, worker: str) -> Config:
    """Return the config without the secrets that the worker does not use."""
    for key in SECRETS:
        section, _, name = key.partition(".")
        installed = INSTALLED_SECRETS if worker in _INTEGRATION_WORKERS else ()
        if key not in (*_WORKER_SECRETS.get(worker, ()), *installed):
            without = getattr(config, section).model_copy(update={name: None})
            config = config.model_copy(update={section: without})
    return config


def foreign_environment(extra: Mapping[str, str], *, loads_models: bool = False) -> dict[str, str]:
    """Return the environment for a third-party program: without our settings and keys, plus `extra`.

    `loads_models`: whether it may download the model, for which it needs the token of the hub.
    """
    ours = {CONFIG_VARIABLE, *SECRET_NAMES}
    if not loads_models:
        ours |= HUB_TOKENS
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name not in ours and not name.startswith(ENV_PREFIX)
    }
    return with_direct_hosts(inherited | dict(extra))


def inherited_config() -> Config | None:
    """Return the config that the supervisor passed to this process, or None."""
    raw = os.environ.get(CONFIG_VARIABLE)
    return Config.model_validate_json(raw) if raw else None
