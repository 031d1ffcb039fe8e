"""Programs of the user in boxes: the gateway is all that they reach, and how their episodes end."""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from tests.sandbox.test_harbor_source import SANDBOX, write_task

from openclaw_rl.environments.box_program import BoxProgram, read_box_program
from openclaw_rl.environments.boxed_command import BoxedCommandRunner
from openclaw_rl.environments.sources.harbor.bash_agent import ProgramAgent
from openclaw_rl.environments.sources.harbor.source import HarborRunner, HarborSource
from openclaw_rl.environments.types import (
    EnvironmentTask,
    EpisodeRunner,
    EpisodeTicket,
    PlayLimits,
    PlayOutcome,
)
from openclaw_rl.errors import ConfigError, OpenClawError

TASK = EnvironmentTask(id="t", digest="0" * 64, split="train", data={"question": "2+2"})
PROGRAM = """
import json, os, socket, sys, urllib.request
from pathlib import Path

def ask():
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        data=json.dumps({"model": os.environ["OPENAI_MODEL"], "messages": []}).encode(),
        headers={"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"},
    )
    return json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"]

def reaches(port):
    try:
        socket.create_connection(("127.0.0.1", port), 2).close()
    except OSError:
        return False
    return True
"""
SEEN = (
    PROGRAM
    + """
task = json.loads(Path(os.environ["TASK_FILE"]).read_text())
parts = {"asked": ask() == "yes", "task": task["question"] == "2+2", "granted": os.environ["WORD"] == "granted"}
parts |= {"other": reaches(int(sys.argv[1])), "secret": Path(sys.argv[2]).exists(), "shown": Path(sys.argv[3]).exists()}
Path(os.environ["REWARD_FILE"]).write_text(json.dumps({"reward": 0.5, "parts": {k: int(v) for k, v in parts.items()}}))
"""
)


def play(make_runner: Any, task: EnvironmentTask, seconds: float = 300) -> PlayOutcome:
    """Play with a policy that says yes. `make_runner`: gets the port of a server that is not the gateway."""

    async def reply(request: web.Request) -> web.Response:
        assert request.headers["Authorization"] == "Bearer sk-ep-1"
        return web.json_response(
            {"id": "c", "choices": [{"message": {"role": "assistant", "content": "yes"}}]}
        )

    async def run() -> PlayOutcome:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", reply)
        server = web.AppRunner(app)
        await server.setup()
        for _ in range(2):
            await web.TCPSite(server, "127.0.0.1", 0).start()
        gateway, other = (address[1] for address in server.addresses)
        ticket = EpisodeTicket(
            episode="e", base_url=f"http://127.0.0.1:{gateway}/v1", api_key="sk-ep-1", model="m"
        )
        runner: EpisodeRunner = make_runner(other)
        folder = tempfile.mkdtemp()
        runner.open_runner(folder)
        try:
            return await runner.play_episode(
                task, ticket, f"{folder}/episode", PlayLimits(seconds=seconds)
            )
        except OpenClawError as error:  # as the run takes it
            return PlayOutcome(status="void", reason=str(error))
        finally:
            await runner.close_runner()
            await server.cleanup()

    return asyncio.run(run())


def boxed(*words: str, shown: tuple[str, ...] = ()) -> BoxedCommandRunner:
    program = read_box_program(words, shown)
    return BoxedCommandRunner(program=program, sandbox=SANDBOX, granted={"WORD": "granted"})


def test_a_program_reaches_the_gateway_and_nothing_else(public_folder: Path) -> None:
    script, shown, secret = (public_folder / name for name in ("agent.py", "shown", "secret"))
    script.write_text(SEEN)
    for folder in (shown, secret):
        folder.mkdir()
    found = play(
        lambda other: boxed(
            "python3", str(script), str(other), str(secret), str(shown), shown=(str(shown),)
        ),
        TASK,
    )
    assert (found.status, found.reward) == ("done", 0.5), found.reason
    assert found.parts == {"asked": 1, "task": 1, "granted": 1, "other": 0, "secret": 0, "shown": 1}


@pytest.mark.parametrize(
    ("command", "status", "reward"),
    [
        ("exit 0", "done", 1.0),
        ("exit 1", "done", 0.0),
        ("sleep 60", "done", 0.0),
        ("exit 2", "void", None),
        ("no-such-program", "void", None),
        ("kill -9 $$", "void", None),
        ("echo no number >$REWARD_FILE", "void", None),
        ("ln -s task.json $REWARD_FILE", "void", None),
        ("echo '{\"reward\": 0.5}' >$REWARD_FILE; exit 255", "done", 0.5),
    ],
)
def test_the_end_of_a_program_is_its_outcome(
    command: str, status: str, reward: float | None
) -> None:
    found = play(lambda _: boxed("sh", "-c", command), TASK, seconds=4)
    assert (found.status, found.reward) == (status, reward), found.reason


def test_arguments_of_the_command_may_be_anything(
    public_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (public_folder / "agent.sh").write_text("exit 0")
    (public_folder / "below").mkdir()
    monkeypatch.chdir(public_folder / "below")
    assert play(lambda _: boxed("/bin/sh", "../agent.sh", "#" * 300), TASK).reward == 1


def test_a_folder_that_holds_the_home_is_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "people/ann"))
    (tmp_path / "people/ann/venv").mkdir(parents=True)
    (tmp_path / "people/ann/venv/pyvenv.cfg").write_text(f"home = {tmp_path}/people/ann/bin\n")
    for shown in ("people", "people/ann", "people/ann/venv"):
        with pytest.raises(ConfigError, match="holds the home folder"):
            read_box_program(("mini",), (str(tmp_path / shown),))


def test_a_program_that_is_checked_has_no_network() -> None:
    runner = boxed("sh", "-c", "[ -z $OPENAI_BASE_URL ] && [ ! -e /run/gateway ]")
    found = asyncio.run(
        runner.run_in_folder(TASK, tempfile.mkdtemp() + "/check", PlayLimits(seconds=300), None)
    )
    assert found.reward == 1, found.reason


def agent_of(folder: Path, command: str) -> tuple[HarborRunner, EnvironmentTask]:
    agent = ProgramAgent(read_box_program(("sh", "-c", command), ()), {})
    return HarborRunner(agent=agent, sandbox=SANDBOX), HarborSource(
        top=folder, sandbox=SANDBOX
    ).load_tasks()[0]


@pytest.mark.parametrize(
    ("command", "status", "reward"),
    [
        (
            '[ "$INSTRUCTION" = "Write yes to done.txt." ] && python3 -c "$ASK" >done.txt',
            "done",
            1.0,
        ),
        ("true", "done", 0.0),
        ("exit 1", "done", 0.0),
        ("echo yes >done.txt; sleep 60", "done", 1.0),
        ("exit 2", "void", None),
        ("ls /run/gateway >&2; exit 126", "void", None),
    ],
)
def test_a_program_is_the_agent_of_a_task_folder(
    command: str, status: str, reward: float | None
) -> None:
    command = command.replace('"$ASK"', "'" + PROGRAM.replace("'", '"') + "print(ask())'")
    runner, task = agent_of(write_task(), command)
    found = play(lambda _: runner, task, seconds=8)
    assert (found.status, found.reward) == (status, reward), found.reason


def test_the_verifier_has_no_way_to_the_gateway() -> None:
    test = "#!/bin/sh\n[ -e /run/gateway ] && echo 0 >/logs/verifier/reward.txt || echo 1 >/logs/verifier/reward.txt\n"
    runner, task = agent_of(write_task(test=test), "test -e /run/gateway/gateway.sock || exit 2")
    assert play(lambda _: runner, task).reward == 1


def test_an_environment_of_python_comes_with_its_installation(tmp_path: Path) -> None:
    for name in ("venv", "python/bin"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "venv/pyvenv.cfg").write_text(f"home = {tmp_path}/python/bin\nversion = 3.11.7\n")
    found = read_box_program((f"{tmp_path}/venv/bin/mini", "-y"), (f"{tmp_path}/venv",))
    assert isinstance(found, BoxProgram)
    assert sorted(found.shown) == [f"{tmp_path}/python", f"{tmp_path}/venv"]
    (tmp_path / "venv/pyvenv.cfg").write_text("home = /usr/bin\n")
    assert sorted(read_box_program(("mini",), (f"{tmp_path}/venv",)).shown) == [f"{tmp_path}/venv"]
    assert json.dumps(found.command) == json.dumps([f"{tmp_path}/venv/bin/mini", "-y"])
