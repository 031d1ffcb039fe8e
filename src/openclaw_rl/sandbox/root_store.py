"""Layers of roots by their digests, in a folder of this machine that every process of the user shares.

A layer is written under a temporary name and renamed when it is whole, so that a build that was killed leaves nothing
that counts. A lock for each digest lets one process build it while the others wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import shutil
import stat
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openclaw_rl.errors import SandboxError
from openclaw_rl.sandbox.root_layers import RootLayer

DIGEST_CHARACTERS = 32
_FACTS = "layer.json"
_BUILDING = ".building-"
_LOCK = ".lock-"
# Seconds between two tries for a lock that another process holds.
_LOCK_SECONDS = 0.2
# No program of a box gains rights by its file.
_SET_ID = stat.S_ISUID | stat.S_ISGID


@dataclass(frozen=True, slots=True)
class RootStore:
    """The folder of the layers (`sandbox.roots`). Removing it, or one layer, is safe while nothing uses it."""

    folder: Path

    def find_layer(self, digest: str) -> RootLayer | None:
        """Return a layer that was built, or None."""
        layer = RootLayer(self._path_of(digest))
        return layer if (layer.folder / _FACTS).is_file() else None

    def read_facts(self, layer: RootLayer) -> Mapping[str, Any]:
        """Return what was written down when the layer was built."""
        facts: Mapping[str, Any] = json.loads((layer.folder / _FACTS).read_text(encoding="utf-8"))
        return facts

    async def build_layer(
        self, digest: str, write: Callable[[RootLayer], Awaitable[Mapping[str, Any]]]
    ) -> RootLayer:
        """Return the layer of a digest, and build it if it is missing. `write`: fills a new layer, and returns facts.

        Raises what `write` raises, and `SandboxError` if the folder cannot be written.
        """
        async with self._hold_lock(digest):
            layer = self.find_layer(digest)
            return layer if layer is not None else await self._write_layer(digest, write)

    async def _write_layer(
        self, digest: str, write: Callable[[RootLayer], Awaitable[Mapping[str, Any]]]
    ) -> RootLayer:
        begun = RootLayer(self.folder / f"{_BUILDING}{digest[:DIGEST_CHARACTERS]}")
        # What builds that were killed left, this one among them.
        await asyncio.to_thread(shutil.rmtree, begun.folder, ignore_errors=True)
        await asyncio.to_thread(self._remove_abandoned)
        try:
            for path in (begun.folder, begun.root, begun.usr, *begun.work_folders):
                path.mkdir(mode=0o755, parents=True)
            facts = await write(begun)
            for path in begun.work_folders:
                await asyncio.to_thread(shutil.rmtree, path, ignore_errors=True)
            await asyncio.to_thread(_remove_set_id, begun.folder)
            (begun.folder / _FACTS).write_text(json.dumps(dict(facts)), encoding="utf-8")
            layer = RootLayer(self._path_of(digest))
            # One that was removed in part, or that another program left.
            await asyncio.to_thread(shutil.rmtree, layer.folder, ignore_errors=True)
            begun.folder.rename(layer.folder)
            return layer
        finally:
            await asyncio.shield(asyncio.to_thread(shutil.rmtree, begun.folder, ignore_errors=True))

    @contextlib.asynccontextmanager
    async def _hold_lock(self, digest: str) -> AsyncIterator[None]:
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            path = self.folder / f"{_LOCK}{digest[:DIGEST_CHARACTERS]}"
            lock = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise SandboxError(
                f"the folder of built roots cannot be written ({error}): set sandbox.roots to another"
            ) from error
        try:
            # Another process holds it, which sets no event here.
            while not _try_lock(lock):  # noqa: ASYNC110
                await asyncio.sleep(_LOCK_SECONDS)
            yield
        finally:
            os.close(lock)

    def _remove_abandoned(self) -> None:
        """Remove the builds whose locks nobody holds."""
        for folder in self.folder.glob(f"{_BUILDING}*"):
            digest = folder.name.removeprefix(_BUILDING)
            lock = os.open(self.folder / f"{_LOCK}{digest}", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC)
            try:
                if _try_lock(lock):
                    shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)

    def _path_of(self, digest: str) -> Path:
        return self.folder / digest[:DIGEST_CHARACTERS]


def _try_lock(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _remove_set_id(folder: Path) -> None:
    """Take the bits away that would let a user of this machine run a file as its owner."""
    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(parent, name)
            mode = path.lstat().st_mode
            if not stat.S_ISLNK(mode) and mode & _SET_ID:
                path.chmod(stat.S_IMODE(mode) & ~_SET_ID)
