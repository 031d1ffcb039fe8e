"""Public doubles for the seams: real behaviour in small, with scripted content. They pass the same contract tests.

They let a room, or a plug-in of yours, be tested without a model: see `tests/` for their use.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from openclaw_rl.common.policy_digest import ADAPTER_CONFIG, ADAPTER_WEIGHTS, digest_of
from openclaw_rl.errors import EngineError, EngineGone, GrammarError, JudgeError
from openclaw_rl.methods.types import Sample, StepResult
from openclaw_rl.types import Chunk, Generation, Ids, JudgeInput, Logprobs, PolicyRef, Verdict, Vote

Reply = Callable[[Sequence[int], int], Sequence[int]]
"""(prompt ids, version) -> the ids that the reply will have, stop token included."""


def always(*token_ids: int) -> Reply:
    """The same reply to everything."""
    return lambda prompt, version: token_ids


class ScriptedEngine:
    """`protocols.Engine` without a model.

    `reply` says what is answered (one token at least; a script that is used up starts over). `delay`: seconds before
    each token. `gone_at`: from that token on, every stream breaks with `EngineGone` (0: before the first) until
    `revive()`. `refuse`: every generation is refused with these words. `load_delay`: seconds that a load takes.
    `grammar`: whether calls with a grammar are taken (nothing is forced: the script must obey).
    `loads` and `calls` record what was asked.
    """

    def __init__(
        self,
        reply: Reply,
        *,
        delay: float = 0.0,
        load_delay: float = 0.0,
        gone_at: int | None = None,
        refuse: str | None = None,
        versions: int = 4,
        context_length: int = 4096,
        grammar: bool = True,
    ) -> None:
        self.grammar = grammar
        self.reply, self.delay, self.load_delay = reply, delay, load_delay
        self.gone_at, self.refuse = gone_at, refuse
        self.versions, self.context_length = versions, context_length
        self.held: set[int] = {0}
        self.running: Counter[int] = Counter()
        self.calls: list[Generation] = []
        self.loads: list[tuple[PolicyRef, ...]] = []

    @staticmethod
    def logprob(token: int, version: int, temperature: float = 1.0) -> float:
        """What this engine claims of a token: a fixed function, so that a test can check where it ends up."""
        return -(1 + token % 7 + version % 3) / (8 * max(temperature, 0.1))

    def revive(self) -> None:
        """Start anew after `gone_at`: only the base is held."""
        self.gone_at, self.held = None, {0}

    def _check(self, version: int, length: int) -> None:
        if self.refuse is not None:
            raise EngineError(self.refuse)
        if version not in self.held:
            raise EngineError(f"version {version} is not loaded; held: {sorted(self.held)}")
        if length >= self.context_length:
            raise EngineError(f"the prompt has {length} tokens; the context holds {self.context_length} with the reply")

    async def generate(self, generation: Generation) -> AsyncIterator[Chunk]:
        """See `protocols.Engine.generate`."""
        self.calls.append(generation)
        version, length = generation.version, len(generation.prompt_ids)
        self._check(version, length)
        if generation.sampling.grammar is not None and not self.grammar:
            raise GrammarError("this engine cannot force a reply into a grammar")
        room = self.context_length - length
        limit = min(generation.sampling.max_tokens or room, room)
        script = list(self.reply(generation.prompt_ids.tolist(), version))
        self.running[version] += 1
        try:
            for n in range(limit):
                await asyncio.sleep(self.delay)
                if self.gone_at is not None and n >= self.gone_at:
                    raise EngineGone("the scripted engine is gone")
                chunk = self._chunk(generation, script[n % len(script)], last=n + 1 == limit)
                yield chunk
                if chunk.finish is not None:
                    return
        finally:
            self.running[version] -= 1

    def _chunk(self, generation: Generation, token: int, *, last: bool) -> Chunk:
        def known(i: int) -> tuple[int, float]:
            return i, self.logprob(i, generation.version, generation.sampling.temperature)

        finish = "stop" if token in generation.stop_token_ids else "length" if last else None
        top = (tuple(known(token + i) for i in range(generation.top_logprobs)),) if generation.top_logprobs else ()
        return Chunk(token_ids=(token,), logprobs=(known(token)[1],), top=top, finish=finish)

    async def score(self, *, version: int, prompt_ids: Ids, response_ids: Ids, temperature: float) -> Logprobs:
        """See `protocols.Engine.score`."""
        self._check(version, len(prompt_ids) + len(response_ids) - 1)
        return np.array([self.logprob(int(i), version, temperature) for i in response_ids], dtype=np.float32)

    async def load(self, policies: Sequence[PolicyRef]) -> None:
        """See `protocols.Engine.load`."""
        named = {p.version for p in policies}
        draining = {v for v, n in self.running.items() if n} - named
        if len(named | draining) > self.versions:
            raise EngineError(
                f"{len(named)} versions named and {len(draining)} still answering; at most {self.versions} fit"
            )
        for policy in policies:
            _check_folder(policy)
        await asyncio.sleep(self.load_delay)
        self.loads.append(tuple(policies))
        self.held = named


def _check_folder(policy: PolicyRef) -> None:
    if policy.path is None:
        return
    try:
        found = digest_of(policy.path)
    except FileNotFoundError as error:
        raise EngineError(f"version {policy.version}: {error.filename} is missing") from None
    if found != policy.digest:
        raise EngineError(f"version {policy.version}: digest of {policy.path} is {found}, expected {policy.digest}")


class ScriptedJudge:
    """`protocols.Judge` by a function of the input: a score (None abstains), a score with a hint, or an exception."""

    name = "scripted"

    def __init__(self, opinion: Callable[[JudgeInput], int | tuple[int | None, str] | JudgeError | None]) -> None:
        self.opinion = opinion
        self.seen: list[JudgeInput] = []

    async def judge(self, item: JudgeInput) -> Verdict:
        """See `protocols.Judge.judge`."""
        self.seen.append(item)
        opinion = self.opinion(item)
        if isinstance(opinion, JudgeError):
            raise opinion
        score, hint = opinion if isinstance(opinion, tuple) else (opinion, None)
        return Verdict(
            turn=item.turn,
            revision=item.reaction.revision,
            judge=self.name,
            score=score,
            votes=(Vote(score=score, hint=hint),),
            hints=(hint,) if hint else (),
            at=item.reaction.at,
        )


class ScriptedTrainer:
    """`protocols.Trainer` without a model: counts its steps and writes a small, real policy folder.

    `outcome` may change what a step reports (its metrics), return None (nothing to say) or raise.
    """

    def __init__(self, outcome: Callable[[Sequence[Sample]], Mapping[str, float] | None] = lambda samples: {}) -> None:
        self.outcome = outcome
        self.steps = 0
        self.folder: str | None = None
        self.memory: Mapping[str, Any] = {}
        self.batches: list[Sequence[Sample]] = []

    def load(self, *, folder: str | None, memory: Mapping[str, Any]) -> None:
        """See `protocols.Trainer.load`."""
        self.folder, self.memory = folder, dict(memory)
        self.steps = int(memory.get("steps", 0))

    def step(self, samples: Sequence[Sample], out: str) -> StepResult:
        """See `protocols.Trainer.step`."""
        self.batches.append(tuple(samples))
        metrics = self.outcome(samples)
        if metrics is None:
            dropped = {s.turn: "the script has nothing to say" for s in samples}
            return StepResult(folder=None, digest="", metrics={}, memory=self.memory, dropped=dropped)
        self.steps += 1
        self.memory = dict(self.memory) | {"steps": self.steps}
        write_adapter(out, weight=float(self.steps))
        self.folder = out
        sound = {
            "loss/total": 0.1,
            "kl": 0.0,
            "kl/step": 0.0,
            "gradient/norm": 1.0,
            "turns": float(len(samples)),
            "step": float(self.steps),
        }
        return StepResult(folder=out, digest=digest_of(out), metrics=sound | dict(metrics), memory=self.memory)


def write_adapter(folder: str | Path, *, weight: float = 0.0) -> str:
    """A PEFT adapter folder with one 1x1 matrix pair, that fits no model; returns its digest."""
    if not math.isfinite(weight):
        raise ValueError(f"weight: expected a finite number, got {weight}")
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    settings = {"peft_type": "LORA", "r": 1, "lora_alpha": 1, "target_modules": ["nothing"]}
    (path / ADAPTER_CONFIG).write_text(json.dumps(settings))
    names = [f"base_model.model.nothing.lora_{side}.weight" for side in "AB"]
    header = {n: {"dtype": "F32", "shape": [1, 1], "data_offsets": [4 * i, 4 * i + 4]} for i, n in enumerate(names)}
    raw = json.dumps(header).encode()
    values = np.full(2, weight, dtype="<f4").tobytes()
    (path / ADAPTER_WEIGHTS).write_bytes(len(raw).to_bytes(8, "little") + raw + values)
    return digest_of(path)
