"""Practice: what is asked again and trained on, when a lesson is learned, and what makes it wait."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from sqlalchemy import select, update
from tests.practice.conftest import (
    LONG,
    SHORT,
    DivergingTrainer,
    MakeLoop,
    ScriptedReplies,
    add_lesson,
    settle,
)
from tests.train.conftest import put

from openclaw_rl.cli.main import cli
from openclaw_rl.common.images.image_prompt import digest_part
from openclaw_rl.common.message_hash import EphemeralMatcher
from openclaw_rl.common.rules.lesson_topics import load_topics
from openclaw_rl.errors import OpenClawError
from openclaw_rl.gates.reply_source import NoGateway, RepliesDelayed
from openclaw_rl.methods.registry import make_method
from openclaw_rl.methods.types import LessonGap, Sample, StepResult
from openclaw_rl.practice import plan, prompts
from openclaw_rl.practice.make_practice import make_practice
from openclaw_rl.practice.prompts import MAX_REPLY_TOKENS, PromptSelector
from openclaw_rl.practice.rehearsal import rehearsal_questions
from openclaw_rl.render.hint import lessons_hint, with_hint
from openclaw_rl.render.renderer import Renderer
from openclaw_rl.settings.load import from_flat
from openclaw_rl.status import report
from openclaw_rl.store import events, exchanges, schema, sessions, turns
from openclaw_rl.store.db import Store
from openclaw_rl.store.lessons import lessons, practice_turns, removal
from openclaw_rl.store.lessons.lessons import Lesson, LessonState
from openclaw_rl.store.lessons.questions import question_hash
from openclaw_rl.store.lessons.scopes import LessonScope, user_scope
from openclaw_rl.store.lineage import head_moves, policies, training_queue, version_stats
from openclaw_rl.testing import ScriptedTrainer
from openclaw_rl.train.sample_builder import SampleBuilder
from openclaw_rl.types import Kind, Origin, PolicyState, Sampling

Fill = Callable[..., list[str]]
WISHED_LONG = "Give long, detailed answers."  # of the rules


def uses_of(store: Store, version: int) -> list[str]:
    with store.read() as conn:
        return [use.turn for use in policies.uses_of_version(conn, version)]


def state_of(store: Store, lesson: str) -> LessonState:
    with store.read() as conn:
        stored = lessons.get(conn, lesson)
    assert stored is not None
    return stored.state


def test_a_step_has_replies_of_the_head_and_the_teacher(
    store: Store, make_loop: MakeLoop, fill: Fill, replies: ScriptedReplies, renderer: Renderer
) -> None:
    """Half of the replies are the head's to the plain prompt, half the base's to the prompt with the lesson."""
    (turn,) = fill(store, 1, question="Where is the Louvre?")
    add_lesson(store, SHORT, [turn])
    trainer = ScriptedTrainer()
    settle(make_loop(trainer, step_limit=1))
    messages = [{"role": "user", "content": "Where is the Louvre?"}]
    plain_ids = renderer.render(messages).prompt_ids
    hinted_ids = renderer.render(
        with_hint(messages, "Keep answers short.", lambda message: False, renderer.hint_format)
    ).prompt_ids
    from_teacher = [(0, hinted_ids.tolist())] * 2
    from_head = [(0, plain_ids.tolist())] * 2
    assert [
        (order.version, order.prompt_ids) for order in replies.orders
    ] == from_teacher + from_head
    (batch,) = trainer.batches
    assert [s.from_teacher for s in batch] == [True, True, False, False]
    for sample in batch:
        assert sample.reward is None
        assert np.array_equal(sample.prompt_ids, plain_ids)
        assert [hinted.tolist() for hinted in sample.hinted_prompts] == [hinted_ids.tolist()]


def test_guidance_applies_to_the_teacher_but_not_to_contrasts(
    store: Store, make_loop: MakeLoop, fill: Fill, builder: SampleBuilder
) -> None:
    """Whose prompt the policy reads, too: there is nothing that the prompt alone would not do."""
    (turn,) = fill(store, 1)
    add_lesson(store, SHORT, [turn])
    trainer = ScriptedTrainer()
    loop = make_loop(trainer, step_limit=1, contrast_share=0.25)
    loop._batches._builder = replace(builder, guidance=2.5)
    settle(loop)
    (batch,) = trainer.batches
    assert [sample.guidance for sample in batch] == [None, 2.5, 2.5, 2.5]


@pytest.mark.parametrize(
    ("requested", "practised"), [(1.0, 1.0), (0.7, 0.7), (0.1, 0.3), (1.4, 1.0), (0.0, 1.0)]
)
def test_replies_are_sampled_at_the_temperature_of_the_request(
    store: Store,
    make_loop: MakeLoop,
    fill: Fill,
    replies: ScriptedReplies,
    requested: float,
    practised: float,
) -> None:
    """From 0.3 to 1, and at 1 after a greedy reply."""
    (turn,) = fill(store, 1, request={"sampling": Sampling(temperature=requested)})
    add_lesson(store, SHORT, [turn])
    settle(make_loop(step_limit=1))
    assert {order.temperature for order in replies.orders} == {practised}


@pytest.mark.parametrize(
    ("settings", "from_teacher", "from_head"),
    [({"replies": 8}, 4, 4), ({"teacher_share": 0.25}, 1, 3)],
)
def test_settings_decide_the_number_and_source_of_replies(
    store: Store,
    make_loop: MakeLoop,
    fill: Fill,
    settings: dict[str, float],
    from_teacher: int,
    from_head: int,
) -> None:
    (turn,) = fill(store, 1)
    add_lesson(store, SHORT, [turn])
    trainer = ScriptedTrainer()
    settle(make_loop(trainer, step_limit=1, **settings))
    assert [s.from_teacher for s in trainer.batches[0]] == [True] * from_teacher + [
        False
    ] * from_head


@pytest.mark.parametrize(("share", "count"), [(0.5, 2), (1.0, 2), (0.25, 1), (0.0, 0)])
def test_a_share_of_the_teachers_replies_is_contrast(
    store: Store,
    make_loop: MakeLoop,
    fill: Fill,
    renderer: Renderer,
    tmp_path: Path,
    share: float,
    count: int,
) -> None:
    """The policy learns to follow such a wish in its prompt as the base does, although the lesson is in the weights."""
    (turn,) = fill(store, 1, question="Where is the Louvre?")
    add_lesson(store, SHORT, [turn])
    trainer = DivergingTrainer()
    settle(make_loop(trainer, step_limit=1, contrast_share=share))
    opposed = with_hint(
        [{"role": "user", "content": "Where is the Louvre?"}],
        WISHED_LONG,
        lambda message: False,
        renderer.hint_format,
    )
    prompt = renderer.render(opposed).prompt_ids.tolist()
    (batch,) = trainer.batches
    assert [sample.prompt_ids.tolist() == prompt for sample in batch] == [True] * count + [
        False
    ] * (4 - count)
    assert [s.from_teacher for s in batch] == [True, True, False, False]
    for sample in batch[:count]:
        assert [hinted.tolist() for hinted in sample.hinted_prompts] == [prompt], (
            "the teacher reads the same prompt"
        )
    with store.read() as conn:
        assert exchanges.get_many(conn, [batch[0].turn])[batch[0].turn].request.lessons == (
            {"contrast": WISHED_LONG} if count else {SHORT.id: SHORT.text}
        )
    shown = (
        CliRunner().invoke(cli, ["inspect", "turn", batch[0].turn, "--home", str(tmp_path)]).output
    )
    assert (
        f"practice: by the base, {'under a wish that contradicts' if count else 'with the lessons in its'}"
        in shown
    )


def test_a_share_of_the_prompts_is_rehearsal(
    store: Store, make_loop: MakeLoop, fill: Fill, replies: ScriptedReplies, renderer: Renderer
) -> None:
    """Half of the questions are those that nobody asked, with the same lesson."""
    (turn,) = fill(store, 1, question="Where is the Louvre?")
    add_lesson(store, SHORT, [turn])
    trainer = DivergingTrainer()
    settle(make_loop(trainer, step_limit=2, rehearsal_share=0.5))
    prompt_texts = [
        str(renderer.tokenizer.backend.decode(order.prompt_ids)) for order in replies.orders
    ]
    rehearsed = [
        text for text in prompt_texts if any(question in text for question in rehearsal_questions())
    ]
    assert len(rehearsed) == len(prompt_texts) / 2
    assert all("Where is the Louvre?" in text for text in prompt_texts if text not in rehearsed)
    assert sum("Keep answers short." in text for text in prompt_texts) == len(prompt_texts) / 2
    assert len(trainer.batches) == 2
    with store.read() as conn:
        ids = [sample.turn for sample in trainer.batches[0]]
        requests = [exchange.request for exchange in exchanges.get_many(conn, ids).values()]
    questions = [request.messages[-1]["content"] for request in requests]
    assert sum(question in rehearsal_questions() for question in questions) == 2, (
        "stored as they were asked"
    )


class ContrastDivergingTrainer(ScriptedTrainer):
    """Its divergence is 0.1, and 9 on replies whose teacher reads the same prompt."""

    def step(self, samples: Sequence[Sample], out: str) -> StepResult:
        shares = {
            s.turn: 9.0 if np.array_equal(s.prompt_ids, s.hinted_prompts[0]) else 0.1
            for s in samples
        }
        gaps = {turn: LessonGap(missing=share, effect=1.0) for turn, share in shares.items()}
        return replace(super().step(samples, out), lesson_gaps=gaps)


def test_contrasts_do_not_count_for_the_divergence(
    store: Store, make_loop: MakeLoop, fill: Fill
) -> None:
    """Their divergence is not that of the lesson; an undo of the lesson takes them, too."""
    (turn,) = fill(store, 1)
    add_lesson(store, SHORT, [turn])
    trainer = ContrastDivergingTrainer()
    settle(make_loop(trainer, step_limit=1, contrast_share=0.5))
    with store.read() as conn:
        assert lessons.divergences_of(conn, SHORT.id) == [(0, 0.1)]
        assert len(practice_turns.turns_practised_from(conn, [turn])) == 4


@pytest.mark.parametrize(
    ("settings", "practises"),
    [
        ({}, True),
        ({"practice.enabled": False}, False),
        ({"train.method": "binary"}, False),
        ({"policy.per": "user"}, True),
    ]
    + [({"train.method": method}, True) for method in ("opd", "sdpo", "sdft")],
)
def test_make_practice_returns_none_if_off_or_without_hints(
    store: Store,
    builder: SampleBuilder,
    tmp_path: Path,
    settings: dict[str, object],
    practises: bool,
) -> None:
    config = from_flat({"home": str(tmp_path), "practice.enabled": True, **settings})
    transient = EphemeralMatcher([])
    practice = make_practice(config, store, builder.renderer, transient, make_method(config.train))
    assert (practice is not None) == practises


def test_practice_turns_belong_to_no_conversation(
    store: Store, make_loop: MakeLoop, fill: Fill
) -> None:
    (turn,) = fill(store, 1)
    add_lesson(store, SHORT, [turn])
    settle(make_loop(step_limit=1))
    ids = uses_of(store, 1)
    with store.read() as conn:
        practised = exchanges.get_many(conn, ids)
        assert {e.request.kind for e in practised.values()} == {Kind.PRACTICE}
        assert [practised[id_].request.origin for id_ in ids] == [Origin.TEACHER] * 2 + [None] * 2
        assert all(not e.request.marks and e.request.scope != "key" for e in practised.values())
        assert all(
            turns.current_verdict(conn, id_).hints == ("Keep answers short.",) for id_ in ids
        )  # type: ignore[union-attr]
        assert version_stats.satisfaction_by_version(conn, [0, 1]) == {0: (1, 1)}
        assert (
            training_queue.count_trainable(conn, max_uses=2, need_score=True, need_hint=True) == 1
        )
        assert practice_turns.pending_turns(conn) == []
        assert [session.name for session in sessions.iter_sessions(conn)] == [turn]
        assert version_stats.turns_by_version(conn, [0, 1]) == {0: (0, 1), 1: (4, 0)}
        status = report.collect_status(conn, 9e9)
    assert status["turns"] == {"judged": 1}
    assert status["verdicts"] == {"1": 1}
    assert status["practice"] == {"turns": 4, "seconds_of_last_hour": 0.0, "lessons": {"active": 1}}


def test_practice_ends_when_the_lesson_is_learned(
    store: Store, make_loop: MakeLoop, fill: Fill
) -> None:
    """The mean of the last two divergences decides: 0.4, 0.2, 0.1, 0.05, so that after the fourth it is 0.075."""
    (turn,) = fill(store, 1)
    add_lesson(store, SHORT, [turn])
    settle(make_loop(max_divergence=0.08))
    with store.read() as conn:
        lesson = lessons.get(conn, "aa")
        assert lesson is not None
        assert (lesson.state, lesson.learned_version) == (LessonState.LEARNED, 3)
        assert [value for _, value in lessons.divergences_of(conn, "aa")] == [0.4, 0.2, 0.1, 0.05]
        assert [p.state for p in policies.list_all(conn)] == [PolicyState.LIVE] * 5


def test_practice_resumes_after_a_rollback(store: Store, make_loop: MakeLoop, fill: Fill) -> None:
    (turn,) = fill(store, 1)
    add_lesson(store, replace(SHORT, reinforced_at=9e9), [turn])
    loop = make_loop(max_divergence=0.5)
    settle(loop)
    assert (state_of(store, "aa"), uses_of(store, 3)) == (LessonState.LEARNED, [])
    with store.write() as conn:
        head_moves.roll_back(conn, to=0, reason="worse", at=1.0)
        assert lessons.list_lessons(conn, states=[LessonState.ACTIVE])
    settle(loop)
    assert state_of(store, "aa") is LessonState.LEARNED
    assert len(uses_of(store, 3)) == 4


@pytest.mark.parametrize(("weight", "steps"), [(1.0, 1), (2.0, 2), (3.0, 3), (4.0, 3)])
def test_the_number_of_steps_grows_with_the_weight_of_a_lesson(
    store: Store, make_loop: MakeLoop, fill: Fill, weight: float, steps: int
) -> None:
    add_lesson(store, replace(SHORT, weight=weight), fill(store, 1))
    loop = make_loop(step_limit=3, max_divergence=1e-9)
    settle(loop)
    assert "practice.step_limit 3 are taken" in loop.note
    with store.read() as conn:
        assert policies.head(conn).version == steps


def test_steps_are_limited_until_a_lesson_is_reinforced(
    store: Store, make_loop: MakeLoop, fill: Fill
) -> None:
    """Steps in a row are limited; a new word on the lesson allows as many again."""
    first, second = fill(store, 2)
    add_lesson(store, SHORT, [first])
    loop = make_loop(step_limit=2, max_divergence=0.05)
    settle(loop)
    assert "practice.step_limit 2 are taken" in loop.note
    with store.write() as conn:
        assert policies.head(conn).version == 2
        lessons.reinforce(conn, "aa", second, at=9e9)
    settle(loop)
    with store.read() as conn:
        assert policies.head(conn).version > 2


@pytest.mark.parametrize(
    "error", [RepliesDelayed("replies to people are running"), NoGateway("no gateway runs")]
)
def test_practice_waits_for_people(
    store: Store, make_loop: MakeLoop, fill: Fill, replies: ScriptedReplies, error: OpenClawError
) -> None:
    (turn,) = fill(store, 1)
    add_lesson(store, SHORT, [turn])
    replies.refuse = error
    loop = make_loop(step_limit=1)
    assert not loop.run_once()
    assert str(error) in loop.note
    replies.refuse = None
    loop._next_check = 0.0
    settle(loop)
    assert len(uses_of(store, 1)) == 4


def test_a_batch_of_people_comes_before_practice(
    store: Store, make_loop: MakeLoop, fill: Fill
) -> None:
    """A batch that is complete in the middle of a round is trained on at once."""
    first = fill(store, 3)
    add_lesson(store, SHORT, first)
    loop = make_loop(step_limit=1)
    assert loop.run_once()
    assert "2 of 4 replies" in loop.note or "0 of 4 replies" in loop.note
    second = fill(store, 1)
    settle(loop)
    assert uses_of(store, 1) == [*first, *second]
    assert len(uses_of(store, 2)) == 4


def test_a_lesson_about_one_question_is_not_practised(
    store: Store, make_loop: MakeLoop, fill: Fill, replies: ScriptedReplies, renderer: Renderer
) -> None:
    """It stands in the teacher's prompt for its question, beside a lesson that is practised, and is never learned."""
    (turn,) = fill(store, 1, question="What is the capital of Australia?")
    fill(store, 1, question="Where is the Louvre?")
    messages = [{"role": "user", "content": "What is the capital of Australia?"}]
    hashed = question_hash(messages, lambda message: False, key=store.secret)
    fact = replace(
        SHORT,
        id="cc",
        text="It is Canberra.",
        scope_kind=LessonScope.QUESTION,
        scope_value=hashed,
        topic="",
    )
    add_lesson(store, fact, [turn])
    loop = make_loop(max_divergence=0.5)
    settle(loop)
    assert (replies.orders, loop.note) == ([], "waiting for turns: 2 of 4")
    add_lesson(store, SHORT, [turn])
    loop._next_check = 0.0
    settle(loop)
    assert (state_of(store, "aa"), state_of(store, "cc")) == (
        LessonState.LEARNED,
        LessonState.ACTIVE,
    )
    hint = lessons_hint([fact.text, SHORT.text])
    hinted_ids = renderer.render(
        with_hint(messages, hint, lambda message: False, renderer.hint_format)
    ).prompt_ids.tolist()
    assert hinted_ids in [order.prompt_ids for order in replies.orders]


def test_contradicting_single_wishes_are_not_practised(
    store: Store, make_loop: MakeLoop, fill: Fill
) -> None:
    """The weights wait for a second word, while the prompt follows the first at once."""
    first, second = fill(store, 2)
    add_lesson(store, SHORT, [first])
    add_lesson(store, LONG, [second])
    with store.write() as conn:
        lessons.set_weight(conn, "aa", 0.5, at=2.0)
        lessons.set_weight(conn, "bb", 1.0, at=2.0)
        lessons.supersede(conn, "aa", "bb")
    loop = make_loop(step_limit=1)
    settle(loop)
    assert "waits for more words" in loop.note
    with store.write() as conn:
        lessons.reinforce(conn, "bb", first, at=3.0)
    settle(loop)
    assert len(uses_of(store, 1)) == 4


def test_a_contested_lesson_is_not_practised_beside_another(
    store: Store, make_loop: MakeLoop, fill: Fill
) -> None:
    first, second = fill(store, 2)
    add_lesson(store, SHORT, [first])
    add_lesson(store, LONG, [second])
    add_lesson(store, replace(SHORT, id="cc", text="Be formal.", topic="tone/formal"), [first])
    with store.write() as conn:
        lessons.supersede(conn, "aa", "bb")
    settle(make_loop(step_limit=1))
    with store.read() as conn:
        assert {turns.current_verdict(conn, id_).hints for id_ in uses_of(store, 1)} == {
            ("Be formal.",)
        }  # type: ignore[union-attr]


def test_a_prompt_with_images_is_not_practised(
    store: Store, make_loop: MakeLoop, fill: Fill, replies: ScriptedReplies
) -> None:
    """Its token ids do not hold them, and the store has only their digests."""
    image = digest_part("ab" * 32, "image/png", (1, 1))
    seen = [{"role": "user", "content": [{"type": "text", "text": "What is this?"}, image]}]
    (turn,) = fill(store, 1, request={"messages": seen})
    add_lesson(store, SHORT, [turn])
    settle(make_loop())
    assert replies.orders == []
    fill(store, 1, question="Where is the Louvre?")
    settle(make_loop(step_limit=1))
    assert replies.orders


def of_user(lesson: Lesson, user: str) -> Lesson:
    return replace(lesson, scope_kind=LessonScope.USER, scope_value=user_scope("", user))


def test_a_lesson_of_a_user_is_practised_on_their_prompts(
    store: Store, make_loop: MakeLoop, fill: Fill, replies: ScriptedReplies, renderer: Renderer
) -> None:
    (turn,) = fill(store, 1, question="Where is the Louvre?", request={"user": "ann"})
    fill(store, 1, question="Who painted it?", request={"user": "bob"})
    add_lesson(store, of_user(SHORT, "ann"), [turn])
    settle(make_loop(step_limit=1))
    plain = renderer.render(
        [{"role": "user", "content": "Where is the Louvre?"}]
    ).prompt_ids.tolist()
    assert [order.prompt_ids for order in replies.orders[2:]] == [plain, plain]


def test_a_lesson_of_a_quiet_user_is_practised(
    store: Store,
    make_loop: MakeLoop,
    fill: Fill,
    replies: ScriptedReplies,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(prompts, "MAX_PROMPTS", 2)
    (turn,) = fill(store, 1, request={"user": "ann"})
    fill(store, 2, question="Who painted it?", request={"user": "bob"})
    add_lesson(store, of_user(SHORT, "ann"), [turn])
    settle(make_loop(step_limit=1))
    assert len(replies.orders) == 4


def test_contradicting_users_wait_for_a_clear_majority(
    store: Store, make_loop: MakeLoop, fill: Fill
) -> None:
    """They share the weights; each has the own lesson in the prompt."""
    turns_of = {user: fill(store, 1, request={"user": user}) for user in ("ann", "bob", "cleo")}
    add_lesson(store, of_user(SHORT, "ann"), turns_of["ann"])
    add_lesson(store, of_user(LONG, "bob"), turns_of["bob"])
    loop = make_loop(step_limit=1)
    settle(loop)
    assert "what other users want, contradicts it" in loop.note
    add_lesson(store, of_user(replace(SHORT, id="cc", weight=4.0), "cleo"), turns_of["cleo"])
    loop._next_check = 0.0
    settle(loop)
    with store.read() as conn:
        assert {turns.current_verdict(conn, id_).hints for id_ in uses_of(store, 1)} == {
            ("Keep answers short.",)
        }  # type: ignore[union-attr]


def test_an_edited_lesson_ends_the_round_in_progress(
    store: Store, make_loop: MakeLoop, fill: Fill, replies: ScriptedReplies
) -> None:
    (turn,) = fill(store, 1)
    add_lesson(store, SHORT, [turn])
    loop = make_loop(step_limit=1)
    assert loop.run_once()
    with store.write() as conn:
        lessons.edit_text(conn, "aa", "One word.", at=2.0)
    settle(loop)
    assert len(replies.orders) == 2 + 4
    with store.read() as conn:
        assert {turns.current_verdict(conn, id_).hints for id_ in uses_of(store, 1)} == {
            ("One word.",)
        }  # type: ignore[union-attr]


def test_a_forgotten_lesson_is_practised_again(
    store: Store, make_loop: MakeLoop, fill: Fill, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its divergence is measured again after some versions."""
    monkeypatch.setattr(plan, "REMEASURED_VERSIONS", 2)
    (turn,) = fill(store, 1)
    add_lesson(store, SHORT, [turn])
    trainer = DivergingTrainer()
    loop = make_loop(trainer, max_divergence=0.35)
    settle(loop)
    assert state_of(store, "aa") is LessonState.LEARNED
    trainer.steps = -3  # the divergence is 3.2 and falls
    fill(store, 3)
    settle(loop)
    assert state_of(store, "aa") is LessonState.LEARNED
    with store.read() as conn:
        values = [value for _, value in lessons.divergences_of(conn, "aa")]
    assert max(values[2:]) > 0.7
    assert np.mean(values[-2:]) < 0.35


def test_a_learned_lesson_is_measured_at_equal_intervals(
    store: Store, make_loop: MakeLoop, fill: Fill, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "REMEASURED_VERSIONS", 2)
    (turn,) = fill(store, 1)
    add_lesson(store, SHORT, [turn])
    loop = make_loop(max_divergence=0.35)
    settle(loop)
    fill(store, 3)
    for _ in range(8):
        settle(loop)
        fill(store, 4)
    with store.read() as conn:
        measured = [version for version, _ in lessons.divergences_of(conn, "aa")]
        learned = lessons.get(conn, "aa").learned_version  # type: ignore[union-attr]
    later = measured[measured.index(learned) :]
    assert len(later) >= 4
    assert set(np.diff(later).tolist()) == {2}


def test_a_learned_lesson_is_measured_after_it_is_reinforced(
    store: Store, make_loop: MakeLoop, fill: Fill
) -> None:
    """Only words about replies since it was learned count, and only after a step on people's turns."""
    old, first, second = fill(store, 3)
    add_lesson(store, SHORT, [old])
    trainer = DivergingTrainer()
    loop = make_loop(trainer, max_divergence=0.35)
    settle(loop)
    assert state_of(store, "aa") is LessonState.LEARNED
    with store.write() as conn:
        version = lessons.get(conn, "aa").learned_version  # type: ignore[union-attr]
        conn.execute(
            update(schema.exchanges).where(schema.exchanges.c.id == second).values(version=version)
        )

    def steps_of_practice(*, word: str = "", new_turns: int = 0) -> int:
        before = len(trainer.batches)
        with store.write() as conn:
            for turn in filter(None, [word]):
                lessons.reinforce(conn, "aa", turn, at=time.time())
        fill(store, new_turns)
        loop._next_check = 0.0
        settle(loop)
        return sum(batch[0].from_teacher for batch in trainer.batches[before:])

    assert steps_of_practice(new_turns=4) == 0, "nothing was said"
    assert steps_of_practice(word=first) == 0, "the weights did not yet follow it"
    assert steps_of_practice(word=second) == 1
    assert (steps_of_practice(), state_of(store, "aa")) == (0, LessonState.LEARNED)


def test_the_seed_decides_the_order_of_prompts(
    store: Store,
    make_loop: MakeLoop,
    fill: Fill,
    renderer: Renderer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not on the order in which the store returns them: that of their ids, which are random."""
    ids = [
        fill(store, 1, question=f"Where is the {name}?")[0]
        for name in ("Louvre", "Prado", "Uffizi", "Tate")
    ]
    add_lesson(store, SHORT, ids[:1])
    make_loop()  # the root of the policies
    selector = PromptSelector(
        renderer=renderer,
        transient=EphemeralMatcher([]),
        key=store.secret,
        read_topics=lambda: load_topics(None),
    )

    def choose() -> list[str]:
        with store.read() as conn:
            head = policies.get_many(conn, {0})[0]
            chosen = selector.select_prompts(
                conn, plan.plan_practice(conn, head, 2.0), head, count=4, seed=1
            )
        return [prompt.exchange.request.id for prompt in chosen]

    first, get = choose(), exchanges.get_readable
    monkeypatch.setattr(
        exchanges, "get_readable", lambda *arguments: dict(reversed(get(*arguments).items()))
    )
    assert sorted(first) == sorted(ids)
    assert choose() == first


def test_measurements_of_several_users_end(
    store: Store, make_loop: MakeLoop, fill: Fill, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each takes a step, and so makes a version. While nobody says anything, they end."""
    monkeypatch.setattr(plan, "REMEASURED_VERSIONS", 2)
    loop = make_loop(max_divergence=0.35)
    for version, user in enumerate(("ann", "bob")):
        turns_of_user = fill(store, 4, request={"user": user})
        settle(loop)
        lesson = replace(
            SHORT, id=user, scope_kind=LessonScope.USER, scope_value=user_scope("", user)
        )
        add_lesson(store, lesson, turns_of_user[:1])
        with store.write() as conn:
            lessons.mark_learned(conn, user, version)
            lessons.record_divergence(conn, user, version, 0.0, at=2.0)
    worked = [loop.run_once() for _ in range(20)]
    assert not worked[-1]
    with store.read() as conn:
        assert [version for version, _ in lessons.divergences_of(conn, "ann")] == [0, 2]
        assert [version for version, _ in lessons.divergences_of(conn, "bob")] == [1, 3]


def test_practised_prompts_are_not_held_out(store: Store, make_loop: MakeLoop, fill: Fill) -> None:
    (turn,) = fill(store, 1)
    add_lesson(store, SHORT, [turn])
    settle(make_loop(step_limit=1))
    other = fill(store, 1)
    with store.read() as conn:
        held_out = training_queue.held_out_turns(conn, version=1, limit=9)
    assert [item.turn.id for item in held_out] == other


def test_turns_from_before_a_change_of_taste_are_not_held_out(store: Store, fill: Fill) -> None:
    """A contrary word changes nothing, before the change or after it: it may be a mistake."""
    first, second, third, fourth = fill(store, 4)
    add_lesson(store, SHORT, [first])
    add_lesson(store, LONG, [third])

    def held_out(any_taste: bool = False) -> list[str]:
        items = training_queue.held_out_turns(conn, version=0, limit=9, any_taste=any_taste)
        return [item.turn.id for item in items]

    with store.write() as conn:
        lessons.supersede(conn, "aa", "bb")
        lessons.reinforce(conn, "aa", second, at=3.0)
        assert len(held_out()) == 4, "the first one was never in force"
        events.append(conn, lessons.SUPERSEDED_EVENT, "aa", {"by": "bb"}, 4.0)
        lessons.reinforce(conn, "aa", fourth, at=5.0)
        assert held_out() == [fourth, third]
        assert len(held_out(any_taste=True)) == 4


def test_a_change_of_taste_concerns_the_turns_of_its_user_alone(store: Store, fill: Fill) -> None:
    (other,) = fill(store, 1, request={"user": "bob"})
    first, second, third = fill(store, 3, request={"user": "ann"})
    add_lesson(store, of_user(SHORT, "ann"), [first, second])
    add_lesson(store, of_user(LONG, "ann"), [third])
    with store.write() as conn:
        lessons.supersede(conn, "aa", "bb")
        events.append(conn, lessons.SUPERSEDED_EVENT, "aa", {"by": "bb"}, 9e9)
        assert [one.turn.id for one in training_queue.held_out_turns(conn, version=0, limit=9)] == [
            third,
            other,
        ]


def test_the_gate_decides_on_a_step_of_practice(
    store: Store, make_loop: MakeLoop, fill: Fill
) -> None:
    """A candidate that makes liked replies less likely is refused, and its replies are not trained on again."""
    fill(store, 3, question="Who painted it?")
    liked = fill(store, 12, score=1)
    settle(make_loop(step_limit=1))
    add_lesson(store, SHORT, liked[:1])
    with store.read() as conn:
        before = policies.head(conn).version
    settle(
        make_loop(DivergingTrainer(gain=lambda sample: -0.1), gate=True, step_limit=2, replies=2)
    )
    with store.read() as conn:
        assert policies.head(conn).version == before
        refused = [p for p in policies.list_all(conn) if p.state is PolicyState.REJECTED]
        assert refused
        assert practice_turns.pending_turns(conn) == []


def test_turns_from_before_a_practised_lesson_are_not_held_out(
    store: Store, make_loop: MakeLoop, fill: Fill
) -> None:
    """Replies that were liked before the person wanted something else become less likely, as they should."""
    fill(store, 12, score=1, question="Who painted it?")
    (first,) = fill(store, 1, score=-1, question="Where is the Louvre?")
    (later,) = fill(store, 1, score=1, question="Where is it now?")
    add_lesson(store, SHORT, [first])
    settle(make_loop(step_limit=1, replies=2))
    with store.read() as conn:
        newest = policies.list_all(conn)[-1].version
        assert uses_of(store, newest)[0].startswith("practice-")
        held_out = {
            item.turn.id for item in training_queue.held_out_turns(conn, version=newest, limit=99)
        }
        asked_again = set(conn.execute(select(schema.practice_turns.c.source)).scalars())
        assert held_out == {later} - asked_again
        assert len(training_queue.held_out_turns(conn, version=0, limit=99)) == 14


def test_a_practised_and_reinforced_lesson_limits_the_held_out_turns_of_later_steps(
    store: Store, make_loop: MakeLoop, fill: Fill
) -> None:
    """Steps on what the person says later make replies from before it less likely. The first word may be a mistake."""
    old = fill(store, 4, score=1)
    loop = make_loop(step_limit=1)
    settle(loop)
    first, second = fill(store, 2, score=1)
    add_lesson(store, SHORT, [first])
    settle(loop)
    newest = fill(store, 2, score=1)
    settle(loop)
    with store.read() as conn:
        (version,) = [
            p.version for p in policies.list_all(conn) if uses_of(store, p.version)[-2:] == newest
        ]
    (later,) = fill(store, 1, score=1)

    def held_out() -> set[str]:
        with store.read() as conn:
            return {
                item.turn.id
                for item in training_queue.held_out_turns(conn, version=version, limit=99)
            }

    assert held_out() == {*old, later}
    with store.write() as conn:
        lessons.reinforce(conn, "aa", second, at=3.0)
    assert held_out() == {later}
    with store.write() as conn:
        removal.forget(conn, "aa", at=4.0)
    assert held_out() == {*old, later}


def test_practice_waits_for_new_messages_after_refused_steps(
    store: Store, make_loop: MakeLoop, fill: Fill
) -> None:
    (turn,) = fill(store, 1)
    add_lesson(store, SHORT, [turn])
    loop = make_loop(ScriptedTrainer(lambda samples: {"kl/step": 9.0}))
    settle(loop)
    assert loop.note.endswith("waits for new words of the person: 3 steps were refused")
    with store.read() as conn:
        assert [p.state for p in policies.list_all(conn)[1:]] == [PolicyState.REJECTED] * 3
    (again,) = fill(store, 1)
    with store.write() as conn:
        lessons.reinforce(conn, "aa", again, at=9e9)
    settle(make_loop(step_limit=1))
    with store.read() as conn:
        assert policies.head(conn).version >= 4


def test_practice_needs_a_prompt_to_which_the_lesson_applies(
    store: Store, make_loop: MakeLoop, fill: Fill
) -> None:
    (turn,) = fill(store, 1)
    add_lesson(store, replace(SHORT, scope_value="another agent"), [turn])
    loop = make_loop()
    settle(loop)
    assert "waits for a prompt of the person" in loop.note


def test_a_prompt_that_leaves_no_space_for_a_reply_is_not_asked_again(
    store: Store, make_loop: MakeLoop, fill: Fill, replies: ScriptedReplies
) -> None:
    (turn,) = fill(store, 1)
    add_lesson(store, SHORT, [turn])
    loop = make_loop(step_limit=1)
    practice = loop._parts.practice
    assert practice is not None
    practice._selector = replace(practice._selector, context_length=MAX_REPLY_TOKENS + 10)
    settle(loop)
    assert (replies.orders, "waits for a prompt of the person" in loop.note) == ([], True)


def test_practice_runs_in_its_hours(store: Store, make_loop: MakeLoop, fill: Fill) -> None:
    (turn,) = fill(store, 1)
    add_lesson(store, SHORT, [turn])
    loop = make_loop(hours="03:00-03:01", step_limit=1)
    at = {hour: datetime(2026, 1, 1, hour).timestamp() for hour in (3, 12)}
    loop._parts.practice._clock = lambda: at[12]  # type: ignore[union-attr]
    settle(loop)
    assert "practice.hours" in loop.note
    loop._parts.practice._clock = lambda: at[3]  # type: ignore[union-attr]
    loop._next_check = 0.0
    settle(loop)
    assert len(uses_of(store, 1)) == 4


def test_a_redacted_or_unanswered_prompt_is_not_asked_again(
    store: Store, make_loop: MakeLoop, judged: Callable[..., object], replies: ScriptedReplies
) -> None:
    turns_ = put(store, [judged()])  # type: ignore[list-item]
    with store.write() as conn:
        conn.exec_driver_sql("UPDATE exchanges SET capture = 'redacted'")
    add_lesson(store, SHORT, turns_)
    settle(make_loop())
    assert replies.orders == []


def test_the_note_is_short_and_names_the_practised_lesson(
    store: Store, make_loop: MakeLoop, fill: Fill
) -> None:
    (turn,) = fill(store, 1, question="What is the capital of Australia?")
    messages = [{"role": "user", "content": "What is the capital of Australia?"}]
    hashed = question_hash(messages, lambda message: False, key=store.secret)
    fact = replace(
        SHORT,
        id="f",
        text="It is Canberra.",
        scope_kind=LessonScope.QUESTION,
        scope_value=hashed,
        topic="",
    )
    add_lesson(store, fact, [turn])
    for number in range(5):
        rule = f"Rule {number}. " + "Mind the tone. " * 60
        add_lesson(store, replace(SHORT, id=f"l{number}", text=rule, topic=""), [turn])
    loop = make_loop()
    assert loop.run_once(), loop.note
    assert 'practising "Rule 0. Mind' in loop.note
    assert " and 2 more: 0 of 4 replies" in loop.note
    assert "Canberra" not in loop.note, "it stands in the teacher's prompt, and is not practised"
    assert len(loop.note) < 300
