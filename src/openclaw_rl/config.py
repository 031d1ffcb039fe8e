"""Every setting, typed, read once at the edge: flag over environment over file over default.

The only file that reads the environment. The tree and its defaults stand in `sections.py`. An unknown key fails and
names the nearest known one; two spellings of one setting that disagree are an error.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml
from pydantic import BaseModel, ValidationError

from openclaw_rl.errors import ConfigError
from openclaw_rl.sections import (
    STARTER,
    CollectConfig,
    Config,
    EndpointConfig,
    EngineConfig,
    JudgeConfig,
    LoraConfig,
    ModelConfig,
    RunConfig,
    ServeConfig,
    TeacherConfig,
    TrackConfig,
    TrainConfig,
)

__all__ = [
    "ENV_NAMES",
    "ENV_PREFIX",
    "HANDED_DOWN",
    "SECRETS",
    "STARTER",
    "CollectConfig",
    "Config",
    "EndpointConfig",
    "EngineConfig",
    "JudgeConfig",
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
    "read_environment",
    "read_file",
    "read_value",
    "to_environment",
]

ENV_PREFIX = "OPENCLAW_RL_"
HANDED_DOWN = "OPENCLAW_RL_CONFIG_JSON"
ENV_NAMES: Mapping[str, str] = {
    "OPENCLAW_HOME": "home",
    "OPENCLAW_HOST": "serve.host",
    "OPENCLAW_PORT": "serve.port",
    "OPENCLAW_API_KEY": "serve.api_key",
    "BASE_MODEL_PATH": "model.path",
    "MODEL_PATH": "model.path",
    "OPENCLAW_JUDGE_API_KEY": "judge.api_key",
    "OPENCLAW_ENGINE_API_KEY": "engine.api_key",
    "OPENCLAW_TEACHER_API_KEY": "teacher.api_key",
}
"""The short names; every other setting is `OPENCLAW_RL_<SECTION>_<KEY>`."""

SECRETS = ("serve.api_key", "engine.api_key", "judge.api_key", "teacher.api_key")


def known_keys(model: type[BaseModel] = Config, prefix: str = "") -> Iterator[str]:
    """Every setting's dotted name."""
    for name, info in model.model_fields.items():
        kind = info.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from known_keys(kind, f"{prefix}{name}.")
        else:
            yield prefix + name


def _flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mapping to dotted keys; stops at known leaves (whose values may be mappings)."""
    leaves = set(known_keys())
    out: dict[str, Any] = {}
    for key, value in tree.items():
        dotted = f"{prefix}{key}"
        if isinstance(value, Mapping) and dotted not in leaves:
            out |= _flatten(value, dotted + ".")
        else:
            out[dotted] = value
    return out


def _check_known(flat: Mapping[str, Any], source: str) -> None:
    leaves = list(known_keys())
    for key in flat:
        if key not in leaves:
            near = difflib.get_close_matches(key, leaves, 1, 0.5) or difflib.get_close_matches(
                key.split(".")[-1], [k.split(".")[-1] for k in leaves], 1, 0.5
            )
            full = next((k for k in leaves if k == near[0] or k.split(".")[-1] == near[0]), None) if near else None
            hint = f" Did you mean {full!r}?" if full else " `openclaw-rl config show` lists the settings."
            raise ConfigError(f"{source}: unknown setting {key!r}.{hint}")


def read_file(path: str | Path) -> dict[str, Any]:
    """A YAML (or JSON) file as dotted keys. Raises `ConfigError` naming the file and the key."""
    file = Path(path)
    try:
        tree = yaml.safe_load(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{file}: no such settings file. Give an existing one with --config, or none.") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{file}: cannot be read as YAML: {error}") from error
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise ConfigError(
            f"{file}: expected a mapping of sections (model, serve, train, ...), got {type(tree).__name__}"
        )
    flat = _flatten(tree)
    _check_known(flat, str(file))
    return flat


def read_value(text: str, source: str) -> Any:
    """One value as YAML reads it. Raises `ConfigError` that names `source`."""
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"{source}: expected a value such as 8, true or [a, b], got {text!r} ({reason})") from None


def read_environment(environ: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Settings from the environment as dotted keys; two spellings that disagree are an error."""
    env = os.environ if environ is None else environ
    spelled: dict[str, tuple[str, Any]] = {}
    names = dict(ENV_NAMES) | {ENV_PREFIX + k.replace(".", "_").upper(): k for k in known_keys()}
    for name, key in names.items():
        if name not in env:
            continue
        value = env[name] if key in SECRETS else read_value(env[name], f"environment: {name}")
        if key in spelled and spelled[key][1] != value:
            raise ConfigError(f"environment: {spelled[key][0]} and {name} both set {key} and disagree. Unset one.")
        spelled[key] = (name, value)
    for name in env:
        if name.startswith(ENV_PREFIX) and name not in names and name != HANDED_DOWN:
            near = difflib.get_close_matches(name, names, 1, 0.6)
            raise ConfigError(f"environment: unknown setting {name}." + (f" Did you mean {near[0]}?" if near else ""))
    return {key: value for key, (_, value) in spelled.items()}


def load(
    *,
    file: str | Path | None = None,
    flags: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Config:
    """The settings in force. `flags` holds dotted keys; None values count as not given. Raises `ConfigError`."""
    flat: dict[str, Any] = read_file(file) if file else {}
    flat |= read_environment(environ)
    given = {k: v for k, v in (flags or {}).items() if v is not None}
    _check_known(given, "flags")
    return from_flat(flat | given)


def from_flat(flat: Mapping[str, Any]) -> Config:
    """A `Config` from dotted keys. Raises `ConfigError` that names the key, the value and what was expected."""
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
        lines = [f"{'.'.join(map(str, e['loc']))}: {e['msg']} (got {e['input']!r})" for e in error.errors()]
        raise ConfigError("settings: " + "; ".join(lines)) from None
    _check_together(config)
    return config


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
    if config.judge.kind == "llm" and not (config.judge.base_url and config.judge.model):
        raise ConfigError("judge.kind is llm: judge.base_url and judge.model are needed too (an OpenAI-compatible one)")
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


def to_environment(config: Config) -> dict[str, str]:
    """The process environment plus this config: how the supervisor hands settings to its children."""
    return dict(os.environ) | {HANDED_DOWN: config.model_dump_json(), "OMP_WAIT_POLICY": "passive"}


def foreign_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """The process environment for a program that is not ours: without our settings and keys, and with `extra`."""
    ours = {HANDED_DOWN} | {name for name, key in ENV_NAMES.items() if key in SECRETS}
    kept = {name: value for name, value in os.environ.items() if name not in ours and not name.startswith(ENV_PREFIX)}
    return kept | dict(extra)


def inherited() -> Config | None:
    """The config that the supervisor handed down, when this process is its child."""
    raw = os.environ.get(HANDED_DOWN)
    return Config.model_validate_json(raw) if raw else None
