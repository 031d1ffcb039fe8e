"""Makes task folders of SWE-bench instances: JSON lines, and checkouts of their repositories beside the files.

    python examples/environments/swe_bench_tasks.py PATH

PATH is a file, or a folder with `*.jsonl`. Prints the folder of the tasks, for `openclaw-rl env run harbor:FOLDER`.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Container, Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

VERIFIER = Path(__file__).with_name("verifier")
"""Folder of the programs that run the tests of a task."""
CHECKOUTS = "repos"
FOLDER_TASKS = "swe-tasks"
"""Name of the task folders of a folder of files."""
_FIELDS = ("instance_id", "repo", "base_commit", "patch", "test_patch", "problem_statement")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_COMMIT = re.compile(r"[0-9a-fA-F]{7,40}|[A-Za-z0-9][A-Za-z0-9._-]*")
_STAMP = ".instance"
_METHOD = re.compile(r"(\w+) \(([\w.]+)\)")
_TEST_FOLDERS = frozenset({"test", "tests"})
_SETTINGS = """version = "1.0"

[metadata]
category = "software-engineering"
{unfit}
[verifier]
timeout_sec = 1800.0

[agent]
timeout_sec = 1800.0

[environment]
allow_internet = false
"""
_DOCKERFILE = "FROM debian:12-slim\nWORKDIR /app\nCOPY files/ /app/\n"
_VERIFIER = (
    *("code_server.py", "isolation.py", "peer.py", "remote_code.py"),
    *("run_tests.py", "write_result.py"),
)
_TEST = "#!/bin/sh\nexec python3 -I /tests/write_result.py --run /tests/run_tests.py /app\n"
_SOLUTION = """#!/bin/sh
set -e
while IFS= read -r file; do rm -f "/app/$file"; done </solution/removed.txt
cp -R /solution/files/. /app/
"""


class InstancesRefused(Exception):
    """Raised for files that cannot be read, or whose lines are no instances. The message names file and line."""


class InstanceUnfit(Exception):
    """An instance that cannot be played in a box. The message says why, in words."""


def make_task_folders(path: Path) -> Path:
    """Write a task folder for each instance of a file, or of the `*.jsonl` in a folder. Return the folder of them.

    It is beside the file, or in the folder, and so are the checkouts: `repos/OWNER__NAME` is a git repository with the
    commits of the instances of OWNER/NAME. A task folder stays if neither its instance nor the commit changed. Raises
    `InstancesRefused` for what cannot be read or written. An instance that no box can play becomes a task that is
    unfit, with the reason.
    """
    if path.is_dir():
        beside = path
        name = FOLDER_TASKS
    else:
        beside = path.parent
        name = f"{path.stem}-tasks"
    try:
        texts = {file: file.read_text(encoding="utf-8") for file in _list_files(path)}
        top = beside / name
        top.mkdir(exist_ok=True)
    except (OSError, UnicodeDecodeError) as error:
        raise InstancesRefused(
            f"{path}: {error}. Expected a file of SWE-bench, with a writable folder around it"
        ) from None
    instances = _read_instances(texts)
    if not instances:
        raise InstancesRefused(f"{path}: has no instances. Expected one of SWE-bench per line")
    for instance in instances.values():
        _make_folder(instance, top / instance["instance_id"], beside / CHECKOUTS)
    _remove_earlier(top, instances)
    return top


def _remove_earlier(top: Path, names: Container[str]) -> None:
    """Remove the task folders that were made here of other instances."""
    for folder in top.iterdir():
        if folder.name not in names and (folder / _STAMP).exists():
            shutil.rmtree(folder)


def _list_files(path: Path) -> list[Path]:
    files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
    if not files:
        raise InstancesRefused(
            f"{path}: no *.jsonl in this folder. Expected files of SWE-bench, one instance per line"
        )
    return files


def _read_instances(texts: Mapping[Path, str]) -> dict[str, dict[str, Any]]:
    """Return the instances of files by their ids."""
    instances: dict[str, dict[str, Any]] = {}
    for file, text in texts.items():
        for number, line in enumerate(text.split("\n"), 1):
            if not line.strip():
                continue
            where = f"{file}:{number}"
            instance = _read_instance(line, where)
            id_ = instance["instance_id"]
            if instances.setdefault(id_, instance) != instance:
                raise InstancesRefused(f"{where}: {id_} occurs twice, with other content")
    return instances


def _read_instance(line: str, where: str) -> dict[str, Any]:
    instance = _parse_line(line, where)
    fields = instance if isinstance(instance, dict) else {}
    missing = [name for name in _FIELDS if not isinstance(fields.get(name), str)]
    if missing:
        raise InstancesRefused(
            f"{where}: no text in {', '.join(missing)}. Expected an instance of SWE-bench"
        )
    for kind in ("FAIL_TO_PASS", "PASS_TO_PASS"):
        instance[kind] = _read_tests(instance.get(kind, []), f"{where}: {kind}")
    has_name = _NAME.fullmatch(instance["instance_id"])
    has_commit = _COMMIT.fullmatch(instance["base_commit"])
    if not has_name or not has_commit:
        raise InstancesRefused(
            f"{where}: expected a name in instance_id and a commit in base_commit"
        )
    return dict(instance)


def _make_folder(instance: Mapping[str, Any], folder: Path, checkouts: Path) -> None:
    repository = checkouts / instance["repo"].replace("/", "__")
    commit = _resolve_commit(repository, instance["base_commit"])
    verifier = b"".join((VERIFIER / name).read_bytes() for name in _VERIFIER)
    stamp = hashlib.sha256(
        json.dumps([instance, commit], sort_keys=True).encode() + verifier
    ).hexdigest()
    if (folder / _STAMP).is_file() and (folder / _STAMP).read_text() == stamp:
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    unfit = ""
    try:
        _fill_folder(instance, folder, repository)
    except InstanceUnfit as error:
        unfit = f"unfit = {json.dumps(str(error))}\n"
    _write_text(
        folder / "instruction.md",
        f"The repository is in `/app`.\n\n{instance['problem_statement']}\n",
    )
    _write_text(folder / "task.toml", _SETTINGS.format(unfit=unfit))
    _write_text(folder / _STAMP, stamp)


def _parse_line(line: str, where: str) -> Any:
    """Return the value of a line of JSON whose texts can be written as UTF-8."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InstancesRefused(
            f"{where}: is not valid JSON ({error}). Expected one instance per line"
        ) from None
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise InstancesRefused(f"{where}: has half of a surrogate pair, which is no text") from None
    return value


def _read_tests(names: Any, where: str) -> list[str]:
    """Return the names of tests, which may be JSON in a text."""
    if isinstance(names, str):
        # Else it is no list, either.
        with contextlib.suppress(ValueError, RecursionError):
            names = json.loads(names)
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise InstancesRefused(f"{where}: expected a list of tests, got {str(names)[:100]}")
    return names


def _fill_folder(instance: Mapping[str, Any], folder: Path, repository: Path) -> None:
    tests = {
        kind: [_test_name(name) for name in instance[kind]]
        for kind in ("FAIL_TO_PASS", "PASS_TO_PASS")
    }
    if not repository.is_dir():
        raise InstanceUnfit(
            f"no checkout of {instance['repo']}: clone it to {CHECKOUTS}/{repository.name}"
        )
    files = folder / "environment" / "files"
    _unpack_commit(repository, instance["base_commit"], files)
    solved = folder / "solved"
    tested = folder / "tested"
    for patched, name in ((solved, "patch"), (tested, "test_patch")):
        shutil.copytree(files, patched, symlinks=True)
        _apply_patch(patched, instance[name], name)
    before = _list_texts(files)
    after = _list_texts(solved)
    changed = [path for path, text in after.items() if before.get(path) != text]
    _copy_files(solved, folder / "solution" / "files", changed)
    removed = "".join(f"{path}\n" for path in before.keys() - after.keys())
    _write_text(folder / "solution" / "removed.txt", removed)
    named = {module for names in tests.values() for module in names}
    _copy_files(tested, folder / "tests" / "suite", _test_files(before, _list_texts(tested), named))
    for patched in (solved, tested):
        shutil.rmtree(patched)
    _write_text(folder / "environment" / "Dockerfile", _DOCKERFILE)
    _write_text(
        folder / "tests" / "tests.json", json.dumps({**tests, "overlay": True}, indent=2) + "\n"
    )
    put_verifier(folder / "tests")
    _write_text(folder / "solution" / "solve.sh", _SOLUTION, mode=0o755)


def put_verifier(folder: Path) -> None:
    """Put the programs of the verifier into a folder `tests` that has `tests.json`, and maybe `suite`."""
    for name in _VERIFIER:
        shutil.copyfile(VERIFIER / name, folder / name)
    _write_text(folder / "test.sh", _TEST, mode=0o755)


def _name_of_node(node: str) -> str:
    """Return the name for unittest of `a/test_b.py::C::test_d`."""
    path, *rest = node.split("::")
    if len(rest) != 2 or "[" in node:
        raise InstanceUnfit(f"its test {node} needs pytest and its environment: it needs an image")
    return ".".join((path.removesuffix(".py").replace("/", "."), *rest))


def _test_name(name: str) -> str:
    """Return the name of a test for unittest: of `a/test_b.py::C::test_d`, `test_d (a.test_b.C)` or its own form."""
    match = _METHOD.fullmatch(name)
    if match:
        method, module = match.groups()
        return module if module.endswith(f".{method}") else f"{module}.{method}"
    if "::" in name:
        return _name_of_node(name)
    if not re.fullmatch(r"\w+(\.\w+)+", name):
        raise InstanceUnfit(
            f"its test {name!r} needs a program of its own to run: it needs an image"
        )
    return name


def _resolve_commit(repository: Path, commit: str) -> str | None:
    """Return the full id of a commit; None if there is no repository, or it does not have the commit."""
    if not repository.is_dir():
        return None
    result = subprocess.run(
        ["git", "-C", str(repository), "rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}"],
        capture_output=True,
        text=True,
        check=False,
    )
    return None if result.returncode else result.stdout.strip()


def _unpack_commit(repository: Path, commit: str, to: Path) -> None:
    result = subprocess.run(
        ["git", "-C", str(repository), "archive", "--format=tar", commit],
        capture_output=True,
        check=False,
    )
    if result.returncode:
        message = result.stderr.decode("utf-8", "replace").strip()
        raise InstanceUnfit(
            f"{CHECKOUTS}/{repository.name} does not have the commit {commit}: {message}"
        )
    to.mkdir(parents=True)
    try:
        with tarfile.open(fileobj=io.BytesIO(result.stdout)) as archive:
            archive.extractall(to, filter="data")
    except tarfile.FilterError as error:
        raise InstanceUnfit(f"its repository has a link that leads out of it: {error}") from None


def _apply_patch(folder: Path, patch: str, name: str) -> None:
    """Apply a patch to a folder that is in no repository."""
    if not patch.strip():
        return
    done = subprocess.run(
        ["git", "apply", "--whitespace=nowarn", "-"],
        input=patch.encode(),
        cwd=folder,
        env={
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "GIT_CEILING_DIRECTORIES": str(folder.parent),
            "LC_ALL": "C",
        },
        capture_output=True,
        check=False,
    )
    if done.returncode:
        message = done.stderr.decode("utf-8", "replace").strip()
        raise InstanceUnfit(f"its {name} does not fit to its commit: {message}")


def _list_texts(folder: Path) -> dict[str, bytes]:
    """Return the content of every plain file below a folder, by its path there."""
    paths = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def _test_files(
    before: Mapping[str, bytes], tested: Mapping[str, bytes], named: Iterable[str]
) -> list[str]:
    """Return the files that the verifier puts in their place: those of the test patch, and all that are tests."""
    modules = set[str]()
    for name in named:
        modules.add(name.rsplit(".", 1)[0])
        modules.add(name.rsplit(".", 2)[0])
    chosen = []
    for path, text in tested.items():
        is_of_patch = before.get(path) != text
        is_in_test_folder = _TEST_FOLDERS & set(PurePosixPath(path).parts[:-1])
        module = path.removesuffix(".py").replace("/", ".")
        if is_of_patch or is_in_test_folder or module in modules:
            chosen.append(path)
    return chosen


def _copy_files(source: Path, to: Path, paths: Iterable[str]) -> None:
    to.mkdir(parents=True)
    for path in paths:
        (to / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source / path, to / path)


def _write_text(file: Path, text: str, mode: int = 0o644) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    file.chmod(mode)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("path", type=Path, help="a file of SWE-bench, or a folder of such files")
    try:
        sys.stdout.write(f"{make_task_folders(parser.parse_args().path)}\n")
    except InstancesRefused as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
