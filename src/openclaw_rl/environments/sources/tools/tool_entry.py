"""Makes source and runner of `tools` from the options of the command line."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Protocol

from openclaw_rl.common.printable import echo_error
from openclaw_rl.environments.types import EpisodeRunner, TaskSource
from openclaw_rl.errors import ConfigError
from openclaw_rl.settings.schema_sandbox import SandboxConfig


class ToolRequest(Protocol):
    """The fields of `SourceRequest` that `tools` uses."""

    @property
    def argument(self) -> str: ...
    @property
    def python(self) -> str | None: ...
    @property
    def agent(self) -> str | None: ...
    @property
    def sandbox(self) -> SandboxConfig: ...
    @property
    def tools_config(self) -> Path | None: ...
    @property
    def tasks(self) -> Path | None: ...
    @property
    def held_out_share(self) -> float: ...
    @property
    def search_path(self) -> str: ...


def make_tool_source(request: ToolRequest) -> TaskSource:
    """Raises `ConfigError`."""
    from openclaw_rl.environments.sources.tools.tool_source import ToolSource

    return ToolSource(_make_setup(request))


def make_tool_runner(request: ToolRequest) -> EpisodeRunner:
    """Raises `ConfigError`."""
    from openclaw_rl.environments.sources.tools.tool_source import AGENTS, ToolRunner

    agent = request.agent or AGENTS[0]
    if agent not in AGENTS:
        raise ConfigError(f"--agent {agent}: unknown for tools. Known are {', '.join(AGENTS)}")
    setup = _make_setup(request)
    if setup.config.hosts:
        echo_error(
            f"note: the tools may reach {', '.join(setup.config.hosts)}, which are not this machine"
        )
    return ToolRunner(setup, agent)


def _make_setup(request: ToolRequest) -> Any:
    from openclaw_rl.environments.sources.tools.tool_config import ToolConfig, load_tool_config
    from openclaw_rl.environments.sources.tools.tool_source import ToolSetup

    path = request.tools_config
    if request.argument:
        path = Path(request.argument)
    if path is None:
        config = ToolConfig()
        folder = Path.cwd()
    else:
        config = load_tool_config(path)
        folder = path.resolve().parent
    if request.tasks is not None:
        tasks = request.tasks.absolute()
    elif config.tasks is not None:
        tasks = folder / config.tasks
    else:
        raise ConfigError(
            "no tasks: set --tasks FILE, with one JSON object per line, or `tasks` in the configuration"
        )
    return ToolSetup(
        config=config,
        folder=folder,
        tasks=tasks,
        python=request.python or sys.executable,
        search_path=request.search_path,
        held_out_share=request.held_out_share,
        sandbox=request.sandbox,
    )
