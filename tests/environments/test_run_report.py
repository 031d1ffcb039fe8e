"""Progress on a terminal and elsewhere, and the summary."""

from __future__ import annotations

import io

import pytest

from openclaw_rl.common.terminal import TerminalConsole
from openclaw_rl.environments.run_loop import EpisodeResult, void_reason
from openclaw_rl.environments.run_plan import PlannedEpisode, RunPlan
from openclaw_rl.environments.run_report import RunProgress, print_summary
from openclaw_rl.environments.types import EnvironmentTask

TASKS = [EnvironmentTask(id=f"t{n}", digest=str(n) * 64, split="train") for n in range(2)]


def results() -> list[EpisodeResult]:
    plan = RunPlan(name="r", tasks=TASKS, group_size=2)
    planned = sorted(plan.list_episodes(), key=lambda episode: episode.id)
    rewards = (1.0, 0.0, 0.5, None)
    return [
        EpisodeResult(
            episode=episode,
            status="void" if reward is None else "done",
            reward=reward,
            reason="[red]no display",
        )
        for episode, reward in zip(planned, rewards, strict=True)
    ]


@pytest.mark.parametrize("is_terminal", [True, False])
def test_progress_is_a_bar_on_a_terminal_and_else_a_line_per_group(
    is_terminal: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = io.StringIO()
    with RunProgress(
        4, 2, TerminalConsole(file=shown, width=100, force_terminal=is_terminal)
    ) as progress:
        for result in results():
            progress.add_result(result)
    if is_terminal:
        assert "3 done, 1 void, mean reward 0.500" in shown.getvalue()
        assert "4/4" in shown.getvalue()
        return
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "t0: 2 done, 0 void, mean reward 0.500",
        "t1: 1 done, 1 void, mean reward 0.500",
    ]
    out = io.StringIO()
    print_summary(TerminalConsole(file=out, width=100), progress.summary)
    assert "3 done, 1 void, mean reward 0.500" in out.getvalue()
    assert "void 1: [red]no display" in out.getvalue()
    assert progress.summary.to_json()["tasks"]["t0"] == {"done": 2, "mean_reward": 0.5}


def test_a_plan_has_the_same_ids_each_time_and_another_order_in_each_epoch() -> None:
    many = [EnvironmentTask(id=f"t{n}", digest=f"{n:064d}"[::-1], split="train") for n in range(20)]
    plan = RunPlan(name="r", tasks=many, group_size=2, epochs=2)
    first: list[PlannedEpisode] = list(plan.list_episodes())
    assert first == list(plan.list_episodes())
    assert len({episode.id for episode in first}) == plan.count_episodes() == 80
    assert [e.task.id for e in first[:40]] != [e.task.id for e in first[40:]]


def test_a_reward_without_a_reply_of_the_policy_is_void() -> None:
    assert void_reason(["done", "failed", "done"], restarted=False) is None
    assert void_reason(["done", "cancelled"], restarted=False) is None
    assert "last reply failed" in (void_reason(["done", "failed"], restarted=False) or "")
    assert "no reply" in (void_reason([], restarted=False) or "")
    assert "restarted" in (void_reason(["done"], restarted=True) or "")
