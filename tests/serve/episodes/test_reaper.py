"""What killed runners left, when the gateway is away: it is tried again, within limits, and said."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.serve.conftest import KEY, Site
from tests.serve.episodes.conftest import Open

from openclaw_rl.common.gateway_address import GatewayAddress, publish_address
from openclaw_rl.common.sockets import free_port
from openclaw_rl.environments import commands, reaper
from openclaw_rl.environments.reaper import KILLED, reap_leases
from openclaw_rl.environments.registry import SourceRequest
from openclaw_rl.environments.runner_lease import EpisodeLease, LeaseFolder, lease_folder
from openclaw_rl.environments.types import PlayLimits

Leave = Callable[[float], Path]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    made = tmp_path / "home"
    made.mkdir()
    return made


@pytest.fixture
def leave(home: Path, tmp_path: Path) -> Leave:
    """Leave an episode as a killed runner does; return the file of its lease."""

    def leave_episode(expires_at: float) -> Path:
        folder = lease_folder(home, "r")
        folder.mkdir(parents=True)
        (tmp_path / "scratch" / "e").mkdir(parents=True)
        lease = EpisodeLease(
            episode="e", folder=str(tmp_path / "scratch" / "e"), expires_at=expires_at
        )
        LeaseFolder(folder).add_lease(lease)
        return folder / "e.json"

    return leave_episode


@contextmanager
def published(home: Path, url: str) -> Iterator[None]:
    address = GatewayAddress(url=url, model="openclaw", model_path="m", key="file", pid=os.getpid())
    with publish_address(home, address):
        yield


def test_the_end_of_an_episode_waits_for_the_gateway(
    site: Site, open_episode: Open, home: Path, leave: Leave, tmp_path: Path
) -> None:
    run, lease = open_episode("e"), leave(time.time() + 3600)
    assert "1 episodes of killed runners are still open, because no gateway runs on" in reap_leases(
        home, KEY
    )
    assert lease.exists()
    assert not (tmp_path / "scratch" / "e").exists()
    with published(home, f"http://127.0.0.1:{free_port()}"):
        began = time.monotonic()
        assert "does not answer" in reap_leases(home, KEY, seconds=0.7)
        assert time.monotonic() - began > 0.5
    assert run.shown()["status"] == "running"
    back, stop = threading.Event(), threading.Event()

    def come_back() -> None:
        back.wait(0.8)
        with published(home, site.url):
            stop.wait(300)

    thread = threading.Thread(target=come_back)
    thread.start()
    assert reap_leases(home, KEY, seconds=300) == ""
    stop.set()
    thread.join()
    assert (run.shown()["status"], run.shown()["reason"]) == ("void", KILLED)
    assert not lease.parent.exists()


def test_an_episode_that_has_expired_needs_no_gateway(home: Path, leave: Leave) -> None:
    lease = leave(time.time() - 1)
    assert reap_leases(home, KEY, seconds=5) == ""
    assert not lease.parent.exists()


def test_a_command_asks_again_and_says_what_is_left(
    home: Path,
    leave: Leave,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    leave(time.time() + 3600)
    (tmp_path / "tasks.jsonl").write_text('{"id": "a"}\n')
    monkeypatch.setattr(commands, "_GATEWAY_SECONDS", 0.7)
    words = [sys.executable, "-c", "import os; open(os.environ['REWARD_FILE'], 'w').write('0')"]
    request = SourceRequest(
        source="command",
        tasks=tmp_path / "tasks.jsonl",
        oracle=["true"],
        nop=words,
        search_path=os.environ["PATH"],
    )
    with published(home, f"http://127.0.0.1:{free_port()}"):
        (fitness,) = commands.check_environment(
            home, KEY, request, PlayLimits(seconds=300), 1, lambda found: None
        )
    assert fitness.fit, fitness.reason
    said = capsys.readouterr().err
    assert "note: 1 episodes of killed runners are still open, because the gateway at http" in said
    assert "`openclaw-rl env run` or `env check` ends them; without it they expire by" in " ".join(
        said.split()
    )


def test_the_reaper_asks_again_until_the_episode_has_expired(home: Path, leave: Leave) -> None:
    leave(time.time() + 2)
    given = f'{{"home": "{home}", "run": "r", "key": "{KEY}"}}\n'
    command = [sys.executable, "-m", "openclaw_rl.environments.reaper"]
    done = subprocess.run(
        command, input=given, capture_output=True, text=True, timeout=240, check=True
    )
    assert done.stderr == "", "the episode has expired while it waited"
    assert not lease_folder(home, "r").exists()


def test_the_reaper_says_what_is_left(
    home: Path,
    leave: Leave,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    lease = leave(time.time() + 3600)
    monkeypatch.setattr(reaper, "_GATEWAY_SECONDS", 0.7)
    monkeypatch.setattr(reaper, "_LOCK_SECONDS", 0.5)
    (tmp_path / "stdin").write_text(f'{{"home": "{home}", "run": "r", "key": "{KEY}"}}\n')
    with (tmp_path / "stdin").open() as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        reaper.main()
    assert lease.exists()
    assert capsys.readouterr().err.startswith(
        "openclaw-rl: 1 episodes of killed runners are still open, because no"
    )
