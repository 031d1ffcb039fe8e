"""Sampling clients of the versions that the engine for Tinker holds."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any, Literal

from openclaw_rl.errors import ModelLost
from openclaw_rl.tinker.service import TinkerService
from openclaw_rl.tinker.version_file import TinkerVersion


class VersionSamplers:
    """One sampling client for each version, by the service's path of its weights; None: the base.

    With `tinker.sample_from: models`, each version is loaded into a model of its own, from its training checkpoint. The
    model of a version that is discarded takes the next one: the SDK has no call that ends a model.
    """

    def __init__(
        self, service: TinkerService, sample_from: Literal["checkpoints", "models"]
    ) -> None:
        self._service = service
        self._own_models = sample_from == "models"
        self._versions: dict[str, TinkerVersion] = {}
        self._samplers: dict[str | None, Any] = {}
        # Training clients, by the version that each holds.
        self._models: dict[str, Any] = {}
        # Rank and training client of models without a version.
        self._free: list[tuple[int, Any]] = []
        self._lock = asyncio.Lock()

    @property
    def paths(self) -> set[str]:
        """The paths of the versions that have a sampling client."""
        return {path for path in self._samplers if path is not None}

    def add_version(self, version: TinkerVersion) -> str:
        """Note where the service holds a version, and return its path."""
        self._versions[version.sampler] = version
        return version.sampler

    async def find_or_create(self, path: str | None) -> Any:
        """Return the SDK's sampling client of a version. Raises `EngineError`.

        One that is there does not wait for another that is being created, which takes as long as the service does.
        """
        sampler = self._samplers.get(path)
        if sampler is not None:
            return sampler
        # A call that is cancelled leaves no model behind.
        return await asyncio.shield(self._create_once(path))

    async def _create_once(self, path: str | None) -> Any:
        async with self._lock:
            sampler = self._samplers.get(path)
            if sampler is None:
                sampler = await asyncio.to_thread(self._create_sampler, path)
                self._samplers[path] = sampler
            return sampler

    def _create_sampler(self, path: str | None) -> Any:
        if path is None or not self._own_models:
            return self._service.create_sampler(path)
        version = self._versions[path]
        free = self._take_free(version.rank)
        if free is not None:
            try:
                return self._load_into(free, version)
            except ModelLost:
                self._free.clear()
        return self._load_into(self._service.create_model(rank=version.rank), version)

    def _load_into(self, model: Any, version: TinkerVersion) -> Any:
        """Load a version into a model, and return a sampling client of it."""
        self._service.finish_call(lambda: model.load_state(version.state))
        saved = self._service.save_checkpoint(
            model, "sampler_weights", f"serve-{uuid.uuid4().hex[:12]}"
        )
        sampler = self._service.create_sampler(saved)
        self._models[version.sampler] = model
        return sampler

    def _take_free(self, rank: int) -> Any:
        """Return a model of this rank without a version, or None."""
        place = next((i for i, (free, _) in enumerate(self._free) if free == rank), None)
        return None if place is None else self._free.pop(place)[1]

    def discard(self, path: str) -> None:
        """Forget the client of a version that no reply uses; its model is free."""
        self._samplers.pop(path, None)
        model = self._models.pop(path, None)
        if model is not None:
            self._free.append((self._versions[path].rank, model))

    def forget_all(self, failed: Any) -> None:
        """Forget all clients and models, which are gone if that of `failed` is; nothing if it was replaced already."""
        if any(sampler is failed for sampler in self._samplers.values()):
            self._samplers.clear()
            self._models.clear()
            self._free.clear()
