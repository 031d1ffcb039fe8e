"""Settings of the sandbox: the boxes in which commands of a model run."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from openclaw_rl.settings.strict_yaml import Section


class SandboxConfig(Section):
    """Boxes in which commands of a model run (docs/concepts/sandbox.md)."""

    kind: Literal["auto", "bubblewrap", "docker", "podman", "gvisor"] = Field(
        "auto",
        description="auto: bubblewrap, or a container for a task that names an image; gvisor: a container on the "
        "runtime runsc",
    )
    image: str | None = Field(
        None, description="image of a container for a task that names none; it is never pulled"
    )
    memory: int = Field(
        1024,
        ge=16,
        description="MiB of all processes of a box and of what they write; without control groups, of each process",
    )
    processes: int = Field(256, ge=4, description="processes of a box")
    disk: int = Field(
        512,
        ge=1,
        description="MiB of each writable folder of a box, and of what is copied out of it",
    )
    lifetime: float = Field(
        6 * 3600.0, gt=0, description="seconds after which a box is closed, whatever runs in it"
    )
    roots: str = Field(
        "~/.cache/openclaw-rl/roots",
        description="folder of the roots that `env build` builds for tasks; it can be removed while nothing uses it",
    )
