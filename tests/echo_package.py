"""The package of examples/engine_and_trainer, installed by pip into a folder beside the environment."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
EXAMPLE = ROOT / "examples" / "engine_and_trainer"


def install_package(folder: Path) -> Path:
    """Build and install the package. Returns the folder to put on the path."""
    # A copy, because the build writes beside the sources.
    sources = shutil.copytree(EXAMPLE, folder / "sources")
    site = folder / "site"
    offline = ("--no-deps", "--no-index", "--no-build-isolation", "--quiet")
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        *offline,
        "--target",
        str(site),
        str(sources),
    ]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    return site


def run_python(site: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run Python with the package installed, until it ends."""
    path = os.pathsep.join([str(site), str(ROOT / "src"), str(ROOT)])
    return subprocess.run(
        [sys.executable, *words],
        env=os.environ | {"PYTHONPATH": path, "COLUMNS": "200"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
