"""The checks of `gpu_check.py`.

"rows" are rows computed one at a time by the model's own attention; differences are of norms, relative, unless they are
of log-probabilities (nats).
"""

from __future__ import annotations

import asyncio
import importlib.util
import random
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from transformers import Gemma3ForCausalLM, Gemma3TextConfig

import qwen3
from openclaw_rl.common.policy_digest import digest_of_folder
from openclaw_rl.engines import adapter_file
from openclaw_rl.engines.embedded.model import EmbeddedModel, resolve_model_path
from openclaw_rl.engines.embedded.scheduler import EmbeddedEngine
from openclaw_rl.engines.embedded.sequence import SequenceScored
from openclaw_rl.learner.forward import causal_attention, tree_attention
from openclaw_rl.learner.forward import lm_head as head
from openclaw_rl.learner.forward.flex_attention import AttentionShape
from openclaw_rl.learner.forward.packing import TokenSequence
from openclaw_rl.learner.forward.runner import ForwardRunner
from openclaw_rl.learner.optim.master_weights import PinnedSnapshot
from openclaw_rl.learner.trainer import LocalTrainer
from openclaw_rl.methods.registry import make_method
from openclaw_rl.methods.types import StepResult
from openclaw_rl.settings.load import STARTER, EngineConfig, ModelConfig, train_settings
from openclaw_rl.types import PolicyRef, Sampling

# H, G, D of known models.
HEADS = {
    "Qwen3 4B": (32, 8, 128),
    "Qwen2.5 7B": (28, 4, 128),
    "Gemma 3 4B": (8, 4, 256),
    "Llama 3.2 1B": (32, 8, 64),
}
# Of attention's states and gradients.
WIDE = {torch.float32: 1e-4, torch.bfloat16: 0.03}


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Of one check. `passed` None: it does not apply here."""

    name: str
    measured: str
    expected: str
    passed: bool | None
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where the checks run. `scratch` is theirs alone."""

    device: torch.device
    scratch: Path

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"


Check = Callable[[Place], Iterable[Found]]


def within(name: str, value: float, bound: float) -> Found:
    return Found(
        name=name, measured=f"{value:.3g}", expected=f"at most {bound:.3g}", passed=value <= bound
    )


def distance(got: Sequence[torch.Tensor], want: Sequence[torch.Tensor]) -> float:
    """Of all of them together, relative in norm."""
    pairs = list(zip(got, want, strict=True))
    apart = sum(float((g.double() - w.double()).square().sum()) for g, w in pairs)
    return float((apart / sum(float(w.double().square().sum()) for _, w in pairs)) ** 0.5)


def machine(place: Place) -> list[Found]:
    triton = importlib.util.find_spec("triton") is not None
    name = "CPU"
    half = True
    if place.on_gpu:
        name = torch.cuda.get_device_name(place.device)
        half = torch.cuda.is_bf16_supported()
        name = f"{name}, CUDA {torch.version.cuda}, triton {'there' if triton else 'missing'}"
    return [
        Found(
            name="device", measured=f"{name}, torch {torch.__version__}", expected="", passed=True
        ),
        Found(name="bfloat16", measured=str(half), expected="True", passed=half),
    ]


def kernels(place: Place) -> Iterator[Found]:
    """The compiled FlexAttention against attention by segments, forward and backward; and the causal kernel."""
    if not place.on_gpu:
        yield Found(
            name="FlexAttention", measured="no gradients on a CPU", expected="", passed=None
        )
        return
    for model, (heads, groups, size) in HEADS.items():
        gap = causal_attention.kernel_error(heads, groups, size, torch.bfloat16, place.device)
        yield within(f"causal kernel, {model}, bfloat16", gap, WIDE[torch.bfloat16])
    # Each is compiled: that takes what time this takes.
    calls = [(model, torch.bfloat16, False) for model in HEADS]
    calls += [("Gemma 3 4B", torch.bfloat16, True), ("Qwen3 4B", torch.float32, False)]
    for model, dtype, windowed in calls:
        heads, groups, size = HEADS[model]
        call = AttentionShape(heads=heads, groups=groups, size=size, dtype=dtype, windowed=windowed)
        kind = f"{str(dtype).removeprefix('torch.')}{', window' if windowed else ''}"
        yield within(
            f"FlexAttention, {model}, {kind}",
            tree_attention.flex_error(call, place.device),
            WIDE[dtype],
        )


def gradients(place: Place) -> Iterator[Found]:
    """The packed tree against rows. Half precision: at most half as far again from float32 as rows are."""
    for name, model in (("Qwen3", _qwen), ("Gemma 3 (windows)", _gemma)):
        exact = _gradients(model(place.device, torch.float32), "rows")
        shared = _gradients(model(place.device, torch.float32), "tree")
        yield within(f"tree against rows, {name}, float32", distance(shared, exact), 1e-4)
        half = _gradients(model(place.device, torch.bfloat16), "rows")
        bound = 1.5 * distance(half, exact) + 1e-3
        for way in ("tree", "compiled") if place.on_gpu else ("tree",):
            gap = distance(_gradients(model(place.device, torch.bfloat16), way), exact)
            yield within(f"{way} against rows, {name}, bfloat16", gap, bound)
        flex = ForwardRunner(model(place.device, torch.bfloat16), micro_tokens=10**6).uses_flex
        passed = flex is place.on_gpu
        expected = str(place.on_gpu)
        yield Found(
            name=f"FlexAttention is used, {name}",
            measured=str(flex),
            expected=expected,
            passed=passed,
        )


def _qwen(device: torch.device, dtype: torch.dtype) -> Any:
    return qwen3.make("tiny", device, torch.float32, sharpness=3.0).to(torch.bfloat16).to(dtype)


def _gemma(device: torch.device, dtype: torch.dtype) -> Any:
    torch.manual_seed(0)
    config = Gemma3TextConfig(
        vocab_size=512, hidden_size=64, intermediate_size=128, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, max_position_embeddings=2048, sliding_window=48,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
    )  # fmt: skip
    return Gemma3ForCausalLM(config).to(device).to(torch.bfloat16).to(dtype).eval()


def _gradients(model: Any, way: str) -> list[torch.Tensor]:
    """Of a weighted sum of log-probabilities of two sessions upon one trunk, in the model's own precision."""
    rows = qwen3.session(512, 400, turns=4)
    trunk = rows[0].prompt_ids
    rows += [
        TokenSequence(
            prompt_ids=np.concatenate([trunk[:150], row.prompt_ids[:90]]),
            response_ids=row.response_ids,
            temperature=1,
        )
        for row in qwen3.session(512, 400, turns=4, seed=1)[:2]
    ]
    passes = ForwardRunner(model, micro_tokens=10**6, compiled=way == "compiled")
    if way == "rows":
        model.set_attn_implementation("eager")
        logp_K = torch.cat([passes._run_padded([row]).token_logprobs().logp for row in rows])
    else:
        assert passes.uses_tree
        assert passes.is_compiled is (way == "compiled")
        logp_K, _ = passes.forward(rows)
    weights_K = torch.linspace(-1, 1, len(logp_K), device=logp_K.device)
    return list(
        torch.autograd.grad(
            (logp_K * weights_K).sum(), [p for p in model.parameters() if p.ndim == 2]
        )
    )


def lm_head(place: Place) -> list[Found]:
    """Half-precision states and weights, added up in float32: against float64 on the same numbers."""
    torch.manual_seed(0)
    linear = torch.nn.Linear(512, 8_000, bias=False).to(place.device, torch.bfloat16)
    hidden = torch.randn(128, 512, device=place.device).to(torch.bfloat16).requires_grad_()
    targets = torch.arange(128, device=place.device) * 61
    warm = torch.linspace(0.5, 1.5, 128, device=place.device)
    picked = head.HiddenStates(
        head=linear,
        hidden_KH=hidden,
        targets_K=targets,
        temperature_K=warm,
        lengths=(len(targets),),
    ).token_logprobs(floats=8_000 * 50)
    twin = hidden.detach().double().requires_grad_()
    logits = twin @ linear.weight.detach().double().T / warm.double().unsqueeze(-1)
    exact = torch.log_softmax(logits, -1).gather(-1, targets.unsqueeze(-1))[:, 0]
    gradients = torch.autograd.grad(picked.logp.sum(), [hidden, linear.weight])
    wanted = torch.autograd.grad(exact.sum(), [twin])
    # A CPU rounds the products' sums to half precision.
    wide = 1e-3 if place.on_gpu else 0.05
    return [
        within(
            "LM head, log-probabilities",
            float((picked.logp.double() - exact).detach().abs().max()),
            wide,
        ),
        within("LM head, gradient of states", distance(gradients[:1], wanted), 0.02),
    ]


def steps(place: Place) -> Iterator[Found]:
    """`LocalTrainer.step` of each kind: it moves the policy, is the same twice, and goes on from the disk."""
    base = qwen3.save("tiny", place.scratch / "base", place.device, torch.float32, sharpness=3.0)
    kinds: dict[str, dict[str, Any]] = {
        "LoRA, float32": {"dtype": "float32"},
        "LoRA, bfloat16": {"dtype": "bfloat16"},
        "full, float32": {"dtype": "float32", "weights": "full", "learning_rate": 1e-5},
        "full, bfloat16": {"dtype": "bfloat16", "weights": "full", "learning_rate": 1e-5},
        "full, bfloat16, held back": {
            "dtype": "bfloat16", "weights": "full", "learning_rate": 1e-4, "max_step_kl": 1e-5,
        },
        "full, bfloat16, offloaded": {
            "dtype": "bfloat16", "weights": "full", "learning_rate": 1e-5, "offload_optimizer": True,
        },
        "QLoRA": {"dtype": "bfloat16" if place.on_gpu else "float32", "base_bits": 4},
    }  # fmt: skip
    for kind, settings in kinds.items():
        if settings.get("base_bits") == 4 and importlib.util.find_spec("bitsandbytes") is None:
            yield Found(
                name=f"step, {kind}", measured="no bitsandbytes here", expected="", passed=None
            )
            continue
        yield from _steps(place, base, kind, settings)


def _steps(place: Place, base: str, kind: str, settings: dict[str, Any]) -> list[Found]:
    at = Path(tempfile.mkdtemp(dir=place.scratch))
    trainer = _trainer(place, base, settings)
    first = _step(trainer, at / "1")
    second = _step(trainer, at / "2")
    moved = first.metrics["kl/step"]
    finite = all(np.isfinite(v) for v in (*first.metrics.values(), *second.metrics.values()))
    trainer.load(folder=str(at / "1"), method_state=first.memory)
    _step(trainer, at / "resumed")
    again = _trainer(place, base, settings)
    _step(again, at / "again")
    lean = _trainer(place, base, settings | {"checkpointing": True})
    _step(lean, at / "lean")
    # half-precision sums are taken in another order under recomputation.
    loose = settings["dtype"] != "float32"
    return [
        Found(
            name=f"step, {kind}",
            measured=f"KL {moved:.2g}, norm {first.metrics['gradient/norm']:.3g}",
            expected="finite, above 0",
            passed=finite and moved > 0,
        ),
        _same(f"the same twice, {kind}", at / "1", at / "again", 1e-5),
        _same(f"resumed from the disk, {kind}", at / "2", at / "resumed", 1e-5),
        _same(
            f"checkpointing changes nothing, {kind}", at / "1", at / "lean", 2e-2 if loose else 1e-4
        ),
    ]


def _trainer(place: Place, base: str, settings: dict[str, Any]) -> LocalTrainer:
    own = {key: value for key, value in settings.items() if key != "dtype"}
    train = train_settings(
        {
            **{
                "method": "binary",
                "max_gap": 1e9,
                "gap_low": 1e-9,
                "gap_high": 1e9,
                "max_step_kl": 1e9,
            }
            | own,
            "threads": torch.get_num_threads(),
        }
    )
    method = make_method(train_settings({"method": "binary"}))
    model = ModelConfig(path=base, device=str(place.device), dtype=settings["dtype"])
    return LocalTrainer(base, method, train, model)


def _step(trainer: LocalTrainer, out: Path) -> StepResult:
    done = trainer.step(qwen3.samples(qwen3.session(512, 300, turns=4)), str(out))
    assert done.folder is not None, done.dropped
    return done


def _same(name: str, one: Path, other: Path, bound: float) -> Found:
    """How far two policies are apart, of what the step may change: relative to the one's norm."""
    if digest_of_folder(one) == digest_of_folder(other):
        return Found(name=name, measured="to the bit", expected=f"at most {bound:.3g}", passed=True)
    a, b = (load_file(next(f for f in sorted(p.glob("*model*.safetensors")))) for p in (one, other))
    return within(name, distance([b[k] for k in sorted(a)], [a[k] for k in sorted(a)]), bound)


def way_back(place: Place) -> list[Found]:
    """Weights that change right after they were copied aside: the copies are of before."""
    if not place.on_gpu:
        return [Found(name="copies aside", measured="made for GPUs", expected="", passed=None)]
    torch.manual_seed(0)
    # 2 GB.
    weights = {str(n): torch.randn(4096, 8192, device=place.device) for n in range(16)}
    aside = PinnedSnapshot(weights)
    same = True
    for _ in range(2):
        before = {name: weight.cpu() for name, weight in weights.items()}
        copies = aside.start_copy()
        aside.wait_for_copy()
        for weight in weights.values():
            weight.mul_(-1.5)
        torch.cuda.synchronize(place.device)
        same &= all(torch.equal(copies[name], before[name]) for name in weights)
    return [
        Found(
            name="copies aside",
            measured="equal" if same else "changed",
            expected="equal",
            passed=same,
        )
    ]


def engine(place: Place) -> Iterator[Found]:
    """The starter policy served, trained and served again on this device: engine and trainer see the same numbers."""
    for dtype, bound in (("float32", 1e-3), ("bfloat16", 0.1)):
        model = ModelConfig(path=STARTER, device=str(place.device), dtype=dtype)  # type: ignore[arg-type]
        core = EmbeddedEngine(EmbeddedModel.load(model), EngineConfig())
        trainer = _trainer(
            place, resolve_model_path(STARTER), {"dtype": dtype, "learning_rate": 1e-4}
        )
        yield from _rounds(place, core, trainer, dtype, bound)


def _rounds(
    place: Place, core: EmbeddedEngine, trainer: LocalTrainer, dtype: str, bound: float
) -> list[Found]:
    """Serve, step, swap, serve."""
    rows, logprobs = _replies(core, 0)
    found = [
        within(f"engine against trainer, {dtype}, version 0", _gap(trainer, rows, logprobs), bound)
    ]
    greedy, drawn = _replies(core, 0, temperature=0.0)
    scores = [_score(core, 0, row) for row in greedy]
    found.append(within(f"greedy reply scored again, {dtype}", _apart(drawn, scores), bound))
    out = Path(tempfile.mkdtemp(dir=place.scratch)) / "policy"
    done = trainer.step(qwen3.samples(rows, logprobs), str(out))
    assert done.folder is not None, done.dropped
    base = PolicyRef(version=0, path=None, digest="")
    ref = PolicyRef(version=1, path=str(out), digest=done.digest)
    for _ in core.load_versions([base, ref], {(1, done.digest): adapter_file.read_adapter(ref)}):
        core.step()
    rows, logprobs = _replies(core, 1)
    found.append(
        within(f"engine against trainer, {dtype}, version 1", _gap(trainer, rows, logprobs), bound)
    )
    return found


def _replies(
    core: EmbeddedEngine, version: int, temperature: float = 1.0
) -> tuple[list[TokenSequence], list[np.ndarray]]:
    """Eight at once: (rows, sampled log-probabilities)."""
    draw = np.random.default_rng(7)
    prompts = [
        draw.integers(5, core.model.vocab_size, int(draw.integers(5, 60))).astype(np.int32)
        for _ in range(8)
    ]
    tokens: dict[int, list[tuple[int, float]]] = {n: [] for n in range(8)}
    for n, prompt in enumerate(prompts):
        core.generate(
            n, version, prompt, Sampling(temperature=temperature, seed=n, max_tokens=24), ()
        )
    while core.has_work:
        for item in core.step():
            tokens[item.seq.owner].append((item.token, item.logprob))  # type: ignore[union-attr]
    rows = [
        TokenSequence(
            prompt_ids=prompts[n],
            response_ids=np.array([t for t, _ in drawn], np.int32),
            temperature=temperature or 1,
        )
        for n, drawn in tokens.items()
    ]
    return rows, [
        np.array([logprob for _, logprob in drawn], np.float32) for drawn in tokens.values()
    ]


def _score(core: EmbeddedEngine, version: int, row: TokenSequence) -> np.ndarray:
    core.score("score", version, row.prompt_ids, row.response_ids, row.temperature)
    while core.has_work:
        for item in core.step():
            if isinstance(item, SequenceScored):
                return np.asarray(item.logprobs)
    raise AssertionError("a scoring that gave nothing")


def _gap(
    trainer: LocalTrainer, rows: Sequence[TokenSequence], logprobs: Sequence[np.ndarray]
) -> float:
    return _apart([t.numpy() for t in trainer.logprobs(rows)], logprobs)


def _apart(one: Sequence[np.ndarray], other: Sequence[np.ndarray]) -> float:
    """Mean difference in nats."""
    return float(np.abs(np.concatenate(one) - np.concatenate(other)).mean())


def lack(place: Place) -> list[Found]:
    """Replies of an engine on a device that another takes all memory of for a while: as without."""
    if not place.on_gpu:
        return [
            Found(name="replies without memory", measured="made for GPUs", expected="", passed=None)
        ]
    core = EmbeddedEngine(
        EmbeddedModel.load(ModelConfig(path=STARTER, device=str(place.device))),
        EngineConfig(prefix_cache_tokens=0),
    )
    # Libraries take what they need at their first call.
    _replies(core, 0)
    rows, _ = _replies(core, 0)
    failed = 0
    plain = core._handle_oom

    def make_room(out: list[Any]) -> None:
        nonlocal failed
        failed += 1
        if failed == 5:
            taken.clear()
            torch.cuda.empty_cache()
        plain(out)

    core._handle_oom = make_room  # type: ignore[method-assign]
    taken = list(_all_memory(place.device))
    after, _ = _replies(core, 0)
    same = [a.response_ids.tolist() for a in rows] == [b.response_ids.tolist() for b in after]
    measured = f"{failed} steps did not fit, replies {'equal' if same else 'differ'}"
    return [
        Found(
            name="replies without memory",
            measured=measured,
            expected="5, equal",
            passed=same and failed >= 5,
        )
    ]


def _all_memory(device: torch.device) -> Iterator[torch.Tensor]:
    """In pieces, down to the smallest that the allocator knows."""
    torch.cuda.empty_cache()
    size = torch.cuda.mem_get_info(device)[0]
    while size >= 512:
        try:
            yield torch.empty(size, dtype=torch.uint8, device=device)
        except torch.OutOfMemoryError:
            size //= 2


def system(place: Place) -> list[Found]:
    """`openclaw-rl up`, engine and trainer on the device: a simulated user talks, policies are trained and swapped."""
    # The checks run as a script, whose folder is the only one of the checkout that Python looks into.
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from benchmarks.demo import user_driver
    from benchmarks.demo.personas import Persona

    from openclaw_rl.evals.styles import TASTES
    from openclaw_rl.supervisor.subprocess_system import SubprocessSystem, scratch_config

    async def talk(running: SubprocessSystem) -> user_driver.ConversationLog:
        persona = Persona(taste=random.Random(0).choice(sorted(TASTES)), seed=0)
        async with user_driver.openai_client(running.base_url, running.api_key) as api:
            return await user_driver.run_conversation(
                api, "openclaw", persona, replies=60, pause=0.05
            )

    with SubprocessSystem(
        scratch_config(place.scratch / "home", {"model.device": str(place.device)})
    ) as running:
        said = asyncio.run(talk(running))
        version = running.wait_until_settled(timeout=120)
    return [
        Found(
            name="the whole system",
            measured=f"{len(said.replies)} replies, {len(said.failures)} failed, version {version}",
            expected="60 replies, 0 failed, version 1 or later",
            passed=len(said.replies) == 60 and not said.failures and version >= 1,
        )
    ]


CHECKS: dict[str, Check] = {
    "machine": machine,
    "kernels": kernels,
    "gradients": gradients,
    "head": lm_head,
    "steps": steps,
    "way back": way_back,
    "engine": engine,
    "lack": lack,
    "system": system,
}
