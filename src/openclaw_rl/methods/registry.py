"""The methods by name. A new method is one file in this folder and one entry here."""

from __future__ import annotations

from collections.abc import Mapping

from openclaw_rl.methods import binary, combine, group_relative, opd, topk_distillation
from openclaw_rl.methods.spec import MethodSettings, MethodSpec
from openclaw_rl.methods.types import CreditMethod

METHODS: Mapping[str, MethodSpec] = {
    spec.name: spec
    for spec in (
        binary.SPEC,
        opd.SPEC,
        combine.SPEC,
        topk_distillation.SDPO_SPEC,
        topk_distillation.SDFT_SPEC,
        group_relative.SPEC,
    )
}


def make_method(train: MethodSettings) -> CreditMethod:
    """Return the method that the settings select. Raises `ValueError` for settings that it cannot use."""
    return METHODS[train.method].create(train)
