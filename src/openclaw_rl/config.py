"""Every setting, typed, read once at the edge: flag over environment over file over default.

The only file that reads the environment. Each default is stated here and nowhere else. An unknown key fails and names
the nearest known one; two spellings of one setting that disagree are an error.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from openclaw_rl import patterns
from openclaw_rl.errors import ConfigError
from openclaw_rl.types import Convention

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

STARTER = "starter"
REMINDER = patterns.REMINDER
SECRETS = ("serve.api_key", "engine.api_key", "judge.api_key", "teacher.api_key")


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


class ModelConfig(_Section):
    """Which base model is served and trained."""

    path: str = Field(STARTER, description="folder or hub id of the base model; `starter` is the one that is shipped")
    name: str = Field("openclaw", description="what clients put in `model`: the name means the newest policy")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    device: str = Field("auto", description="auto, cpu, cuda, cuda:1, ...")


class ServeConfig(_Section):
    """The OpenAI-compatible gateway."""

    host: str = "127.0.0.1"
    port: int = Field(8000, ge=0, le=65535)
    api_key: str | None = Field(None, description="default: generated once into `<home>/api_key` (mode 600)")
    any_model: bool = Field(False, description="answer whatever name clients put in `model`")
    sampling_override: dict[str, float] = Field(
        default_factory=dict, description="fixed sampling values, e.g. {temperature: 1.0, top_p: 1.0}"
    )
    max_body_bytes: int = Field(32 * 2**20, ge=1024)
    transient_patterns: tuple[str, ...] = patterns.TRANSIENT
    engine_wait: float = Field(60.0, gt=0, description="seconds a request waits for an engine that is restarting")


class EngineConfig(_Section):
    """The engine that samples."""

    backend: Literal["embedded", "vllm", "sglang", "openai"] = Field(
        "embedded",
        description="embedded: our own, for small models; vllm, sglang: such a server, started here or elsewhere; "
        "openai: an endpoint at `url` that returns token ids and log-probabilities",
    )
    url: str | None = Field(
        None, description="a running server to use, e.g. http://gpu:8000; default: one is started and kept"
    )
    api_key: str | None = Field(None, description="the key of the server at `url` (OPENCLAW_ENGINE_API_KEY)")
    python: str | None = Field(
        None, description="the interpreter of the environment in which vllm or sglang is installed; default: this one"
    )
    args: tuple[str, ...] = Field((), description="further flags for the program, e.g. [--tensor-parallel-size, '2']")
    logprobs: Convention | None = Field(
        None, description="which log-probabilities the server gives; default: scaled, of vllm processed"
    )
    versions: int = Field(4, ge=2, le=64, description="policy versions held side by side")
    max_batch: int = Field(32, ge=1)
    max_context: int | None = Field(None, ge=16, description="tokens; default: what the model was made for")
    prefill_chunk: int = Field(256, ge=16, description="prompt tokens computed between two decode steps")
    prefix_cache_tokens: int = Field(32768, ge=0, description="tokens of finished replies kept for their next turn")
    threads: int = Field(1, ge=1, description="CPU threads of the engine process")

    @property
    def convention(self) -> Convention:
        """The log-probabilities that are expected of the engine."""
        return self.logprobs or ("processed" if self.backend == "vllm" else "scaled")


class CollectConfig(_Section):
    """Linking reactions to turns."""

    session_timeout: float = Field(24 * 3600.0, gt=0, description="seconds without a reaction until a turn is dropped")
    side_patterns: tuple[str, ...] = Field(
        patterns.SIDE,
        description="a last user or system message like this looks like side traffic, until the talk goes on",
    )
    interlude_patterns: tuple[str, ...] = Field(
        patterns.INTERLUDES,
        description="a user message that is this as a whole is the client's own: side traffic that reactions step over",
    )
    poll: float = Field(0.05, gt=0)


class EndpointConfig(_Section):
    """A model behind an OpenAI-compatible endpoint, asked for text."""

    base_url: str | None = Field(None, description="OpenAI-compatible endpoint, e.g. http://127.0.0.1:9000/v1")
    model: str | None = None
    api_key: str | None = None
    timeout: float = Field(60.0, gt=0)
    retries: int = Field(4, ge=0)
    temperature: float = Field(0.6, ge=0)
    max_tokens: int = Field(1024, ge=16)


class JudgeConfig(EndpointConfig):
    """Who says how good a turn was. The endpoint is the llm judge's."""

    kind: Literal["rules", "llm"] = "rules"
    rules_path: str | None = Field(None, description="default: the shipped rules")
    num_judges: int = Field(3, ge=1, description="votes per turn, in parallel")
    consensus_threshold: float = Field(0.5, ge=0, lt=1, description="a score needs more than this share of the votes")
    workers: int = Field(4, ge=1, description="turns judged at once")
    poll: float = Field(0.05, gt=0)


class TeacherConfig(EndpointConfig):
    """Who writes the hints, when it is not the judge. In force once `base_url` and `model` are given."""

    when: Literal["negative", "always", "never"] = Field(
        "negative", description="which judged turns it is asked about: those with score -1, all, or none"
    )

    @property
    def wanted(self) -> bool:
        return self.base_url is not None and self.when != "never"


class LoraConfig(_Section):
    rank: int = Field(16, ge=1)
    alpha: float = Field(32.0, gt=0)
    dropout: float = Field(0.0, ge=0, lt=1)
    targets: tuple[str, ...] | Literal["all-linear"] = "all-linear"


class TrainConfig(_Section):
    """Credit, the step, and the gate. The symbols are those of docs/paper_index.md."""

    method: Literal["binary", "opd", "combine"] = "combine"
    batch_min: int = Field(4, ge=1, description="turns with signal that make a batch")
    batch_max: int = Field(16, ge=1)
    max_wait: float = Field(600.0, gt=0, description="seconds after which a smaller batch is trained all the same")
    learning_rate: float = Field(1.5e-3, gt=0)
    weight_decay: float = Field(0.0, ge=0)
    adam_betas: tuple[float, float] = (0.9, 0.95)
    clip_grad: float = Field(1.0, gt=0)
    lora: LoraConfig = LoraConfig()
    loss: Literal["clip", "cispo", "gspo"] = Field("clip", description="surrogate: token clip, CISPO, sequence clip")
    epochs: int = Field(1, ge=1, le=8, description="optimizer steps a batch; above 1 the loss is the decoupled one")
    clip_low: float = Field(0.8, gt=0, lt=1)
    clip_high: float = Field(1.28, gt=1)
    dual_clip: float = Field(3.0, gt=1)
    gap_low: float = Field(0.5, gt=0, lt=1, description="tokens whose ratio is below are masked")
    gap_high: float = Field(5.0, gt=1, description="tokens whose ratio is above are masked")
    w_binary: float = Field(1.0, ge=0)
    w_opd: float = Field(1.0, ge=0)
    opd_clip: float = Field(1.0, gt=0, description="C: bound of the distillation advantage")
    kl_coef: float = Field(0.1, ge=0, description="k2 to the base")
    baseline_decay: float = Field(0.95, ge=0, lt=1)
    baseline_shrink: float = Field(8.0, ge=0)
    length_decay: float = Field(0.99, ge=0, lt=1, description="of the slow average of reply tokens, per reply")
    checkpointing: bool = Field(
        False, description="compute each layer again in the backward pass: a fraction of the memory, a third more time"
    )
    micro_tokens: int = Field(4096, ge=1, description="tokens of one forward pass; one long sample may exceed it alone")
    max_gap: float = Field(0.5, gt=0, description="mean |log rho| of a turn above which it is too stale to train")
    max_staleness: int = Field(64, ge=1, description="versions; loose: a person answers after hours")
    max_uses: int = Field(1, ge=1, le=2, description="2 allows one replay")
    max_step_kl: float = Field(
        0.003, gt=0, description="trust region: a step that moves the policy further (k2, nats per token) is halved"
    )
    gate_grad_norm: float = Field(100.0, gt=0)
    gate_kl: float = Field(5.0, gt=0, description="mean KL estimate to the base, in nats per token")
    lease: float = Field(30.0, gt=0, description="seconds; a trainer frozen for longer publishes nothing")
    keep_checkpoints: int = Field(8, ge=2, description="newest optimizer states kept; adapters are all kept")
    seed: int = 0
    threads: int = Field(1, ge=1, description="CPU threads of the trainer process")
    poll: float = Field(0.1, gt=0)


class TrackConfig(_Section):
    """Where metrics go besides `<home>/logs/metrics.jsonl`."""

    to: tuple[Literal["tensorboard", "wandb"], ...] = Field((), description="e.g. [tensorboard, wandb]")
    project: str = Field("openclaw-rl", description="of W&B; the run is called openclaw-rl-<method>")


class RunConfig(_Section):
    """The supervisor."""

    deaths: int = Field(5, ge=1, description="deaths of one loop within a minute that end the whole system")
    log_level: Literal["debug", "info", "warning", "error"] = "info"


class Config(_Section):
    """The whole tree."""

    home: str = Field("~/.openclaw-rl", description="store, adapters, key, logs; mode 700")
    model: ModelConfig = ModelConfig()
    serve: ServeConfig = ServeConfig()
    engine: EngineConfig = EngineConfig()
    collect: CollectConfig = CollectConfig()
    judge: JudgeConfig = JudgeConfig()
    teacher: TeacherConfig = TeacherConfig()
    train: TrainConfig = TrainConfig()
    track: TrackConfig = TrackConfig()
    run: RunConfig = RunConfig()

    @property
    def home_dir(self) -> Path:
        return Path(self.home).expanduser()

    @property
    def store_path(self) -> Path:
        return self.home_dir / "store.db"

    @property
    def policies_dir(self) -> Path:
        return self.home_dir / "policies"

    @property
    def logs_dir(self) -> Path:
        return self.home_dir / "logs"

    @property
    def engine_socket(self) -> Path:
        return self.home_dir / "engine.sock"

    @property
    def key_file(self) -> Path:
        return self.home_dir / "api_key"


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


def _check_together(config: Config) -> None:
    _check_patterns("collect.side_patterns", config.collect.side_patterns)
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
