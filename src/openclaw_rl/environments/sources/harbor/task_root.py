"""The built root of a task: its Dockerfile run once with a network, and what its verifier installs."""

from __future__ import annotations

import asyncio
import hashlib
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

from openclaw_rl.common.assets import ASSETS
from openclaw_rl.environments.sources.harbor.base_images import (
    BaseImage,
    OwnPython,
    find_own_python,
    read_image,
)
from openclaw_rl.environments.sources.harbor.root_plan import (
    RootCopy,
    RootPlan,
    read_root_plan,
)
from openclaw_rl.environments.sources.harbor.task_folder import HarborFolder, digest_folder
from openclaw_rl.errors import OpenClawError
from openclaw_rl.sandbox.box import MEBIBYTE, BoxLimits, CommandResult
from openclaw_rl.sandbox.fresh_verification import VERIFIER_VARIABLES
from openclaw_rl.sandbox.host_base import describe_host, digest_host, write_host_base
from openclaw_rl.sandbox.root_builds import (
    BuildBox,
    finish_layer,
    open_build_box,
    write_programs,
)
from openclaw_rl.sandbox.root_layers import LayeredRoot, RootLayer
from openclaw_rl.sandbox.root_store import RootStore
from openclaw_rl.settings.schema_sandbox import SandboxConfig

_FORMAT = "2"
# MiB and processes of a build, if the boxes of the settings have less.
_BUILD_MEMORY = 4096
_BUILD_PROCESSES = 1024
_COMMON_SECONDS = 900.0
# Characters of a program's output in a reason.
_KEPT_OUTPUT = 1500
_TESTS = "/tests"
VERIFIER_HOME = "/root"
"""Home of verifiers in a built root. Nothing hidden in it is carried from the policy's box."""
VERIFIER_HOME_VARIABLES = {
    "HOME": VERIFIER_HOME,
    "XDG_CACHE_HOME": f"{VERIFIER_HOME}/.cache",
    "XDG_CONFIG_HOME": f"{VERIFIER_HOME}/.config",
    "XDG_DATA_HOME": f"{VERIFIER_HOME}/.local/share",
    "PIP_CACHE_DIR": f"{VERIFIER_HOME}/.cache/pip",
    "UV_CACHE_DIR": f"{VERIFIER_HOME}/.cache/uv",
    "UV_TOOL_DIR": f"{VERIFIER_HOME}/.local/share/uv/tools",
    "UV_PYTHON_INSTALL_DIR": f"{VERIFIER_HOME}/.local/share/uv/python",
    "NPM_CONFIG_CACHE": f"{VERIFIER_HOME}/.npm",
    "NPM_CONFIG_USERCONFIG": f"{VERIFIER_HOME}/.npmrc",
}
"""Whatever the Dockerfile says: a folder that it names may be carried."""
_INSTALLS = re.compile(
    r"\b(apt-get|apt|pip3?|uvx?|curl|wget|npm|npx|conda|cargo|gem|playwright)\s|\bgit clone\b"
)
# Folders at the top that a box may change, and that are not part of what the policy did.
_HOMES = ("/root", "/home", "/opt", "/srv", "/mnt", "/media")
_NOT_WORK = frozenset(
    {"bin", "boot", "dev", "etc", "home", "lib", "lib32", "lib64", "libx32", "logs", "media", "mnt", "opt", "proc",
     "root", "run", "sbin", "solution", "srv", "sys", "tests", "tmp", "usr", "var"}
)  # fmt: skip
_COMMON_SETUP = """
set -e
apt-get update
command -v curl >/dev/null && python3 -m pip --version >/dev/null 2>&1 || \\
    apt-get install -y --no-install-recommends ca-certificates curl python3 python3-pip python3-venv
folder=$(mktemp -d)
python3 -m pip install --quiet --no-cache-dir --no-deps --break-system-packages --target "$folder" uv
cp "$folder/bin/uv" "$folder/bin/uvx" "$PROGRAMS/"
rm -rf "$folder"
"""


class RootBuildFailed(OpenClawError):
    """Raised if a root cannot be built. The message says which step failed and how."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRoot:
    """A root that was built. `stand_in`: what stands in for its image, in words.

    `carried`: folders whose files are the work on the task; `writable`: those that can be changed.
    """

    task_layers: tuple[RootLayer, ...]
    verifier_layers: tuple[RootLayer, ...]
    variables: Mapping[str, str]
    cwd: str
    carried: tuple[str, ...]
    writable: tuple[str, ...]
    stand_in: str

    def layered(self, *, verifies: bool) -> LayeredRoot:
        """Return the root for a box. `verifies`: with what the verifier installs."""
        return LayeredRoot(layers=self.verifier_layers if verifies else self.task_layers)


@dataclass(slots=True, kw_only=True)
class TaskRoots:
    """The roots of tasks on this machine. `sources`: of packages, for builds."""

    sandbox: SandboxConfig
    sources: Mapping[str, list[str]] = field(default_factory=dict)
    _store: RootStore = field(init=False)

    def __post_init__(self) -> None:
        self._store = RootStore(Path(self.sandbox.roots).expanduser())

    def find_root(self, folder: HarborFolder) -> TaskRoot | None:
        """Return the root of a task if it was built for what the task and this machine are now."""
        if not self._store.folder.is_dir():
            return None
        digests = self.list_digests(folder)
        layers = [self._store.find_layer(digest) for digest in digests]
        if any(layer is None for layer in layers):
            return None
        found = [layer for layer in layers if layer is not None]
        task, verifier = found[-2:] if installs_for_tests(folder) else (found[-1], None)
        below = tuple(reversed(found if verifier is None else found[:-1]))
        facts = self._store.read_facts(task)
        return TaskRoot(
            task_layers=below,
            verifier_layers=below if verifier is None else (verifier, *below),
            variables=facts["variables"],
            cwd=facts["cwd"],
            carried=tuple(facts["carried"]),
            writable=tuple(facts["writable"]),
            stand_in=facts["stand_in"],
        )

    async def build_root(self, folder: HarborFolder, note: Callable[[str], None]) -> TaskRoot:
        """Return the root of a task, and build what of it is missing. `note`: gets each step in words.

        Raises `RootBuildFailed`, `DockerfileError`, `SandboxError`.
        """
        base = _read_base(folder)
        digests = iter(self.list_digests(folder))
        layers: list[RootLayer] = [await self._store.build_layer(next(digests), _write_base)]

        async def add(write: _Work, given: Sequence[str] = _HOMES) -> None:
            below = tuple(reversed(layers))

            async def write_layer(layer: RootLayer) -> Mapping[str, Any]:
                return await self._write_in_box(below, layer, write, given)

            layers.append(await self._store.build_layer(next(digests), write_layer))

        async def prepare_tools(box: BuildBox, layer: RootLayer) -> Mapping[str, Any]:
            note("the programs of all roots (once on this machine)")
            await _run_checked(box, _COMMON_SETUP, "the programs of all roots", _COMMON_SECONDS)
            return {}

        await add(prepare_tools)
        python = _own_python(base)
        if python is not None:

            async def write_python(layer: RootLayer) -> Mapping[str, Any]:
                note(f"Python {python.version} of {python.prefix}")
                await asyncio.to_thread(python.copy_to, layer)
                await asyncio.to_thread(finish_layer, layer, ())
                return {}

            layers.append(await self._store.build_layer(next(digests), write_python))
        build = _TaskBuild(folder, base, python, note)
        await add(build.run_steps)
        if installs_for_tests(folder):
            await add(build.warm_verifier)
        root = self.find_root(folder)
        assert root is not None
        return root

    async def _write_in_box(
        self,
        below: tuple[RootLayer, ...],
        layer: RootLayer,
        write: _Work,
        given: Sequence[str],
    ) -> Mapping[str, Any]:
        limits = BoxLimits(
            memory=max(self.sandbox.memory, _BUILD_MEMORY) * MEBIBYTE,
            processes=max(self.sandbox.processes, _BUILD_PROCESSES),
            disk=self.sandbox.disk * MEBIBYTE,
            open_files=8192,
            lifetime=self.sandbox.lifetime,
        )
        if len(below) == 1:
            await asyncio.to_thread(write_programs, layer)
        async with open_build_box(below, layer, limits, self.sources) as box:
            facts: Mapping[str, Any] = await write(box, layer)
        writable = [*given, *facts.get("writable", ())]
        removed = facts.get("removed", ())
        await asyncio.to_thread(finish_layer, layer, writable, removed)
        return facts

    def list_digests(self, folder: HarborFolder) -> list[str]:
        """Return the digests of the layers of a task, the lowest first. Raises `DockerfileError`."""
        digests = [digest_host()]

        def add(*parts: str) -> None:
            text = "\n".join((_FORMAT, digests[-1], *parts))
            digests.append(hashlib.sha256(text.encode()).hexdigest())

        add("tools", _COMMON_SETUP, digest_folder(ASSETS / "sandbox" / "programs"))
        python = _own_python(_read_base(folder))
        if python is not None:
            add("python", python.version, python.digest)
        context = folder.path / "environment"
        add("task", digest_folder(context) if context.is_dir() else "")
        if installs_for_tests(folder):
            folders = [tests for step in folder.list_steps() for tests in step.test_folders]
            add("verifier", *(digest_folder(tests) for tests in folders))
        return digests


_Work = Callable[[BuildBox, RootLayer], Any]


@dataclass(slots=True)
class _TaskBuild:
    """The steps of one task."""

    folder: HarborFolder
    base: BaseImage
    python: OwnPython | None
    note: Callable[[str], None]

    async def run_steps(self, box: BuildBox, layer: RootLayer) -> Mapping[str, Any]:
        """Run the Dockerfile. Raises `RootBuildFailed`."""
        plan = read_root_plan(self.folder.build_files)
        seconds = self.folder.settings.environment.build_timeout_sec
        setup = self.base.setup_command(self.python is not None)
        if setup:
            self.note(f"a stand-in for {self.base.reference}")
            await _run_checked(box, setup, f"the stand-in for {self.base.reference}", seconds)
        for number, step in enumerate(plan.steps, 1):
            if isinstance(step, RootCopy):
                await _copy_source(box, step)
                continue
            if step.shown:
                self.note(f"step {number} of {len(plan.steps)}: {_shorten(step.shown)}")
            where = f"environment/Dockerfile, line {step.line}"
            made = f"mkdir -p {shlex.quote(step.cwd)} && cd {shlex.quote(step.cwd)} || exit 1"
            command = f"{made}\n{step.command}"
            await _run_checked(box, command, where, seconds, step.variables)
        return await self._describe(box, plan, layer)

    async def _describe(self, box: BuildBox, plan: RootPlan, layer: RootLayer) -> Mapping[str, Any]:
        answer = await box.run(
            "python3 --version 2>&1", cwd="/", variables=plan.variables, time_limit=60
        )
        version = answer.stdout.decode(errors="replace").strip()
        found = f" with {version}" if self.base.python and version else ""
        names = sorted(path.name for path in layer.root.iterdir())
        made = [f"/{name}" for name in names if layer.find_folder(f"/{name}") is not None]
        work = [path for path in made if path.lstrip("/") not in _NOT_WORK]
        carried = list(dict.fromkeys([*plan.folders, *work]))
        return {
            "variables": plan.variables,
            "cwd": plan.cwd,
            "carried": carried,
            "writable": list(dict.fromkeys([*carried, *_HOMES])),
            "stand_in": f"built on {describe_host()}{found}"
            + (f" in place of {plan.image}" if plan.image else ""),
        }

    async def warm_verifier(self, box: BuildBox, layer: RootLayer) -> Mapping[str, Any]:
        """Let the verifier run once with the network. What it installs stays; its result is not looked at."""
        self.note("what the verifier installs: tests/test.sh")
        plan = read_root_plan(self.folder.build_files)
        build_seconds = self.folder.settings.environment.build_timeout_sec
        cwd = shlex.quote(plan.cwd)
        command = f"mkdir -p /logs/verifier; chmod +x {_TESTS}/test.sh; cd {cwd}; {_TESTS}/test.sh"
        variables = {**VERIFIER_VARIABLES, **plan.variables, **VERIFIER_HOME_VARIABLES}
        results = []
        for step in self.folder.list_steps():
            for tests in step.test_folders:
                await box.box.put(tests, _TESTS)
            seconds = step.verifier.timeout_sec + build_seconds
            result = await box.run(command, cwd="/", variables=variables, time_limit=seconds)
            results.append({"exit_code": result.exit_code, "output": _last_output(result)})
            await box.run(f"rm -rf {_TESTS} /logs", cwd="/", variables={}, time_limit=build_seconds)
        names = sorted(path.name for path in layer.root.iterdir())
        work = [f"/{name}" for name in names if name not in _NOT_WORK]
        removed = [path for path in (*plan.folders, *work) if path != "/root"]
        return {"runs": results, "removed": removed}


def installs_for_tests(folder: HarborFolder) -> bool:
    """Return whether the verifier installs something: then it runs once with the network."""
    folders = [tests for step in folder.list_steps() for tests in step.test_folders]
    scripts = sorted(
        {script for tests in folders for script in tests.glob("*.sh") if script.is_file()}
    )
    return any(_INSTALLS.search(_without_comments(path)) for path in scripts)


def needs_stand_in(folder: HarborFolder) -> bool:
    """Return whether the image of a task has programs of its own. Raises `DockerfileError`."""
    return not _read_base(folder).is_plain


def _without_comments(script: Path) -> str:
    lines = script.read_text(encoding="utf-8", errors="replace").splitlines()
    return "\n".join(line for line in lines if not line.lstrip().startswith("#")) + "\n"


def _read_base(folder: HarborFolder) -> BaseImage:
    return read_image(read_root_plan(folder.build_files).image)


@cache
def _find_python(version: str) -> OwnPython | None:
    return find_own_python(version)


def _own_python(base: BaseImage) -> OwnPython | None:
    return _find_python(base.python) if base.python else None


async def _write_base(layer: RootLayer) -> Mapping[str, Any]:
    await asyncio.to_thread(write_host_base, layer)
    await asyncio.to_thread(finish_layer, layer, _HOMES)
    for name in ("dev", "proc", "sys", "run", "tmp"):
        (layer.root / name).mkdir()
    (layer.root / "tmp").chmod(0o1777)
    return {}


async def _copy_source(box: BuildBox, step: RootCopy) -> None:
    where = f"environment/Dockerfile, line {step.line}"
    target = shlex.quote(step.target)
    if step.source is None:
        parent = shlex.quote(str(PurePosixPath(step.target).parent))
        command = f"mkdir -p {parent} && printf %s {shlex.quote(step.text or '')} >{target}"
        await _run_checked(box, command, where, _COMMON_SECONDS)
        changed = step.target
    else:
        probe = await box.run(f"[ -d {target} ]", cwd="/", variables={}, time_limit=60)
        into = not step.source.is_dir() and (step.into or probe.exit_code == 0)
        changed = f"{step.target.rstrip('/')}/{step.source.name}" if into else step.target
        await box.box.put(step.source, changed)
    if step.mode is not None:
        command = f"chmod -R {shlex.quote(step.mode)} {shlex.quote(changed)}"
        await _run_checked(box, command, where, _COMMON_SECONDS)


async def _run_checked(
    box: BuildBox,
    command: str,
    where: str,
    seconds: float,
    variables: Mapping[str, str] | None = None,
) -> None:
    result = await box.run(command, cwd="/", variables=variables or {}, time_limit=seconds)
    if result.timed_out:
        raise RootBuildFailed(f"{where}: not done within {seconds:g} s: {_last_output(result)}")
    if result.exit_code:
        raise RootBuildFailed(
            f"{where}: failed with exit status {result.exit_code}: {_last_output(result)}"
        )


def _last_output(result: CommandResult) -> str:
    output = (result.stdout + b"\n" + result.stderr).decode("utf-8", "replace")
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return " | ".join(lines[-12:])[-_KEPT_OUTPUT:]


def _shorten(command: str) -> str:
    words = " ".join(command.split())
    return words if len(words) <= 100 else f"{words[:97]}..."
