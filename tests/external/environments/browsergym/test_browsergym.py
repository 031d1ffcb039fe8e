"""BrowserGym with MiniWoB and the web tasks that are shipped, in one real Chromium."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.external.environments.conftest import ROOT, LibraryCommand
from tests.external.environments.recorded_system import RecordedSystem
from tests.system.test_environments import marked_processes
from tests.system.test_parked import wait_for

from openclaw_rl.environments.foreign.filmstrip import CAPTION, HEADER
from openclaw_rl.store import exchanges
from openclaw_rl.store.db import Store
from openclaw_rl.store.episodes import turn_list

WEB = str(ROOT / "tasks/web")
LIMITS = ("--limit-seconds", "90", "--max-steps", "2")
PYTHON = ROOT / ".browsergym-venv/bin/python"


@pytest.fixture
def command(system: RecordedSystem, tmp_path: Path) -> LibraryCommand:
    return LibraryCommand(system, tmp_path / "tmp", PYTHON)


def test_the_web_tasks_are_fit_and_played(command: LibraryCommand, tmp_path: Path) -> None:
    source = f"browsergym:{WEB}"
    checked = command.run("check", f"{source}?film={tmp_path / 'film'}", *LIMITS[:2])
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert checked.stdout.splitlines()[-1] == "8 tasks, 0 unfit"
    assert len(list((tmp_path / "film").glob("*-oracle.png"))) == 8
    command.assert_nothing_left()
    found = command.play(source, "web", "--group", "2", "--parallel", "8", *LIMITS)
    assert (found["done"], found["void"]["count"]) == (16, 0), found
    reasons = {episode.reason for episode in command.episodes("web")}
    assert reasons <= {"its limit of replies", "its context was too long"}, (
        "the starter's context is small"
    )
    command.assert_captured("web", steps=None)
    command.assert_nothing_left()


def test_replies_that_are_typed_need_no_actions(command: LibraryCommand, tmp_path: Path) -> None:
    sys.path.insert(0, str(ROOT / "examples" / "environments"))
    try:
        importlib.import_module("starter_tracks").write_web_track(tmp_path / "track")
    finally:
        sys.path.pop(0)
    source = f"browsergym:{tmp_path / 'track' / 'capital-France'}?typed=true"
    assert "typed: expected true or false" in command.run("run", source.replace("true", "3")).stderr
    checked = command.run("check", source, *LIMITS[:2])
    assert checked.stdout.splitlines()[-1] == "1 tasks, 0 unfit", checked.stdout
    found = command.play(
        source,
        "typed",
        "--group",
        "6",
        "--parallel",
        "3",
        "--limit-seconds",
        "90",
        "--max-steps",
        "1",
    )
    assert (found["done"], found["void"]["count"]) == (6, 0), found
    command.assert_captured("typed", steps=1)
    with Store.open(command.system.config.store_path, create=False) as store, store.read() as conn:
        for episode in command.episodes("typed"):
            (row,) = turn_list.list_turns(conn, episode.id)
            exchange = exchanges.get_many(conn, [row["id"]])[row["id"]]
            assert [message["content"] for message in exchange.request.messages] == [
                "What is the capital of France?"
            ]
            lines = str(exchange.reply.message["content"]).splitlines()
            assert episode.reward == any(
                "Paris" in line and line.startswith("- ") for line in lines
            ), lines
    command.assert_nothing_left()


def test_a_folder_may_have_any_files(command: LibraryCommand, tmp_path: Path) -> None:
    folder = shutil.copytree(
        next(file.parent for file in Path(WEB).glob("*/task.json")), tmp_path / "task"
    )
    (folder / "logo.png").write_bytes(b"\x89PNG\xff")
    (folder / "LICENSE").write_text("free")
    refused = command.run("run", f"browsergym:{folder}")
    assert "1 of 1 tasks were not checked on this machine: task" in refused.stderr, refused.stderr


def test_miniwob_has_seeds_and_no_oracle(command: LibraryCommand, miniwob: tuple[str, int]) -> None:
    task, seeds = miniwob
    source = f"browsergym:miniwob.{task}?seeds={seeds}"
    checked = command.run("check", source, *LIMITS[:2])
    assert checked.returncode == 1
    assert f"{seeds} tasks, 0 unfit, {seeds} not checked" in checked.stdout
    assert "were not checked on this machine" in command.run("run", source).stderr
    found = command.play(source, task, "--group", "2", "--parallel", "8", "--unchecked", *LIMITS)
    assert (found["done"], found["void"]["count"]) == (2 * seeds, 0), found
    command.assert_captured(task, steps=None)
    command.assert_nothing_left()


def test_a_killed_browser_is_void_and_a_killed_runner_leaves_nothing(
    command: LibraryCommand,
) -> None:
    run = "killed"
    options = (
        "--group",
        "8",
        "--parallel",
        "4",
        "--unchecked",
        "--limit-seconds",
        "90",
        "--max-steps",
        "50",
    )
    process = command.start("run", "browsergym:miniwob.click-test?seeds=1", "--run", run, *options)
    wait_for(lambda: any("chrom" in name for name in process_names(command)))
    time.sleep(3)
    browsers = [
        pid
        for pid in marked_processes(command.scratch)
        if "--remote-debugging-pipe" in words_of(pid)
    ]
    for pid in browsers:
        os.kill(pid, 9)
    wait_for(lambda: any(episode.outcome == "void" for episode in command.episodes(run)))
    process.kill()
    process.communicate()
    wait_for(lambda: not list((command.home / "environments" / "runners").iterdir()))
    command.assert_nothing_left()
    assert {episode.outcome for episode in command.episodes(run)} <= {"done", "void"}


def words_of(pid: int) -> str:
    try:
        return (
            Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        )
    except OSError:
        return ""


def process_names(command: LibraryCommand) -> list[str]:
    return [words_of(pid).split(" ")[0] for pid in marked_processes(command.scratch)]


ACTION_PROGRAM = """
import asyncio, json, sys
sys.path.insert(0, sys.argv[1])
import browsergym_worker as worker

async def play():
    data = {"task": "miniwob.click-test", "seed": 0}
    episode = await worker.in_browser(worker.BrowserEpisode, data)
    await worker.in_browser(episode.open_page)
    button = next(line.split("[")[1].split("]")[0] for line in episode.page.splitlines() if "button" in line)
    await worker.in_browser(episode.act, "import_os('x')")
    problem = episode.problem
    await worker.in_browser(episode.act, f"click('{button}')")
    result = {"goal": episode.goal, "reward": episode.reward, "over": episode.is_over, "problem": problem}
    await worker.in_browser(episode.close, "x")
    print("RESULT" + json.dumps(result))

asyncio.run(play())
"""


OBSERVE_PROGRAM = """
import asyncio, json, sys
sys.path.insert(0, sys.argv[1])
import browsergym_worker as worker

async def play(film):
    data = {"folder": sys.argv[2], "seed": 0, "film": film}
    episode = await worker.in_browser(worker.BrowserEpisode, data)
    await worker.in_browser(episode.open_page)
    await worker.in_browser(episode.act, "noop(0)")
    seen = await worker.in_browser(episode._env._get_obs)
    await worker.in_browser(episode.close, "strip")
    names = ("screenshot", "dom_object", "extra_element_properties", "focused_element_bid", "axtree_object")
    return {"page": episode.page, "observed": [name for name in names if seen[name] is not None and len(seen[name])]}

async def play_both():
    print("RESULT" + json.dumps([await play(None), await play("film")]))

asyncio.run(play_both())
"""


def run_program(program: str, cwd: Path, *words: str) -> Any:
    """Return what a program prints after `RESULT`, run by the library's Python with our modules for it."""
    command = [PYTHON, "-c", program, ROOT / "src/openclaw_rl/environments/foreign", *words]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=cwd, timeout=280
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.split("RESULT")[1])


def test_only_the_accessibility_tree_is_observed_and_a_film_has_every_page(tmp_path: Path) -> None:
    plain, filmed = run_program(OBSERVE_PROGRAM, tmp_path, f"{WEB}/book-search")
    assert plain["observed"] == filmed["observed"] == ["axtree_object"]
    assert plain["page"] == filmed["page"] != ""
    width, height = struct.unpack(">II", (tmp_path / "film" / "strip.png").read_bytes()[16:24])
    assert (width, height) == (2 * 800, HEADER + 600 + CAPTION), "the first page, and the next"
    words = json.loads((tmp_path / "film" / "strip.json").read_text(encoding="utf-8"))
    assert (words["task"], words["actions"], words["reward"]) == ("book-search", ["noop(0)"], 0.0)
    assert 'src="strip.png"' in (tmp_path / "film" / "index.html").read_text(encoding="utf-8")


def test_an_action_solves_a_task_and_code_is_no_action(tmp_path: Path) -> None:
    found = run_program(ACTION_PROGRAM, tmp_path)
    assert "button" in found["goal"]
    assert "import_os" in found["problem"]
    assert (found["reward"], found["over"]) == (1.0, True)
