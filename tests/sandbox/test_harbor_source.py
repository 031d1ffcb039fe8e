"""Task folders of Harbor in real boxes: checks, tampering, and how an episode ends."""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path
from typing import Any

from aiohttp import web

from openclaw_rl.environments.sources.harbor.bash_agent import AGENTS
from openclaw_rl.environments.sources.harbor.source import HarborRunner, HarborSource
from openclaw_rl.environments.sources.harbor.task_box import TaskBox, UnfitTask
from openclaw_rl.environments.sources.harbor.task_folder import load_folder
from openclaw_rl.environments.sources.harbor.trials import BoxCalls
from openclaw_rl.environments.types import EpisodeTicket, PlayLimits, PlayOutcome, TaskFitness
from openclaw_rl.errors import BoxLost, OpenClawError
from openclaw_rl.settings.schema_sandbox import SandboxConfig

SANDBOX = SandboxConfig(memory=256, processes=60, disk=16)
LIMITS = PlayLimits(seconds=300)
SETTINGS = (
    'version = "1.0"\n[environment]\nallow_internet = false\n[verifier]\ntimeout_sec = 20.0\n'
)
TEST = (
    '#!/bin/sh\n[ "$(cat done.txt)" = yes ] && echo 1 >/logs/verifier/reward.txt || echo 0 '
    ">/logs/verifier/reward.txt\n"
)
SOLUTION = "#!/bin/sh\necho yes >done.txt\n"
Answer = dict[str, Any] | int
"""A reply of the policy, or the status with which the gateway refuses it."""


def write_task(
    settings: str = SETTINGS, test: str = TEST, solution: str = SOLUTION, dockerfile: str = ""
) -> Path:
    folder = Path(tempfile.mkdtemp(), "task")
    texts = {
        "task.toml": settings,
        "instruction.md": "Write yes to done.txt.",
        "tests/test.sh": test,
    }
    texts |= {"solution/solve.sh": solution} if solution else {}
    for name, text in (
        texts | {"environment/Dockerfile": dockerfile or "FROM debian:12\nWORKDIR /app\n"}
    ).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def check(folder: Path) -> TaskFitness:
    source = HarborSource(top=folder, sandbox=SANDBOX)
    return asyncio.run(
        source.check_task(source.load_tasks()[0], tempfile.mkdtemp() + "/check", LIMITS)
    )


def play(
    folder: Path, answers: list[Answer], agent: str = "tools", seconds: float = 300
) -> PlayOutcome:
    """Play a task with a policy whose replies are given; the last one is repeated."""
    task = HarborSource(top=folder, sandbox=SANDBOX).load_tasks()[0]
    asked = 0

    async def reply(request: web.Request) -> web.Response:
        nonlocal asked
        assert request.headers["Authorization"] == "Bearer sk-ep-1"
        assert ("tools" in await request.json()) == (agent == "tools")
        answer = answers[min(asked, len(answers) - 1)]
        asked += 1
        if isinstance(answer, int):
            code = "context_length_exceeded" if answer == 400 else "other"
            return web.json_response(
                {"error": {"message": f"refused {answer}", "code": code}}, status=answer
            )
        return web.json_response(
            {
                "id": "chatcmpl-1",
                "choices": [{"message": {"role": "assistant", "content": None} | answer}],
            }
        )

    async def run() -> PlayOutcome:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", reply)
        server = web.AppRunner(app)
        await server.setup()
        site = web.TCPSite(server, "127.0.0.1", 0)
        await site.start()
        port = server.addresses[0][1]
        ticket = EpisodeTicket(
            episode="e", base_url=f"http://127.0.0.1:{port}/v1", api_key="sk-ep-1", model="m"
        )
        runner = HarborRunner(agent=AGENTS[agent], sandbox=SANDBOX)
        runner.open_runner(tempfile.mkdtemp())
        try:
            return await runner.play_episode(
                task, ticket, tempfile.mkdtemp() + "/episode", PlayLimits(seconds=seconds)
            )
        except OpenClawError as error:  # as the run takes it
            return PlayOutcome(status="void", reason=str(error))
        finally:
            await runner.close_runner()
            await server.cleanup()

    return asyncio.run(run())


def call(arguments: str, name: str = "bash") -> dict[str, Any]:
    return {
        "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": name, "arguments": arguments}}
        ]
    }


def bash(command: str) -> dict[str, Any]:
    return call(json.dumps({"command": command}))


END: Answer = {"content": "Done."}


def test_a_task_that_its_solution_solves_is_fit(public_folder: Path) -> None:
    found = check(write_task())
    assert (found.fit, found.oracle, found.nop) == (True, 1.0, 0.0), found.reason


def test_a_verifier_that_lacks_a_tool_makes_the_task_unfit(public_folder: Path) -> None:
    test = "#!/bin/sh\nuvx pytest /tests && echo 1 >/logs/verifier/reward.txt || echo 0 >/logs/verifier/reward.txt\n"
    found = check(write_task(test=test, settings='version = "1.0"\n'))
    assert not found.fit
    assert "got 0, not 1" in found.reason
    assert "uvx: not found" in found.reason
    assert "a box has none" in found.reason
    found = check(
        write_task(test="#!/bin/sh\nset -e\nuvx pytest\necho 1 >/logs/verifier/reward.txt\n")
    )
    assert "wrote no reward" in found.reason
    assert "uvx: not found" in found.reason


def test_other_reasons_for_which_a_task_is_unfit(public_folder: Path) -> None:
    for task, words in (
        (write_task(solution=""), "no solution/solve.sh"),
        (write_task(solution="#!/bin/sh\nexit 3\n"), "its solution failed: exit status 3"),
        (write_task(test="#!/bin/sh\necho 1 >/logs/verifier/reward.txt\n"), "doing nothing got 1"),
        (write_task(dockerfile="FROM a\nRUN apt-get install -y cowsay"), "line 2 failed in a box"),
        (
            write_task(settings='[environment]\ndocker_image = "acme/x"\n[[steps]]\nname="a"'),
            "it has no steps/a/instruction.md",
        ),
        (write_task(settings=SETTINGS + 'env = { KEY = "${KEY}" }'), "--env KEY"),
    ):
        found = check(task)
        assert (found.fit, words in found.reason) == (False, True), found.reason


def test_an_episode_of_each_agent_is_rewarded(public_folder: Path) -> None:
    assert play(write_task(), [bash("echo yes >done.txt"), END]).reward == 1.0
    text: list[Answer] = [
        {"content": "I write it:\n```bash\necho yes >done.txt\n```"},
        {"content": "exit"},
    ]
    assert play(write_task(), text, "text").reward == 1.0
    assert (
        play(write_task(), [{"content": "echo yes >done.txt"}, {"content": ""}], "plain").reward
        == 1.0
    )
    assert play(write_task(), [END]).reward == 0.0


def test_faults_of_the_policy_are_done_with_their_reward(public_folder: Path) -> None:
    bad = [
        call("{", "bash"),
        call("{}", "bash"),
        call('{"command": 1}'),
        call("{}", "python"),
        bash("a\0b"),
    ]
    assert play(write_task(), [*bad, bash("echo yes >done.txt"), END]).reward == 1.0
    overflow = play(write_task(), [bash("echo yes >done.txt"), 400])
    assert (overflow.reward, overflow.reason) == (1.0, "400: refused 400; exit status 0")
    assert play(write_task(), [bash("true"), 410]).reward == 0.0
    slow = play(
        write_task(SETTINGS + "[agent]\ntimeout_sec = 1.0\n"),
        [bash("echo yes >done.txt; sleep 30")],
    )
    assert (slow.reward, "stopped after 1 s" in (slow.reason or "")) == (1.0, True)


def test_faults_of_the_environment_are_void(public_folder: Path) -> None:
    assert play(write_task(), [bash("echo yes >done.txt"), 500]).status == "void"
    assert play(write_task(), [401]).status == "void"
    assert play(write_task(test="#!/bin/sh\nexit 0\n"), [END]).status == "void"
    assert play(write_task(dockerfile="FROM a\nRUN false"), [END]).status == "void"
    endless = "#!/bin/sh\n[ -e done.txt ] && sleep 60\necho 0 >/logs/verifier/reward.txt\n"
    looping = play(
        write_task(SETTINGS.replace("20.0", "1.0"), endless), [bash("echo yes >done.txt"), END]
    )
    assert (looping.status, looping.reward) == ("done", 0.0)


def test_files_that_a_policy_planted_do_not_reach_the_verifier(
    public_folder: Path,
) -> None:
    tampering = (
        "mkdir -p /logs/verifier /tests; echo 1 >/logs/verifier/reward.txt; echo 'echo 1 >/logs/verifier/reward.txt' "
        ">/tests/test.sh; chmod a+x /tests/test.sh; ln -sfn /app/fake /app/x; "
        "(setsid sh -c 'while :; do echo 1 >/logs/verifier/reward.txt; sleep 0.1; done' >/dev/null 2>&1 &)"
    )
    assert play(write_task(), [bash(tampering), END]).reward == 0.0
    # The task puts its own folder before the system's programs; the verifier does not.
    shadowed = "FROM a\nENV PATH=/app/bin:$PATH\nWORKDIR /app\n"
    fake = "mkdir -p bin; printf '#!/bin/sh\\necho yes\\n' >bin/cat; chmod +x bin/cat; cat done.txt"
    assert play(write_task(dockerfile=shadowed), [bash(fake), END]).reward == 0.0


def test_files_of_the_task_that_change_how_tests_run_are_its_own_again(public_folder: Path) -> None:
    task = write_task(
        dockerfile="FROM a\nWORKDIR /app\nCOPY files/ /app/\n",
        test="#!/bin/sh\ncp conftest.py /logs/verifier/; [ \"$(cat conftest.py)\" = ours ] && [ -e done.txt ] "
        "&& echo 1 >/logs/verifier/reward.txt || echo 0 >/logs/verifier/reward.txt\n",
    )  # fmt: skip
    (task / "environment" / "files").mkdir()
    (task / "environment" / "files" / "conftest.py").write_text("ours\n")
    assert check(task).fit
    assert play(task, [bash("touch done.txt; echo theirs >conftest.py"), END]).reward == 1.0


def call_box(folder: Path, *calls: dict[str, Any]) -> list[Any]:
    """Answer the calls of another runner in the box of a task; return the answers, or the errors."""

    async def run() -> list[Any]:
        box = BoxCalls(box=TaskBox(folder=load_folder(folder), sandbox=SANDBOX))
        found: list[Any] = []
        for call in calls:
            body = {"cwd": None, "env": {}, "seconds": 20} | call if call["box"] == "run" else call
            try:
                found.append(await box.answer_call(body))
            except OpenClawError as error:
                found.append(error)
        await box.box.close_box()
        return [*found, box.failed]

    return asyncio.run(run())


def test_another_runner_verifies_in_a_fresh_box() -> None:
    leave = "echo yes >done.txt; echo x >conftest.py; echo 1 >/logs/reward.txt; echo x >/tests/planted; sleep 60 &"
    look = "cat done.txt; ls /tests /logs conftest.py; echo $PYTHONSAFEPATH"
    tests = tempfile.mkdtemp()
    (Path(tests) / "test.sh").write_text(TEST)
    *_, moved, _, seen, failed = call_box(
        write_task(),
        {"box": "open"},
        {"box": "run", "command": leave},
        {"box": "move"},
        {"box": "put", "source": tests, "target": "/tests"},
        {"box": "run", "command": look, "env": {"PYTHONSAFEPATH": ""}},
    )
    assert moved == {}
    assert seen["stdout"].split() == ["yes", "/logs:", "/tests:", "test.sh", "1"]
    assert "conftest.py" in seen["stderr"]
    assert failed is None


def test_a_command_that_was_given_up_ends_with_its_box() -> None:
    async def run() -> tuple[object, object]:
        box = BoxCalls(box=TaskBox(folder=load_folder(write_task()), sandbox=SANDBOX))
        await box.answer_call({"box": "open"})
        sleep = {"box": "run", "command": "sleep 60", "cwd": None, "env": {}, "seconds": 60}
        running = asyncio.create_task(box.answer_call(sleep))
        await asyncio.sleep(0.3)
        await box.answer_call({"box": "close"})
        (ended,) = await asyncio.gather(running, return_exceptions=True)
        return ended, box.failed

    ended, failed = asyncio.run(run())
    assert isinstance(ended, BoxLost)
    assert failed is None


def test_a_box_that_fails_is_known_and_a_missing_file_is_no_failure() -> None:
    missing, failed = call_box(
        write_task(), {"box": "open"}, {"box": "get", "source": "/app/no", "target": "/x"}
    )[1:]
    assert isinstance(missing, OpenClawError)
    assert failed is None
    assert isinstance(call_box(write_task(), {"box": "run", "command": "true"})[-1], BoxLost)
    unfit = write_task(dockerfile="FROM debian:12\nRUN false\n")
    assert isinstance(call_box(unfit, {"box": "open"})[-1], UnfitTask)
