"""Plug-in loss: a user-supplied function that replaces the built-in loss, called per reply (docs/guides/plugins.md).

Staleness checks, the band on the engine-trainer ratio, the trust region, the metrics and the gate apply as with the
built-in loss. Shapes: T trainable tokens of one reply, K response tokens of a micro-batch.
"""

from __future__ import annotations

import logging
import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from openclaw_rl.errors import PluginError
from openclaw_rl.learner.loss.policy_loss import LossResult, make_loss_config, off_policy_correction
from openclaw_rl.learner.loss.scored_batch import ScoredBatch
from openclaw_rl.methods.gae import compute_gae
from openclaw_rl.methods.types import AnyTerm, CreditMethod, PolicyGradientTerm
from openclaw_rl.plugins.loader import Plugin, check_call, load_plugin
from openclaw_rl.plugins.source_check import LOSS_PARAMETERS
from openclaw_rl.settings.load import TrainConfig

log = logging.getLogger("openclaw_rl.plugins")
SETTING = "train.loss.path"


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginReply:
    """Inputs of a loss for one reply: [T] each, natural log-probabilities at the sampling temperature."""

    student: torch.Tensor  # under the policy being trained, with the autograd graph
    sampled: torch.Tensor  # from the engine, at sampling time
    base: torch.Tensor
    # Given the hint; the even mixture over several hints; None without a hint.
    teacher: torch.Tensor | None
    advantages: torch.Tensor  # from the method, weighted and summed over its terms
    score: float | None


def tensor_gae(
    rewards: torch.Tensor,
    values: torch.Tensor | None = None,
    gamma: float = 1.0,
    lambda_: float = 1.0,
) -> torch.Tensor:
    """Return `compute_gae` of the tokens of one reply [T], without gradient; without values (no critic) V is 0.

    Every plug-in loss can call this function by the name `compute_gae`.
    """
    values = torch.zeros_like(rewards) if values is None else values
    if rewards.ndim != 1 or rewards.shape != values.shape:
        raise ValueError(
            f"expected rewards and values [T], got {tuple(rewards.shape)} and {tuple(values.shape)}"
        )
    advantages = compute_gae(rewards.tolist(), values.tolist(), gamma, lambda_)
    return torch.from_numpy(advantages).to(rewards)


class PluginLoss:
    """Loss function from the user's file, selected by its name, with the settings that it receives."""

    def __init__(self, plugin: Plugin, train: TrainConfig) -> None:
        """Raises `PluginError` unless the file defines exactly one of the functions, with the expected parameters."""
        self._plugin = plugin
        self._train = train
        self._loss_config = make_loss_config(train)
        self.name, self._function = plugin.single_function(*LOSS_PARAMETERS)
        check_call(plugin, self.name, self._function, LOSS_PARAMETERS[self.name])
        # Problems that the sign check found.
        self.sign_problems: tuple[str, ...] = ()
        # Names of non-finite metrics that were already logged.
        self._logged_metrics: set[str] = set()

    @property
    def identity(self) -> dict[str, str]:
        """Path, sha256 and function name of the plug-in loss, for the trainer state."""
        return {
            "setting": SETTING,
            "path": str(self._plugin.path),
            "sha256": self._plugin.sha256,
            "function": self.name,
        }

    def finite_metrics(self, parts: Mapping[str, float]) -> dict[str, float]:
        """Return the loss parts of a step (all ranks) without non-finite plug-in metrics; log each such name once.

        These metrics do not affect the loss, but the gate would reject the step for any non-finite number.
        """
        out = {n: v for n, v in parts.items() if not n.startswith("custom/") or math.isfinite(v)}
        for name in parts.keys() - out.keys() - self._logged_metrics:
            self._logged_metrics.add(name)
            problem = f"returned {parts[name]} as its metric {name.removeprefix('custom/')!r}, expected a finite number"
            log.warning("%s. The metric is not reported", self.plugin_error(problem))
        return out

    def plugin_error(self, problem: str) -> PluginError:
        """Return an error that names the file and the function."""
        return self._plugin.make_error(f"{self.name} {problem}")

    def running_backward(self) -> AbstractContextManager[None]:
        """Context for the backward pass, where in-place changes and the function's own backward code fail."""
        return self._plugin.convert_errors(
            f"the gradient of {self.name}", passing=(torch.OutOfMemoryError,)
        )

    def reply_loss(
        self, reply: PluginReply, **instead: float
    ) -> tuple[torch.Tensor, Mapping[str, float]] | None:
        """Return the loss on one reply and the function's metrics, or None without a needed hint.

        `instead`: arguments that replace those from the settings. Raises `PluginError`.
        """
        if self.name == "compute_opd_loss" and reply.teacher is None:
            return None
        arguments = self._call_arguments(reply) | instead
        shape = f"given tensors of shape {tuple(reply.sampled.shape)}: one number for each token of the reply"
        with self._plugin.convert_errors(
            self.name, passing=(torch.OutOfMemoryError,), arguments=shape
        ):
            result = self._function(**arguments)
        if self.name != "compute_hybrid_loss":
            return self._check_scalar(result), {}
        if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], Mapping)):
            raise self.plugin_error(
                f"returned {_describe_value(result)}, expected (loss, metrics): scalar tensor and dict of numbers"
            )
        with self._plugin.convert_errors(f"{self.name}: a metric that is not a number"):
            return self._check_scalar(result[0]), {
                str(name): _metric_value(value) for name, value in result[1].items()
            }

    def _call_arguments(self, reply: PluginReply) -> dict[str, Any]:
        rewards = torch.zeros_like(reply.sampled)
        rewards[-1] = reply.score or 0.0
        clip = 1 - self._train.loss.clip_low
        match self.name:
            case "compute_loss":
                config = {
                    "clip_range": clip,
                    "kl_coeff": self._train.loss.kl_coef,
                    "base_logprobs": reply.base,
                }
                values = (reply.student, reply.sampled, rewards, reply.advantages, config)
            case "compute_opd_loss":
                values = (reply.student, reply.teacher, torch.ones_like(rewards), clip)  # type: ignore[assignment]
            case _:
                # Without a hint, the student stands in for the teacher, so the distillation part has no gradient.
                teacher = reply.student.detach() if reply.teacher is None else reply.teacher
                values = (
                    reply.student,
                    teacher,
                    rewards,
                    self._train.loss.w_opd,
                    self._train.loss.w_binary,
                    clip,
                )  # type: ignore[assignment]
        return dict(zip(LOSS_PARAMETERS[self.name], values, strict=True))

    def _check_scalar(self, value: Any) -> torch.Tensor:
        sound = isinstance(value, torch.Tensor) and value.ndim == 0 and value.is_floating_point()
        if not sound:
            raise self.plugin_error(
                f"returned {_describe_value(value)}, expected a scalar float tensor, e.g. the mean over the tokens"
            )
        if not value.requires_grad:
            raise self.plugin_error(
                "returned a loss without a gradient, expected one that depends on "
                f"{LOSS_PARAMETERS[self.name][0]}. Was it detached, or computed under no_grad?"
            )
        return value  # type: ignore[no-any-return]

    def micro_batch_loss(
        self,
        batch: ScoredBatch,
        terms: Sequence[AnyTerm],
        indices: Sequence[int],
        logp_K: torch.Tensor,
        denominator: float,
    ) -> LossResult:
        """Return the loss of a micro-batch: sum over replies of T * (function value) / `denominator`.

        Such functions return the mean over a reply's tokens. This turns it into a sum over tokens with the denominator
        of the built-in losses, so that the weight of a reply does not depend on the other replies.
        """
        total = 0.0 * logp_K.sum()
        counts = Counter[str]()
        parts = defaultdict[str, float](float)
        lengths = [len(batch.samples[i].response_ids) for i in indices]
        for i, logp in zip(indices, torch.split(logp_K, lengths), strict=True):
            reply = self._reply_inputs(batch, terms, i, logp, counts)
            result = None if reply is None else self.reply_loss(reply)
            if reply is None or result is None:
                continue
            loss, metrics = result
            counts["live"] += len(reply.sampled)
            weight = len(reply.sampled) / denominator
            total = total + weight * loss
            parts["custom"] += weight * loss.item()
            for name, value in metrics.items():
                parts[f"custom/{name}"] += weight * value
        return LossResult(total=total, parts=dict(parts), counts=dict(counts))

    def _reply_inputs(
        self,
        batch: ScoredBatch,
        terms: Sequence[AnyTerm],
        i: int,
        logp: torch.Tensor,
        counts: Counter[str],
    ) -> PluginReply | None:
        """Return the inputs for the tokens that are in any term and not masked; None if there are no such tokens."""
        advantages = torch.zeros_like(logp)
        mask = torch.zeros_like(logp, dtype=torch.bool)
        for term in terms:
            if isinstance(term, PolicyGradientTerm):
                in_term = torch.from_numpy(term.masks[i]).to(logp.device)
                advantages += (
                    term.weight * torch.from_numpy(term.advantages[i]).to(logp.device) * in_term
                )
                mask |= in_term
        mu = batch.sampled_logprobs(i).to(logp.device)
        row = torch.zeros(len(logp), dtype=torch.long, device=logp.device)
        seen = off_policy_correction(logp, mu, None, row, mask, self._loss_config)
        keep = mask & seen.in_band_K & seen.in_geometric_band_K
        counts.update(
            tokens=int(mask.sum()),
            gap=int((mask & ~seen.in_band_K).sum()),
            geometric=int((mask & ~seen.in_geometric_band_K).sum()),
        )
        if not keep.any():
            return None
        return PluginReply(
            student=logp[keep],
            sampled=mu[keep],
            base=batch.base[i].to(logp.device)[keep],
            teacher=_teacher_mixture(batch.teachers[i], keep),
            advantages=advantages[keep],
            score=batch.samples[i].reward,
        )


def _metric_value(value: Any) -> float:
    return float(value.detach() if isinstance(value, torch.Tensor) else value)


def _teacher_mixture(teachers: Sequence[torch.Tensor], keep: torch.Tensor) -> torch.Tensor | None:
    """Return [T]: the log of the mean teacher probability; None without teachers."""
    if not teachers:
        return None
    stacked = torch.stack([teacher.to(keep.device)[keep] for teacher in teachers])
    return torch.logsumexp(stacked, 0) - math.log(len(teachers))


def _describe_value(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}, {str(value.dtype).removeprefix('torch.')}"
    if isinstance(value, tuple):
        return f"({', '.join(_describe_value(one) for one in value)})"
    return f"a value of type {type(value).__name__}"


def load_plugin_loss(train: TrainConfig, method: CreditMethod) -> PluginLoss | None:
    """Load the loss that the settings name and check its signs. None means the built-in loss. Raises `PluginError`."""
    if train.loss.path is None:
        return None
    custom = PluginLoss(load_plugin(SETTING, train.loss.path, {"compute_gae": tensor_gae}), train)
    if custom.name != "compute_loss" and not method.uses_hints:
        raise custom.plugin_error(
            "follows a teacher, but the method uses no hints. Set train.method opd or combine"
        )
    if custom.name == "compute_hybrid_loss" and not method.uses_reward:
        raise custom.plugin_error(
            "needs scores, but the method uses none. Set train.method combine"
        )
    custom.sign_problems = find_sign_problems(custom, train)
    for problem in custom.sign_problems:
        log.warning("%s", custom.plugin_error(problem))
    return custom


# ------------------------------------------------------------------------------------------------------ sign check

_SIGN_HINT = "The loss is used anyway. docs/guides/plugins.md derives the signs; examples/plugins has corrected losses"


def find_sign_problems(custom: PluginLoss, train: TrainConfig) -> tuple[str, ...]:
    """Return the cases in which the loss moves a policy over two tokens, the first one sampled, the wrong way.

    The gradient goes through a real softmax, at the sampling policy (a ratio of 1). A loss that passes with one token
    and a close teacher is also tried with several tokens and a distant teacher, where a zero gradient is accepted.
    """
    problems = [_sign_problem(custom, case) for case in _sign_cases(custom.name, train, 1)]
    if not any(problems):
        several = _sign_cases(custom.name, train, 3)
        problems = [_sign_problem(custom, case, still=True) for case in several]
    return tuple(problem for problem in problems if problem)


@dataclass(frozen=True, slots=True, kw_only=True)
class SignCase:
    """Case of the sign check: the teacher's probability of each token, or, without a teacher, the advantage `way`."""

    why: str
    way: int  # correct direction, +1 or -1
    tokens: int
    teacher: float | None = None
    instead: Mapping[str, float] = field(default_factory=dict)  # arguments that isolate one part

    def trial_reply(self, student: torch.Tensor) -> PluginReply:
        """Return the inputs of the loss; the policy has not moved since sampling."""
        logprobs = student.detach()
        score = float(self.way) if self.teacher is None else None
        return PluginReply(
            student=student,
            sampled=logprobs,
            base=logprobs,
            teacher=logprobs
            if self.teacher is None
            else torch.full_like(logprobs, math.log(self.teacher)),
            advantages=torch.full_like(logprobs, score or 0.0),
            score=score,
        )


def _sign_cases(name: str, train: TrainConfig, tokens: int) -> list[SignCase]:
    """Return the cases that apply to this function."""
    if name == "compute_loss":
        return _score_cases(tokens)
    if name == "compute_opd_loss":
        return _hint_cases(tokens)
    cases: list[SignCase] = []
    if train.loss.w_binary > 0:
        cases += [replace(case, instead={"opd_weight": 0.0}) for case in _score_cases(tokens)]
    if train.loss.w_opd > 0:
        cases += [replace(case, instead={"binary_weight": 0.0}) for case in _hint_cases(tokens)]
    return cases


def _score_cases(tokens: int) -> list[SignCase]:
    of = "the advantage" if tokens == 1 else "the advantage of each of three tokens"
    return [SignCase(why=f"{of} is {way:+d}", way=way, tokens=tokens) for way in (1, -1)]


def _hint_cases(tokens: int) -> list[SignCase]:
    teachers = _TEACHERS_OF_ONE if tokens == 1 else _TEACHERS_OF_THREE
    cases = []
    for likes, probability, way in teachers:
        why = f"the teacher {likes} ({probability}, the student 0.5)"
        cases.append(SignCase(why=why, way=way, teacher=probability, tokens=tokens))
    return cases


_TEACHERS_OF_ONE = (("prefers the token", 0.6, 1), ("likes the token less", 0.4, -1))
_TEACHERS_OF_THREE = (
    ("prefers three tokens", 0.95, 1),
    ("likes less each of three tokens", 0.05, -1),
)


def _sign_problem(custom: PluginLoss, case: SignCase, *, still: bool = False) -> str:
    """Return a description of the problem, or an empty string. `still`: an unchanged probability is accepted."""
    rise = _logprob_slope(custom, case)
    if rise * case.way > 0 or (still and abs(rise) < 1e-6):
        return ""
    effect = "does not change"
    if rise != 0:
        effect = "raises" if rise > 0 else "lowers"
    which = "the token's probability" if case.tokens == 1 else "their probability"
    return f"pushes the wrong way: {case.why}, and a step {effect} {which}. {_SIGN_HINT}"


def _logprob_slope(custom: PluginLoss, case: SignCase) -> float:
    """Return the derivative of the reply's log-probability along a step of gradient descent."""
    with torch.enable_grad():
        logits = torch.zeros(case.tokens, 2, requires_grad=True)
        result = custom.reply_loss(
            case.trial_reply(torch.log_softmax(logits, 1)[:, 0]), **case.instead
        )
        assert result is not None, "every case gives the function what it needs"
        which = "one token" if case.tokens == 1 else f"{case.tokens} tokens"
        if not torch.isfinite(result[0]):
            raise custom.plugin_error(
                f"returned {result[0].item()} for a reply of {which}, expected a finite loss"
            )
        with custom.running_backward():
            (down,) = torch.autograd.grad(result[0], logits, allow_unused=True)
    if down is None:
        raise custom.plugin_error(
            f"returned a loss whose gradient does not reach {LOSS_PARAMETERS[custom.name][0]}. Compute it from "
            "the arguments"
        )
    if not torch.isfinite(down).all():
        raise custom.plugin_error(
            f"returned a loss with a non-finite gradient for a reply of {which}, expected a finite one"
        )
    return -float((down * (torch.tensor([1.0, 0.0]) - torch.softmax(logits.detach(), 1))).sum())
