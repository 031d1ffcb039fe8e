"""Tasks of other people's libraries, as their process lists them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from openclaw_rl.environments.registry import SourceRequest, find_source
from openclaw_rl.environments.types import TaskSource
from openclaw_rl.errors import ConfigError

LISTING = """#!{python}
import json, sys
rows = {rows}
for line in sys.stdin:
    print(json.dumps({{"id": json.loads(line)["id"], "tasks": rows, "count": len(rows)}}), flush=True)
"""
"""Stands for a Python with a library that has these tasks."""


def source_of(folder: Path, **digests: str) -> TaskSource:
    rows = [{"id": name, "digest": digest, "data": {}} for name, digest in digests.items()]
    python = folder / "python"
    python.write_text(LISTING.format(python=sys.executable, rows=json.dumps(rows)))
    python.chmod(0o755)
    request = SourceRequest(
        source="openenv", argument="NAME", python=str(python), search_path="/usr/bin:/bin"
    )
    return find_source(request).make_source(request)


def test_tasks_are_listed_as_the_library_has_them(tmp_path: Path) -> None:
    assert [task.id for task in source_of(tmp_path, a="11", b="22").load_tasks()] == ["a", "b"]


def test_two_tasks_of_the_same_content_are_refused(tmp_path: Path) -> None:
    """Their episodes would have the same ids."""
    with pytest.raises(ConfigError, match=r"b: has the same content as a\. Remove one of them"):
        source_of(tmp_path, a="11", b="11").load_tasks()
