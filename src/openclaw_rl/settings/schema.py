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
    transient_patterns: tuple[str, ...] = client_patterns.TRANSIENT
    engine_wait: float = Field(60.0, gt=0, description="seconds that a request waits while the engine restarts")


class EngineConfig(Section):
    """The engine that samples."""

    backend: Literal["embedded", "vllm", "sglang", "openai"] = Field(
        "embedded",
        description="embedded: built in, for small models; vllm, sglang: such a server, started here or running at `url`; "
        "openai: an endpoint at `url` that returns token ids and log-probabilities",
    )
    url: str | None = Field(None, description="a running server, e.g. http://gpu:8000; default: start one")
    api_key: str | None = Field(None, description="the key of the server at `url` (OPENCLAW_ENGINE_API_KEY)")
    python: str | None = Field(
        None, description="Python interpreter with vllm or sglang installed; default: the current one"
    )
    args: tuple[str, ...] = Field((), description="further flags of the server, e.g. [--tensor-parallel-size, '2']")
    logprobs: Convention | None = Field(
        None, description="log-probability convention of the server; default: processed for vllm, else scaled"
    )
    versions: int = Field(4, ge=2, le=64, description="policy versions loaded side by side")
    max_batch: int = Field(32, ge=1)
    max_context: int | None = Field(None, ge=16, description="tokens; default: the maximum of the model")
    prefill_chunk: int = Field(256, ge=16, description="prompt tokens computed between two decode steps")
    prefix_cache_tokens: int = Field(
        32768, ge=0, description="tokens whose attention states are kept for prompts with the same prefix"
    )
    threads: int = Field(1, ge=1, description="CPU threads of the engine process")
    gpus: tuple[str, ...] = Field((), description="device ids that the engine sees; default: all")

    @property
    def convention(self) -> Convention:
        """Convention of the engine's log-probabilities, with the default of the backend."""
        return self.logprobs or ("processed" if self.backend == "vllm" else "scaled")


class CollectConfig(Section):
    """Link reactions to turns."""

    session_timeout: float = Field(
        24 * 3600.0, gt=0, description="seconds without a reaction after which a turn is dropped"
    )
    side_patterns: tuple[str, ...] = Field(
        client_patterns.SIDE,
        description="regular expressions: a request whose last user or system message matches is side traffic until the "
        "conversation continues after it",
    )
    interlude_patterns: tuple[str, ...] = Field(
        client_patterns.INTERLUDES,
        description="regular expressions: a user message that matches as a whole was written by the client program; it is "
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
        description="local: child processes of the trainer; torchrun; ray: placed by a Ray cluster; default: torchrun with "
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
    def how(self) -> Literal["local", "torchrun", "ray"]:
        return self.by or ("local" if self.nodes == 1 else "torchrun")


class TrainConfig(Section):
    """Credit, the step, and the gate. The symbols are those of docs/paper_index.md."""

    method: Literal["binary", "opd", "combine", "sdpo", "sdft", "groups"] = Field(
        "combine",
        description="sdpo, sdft: distillation over the likeliest tokens of the student, of the teacher; "
        "groups: several rollouts of one task, of environments only",
    )
    batch_min: int = Field(4, ge=1, description="fresh turns with signal that make a batch")
    batch_max: int = Field(16, ge=1)
    accumulation: int = Field(
        1, ge=1, description="batches whose gradients make one step: batch_min and batch_max count each of them"
    )
    max_wait: float = Field(600.0, gt=0, description="seconds after which a smaller batch is trained all the same")
    learning_rate: float = Field(1.5e-3, gt=0)
    warmup_steps: int = Field(0, ge=0, description="steps over which the learning rate rises to its value")
    warmup_samples: int = Field(0, ge=0, description="the same in turns; the longer of the two holds")
    weight_decay: float = Field(0.0, ge=0)
    adam_beta1: float = Field(0.9, ge=0, lt=1)
    adam_beta2: float = Field(0.95, ge=0, lt=1)
    clip_grad: float = Field(1.0, gt=0)
    weights: Literal["lora", "full"] = Field("lora", description="what is trained: an adapter, or the whole model")
    lora: LoraConfig = LoraConfig()
    base_bits: Literal[16, 4] = Field(16, description="of the frozen base under an adapter; 4: QLoRA's NF4")
    offload_optimizer: bool = Field(
        False, description="keep moments, float32 copies and, of whole models, the base in CPU memory, and step there"
    )
    loss: Literal["clip", "cispo", "gspo"] = Field("clip", description="surrogate: token clip, CISPO, sequence clip")
    loss_path: str | None = Field(None, description="Python file with the owner's loss, in place of ours")
    epochs: int = Field(1, ge=1, le=8, description="optimizer steps a batch; above 1 the loss is the decoupled one")
    clip_low: float = Field(0.8, gt=0, lt=1)
    clip_high: float = Field(1.28, gt=1)
    dual_clip: float = Field(3.0, gt=1)
    gap_low: float = Field(0.5, gt=0, lt=1, description="tokens whose ratio is below are masked")
    gap_high: float = Field(5.0, gt=1, description="tokens whose ratio is above are masked")
    sequence_mask: Literal["none", "opsm", "geometric"] = Field(
        "none", description="replies masked as a whole: bad ones the policy has moved away from, or all that drifted"
    )
    opsm_delta: float = Field(
        1e-4, ge=0, description="opsm: mean log(mu / pi) above which nothing of a reply is pushed down any further"
    )
    geometric_low: float = Field(0.99, gt=0, lt=1, description="geometric: replies whose ratio is below are masked")
    geometric_high: float = Field(1.01, gt=1, description="geometric: replies whose ratio is above are masked")
    w_binary: float = Field(1.0, ge=0)
    w_opd: float = Field(1.0, ge=0)
    opd_clip: float = Field(1.0, gt=0, description="C: bound of the distillation advantage")
    distill: Literal["token", "student_topk", "teacher_topk"] = Field(
        "token", description="what opd and combine compare: the sampled token, or the likeliest of student or teacher"
    )
    topk: int = Field(20, ge=1, le=1024, description="how many of the likeliest tokens; the rest is one tail")
    teacher_temperature: float = Field(
        1.0, gt=0, description="T and o of opd are compared at this times the temperature of the reply"
    )
    divergence: Literal["reverse", "forward", "jsd"] = Field(
        "reverse", description="over the likeliest tokens: KL(student, teacher), KL(teacher, student), Jensen-Shannon"
    )
    distill_cap: float = Field(2.0, gt=0, description="largest ratio that weighs a position of such a divergence")
    hint_choice: Literal["mixture", "overlap"] | None = Field(
        None,
        description="of several hints: their mixture (default for token), or the one whose teacher's likeliest tokens "
        "overlap most with the student's (default over the likeliest tokens)",
    )
    reference: Literal["base", "average"] = Field(
        "base", description="the teacher: the frozen base, or a slow average of the policy (which can run away)"
    )
    average_rate: float = Field(0.05, gt=0, le=1, description="of the slow average, per step")
    average_bound: float = Field(
        0.1, gt=0, description="KL(base, average) under the hint, in nats per token, beyond which it stands still"
    )
    kl_coef: float = Field(0.1, ge=0, description="k2 to the base")
    baseline_decay: float = Field(0.95, ge=0, lt=1)
    baseline_shrink: float = Field(8.0, ge=0)
    group_scale: Literal["none", "std"] = Field(
        "none", description="what a distance to the mean of a group is divided by (groups)"
    )
    group_floor: float = Field(0.1, gt=0, description="the least standard deviation that it is divided by")
    length_decay: float = Field(0.99, ge=0, lt=1, description="of the slow average of reply tokens, per reply")
    checkpointing: bool | None = Field(
        None,
        description="compute each layer again in the backward pass: a fraction of the memory, a third more time; "
        "default: as many layers as memory asks for",
    )
    compile: bool = Field(False, description="compile layers: minutes at the first start, faster steps on a GPU")
    micro_tokens: int = Field(4096, ge=1, description="tokens of a pass, or a quarter of it above the longest sample")
    max_gap: float = Field(0.5, gt=0, description="mean |log rho| of a turn above which it is too stale to train")
    max_batch_gap: float | None = Field(
        None, gt=0, description="the same over a whole batch: above it the stalest turns go; default: half of max_gap"
    )
    max_staleness: int = Field(64, ge=1, description="versions; loose: a person answers after hours")
    max_uses: int = Field(1, ge=1, le=2, description="2 allows one replay: batches of fresh turns take used ones along")
    replay: float = Field(0.5, ge=0, lt=1, description="largest share of replays in a batch, when max_uses is 2")
    max_step_kl: float = Field(
        0.003, gt=0, description="trust region: a step that moves the policy further (k2, nats per token) is halved"
    )
    gate_grad_norm: float = Field(100.0, gt=0)
    gate_kl: float = Field(5.0, gt=0, description="mean KL estimate to the base, in nats per token")
    lease: float = Field(30.0, gt=0, description="seconds; a trainer frozen for longer publishes nothing")
    keep_checkpoints: int = Field(
        8,
        ge=2,
        description="newest versions whose optimizer states are kept (of whole models: of two); adapters are all kept, "
        "whole models only of these versions",
    )
    max_steps: int | None = Field(
        None, ge=1, description="steps of a line (those before a resumed checkpoint count) after which none is taken"
    )
    once: bool | None = Field(
        None,
        description="`openclaw-rl train` ends at max_steps, or when nothing is left to import, judge and train; "
        "default: with max_steps at the one, with data.path at both",
    )
    save_dir: str | None = Field(None, description="folder for checkpoints, which outlive the home")
    save_interval: int = Field(1, ge=1, description="a checkpoint after each so many steps, in save_dir")
    resume: str | None = Field(
        None,
        description="a checkpoint on which a fresh home begins, of whatever method; latest: the newest in save_dir",
    )
    seed: int = 0
    threads: int = Field(1, ge=1, description="CPU threads of the trainer process, of each rank")
    ranks: int = Field(1, ge=1, description="processes that take a step together, one for each GPU of a machine")
    launch: LaunchConfig = LaunchConfig()
    gpus: tuple[str, ...] = Field((), description="device ids that the trainer sees; default: all")
    poll: float = Field(0.1, gt=0)

    @property
    def least(self) -> int:
        """Fresh turns that make a step."""
        return self.batch_min * self.accumulation

    @property
    def most(self) -> int:
        """Turns of a step."""
        return self.batch_max * self.accumulation

    @property
    def batch_gap(self) -> float:
        """Mean |log rho| of a batch above which its stalest turns are left out."""
        return self.max_gap / 2 if self.max_batch_gap is None else self.max_batch_gap

    @property
    def follows_topk(self) -> bool:
        return self.method in ("sdft", "sdpo") or (self.method in ("opd", "combine") and self.distill != "token")

    @property
    def follows_teacher_topk(self) -> bool:
        return self.method == "sdft" or (self.method in ("opd", "combine") and self.distill == "teacher_topk")


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
    buffer_dir: str | None = Field(
        None, description="folder to which captured sessions are exported, one trajectory each"
    )
    rollout_dir: str | None = Field(
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

    deaths: int = Field(5, ge=1, description="crashes of one worker within a minute that stop the whole system")
    hang: float = Field(120.0, ge=3, description="seconds without a heartbeat after which a worker is restarted")
    start: float = Field(1800.0, ge=3, description="the same while a worker starts, until its second heartbeat")
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
