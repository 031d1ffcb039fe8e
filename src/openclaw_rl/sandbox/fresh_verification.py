"""Verification of what was done in a box, in another box that the model's processes never saw."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from openclaw_rl.errors import SandboxError
from openclaw_rl.sandbox.archives import check_box_path
from openclaw_rl.sandbox.box import WORK_FOLDER, Box, CommandResult
from openclaw_rl.sandbox.box_lease import leased_folder

PLANTED_NAMES = (
    "__pycache__", "conftest.py", "pytest.ini", ".pytest.ini", "sitecustomize.py", "usercustomize.py", "*.pth"
)  # fmt: skip
"""Names of files and folders that change how tests are found, loaded or run."""
VERIFIER_VARIABLES = {
    "PYTHONSAFEPATH": "1",
    "PYTHONNOUSERSITE": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
}
"""Python then imports neither from the current folder nor from the home."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """How a result is verified. `carried`: paths that are copied from the model's box, without `left_out` names.

    `tests`: path in the box -> file or folder of this machine; written last, in place of whatever the model left there.
    `results`: folder or file of the box that is copied out afterwards.
    """

    command: str
    tests: Mapping[str, Path]
    carried: tuple[str, ...] = (WORK_FOLDER,)
    left_out: tuple[str, ...] = PLANTED_NAMES
    results: str | None = None
    cwd: str = WORK_FOLDER
    env: Mapping[str, str] = field(default_factory=dict)
    time_limit: float = 600.0


async def verify_in_fresh_box(
    used: Box, fresh: Box, plan: Verification, results_to: Path | None = None
) -> CommandResult:
    """Close `used`, copy its files to the unopened box `fresh`, and verify them there. Closes both boxes.

    Raises `SandboxError` if a copy fails or the results are missing: then nothing is known of the model's work.
    """
    try:
        await move_to_fresh_box(used, fresh, plan)
        result = await fresh.run(
            plan.command,
            cwd=plan.cwd,
            env={**VERIFIER_VARIABLES, **plan.env},
            time_limit=plan.time_limit,
        )
        if plan.results is not None and results_to is not None:
            await fresh.get(plan.results, results_to)
        return result
    finally:
        await fresh.close()


async def move_to_fresh_box(used: Box, fresh: Box, plan: Verification) -> None:
    """Close `used`, and open `fresh` with its files as `plan` wants them. The files go from box to box unread.

    Raises `SandboxError` if a copy fails.
    """
    with leased_folder() as folder:
        archive = folder / "carried.tar"
        try:
            await used.save_archive(plan.carried, archive)
        finally:
            await used.close()
        await fresh.open()
        await fresh.load_archive(plan.carried, archive)
        await _replace_tests(fresh, plan)


async def _replace_tests(fresh: Box, plan: Verification) -> None:
    commands = []
    if plan.left_out:
        carried = " ".join(shlex.quote(check_box_path(path)) for path in plan.carried)
        names = " -o ".join(f"-name {shlex.quote(name)}" for name in plan.left_out)
        commands.append(rf"find {carried} \( {names} \) -prune -exec rm -rf -- {{}} + || exit 1")
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
