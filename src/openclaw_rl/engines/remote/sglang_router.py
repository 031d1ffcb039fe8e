"""Engine client for SGLang whose weights another program updates (`engine.weights: trainer`), such as slime's router.

It loads nothing. The server says which weights it has (`weight_version`), and the home says which version these are
(`trainer_weights`). There is one version at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from openclaw_rl.engines.remote import trainer_weights
from openclaw_rl.engines.remote.engine import BASE_WEIGHTS
from openclaw_rl.engines.remote.loaded_versions import LoadedVersion
from openclaw_rl.engines.remote.sglang import SglangEngine
from openclaw_rl.engines.remote.weight_queue import WeightLock
from openclaw_rl.errors import EngineError, EngineGone
from openclaw_rl.types import PolicyRef

_POLL_SECONDS = 0.2
_UNKNOWN = "?"
"""Name of weights that belong to no version of the home: of a run of the trainer that has not said so yet."""


class SglangRouterEngine(SglangEngine):
    """See `SglangEngine`. Names of full weights are those of the versions' folders."""

    kind = "SGLang under another trainer"
    loads_weights: ClassVar[bool] = False
    update_seconds = 120.0
    """Seconds that the trainer may take from writing a version to serving it."""

    def __init__(self, *args: Any, home: Path, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self._home = home

    async def _prepare_version(
        self, loaded: LoadedVersion, beside: Sequence[LoadedVersion]
    ) -> LoadedVersion:
        if loaded.adapter is not None:
            raise EngineError(
                f"version {loaded.ref.version} is an adapter, and the trainer updates full weights (engine.weights)"
            )
        return (
            loaded
            if loaded.ref.path is None
            else replace(loaded, weights=Path(loaded.ref.path).name)
        )

    async def _loaded_weights_name(self) -> str:
        answer = await self.http.call_json("GET", "/model_info")
        return self._name_of(answer.get("weight_version") if isinstance(answer, dict) else None)

    async def _load_full_weights(self, name: str, ref: PolicyRef | None) -> None:
        """Wait until the trainer has loaded these weights. Raises `EngineError` if it has newer ones."""
        deadline = asyncio.get_running_loop().time() + self.update_seconds
        while (present := await self._loaded_weights_name()) != name:
            order = [self._name_of(tag) for tag in self._read_weights()]
            if present in order and (name not in order or order.index(name) < order.index(present)):
                raise EngineError(
                    f"the server has the weights {_in_words(present)}, and not {_in_words(name)}: the trainer "
                    "(engine.weights) serves its newest version alone"
                )
            if asyncio.get_running_loop().time() > deadline:
                raise EngineGone(
                    f"the trainer (engine.weights) has not loaded {_in_words(name)} within {self.update_seconds:g} s; "
                    f"the server has {_in_words(present)}. Is slime running?"
                )
            await asyncio.sleep(_POLL_SECONDS)

    def _check_weights(self, loaded: LoadedVersion, tags: Collection[str | None]) -> None:
        """Raise `EngineGone` if the trainer changed the weights under a reply. While it connects, any will do."""
        others = {self._name_of(tag) for tag in tags} - {loaded.weights or BASE_WEIGHTS}
        if not others or not self.connected:
            return
        # Its name is read again.
        self._weight_lock = WeightLock(None, self._swap_full_weights)
        raise EngineGone(
            f"the trainer loaded {_in_words(others.pop())} during a reply on {_in_words(loaded.weights)}"
        )

    def _name_of(self, tag: str | None) -> str:
        names = self._read_weights()
        return (names[tag] or BASE_WEIGHTS) if tag is not None and tag in names else _UNKNOWN

    def _read_weights(self) -> dict[str, str | None]:
        try:
            return trainer_weights.read_weights(self._home)
        except ValueError as error:
            raise EngineError(str(error)) from error


def _in_words(name: str | None) -> str:
    return "unknown weights" if name == _UNKNOWN else name or "the base"
