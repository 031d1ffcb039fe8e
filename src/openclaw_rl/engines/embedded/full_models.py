"""Engine for versions with full weights, next to the base model and its adapters.

Each full-weight version has its own `EmbeddedEngine`, with weights, KV cache and prefix cache; the engines step in
turn. So replies on different versions share no forward pass, and each loaded version costs the memory of a whole model.
`engine.versions` limits their number.
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
"""Files of a version: an adapter, or a model with full weights."""
_ONLY = 0  # version number inside an engine that has only one


class Fleet(Core):
    """An `EmbeddedEngine` whose versions may also be full models."""

    def __init__(self, model: BaseModel, config: EngineConfig) -> None:
        super().__init__(model, config)
        self._whole: dict[Key, Core] = {}  # loaded, or with running replies

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
        """Return the policies whose files must be read before `load_versions`."""
        return [p for p in super().missing(policies) if (p.version, p.digest) not in self._whole]

    def read(self, ref: PolicyRef) -> Files:
        """Read and check a version's files; slow, so call it in a thread. Raise `EngineError` if they are unusable."""
        assert ref.path is not None
        if not adapter_file.holds_full_weights(ref.path):
            return adapter_file.read(ref)
        adapter_file.check_full(ref)
        try:
            return self.model.twin(_tensors(Path(ref.path)), name=self.model.name)
        except (OSError, SafetensorError, ModelError, RuntimeError) as error:
            raise EngineError(
                f"version {ref.version}: the weights in {ref.path} cannot be served as {self.model.name}: {error}. "
                "Roll back, or serve its own base"
            ) from error

    def change(self, policies: Sequence[PolicyRef], files: Mapping[Key, Files]) -> Generator[None]:
        """See `EmbeddedEngine.load_versions`."""
        made = {key: Core(model, self._config) for key, model in files.items() if isinstance(model, BaseModel)}
        yield from super().change(policies, {k: f for k, f in files.items() if isinstance(f, AdapterFile)})
        self._whole |= made

    def _gone(self) -> frozenset[Key]:
        """Return the full models that no loaded version and no running reply uses."""
        held = {key for key, _ in self._loaded.values()}
        return frozenset(key for key, core in self._whole.items() if key not in held and not core.busy)

    @property
    def untidy(self) -> bool:
        """Whether weights are in memory that no loaded version and no running sequence uses."""
        return super().untidy or bool(self._gone())

    def tidy(self) -> Generator[None]:
        """Unload unused adapters and full models, in small steps."""
        yield from super().tidy()
        for key in self._gone():
            del self._whole[key]

    def _own(self, version: int) -> Core | None:
        """Return the engine of a full model, None for an adapter. Raise `EngineError` if the version is not loaded."""
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
        """See `EmbeddedEngine.generate`."""
        if (core := self._own(version)) is not None:
            return core.generate(owner, _ONLY, prompt_ids, sampling, stop, top, guide)
        return super().generate(owner, version, prompt_ids, sampling, stop, top, guide)

    def score(self, owner: Any, version: int, prompt_ids: Ids, response_ids: Ids, temperature: float) -> Job:
        """See `EmbeddedEngine.score`."""
        if (core := self._own(version)) is not None:
            return core.score(owner, _ONLY, prompt_ids, response_ids, temperature)
        return super().score(owner, version, prompt_ids, response_ids, temperature)

    def cancel(self, job: Job) -> None:
        """Cancel a sequence of any of the engines; the next step frees its row."""
        super().cancel(job)
        for core in self._whole.values():
            core.cancel(job)

    @property
    def pause(self) -> float:
        """See `EmbeddedEngine.retry_delay`."""
        own = [super().pause] if super().busy else []
        return min([*own, *(core.pause for core in self._whole.values() if core.busy)], default=0.0)

    def step(self) -> list[Out]:
        """Run a step of each engine that has work."""
        out = super().step() if super().busy else []
        for core in self._whole.values():
            if core.busy:
                out += core.step()
        return out


def _tensors(folder: Path) -> dict[str, torch.Tensor]:
    """Load all weights of a folder into memory. Raise `ModelError` if a value is not finite."""
    tensors: dict[str, torch.Tensor] = {}
    for name in weight_files(folder):
        with safe_open(folder / name, framework="pt") as stored:
            for key in stored.keys():  # noqa: SIM118 - not a mapping
                tensors[key] = stored.get_tensor(key).clone()
                if not bool(torch.isfinite(tensors[key]).all()):
                    raise ModelError(f"{key} contains values that are not finite")
    return tensors
