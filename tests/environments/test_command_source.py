"""Programs as environments: what they are given, what their end means, and that nothing of them is left."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

import pytest

from openclaw_rl.environments.command_source import (
    CommandRunner,
    CommandSource,
    parse_reward,
    resolve_command,
)
from openclaw_rl.environments.leftovers import find_processes, remove_leftovers
from openclaw_rl.environments.scratch_folder import new_scratch_folder
from openclaw_rl.environments.task_file import read_task_file, split_by_digest, task_digest
from openclaw_rl.environments.types import (
    EnvironmentTask,
    EpisodeTicket,
    PlayLimits,
    PlayOutcome,
    TaskFitness,
)
from openclaw_rl.errors import ConfigError

PATH = os.defpath
TICKET = EpisodeTicket(
    episode="e-1", base_url="http://127.0.0.1:1/v1", api_key="sk-ep-1", model="openclaw"
)
TASK = EnvironmentTask(id="t", digest="0" * 64, split="train", data={"question": "2+2"})


@pytest.fixture(autouse=True)
def own_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def play(code: str, *, seconds: float = 300, granted: dict[str, str] | None = None) -> PlayOutcome:
    """Play an episode by a program in Python; afterwards nothing of it is left."""
    runner = CommandRunner(
        command=(sys.executable, "-c", code), search_path=PATH, granted=granted or {}
    )
    folder = new_scratch_folder("e-1")
    outcome = asyncio.run(runner.play_episode(TASK, TICKET, folder, PlayLimits(seconds=seconds)))
    assert find_processes(folder) == []
    assert remove_leftovers(folder)
    assert not Path(folder).exists()
    return outcome


@pytest.mark.parametrize(
    ("code", "status", "reward"),
    [
        ("", "done", 1.0),
        ("raise ValueError('what the policy said')", "done", 0.0),
        ("import sys; sys.exit(2)", "void", None),
        ("import os; os.kill(os.getpid(), 9)", "void", None),
        ("open('reward.json', 'w').write('0.25')", "done", 0.25),
        ("open('reward.json', 'w').write('0.25'); raise ValueError", "done", 0.25),
        ("open('reward.json', 'w').write('{\"rew')", "void", None),
        ("open('reward.json', 'w').write('NaN')", "void", None),
        (
            'open(\'reward.json\', \'w\').write(\'{"status": "void", "reason": "no display"}\')',
            "void",
            None,
        ),
        ("import os; os.symlink('/etc/hostname', 'reward.json')", "void", None),
        ("import os; os.mkfifo('reward.json')", "void", None),
    ],
)
def test_the_end_of_a_program_is_its_outcome(code: str, status: str, reward: float | None) -> None:
    outcome = play(code)
    assert (outcome.status, outcome.reward) == (status, reward), outcome


def test_a_time_limit_gives_the_written_reward_or_a_failure_of_the_policy() -> None:
    assert play("import time; time.sleep(60)", seconds=0.5).reward == 0.0
    written = "import time; open('reward.json', 'w').write('0.5'); time.sleep(60)"
    assert play(written, seconds=1).reward == 0.5


def test_the_program_gets_the_granted_variables_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENCLAW_API_KEY", "sk-owner")
    monkeypatch.setenv("SECRET_OF_MINE", "x")
    code = "import json, os; json.dump({'reward': 1, 'reason': json.dumps(dict(os.environ))}, open('reward.json', 'w'))"
    found = json.loads(play(code, granted={"MINE": "1"}).reason or "")
    folder = found.pop("EPISODE_FOLDER")
    assert found == {
        "PATH": PATH,
        "LANG": "C.UTF-8",
        "HOME": folder,
        "TMPDIR": folder,
        "TASK_FILE": f"{folder}/task.json",
        "REWARD_FILE": f"{folder}/reward.json",
        "MINE": "1",
        "EPISODE_ID": "e-1",
        "OPENAI_BASE_URL": TICKET.base_url,
        "OPENAI_API_KEY": TICKET.api_key,
        "OPENAI_MODEL": "openclaw",
    } | {name: value for name, value in found.items() if name == "LC_CTYPE"}


def test_processes_that_left_the_group_end_with_the_episode(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys\n"
        "for env in (None, {}):\n"  # without the marker, its working folder shows where it belongs
        "    subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=1, env=env)\n"
    )
    began = time.monotonic()
    assert play(code).reward == 1.0
    assert time.monotonic() - began < 300, "it does not wait for processes that it left"


def test_a_program_that_prints_without_end_does_not_fill_memory_or_hang() -> None:
    code = "import os\nfor _ in range(3000): os.write(1, b'x' * 10000 + b'\\n')\nraise ValueError('last words')"
    assert "last words" in (play(code).reason or "")


def test_an_interrupted_episode_leaves_no_process() -> None:
    runner = CommandRunner(
        command=(sys.executable, "-c", "import time; time.sleep(60)"), search_path=PATH
    )
    folder = new_scratch_folder("e-2")

    async def interrupt() -> None:
        task = asyncio.create_task(
            runner.play_episode(TASK, TICKET, folder, PlayLimits(seconds=300))
        )
        while not find_processes(folder):
            await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(interrupt())
    assert find_processes(folder) == []


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b"1" + 400 * b"0",
        b'{"reward": true}',
        b'{"reward": 1, "score": 2}',
        b'{"parts": {"a": 1}}',
        b'{"reward": 1, "status": "error"}',
        b'{"reward": 1, "steps": [1]}',
        b'{"reward": 1, "steps": [{"index": "0", "reward": 1}]}',
        b'{"reward": 1, "steps": [{"index": -1, "reward": 1}]}',
        b'{"reward": 1, "steps": [{"index": 0}]}',
        b'{"reward": 1, "steps": [{"index": 0, "reward": NaN}]}',
        b'{"reward": 1, "steps": [{"index": 0, "turn": "t", "reward": 1}]}',
    ],
)
def test_invalid_rewards_are_refused(raw: bytes) -> None:
    with pytest.raises(ValueError, match=r"expected|unknown|valid"):
        parse_reward(raw)


def test_rewards_of_steps_are_by_turn_or_by_index() -> None:
    steps = [{"turn": "t", "reward": -0.5}, {"index": 2, "reward": 1.0}]
    assert parse_reward(json.dumps({"reward": 1, "steps": steps}).encode()).steps == steps


def test_arguments_that_name_files_are_made_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "agent.py").write_text("")
    assert resolve_command(["sh", "agent.py", "--fast"], PATH)[1:] == (
        str(tmp_path / "agent.py"),
        "--fast",
    )
    with pytest.raises(ConfigError, match="no such program"):
        resolve_command(["no-such-program"], PATH)


def check(tmp_path: Path, task: dict[str, object], **commands: str) -> TaskFitness:
    file = tmp_path / "tasks.jsonl"
    file.write_text(json.dumps(task))
    words = {name: ("sh", "-c", command) for name, command in commands.items()}
    source = CommandSource(
        tasks=file,
        oracle=words.get("oracle", ()),
        nop=words.get("nop", ()),
        make_runner=lambda words: CommandRunner(
            command=resolve_command(words, PATH), search_path=PATH
        ),
    )
    return asyncio.run(
        source.check_task(
            source.load_tasks()[0], new_scratch_folder("check"), PlayLimits(seconds=300)
        )
    )


def test_a_check_compares_the_oracle_with_doing_nothing(tmp_path: Path) -> None:
    assert check(tmp_path, {"q": 1}, oracle="exit 0", nop="exit 1").fit
    for unknown in (
        check(tmp_path, {"q": 1}, oracle="exit 0"),
        check(tmp_path, {"q": 1}, nop="exit 1"),
    ):
        assert "no nop" in unknown.reason or "no oracle" in unknown.reason
        assert (
            not unknown.checkable
        )  # and is not kept as unfit, which --unchecked would not play either
    with pytest.raises(ConfigError, match="oracle: expected a command"):
        check(tmp_path, {"q": 1, "oracle": 'a "b'}, nop="exit 1")
    assert (
        "the oracle got 0, not 1" in check(tmp_path, {"q": 1}, oracle="exit 1", nop="exit 1").reason
    )
    assert "doing nothing got 1" in check(tmp_path, {"q": 1}, oracle="exit 0", nop="exit 0").reason
    assert (
        "oracle: no reward.json"
        in check(tmp_path, {"q": 1}, oracle="uvx --version", nop="exit 1").reason
    )
    own = {"q": 1, "oracle": "sh -c 'echo 2 > reward.json'", "nop": ["false"], "best": 2}
    assert check(tmp_path, own).fit


def test_the_file_of_tasks(tmp_path: Path) -> None:
    file = tmp_path / "tasks.jsonl"
    file.write_text('{"id": "a", "q": 1}\n\n{"q": 2, "split": "held_out"}\n')
    first, second = read_task_file(file)
    assert (first.id, first.split, first.digest) == ("a", "train", task_digest({"q": 1}))
    assert (second.id, second.split) == (f"task-{second.digest[:12]}", "held_out")
    file.write_text('{"q": "one\u2028two\x85three"}\r\n{"q": 2}', encoding="utf-8")
    assert [task.data["q"] for task in read_task_file(file)] == ["one\u2028two\x85three", 2]
    for text, words in (
        ("[1]", "expected a JSON object"),
        ("{", "not valid JSON"),
        ('{"q": 1}\n{"q": 1, "id": "b"}', "the same task as in line 1"),
        ('{"q": 1, "id": "b"}\n{"q": 2, "id": "b"}', "the same id as in line 1"),
        ('{"split": "test"}', "train or held_out"),
        ("", "no tasks"),
    ):
        file.write_text(text)
        with pytest.raises(ConfigError, match=words):
            read_task_file(file)


@pytest.mark.parametrize("best", ["NaN", "Infinity", "1" + 400 * "0", "true"])
def test_a_best_reward_that_no_oracle_can_get_is_refused(tmp_path: Path, best: str) -> None:
    (tmp_path / "tasks.jsonl").write_text(f'{{"q": 1, "best": {best}}}')
    with pytest.raises(ConfigError, match="best: expected the best reward as a number"):
        read_task_file(tmp_path / "tasks.jsonl")


def test_the_held_out_share_is_chosen_by_the_digest() -> None:
    digests = [task_digest({"q": number}) for number in range(2000)]
    held_out = {digest for digest in digests if split_by_digest(digest, 0.2) == "held_out"}
    assert 320 < len(held_out) < 480
    assert held_out <= {digest for digest in digests if split_by_digest(digest, 0.4) == "held_out"}


def test_signals_are_void_whatever_was_written() -> None:
    code = f"import os; open('reward.json', 'w').write('1'); os.kill(os.getpid(), {int(signal.SIGSEGV)})"
    assert play(code).status == "void"


@pytest.mark.parametrize("folder", ["", "/", "/tmp", "episode"])
def test_no_process_is_looked_for_by_a_path_that_is_no_folder_of_an_episode(folder: str) -> None:
    with pytest.raises(ValueError, match="absolute path of an episode's folder"):
        find_processes(folder)
