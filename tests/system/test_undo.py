"""An undo while the system runs: requests are answered all the time, and the rest is learned again."""

from __future__ import annotations

import json
import threading
from pathlib import Path

from tests.system.test_damaged_weights import SETTINGS, rows, teach, trained_turns
from tests.system.test_parked import readiness, wait_for
from tests.system.test_words import run

from openclaw_rl.supervisor.subprocess_system import SubprocessSystem, post_json, scratch_config

VERSIONS = 5


def test_undo_while_the_system_runs(tmp_path: Path) -> None:
    config = scratch_config(tmp_path / "home", SETTINGS)
    home = ("--home", str(config.home_dir))
    with SubprocessSystem(config) as system:
        turns = []
        for number in range(VERSIONS):
            turns.append(teach(system, number))
            wait_for(lambda: len(trained_turns(config)) == len(turns))
        learned = json.loads(run("learned", *home, "--json").stdout)
        assert [row["turns"][0]["turn"] for row in learned["versions"]] == turns[::-1]
        assert all("".join(row["turns"][0]["credit"]["tokens"]) for row in learned["versions"])

        done, answers = threading.Event(), []

        def ask() -> None:
            while not done.is_set():
                body = {"model": "openclaw", "messages": [{"role": "user", "content": "Hello?"}], "max_tokens": 4}
                answers.append(post_json(system, "/v1/chat/completions", body)["choices"])

        asking = threading.Thread(target=ask)
        asking.start()
        try:
            undone = run("undo", *home, "--turn", turns[1], "--yes", timeout=180)
        finally:
            done.set()
            asking.join()
        assert undone.returncode == 0, undone.stderr
        assert "4 versions rolled back: 2, 3, 4, 5; version 1 answers meanwhile" in undone.stdout
        assert f"is version {VERSIONS + 3}: 3 of 3 batches were trained on again" in undone.stdout
        assert len(answers) > 1
        assert all(answers)
        assert trained_turns(config) == sorted({*turns} - {turns[1]})
        wait_for(lambda: readiness(system)["version"] == VERSIONS + 3)
        assert readiness(system)["reasons"] == []
        children = {policy.version: policy.parent for policy in rows(config).values()}
        assert children[VERSIONS + 1] == 1
    here = run("undo", *home, "--set", "train.method=binary", "--turn", turns[0], "--yes", "--now", timeout=180)
    assert here.returncode == 0, here.stderr
    assert f"is version {VERSIONS + 6}: 3 of 3 batches were trained on again" in here.stdout
    assert trained_turns(config) == sorted(turns[2:])
