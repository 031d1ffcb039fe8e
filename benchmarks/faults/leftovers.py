"""What is left of runs of environments and of their boxes on this machine, in words."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator
from pathlib import Path

from benchmarks.faults.live_system import has_ended

from openclaw_rl.sandbox.box_lease import LOCK_FILE
from openclaw_rl.sandbox.control_groups import find_parents, plan_groups

_BOXES = "openclaw-rl-boxes-*"
_MARK_FILES = ("environ", "cmdline", "cgroup")


def lease_names(scratch: Path) -> set[str]:
    """Return the names of the boxes that have a lease below `scratch`, which is the runners' folder for such files."""
    return {folder.name for folder in scratch.glob(f"{_BOXES}/*")}


def own_processes(scratch: Path, names: Collection[str]) -> dict[int, str]:
    """Return process id -> command line of the runners, reapers, programs and boxes that use `scratch`.

    Runners and what they start have the folder in their environment. A box has an empty one: its processes have its
    name in their command line or control group.
    """
    marks = [os.fsencode(word) for word in (str(scratch), *names)]
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        pid = int(entry.name)
        texts = []
        for name in _MARK_FILES:
            # It has ended, or belongs to another user.
            with contextlib.suppress(OSError):
                texts.append((entry / name).read_bytes())
        if (
            pid != os.getpid()
            and any(mark in text for mark in marks for text in texts)
            and not has_ended(pid)
        ):
            found[pid] = _read_command(entry)
    return found


def find_leftovers(scratch: Path, home: Path, names: Collection[str]) -> list[str]:
    """Return what is left when no runner runs. `names`: boxes that there were."""
    return [
        *(f"the process {command[:100]!r}" for command in own_processes(scratch, names).values()),
        *(f"a mount of {line.split()[4]}" for line in _read_mounts() if str(scratch) in line),
        *(
            f"the folder {folder.name}"
            for folder in sorted(scratch.glob("*"))
            if not folder.match(_BOXES)
        ),
        *(f"the lease of the box {folder.name}" for folder in _locked_leases(scratch)),
        *(
            f"the lease of the run {lease.name}"
            for lease in sorted((home / "environments" / "runners").glob("*"))
        ),
        *(
            f"the control group {group.parent.name}/{group.name}"
            for name in sorted(names)
            for group in plan_groups(find_parents(), name)
            if group.exists()
        ),
    ]


def _read_command(entry: Path) -> str:
    with contextlib.suppress(OSError):
        return (
            (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace").strip()
        )
    return ""


def _read_mounts() -> list[str]:
    # Not Linux.
    with contextlib.suppress(OSError):
        return Path("/proc/self/mountinfo").read_text().splitlines()
    return []


def _locked_leases(scratch: Path) -> Iterator[Path]:
    """Yield the leases, and make those that were begun and never locked so old that the next owner removes them.

    Such a folder is empty. Its owner was killed within microseconds; other owners leave it alone for a minute.
    """
    for folder in sorted(scratch.glob(f"{_BOXES}/*")):
        if (folder / LOCK_FILE).exists():
            yield folder
        else:
            with contextlib.suppress(FileNotFoundError):
                os.utime(folder, (0, 0))
