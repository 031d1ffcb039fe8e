"""slime as the trainer, when something fails: short failures are retried, and after others its batch is free again."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from benchmarks.flaky_proxy import FlakyProxy, Trouble
from tests.engines.sglang_server import SglangWire
from tests.train.external_world import World
from tests.train.slime_run import SlimeRun
from tests.train.test_slime import Fill, Start, slime, start  # noqa: F401  two are fixtures

from openclaw_rl.common.sockets import free_port
from openclaw_rl.engines.remote import server_process, trainer_weights
from openclaw_rl.other_trainers.batch_stream import BatchStream, StreamEnded
from openclaw_rl.other_trainers.slime import teacher
from openclaw_rl.other_trainers.slime.batch_feed import BatchFeed, FeedUnfit
from openclaw_rl.other_trainers.slime.options import SlimeOptions
from openclaw_rl.other_trainers.slime.rollout import close_feeds
from openclaw_rl.other_trainers.slime.teacher import TeacherUnfit
from openclaw_rl.other_trainers.slime.weight_update import WeightsNotKept
from openclaw_rl.store.db import Store
from openclaw_rl.train.rollback import apply_rollback, plan_rollback

PROMPT, REPLY = [1, 2, 3], [4, 5]
ATTEMPTS = teacher.RETRIES + 1
HINTS = ("Be shorter.", "One word.")


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(teacher, "FIRST_RETRY_SECONDS", 0.01)
    monkeypatch.setattr(teacher, "LONGEST_RETRY_SECONDS", 0.02)


@pytest.fixture
def proxy() -> Iterator[FlakyProxy]:
    """A proxy in front of a server with the base."""
    with (
        SglangWire(Path(server_process.model_location("starter"))) as wire,
        FlakyProxy(wire.url) as started,
    ):
        yield started


def start_with_teacher(start: Start, url: str) -> tuple[World, SlimeRun]:  # noqa: F811
    return start({"train.method": "combine"}, use_opd=True, opd_type="sglang", rm_url=url)


def turns_of(samples: list[Any]) -> list[str]:
    return [sample.metadata["turn"] for sample in samples]


# Teacher


@pytest.mark.parametrize("trouble", [429, 500, 503, "lose"])
def test_a_request_that_fails_is_sent_again(proxy: FlakyProxy, trouble: Trouble) -> None:
    expected = teacher.score_reply(f"{proxy.url}/generate", [PROMPT], REPLY)
    proxy.begin_trouble(trouble)
    assert teacher.score_reply(f"{proxy.url}/generate", [PROMPT], REPLY) == expected
    assert proxy.refused == 1


@pytest.mark.parametrize("trouble", [400, 401, 404])
def test_a_request_that_is_refused_is_not_sent_again(proxy: FlakyProxy, trouble: Trouble) -> None:
    proxy.begin_trouble(trouble, every=1)
    with pytest.raises(
        TeacherUnfit, match=rf"^{proxy.url}/generate: HTTP {trouble} .*correct --rm-url"
    ):
        teacher.score_reply(f"{proxy.url}/generate", [PROMPT], REPLY)
    assert proxy.refused == 1


@pytest.mark.parametrize("trouble", [503, "lose"])
def test_retries_are_bounded_in_number_and_time(
    proxy: FlakyProxy, trouble: Trouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"{proxy.url}/generate"
    proxy.begin_trouble(trouble, every=1)
    with pytest.raises(
        TeacherUnfit, match=rf"^{url}: .* \({ATTEMPTS} attempts in \d s\)\. Expected [^\n]*$"
    ):
        teacher.score_reply(url, [PROMPT], REPLY)
    assert proxy.refused == ATTEMPTS
    monkeypatch.setattr(teacher, "RETRIES", 10**9)
    monkeypatch.setattr(teacher, "RETRY_WITHIN_SECONDS", 0.2)
    with pytest.raises(TeacherUnfit, match=r"attempts in \d+ s"):
        teacher.score_reply(url, [PROMPT], REPLY)


def test_an_address_that_nobody_listens_at_or_of_a_wrong_form_is_named() -> None:
    url = f"http://127.0.0.1:{free_port()}/generate"
    with pytest.raises(TeacherUnfit, match=rf"^{url}: .*refused \({ATTEMPTS} attempts in \d s\)"):
        teacher.score_reply(url, [PROMPT], REPLY)
    for url in ("teacher/generate", "htp://teacher", "http://teacher:port/generate"):
        with pytest.raises(TeacherUnfit, match=rf"^{url}: [^(]*\. Expected an SGLang server"):
            teacher.score_reply(url, [PROMPT], REPLY)


def test_a_batch_comes_through_failures_of_its_teacher(
    start: Start,  # noqa: F811
    store: Store,
    fill: Fill,
    proxy: FlakyProxy,
) -> None:
    given = fill(store, 4, hints=HINTS)
    world, run = start_with_teacher(start, f"{proxy.url}/generate")
    proxy.begin_trouble(503)
    with world.in_background():
        assert turns_of(run.generate()) == given
        close_feeds()
    assert proxy.refused > 0


def test_a_batch_whose_teacher_is_away_is_free_again(
    start: Start,  # noqa: F811
    store: Store,
    fill: Fill,
    proxy: FlakyProxy,
) -> None:
    given = fill(store, 4, hints=HINTS)
    world, run = start_with_teacher(start, f"{proxy.url}/generate")
    proxy.begin_trouble(503, every=1)
    with world.in_background():
        for _ in range(2):
            with pytest.raises(TeacherUnfit, match="the turns stay in the queue"):
                run.generate()
            with BatchStream.connect(world.config.home_dir, name="another") as stream:
                assert [row["turn"] for row in next(iter(stream)).rows] == given
        proxy.end_trouble()
        assert turns_of(run.generate()) == given
        run.update_weights(seed=1)
        close_feeds()
    assert world.used() == {1: given}


# Later calls


def test_a_call_after_the_train_worker_ended_claims_from_the_next_one(
    start: Start,  # noqa: F811
    store: Store,
    fill: Fill,
) -> None:
    given = fill(store, 4)
    world, run = start()
    with world.in_background():
        run.generate()
        run.update_weights(seed=1)
    world.close()
    with pytest.raises(StreamEnded, match="the train worker has ended"):
        run.generate()
    given += fill(store, 4)
    world.trainer, world.loop = world.start()
    with world.in_background():
        assert turns_of(run.generate()) == given[4:]
        run.update_weights(seed=2)
        close_feeds()
    assert world.used() == {1: given[:4], 2: given[4:]}
    assert list(trainer_weights.read_weights(world.config.home_dir)) == ["1", "2", "3"], (
        "it is the same run of slime"
    )


def test_a_call_while_no_train_worker_runs_says_what_to_start(start: Start) -> None:  # noqa: F811
    world, run = start()
    feed = BatchFeed(SlimeOptions.from_args(run.arguments), connect_seconds=0.1)
    world.close()
    with pytest.raises(StreamEnded, match="the train worker has ended"):
        feed.next_samples()
    for _ in range(2):
        with pytest.raises(
            StreamEnded, match=r"no train worker listens there .* train\.trainer: external"
        ):
            feed.next_samples()


def test_every_call_after_a_rollback_names_the_weights(
    start: Start,  # noqa: F811
    store: Store,
    fill: Fill,
) -> None:
    fill(store, 4)
    world, run = start()
    with world.in_background():
        run.generate()
        run.update_weights(seed=1)
        with store.write() as conn:
            apply_rollback(conn, plan_rollback(conn, 0), learn_again=False, reason="a test")
        given = fill(store, 4)
        for _ in range(3):
            with pytest.raises(
                FeedUnfit, match="the next step starts from the base, and slime has 000001-"
            ):
                run.generate()
        close_feeds()
        again = SlimeRun(run.arguments)
        again.update_weights(seed=0)
        assert turns_of(again.generate()) == given
        close_feeds()


def test_a_call_after_weights_that_could_not_be_taken_over_names_them(
    start: Start,  # noqa: F811
    store: Store,
    fill: Fill,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """slime has taken the step, which is lost: another one would start from weights of no version."""
    given = fill(store, 4)
    world, run = start()
    with world.in_background():
        run.generate()
        with monkeypatch.context() as patch:
            patch.setattr(shutil, "copyfile", _fail)
            patch.setattr(os, "link", _fail)
            with pytest.raises(WeightsNotKept, match="the version was not written: no space"):
                run.update_weights(seed=1)
        with BatchStream.connect(world.config.home_dir, name="another") as stream:
            assert [row["turn"] for row in next(iter(stream)).rows] == given
        for _ in range(2):
            with pytest.raises(
                FeedUnfit, match="the next step starts from the base, and slime has 000001-"
            ):
                run.generate()
        close_feeds()


def test_a_batch_that_the_classes_of_slime_refuse_is_free_again(
    start: Start,  # noqa: F811
    store: Store,
    fill: Fill,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from slime.utils.types import Sample

    given = fill(store, 4)
    world, run = start()
    with world.in_background():
        with monkeypatch.context() as patch:
            patch.setattr(Sample, "from_dict", _fail)
            for _ in range(2):
                with pytest.raises(OSError, match="no space"):
                    run.generate()
        assert turns_of(run.generate()) == given
        run.update_weights(seed=1)
        close_feeds()
    assert world.used() == {1: given}


def test_a_new_run_in_the_same_process_claims_again(start: Start, store: Store, fill: Fill) -> None:  # noqa: F811
    given = fill(store, 8)
    world, run = start()
    with world.in_background():
        run.generate()
        run.update_weights(seed=1)
        run.generate()
        again = SlimeRun(run.arguments)
        again.update_weights(seed=1)
        assert turns_of(again.generate()) == given[4:]
        again.update_weights(seed=2)
        wrong = SlimeRun(run.arguments)
        wrong.update_weights(seed=0)
        fill(store, 4)
        with pytest.raises(
            FeedUnfit, match=r"the next step starts from .*000002-.* and slime has other weights"
        ):
            wrong.generate()
        close_feeds()
    assert world.used() == {1: given[:4], 2: given[4:]}


def _fail(*_: object) -> None:
    raise OSError("no space")
