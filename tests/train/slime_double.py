"""slime's data classes, stated from its release 0.3.1, for machines without it; `--slime-source` runs its own.

Facts (`slime/utils/types.py`, `slime/rollout/base_types.py`, `slime/utils/misc.py`): `Sample` is a dataclass with these
fields and defaults, made from a dict by `Sample.from_dict`, whose `status` is the value of the enumeration; a rollout
function returns `RolloutFnTrainOutput(samples: list[list[Sample]], metrics)`; functions are loaded by
`load_function("module.name")`.
"""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import pytest


class SampleStatus(Enum):
    PENDING = "pending"
    COMPLETED = "completed"
    TRUNCATED = "truncated"
    ABORTED = "aborted"
    FAILED = "failed"


@dataclass
class PublishedSample:
    group_index: int | None = None
    index: int | None = None
    rollout_id: int | None = None
    prompt: str | list[dict[str, str]] = ""
    tokens: list[int] = field(default_factory=list)
    multimodal_inputs: dict[str, Any] | None = None
    multimodal_train_inputs: dict[str, Any] | None = None
    multimodal_train_input_id: str | None = None
    apply_chat_template_kwargs: dict[str, Any] = field(default_factory=dict)
    response: str = ""
    response_length: int = 0
    label: str | None = None
    reward: float | dict[str, Any] | None = None
    loss_mask: list[int] | None = None
    weight_versions: list[str] = field(default_factory=list)
    rollout_log_probs: list[float] | None = None
    rollout_top_p_token_ids: list[int] | None = None
    rollout_top_p_token_offsets: list[int] | None = None
    rollout_routed_experts: list[list[int]] | None = None
    remove_sample: bool = False
    teacher_log_probs: list[float] | None = None
    status: SampleStatus = SampleStatus.PENDING
    metadata: dict[str, Any] = field(default_factory=dict)
    generate_function_path: str | None = None
    custom_rm_path: str | None = None
    train_metadata: dict[str, Any] | None = None
    session_id: str | None = None
    non_generation_time: float = 0.0
    spec_info: Any = None
    prefix_cache_info: Any = None

    Status = SampleStatus

    @staticmethod
    def from_dict(data: dict[str, Any]) -> PublishedSample:
        return PublishedSample(**data | {"status": SampleStatus(data["status"])})


@dataclass
class TrainOutput:
    samples: list[list[Any]]
    metrics: dict[str, Any] | None = None


def load_function(path: str) -> Callable[..., Any]:
    module, _, name = path.rpartition(".")
    found: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return found


def install_double(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make `import slime` find this module's classes."""
    modules: dict[str, dict[str, Any]] = {
        "slime": {},
        "slime.utils": {},
        "slime.rollout": {},
        "slime.utils.types": {"Sample": PublishedSample},
        "slime.utils.misc": {"load_function": load_function},
        "slime.rollout.base_types": {"RolloutFnTrainOutput": TrainOutput},
    }
    for name, values in modules.items():
        made = types.ModuleType(name)
        made.__path__ = []
        vars(made).update(values)
        monkeypatch.setitem(sys.modules, name, made)


def install_source(monkeypatch: pytest.MonkeyPatch, folder: str) -> None:
    """Make `import slime` find a checkout of slime."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "slime"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(folder)
