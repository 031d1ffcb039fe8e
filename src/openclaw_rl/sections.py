"""The settings' tree: every section and key, with its type and its default. Read by `config.py`, and nowhere else."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from openclaw_rl import patterns
from openclaw_rl.types import Convention

STARTER = "starter"


_Share = Annotated[float, Field(ge=0, lt=1)]


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
    warmup_steps: int = Field(0, ge=0, description="steps over which the learning rate rises to its value")
    warmup_samples: int = Field(0, ge=0, description="the same in turns; the longer of the two holds")
    weight_decay: float = Field(0.0, ge=0)
    adam_betas: tuple[_Share, _Share] = (0.9, 0.95)
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
    hang: float = Field(120.0, ge=3, description="seconds without a sign of life after which a loop is started again")
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
