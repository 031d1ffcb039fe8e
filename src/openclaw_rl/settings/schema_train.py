"""Schema of the `train` settings: method, weights, batch, optimizer, loss, distillation, safety, checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator, Field

from openclaw_rl.common.integrations import TRAINERS
from openclaw_rl.methods.registry import METHODS
from openclaw_rl.settings.strict_yaml import Section

if TYPE_CHECKING:
    MethodName = str
else:
    MethodName = Literal[*METHODS]


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
    gpus_per_node: int | None = Field(
        None,
        ge=1,
        description="GPUs that each machine must have, one for each of its ranks; a start on a machine with fewer is "
        "refused. Not set: ranks may also share GPUs or run on CPUs",
    )
    node_rank: int = Field(
        0,
        ge=0,
        description="number of this machine, from 0; machine 0 runs the trainer, the others contribute ranks",
    )
    master_addr: str = Field("127.0.0.1", description="address of machine 0")
    master_port: int = Field(29400, ge=1, le=65535)
    ray: str = Field("auto", description="address of the Ray cluster; local: start one here")
    shard: bool | None = Field(
        None, description="shard the frozen layers over the ranks (FSDP2); default: true with GPUs"
    )
    timeout: float = Field(
        600.0, gt=0, description="seconds after which a rank that does not answer counts as failed"
    )

    @property
    def launcher(self) -> Literal["local", "torchrun", "ray"]:
        return self.by or ("local" if self.nodes == 1 else "torchrun")


class TrainBatchConfig(Section):
    """Selection of the turns of a batch, and its computation."""

    min_turns: int = Field(
        4, ge=1, description="new turns with a training signal that start a step"
    )
    max_turns: int = Field(16, ge=1, description="turns in a batch at most")
    gradient_accumulation_steps: int = Field(
        1,
        ge=1,
        description="batches whose gradients make one step; min_turns and max_turns count for each batch",
    )
    min_groups: int = Field(
        1, ge=1, description="complete groups of episodes that start a step (method groups)"
    )
    max_groups: int = Field(
        8, ge=1, description="groups of episodes in a batch at most (method groups)"
    )
    max_wait: float = Field(
        600.0, gt=0, description="seconds after which a smaller batch is trained"
    )
    epochs: int = Field(
        1,
        ge=1,
        le=8,
        description="optimizer steps per batch; above 1 the loss is the decoupled one",
    )
    micro_tokens: int = Field(
        4096,
        ge=1,
        description="tokens per forward pass; a longer sample gets a pass of its own, up to a quarter above it. On a "
        "processor a pass has fewer, if it would take more than half a minute",
    )
    max_uses: int = Field(
        1,
        ge=1,
        le=2,
        description="2: a turn may be trained on once more, beside new turns (replay)",
    )
    replay_ratio: float = Field(
        0.5, ge=0, lt=1, description="largest share of replayed turns in a batch (max_uses 2)"
    )

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
    warmup_steps: int = Field(
        0, ge=0, description="steps over which the learning rate rises to its value"
    )
    warmup_samples: int = Field(
        0, ge=0, description="the same in turns; the longer of the two applies"
    )
    weight_decay: float = Field(0.0, ge=0)
    adam_beta1: float = Field(0.9, ge=0, lt=1)
    adam_beta2: float = Field(0.95, ge=0, lt=1)
    clip_grad: float = Field(
        1.0, gt=0, description="gradient norm above which the gradient is scaled down"
    )
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
    token_ratio_min: float = Field(
        0.5, gt=0, lt=1, description="tokens with a smaller ratio pi/mu are masked"
    )
    token_ratio_max: float = Field(
        5.0, gt=1, description="tokens with a larger ratio pi/mu are masked"
    )
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
    geometric_high: float = Field(
        1.01, gt=1, description="geometric: replies with a larger mean ratio are masked"
    )
    w_binary: float = Field(1.0, ge=0, description="weight of the binary term (method combine)")
    w_opd: float = Field(1.0, ge=0, description="weight of the distillation term (method combine)")
    kl_coef: float = Field(0.1, ge=0, description="weight of the KL term to the base (k2)")
    baseline_decay: float = Field(
        0.95, ge=0, lt=1, description="decay of the moving average of scores, per verdict"
    )
    baseline_shrink: float = Field(
        8.0, ge=0, description="verdicts at which an agent's own baseline has half the weight"
    )
    w_outcome: float = Field(
        1.0, ge=0, description="weight of the outcome of an episode (method groups)"
    )
    w_step: float = Field(
        1.0,
        ge=0,
        description="weight of the rewards of single steps: of the environment, else of the judge (method groups)",
    )
    outcome: Literal["as_is", "signed"] = Field(
        "as_is",
        description="outcome of an episode with reward r (method groups). as_is: r; signed: 2 r - 1",
    )
    group_scale: Literal["none", "std"] = Field(
        "none",
        description="what the distance to a group's mean reward is divided by (method groups)",
    )
    group_floor: float = Field(
        0.1, gt=0, description="smallest standard deviation that it is divided by"
    )
    length_ema_decay: float = Field(
        0.99,
        ge=0,
        lt=1,
        description="decay of the moving average of reply lengths, per reply; it is the denominator",
    )


class TrainDistillConfig(Section):
    """Distillation from the model that was given the hint (methods opd, combine, sdpo, sdft)."""

    target: Literal["token", "student_topk", "teacher_topk"] = Field(
        "token",
        description="what opd and combine compare: the sampled token, or the top-k of student or teacher",
    )
    opd_clip: float = Field(1.0, gt=0, description="C: bound of the distillation advantage")
    topk: int = Field(
        20, ge=1, le=1024, description="number of top-k tokens; all others form one tail bin"
    )
    teacher_temperature: float = Field(
        1.0,
        gt=0,
        description="teacher and student of opd are compared at this times the temperature of the reply",
    )
    divergence: Literal["reverse", "forward", "jsd"] = Field(
        "reverse",
        description="over the top-k: KL(student, teacher), KL(teacher, student), or Jensen-Shannon",
    )
    ratio_clip: float = Field(
        2.0, gt=0, description="largest importance ratio that weighs a position of a top-k term"
    )
    hint_choice: Literal["mixture", "overlap"] | None = Field(
        None,
        description="with several hints: their mixture (default for token), or the hint whose "
        "teacher shares most top-k "
        "tokens with the student (default for top-k)",
    )
    teacher: Literal["base", "ema"] = Field(
        "base",
        description="the frozen base, or a moving average of the policy, which can run away with it",
    )
    ema_rate: float = Field(
        0.05, gt=0, le=1, description="share of the policy in the moving average, per step"
    )
    ema_max_kl: float = Field(
        0.1,
        gt=0,
        description="KL(base, average) under the hint, in nats per token, above which the average stops",
    )


class TrainSafetyConfig(Section):
    """Safety checks of a step: staleness, trust region, gate, lease."""

    max_turn_log_ratio: float = Field(
        0.5,
        gt=0,
        description="mean |log rho| of a turn, in nats per token, above which it is too stale to train on",
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
        0.003,
        gt=0,
        description="trust region: a step that moves the policy further (k2, nats per token) is halved",
    )
    max_practice_kl: float = Field(
        0.01,
        gt=0,
        description="the same for a step of practice, whose credit is that of many replies and over all likely tokens",
    )
    gate_grad_norm: float = Field(
        100.0, gt=0, description="gradient norm above which a step is rejected"
    )
    gate_kl: float = Field(
        5.0, gt=0, description="mean KL to the base, in nats per token, above which it is rejected"
    )
    gate_entropy: float = Field(
        0.5,
        ge=0,
        le=1,
        description="entropy of the policy after a step of practice, as a share of that of the base with the lessons "
        "on the same replies, below which a step that lowers it is rejected; 0: no bound",
    )
    lease_ttl: float = Field(
        30.0, gt=0, description="seconds; a trainer that was frozen for longer publishes nothing"
    )

    @property
    def batch_log_ratio_limit(self) -> float:
        """Mean |log rho| of a batch above which its stalest turns are left out."""
        return (
            self.max_turn_log_ratio / 2
            if self.max_batch_log_ratio is None
            else self.max_batch_log_ratio
        )


class TrainCheckpointConfig(Section):
    """Checkpoints (docs/guides/checkpoints.md)."""

    keep: int = Field(
        8,
        ge=2,
        description="newest versions whose optimizer states are kept (with full weights: of "
        "two); full weights of these versions only",
    )
    keep_versions: int = Field(20, ge=2, description="newest versions whose weights are kept")
    keep_days: int = Field(
        30,
        ge=0,
        description="days of which one more version each is kept, the newest of the day; adapters only",
    )
    resident_bytes: int = Field(
        2**30,
        ge=0,
        description="memory for the adapters and optimizer states of the policies that were trained last (policy.per); "
        "0: they are read from their files",
    )
    save_dir: str | None = Field(None, description="folder for checkpoints outside of the home")
    save_interval: int = Field(1, ge=1, description="steps between two checkpoints in save_dir")
    resume: str | None = Field(
        None,
        description="checkpoint from which a new home starts, of any method; latest: the newest in save_dir",
    )


class TrainConfig(Section):
    """The trainer: method, weights, and the groups below."""

    method: MethodName = Field(
        "combine",
        description="; ".join(f"{spec.name}: {spec.summary}" for spec in METHODS.values()),
    )
    branches: Literal["chain", "all"] = Field(
        "chain",
        description="turns of an episode that are trained on (method groups). chain: those that lead to its last turn; "
        "all: also retries, summaries and sub-agents",
    )
    trainer: Annotated[str, AfterValidator(TRAINERS.check_name)] = Field(
        "local", description="who takes the steps"
    )
    answer_within: float = Field(
        3600.0,
        gt=0,
        description="trainer external: seconds until a batch without an answer is free again, and the connection ends",
    )
    finetune: Literal["lora", "full"] = Field(
        "lora", description="train an adapter, or all weights"
    )
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
    compile: bool = Field(
        False, description="compile layers: minutes at the first start, faster steps on a GPU"
    )
    max_steps: int | None = Field(
        None,
        ge=1,
        description="steps, those before a resumed checkpoint included, after which training stops",
    )
    exit_when_done: bool | None = Field(
        None,
        description="`openclaw-rl train` exits at max_steps, or when nothing is left to import, judge and train on; "
        "default: true with max_steps or data.path",
    )
    seed: int = 0
    threads: int = Field(1, ge=1, description="CPU threads of the trainer process, of each rank")
    ranks: int = Field(
        1, ge=1, description="processes that take a step together, one for each GPU of a machine"
    )
    launch: LaunchConfig = LaunchConfig()
    gpus: tuple[str, ...] = Field((), description="device ids that the trainer sees; default: all")
    poll: float = Field(0.1, gt=0, description="seconds between two looks at the store")
