"""The trainer takes no step on verdicts of a judge that people contradict."""

from __future__ import annotations

import time
from dataclasses import replace

from tests.train.test_undo import Home, home  # noqa: F401  the second is a fixture
from tests.train.test_worker import Fill, MakeLoop, clock, make_loop, uses_of  # noqa: F401  two are fixtures

from openclaw_rl.store import reactions, turns
from openclaw_rl.store.db import Store
from openclaw_rl.store.feedback import records
from openclaw_rl.store.lineage import policies
from openclaw_rl.store.trust.update import update_trust
from openclaw_rl.testing import ScriptedTrainer
from openclaw_rl.types import Feedback


def score_outright(store: Store, turn: str, score: int) -> None:
    """A person scores a judged turn, and the judge worker stores the explicit verdict."""
    with store.write(durable=False) as conn:
        records.add_feedback(
            conn, [Feedback(id=turn, scope="key", target=turn, score=score, given_at=1.0)]
        )
        assert reactions.record_pending_feedback(conn, turn, 1.0)
        judged = turns.current_verdict(conn, turn)
        assert judged is not None
        assert turns.add_verdict(
            conn, replace(judged, judge="explicit", revision=2, score=score, explicit=True)
        )


def test_explicit_scores_train_and_other_verdicts_of_the_judge_do_not(
    store: Store,
    make_loop: MakeLoop,  # noqa: F811
    fill: Fill,
) -> None:
    scored, unscored = fill(store, 20), fill(store, 5)
    for n, turn in enumerate(scored):
        score_outright(store, turn, 1 if n % 2 else -1)
    with store.write() as conn:
        assert update_trust(conn, 0.0, time.time()).common == {"test"}
    loop = make_loop(ScriptedTrainer())
    while loop.run_once():
        pass
    with store.read() as conn:
        versions = policies.list_all(conn)
    used = {use.turn for version in versions for use in uses_of(store, version.version)}
    assert used <= set(scored)
    assert len(used) >= 16
    assert (
        loop.note
        == "waiting for turns: 2 of 4; verdicts of test are not trained on (judge.min_kappa)"
    )
    with store.write() as conn:
        assert update_trust(conn, -1.0, time.time()).common == set()
    assert loop.run_once(), "the verdicts are kept, and are trained on once the judge is trusted"
    assert {use.turn for use in uses_of(store, len(versions))} & set(unscored)


def correct_outright(store: Store, turn: str, correction: str) -> None:
    """A person corrects a judged turn, and the judge worker stores the judge's verdict with the correction as hint."""
    with store.write(durable=False) as conn:
        given = Feedback(
            id=f"{turn}-c", scope="key", target=turn, correction=correction, given_at=1.0
        )
        records.add_feedback(conn, [given])
        assert reactions.record_pending_feedback(conn, turn, 1.0)
        judged = turns.current_verdict(conn, turn)
        assert judged is not None
        assert turns.add_verdict(conn, replace(judged, revision=2, hints=(correction,)))


def test_an_undo_trains_the_rest_again_without_the_hints_of_the_judge(
    home: Home,  # noqa: F811
    fill: Fill,
) -> None:
    """Its verdicts have been trained on before people contradicted it. A person's correction is trained on again."""
    home.learn(3, hints=("Keep answers short.",))
    corrected = home.learned[3][1]
    correct_outright(home.store, corrected, "Say that it is in Paris.")
    for n, turn in enumerate(fill(home.store, 20)):
        score_outright(home.store, turn, 1 if n % 2 else -1)
    with home.store.write() as conn:
        assert update_trust(conn, 0.0, time.time()).common == {"test"}
    seen: list[tuple[str, int]] = []
    home.trainer.during = lambda samples: seen.extend(
        (s.turn, len(s.hinted_prompts)) for s in samples
    )
    assert home.undo("--yes", "--turn", home.learned[1][0]).exit_code == 0
    while home.left():
        home.loop.run_once()
    assert seen == [(corrected, 1)]
    assert home.batches() == [[corrected]]
