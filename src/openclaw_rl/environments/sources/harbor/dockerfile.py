"""Reads `environment/Dockerfile` as steps that a box without an image can take: copies, commands and variables."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from openclaw_rl.sandbox.box import HOME_FOLDER
from openclaw_rl.sandbox.box_commands import BOX_PATH, VARIABLE_NAME

DEFAULT_FOLDER = "/app"
WITHOUT_EFFECT = frozenset(
    {
        "CMD",
        "ENTRYPOINT",
        "EXPOSE",
        "HEALTHCHECK",
        "LABEL",
        "MAINTAINER",
        "STOPSIGNAL",
        "USER",
        "VOLUME",
    }
)
"""Instructions that change nothing in a box, whether or not its root is built."""
_NO_EFFECT = WITHOUT_EFFECT | {"SHELL"}
_SHARED = frozenset(
    {"bin", "dev", "etc", "lib", "lib32", "lib64", "libx32", "proc", "run", "sbin", "sys", "usr"}
)
"""Folders at the top of a box that are this machine's, or no files."""
_REFERENCE = re.compile(r"\$(?:\{([A-Za-z_]\w*)(?::-([^}]*))?\}|([A-Za-z_]\w*))")
_WITH_DOCUMENTS = frozenset({"RUN", "COPY", "ADD"})
_DOCUMENT = re.compile(r"<<(-?)\s*(['\"]?)([A-Za-z_]\w*)\2")
_INSTRUCTION = re.compile(r"([A-Za-z]+)\s+(.*)", re.DOTALL)


class DockerfileError(Exception):
    """A Dockerfile that needs what a box does not have. The message says what, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyStep:
    """Copy `source`, a file or the content of a folder, to the path `target`."""

    source: Path
    target: str
    mode: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStep:
    """Run a shell command."""

    command: str
    cwd: str
    line: int


@dataclass(slots=True, kw_only=True)
class BuildPlan:
    """The steps and variables of a Dockerfile. `folders`: folders of the box that it writes to."""

    steps: list[CopyStep | RunStep] = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)
    cwd: str = "/"
    folders: list[str] = field(default_factory=list)

    def add_folder(self, path: str) -> None:
        folder = writable_folder(path)
        if folder not in self.folders:
            self.folders.append(folder)


def read_build_plan(
    context: Path, file: str = "Dockerfile", given: Mapping[str, str] | None = None
) -> BuildPlan:
    """Return the plan of the Dockerfile `file` of `context`; without one, nothing is built.

    `given`: values for ARG. Raises `DockerfileError`.
    """
    plan = BuildPlan()
    arguments = dict[str, str]()
    stages = 0
    for line, name, rest in split_instructions(read_dockerfile(context, file)):
        where = f"environment/Dockerfile, line {line}"
        variables = plan.variables | arguments
        match name:
            case "FROM":
                stages += 1
            case "RUN":
                command = _read_command(rest, where)
                plan.steps.append(RunStep(command=command, cwd=plan.cwd, line=line))
            case "WORKDIR":
                plan.cwd = join_path(plan.cwd, expand_text(rest.strip(), variables))
                plan.add_folder(plan.cwd)
            case "COPY" | "ADD":
                _add_copies(plan, context, expand_text(rest, variables), where)
            case "ENV":
                plan.variables.update(read_pairs(rest, variables, where))
            case "ARG":
                arguments.update(read_arguments(rest, variables, where, given))
            case _:
                _check_no_effect(name, where)
        if stages > 1:
            raise DockerfileError(f"{where}: several stages, which need a container builder")
    if plan.cwd == "/":
        plan.cwd = DEFAULT_FOLDER
        plan.add_folder(plan.cwd)
    return plan


def _check_no_effect(name: str, where: str) -> None:
    if name not in _NO_EFFECT:
        raise DockerfileError(f"{where}: the instruction {name} needs a container builder")


def read_dockerfile(context: Path, name: str = "Dockerfile") -> str:
    """Return the text of the Dockerfile `name` of `context`, or ""."""
    file = context / name
    if not file.is_file():
        return ""
    text = file.read_text(encoding="utf-8", errors="replace")
    if "\0" in text:
        raise DockerfileError("environment/Dockerfile has a NUL byte")
    return text


def _read_command(rest: str, where: str) -> str:
    """Return the command of RUN for a shell."""
    if "<<" in rest.split("\n")[0] and re.search(r"<<-?\s*['\"]?\w+", rest):
        raise DockerfileError(f"{where}: a here-document, which needs a container builder")
    exec_form = read_words(rest)
    if exec_form is not None:
        return shlex.join(exec_form)
    return re.sub(r"^(--\S+\s+)+", "", rest)


def writable_folder(path: str) -> str:
    """Return the folder of a box, empty at first, that `path` is in. Raises `DockerfileError` for a shared one."""
    parts = PurePosixPath(path).parts
    is_below_root = len(parts) >= 2 and parts[0] == "/" and ".." not in parts
    if not is_below_root or parts[1] in _SHARED:
        raise DockerfileError(
            f"it writes to {path}, which is this machine's in a box: it needs an image"
        )
    if parts[1] != "home":
        return f"/{parts[1]}"
    if len(parts) == 2:
        return HOME_FOLDER
    return str(PurePosixPath(*parts[:3]))


def split_instructions(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield the line number, the name and the rest of each instruction."""
    pending = ""
    began = 0
    lines = iter(list(enumerate(text.splitlines(), 1)))
    for number, raw in lines:
        line = raw.rstrip()
        is_comment = line.lstrip().startswith("#")
        is_blank = not line.strip()
        if is_comment or (is_blank and not pending):
            continue
        began = began or number
        if line.endswith("\\"):
            pending += line[:-1] + " "
            continue
        match = _INSTRUCTION.match((pending + line).strip())
        pending = ""
        first = began
        began = 0
        if match is None:
            raise DockerfileError(f"environment/Dockerfile, line {first}: no instruction")
        name = match[1].upper()
        rest = match[2].strip()
        if name in _WITH_DOCUMENTS:
            for _, _, end in _DOCUMENT.findall(rest):
                rest += "".join(f"\n{one}" for one in _read_document(lines, end))
        yield first, name, rest


def _read_document(lines: Iterator[tuple[int, str]], end: str) -> Iterator[str]:
    """Yield the lines of a here-document, with the one that ends it."""
    for _, raw in lines:
        yield raw
        if raw.strip() == end:
            return


def expand_text(text: str, variables: dict[str, str]) -> str:
    def value_of(match: re.Match[str]) -> str:
        name = match[1] or match[3]
        return variables.get(name, BOX_PATH if name == "PATH" else match[2] or "")

    return _REFERENCE.sub(value_of, text)


def read_words(rest: str) -> list[str] | None:
    """Return the words of the form `["program", "word"]`; None for any other text, which is for a shell."""
    try:
        value = json.loads(rest)
    except (ValueError, RecursionError):
        return None
    words = value if isinstance(value, list) else []
    is_text = all(isinstance(word, str) for word in words)
    return words if words and is_text else None


def split_words(rest: str, where: str) -> list[str]:
    try:
        return shlex.split(rest)
    except ValueError as error:
        raise DockerfileError(f"{where}: a quotation does not end ({error})") from None


def read_pairs(rest: str, variables: dict[str, str], where: str) -> dict[str, str]:
    """Return the variables of ENV or ARG: `A=1 B="x y"`, `A 1` in the old form, `A` for an argument without value."""
    first, *more = rest.split(None, 1)
    values = {}
    if "=" in first:
        for word in split_words(rest, where):
            name, _, value = word.partition("=")
            values[name] = expand_text(value, variables)
    elif more:
        values[first] = expand_text(more[0], variables)
    for name in values:
        if VARIABLE_NAME.fullmatch(name) is None:
            raise DockerfileError(f"{where}: {name[:80]!r} cannot be the name of a variable")
    return values


def read_arguments(
    rest: str, variables: dict[str, str], where: str, given: Mapping[str, str] | None
) -> dict[str, str]:
    """Return the values of ARG: those that were given for a build, else its defaults."""
    names = [word.partition("=")[0] for word in rest.split()]
    values = read_pairs(rest, variables, where)
    return values | {name: value for name, value in (given or {}).items() if name in names}


def _add_copies(plan: BuildPlan, context: Path, rest: str, where: str) -> None:
    sources, target, flags = _read_copy(rest, where)
    mode = _mode_of(flags)
    path = join_path(plan.cwd, target)
    plan.add_folder(path)
    is_named_folder = target.endswith(("/", "/.")) or target == "."
    is_folder = is_named_folder or len(sources) > 1 or path in (plan.cwd, *plan.folders)
    for pattern in sources:
        for source in find_sources(context, pattern, where):
            into_folder = is_folder and not source.is_dir()
            copied_to = f"{path}/{source.name}" if into_folder else path
            plan.steps.append(CopyStep(source=source, target=copied_to, mode=mode))


def _mode_of(flags: Sequence[str]) -> str | None:
    """Return the first `--chmod` of COPY or ADD."""
    for flag in flags:
        if flag.startswith("--chmod="):
            return flag.removeprefix("--chmod=")
    return None


def _read_copy(rest: str, where: str) -> tuple[list[str], str, list[str]]:
    """Return the sources, the target and the flags of COPY or ADD. Raises `DockerfileError` for sources elsewhere."""
    arguments = read_words(rest) or split_words(rest, where)
    flags = [word for word in arguments if word.startswith("--")]
    paths = [word for word in arguments if not word.startswith("--")]
    if len(paths) < 2:
        raise DockerfileError(f"{where}: expected what is copied, and where to")
    *sources, target = paths
    if _is_from_elsewhere(sources, flags):
        raise DockerfileError(f"{where}: it copies from another image or from the network")
    return sources, target, flags


def _is_from_elsewhere(sources: Sequence[str], flags: Sequence[str]) -> bool:
    is_of_image = any(flag.startswith("--from") for flag in flags)
    return is_of_image or any("://" in source for source in sources)


def find_sources(context: Path, pattern: str, where: str) -> list[Path]:
    """Return the files and folders of a source of COPY."""
    if not pattern.strip("./"):
        return [context]
    try:
        matches = sorted(context.glob(pattern.strip("/")))
    except ValueError as error:
        raise DockerfileError(f"{where}: {pattern} is no pattern of files ({error})") from None
    if not matches:
        raise DockerfileError(f"{where}: environment/{pattern} does not exist")
    for source in matches:
        path = source.resolve()
        if context.resolve() not in (path, *path.parents):
            raise DockerfileError(f"{where}: {pattern} is outside of environment/")
    return matches


def join_path(cwd: str, path: str) -> str:
    """Return an absolute path of the box, without `.` and `..`."""
    parts: list[str] = []
    for part in PurePosixPath(cwd, path).parts[1:]:
        if part == "..":
            parts = parts[:-1]
        else:
            parts.append(part)
    return "/" + "/".join(parts)
