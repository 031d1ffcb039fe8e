"""Methods: turn samples and log-probabilities into terms of the loss. Pure: no I/O, no settings, no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from openclaw_rl.methods.binary import BinaryMethod
from openclaw_rl.methods.combine import CombinedMethod
from openclaw_rl.methods.group_relative import GroupRelativeMethod
from openclaw_rl.methods.hint_selection import HintChoice
from openclaw_rl.methods.opd import OpdMethod
from openclaw_rl.methods.topk_distillation import TopKDistillation
from openclaw_rl.methods.types import Divergence

AnyMethod = BinaryMethod | OpdMethod | TopKDistillation | CombinedMethod | GroupRelativeMethod


@dataclass(frozen=True, slots=True, kw_only=True)
class DistillOptions:
    """Options of distillation from hinted teachers: on the sampled token, or on the student's or teacher's top-k."""

    by: Literal["token", "student_topk", "teacher_topk"] = "token"
    topk_size: int = 20
    divergence: Divergence = "reverse"
    ratio_clip: float = 2.0
    hint_choice: HintChoice | None = None  # None: mixture on the sampled token, overlap on top-k

    def make_topk(self, by: Literal["student", "teacher"], name: str) -> TopKDistillation:
        """Return distillation on the top-k tokens of `by`; `name` labels its metrics."""
        return TopKDistillation(
            name=name,
            of=by,
            top=self.topk_size,
            divergence=self.divergence,
            cap=self.ratio_clip,
            hint_choice=self.hint_choice or "overlap",
        )

    def make_opd(self, clip: float) -> OpdMethod | TopKDistillation:
        """Return the distillation part of `opd` and `combine`."""
        match self.by:
            case "student_topk":
                return self.make_topk("student", "opd")
            case "teacher_topk":
                return self.make_topk("teacher", "opd")
            case "token":
                return OpdMethod(clip=clip, hint_choice=self.hint_choice or "mixture", top=self.topk_size)


def create_method(
    name: str,
    *,
    decay: float,
    shrink: float,
    clip: float,
    w_binary: float,
    w_opd: float,
    distill: DistillOptions | None = None,
    groups: GroupRelativeMethod | None = None,
) -> AnyMethod:
    """Return the method of that name. Raises `ValueError` for an unknown name or options that exclude each other."""
    how, binary = distill or DistillOptions(), BinaryMethod(decay=decay, shrink=shrink)
    match name:
        case "binary":
            return binary
        case "opd":
            return how.make_opd(clip)
        case "combine":
            return CombinedMethod(binary=binary, opd=how.make_opd(clip), w_binary=w_binary, w_opd=w_opd)
        case "sdpo":
            return how.make_topk("student", name)
        case "sdft":
            return how.make_topk("teacher", name)
        case "groups":
            return groups or GroupRelativeMethod()
    raise ValueError(f"no method {name!r}; expected binary, opd, combine, sdpo, sdft or groups")


__all__ = [
    "AnyMethod",
    "BinaryMethod",
    "CombinedMethod",
    "DistillOptions",
    "GroupRelativeMethod",
    "OpdMethod",
    "TopKDistillation",
    "create_method",
]
