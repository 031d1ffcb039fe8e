"""Boxes for the tests. Without bubblewrap they are skipped with the reason, or fail with `--need-sandbox`."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from openclaw_rl.errors import SandboxError
from openclaw_rl.sandbox.box import MEBIBYTE, BoxLimits, BoxRoot, CommandResult
from openclaw_rl.sandbox.box_lease import leases_folder
from openclaw_rl.sandbox.bubblewrap import BubblewrapBox
from openclaw_rl.sandbox.bubblewrap_args import find_bubblewrap

LIMITS = BoxLimits(
    memory=128 * MEBIBYTE, processes=40, disk=16 * MEBIBYTE, shared_memory=4 * MEBIBYTE
)
InBox = Callable[..., CommandResult]


@pytest.fixture(scope="session", autouse=True)
def _needs_bubblewrap(request: pytest.FixtureRequest) -> None:
    try:
        find_bubblewrap()
    except SandboxError as error:
        if request.config.getoption("--need-sandbox"):
            raise
        pytest.skip(str(error))


@pytest.fixture(autouse=True)
def public_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """A temporary folder that boxes of root can pass through. No test leaves the lease of a box in it."""
    tmp_path_factory.getbasetemp()  # pytest's own folder is made first, and elsewhere
    folder = Path(tempfile.mkdtemp(prefix="boxes-", dir="/tmp"))
    folder.chmod(0o711)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    left = list(leases_folder().iterdir())
    shutil.rmtree(folder)
    assert not left


@pytest.fixture
def in_box() -> InBox:
    """Run one command in a box of its own."""

    async def run_command(
        command: str,
        root: BoxRoot | None = None,
        limits: BoxLimits = LIMITS,
        time_limit: float = 300,
    ) -> CommandResult:
        box = BubblewrapBox(root or BoxRoot(), limits)
        try:
            await box.open()
            return await box.run(command, time_limit=time_limit)
        finally:
            await box.close()

    return lambda *args, **options: asyncio.run(run_command(*args, **options))
