"""The process of a worker loads the code of its own worker alone: each system starts six of them."""

from __future__ import annotations

import subprocess
import sys

import pytest

# Not needed before the name of the worker is known.
OTHERS = ("torch", "transformers", "aiohttp", "openclaw_rl.engines", "openclaw_rl.serve")


def modules_after(*names: str) -> set[str]:
    """Return the modules that a new process has loaded after these imports."""
    code = f"import sys, {', '.join(names)}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return set(done.stdout.split())


@pytest.mark.parametrize("worker", ["", "openclaw_rl.collect.worker"])
def test_code_of_other_workers_is_not_loaded(worker: str) -> None:
    names = ["openclaw_rl.cli.main", "openclaw_rl.supervisor.run_worker", worker]
    loaded = modules_after(*filter(None, names))
    assert not [name for name in OTHERS if name in loaded]
