"""Verification of what was done in a box, in another box that the model's processes never saw."""

from __future__ import annotations

import math
import shlex
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from openclaw_rl.errors import BoxLost, SandboxError
from openclaw_rl.sandbox.archives import check_box_path
from openclaw_rl.sandbox.box import WORK_FOLDER, Box, CommandResult
from openclaw_rl.sandbox.box_lease import leased_folder

PLANTED_NAMES = (
    "__pycache__", "conftest.py", "pytest.ini", ".pytest.ini", "sitecustomize.py", "usercustomize.py", "*.pth"
)  # fmt: skip
"""Names of files and folders that change how tests are found, loaded or run."""
# Seconds, of which opening the box and copying the files take some.
_LIFETIME_SLACK = 60.0
VERIFIER_VARIABLES = {
    "PYTHONSAFEPATH": "1",
    "PYTHONNOUSERSITE": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PIP_CONFIG_FILE": "/dev/null",
    "UV_NO_CONFIG": "1",
}
"""Python then imports neither from the current folder nor from the home; pip and uv read no settings there."""
# Below the home, where no file of the model is.
_CARRIED_HOME = ".openclaw-rl-carried"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """How a result is verified. `carried`: paths that are copied from the model's box, without `left_out` names.

    `home`: of the verifier; its hidden files and folders, such as settings and caches, are those of the fresh box.
    `tests`: path in the box -> file or folder of this machine; written last, in place of whatever the model left there.
    `cleared`: the fresh box has these paths with content of its own, which the copies replace.
    `keeps_used`: the model's box stays open, for work after this verification.
    `hidden`: folders of the verifier; links of the model that lead there are removed, and its pipes and sockets.
    `results`: folder or file of the box that is copied out afterwards. `box_lifetime`: seconds after which the fresh
    box is closed, whatever runs in it.
    """

    command: str
    tests: Mapping[str, Path]
    carried: tuple[str, ...] = (WORK_FOLDER,)
    left_out: tuple[str, ...] = PLANTED_NAMES
    hidden: tuple[str, ...] = ()
    home: str | None = None
    cleared: bool = False
    keeps_used: bool = False
    results: str | None = None
    cwd: str = WORK_FOLDER
    env: Mapping[str, str] = field(default_factory=dict)
    time_limit: float = 600.0
    box_lifetime: float = math.inf


async def verify_in_fresh_box(
    used: Box, fresh: Box, plan: Verification, results_to: Path | None = None
) -> CommandResult:
    """Close `used`, copy its files to the unopened box `fresh`, and verify them there. Closes both boxes.

    A box that ends under the verifier, before its lifetime is over, was ended by the work in it: the result is that of
    a killed command. Raises `SandboxError` if a copy fails or the results are missing: then nothing is known of the
    model's work.
    """
    try:
        await move_to_fresh_box(used, fresh, plan)
        began = time.monotonic()
        try:
            result = await fresh.run(
                plan.command,
                cwd=plan.cwd,
                env={**VERIFIER_VARIABLES, **plan.env},
                time_limit=plan.time_limit,
            )
        except BoxLost as error:
            if time.monotonic() - began >= plan.box_lifetime - _LIFETIME_SLACK:
                raise
            words = str(error).encode()
            return CommandResult(exit_code=128 + signal.SIGKILL, stdout=b"", stderr=words)
        if plan.results is not None and results_to is not None and not result.timed_out:
            await fresh.get(plan.results, results_to)
        return result
    finally:
        await fresh.close()


async def move_to_fresh_box(used: Box, fresh: Box, plan: Verification) -> None:
    """Close `used`, unless it is kept, and open `fresh` with its files as `plan` wants them.

    The files go from box to box unread. Raises `SandboxError` if a copy fails.
    """
    with leased_folder() as folder:
        archive = folder / "carried.tar"
        try:
            await used.save_archive(plan.carried, archive)
        finally:
            if not plan.keeps_used:
                await used.close()
        await fresh.open()
        if plan.cleared:
            await _clear_folders(fresh, plan)
        others = tuple(path for path in plan.carried if path != plan.home)
        if others:
            await fresh.load_archive(others, archive)
        if plan.home is not None and plan.home in plan.carried:
            await _load_home(fresh, plan.home, archive)
        await _replace_tests(fresh, plan)


async def _load_home(fresh: Box, home: str, archive: Path) -> None:
    """Unpack the home without its hidden names: beside it first, as a forged archive can spell a path in many ways."""
    beside = f"{home}/{_CARRIED_HOME}"
    await fresh.load_archive((home,), archive, beside)
    unpacked = shlex.quote(beside + home)
    moved = await fresh.run(
        f"find {unpacked} -mindepth 1 -maxdepth 1 ! -name '.*' -exec mv -f -- {{}} {shlex.quote(home)}/ \\; "
        f"&& rm -rf -- {shlex.quote(beside)}",
        cwd="/",
    )
    if moved.exit_code:
        raise SandboxError(
            f"the home could not be carried: {moved.stderr.decode(errors='replace')}"
        )


async def _clear_folders(fresh: Box, plan: Verification) -> None:
    """Remove what is below the carried folders, so that a file that was removed by the model stays so."""
    find = _find_carried(plan, "-mindepth 1")
    cleared = await fresh.run(f"{find} -prune -exec rm -rf -- {{}} +", cwd="/")
    if cleared.exit_code:
        raise SandboxError(
            f"the folders of the task could not be cleared: {cleared.stderr.decode(errors='replace')}"
        )


def _find_carried(plan: Verification, options: str = "") -> str:
    """Return the start of a command that finds what is in the carried folders, without hidden names of the home."""
    carried = " ".join(shlex.quote(check_box_path(path)) for path in plan.carried)
    if plan.home is None:
        return f"find {carried} {options}"
    return f"find {carried} {options} -path {shlex.quote(f'{plan.home}/.*')} -prune -o"


def _remove_links(hidden: tuple[str, ...]) -> str:
    """Return a script that removes those of its arguments that are links into these folders, /proc or /dev.

    Such as a link to a file with the expected result, or to a descriptor of the program that compares. The tests are
    not there yet, so that the target need not exist.
    """
    folders = [check_box_path(path) for path in (*hidden, "/proc", "/dev")]
    patterns = "|".join(f"{shlex.quote(path)}|{shlex.quote(path)}/*" for path in folders)
    return f"""for link do
    case $(readlink -m -- "$link") in
        {patterns}) rm -f -- "$link" || exit 1 ;;
    esac
done"""


async def _replace_tests(fresh: Box, plan: Verification) -> None:
    commands = []
    find = _find_carried(plan)
    if plan.left_out:
        names = " -o ".join(f"-name {shlex.quote(name)}" for name in plan.left_out)
        commands.append(rf"{find} \( {names} \) -prune -exec rm -rf -- {{}} + || exit 1")
    if plan.hidden:
        commands.append(rf"{find} \( -type p -o -type s \) -exec rm -f -- {{}} + || exit 1")
        commands.append(
            f"{find} -type l -exec sh -c {shlex.quote(_remove_links(plan.hidden))} _ {{}} + || exit 1"
        )
    for path in plan.tests:
        # A writable folder of the box itself can only be emptied.
        quoted = shlex.quote(check_box_path(path))
        commands.append(
            f'rm -rf -- {quoted} 2>/dev/null; [ ! -e {quoted} ] || [ -z "$(ls -A {quoted})" ] || exit 1'
        )
    cleaned = await fresh.run("\n".join(commands), cwd="/")
    if cleaned.exit_code:
        raise SandboxError(
            f"the files of the model could not be cleaned: {cleaned.stderr.decode(errors='replace')}"
        )
    for path, source in plan.tests.items():
        await fresh.put(source, path)
