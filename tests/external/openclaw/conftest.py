"""A working day of the real OpenClaw on our real gateway, once without the plug-in and once with it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.external.openclaw.agent import OpenClaw
from tests.external.openclaw.day import SCRIPT, SETTINGS, Day, live
from tests.external.openclaw.scripted_system import ROOT, ScriptedSystem

PLUGIN = ROOT / "extensions" / "rl-training-headers"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--openclaw-env",
        default=str(ROOT / ".openclaw-env"),
        help="where node and OpenClaw are installed",
    )


@pytest.fixture(scope="session")
def env(request: pytest.FixtureRequest) -> Path:
    folder = Path(
        request.config.getoption("--openclaw-env")
    ).resolve()  # what runs in it has a folder of its own
    if not (folder / "node_modules" / "openclaw" / "openclaw.mjs").exists():
        pytest.fail(f"{folder}: OpenClaw is not installed there; `make test-openclaw` does it")
    return folder


@pytest.fixture(scope="session")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As a person has it: the folder of a checkout, nothing installed or built in it."""
    folder = tmp_path_factory.mktemp("plugin") / "rl-training-headers"
    shutil.copytree(PLUGIN, folder, ignore=shutil.ignore_patterns("node_modules", "dist"))
    return folder


@pytest.fixture(scope="session")
def days(
    env: Path, plugin: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Day]]:
    """Both days, lived through."""
    found: dict[str, Day] = {}
    running: list[ScriptedSystem] = []
    try:
        for name in ("plain", "plugin"):
            home = tmp_path_factory.mktemp(name)
            system = ScriptedSystem(
                home / "ours", SCRIPT, die_at="Explain the plan", died=str(home / "died")
            )
            running.append(system.__enter__())
            agent = OpenClaw(
                env, home / "openclaw", base_url=system.base_url, key=system.key, settings=SETTINGS
            )
            if name == "plugin":
                agent.command(
                    "plugins", "install", "-l", "--force", "--accept-capabilities", str(plugin)
                )
            with agent:
                found[name] = live(system, agent)
        yield found
    finally:
        for system in running:
            system.__exit__()


@pytest.fixture(params=["plain", "plugin"])
def day(request: pytest.FixtureRequest, days: dict[str, Day]) -> Day:
    return days[request.param]
