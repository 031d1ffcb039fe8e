"""A box with the files of a task, and the verification of what was done in it."""

from __future__ import annotations

import asyncio
import json
import math
import secrets
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from openclaw_rl.environments.box_program import BoxAccess
from openclaw_rl.environments.reward_file import read_reward_file
from openclaw_rl.environments.sources.harbor.box_programs import (
    BOX_FOLDER,
    VARIABLES,
    uses_package_managers,
    write_box_programs,
)
from openclaw_rl.environments.sources.harbor.dockerfile import (
    BuildPlan,
    CopyStep,
    DockerfileError,
    RunStep,
    read_build_plan,
)
from openclaw_rl.environments.sources.harbor.root_plan import read_root_plan
from openclaw_rl.environments.sources.harbor.task_folder import HarborFolder
from openclaw_rl.environments.sources.harbor.task_root import (
    VERIFIER_HOME,
    VERIFIER_HOME_VARIABLES,
    TaskRoot,
    TaskRoots,
)
from openclaw_rl.environments.sources.harbor.task_settings import fill_variables, list_refusals
from openclaw_rl.environments.types import PlayOutcome, void_outcome
from openclaw_rl.errors import ConfigError
from openclaw_rl.sandbox.box import HOME_FOLDER, Box, BoxRoot, CommandResult
from openclaw_rl.sandbox.box_commands import BOX_PATH
from openclaw_rl.sandbox.box_kinds import make_box
from openclaw_rl.sandbox.box_lease import leased_folder
from openclaw_rl.sandbox.fresh_verification import (
    PLANTED_NAMES,
    VERIFIER_VARIABLES,
    Verification,
    move_to_fresh_box,
    verify_in_fresh_box,
)
from openclaw_rl.sandbox.root_builds import PROGRAMS_FOLDER
from openclaw_rl.settings.schema_sandbox import SandboxConfig

_STEP_SETUP = "setup.sh"
_TESTS = "/tests"
_SOLUTION = "/solution"
_LOGS = "/logs"
_RESULTS = "/logs/verifier"
_OWN_FOLDERS = (_TESTS, _SOLUTION, _LOGS)
_REWARD_NUMBER = "reward.txt"
_REWARD_TABLE = "reward.json"
# A verifier with this program proves its result by a word that it is given (`examples/environments/verifier`).
_PROVING_VERIFIER = "write_result.py"
# After an agent that used up the whole time.
LEAST_VERIFIER_SECONDS = 60.0
# Characters of a program's output in a reason.
_KEPT_WORDS = 300
# Exit statuses by which a shell says that a program was ended by a signal.
_SIGNALS = range(129, 193)


BUILD_CURE = "`openclaw-rl env build` can build its root with a network"


class UnfitTask(Exception):
    """A task that cannot be played in a box of this machine. The message says why, in words."""


@dataclass(slots=True, kw_only=True)
class TaskBox:
    """A task with the boxes that it is played and verified in. Make one for each attempt.

    `granted`: variables that the task may ask for. `access`: of the first box; the fresh one has none. Raises
    `UnfitTask` when it is made, if no box can have the task.
    """

    folder: HarborFolder
    sandbox: SandboxConfig
    granted: Mapping[str, str] = field(default_factory=dict)
    access: BoxAccess = field(default_factory=BoxAccess)
    plan: BuildPlan = field(init=False)
    root: TaskRoot | None = field(init=False)
    """The root that `env build` built for the task; None: the steps of its Dockerfile are taken in each box."""
    box: Box = field(init=False)
    _has_programs: bool = field(init=False)
    """Whether the boxes get `box_programs`: they have no built root, and a script installs something."""
    fixed_variables: dict[str, str] = field(init=False)
    """Variables of every command of another runner, which its own do not replace."""

    def __post_init__(self) -> None:
        settings = self.folder.settings
        reasons = list_refusals(settings, self.folder.path)
        for step in self.folder.list_steps():
            if not step.instruction_file.is_file():
                name = step.instruction_file.relative_to(step.path).as_posix()
                reasons.append(f"it has no {name}")
            if not any((folder / "test.sh").is_file() for folder in step.test_folders):
                of_step = f" for the step {step.step.name}" if step.step else ""
                reasons.append(f"it has no tests/test.sh{of_step}")
        if reasons:
            raise UnfitTask("; ".join(reasons))
        try:
            self.root = _find_root(self.folder, self.sandbox)
            self._has_programs = self.root is None and uses_package_managers(self.folder)
            self.plan = self._make_plan()
            self.plan.cwd = settings.environment.workdir or self.plan.cwd
            if self.root is None or not self._is_carried(self.plan.cwd):
                self.plan.add_folder(self.plan.cwd)
            self.plan.variables |= fill_variables(settings.environment.env, self.granted)
            for step in self.folder.list_steps():
                fill_variables(step.verifier.env | step.solution_variables, self.granted)
        except DockerfileError as error:
            raise UnfitTask(f"{error}{self._build_advice()}") from None
        except (ConfigError, OSError, ValueError) as error:
            raise UnfitTask(str(error)) from None
        self.box = self._new_box(self.access)
        self.fixed_variables = {}

    def _build_advice(self) -> str:
        """Return how a task whose Dockerfile no box can follow gets a root, or why it cannot; "" if it has one."""
        if self.root is not None:
            return ""
        try:
            read_root_plan(self.folder.build_files)
        except DockerfileError as error:
            return f". No root can be built for it: {error}"
        return f". {BUILD_CURE}"

    def _make_plan(self) -> BuildPlan:
        """Return what a box of the task needs: of its root, or of its Dockerfile. Raises `DockerfileError`."""
        if self.root is None:
            files = self.folder.build_files
            plan = read_build_plan(files.context, files.dockerfile, files.arguments)
            plan.variables |= files.variables
            plan.cwd = files.cwd or plan.cwd
            if self._has_programs:
                path = f"{BOX_FOLDER}:{plan.variables.get('PATH', BOX_PATH)}"
                plan.variables = {**VARIABLES, **plan.variables, "PATH": path}
            return plan
        path = f"{PROGRAMS_FOLDER}:{self.root.variables.get('PATH', BOX_PATH)}"
        variables = {**VARIABLES, "HOME": "/root", **self.root.variables, "PATH": path}
        return BuildPlan(variables=variables, cwd=self.root.cwd, folders=list(self.root.carried))

    async def open_box(self) -> None:
        """Open the box and build the task in it. Raises `SandboxError`; `UnfitTask` if a step of the build fails."""
        await self.box.open()
        with leased_folder() as scratch:
            for target, programs in (await self._programs(scratch)).items():
                await self.box.put(programs, target)
        for step in self.plan.steps:
            await self._take_step(step)
        await self._run_checked(f"mkdir -p {shlex.quote(self.plan.cwd)}", "/", "the working folder")

    async def run_command(self, command: str, time_limit: float) -> CommandResult:
        """Run a command in the working folder of the task, with its variables. Raises `SandboxError`, `ValueError`."""
        return await self.box.run(
            command, cwd=self.plan.cwd, env=self.plan.variables, time_limit=time_limit
        )

    async def begin_step(self, step: HarborFolder) -> None:
        """Continue with a step of the task, from `HarborFolder.list_steps`. Raises `UnfitTask`, `SandboxError`."""
        self.folder = step
        if step.start_files is None:
            return
        await self.box.put(step.start_files, self.plan.cwd)
        if (step.start_files / _STEP_SETUP).is_file():
            command = f"bash ./{_STEP_SETUP} && rm -f ./{_STEP_SETUP}"
            await self._run_checked(command, self.plan.cwd, f"workdir/{_STEP_SETUP} of a step")

    async def solve_task(self) -> None:
        """Run the reference solution. Raises `UnfitTask` if it is missing or fails."""
        solution = self.folder.solution
        if not (solution / "solve.sh").is_file():
            raise UnfitTask(
                "it has no solution/solve.sh: nobody knows whether it can be solved here"
            )
        # One of an earlier step.
        await self.box.run(f"find {_SOLUTION} -mindepth 1 -delete", cwd="/")
        await self.box.put(solution, _SOLUTION)
        variables = self.plan.variables | fill_variables(
            self.folder.solution_variables, self.granted
        )
        result = await self.box.run(
            f"chmod +x {_SOLUTION}/solve.sh; {_SOLUTION}/solve.sh",
            cwd=self.plan.cwd,
            env=variables,
            time_limit=self.folder.agent.timeout_sec or self.sandbox.lifetime,
        )
        if result.exit_code:
            raise UnfitTask(f"its solution failed: {describe_failure(result)}")

    async def verify_task(
        self, results: Path, seconds: float | None = None, *, continues: bool = False
    ) -> PlayOutcome:
        """Verify in a fresh box what was done, and close the boxes. `results`: a new folder for the verifier's files.

        `seconds`: what is left of the episode's time. `continues`: the first box stays open, for the next step. Raises
        `SandboxError` if nothing is known of the work.
        """
        task_limit = self.folder.verifier.timeout_sec
        limit = (
            task_limit if seconds is None else min(task_limit, max(seconds, LEAST_VERIFIER_SECONDS))
        )
        with leased_folder() as scratch:
            return await self._verify(results, limit, task_limit, scratch, continues)

    async def _verify(
        self, results: Path, limit: float, task_limit: float, scratch: Path, continues: bool
    ) -> PlayOutcome:
        """Verify within `limit` seconds. `scratch`: a folder that only the user of this process can read."""
        word = secrets.token_hex(16)
        files = await asyncio.to_thread(_join_folders, self.folder.test_folders, scratch / "tests")
        programs = await self._programs(scratch)
        tests = {**self._planted_originals(), **programs, _TESTS: files}
        proves = await asyncio.to_thread(_proves_results, files)
        if proves:
            (scratch / "word").write_text(word)
            tests[f"{_TESTS}/word"] = scratch / "word"
        plan = Verification(
            command=f"mkdir -p {_RESULTS}; chmod +x {_TESTS}/test.sh; {_TESTS}/test.sh",
            cwd=self.plan.cwd,
            carried=self._carried_folders(),
            hidden=_OWN_FOLDERS,
            cleared=self.root is not None,
            home=self._verifier_home,
            keeps_used=continues,
            tests=tests,
            results=_RESULTS,
            box_lifetime=self.sandbox.lifetime,
            env=self._verifier_variables() | fill_variables(self.folder.verifier.env, self.granted),
            time_limit=limit,
        )
        result = await verify_in_fresh_box(self.box, self._new_box(verifies=True), plan, results)
        if result.timed_out and limit < task_limit:
            return void_outcome(
                f"the time of the episode left {limit:g} s to the verifier: raise --limit-seconds"
            )
        if result.timed_out:
            return PlayOutcome(
                status="done", reward=0.0, reason=f"the verifier did not end within {limit:g} s"
            )
        outcome = await asyncio.to_thread(read_rewards, results, result)
        if proves and outcome.reward and not await asyncio.to_thread(_is_proved, results, word):
            reason = "the verifier did not write the result: it is not proved by the word that it was given"
            return PlayOutcome(status="done", reward=0.0, reason=reason)
        return outcome

    async def move_to_fresh(self) -> None:
        """Continue in a fresh box, with the files and variables with which `verify_task` verifies.

        Raises `SandboxError`. For a runner that puts the tests there and runs them itself.
        """
        used = self.box
        self.box = self._new_box(verifies=True)
        with leased_folder() as scratch:
            plan = Verification(
                command="",
                carried=self._carried_folders(),
                hidden=_OWN_FOLDERS,
                cleared=self.root is not None,
                home=self._verifier_home,
                tests=self._planted_originals() | await self._programs(scratch),
            )
            await move_to_fresh_box(used, self.box, plan)
        self.fixed_variables = VERIFIER_VARIABLES | self._verifier_variables()

    async def _programs(self, scratch: Path) -> dict[str, Path]:
        """Return where a box gets which folder of programs, written below `scratch`."""
        if not self._has_programs:
            return {}
        return {BOX_FOLDER: await asyncio.to_thread(write_box_programs, scratch / "programs")}

    async def close_box(self) -> None:
        """Close the box. May be called again."""
        await self.box.close()

    def _carried_folders(self) -> tuple[str, ...]:
        return tuple(folder for folder in self.plan.folders if folder not in _OWN_FOLDERS)

    @property
    def _verifier_home(self) -> str | None:
        return VERIFIER_HOME if self.root is not None else None

    def _verifier_variables(self) -> dict[str, str]:
        variables = dict(self.plan.variables)
        # Programs of the box come before those that the policy may have left.
        if "PATH" not in variables:
            return variables
        if self.root is None:
            first = f"{BOX_FOLDER}:" if self._has_programs else ""
            variables["PATH"] = f"{first}{BOX_PATH}:{variables['PATH']}"
            return variables
        folders = variables["PATH"].split(":")
        changed = [one for one in folders if self._is_carried(one)]
        trusted = [one for one in folders if one not in changed]
        variables["PATH"] = ":".join([*trusted, *BOX_PATH.split(":"), *changed])
        return variables | VERIFIER_HOME_VARIABLES

    def _is_carried(self, path: str) -> bool:
        parents = (path, *(str(one) for one in PurePosixPath(path).parents))
        return any(folder in parents for folder in self._carried_folders())

    def _new_box(self, access: BoxAccess | None = None, *, verifies: bool = False) -> Box:
        asked = self.folder.settings.environment
        memory = min(self.sandbox.memory, asked.memory_mebibytes or self.sandbox.memory)
        disk = min(self.sandbox.disk, asked.storage_mebibytes or self.sandbox.disk)
        folders = [folder for folder in self.plan.folders if folder not in ("/tmp", HOME_FOLDER)]
        built = self.root.writable if self.root is not None else ()
        programs = (BOX_FOLDER,) if self._has_programs else ()
        writable = tuple(dict.fromkeys((*folders, *built, *programs, *_OWN_FOLDERS)))
        layers = self.root.layered(verifies=verifies) if self.root is not None else None
        grants = access or BoxAccess()
        root = BoxRoot(
            layers=layers, writable=writable, gateway=grants.gateway, read_only=grants.shown
        )
        return make_box(self.sandbox.model_copy(update={"memory": memory, "disk": disk}), root)

    async def _take_step(self, step: CopyStep | RunStep) -> None:
        if isinstance(step, RunStep):
            step_name = f"environment/Dockerfile, line {step.line}"
            await self._run_checked(f"mkdir -p {shlex.quote(step.cwd)}", "/", step_name)
            await self._run_checked(step.command, step.cwd, step_name)
            return
        await self.box.put(step.source, step.target)
        if step.mode is not None:
            change = f"chmod -R {shlex.quote(step.mode)} {shlex.quote(step.target)}"
            await self._run_checked(change, "/", "environment/Dockerfile")

    async def _run_checked(self, command: str, cwd: str, step_name: str) -> None:
        seconds = self.folder.settings.environment.build_timeout_sec
        result = await self.box.run(command, cwd=cwd, env=self.plan.variables, time_limit=seconds)
        if result.exit_code:
            raise UnfitTask(
                f"{step_name} failed in a box, which has the programs of this machine, no network and no other root: "
                f"{describe_failure(result)}. {BUILD_CURE}"
            )

    def _planted_originals(self) -> dict[str, Path]:
        """Return the task's own files among the names that are not carried over: path in the box -> file."""
        originals: dict[str, Path] = {}
        for folder in self._carried_folders():
            originals |= self._built_originals(folder)
        for step in self.plan.steps:
            if isinstance(step, CopyStep) and step.source.is_dir():
                originals |= _originals_below(step.source, step.target.rstrip("/"))
        return originals

    def _built_originals(self, folder: str) -> dict[str, Path]:
        """Return those of a folder of the built root; nothing hidden in the home, which is the verifier's own."""
        layers = self.root.task_layers if self.root is not None else ()
        originals: dict[str, Path] = {}
        for top in filter(None, (layer.find_folder(folder) for layer in reversed(layers))):
            originals |= _originals_below(top, folder)
        hidden = f"{VERIFIER_HOME}/."
        return {path: file for path, file in originals.items() if not path.startswith(hidden)}


def _join_folders(folders: Sequence[Path], to: Path) -> Path:
    """Return the only folder, or a new one with the files of all; later ones replace files of earlier ones."""
    if len(folders) == 1:
        return folders[0]
    for folder in folders:
        shutil.copytree(folder, to, symlinks=True, dirs_exist_ok=True)
    return to


def _find_root(folder: HarborFolder, sandbox: SandboxConfig) -> TaskRoot | None:
    """Return the root that was built for a task. None also for a Dockerfile that no root can be built from."""
    try:
        return TaskRoots(sandbox=sandbox).find_root(folder)
    except DockerfileError:
        return None


def _originals_below(top: Path, target: str) -> dict[str, Path]:
    """Return the files of a folder whose names are not carried over: path below `target` -> file."""
    files = list(_planted_files(top))
    return {f"{target}/{path.relative_to(top).as_posix()}": path for path in files}


def _planted_files(folder: Path) -> Iterator[Path]:
    """Yield the files of a folder whose names are not carried over to the verifier."""
    for pattern in PLANTED_NAMES:
        for path in folder.rglob(pattern):
            if path.is_file() and not path.is_symlink():
                yield path


def _proves_results(tests: Path) -> bool:
    """Return whether the verifier of a task takes the word, as copies of the shipped one since then do."""
    program = tests / _PROVING_VERIFIER
    return program.is_file() and f"{_TESTS}/word".encode() in program.read_bytes()


def _is_proved(results: Path, word: str) -> bool:
    """Return whether the verifier wrote the word beside the one result that it has."""
    try:
        proof = read_reward_file(results / "proof.txt").decode("utf-8", "replace").split()
        reward = read_reward_file(results / _REWARD_NUMBER).decode("utf-8", "replace").split()
    except OSError:
        return False
    return proof == [word, *reward] and not (results / _REWARD_TABLE).exists()


def read_rewards(results: Path, result: CommandResult) -> PlayOutcome:
    """Return the outcome that the verifier wrote: `reward.json`, else `reward.txt`.

    Of several numbers in `reward.json`, `reward` counts, else their mean. No number is a failure of the environment. A
    verifier that a signal ended has decided nothing: what it ran did that, and may have written the reward, too.
    """
    failure = describe_failure(result)
    if result.exit_code in _SIGNALS:
        return PlayOutcome(
            status="done", reward=0.0, reason=f"the verifier was ended by a signal: {failure}"
        )
    for name in (_REWARD_TABLE, _REWARD_NUMBER):
        try:
            raw = read_reward_file(results / name).decode("utf-8", "replace")
        except FileNotFoundError:
            continue
        except OSError as error:
            return void_outcome(f"the verifier's {name} cannot be read: {error}")
        try:
            content = json.loads(raw) if name == _REWARD_TABLE else float(raw)
            parts = _parse_parts(content)
            reward = _total_reward(parts)
        except (ValueError, OverflowError, RecursionError) as error:
            return void_outcome(f"the verifier's {name} has no finite numbers: {error}")
        if set(parts) == {"reward"}:
            parts = {}
        return PlayOutcome(status="done", reward=reward, parts=parts, reason=failure)
    return void_outcome(f"the verifier wrote no reward ({failure})")


def describe_failure(result: CommandResult) -> str:
    """Return the exit status of a command and its last words, in one line."""
    lines = (result.stderr or result.stdout).decode("utf-8", "replace").strip().splitlines()
    ending = "did not end in time" if result.timed_out else f"exit status {result.exit_code}"
    return f"{ending}: {' | '.join(lines[-2:])[-_KEPT_WORDS:]}" if lines else ending


def _parse_parts(content: Any) -> dict[str, float]:
    table = content if isinstance(content, dict) else {"reward": content}
    parts: dict[str, float] = {}
    for name, value in table.items():
        if not isinstance(value, int | float) or not math.isfinite(value):
            raise ValueError(f"got {str(content)[:100]}")
        parts[str(name)] = float(value)
    if not parts:
        raise ValueError(f"got {str(content)[:100]}")
    return parts


def _total_reward(parts: Mapping[str, float]) -> float:
    if "reward" in parts:
        return parts["reward"]
    return math.fsum(parts.values()) / len(parts)
