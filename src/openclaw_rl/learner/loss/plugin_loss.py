"""A loss of the owner's in place of ours, reply by reply. Everything around it stays (docs/guides/plugins.md).

Stale turns, the band on the gap to the engine, the trust region, what is measured and the gate do not ask whose loss it
was. Legend: T tokens of one reply that may train, K response tokens of a micro-batch.
"""

from __future__ import annotations

import logging
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from openclaw_rl.errors import PluginError
from openclaw_rl.learner.loss.policy_loss import Loss, bounds_of, corrections
from openclaw_rl.learner.scored_batch import Scored
from openclaw_rl.methods.types import AnyTerm, Method, Term
from openclaw_rl.plugins.loader import Plugin, check_call, load
from openclaw_rl.settings.load import TrainConfig

log = logging.getLogger("openclaw_rl.plugins")
SETTING = "train.loss_path"
PARAMETERS = {
    "compute_loss": ("policy_logits", "reference_logits", "rewards", "advantages", "config"),
    "compute_opd_loss": ("student_logprobs", "teacher_logprobs", "advantage_mask", "clip_ratio"),
    "compute_hybrid_loss": (
        *("student_logprobs", "teacher_logprobs", "scalar_rewards"),
        *("opd_weight", "binary_weight", "clip_ratio"),
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What a loss may know of one reply: [T] each, natural logarithms at the temperature of sampling."""

    student: torch.Tensor  # of the policy being trained, with its graph
    sampled: torch.Tensor  # as the engine sampled it
    base: torch.Tensor
    teacher: torch.Tensor | None  # told the hint, the even mixture over several; None: there is no hint
    advantages: torch.Tensor  # of the method, weighted and summed over its terms
    score: float | None


def compute_gae(
    rewards: torch.Tensor, values: torch.Tensor | None = None, gamma: float = 1.0, lambda_: float = 1.0
) -> torch.Tensor:
    """[T] generalised advantage estimates of one reply (arXiv:1506.02438, eq. 16), without gradient.

    A_t = delta_t + gamma lambda A_{t+1}, delta_t = r_t + gamma V_{t+1} - V_t, nothing after the last token. `rewards`
    and `values` [T]; without values (there is no critic) V is 0. Supplied to every loss under this name.
    """
    values = torch.zeros_like(rewards) if values is None else values
    if rewards.ndim != 1 or rewards.shape != values.shape:
        raise ValueError(f"expected rewards and values [T], got {tuple(rewards.shape)} and {tuple(values.shape)}")
    out: list[float] = []
    after = value = 0.0
    for r, v in zip(reversed(rewards.tolist()), reversed(values.tolist()), strict=True):
        after = r + gamma * value - v + gamma * lambda_ * after
        value = v
        out.append(after)
    return torch.tensor(out[::-1], dtype=rewards.dtype, device=rewards.device)


class Custom:
    """The function of the owner's file, found by its name, and the settings that it is given."""

    def __init__(self, plugin: Plugin, train: TrainConfig) -> None:
        """Raises `PluginError` when the file does not define exactly one of the functions, or in another way."""
        self._plugin, self._train, self._bounds = plugin, train, bounds_of(train)
        self.name, self._function = plugin.only(*PARAMETERS)
        check_call(plugin, self.name, self._function, PARAMETERS[self.name])
        self.wrong: tuple[str, ...] = ()  # which ways it pushes that it should not
        self._left_out: set[str] = set()  # metrics that were not finite, as they were told

    @property
    def metrics(self) -> dict[str, float]:
        """Besides the parts of the loss."""
        return {"plugin/wrong_signs": float(len(self.wrong))}

    @property
    def identity(self) -> dict[str, str]:
        """What code trained."""
        return {
            "setting": SETTING,
            "path": str(self._plugin.path),
            "sha256": self._plugin.sha256,
            "function": self.name,
        }

    def finite(self, parts: Mapping[str, float]) -> dict[str, float]:
        """Of a step, all ranks: without the metrics of the function that are not finite, each told once.

        They say nothing of the loss: the gate, which refuses a step for any number that is not finite, need not know.
        """
        out = {n: v for n, v in parts.items() if not n.startswith("custom/") or math.isfinite(v)}
        for name in parts.keys() - out.keys() - self._left_out:
            self._left_out.add(name)
            words = f"told {parts[name]} as its metric {name.removeprefix('custom/')!r}, expected a finite number"
            log.warning("%s. It is left out of what is reported", self.error(words))
        return out

    def error(self, words: str) -> PluginError:
        """Names the file and the function."""
        return self._plugin.error(f"{self.name} {words}")

    def differentiating(self) -> AbstractContextManager[None]:
        """Around the backward pass: what the function changed in place, or its own backward, fails there."""
        return self._plugin.running(f"the gradient of {self.name}", passing=(torch.OutOfMemoryError,))

    def of(self, reply: Reply, **instead: float) -> tuple[torch.Tensor, Mapping[str, float]] | None:
        """The loss on one reply, and what the function tells besides. None: it has nothing to learn there.

        `instead`: other weights than the settings'. Raises `PluginError`.
        """
        if self.name == "compute_opd_loss" and reply.teacher is None:
            return None
        given = self._given(reply) | instead
        shape = f"given tensors of shape {tuple(reply.sampled.shape)}: a number for each token of the reply"
        with self._plugin.running(self.name, passing=(torch.OutOfMemoryError,), given=shape):
            result = self._function(**given)
        if self.name != "compute_hybrid_loss":
            return self._scalar(result), {}
        if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], Mapping)):
            raise self.error(f"gave {_shown(result)}, expected (loss, metrics): a scalar tensor and a dict of numbers")
        with self._plugin.running(f"{self.name}: a metric that is no number"):
            return self._scalar(result[0]), {str(name): _number(value) for name, value in result[1].items()}

    def _given(self, reply: Reply) -> dict[str, Any]:
        rewards = torch.zeros_like(reply.sampled)
        rewards[-1] = reply.score or 0.0
        clip = 1 - self._train.clip_low
        match self.name:
            case "compute_loss":
                config = {"clip_range": clip, "kl_coeff": self._train.kl_coef, "base_logprobs": reply.base}
                values = (reply.student, reply.sampled, rewards, reply.advantages, config)
            case "compute_opd_loss":
                values = (reply.student, reply.teacher, torch.ones_like(rewards), clip)  # type: ignore[assignment]
            case _:
                # Where there is no hint, the teacher agrees: its part has nothing to say.
                teacher = reply.student.detach() if reply.teacher is None else reply.teacher
                values = (reply.student, teacher, rewards, self._train.w_opd, self._train.w_binary, clip)  # type: ignore[assignment]
        return dict(zip(PARAMETERS[self.name], values, strict=True))

    def _scalar(self, value: Any) -> torch.Tensor:
        sound = isinstance(value, torch.Tensor) and value.ndim == 0 and value.is_floating_point()
        if not sound:
            raise self.error(f"gave {_shown(value)}, expected a scalar tensor of floats, e.g. the mean over the tokens")
        if not value.requires_grad:
            raise self.error(
                f"gave a loss without a gradient, expected one that depends on {PARAMETERS[self.name][0]}. "
                "Was it detached, or computed under no_grad?"
            )
        return value  # type: ignore[no-any-return]

    def loss(
        self, batch: Scored, terms: Sequence[AnyTerm], indices: Sequence[int], logp_K: torch.Tensor, denominator: float
    ) -> Loss:
        """Of a micro-batch: sum over replies of T * (the function's value) / `denominator`.

        So the mean over a reply's tokens, which such functions give, becomes the sum over tokens with the denominator
        of our own losses, and no reply weighs more or less for those beside it.
        """
        total, counts, parts = 0.0 * logp_K.sum(), Counter[str](), defaultdict[str, float](float)
        lengths = [len(batch.samples[i].response_ids) for i in indices]
        for i, logp in zip(indices, torch.split(logp_K, lengths), strict=True):
            reply = self._reply(batch, terms, i, logp, counts)
            if reply is None or (found := self.of(reply)) is None:
                continue
            counts["live"] += len(reply.sampled)
            weight = len(reply.sampled) / denominator
            total = total + weight * found[0]
            parts["custom"] += weight * found[0].item()
            for name, value in found[1].items():
                parts[f"custom/{name}"] += weight * value
        return Loss(total=total, parts=dict(parts), counts=dict(counts))

    def _reply(
        self, batch: Scored, terms: Sequence[AnyTerm], i: int, logp: torch.Tensor, counts: Counter[str]
    ) -> Reply | None:
        """Its tokens that stand in any term and that no mask takes out; None: there are none."""
        own = [term for term in terms if isinstance(term, Term) and term.masks[i].any()]
        advantages, anywhere = torch.zeros(len(logp), dtype=logp.dtype), torch.zeros(len(logp), dtype=torch.bool)
        for term in own:
            mask = torch.from_numpy(term.masks[i].astype(bool))
            advantages += term.weight * torch.from_numpy(term.advantages[i]) * mask
            anywhere |= mask
        mu, mask = batch.mu(i).to(logp.device), anywhere.to(logp.device)
        row = torch.zeros(len(logp), dtype=torch.long, device=logp.device)
        seen = corrections(logp, mu, None, row, mask, self._bounds)
        keep = mask & seen.band_K & seen.steady_K
        counts.update(
            tokens=int(mask.sum()), gap=int((mask & ~seen.band_K).sum()), geometric=int((mask & ~seen.steady_K).sum())
        )
        if not keep.any():
            return None
        return Reply(
            student=logp[keep],
            sampled=mu[keep],
            base=batch.base[i].to(logp.device)[keep],
            teacher=_mixture(batch.teachers[i], keep),
            advantages=advantages.to(logp.device)[keep],
            score=batch.samples[i].reward,
        )


def _number(value: Any) -> float:
    return float(value.detach() if isinstance(value, torch.Tensor) else value)


def _mixture(teachers: Sequence[torch.Tensor], keep: torch.Tensor) -> torch.Tensor | None:
    """[T] log of the mean of the probabilities."""
    if not teachers:
        return None
    stacked = torch.stack([teacher.to(keep.device)[keep] for teacher in teachers])
    return torch.logsumexp(stacked, 0) - math.log(len(teachers))


def _shown(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}, {str(value.dtype).removeprefix('torch.')}"
    if isinstance(value, tuple):
        return f"({', '.join(_shown(one) for one in value)})"
    return f"a value of type {type(value).__name__}"


def make(train: TrainConfig, method: Method) -> Custom | None:
    """The loss that the settings name, after the check of its signs; None: ours. Raises `PluginError`."""
    if train.loss_path is None:
        return None
    custom = Custom(load(SETTING, train.loss_path, {"compute_gae": compute_gae}), train)
    if custom.name != "compute_loss" and not method.uses_hints:
        raise custom.error("follows a teacher, and the method has no hints for one. Say train.method opd or combine")
    if custom.name == "compute_hybrid_loss" and not method.uses_reward:
        raise custom.error("needs scores, and the method uses none. Say train.method combine")
    custom.wrong = wrong_ways(custom, train)
    for words in custom.wrong:
        log.warning("%s", custom.error(words))
    return custom


# ------------------------------------------------------------------------------------------------- the check of signs

_CURE = "It is used all the same. docs/guides/plugins.md derives the signs; examples/plugins has corrected losses"


def wrong_ways(custom: Custom, train: TrainConfig) -> tuple[str, ...]:
    """What is wrong with the way that the loss pushes policies of two tokens, of which the first was sampled.

    Differentiated through a real softmax, at the policy that sampled (so at a ratio of 1). What is sound for one token
    and a teacher nearby is asked again of several tokens and of a teacher far away, where a loss may also hold still.
    """
    found = [words for case in _cases(custom.name, train) if (words := _wrong(custom, case))]
    if not found:
        found = [words for case in _further(custom.name, train) if (words := _wrong(custom, case, still=True))]
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """`way`: +1 or -1, which is right; `instead`: weights that leave one part alone."""

    why: str
    way: int
    reply: Callable[[torch.Tensor], Reply]
    instead: Mapping[str, float] = field(default_factory=dict)
    tokens: int = 1


def _cases(name: str, train: TrainConfig) -> list[Case]:
    scores = [Case(why=f"the advantage is {a:+d}", way=a, reply=_scored(a)) for a in (1, -1)]
    hints = [
        Case(why="the teacher prefers the token (0.6, the student 0.5)", way=1, reply=_taught(0.6)),
        Case(why="the teacher likes the token less (0.4, the student 0.5)", way=-1, reply=_taught(0.4)),
    ]
    return _of(name, train, scores, hints)


def _further(name: str, train: TrainConfig) -> list[Case]:
    scores = [
        Case(why=f"the advantage of each of three tokens is {a:+d}", way=a, reply=_scored(a), tokens=3) for a in (1, -1)
    ]
    hints = [
        Case(why=f"the teacher {likes} three tokens ({p}, the student 0.5)", way=way, reply=_taught(p), tokens=3)
        for likes, p, way in (("prefers", 0.95, 1), ("likes less each of", 0.05, -1))
    ]
    return _of(name, train, scores, hints)


def _of(name: str, train: TrainConfig, scores: list[Case], hints: list[Case]) -> list[Case]:
    """Those that say something of this function."""
    if name == "compute_loss":
        return scores
    if name == "compute_opd_loss":
        return hints
    binary = [replace(case, instead={"opd_weight": 0.0}) for case in scores if train.w_binary > 0]
    return binary + [replace(case, instead={"binary_weight": 0.0}) for case in hints if train.w_opd > 0]


def _scored(score: int) -> Callable[[torch.Tensor], Reply]:
    def reply(student: torch.Tensor) -> Reply:
        own, advantages = student.detach(), torch.full_like(student, float(score), requires_grad=False)
        return Reply(student=student, sampled=own, base=own, teacher=own, advantages=advantages, score=float(score))

    return reply


def _taught(teacher: float) -> Callable[[torch.Tensor], Reply]:
    def reply(student: torch.Tensor) -> Reply:
        own = student.detach()
        told = torch.full_like(own, math.log(teacher))
        return Reply(student=student, sampled=own, base=own, teacher=told, advantages=torch.zeros_like(own), score=None)

    return reply


def _wrong(custom: Custom, case: Case, *, still: bool = False) -> str:
    """In words; empty: nothing. `still`: it may leave the probability as it is."""
    rise = _rise(custom, case)
    if rise * case.way > 0 or (still and abs(rise) < 1e-6):
        return ""
    does = "does not change" if rise == 0 else "raises" if rise > 0 else "lowers"
    which = "the token's probability" if case.tokens == 1 else "their probability"
    return f"pushes the wrong way: {case.why}, and a step {does} {which}. {_CURE}"


def _rise(custom: Custom, case: Case) -> float:
    """How fast a small step of gradient descent raises the log-probability of the reply."""
    with torch.enable_grad():
        logits = torch.zeros(case.tokens, 2, requires_grad=True)
        found = custom.of(case.reply(torch.log_softmax(logits, 1)[:, 0]), **case.instead)
        assert found is not None, "every case gives the function what it needs"
        which = "one token" if case.tokens == 1 else f"{case.tokens} tokens"
        if not torch.isfinite(found[0]):
            raise custom.error(f"gave {found[0].item()} for a reply of {which}, expected a finite loss")
        with custom.differentiating():
            (down,) = torch.autograd.grad(found[0], logits, allow_unused=True)
    if down is None:
        raise custom.error(
            f"gave a loss whose gradient does not reach {PARAMETERS[custom.name][0]}. Compute it from what is given"
        )
    if not torch.isfinite(down).all():
        raise custom.error(f"gave a loss whose gradient is not finite for a reply of {which}, expected a finite one")
    return -float((down * (torch.tensor([1.0, 0.0]) - torch.softmax(logits.detach(), 1))).sum())
