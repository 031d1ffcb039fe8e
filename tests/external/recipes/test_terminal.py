"""`terminal-rl` from start to end: one shipped task is checked, played by the starter in boxes, and trained on."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.external.recipes.running import ROOT, free_port, script

from openclaw_rl.common.gateway_address import running_address
from openclaw_rl.errors import SandboxError
from openclaw_rl.sandbox.bubblewrap_args import find_bubblewrap
from openclaw_rl.store.db import Store
from openclaw_rl.store.episodes import episodes


def test_a_shipped_task_is_checked_played_and_the_system_ends(tmp_path: Path) -> None:
    try:
        find_bubblewrap()
    except SandboxError as error:
        pytest.skip(str(error))
    said = script(
        "terminal-rl/run_terminal_rl.sh",
        *("--group", "2", "--agent", "text", "--limit-seconds", "120"),
        folder=tmp_path,
        ENV_TYPE="terminal",
        TASK_TYPE="bash_commands",
        MODEL_PATH="starter",
        TASKS_PATH=str(ROOT / "tasks" / "terminal" / "greeting-file"),
        MAX_STEPS="2",
        PARALLEL_ENVS="2",
        OPENCLAW_HOME="home",
        OPENCLAW_PORT=str(free_port()),
    )
    assert "greeting-file: fit" in said
    assert "train.method" not in said, "no note about settings of groups"
    assert "version 0 in home" in said, "the starter solves nothing: no group differs"
    with Store.open(tmp_path / "home" / "store.db", create=False) as store, store.read() as conn:
        ids = [row.id for row in conn.exec_driver_sql("select id from episodes").all()]
        found = [episodes.get_episode(conn, one) for one in ids]
    assert [(one.outcome, one.reward) for one in found if one is not None] == [("done", 0.0)] * 2
    assert running_address(tmp_path / "home") is None, "the system has ended"
