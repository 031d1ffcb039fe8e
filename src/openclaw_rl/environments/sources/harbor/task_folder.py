"""Finds the task folders below a folder, and makes tasks of them."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

from openclaw_rl.environments.sources.harbor.compose_file import BuildFiles, read_build_files
from openclaw_rl.environments.sources.harbor.task_settings import (
    AgentSection,
    HarborSettings,
    StepSection,
    VerifierSection,
    read_settings,
)
from openclaw_rl.environments.task_file import is_finite_number, split_by_digest
from openclaw_rl.environments.types import EnvironmentTask, TaskSplit
from openclaw_rl.errors import ConfigError

SETTINGS_FILE = "task.toml"
_NOT_CONTENT = frozenset({"__pycache__", ".git", ".DS_Store"})
# Characters.
_MAX_NAME = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class HarborFolder:
    """A task folder: `task.toml`, `instruction.md`, `environment/`, `tests/` and, mostly, `solution/`.

    `step`: the step of several whose instruction, tests and solution are meant; None: the task has one.
    """

    path: Path
    settings: HarborSettings
    step: StepSection | None = None

    def list_steps(self) -> list[HarborFolder]:
        """Return the task for each of its steps; the task itself if it has no steps."""
        steps = [replace(self, step=step) for step in self.settings.steps]
        return steps or [self]

    @property
    def _step_path(self) -> Path:
        return self.path if self.step is None else self.path / "steps" / self.step.name

    @property
    def agent(self) -> AgentSection:
        return self.settings.agent if self.step is None else self.step.agent

    @property
    def verifier(self) -> VerifierSection:
        return self.settings.verifier if self.step is None else self.step.verifier

    @property
    def solution(self) -> Path:
        """Folder of the reference solution, which may be missing."""
        return self._step_path / "solution"

    @property
    def solution_variables(self) -> dict[str, str]:
        if self.step is None:
            return self.settings.solution.env
        return self.settings.solution.env | self.step.solution.env

    @property
    def start_files(self) -> Path | None:
        """Folder of files that are put into the working folder when the step begins."""
        folder = self._step_path / "workdir"
        return folder if self.step is not None and folder.is_dir() else None

    @property
    def test_folders(self) -> list[Path]:
        """Folders of the verifier's files; a later one replaces files of the earlier ones."""
        folders = dict.fromkeys((self.path / "tests", self._step_path / "tests"))
        return [folder for folder in folders if folder.is_dir()]

    @property
    def build_files(self) -> BuildFiles:
        """Files and values of the build. Raises `ComposeError`."""
        return read_build_files(self.path / "environment")

    @property
    def instruction_file(self) -> Path:
        return self._step_path / "instruction.md"

    @property
    def instruction(self) -> str:
        """Text that the policy gets."""
        return self.instruction_file.read_text(encoding="utf-8").strip()


def load_folder(path: Path) -> HarborFolder:
    """Return a task folder. Raises `ConfigError` if it cannot be read."""
    folder = HarborFolder(path=path, settings=read_settings(path / SETTINGS_FILE))
    # Each step has an instruction of its own, whose absence makes the task unfit.
    if folder.settings.steps:
        return folder
    file = folder.instruction_file
    try:
        instruction = folder.instruction
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: cannot be read ({error})") from None
    if not instruction:
        raise ConfigError(f"{file}: is empty. Expected what the policy is asked to do")
    return folder


def load_tasks_below(top: Path, held_out_share: float = 0.0) -> list[EnvironmentTask]:
    """Return the tasks of `top`, which is a task folder or has some below it, sorted by their paths.

    `data` has the `folder`. `held_out_share`: share of the tasks without `split` in `[metadata]` that are held out.
    Raises `ConfigError`.
    """
    tasks: list[EnvironmentTask] = []
    seen: dict[str, str] = {}
    for path in _find_folders(top):
        name = path.name if path == top else path.relative_to(top).as_posix()
        if len(name) > _MAX_NAME or not name.isprintable():
            raise ConfigError(
                f"{path}: expected a path of at most {_MAX_NAME} printable characters"
            )
        digest = digest_folder(path)
        folder = load_folder(path)
        split = folder.settings.metadata.get("split", split_by_digest(digest, held_out_share))
        if split not in get_args(TaskSplit):
            raise ConfigError(
                f"{path / SETTINGS_FILE}: metadata.split: expected train or held_out, got {split!r}"
            )
        best = folder.settings.metadata.get("best_reward", 1.0)
        if not is_finite_number(best):
            raise ConfigError(
                f"{path / SETTINGS_FILE}: metadata.best_reward: expected a number, got {repr(best)[:80]}"
            )
        if digest in seen:
            raise ConfigError(f"{path}: has the same content as {seen[digest]}. Remove one of them")
        seen[digest] = name
        tasks.append(
            EnvironmentTask(id=name, digest=digest, split=split, data={"folder": str(path)})
        )
    if not tasks:
        raise ConfigError(
            f"{top}: no tasks. Expected a folder with {SETTINGS_FILE}, or folders that have one"
        )
    return tasks


def digest_folder(folder: Path) -> str:
    """Return the SHA-256 of all files of a task: their paths, contents and execute bits, and where links lead.

    Raises `ConfigError` for a file that cannot be read, and for a pipe, socket or device, which has no content.
    """
    digest = hashlib.sha256()
    for path in sorted(_list_files(folder), key=lambda one: one.relative_to(folder).as_posix()):
        kind = _kind_of(path)
        try:
            content = os.fsencode(path.readlink()) if kind == "link" else path.read_bytes()
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read ({error})") from None
        name = path.relative_to(folder).as_posix()
        digest.update(
            f"{len(os.fsencode(name))} {kind} {len(content)}\n".encode()
            + os.fsencode(name)
            + content
        )
    return digest.hexdigest()


def _kind_of(path: Path) -> str:
    """Return `link`, `program` or `file`. Raises `ConfigError`."""
    mode = path.lstat().st_mode
    if stat.S_ISLNK(mode):
        return "link"
    if not stat.S_ISREG(mode):
        raise ConfigError(
            f"{path}: expected a file, a folder or a link in a task, got a pipe, socket or device"
        )
    return "program" if mode & stat.S_IXUSR else "file"


def _find_folders(top: Path) -> Iterator[Path]:
    if not top.is_dir():
        raise ConfigError(f"{top}: no such folder. Expected one with task folders")
    if (top / SETTINGS_FILE).is_file():
        yield top
        return
    for parent, folders, files in os.walk(top):
        folders.sort()
        if SETTINGS_FILE in files:
            folders.clear()
            yield Path(parent)


def _list_files(folder: Path) -> Iterator[Path]:
    for parent, folders, files in os.walk(folder):
        links = [name for name in folders if Path(parent, name).is_symlink()]
        folders[:] = [name for name in folders if name not in _NOT_CONTENT and name not in links]
        yield from (Path(parent, name) for name in (*files, *links) if name not in _NOT_CONTENT)
