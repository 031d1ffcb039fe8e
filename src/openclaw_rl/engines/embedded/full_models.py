"""The core as the server sees it: the base with all its adapters, and beside it each version that is a whole model.

Such a version is a core of its own, with weights, slots and prefix cache of its own; each takes its step in turn. So
replies on different versions share no forward pass, and every version held costs the memory of a whole model:
`engine.versions` bounds how many.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from openclaw_rl.common.policy_digest import weight_files
from openclaw_rl.engines import adapter_file
from openclaw_rl.engines.adapter_file import AdapterFile
from openclaw_rl.engines.embedded.grammar import Guide
from openclaw_rl.engines.embedded.model import BaseModel
from openclaw_rl.engines.embedded.multi_lora import Key
from openclaw_rl.engines.embedded.scheduler import Core
from openclaw_rl.engines.embedded.sequence import Job, Out
from openclaw_rl.errors import EngineError, ModelError
from openclaw_rl.settings.load import EngineConfig
from openclaw_rl.types import Ids, PolicyRef, Sampling

Files = AdapterFile | BaseModel
"""What was read of a version."""
_ONLY = 0  # what a core that holds one version calls it


class Fleet(Core):
    """A `Core` whose versions may also be whole models."""

    def __init__(self, model: BaseModel, config: EngineConfig) -> None:
        super().__init__(model, config)
        self._whole: dict[Key, Core] = {}  # loaded, or still answering

    # What it holds

    @property
    def running(self) -> int:
        return super().running + sum(core.running for core in self._whole.values())

    @property
    def waiting(self) -> int:
        return super().waiting + sum(core.waiting for core in self._whole.values())

    @property
    def busy(self) -> bool:
        return super().busy or any(core.busy for core in self._whole.values())

    def _draining(self, named: frozenset[Key]) -> frozenset[Key]:
        return super()._draining(named) | frozenset(k for k, core in self._whole.items() if core.busy) - named

    def missing(self, policies: Sequence[PolicyRef]) -> list[PolicyRef]:
        """Those that must be read first."""
        return [p for p in super().missing(policies) if (p.version, p.digest) not in self._whole]

    def read(self, ref: PolicyRef) -> Files:
        """A version's files, checked; for a thread of its own. Raises `EngineError`."""
        assert ref.path is not None
        if not adapter_file.holds_full_weights(ref.path):
            return adapter_file.read(ref)
        adapter_file.check_full(ref)
        try:
            return self.model.twin(_tensors(Path(ref.path)), name=self.model.name)
        except (OSError, SafetensorError, ModelError, RuntimeError) as error:
            raise EngineError(
                f"version {ref.version}: the weights in {ref.path} are not served as {self.model.name}: {error}. Roll "
                "back, or serve its own base"
            ) from error

    def change(self, policies: Sequence[PolicyRef], files: Mapping[Key, Files]) -> Generator[None]:
        """See `Core.change`."""
        made = {key: Core(model, self._config) for key, model in files.items() if isinstance(model, BaseModel)}
        yield from super().change(policies, {k: f for k, f in files.items() if isinstance(f, AdapterFile)})
        self._whole |= made

    def _gone(self) -> frozenset[Key]:
        """Whole models that nothing needs."""
        held = {key for key, _ in self._loaded.values()}
        return frozenset(key for key, core in self._whole.items() if key not in held and not core.busy)

    @property
    def untidy(self) -> bool:
        """Whether weights are in memory that nothing needs any more."""
        return super().untidy or bool(self._gone())

    def tidy(self) -> Generator[None]:
        """Let go of what nothing needs."""
        yield from super().tidy()
        for key in self._gone():
            del self._whole[key]

    # Calls

    def _own(self, version: int) -> Core | None:
        """The core of a version that is a whole model. Raises `EngineError` when the version is not loaded."""
        return self._whole.get(self._look_up(version)[0])

    def generate(
        self,
        owner: Any,
        version: int,
        prompt_ids: Ids,
        sampling: Sampling,
        stop: Sequence[int],
        top: int = 0,
        guide: Guide | None = None,
    ) -> Job:
        """See `Core.generate`."""
        if (core := self._own(version)) is not None:
            return core.generate(owner, _ONLY, prompt_ids, sampling, stop, top, guide)
        return super().generate(owner, version, prompt_ids, sampling, stop, top, guide)

    def score(self, owner: Any, version: int, prompt_ids: Ids, response_ids: Ids, temperature: float) -> Job:
        """See `Core.score`."""
        if (core := self._own(version)) is not None:
            return core.score(owner, _ONLY, prompt_ids, response_ids, temperature)
        return super().score(owner, version, prompt_ids, response_ids, temperature)

    def cancel(self, job: Job) -> None:
        """Its row is free from the next step on, whosever it is."""
        super().cancel(job)
        for core in self._whole.values():
            core.cancel(job)

    @property
    def pause(self) -> float:
        """See `Core.pause`."""
        own = [super().pause] if super().busy else []
        return min([*own, *(core.pause for core in self._whole.values() if core.busy)], default=0.0)

    def step(self) -> list[Out]:
        """A step of each core that has something to do."""
        out = super().step() if super().busy else []
        for core in self._whole.values():
            if core.busy:
                out += core.step()
        return out


def _tensors(folder: Path) -> dict[str, torch.Tensor]:
    """All weights of a folder, in memory of their own. Raises `ModelError` for numbers that are not finite."""
    tensors: dict[str, torch.Tensor] = {}
    for name in weight_files(folder):
        with safe_open(folder / name, framework="pt") as stored:
            for key in stored.keys():  # noqa: SIM118 - it is no mapping
                tensors[key] = stored.get_tensor(key).clone()
                if not bool(torch.isfinite(tensors[key]).all()):
                    raise ModelError(f"{key} holds numbers that are not finite")
    return tensors
