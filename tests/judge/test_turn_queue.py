"""The queue of closed turns: each has one record with one state."""

from __future__ import annotations

from typing import cast

from openclaw_rl.judge.turn_queue import JudgeTask, TurnProgress, TurnQueue, attempt_ref, turn_key
from openclaw_rl.types import Feedback, JudgeInput, Reaction


def closed_turn(name: str, *, score: int | None = None) -> JudgeInput:
    feedback = ()
    if score is not None:
        feedback = (Feedback(id="f", scope="key", target=name, score=score, given_at=1.0),)
    reaction = Reaction(
        turn=name,
        revision=1,
        messages=({"role": "user", "content": "Thanks."},),
        feedback=feedback,
        source=None,
        how="exact",
        at=1.0,
    )
    reply = {"role": "assistant", "content": "Paris."}
    return JudgeInput(turn=name, messages=(), reply=reply, reaction=reaction)


A = closed_turn("a")
B = closed_turn("b")


def next_turns(queue: TurnQueue, *, workers: int = 2, is_down: bool = False) -> list[str]:
    chosen = queue.choose_next(workers, 0, is_down=is_down, may_try=True)
    return [turn.item.turn for turn in chosen]


def started(queue: TurnQueue, item: JudgeInput) -> JudgeTask:
    """Start a turn. The queue only keeps its task, so any object will do."""
    task = cast(JudgeTask, object())
    queue.start(turn_key(item), task)
    return task


def test_the_turns_of_the_last_read_are_ready() -> None:
    queue = TurnQueue({})
    queue.replace_read([A, B], 0.0, is_complete=True)
    assert next_turns(queue) == ["a", "b"]
    queue.replace_read([B], 0.0, is_complete=True)
    assert next_turns(queue) == ["b"]


def test_a_failed_turn_waits_for_its_next_attempt() -> None:
    queue = TurnQueue({})
    queue.replace_read([A, B], 0.0, is_complete=True)
    started(queue, A)
    assert next_turns(queue) == ["b"]
    queue.record_failure(turn_key(A)).retry_at = 5.0
    queue.end(turn_key(A), is_judged=False)
    queue.replace_read([A, B], 1.0, is_complete=True)
    assert next_turns(queue) == ["b"]
    assert not queue.is_retry_due(1.0)
    assert queue.is_retry_due(5.0)
    queue.replace_read([A, B], 5.0, is_complete=True)
    assert next_turns(queue) == ["b", "a"], "fewest failures first"


def test_a_postponed_turn_waits_and_has_no_failure() -> None:
    queue = TurnQueue({})
    queue.replace_read([A, B], 0.0, is_complete=True)
    started(queue, A)
    queue.postpone(turn_key(A), 5.0)
    queue.end(turn_key(A), is_judged=False)
    queue.replace_read([A, B], 1.0, is_complete=True)
    assert next_turns(queue) == ["b"]
    assert (queue.failed_count(), queue.tried_count()) == (0, 1)
    assert queue.is_retry_due(5.0)
    queue.replace_read([A, B], 5.0, is_complete=True)
    assert next_turns(queue) == ["a", "b"], "it is as good as another"


def test_failures_are_forgotten_with_a_turn_that_is_no_longer_closed() -> None:
    queue = TurnQueue({})
    queue.replace_read([A], 0.0, is_complete=True)
    started(queue, A)
    queue.record_failure(turn_key(A)).retry_at = 5.0
    queue.end(turn_key(A), is_judged=False)
    queue.replace_read([B], 1.0, is_complete=False)
    assert queue.failed_count() == 1, "it may be behind the end of the read"
    queue.replace_read([B], 1.0, is_complete=True)
    assert queue.failed_count() == 0


def test_a_running_turn_keeps_its_task_over_a_read() -> None:
    queue = TurnQueue({})
    queue.replace_read([A, B], 0.0, is_complete=True)
    task = started(queue, A)
    queue.replace_read([A, B], 0.0, is_complete=True)
    assert queue.tasks() == {turn_key(A): task}
    assert len(queue.in_state(TurnProgress.RUNNING)) == 1
    assert queue.end(turn_key(A), is_judged=True) == A
    assert queue.tasks() == {}


def test_a_turn_on_which_a_worker_died_runs_alone() -> None:
    queue = TurnQueue({attempt_ref(turn_key(B)): 1})
    queue.replace_read([A, B], 0.0, is_complete=True)
    assert next_turns(queue) == ["b"]
    started(queue, B)
    assert next_turns(queue) == []
    queue.end(turn_key(B), is_judged=True)
    assert next_turns(queue) == ["a"]


def test_while_the_judge_is_down_one_turn_and_those_with_a_score_are_started() -> None:
    scored = closed_turn("c", score=1)
    queue = TurnQueue({})
    queue.replace_read([A, B, scored], 0.0, is_complete=True)
    assert next_turns(queue, workers=3, is_down=True) == ["c"]
    queue.replace_read([A, B], 0.0, is_complete=True)
    assert next_turns(queue, workers=3, is_down=True) == ["a"]
