"""Libraries of environments, unmodified, at the real gateway with the starter policy (`make test-env-libraries`)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.external.environments.recorded_system import RecordedSystem
from tests.system.test_environments import episodes_of_run, marked_processes

from openclaw_rl.store import exchanges
from openclaw_rl.store.db import Store
from openclaw_rl.store.episodes import turn_list

ROOT = Path(__file__).parents[3]
BOXES = "openclaw-rl-boxes-"


@pytest.fixture(scope="session")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RecordedSystem]:
    with RecordedSystem(tmp_path_factory.mktemp("home")) as made:
        yield made


class LibraryCommand:
    """`openclaw-rl env` with a library under the Python of its own environment."""

    def __init__(self, system: RecordedSystem, scratch: Path, python: Path) -> None:
        self.system, self.scratch, self.python = system, scratch, python
        scratch.mkdir()

    @property
    def home(self) -> Path:
        return self.system.config.home_dir

    def start(self, sub: str, source: str, *options: str) -> subprocess.Popen[str]:
        own = () if "--python" in options else ("--python", str(self.python))
        return self.start_words(sub, source, *own, *options)

    def start_words(self, sub: str, source: str, *words: str) -> subprocess.Popen[str]:
        """Start the command with these words, and no Python of its own."""
        command = [
            sys.executable,
            "-m",
            "openclaw_rl",
            "env",
            sub,
            source,
            "--home",
            str(self.home),
            *words,
        ]
        environment = os.environ | {"TMPDIR": str(self.scratch)}
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )

    def run(self, sub: str, source: str, *options: str) -> subprocess.CompletedProcess[str]:
        process = self.start(sub, source, *options)
        out, err = process.communicate(timeout=300)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def play(self, source: str, run: str, *options: str) -> dict[str, Any]:
        """Play and return the summary."""
        done = self.run("run", source, "--run", run, "--json", *options)
        assert done.returncode == 0, done.stderr
        return dict(json.loads(done.stdout))

    def episodes(self, run: str) -> list[Any]:
        with Store.open(self.system.config.store_path, create=False) as store, store.read() as conn:
            return episodes_of_run(conn, run)

    def assert_captured(self, run: str, steps: int | None = 1) -> None:
        """Check that each turn of each episode that is done has its step, the outcome, and the ids of the engine.

        `steps`: of each episode; None: at least one.
        """
        sampled = self.system.recorder.sampled()
        with Store.open(self.system.config.store_path, create=False) as store, store.read() as conn:
            found = [episode for episode in episodes_of_run(conn, run) if episode.outcome == "done"]
            assert found
            for episode in found:
                rows = turn_list.list_turns(conn, episode.id)
                assert [row["step"] for row in rows] == list(range(steps or len(rows) or 1)), (
                    episode
                )
                assert episode.reward is not None
                for row in rows:
                    held_out = "its task is held out" if episode.split == "held_out" else None
                    assert row["untrainable"] == held_out, (
                        "the library's sampling can be trained on"
                    )
                    exchange = exchanges.get_many(conn, [row["id"]])[row["id"]]
                    reply = exchange.reply
                    assert reply is not None
                    assert reply.mask.all(), "every token was sampled by the engine"
                    assert len(reply.response_ids) == len(reply.logprobs) > 0
                    ids = (
                        tuple(exchange.request.prompt_ids.tolist()),
                        tuple(reply.response_ids.tolist()),
                    )
                    assert ids in sampled, "the ids are those that the engine got and gave"

    def list_boxes(self) -> list[Path]:
        """The leases of boxes, in the folder that stays."""
        return list(self.scratch.glob(f"{BOXES}*/*"))

    def assert_nothing_left(self) -> None:
        assert marked_processes(self.scratch) == []
        found = list(self.scratch.glob("openclaw-*"))
        assert [path for path in found if not path.name.startswith(BOXES)] == []
        assert self.list_boxes() == []
        assert list((self.home / "environments" / "runners").iterdir()) == []
