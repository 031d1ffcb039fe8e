"""The official JavaScript client, unmodified, against the real system."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

import pytest

from openclaw_rl.store import exchanges
from openclaw_rl.store.db import Store
from openclaw_rl.supervisor.subprocess_system import SubprocessSystem, scratch_config
from openclaw_rl.types import ExchangeStatus

pytestmark = pytest.mark.system

SCRIPT = Path(__file__).parent / "js"


@pytest.mark.timeout(300)
def test_the_javascript_client_works_unmodified(tmp_path: Path) -> None:
    if not shutil.which("node") or not shutil.which("npm"):
        pytest.skip("NOT CHECKED: node and npm are not installed")
    folder = tmp_path / "js"
    shutil.copytree(SCRIPT, folder)
    command = ["npm", "install", "--no-audit", "--no-fund", "--silent"]
    installed = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if installed.returncode != 0:
        pytest.skip(
            f"NOT CHECKED: the openai package cannot be installed: {installed.stderr[-300:]}"
        )
    with SubprocessSystem(scratch_config(tmp_path / "home")) as system:
        arguments = [f"{system.base_url}/v1", system.api_key, system.config.model.name]
        told = _node(folder, "smoke.mjs", arguments)
        cancelled = next(
            line for line in told.splitlines() if line.startswith("cancelled")
        ).split()[1]
        assert _status(system, cancelled) is not ExchangeStatus.RUNNING
        _node(folder, "responses.mjs", arguments)


def _node(folder: Path, script: str, arguments: list[str]) -> str:
    """What the script says; it must have passed."""
    done = subprocess.run(
        ["node", script, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "passed" in done.stdout
    return done.stdout


def _status(system: SubprocessSystem, id_: str) -> ExchangeStatus:
    """How the exchange ended, once it has."""
    store = Store.open(system.config.store_path, create=False)
    try:
        for _ in range(100):
            with store.read() as conn:
                exchange = exchanges.get(conn, id_)
            if exchange is not None and exchange.reply is not None:
                return exchange.reply.status
            time.sleep(0.1)
        return ExchangeStatus.RUNNING
    finally:
        store.close()
