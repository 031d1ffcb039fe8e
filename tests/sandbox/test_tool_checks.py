"""The checks of an episode with tools have time of their own: one that hangs says nothing about the policy."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.environments.test_tool_limits import play_task, request_of

from openclaw_rl.environments.sources.tools import tool_episode

CODE = (
    "import time\ndef check(answer, calls, files):\n    time.sleep(3)\n    return answer == '42'\n"
)


@pytest.mark.parametrize("hangs", [False, True])
def test_a_slow_check_counts_and_one_that_hangs_is_void(
    public_folder: Path, monkeypatch: pytest.MonkeyPatch, hangs: bool
) -> None:
    request = request_of(
        public_folder, [{"name": "f", "result": 1}], {"kind": "python", "code": CODE}
    )
    if hangs:
        monkeypatch.setattr(tool_episode, "_CHECK_SECONDS", 0.0)
    found = asyncio.run(play_task(request, seconds=2))
    if hangs:
        assert (found.status, found.reason) == ("void", "the checks did not end within 2 s")
    else:
        assert (found.status, found.reward) == ("done", 1.0), found.reason
