"""Reads `environment/Dockerfile` as the build of a whole root: what runs as root, above a base system."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from openclaw_rl.environments.sources.harbor.compose_file import BuildFiles
from openclaw_rl.environments.sources.harbor.dockerfile import (
    WITHOUT_EFFECT,
    DockerfileError,
    expand_text,
    find_sources,
    join_path,
    read_arguments,
    read_dockerfile,
    read_pairs,
    read_words,
    split_instructions,
    split_words,
)

_FLAGS = re.compile(r"^(?:--\S+\s+)+")
_HEREDOC = re.compile(r"<<(-?)\s*(['\"]?)(\w+)\2")
_DEFAULT_SHELL = ("/bin/sh", "-c")
_UV_IMAGE = re.compile(r"--from=(?:ghcr\.io/)?astral-sh/uv\b.*")
_SYSTEM_FOLDERS = frozenset(
    {"bin", "boot", "dev", "etc", "lib", "lib32", "lib64", "libx32", "proc", "run", "sbin", "sys", "tmp", "usr"}
)  # fmt: skip


_DEEPER_FOLDERS = frozenset({"home", "opt", "srv", "var", "mnt"})
"""At the top, with a folder for each application or user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RootRun:
    """Run a command for a shell in the folder `cwd`, made if it is missing. `shown`: it as the file has it."""

    command: str
    cwd: str
    variables: Mapping[str, str]
    line: int
    shown: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RootCopy:
    """Copy a file, or the content of a folder, of the context. `into`: a file keeps its name below `target`.

    `text`: the content of a new file, in place of `source`.
    """

    source: Path | None
    target: str
    into: bool
    line: int
    mode: str | None = None
    text: str | None = None


@dataclass(slots=True, kw_only=True)
class RootPlan:
    """A Dockerfile as steps. `image`: what it begins with. `folders`: folders of its paths, outside of the system."""

    image: str = ""
    steps: list[RootRun | RootCopy] = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)
    cwd: str = "/"
    folders: list[str] = field(default_factory=list)
    _arguments: dict[str, str] = field(default_factory=dict)
    _shell: Sequence[str] = _DEFAULT_SHELL

    @property
    def known(self) -> dict[str, str]:
        """Variables of the next step."""
        return self._arguments | self.variables

    def add_path(self, path: str) -> None:
        """Note the folder at the top that a path is in, unless it is one of the system or may hold large programs."""
        folder = _find_work_folder(path)
        if folder is not None and folder not in self.folders:
            self.folders.append(folder)


def _find_work_folder(path: str) -> str | None:
    """Return the folder of a path that is carried to the verifier, or None for the system's."""
    parts = PurePosixPath(path).parts
    if _is_below_sources(path):
        return str(PurePosixPath(*parts[:4]))
    if len(parts) < 2 or parts[1] in _SYSTEM_FOLDERS or _is_hidden_at_home(path):
        return None
    depth = 3 if parts[1] in _DEEPER_FOLDERS else 2
    return str(PurePosixPath(*parts[:depth]))


def _is_below_sources(path: str) -> bool:
    """Return whether a path is in a folder of /usr/src, where images have the folder of an application."""
    parts = PurePosixPath(path).parts
    return len(parts) > 3 and parts[:3] == ("/", "usr", "src")


def _is_hidden_at_home(path: str) -> bool:
    """Return whether a path is hidden in the home of the verifier, where it has its own settings and caches."""
    parts = PurePosixPath(path).parts
    return len(parts) > 2 and parts[1] == "root" and parts[2].startswith(".")


def _check_working_folder(path: str) -> None:
    top = PurePosixPath(path).parts[1]
    is_of_system = top in _SYSTEM_FOLDERS - {"tmp"} and not _is_below_sources(path)
    if is_of_system or _is_hidden_at_home(path):
        raise DockerfileError(
            f"the working folder {path} is one of the system or hidden in /root, whose changes no box carries to "
            "the verifier"
        )


def read_root_plan(files: BuildFiles) -> RootPlan:
    """Return the plan of the Dockerfile of a task. Raises `DockerfileError`."""
    plan = RootPlan()
    context = files.context
    for line, name, rest in split_instructions(read_dockerfile(context, files.dockerfile)):
        where = f"environment/Dockerfile, line {line}"
        if name == "FROM" and plan.image:
            raise DockerfileError(f"{where}: several stages, which need a container builder")
        if not plan.image and name not in ("FROM", "ARG"):
            raise DockerfileError(f"{where}: expected FROM first, got {name}")
        match name:
            case "FROM":
                words = [word for word in rest.split() if not word.startswith("--")]
                plan.image = expand_text(words[0], plan.known) if words else ""
                plan._arguments = {}
            case "ARG":
                plan._arguments |= read_arguments(rest, plan.known, where, files.arguments)
            case "ENV":
                plan.variables |= read_pairs(rest, plan.known, where)
            case "WORKDIR":
                plan.cwd = join_path(plan.cwd, expand_text(rest.strip().strip("\"'"), plan.known))
                plan.add_path(plan.cwd)
                _add_run(plan, "true", line)
            case "SHELL":
                plan._shell = read_words(rest) or _DEFAULT_SHELL
            case "RUN":
                _add_run(plan, _run_command(rest, plan._shell), line, rest)
            case "COPY" | "ADD":
                _add_copy(plan, context, rest, where, line)
            case _ if name not in WITHOUT_EFFECT:
                raise DockerfileError(f"{where}: the instruction {name} needs a container builder")
    plan.variables |= files.variables
    if files.cwd is not None:
        plan.cwd = join_path(plan.cwd, files.cwd)
        plan.add_path(plan.cwd)
    if plan.cwd == "/":
        plan.cwd = "/app"
        plan.add_path(plan.cwd)
        _add_run(plan, "true", 0)
    _check_working_folder(plan.cwd)
    return plan


def _add_run(plan: RootPlan, command: str, line: int, shown: str = "") -> None:
    step = RootRun(
        command=command, cwd=plan.cwd, variables=dict(plan.known), line=line, shown=shown
    )
    plan.steps.append(step)


def _run_command(rest: str, shell: Sequence[str]) -> str:
    """Return a command of RUN: a list of words, a script as a here-document, or text for the shell."""
    words = read_words(rest)
    if words is not None:
        return shlex.join(words)
    text = _FLAGS.sub("", rest)
    document = _HEREDOC.match(text)
    first, _, body = text.partition("\n")
    if document is not None and not first[document.end() :].strip():
        text = _document_text(document, body)
    return shlex.join([*shell, text])


def _document_text(document: re.Match[str], body: str) -> str:
    lines = body.split("\n")
    if document[1]:
        lines = [line.lstrip("\t") for line in lines]
    end = lines.index(document[3]) if document[3] in lines else len(lines)
    return "\n".join(lines[:end]) + "\n"


def _add_copy(plan: RootPlan, context: Path, rest: str, where: str, line: int) -> None:
    first, _, body = rest.partition("\n")
    copy = _read_copy_words(expand_text(first, plan.known), where)
    path = join_path(plan.cwd, copy.target)
    plan.add_path(path)
    if copy.is_of_uv:
        _add_uv(plan, copy, path, line)
        return
    document = _HEREDOC.fullmatch(copy.sources[0])
    if document is not None:
        text = _document_text(document, body)
        step = RootCopy(source=None, target=path, into=False, line=line, mode=copy.mode, text=text)
        plan.steps.append(step)
        return
    for source in copy.sources:
        if source.startswith(("http://", "https://")):
            _add_download(plan, source, path, copy.is_folder, line)
        else:
            _add_files(plan, find_sources(context, source, where), path, copy, line)


@dataclass(frozen=True, slots=True, kw_only=True)
class _CopyWords:
    """The words of COPY or ADD. `is_folder`: the target is a folder by its form."""

    sources: Sequence[str]
    target: str
    is_folder: bool
    is_of_uv: bool
    mode: str | None


def _read_copy_words(text: str, where: str) -> _CopyWords:
    words = read_words(text) or split_words(text, where)
    flags = [word for word in words if word.startswith("--")]
    paths = [word for word in words if not word.startswith("--")]
    if len(paths) < 2:
        raise DockerfileError(f"{where}: expected what is copied, and where to")
    *sources, target = paths
    return _CopyWords(
        sources=sources,
        target=target,
        is_folder=len(sources) > 1 or target.endswith(("/", "/.")) or target == ".",
        is_of_uv=_is_of_uv(flags, where),
        mode=_read_mode(flags),
    )


def _is_of_uv(flags: Sequence[str], where: str) -> bool:
    """Return whether the programs of uv are copied. Raises `DockerfileError` for any other image."""
    is_of_uv = any(map(_UV_IMAGE.fullmatch, flags))
    if not is_of_uv and any(flag.startswith("--from") for flag in flags):
        raise DockerfileError(
            f"{where}: it copies from another image, which needs a container builder"
        )
    return is_of_uv


def _read_mode(flags: Sequence[str]) -> str | None:
    modes = [flag.removeprefix("--chmod=") for flag in flags if flag.startswith("--chmod=")]
    return modes[0] if modes else None


def _add_uv(plan: RootPlan, copy: _CopyWords, path: str, line: int) -> None:
    """Copy the programs of uv, which its image has at the top."""
    folder = path if copy.is_folder else str(PurePosixPath(path).parent)
    names = [shlex.quote(PurePosixPath(one).name) for one in copy.sources]
    sources = " ".join(f'"$PROGRAMS"/{name}' for name in names)
    end = "/" if copy.is_folder else ""
    command = f"mkdir -p {shlex.quote(folder)} && cp -L {sources} {shlex.quote(path + end)}"
    _add_run(plan, command, line)


def _add_download(plan: RootPlan, address: str, path: str, is_folder: bool, line: int) -> None:
    name = PurePosixPath(address.partition("?")[0]).name
    target = f"{path}/{name}" if is_folder else path
    folder = shlex.quote(str(PurePosixPath(target).parent))
    download = f"curl -fsSL -o {shlex.quote(target)} {shlex.quote(address)}"
    _add_run(plan, f"mkdir -p {folder} && {download}", line)


def _add_files(
    plan: RootPlan, files: Sequence[Path], path: str, copy: _CopyWords, line: int
) -> None:
    for file in files:
        into = copy.is_folder and not file.is_dir()
        step = RootCopy(source=file, target=path, into=into, line=line, mode=copy.mode)
        plan.steps.append(step)
