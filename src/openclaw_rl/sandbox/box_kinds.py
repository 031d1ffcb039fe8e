"""Kinds of boxes (`sandbox.kind`), and which of them this machine has."""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace

from openclaw_rl.errors import SandboxError
from openclaw_rl.sandbox.box import MEBIBYTE, Box, BoxLimits, BoxRoot
from openclaw_rl.sandbox.bubblewrap import BubblewrapBox
from openclaw_rl.sandbox.container import ContainerBox
from openclaw_rl.settings.schema_sandbox import SandboxConfig

_GVISOR_RUNTIME = "runsc"


def make_box(config: SandboxConfig, root: BoxRoot) -> Box:
    """Return a box of the configured kind and limits, not opened.

    Raises `SandboxError` if this machine cannot have such a box.
    """
    kind = choose_kind(config, root)
    limits = BoxLimits(
        memory=config.memory * MEBIBYTE,
        processes=config.processes,
        disk=config.disk * MEBIBYTE,
        lifetime=config.lifetime,
    )
    if kind == "bubblewrap":
        if root.image is not None:
            raise SandboxError(
                f"bubblewrap cannot start the image {root.image}: set sandbox.kind to docker or podman"
            )
        return BubblewrapBox(root, limits)
    if root.layers is not None:
        raise SandboxError(
            f"a root that `env build` built is for bubblewrap, and sandbox.kind is {config.kind}: set it to auto"
        )
    root = replace(root, image=root.image or config.image)
    if kind == "gvisor":
        return ContainerBox(
            root, limits, program=_find_container_program(), runtime=_GVISOR_RUNTIME
        )
    return ContainerBox(root, limits, program=kind)


async def find_machine_problem(config: SandboxConfig) -> str | None:
    """Return why this machine opens no box, with the cure; None if an empty one opens."""
    try:
        box = make_box(config, BoxRoot())
        try:
            await box.open()
        finally:
            await box.close()
    except SandboxError as error:
        return f"no box opens on this machine: {error}"
    return None


def choose_kind(config: SandboxConfig, root: BoxRoot) -> str:
    """Return the configured kind; for `auto`, bubblewrap, or a container program if `root` names an image."""
    if config.kind != "auto":
        kind = str(config.kind)
    elif root.image is not None:
        kind = _find_container_program()
    else:
        kind = "bubblewrap"
    if kind == "bubblewrap" and sys.platform != "linux":
        raise SandboxError(
            "bubblewrap needs Linux. On this system, boxes need Docker or Podman: install one of them, set "
            "sandbox.kind to docker or podman, and sandbox.image to an image"
        )
    return kind


def _find_container_program() -> str:
    for program in ("podman", "docker"):
        if shutil.which(program):
            return program
    raise SandboxError("an image needs Docker or Podman: neither is on PATH")
