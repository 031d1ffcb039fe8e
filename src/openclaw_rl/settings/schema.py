"""Schema of the settings: every section and key with its type, default and description."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from openclaw_rl.common import client_patterns
from openclaw_rl.settings.schema_judge import JudgeConfig, TeacherConfig
from openclaw_rl.settings.strict_yaml import Section
from openclaw_rl.types import Convention

STARTER = "starter"
SECRETS = ("serve.api_key", "engine.api_key", "judge.api_key", "teacher.api_key", "model.hf_token")


class ModelConfig(Section):
    """The base model that is served and trained."""

    path: str = Field(
        STARTER, description="folder or hub id of the base model; `starter` is the model that ships with the package"
    )
    tokenizer: str | None = Field(None, description="folder or hub id of another tokenizer and chat template")
    hf_token: str | None = Field(None, description="access token for gated models of the hub (HF_TOKEN)")
    name: str = Field("openclaw", description="the `model` name for clients; it means the newest policy version")
    dtype: Literal["auto", "float64", "float32", "bfloat16", "float16"] = "auto"
    device: str = Field("auto", description="auto, cpu, cuda, cuda:1, ...")


class ServeConfig(Section):
    """The OpenAI-compatible gateway."""

    host: str = "127.0.0.1"
    port: int = Field(8000, ge=1, le=65535)
    api_key: str | None = Field(None, description="default: generated once into `<home>/api_key` (mode 600)")
    capture: Literal["full", "redacted"] = Field(
        "full", description="redacted: store hashes for linking, but no text and no token ids; nothing is learned"
    )
    any_model: bool = Field(False, description="accept any name in `model`")
    sampling_override: dict[str, float] = Field(
        default_factory=dict,
        description="sampling values that override those of clients, e.g. {temperature: 1.0, top_p: 1.0}",
    )
    max_body_bytes: int = Field(32 * 2**20, ge=1024)
    ephemeral_patterns: tuple[str, ...] = client_patterns.EPHEMERAL_PATTERNS
    engine_wait: float = Field(60.0, gt=0, description="seconds that a request waits while the engine restarts")


class EngineConfig(Section):
    """The engine that samples."""

    backend: Literal["embedded", "vllm", "sglang", "openai"] = Field(
        "embedded",
        description="embedded: built in, for small models; vllm, sglang: such a server, started "
        "here or running at `url`; "
        "openai: an endpoint at `url` that returns token ids and log-probabilities",
    )
    url: str | None = Field(None, description="a running server, e.g. http://gpu:8000; default: start one")
    api_key: str | None = Field(None, description="the key of the server at `url` (OPENCLAW_ENGINE_API_KEY)")
    python: str | None = Field(
        None, description="Python interpreter with vllm or sglang installed; default: the current one"
    )
    args: tuple[str, ...] = Field((), description="further flags of the server, e.g. [--tensor-parallel-size, '2']")
    logprob_convention: Convention | None = Field(
        None, description="log-probability convention of the server; default: processed for vllm, else scaled"
    )
    max_loaded_versions: int = Field(4, ge=2, le=64, description="policy versions loaded side by side")
    max_batch: int = Field(32, ge=1)
    max_context: int | None = Field(None, ge=16, description="tokens; default: the maximum of the model")
    prefill_chunk: int = Field(256, ge=16, description="prompt tokens computed between two decode steps")
    prefix_cache_tokens: int = Field(
        32768, ge=0, description="tokens whose attention states are kept for prompts with the same prefix"
    )
    threads: int = Field(1, ge=1, description="CPU threads of the engine process")
    gpus: tuple[str, ...] = Field((), description="device ids that the engine sees; default: all")

    @property
    def effective_convention(self) -> Convention:
        """Convention of the engine's log-probabilities, with the default of the backend."""
        return self.logprob_convention or ("processed" if self.backend == "vllm" else "scaled")


class CollectConfig(Section):
    """Link reactions to turns."""

    session_timeout: float = Field(
        24 * 3600.0, gt=0, description="seconds without a reaction after which a turn is dropped"
    )
    side_patterns: tuple[str, ...] = Field(
        client_patterns.SIDE_PATTERNS,
        description="regular expressions: a request whose last user or system message matches "
        "is side traffic until the "
        "conversation continues after it",
    )
    client_prompt_patterns: tuple[str, ...] = Field(
        client_patterns.CLIENT_PROMPT_PATTERNS,
        description="regular expressions: a user message that matches as a whole was written by "
        "the client program; it is "
        "side traffic, and reactions skip it",
    )
    poll: float = Field(0.05, gt=0)


class LoraConfig(Section):
    rank: int = Field(16, ge=1)
    alpha: float = Field(32.0, gt=0)
    dropout: float = Field(0.0, ge=0, lt=1)
    targets: tuple[str, ...] | Literal["all-linear"] = "all-linear"


class LaunchConfig(Section):
    """How the ranks of a distributed trainer are started (docs/guides/many_gpus.md)."""

    by: Literal["local", "torchrun", "ray"] | None = Field(
        None,
        description="local: child processes of the trainer; torchrun; ray: placed by a Ray "
        "cluster; default: torchrun with "
        "several nodes, else local",
    )
    nodes: int = Field(1, ge=1, description="machines, each with train.ranks ranks")
    node_rank: int = Field(
        0, ge=0, description="number of this machine, from 0; machine 0 runs the trainer, the others contribute ranks"
    )
    master_addr: str = Field("127.0.0.1", description="address of machine 0")
    master_port: int = Field(29400, ge=1, le=65535)
    ray: str = Field("auto", description="address of the Ray cluster; local: start one here")
    shard: bool | None = Field(
        None, description="shard the frozen layers over the ranks (FSDP2); default: true with GPUs"
    )
    timeout: float = Field(600.0, gt=0, description="seconds after which a rank that does not answer counts as failed")

    @property
    def launcher(self) -> Literal["local", "torchrun", "ray"]:
        return self.by or ("local" if self.nodes == 1 else "torchrun")


class TrainBatchConfig(Section):
    """Which turns make a batch, and how it is computed."""

    min_turns: int = Field(4, ge=1, description="new turns with a training signal that start a step")
    max_turns: int = Field(16, ge=1, description="turns in a batch at most")
    gradient_accumulation_steps: int = Field(
        1, ge=1, description="batches whose gradients make one step; min_turns and max_turns count for each batch"
    )
    max_wait: float = Field(600.0, gt=0, description="seconds after which a smaller batch is trained")
    epochs: int = Field(1, ge=1, le=8, description="optimizer steps per batch; above 1 the loss is the decoupled one")
    micro_tokens: int = Field(
        4096,
        ge=1,
        description="tokens per forward pass; a longer sample gets a pass of its own, up to a quarter above it",
    )
    max_uses: int = Field(1, ge=1, le=2, description="2: a turn may be trained on once more, beside new turns (replay)")
    replay_ratio: float = Field(0.5, ge=0, lt=1, description="largest share of replayed turns in a batch (max_uses 2)")

    @property
    def min_step_turns(self) -> int:
        """New turns that one optimizer step needs."""
        return self.min_turns * self.gradient_accumulation_steps

    @property
    def max_step_turns(self) -> int:
        """Turns of one optimizer step at most."""
        return self.max_turns * self.gradient_accumulation_steps


class TrainOptimizerConfig(Section):
    """AdamW and the learning rate."""

    learning_rate: float = Field(1.5e-3, gt=0)
    warmup_steps: int = Field(0, ge=0, description="steps over which the learning rate rises to its value")
    warmup_samples: int = Field(0, ge=0, description="the same in turns; the longer of the two applies")
    weight_decay: float = Field(0.0, ge=0)
    adam_beta1: float = Field(0.9, ge=0, lt=1)
    adam_beta2: float = Field(0.95, ge=0, lt=1)
    clip_grad: float = Field(1.0, gt=0, description="gradient norm above which the gradient is scaled down")
    offload: bool = Field(
        False,
        description="keep moments, float32 copies and, with full weights, the base in CPU memory, and step there",
    )


class TrainLossConfig(Section):
    """The policy loss, its weights and the baseline. The symbols are those of docs/paper_index.md."""

    surrogate: Literal["clip", "cispo", "gspo"] = Field(
        "clip", description="token clip, CISPO, or sequence clip (GSPO)"
    )
    path: str | None = Field(
        None, description="Python file with a loss of the owner, used in place of the built-in one"
    )
    clip_low: float = Field(0.8, gt=0, lt=1)
    clip_high: float = Field(1.28, gt=1)
    dual_clip: float = Field(3.0, gt=1)
    token_ratio_min: float = Field(0.5, gt=0, lt=1, description="tokens with a smaller ratio pi/mu are masked")
    token_ratio_max: float = Field(5.0, gt=1, description="tokens with a larger ratio pi/mu are masked")
    sequence_mask: Literal["none", "opsm", "geometric"] = Field(
        "none",
        description="replies that are masked whole: opsm, low-scored ones that the policy has moved away from; "
        "geometric, all whose mean ratio is outside of the bounds",
    )
    opsm_delta: float = Field(
        1e-4, ge=0, description="opsm: mean log(mu / pi) above which a low-scored reply is masked"
    )
    geometric_low: float = Field(
        0.99, gt=0, lt=1, description="geometric: replies with a smaller mean ratio are masked"
    )
    geometric_high: float = Field(1.01, gt=1, description="geometric: replies with a larger mean ratio are masked")
    w_binary: float = Field(1.0, ge=0, description="weight of the binary term (method combine)")
    w_opd: float = Field(1.0, ge=0, description="weight of the distillation term (method combine)")
    kl_coef: float = Field(0.1, ge=0, description="weight of the KL term to the base (k2)")
    baseline_decay: float = Field(0.95, ge=0, lt=1, description="decay of the moving average of scores, per verdict")
    baseline_shrink: float = Field(
        8.0, ge=0, description="verdicts at which an agent's own baseline has half the weight"
    )
    group_scale: Literal["none", "std"] = Field(
        "none", description="what the distance to a group's mean reward is divided by (method groups)"
    )
    group_floor: float = Field(0.1, gt=0, description="smallest standard deviation that it is divided by")
    length_ema_decay: float = Field(
        0.99, ge=0, lt=1, description="decay of the moving average of reply lengths, per reply; it is the denominator"
    )


class TrainDistillConfig(Section):
    """Distillation from the model that was given the hint (methods opd, combine, sdpo, sdft)."""

    target: Literal["token", "student_topk", "teacher_topk"] = Field(
        "token", description="what opd and combine compare: the sampled token, or the top-k of student or teacher"
    )
    opd_clip: float = Field(1.0, gt=0, description="C: bound of the distillation advantage")
    topk: int = Field(20, ge=1, le=1024, description="number of top-k tokens; all others form one tail bin")
    teacher_temperature: float = Field(
        1.0, gt=0, description="teacher and student of opd are compared at this times the temperature of the reply"
    )
    divergence: Literal["reverse", "forward", "jsd"] = Field(
        "reverse", description="over the top-k: KL(student, teacher), KL(teacher, student), or Jensen-Shannon"
    )
    ratio_clip: float = Field(2.0, gt=0, description="largest importance ratio that weighs a position of a top-k term")
    hint_choice: Literal["mixture", "overlap"] | None = Field(
        None,
        description="with several hints: their mixture (default for token), or the hint whose "
        "teacher shares most top-k "
        "tokens with the student (default for top-k)",
    )
    teacher: Literal["base", "ema"] = Field(
        "base", description="the frozen base, or a moving average of the policy, which can run away with it"
    )
    ema_rate: float = Field(0.05, gt=0, le=1, description="share of the policy in the moving average, per step")
    ema_max_kl: float = Field(
        0.1, gt=0, description="KL(base, average) under the hint, in nats per token, above which the average stops"
    )


class TrainSafetyConfig(Section):
    """What keeps a step safe: staleness, trust region, gate, lease."""

    max_turn_log_ratio: float = Field(
        0.5, gt=0, description="mean |log rho| of a turn, in nats per token, above which it is too stale to train on"
    )
    max_batch_log_ratio: float | None = Field(
        None,
        gt=0,
        description="the same for a batch: above it the stalest turns are left out; default: "
        "half of max_turn_log_ratio",
    )
    max_staleness: int = Field(
        64, ge=1, description="versions between sampling and training; people answer after hours"
    )
    max_step_kl: float = Field(
        0.003, gt=0, description="trust region: a step that moves the policy further (k2, nats per token) is halved"
    )
    gate_grad_norm: float = Field(100.0, gt=0, description="gradient norm above which a step is rejected")
    gate_kl: float = Field(5.0, gt=0, description="mean KL to the base, in nats per token, above which it is rejected")
    lease_ttl: float = Field(30.0, gt=0, description="seconds; a trainer that was frozen for longer publishes nothing")

    @property
    def batch_log_ratio_limit(self) -> float:
        """Mean |log rho| of a batch above which its stalest turns are left out."""
        return self.max_turn_log_ratio / 2 if self.max_batch_log_ratio is None else self.max_batch_log_ratio


class TrainCheckpointConfig(Section):
    """Checkpoints (docs/guides/checkpoints.md)."""

    keep: int = Field(
        8,
        ge=2,
        description="newest versions whose optimizer states are kept (with full weights: of "
        "two); adapters are all kept, "
        "full weights of these versions only",
    )
    save_dir: str | None = Field(None, description="folder for checkpoints outside of the home")
    save_interval: int = Field(1, ge=1, description="steps between two checkpoints in save_dir")
    resume: str | None = Field(
        None, description="checkpoint from which a new home starts, of any method; latest: the newest in save_dir"
    )


class TrainConfig(Section):
    """The trainer: method, weights, and the groups below."""

    method: Literal["binary", "opd", "combine", "sdpo", "sdft", "groups"] = Field(
        "combine",
        description="sdpo, sdft: distillation over the top-k of the student, of the teacher; groups: several rollouts "
        "of one task (environments only)",
    )
    finetune: Literal["lora", "full"] = Field("lora", description="train an adapter, or all weights")
    lora: LoraConfig = LoraConfig()
    base_quantization_bits: Literal[16, 4] = Field(
        16, description="of the frozen base below an adapter; 4: QLoRA's NF4"
    )
    batch: TrainBatchConfig = TrainBatchConfig()
    optimizer: TrainOptimizerConfig = TrainOptimizerConfig()
    loss: TrainLossConfig = TrainLossConfig()
    distill: TrainDistillConfig = TrainDistillConfig()
    safety: TrainSafetyConfig = TrainSafetyConfig()
    checkpoint: TrainCheckpointConfig = TrainCheckpointConfig()
    gradient_checkpointing: bool | None = Field(
        None,
        description="recompute layers in the backward pass: a fraction of the memory, a third more time; "
        "default: as many layers as the free memory requires",
    )
    compile: bool = Field(False, description="compile layers: minutes at the first start, faster steps on a GPU")
    max_steps: int | None = Field(
        None, ge=1, description="steps, those before a resumed checkpoint included, after which training stops"
    )
    exit_when_done: bool | None = Field(
        None,
        description="`openclaw-rl train` exits at max_steps, or when nothing is left to import, judge and train on; "
        "default: true with max_steps or data.path",
    )
    seed: int = 0
    threads: int = Field(1, ge=1, description="CPU threads of the trainer process, of each rank")
    ranks: int = Field(1, ge=1, description="processes that take a step together, one for each GPU of a machine")
    launch: LaunchConfig = LaunchConfig()
    gpus: tuple[str, ...] = Field((), description="device ids that the trainer sees; default: all")
    poll: float = Field(0.1, gt=0, description="seconds between two looks at the store")

    @property
    def follows_topk(self) -> bool:
        """Whether the distillation compares top-k distributions."""
        topk = self.method in ("opd", "combine") and self.distill.target != "token"
        return topk or self.method in ("sdft", "sdpo")

    @property
    def follows_teacher_topk(self) -> bool:
        """Whether it compares the teacher's top-k tokens."""
        topk = self.method in ("opd", "combine") and self.distill.target == "teacher_topk"
        return topk or self.method == "sdft"


class TrackConfig(Section):
    """Trackers for metrics, in addition to `<home>/logs/metrics.jsonl`."""

    to: tuple[Literal["tensorboard", "wandb"], ...] = Field((), description="e.g. [tensorboard, wandb]")
    eval_every: int | None = Field(
        None,
        ge=1,
        description="steps between two satisfaction metrics (eval/...): how people reacted to the replies since",
    )
    project: str = Field("openclaw-rl", description="W&B project; the run is named openclaw-rl-<method>")


class DataConfig(Section):
    """Trajectory files: import and export (docs/guides/data.md)."""

    path: str | None = Field(
        None, description="file or folder of trajectories that is imported at the start and trained on"
    )
    export_dir: str | None = Field(
        None, description="folder to which captured sessions are exported, one trajectory each"
    )
    watch_dir: str | None = Field(
        None, description="folder that is watched: trajectories that appear in it are imported and trained on"
    )
    poll: float = Field(1.0, gt=0, description="seconds between two looks at watch_dir")


class RolloutConfig(Section):
    """Rollout plug-ins: clients of the gateway (`openclaw-rl rollout`, docs/guides/plugins.md)."""

    function_path: str | None = Field(None, description="Python file with an async rollout function")
    generate_path: str | None = Field(
        None, description="Python file with an async `generate` function: one reply per prompt"
    )
    workers: int = Field(2, ge=1, description="concurrent rollouts")
    parallel_envs: int = Field(1, ge=1, description="concurrent environments; the larger of the two numbers applies")
    max_turns: int = Field(10, ge=1, description="replies per rollout")
    per_prompt: int = Field(1, ge=1, description="rollouts per task")


class RunConfig(Section):
    """The supervisor."""

    max_crashes_per_minute: int = Field(
        5, ge=1, description="crashes of one worker within a minute that stop the whole system"
    )
    heartbeat_timeout: float = Field(
        120.0, ge=3, description="seconds without a heartbeat after which a worker is restarted"
    )
    startup_timeout: float = Field(
        1800.0, ge=3, description="the same while a worker starts, until its second heartbeat"
    )
    log_level: Literal["debug", "info", "warning", "error"] = "info"


class Config(Section):
    """All settings."""

    home: str = Field("~/.openclaw-rl", description="folder of store, adapters, key and logs (mode 700)")
    model: ModelConfig = ModelConfig()
    serve: ServeConfig = ServeConfig()
    engine: EngineConfig = EngineConfig()
    collect: CollectConfig = CollectConfig()
    judge: JudgeConfig = JudgeConfig()
    teacher: TeacherConfig = TeacherConfig()
    train: TrainConfig = TrainConfig()
    track: TrackConfig = TrackConfig()
    data: DataConfig = DataConfig()
    rollout: RolloutConfig = RolloutConfig()
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
