"""Programs that stand before those of the system in a box without a built root: what is there counts as installed."""

from __future__ import annotations

import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

from openclaw_rl.common.assets import ASSETS
from openclaw_rl.environments.sources.harbor.task_folder import HarborFolder

BOX_FOLDER = "/openclaw-rl"
"""Where a box has them."""
VARIABLES = {
    "PIP_NO_INDEX": "1",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "PIP_BREAK_SYSTEM_PACKAGES": "1",
    "UV_OFFLINE": "1",
}
"""For package managers: what is there counts, and the rest fails at once instead of trying to connect."""
_USES = re.compile(r"\b(apt-get|apt|pip3?|uvx?|curl|wget)\s")
_PACKAGES = "packages"
_QUERY = ("dpkg-query", "-W", "-f", "${db:Status-Abbrev}${Package} ${Version}\n")
_QUERY_SECONDS = 30.0


def uses_package_managers(folder: HarborFolder) -> bool:
    """Return whether a script of a task installs something."""
    paths = [*(folder.path / "environment").glob("*ockerfile*")]
    for step in folder.list_steps():
        for scripts in (*step.test_folders, step.solution):
            paths += scripts.glob("*.sh")
    texts = [path.read_text(encoding="utf-8", errors="replace") for path in paths if path.is_file()]
    return any(map(_USES.search, texts))


def write_box_programs(to: Path) -> Path:
    """Write the programs to the new folder `to`, with the packages of this machine, and return it."""
    shutil.copytree(ASSETS / "sandbox" / "programs", to)
    for path in to.iterdir():
        path.chmod(0o755)
    (to / _PACKAGES).write_text(_list_packages(), encoding="utf-8")
    return to


@cache
def _list_packages() -> str:
    """Return a line with name and version of each installed package; "" where there is no dpkg."""
    try:
        answer = subprocess.run(
            _QUERY, capture_output=True, text=True, timeout=_QUERY_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    lines = [line.split(None, 1) for line in answer.stdout.splitlines()]
    return "".join(f"{line[1]}\n" for line in lines if len(line) == 2 and line[0] == "ii")
