"""How people take what it says, over turns that went through a real store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.train.conftest import put

from openclaw_rl.reasons import Reason, ReasonCode
from openclaw_rl.store import reactions, turns
from openclaw_rl.store.db import Store
from openclaw_rl.store.feedback import records
from openclaw_rl.store.lineage.version_stats import satisfaction_metrics
from openclaw_rl.types import Feedback, FinishReason, JudgedTurn, Origin, Verdict

Judged = Callable[..., JudgedTurn]


def of(store: Store, *versions: int) -> dict[str, float]:
    with store.read() as conn:
        return satisfaction_metrics(conn, versions)


def test_batch_counts_are_metrics(store: Store, judged: Judged) -> None:
    def turn(version: int = 1, **more: Any) -> JudgedTurn:
        request = {"version": version} | more.pop("request", {})
        return judged(request=request, **more)

    assert of(store, 1) == {"eval/turns": 0.0, "eval/waiting": 0.0}
    put(store, [turn(score=1), turn(score=1), turn(score=-1), turn(score=0), turn(score=None)])
    assert of(store, 1) == {
        "eval/turns": 5.0,
        "eval/waiting": 0.0,
        "eval/satisfaction": pytest.approx(2 / 3),
        "eval/truncated": 0.0,
        "eval/untrainable": 0.0,
    }
    put(store, [turn(2, score=-1), turn(2, score=1, request={"origin": Origin.TEXT})])
    (cut,) = put(store, [turn(2, score=1, reply={"finish_reason": FinishReason.LENGTH})])
    with store.write() as conn:
        turns.mark_untrainable(conn, {cut: Reason(ReasonCode.TRUNCATED, "cut")})
    second = of(store, 2)
    assert second["eval/turns"] == 2, "what was imported was not said here"
    assert (second["eval/satisfaction"], second["eval/truncated"], second["eval/untrainable"]) == (
        0.5,
        0.5,
        0.5,
    )
    assert of(store, 1, 2)["eval/satisfaction"] == pytest.approx(3 / 5)


def test_explicit_feedback_precedes_the_judge_and_is_compared(store: Store, judged: Judged) -> None:
    first, second = put(store, [judged(score=1), judged(score=1)])
    for turn, score in ((first, -1), (second, 1)):
        with store.write() as conn:
            records.add_feedback(
                conn,
                [Feedback(id=f"f-{turn}", scope="key", target=turn, score=score, given_at=4.0)],
            )
            assert reactions.record_pending_feedback(conn, turn, 4.0)
    waiting = of(store, 0)
    assert waiting["eval/waiting"] == 2
    with store.write() as conn:
        for turn, score in ((first, -1), (second, 1)):
            said = Verdict(turn=turn, revision=2, judge="user", score=score, explicit=True, at=5.0)
            assert turns.add_verdict(conn, said)
    now = of(store, 0)
    assert (now["eval/satisfaction"], now["eval/agreement"], now["eval/waiting"]) == (0.5, 0.5, 0)
