"""Methods: turn samples and log-probabilities into terms of the loss. Pure: no I/O, no settings, no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from openclaw_rl.methods.binary import Binary
from openclaw_rl.methods.combine import Combine
from openclaw_rl.methods.group_relative import Groups
from openclaw_rl.methods.hint_selection import HintChoice
from openclaw_rl.methods.opd import Opd
from openclaw_rl.methods.topk_distillation import TopK
from openclaw_rl.methods.types import Divergence

AnyMethod = Binary | Opd | TopK | Combine | Groups


@dataclass(frozen=True, slots=True, kw_only=True)
class Distill:
    """Options of distillation from hinted teachers: on the sampled token, or on the student's or teacher's top-k."""

    by: Literal["token", "student_topk", "teacher_topk"] = "token"
    top: int = 20
    divergence: Divergence = "reverse"
    cap: float = 2.0
    hint_choice: HintChoice | None = None  # None: mixture on the sampled token, overlap on top-k

    def of(self, by: Literal["student", "teacher"], name: str) -> TopK:
        """Return distillation on the top-k tokens of `by`; `name` labels its metrics."""
        return TopK(
            name=name,
            of=by,
            top=self.top,
            divergence=self.divergence,
            cap=self.cap,
            hint_choice=self.hint_choice or "overlap",
        )

    def opd(self, clip: float) -> Opd | TopK:
        """Return the distillation part of `opd` and `combine`."""
        match self.by:
            case "student_topk":
                return self.of("student", "opd")
            case "teacher_topk":
                return self.of("teacher", "opd")
            case "token":
                return Opd(clip=clip, hint_choice=self.hint_choice or "mixture", top=self.top)


def make(
    name: str,
    *,
    decay: float,
    shrink: float,
    clip: float,
    w_binary: float,
    w_opd: float,
    distill: Distill | None = None,
    groups: Groups | None = None,
) -> AnyMethod:
    """Return the method of that name. Raises `ValueError` for an unknown name or options that exclude each other."""
    how, binary = distill or Distill(), Binary(decay=decay, shrink=shrink)
    match name:
        case "binary":
            return binary
        case "opd":
            return how.opd(clip)
        case "combine":
            return Combine(binary=binary, opd=how.opd(clip), w_binary=w_binary, w_opd=w_opd)
        case "sdpo":
            return how.of("student", name)
        case "sdft":
            return how.of("teacher", name)
        case "groups":
            return groups or Groups()
    raise ValueError(f"no method {name!r}; expected binary, opd, combine, sdpo, sdft or groups")


__all__ = ["AnyMethod", "Binary", "Combine", "Distill", "Groups", "Opd", "TopK", "make"]
