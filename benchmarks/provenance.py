"""Which code a result is of, and when it was measured."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

_ROOT = Path(__file__).parent.parent


def commit() -> str:
    """Return the hash of the checked-out commit, with "+changes" if files differ from it; "unknown" without Git."""
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--exclude=*", "--dirty=+changes"],
            cwd=_ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return found.stdout.strip()


def measured_at() -> str:
    """Return the date and the commit of a result, as each results file states them: `2026-11-28, commit 1a2b3c4d`."""
    return f"{time.strftime('%Y-%m-%d')}, commit {commit()}"


def write_result(file: Path, text: str) -> None:
    """Write a results page, with its date and commit at the end."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{text.rstrip()}\n\nMeasured {measured_at()}.\n", encoding="utf-8")
