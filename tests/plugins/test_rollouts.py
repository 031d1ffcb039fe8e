"""Rollouts of the owner's: the examples against a real system, and what is said of files and tasks that do not fit."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.system.test_words import run as command

from openclaw_rl.errors import ConfigError, OpenClawError, PluginError
from openclaw_rl.plugins.loader import load_plugin
from openclaw_rl.rollouts.function import RolloutFunction
from openclaw_rl.rollouts.runner import RolloutOutcome, RolloutTask, read_tasks, run_rollouts
from openclaw_rl.settings.load import Config, from_flat
from openclaw_rl.store import turns
from openclaw_rl.store.db import Store
from openclaw_rl.supervisor.subprocess_system import SubprocessSystem, scratch_config
from openclaw_rl.types import TurnState

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SubprocessSystem]:
    with SubprocessSystem(
        scratch_config(
            tmp_path_factory.mktemp("home"),
            {"train.batch.min_turns": 64, "train.batch.max_turns": 64},
        )
    ) as made:
        yield made


def with_rollout(config: Config, **values: Any) -> Config:
    return config.model_copy(update={"rollout": config.rollout.model_copy(update=values)})


def done(
    system: SubprocessSystem,
    tasks: list[RolloutTask],
    out: Path,
    num: int | None = None,
    **values: Any,
) -> list[dict[str, Any]]:
    outcomes = asyncio.run(run_rollouts(with_rollout(system.config, **values), tasks, out, num=num))
    return [told(outcome) for outcome in outcomes]


def told(outcome: RolloutOutcome) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(outcome.file.read_text())
    assert found["session"] == outcome.session
    return found


def judged(system: SubprocessSystem) -> int:
    """Turns that a reaction closed and the judge has seen."""
    store = Store.open(system.config.store_path, create=False)
    try:
        with store.read() as conn:
            return turns.count_by_state(conn).get(TurnState.JUDGED, 0)
    finally:
        store.close()


QUESTION = RolloutTask(text="What is the capital of France?")


def test_a_conversation_with_a_simulated_user_is_captured_and_judged(
    system: SubprocessSystem, examples: Path, tmp_path: Path
) -> None:
    found = done(
        *(system, [QUESTION], tmp_path),
        num=4,
        function_path=str(examples / "rollout_opd.py"),
        max_turns=3,
        workers=4,
    )
    assert len(found) == len({one["session"] for one in found}) == 4
    for one in found:
        result = one["result"]
        assert (
            1 <= one["replies"] == len(result["student_responses"]) == len(result["rewards"]) <= 3
        )
        assert all(result["student_responses"])
        assert len(result["teacher_responses"]) == result["rewards"].count(-1.0)
        assert len(one["sha256"]) == 64
    system.wait_until_settled()
    reactions = sum(one["replies"] - (one["result"]["rewards"][-1] < 0) for one in found)
    assert reactions > 0
    assert judged(system) == reactions, "each reply that something answered, the teacher's never"


def test_an_agent_at_a_shell(system: SubprocessSystem, examples: Path, tmp_path: Path) -> None:
    path = str(examples / "terminal_rollout.py")
    (one,) = done(
        system, [RolloutTask(text="Say hello.")], tmp_path, function_path=path, max_turns=2
    )
    assert one["replies"] == len(one["result"]) in (1, 2)
    assert {"command", "output", "error", "reward"} == one["result"][0].keys()


def test_the_shell_of_the_example_is_bounded(examples: Path, tmp_path: Path) -> None:
    module = load_plugin(
        "rollout.function_path", examples / "terminal_rollout.py", {"MAX_STEPS": 2}
    ).module
    result = module.run_command("touch hello; pwd; echo done", str(tmp_path))
    assert result.stdout.split() == [str(tmp_path), "done"]
    assert module.task_completed(result, "")
    assert module.compute_terminal_reward(result, "") == 1.0
    assert module.get_terminal_state(str(tmp_path), result).endswith("files: hello")
    module.SECONDS = 0.2
    late: subprocess.CompletedProcess[str] = module.run_command("sleep 5", str(tmp_path))
    assert (late.returncode, module.compute_terminal_reward(late, "")) == (124, -1.0)


def test_tools_by_json(system: SubprocessSystem, examples: Path, tmp_path: Path) -> None:
    path = str(examples / "toolcall_rollout.py")
    tasks = tmp_path / "tasks.jsonl"
    tool = {"name": "add", "description": "d", "parameters": {"a": "number"}}
    tasks.write_text(
        "\n".join(
            json.dumps(t) for t in ("Add 1 and 2.", {"task": "Add.", "available_tools": [tool]})
        )
    )
    found = done(system, read_tasks(tasks), tmp_path / "out", function_path=path, max_turns=3)
    assert [one["task"] for one in found] == ["Add 1 and 2.", "Add."]
    assert all(one["result"][0]["reply"] for one in found)
    module = load_plugin("rollout.function_path", path).module
    call = module.parse_call('Sure: {"tool": "add", "arguments": {"a": 1, "b": "2"}}')
    assert module.run_tool(call, module.TOOLS) == "3.0"
    assert module.run_tool({"tool": "add", "arguments": {"c": 1}}, module.TOOLS).startswith(
        "error: "
    )
    assert module.run_tool({"tool": "rm"}, module.TOOLS) == "error: there is no tool rm"
    assert module.parse_call("no { call") is None


def test_generate_in_slimes_shape_and_by_the_command(
    system: SubprocessSystem, examples: Path, tmp_path: Path
) -> None:
    path = str(examples / "custom_generate.py")
    made = command(
        *(
            "rollout",
            "--home",
            str(system.config.home_dir),
            "--port",
            str(system.config.serve.port),
            "--num",
            "2",
        ),
        *("--custom-generate-function-path", path, "--max-turns", "2", "--out", str(tmp_path)),
        *("--prompt", "What is the capital of France?"),
    )
    assert made.returncode == 0, made.stderr
    assert made.stdout.splitlines()[-1] == "2 rollouts, 0 failed"
    for file in tmp_path.iterdir():
        result = json.loads(file.read_text())["result"]
        assert result["status"] == "completed"
        assert result["response"]


def test_files_of_a_rollout_can_stand_beside_its_result(
    system: SubprocessSystem, tmp_path: Path
) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "async def rollout(model, task, out):\n"
        "    (out / f'{model.session}.txt').write_text(await model.generate(task))\n    return str(out)"
    )
    (one,) = done(system, [QUESTION], tmp_path / "out", function_path=str(file))
    assert one["result"] == str(tmp_path / "out")
    assert (tmp_path / "out" / f"{one['session']}.txt").read_text()


def test_a_rollout_that_fails_is_data_and_the_others_go_on(
    system: SubprocessSystem, tmp_path: Path
) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "async def rollout(model, task, bad=False):\n    await model.generate(task)\n"
        "    if bad:\n        raise ValueError('no')\n    await model.generate('again')\n    return task"
    )
    tasks = [QUESTION, RolloutTask(text="x", more={"bad": True})]
    good, bad = done(system, tasks, tmp_path / "out", function_path=str(file))
    assert good["result"] == QUESTION.text
    assert bad["error"].startswith("rollout.function_path: ")
    assert "mine.py:4: rollout raised ValueError: no" in bad["error"]
    (over,) = done(system, [QUESTION], tmp_path / "over", function_path=str(file), max_turns=1)
    assert "more than 1 replies in one rollout (rollout.max_turns)" in over["error"]
    each = done(
        system,
        [QUESTION],
        tmp_path / "each",
        function_path=str(file),
        per_prompt=3,
        parallel_envs=3,
    )
    assert len(each) == 3
    file.write_text("async def rollout(model, task):\n    return '\\ud800'")
    (half,) = done(system, [QUESTION], tmp_path / "half", function_path=str(file))
    assert half["result"] == "\ud800"


def test_an_image_that_the_model_cannot_see_is_refused_by_the_gateway(
    system: SubprocessSystem, tmp_path: Path
) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "async def gui_rollout(vision_model, task):\n    await vision_model.generate(task, image=b'png')"
    )
    (one,) = done(system, [QUESTION], tmp_path / "out", function_path=str(file))
    assert "the gateway refused (400)" in one["error"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "def rollout(model, task): ...",
            "rollout is not an async function, expected `async def rollout",
        ),
        (
            "def other(): ...",
            "defines no collect_opd_trajectory or terminal_rollout or .*It defines: other",
        ),
        ("async def rollout(model, secret): ...", "rollout has unknown parameters: secret"),
        (
            "async def rollout(model): return {1, 2}",
            "rollout returned a set that is not JSON-serializable",
        ),
        (
            "async def rollout(model):\n    a = []\n    for _ in range(10**5): a = [a]\n    return a",
            "list that is not JSON",
        ),
        (
            "import asyncio\nasync def rollout(model):\n    raise asyncio.CancelledError",
            "without a cancellation",
        ),
        (
            "async def rollout(model):\n    await model.feedback(1)",
            r"feedback before the first reply",
        ),
    ],
)
def test_files_that_do_not_fit(tmp_path: Path, text: str, words: str) -> None:
    from openclaw_rl.rollouts.policy_client import PolicyClient

    (tmp_path / "mine.py").write_text(text)
    config = from_flat({"rollout.function_path": str(tmp_path / "mine.py")})
    model = PolicyClient(None, "", name="n", session="s", most=1)  # type: ignore[arg-type]
    with pytest.raises(PluginError, match=words):
        asyncio.run(RolloutFunction(config).run(model, "task", {}))


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.json", "{", "is not valid JSON"),
        ("a.json", "{}", "expected a list of tasks, got dict"),
        ("a.jsonl", '"x"\n{"y": 1}', "task 2: expected a string, or an object with `task`"),
        ("a.txt", "\n", "expected a list of tasks, got none"),
        ("", "", "the tasks cannot be read"),
    ],
)
def test_tasks_that_do_not_fit(tmp_path: Path, name: str, text: str, words: str) -> None:
    if name:
        (tmp_path / name).write_text(text)
    with pytest.raises(OpenClawError, match=words):
        read_tasks(tmp_path / name)


def test_a_missing_gateway_is_reported(tmp_path: Path, examples: Path) -> None:
    config = scratch_config(
        tmp_path / "home", {"rollout.function_path": str(examples / "rollout_opd.py")}
    )
    with pytest.raises(OpenClawError, match="no gateway is ready there"):
        asyncio.run(run_rollouts(config, [QUESTION], tmp_path))


def test_settings_that_do_not_go_together() -> None:
    with pytest.raises(ConfigError, match="which of the two"):
        from_flat({"rollout.function_path": "a", "rollout.generate_path": "b"})
