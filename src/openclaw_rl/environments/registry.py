"""The sources of tasks by name. Another source is one entry here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from openclaw_rl.common.integrations import TASK_SOURCES
from openclaw_rl.environments.box_program import read_box_program
from openclaw_rl.environments.boxed_command import BoxedCommandRunner
from openclaw_rl.environments.command_source import (
    CommandRunner,
    CommandSource,
    FolderRunner,
    resolve_command,
)
from openclaw_rl.environments.foreign_process import ForeignProcess, ForeignRunner
from openclaw_rl.environments.sources.harbor.bash_agent import AGENTS, BoxAgent, ProgramAgent
from openclaw_rl.environments.sources.harbor.source import HarborRunner, HarborSource
from openclaw_rl.environments.sources.harbor.trials import (
    HARBOR_LIBRARY,
    TRIAL_AGENTS,
    TrialProcess,
    TrialRunner,
    TrialSource,
)
from openclaw_rl.environments.sources.library_source import (
    LIBRARIES,
    ForeignLibrary,
    LibraryAccess,
    LibrarySource,
    make_library_runner,
)
from openclaw_rl.environments.sources.tools.tool_entry import make_tool_runner, make_tool_source
from openclaw_rl.environments.types import EpisodeRunner, TaskSource
from openclaw_rl.errors import ConfigError, PluginError
from openclaw_rl.sandbox.box_commands import VARIABLE_NAME
from openclaw_rl.settings.schema_sandbox import SandboxConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRequest:
    """Arguments of a source. `source`: its name; the other fields are options of the command line.

    `argument`: what follows the name and a colon, e.g. a folder of tasks. `python`: the interpreter that has the
    libraries of the environment. `agent`: who plays, where a source has several agents. `sandbox`: of its boxes.
    `tools_config`: file with the tools of `tools`, unless the argument names it. `box`: whether the programs run in
    boxes; `shown`: what they see there of this machine. `packages`: where builds get packages from.
    """

    source: str
    argument: str = ""
    python: str | None = None
    agent: str | None = None
    sandbox: SandboxConfig = field(default_factory=SandboxConfig)
    tools_config: Path | None = None
    tasks: Path | None = None
    held_out_share: float = 0.0
    command: Sequence[str] = ()
    oracle: Sequence[str] = ()
    nop: Sequence[str] = ()
    box: bool = False
    shown: Sequence[str] = ()
    granted: Mapping[str, str] = field(default_factory=dict)
    packages: Mapping[str, list[str]] = field(default_factory=dict)
    search_path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceKind:
    """A kind of source. `make_source` and `make_runner` raise `ConfigError` for a request that is not complete.

    `takes`: fields of the request that have an effect; a request that gives another one is refused.
    """

    summary: str
    takes: frozenset[str]
    make_source: Callable[[SourceRequest], TaskSource]
    make_runner: Callable[[SourceRequest], EpisodeRunner]


def _command_source(request: SourceRequest) -> TaskSource:
    if request.tasks is None:
        raise ConfigError("no tasks: set --tasks FILE, with one JSON object per line")
    return CommandSource(
        tasks=request.tasks,
        held_out_share=request.held_out_share,
        oracle=request.oracle,
        nop=request.nop,
        make_runner=lambda command: _make_command_runner(request, command),
        name=request.source,
    )


def _command_runner(request: SourceRequest) -> EpisodeRunner:
    return _make_command_runner(request, request.command)


def _make_command_runner(request: SourceRequest, command: Sequence[str]) -> FolderRunner:
    if request.box:
        program = read_box_program(command, request.shown)
        return BoxedCommandRunner(program=program, sandbox=request.sandbox, granted=request.granted)
    if request.shown:
        raise ConfigError("--show is for programs in boxes: add --box")
    return CommandRunner(
        command=_resolve_program(command, request),
        granted=request.granted,
        search_path=request.search_path,
    )


def _process_runner(request: SourceRequest) -> EpisodeRunner:
    program = _resolve_program(request.command, request)
    return ForeignRunner(ForeignProcess(program, request.search_path, request.granted))


def _resolve_program(command: Sequence[str], request: SourceRequest) -> Sequence[str]:
    if not command:
        raise ConfigError("no program: give it after `--`, e.g. `-- python my_agent.py`")
    return resolve_command(command, request.search_path)


def _harbor_source(request: SourceRequest) -> TaskSource:
    if not request.argument:
        raise ConfigError("no tasks: name their folder, e.g. `harbor:tasks/terminal`")
    top = Path(request.argument)
    # By Harbor's own runner, if its Python or one of its agents is named.
    if request.python is not None or request.agent in TRIAL_AGENTS:
        return TrialSource(
            top=top,
            access=_access_of(HARBOR_LIBRARY, request),
            trials=_trial_process(request),
            held_out_share=request.held_out_share,
            name=request.source,
        )
    return HarborSource(
        top=top,
        sandbox=request.sandbox,
        held_out_share=request.held_out_share,
        granted=request.granted,
        packages=request.packages,
        name=request.source,
    )


def _harbor_runner(request: SourceRequest) -> EpisodeRunner:
    agent = request.agent or "tools"
    if (request.command or request.shown) and agent != PROGRAM_AGENT:
        raise ConfigError(f"a program after `--`, and --show, need --agent {PROGRAM_AGENT}")
    if agent in TRIAL_AGENTS:
        return TrialRunner(agent=agent, trials=_trial_process(request))
    if agent not in (*AGENTS, PROGRAM_AGENT):
        raise ConfigError(
            f"--agent {agent}: expected one of {', '.join([*AGENTS, PROGRAM_AGENT, *TRIAL_AGENTS])}"
        )
    if request.python is not None:
        raise ConfigError(
            f"--agent {agent} needs no --python: it is for Harbor's own agents ({', '.join(TRIAL_AGENTS)})"
        )
    return HarborRunner(
        agent=_box_agent(agent, request), sandbox=request.sandbox, granted=request.granted
    )


def _box_agent(name: str, request: SourceRequest) -> BoxAgent:
    if name == PROGRAM_AGENT:
        return ProgramAgent(read_box_program(request.command, request.shown), request.granted)
    return AGENTS[name]


def _trial_process(request: SourceRequest) -> TrialProcess:
    process = _access_of(HARBOR_LIBRARY, request).make_process()
    return TrialProcess(process=process, sandbox=request.sandbox, granted=request.granted)


def _access_of(library: ForeignLibrary, request: SourceRequest) -> LibraryAccess:
    return LibraryAccess(
        library=library,
        python=request.python,
        search_path=request.search_path,
        granted=request.granted,
    )


def _library_kind(library: ForeignLibrary) -> SourceKind:
    """Return the kind of source that is a library under a Python of its own."""
    return SourceKind(
        summary=library.summary,
        takes=_OF_LIBRARIES,
        make_source=lambda request: LibrarySource(
            _access_of(library, request), request.argument, request.held_out_share
        ),
        make_runner=lambda request: make_library_runner(_access_of(library, request)),
    )


PROGRAM_AGENT = "program"
"""Name of the agent of task folders that is a program of the user."""
_OF_LIBRARIES = frozenset({"argument", "python", "held_out_share"})
_OF_FOLDERS = frozenset({"argument", "python", "held_out_share", "agent", "command", "shown"})
_OF_PROGRAMS = frozenset({"tasks", "held_out_share", "command", "oracle", "nop"})
_OF_COMMANDS = _OF_PROGRAMS | {"box", "shown"}
# How a field of a request is given.
_ASKED_FOR = {
    "argument": "`:{}`",
    "tasks": "--tasks",
    "held_out_share": "--held-out",
    "command": "a program after `--`",
    "oracle": "--oracle",
    "nop": "--nop",
    "python": "--python",
    "agent": "--agent",
    "box": "--box",
    "shown": "--show",
}

SOURCES: Mapping[str, SourceKind] = {
    "command": SourceKind(
        summary="any program, with tasks from a file of JSON lines",
        takes=_OF_COMMANDS,
        make_source=_command_source,
        make_runner=_command_runner,
    ),
    "process": SourceKind(
        summary="a program that plays many episodes at once, over JSON lines; tasks as for `command`",
        takes=_OF_PROGRAMS,
        make_source=_command_source,
        make_runner=_process_runner,
    ),
    "tools": SourceKind(
        summary="tools in Python, over HTTP or by MCP, and tasks with checked answers (`tools:CONFIG`)",
        takes=frozenset({"argument", "tasks", "held_out_share", "python", "agent"}),
        make_source=make_tool_source,
        make_runner=make_tool_runner,
    ),
    "harbor": SourceKind(
        summary="task folders of Harbor in boxes of this machine: `harbor:FOLDER`, --agent tools, text, plain, program "
        "(yours, after `--`) or, by Harbor's own runner, terminus-2",
        takes=_OF_FOLDERS,
        make_source=_harbor_source,
        make_runner=_harbor_runner,
    ),
    **{library.name: _library_kind(library) for library in LIBRARIES},
}


def list_sources() -> Iterator[tuple[str, str]]:
    """Yield name and summary of each source, built in or of an installed package."""
    for name, kind in SOURCES.items():
        yield name, kind.summary
    for name in TASK_SOURCES.names():
        if name not in SOURCES:
            try:
                yield name, _installed_source(name).summary
            except PluginError as error:
                yield name, str(error)


def _installed_source(name: str) -> SourceKind:
    kind = TASK_SOURCES.load(name)
    if not isinstance(kind, SourceKind):
        raise PluginError(
            f"{TASK_SOURCES.group} {name}: expected a SourceKind, got {type(kind).__name__}"
        )
    return kind


def find_source(request: SourceRequest) -> SourceKind:
    """Return the kind of source that a request names. Raises `ConfigError`."""
    if request.source in SOURCES:
        kind = SOURCES[request.source]
    elif TASK_SOURCES.is_known(request.source):
        kind = _installed_source(request.source)
    else:
        known = ", ".join([*SOURCES, *TASK_SOURCES.names()])
        raise ConfigError(
            f"unknown source {request.source!r}. Known are {known} (`openclaw-rl env list`)"
        )
    for name, option in _ASKED_FOR.items():
        if getattr(request, name) and name not in kind.takes:
            raise ConfigError(
                f"{request.source} does not use {option.format(request.argument)}: leave it out"
            )
    for name in request.granted:
        if VARIABLE_NAME.fullmatch(name) is None:
            raise ConfigError(
                f"--env {name}: expected a name of letters, digits and _, the first no digit"
            )
    return kind
