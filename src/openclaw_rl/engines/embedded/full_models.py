"""Engine for versions with full weights, next to the base model and its adapters.

Each full-weight version has its own `EmbeddedEngine`, with weights, KV cache and prefix cache; the engines step in
turn. So replies on different versions share no forward pass, and each loaded version costs the memory of a whole model.
`engine.max_loaded_versions` limits their number.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from openclaw_rl.common.policy_digest import weight_files
from openclaw_rl.engines import adapter_file
from openclaw_rl.engines.adapter_file import AdapterFile
from openclaw_rl.engines.base import VersionKey
from openclaw_rl.engines.embedded.model import EmbeddedModel
from openclaw_rl.engines.embedded.scheduler import EmbeddedEngine
from openclaw_rl.engines.embedded.sequence import EngineSequence, StepEvent
from openclaw_rl.errors import EngineError, ModelError
from openclaw_rl.settings.load import EngineConfig
from openclaw_rl.types import PolicyRef

VersionFiles = AdapterFile | EmbeddedModel
"""Files of a version: an adapter, or a model with full weights."""


class MultiModelEngine(EmbeddedEngine):
    """An `EmbeddedEngine` whose versions may also be full models."""

    def __init__(self, model: EmbeddedModel, config: EngineConfig) -> None:
        super().__init__(model, config)
        # Loaded, or with running replies.
        self._full_engines: dict[VersionKey, EmbeddedEngine] = {}

    @property
    def running_count(self) -> int:
        return super().running_count + sum(
            engine.running_count for engine in self._full_engines.values()
        )

    @property
    def waiting_count(self) -> int:
        return super().waiting_count + sum(
            engine.waiting_count for engine in self._full_engines.values()
        )

    @property
    def has_work(self) -> bool:
        return super().has_work or any(engine.has_work for engine in self._full_engines.values())

    @property
    def serves_people(self) -> bool:
        """Whether a person waits for a sequence of any of the engines."""
        return super().serves_people or any(
            engine.serves_people for engine in self._full_engines.values()
        )

    @property
    def _versions_in_use(self) -> frozenset[VersionKey]:
        return super()._versions_in_use | {
            k for k, engine in self._full_engines.items() if engine.has_work
        }

    def unread_policies(self, policies: Sequence[PolicyRef]) -> list[PolicyRef]:
        """Return the policies whose files must be read before `load_versions`."""
        return [
            p
            for p in super().unread_policies(policies)
            if (p.version, p.digest) not in self._full_engines
        ]

    def read_version(self, ref: PolicyRef) -> VersionFiles:
        """Read and check a version's files; slow, so call it in a thread. Raise `EngineError` if they are unusable."""
        assert ref.path is not None
        if not adapter_file.has_full_weights(ref.path):
            return adapter_file.read_adapter(ref)
        adapter_file.check_full_weights(ref)
        try:
            return self.model.with_weights(_load_tensors(Path(ref.path)), name=self.model.name)
        except (OSError, SafetensorError, ModelError, RuntimeError) as error:
            raise EngineError(
                f"version {ref.version}: the weights in {ref.path} cannot be served as {self.model.name}: {error}. "
                "Roll back, or serve its own base"
            ) from error

    def load_versions(
        self, policies: Sequence[PolicyRef], files: Mapping[VersionKey, VersionFiles]
    ) -> Generator[None]:
        """See `EmbeddedEngine.load_versions`."""
        created = {
            key: EmbeddedEngine(model, self._config)
            for key, model in files.items()
            if isinstance(model, EmbeddedModel)
        }
        adapters = {key: file for key, file in files.items() if isinstance(file, AdapterFile)}
        yield from super().load_versions(policies, adapters)
        self._full_engines |= created

    def _unused_models(self) -> frozenset[VersionKey]:
        """Return the full models that no loaded version and no running reply uses."""
        loaded = {key for key, _ in self._loaded.values()}
        return frozenset(
            key
            for key, engine in self._full_engines.items()
            if key not in loaded and not engine.has_work
        )

    @property
    def has_unused(self) -> bool:
        """Whether weights are in memory that no loaded version and no running sequence uses."""
        return super().has_unused or bool(self._unused_models())

    def unload_unused(self) -> Generator[None]:
        """Unload unused adapters and full models, in small steps."""
        yield from super().unload_unused()
        for key in self._unused_models():
            del self._full_engines[key]

    def _add_waiting(self, seq: EngineSequence) -> EngineSequence:
        """Queue the sequence in the engine of its full model, if it has one."""
        engine = self._full_engines.get(seq.version)
        if engine is None:
            return super()._add_waiting(seq)
        seq.adapter = None
        return engine._add_waiting(seq)

    def cancel(self, seq: EngineSequence) -> None:
        """Cancel a sequence of any of the engines; the next step frees its row."""
        super().cancel(seq)
        for engine in self._full_engines.values():
            engine.cancel(seq)

    @property
    def retry_delay(self) -> float:
        """See `EmbeddedEngine.retry_delay`."""
        delays = [engine.retry_delay for engine in self._full_engines.values() if engine.has_work]
        if super().has_work:
            delays.append(super().retry_delay)
        return min(delays, default=0.0)

    def step(self) -> list[StepEvent]:
        """Run a step of each engine that has work."""
        out = super().step() if super().has_work else []
        for engine in self._full_engines.values():
            if engine.has_work:
                out += engine.step()
        return out


def _load_tensors(folder: Path) -> dict[str, torch.Tensor]:
    """Load all weights of a folder into memory. Raise `ModelError` if a value is not finite."""
    tensors: dict[str, torch.Tensor] = {}
    for name in weight_files(folder):
        with safe_open(folder / name, framework="pt") as stored:
            for key in stored.keys():  # noqa: SIM118 - not a mapping
                tensors[key] = stored.get_tensor(key).clone()
                if not bool(torch.isfinite(tensors[key]).all()):
                    raise ModelError(f"{key} contains values that are not finite")
    return tensors
