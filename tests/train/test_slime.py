"""slime as the trainer: its sample objects hold what the store holds, and each batch counts once."""

from __future__ import annotations

import dataclasses
import inspect
import socket
import subprocess
import sys
import threading
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.engines.sglang_server import SglangWire
from tests.train.conftest import put
from tests.train.external_world import World
from tests.train.slime_double import PublishedSample, install_double, install_source
from tests.train.slime_run import SlimeRun, slime_arguments

from openclaw_rl.engines.remote import server_process, trainer_weights
from openclaw_rl.other_trainers.batch_stream import BatchStream, StreamEnded
from openclaw_rl.other_trainers.slime import interface, teacher
from openclaw_rl.other_trainers.slime.batch_feed import BatchFeed, FeedUnfit
from openclaw_rl.other_trainers.slime.options import SlimeOptions
from openclaw_rl.other_trainers.slime.rollout import close_feeds, generate_rollout
from openclaw_rl.other_trainers.slime.weight_update import WeightsNotKept, publish_weights
from openclaw_rl.store import exchanges, turns
from openclaw_rl.store.db import Store
from openclaw_rl.store.lineage import policies
from openclaw_rl.train.sample_builder import SampleBuilder
from openclaw_rl.types import JudgedTurn, Mask, Span

Fill = Callable[..., list[str]]
Start = Callable[..., tuple[World, SlimeRun]]


@pytest.fixture(params=["published", "source"])
def slime(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """slime's data classes: those stated here, and its own."""
    if request.param == "published":
        install_double(monkeypatch)
    elif (folder := request.config.getoption("--slime-source")) is None:
        pytest.skip("needs a checkout of slime 0.3.1: make test-slime, or --slime-source FOLDER")
    else:
        install_source(monkeypatch, folder)
    return str(request.param)


@pytest.fixture
def start(store: Store, builder: SampleBuilder, tmp_path: Path, slime: str) -> Iterator[Start]:
    """Starts a train loop for full weights, and a run of slime that has pushed its first weights."""
    worlds: list[World] = []

    def make(settings: dict[str, Any] | None = None, **arguments: Any) -> tuple[World, SlimeRun]:
        world = World(store, builder, tmp_path, **({"train.finetune": "full"} | (settings or {})))
        worlds.append(world)
        run = SlimeRun(slime_arguments(world.config.home_dir, tmp_path / "shared", **arguments))
        run.update_weights(seed=0)
        return world, run

    yield make
    close_feeds()
    for world in worlds:
        world.close()


def mixed_turn(judged: Callable[..., JudgedTurn], draw: np.random.Generator) -> JudgedTurn:
    """A judged turn of random lengths, ids, masks and log-probabilities."""
    r = int(draw.integers(3, 400))
    mask: Mask = draw.random(r) < 0.8
    mask[draw.integers(r)] = True
    return judged(
        score=int(draw.choice([-1, 1])),
        request={"prompt_ids": draw.integers(0, 250, int(draw.integers(1, 300)), dtype=np.int32)},
        reply={
            "response_ids": draw.integers(0, 250, r, dtype=np.int32),
            "logprobs": -draw.exponential(size=r).astype(np.float32),
            "mask": mask,
            "spans": (Span(start=0, end=r, version=0),),
        },
    )


def assert_holds(sample: Any, store: Store) -> str:
    """Assert that a sample of slime has what the store has of its turn, to the bit; return the turn."""
    turn = str(sample.metadata["turn"])
    with store.read() as conn:
        exchange = exchanges.get(conn, turn)
    assert exchange is not None
    assert exchange.reply is not None
    reply, prompt = exchange.reply, exchange.request.prompt_ids
    assert sample.tokens == [*prompt.tolist(), *reply.response_ids.tolist()]
    assert sample.response_length == len(reply.response_ids)
    assert sample.loss_mask == reply.mask.astype(int).tolist()
    assert np.array(sample.rollout_log_probs, np.float32).tobytes() == reply.logprobs.tobytes()
    assert sample.status is type(sample).Status.COMPLETED
    assert sample.weight_versions == ["0"]
    return turn


def untrainable_reason(store: Store, turn: str) -> str | None:
    with store.read() as conn:
        found = turns.get(conn, turn)
    assert found is not None
    return found.untrainable


def test_a_thousand_turns_of_mixed_lengths_match_the_store(
    start: Start, store: Store, judged: Callable[..., JudgedTurn]
) -> None:
    draw = np.random.default_rng(7)
    given = put(store, [mixed_turn(judged, draw) for _ in range(1000)])
    world, run = start(
        {"train.batch.min_turns": 250, "train.batch.max_turns": 250}, global_batch_size=250
    )
    seen: list[str] = []
    with world.in_background():
        for step in range(4):
            samples = run.generate()
            seen += [assert_holds(sample, store) for sample in samples]
            run.update_weights(seed=step + 1)
        close_feeds()
    assert seen == given
    assert sorted(turn for used in world.used().values() for turn in used) == sorted(given)


def test_the_version_and_its_uses_are_in_the_store_when_the_hook_returns(
    start: Start, store: Store, fill: Fill
) -> None:
    given = fill(store, 8)
    world, run = start()
    with world.in_background():
        for step in (1, 2):
            assert len(run.generate()) == 4
            run.update_weights(seed=step)
            assert world.used()[step] == given[4 * step - 4 : 4 * step]
            with store.read() as conn:
                folder = Path(str(policies.head(conn).path))
            assert sorted(path.suffix for path in folder.iterdir()) == [
                ".json",
                ".safetensors",
                ".safetensors",
            ]
            assert trainer_weights.read_weights(world.config.home_dir)[str(step + 1)] == folder.name
        close_feeds()


def test_a_batch_that_slime_never_acknowledges_is_free_again(
    start: Start, store: Store, fill: Fill
) -> None:
    given = fill(store, 4)
    world, run = start()
    with world.in_background():
        first = [sample.metadata["turn"] for sample in run.generate()]
        close_feeds()  # slime ends here
        run = SlimeRun(run.arguments)
        run.update_weights(seed=0)
        again = [sample.metadata["turn"] for sample in run.generate()]
        run.update_weights(seed=1)
        close_feeds()
    assert first == again == given
    assert world.used() == {1: given}


def test_weights_that_are_handed_over_twice_count_once(
    start: Start, store: Store, fill: Fill
) -> None:
    given = fill(store, 4)
    world, run = start()
    with world.in_background():
        run.generate()
        run.update_weights(seed=1)
        with pytest.raises(WeightsNotKept, match="no batch of OpenClaw-RL is open"):
            run.update_weights(seed=2)
        close_feeds()
    assert world.used() == {1: given}


def test_a_new_run_must_begin_with_the_weights_of_the_head(
    start: Start, store: Store, fill: Fill
) -> None:
    given = fill(store, 8)
    world, run = start()
    with world.in_background():
        run.generate()
        run.update_weights(seed=1)
        close_feeds()
        wrong = SlimeRun(run.arguments)
        wrong.update_weights(seed=0)
        with pytest.raises(FeedUnfit, match="start slime again with a checkpoint of these weights"):
            wrong.generate()
        close_feeds()
        right = SlimeRun(run.arguments)
        right.update_weights(seed=1)
        right.generate()
        assert list(trainer_weights.read_weights(world.config.home_dir)) == ["1"], (
            "tags of the last run are void"
        )
        right.update_weights(seed=2)
        close_feeds()
    assert world.used() == {1: given[:4], 2: given[4:]}


def test_a_refused_step_ends_the_run_at_once_and_its_weights_are_not_the_base(
    start: Start, store: Store, fill: Fill
) -> None:
    """slime saves a checkpoint before its weights are published, so that its last one may be of the refused step."""
    given = fill(store, 1)
    world, run = start(
        {"train.batch.min_turns": 1, "train.batch.max_turns": 1}, global_batch_size=1
    )
    with world.in_background():
        run.generate()
        world.frozen_seconds = world.config.train.safety.lease_ttl + 1
        with pytest.raises(
            WeightsNotKept, match=r"did not keep the step: .*lease.* start it again"
        ):
            run.update_weights(seed=1)
        with pytest.raises(
            FeedUnfit, match="the next step starts from the base, and slime has 000001-"
        ):
            run.generate()
        close_feeds()
        refused = SlimeRun(run.arguments)
        refused.update_weights(seed=1)
        with pytest.raises(FeedUnfit, match="neither the base nor a version"):
            refused.generate()
        assert trainer_weights.read_weights(world.config.home_dir) == {}, (
            "no reply is taken for one of the base"
        )
        base = SlimeRun(run.arguments)
        base.update_weights(seed=0)
        base.generate()
        base.update_weights(seed=2)
        close_feeds()
    assert list(world.used().values()) == [given]


def test_slime_can_be_started_before_the_system(start: Start, store: Store, fill: Fill) -> None:
    given = fill(store, 4)
    world, run = start()
    world.trainer.close()
    with socket.socket(socket.AF_UNIX) as killed:  # leaves the file of its socket
        killed.bind(str(world.config.home_dir / "trainer.sock"))
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(run.generate)
        time.sleep(0.3)
        assert not waiting.done()
        world.trainer, world.loop = world.start()
        with world.in_background():
            assert [sample.metadata["turn"] for sample in waiting.result(240)] == given
            close_feeds()


def test_without_a_system_slime_says_what_to_start(tmp_path: Path) -> None:
    options = SlimeOptions.from_args(slime_arguments(tmp_path, tmp_path))
    with pytest.raises(StreamEnded, match=r"train\.trainer: external"):
        BatchFeed(options, connect_seconds=0.1)


def test_missing_samples_are_filled_up_without_a_gradient(
    start: Start, store: Store, fill: Fill
) -> None:
    fill(store, 4)
    world, run = start(global_batch_size=6)
    with world.in_background():
        samples = run.generate()
        close_feeds()
    assert [sample.remove_sample for sample in samples] == [False] * 4 + [True] * 2
    assert not any(any(sample.loss_mask) for sample in samples[4:])
    assert [sample.rollout_id for sample in samples] == list(range(6)), "slime counts by these"


def test_slime_places_every_turn_of_a_batch_that_was_filled_up(
    start: Start, store: Store, fill: Fill, slime: str
) -> None:
    """`slime/utils/dp_schedule.py`: what is beyond the last whole global batch is left out."""
    if slime != "source":
        pytest.skip("slime's own schedule needs a checkout of slime: make test-slime")
    from slime.utils.dp_schedule import build_dp_schedule

    fill(store, 4)
    world, run = start(global_batch_size=3)
    with world.in_background():
        samples = run.generate()
        close_feeds()
    arguments = Namespace(
        use_dynamic_batch_size=True,
        max_tokens_per_gpu=4096,
        balance_by_flops=False,
        balance_data=False,
    )
    ranks = {"dp_size": 1, "cp_size": 1, "vpp_size": 1, "microbatch_group_size_per_vp_stage": 1}
    placed, *_ = build_dp_schedule(
        arguments,
        ranks,
        [len(sample.tokens) for sample in samples],
        global_batch_size=3,
        rollout_indices=[sample.rollout_id for sample in samples],
    )
    assert sorted(placed[0]) == list(range(6))
    assert sum(not samples[n].remove_sample for n in placed[0]) == 4


def test_a_turn_of_another_temperature_leaves_the_queue_with_the_reason(
    start: Start, store: Store, fill: Fill
) -> None:
    given = fill(store, 4)
    world, run = start(rollout_temperature=0.5)
    with world.in_background():
        waiting = threading.Thread(target=pytest.raises, args=(StreamEnded, run.generate))
        waiting.start()
        while (reason := untrainable_reason(store, given[0])) is None:
            time.sleep(0.05)
        world.trainer.close()
        waiting.join()
        close_feeds()
    assert reason == "sampled at temperature 1; slime's --rollout-temperature is 0.5"


def test_a_second_batch_before_the_weights_is_refused(
    start: Start, store: Store, fill: Fill
) -> None:
    fill(store, 8)
    world, run = start()
    with world.in_background():
        run.generate()
        with pytest.raises(FeedUnfit, match=r"Use train\.py, not train_async\.py"):
            run.generate()
        close_feeds()
    assert world.used() == {}


def test_the_teacher_is_the_base_under_the_hint(start: Start, store: Store, fill: Fill) -> None:
    hinted = fill(store, 2, hints=("Be shorter.", "One word."))
    plain = fill(store, 2)
    with SglangWire(Path(server_process.model_location("starter"))) as wire:
        url = f"{wire.url}/generate"
        world, run = start({"train.method": "combine"}, use_opd=True, opd_type="sglang", rm_url=url)
        with world.in_background():
            samples = {sample.metadata["turn"]: sample for sample in run.generate()}
            close_feeds()
            with BatchStream.connect(world.config.home_dir) as stream:
                rows = {row["turn"]: row for row in next(iter(stream)).rows}
        row = rows[hinted[0]]
        assert len(row["hinted_prompts"]) == 2
        each = [
            teacher.score_reply(url, [prompt], row["response_ids"])
            for prompt in row["hinted_prompts"]
        ]
    got = samples[hinted[0]].teacher_log_probs
    assert got == pytest.approx(np.logaddexp(*map(np.array, each)) - np.log(2), abs=1e-9)
    assert samples[plain[0]].teacher_log_probs == samples[plain[0]].rollout_log_probs


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"update_weight_transport": "nccl"}, "--update-weight-transport disk"),
        ({"custom_update_weight_post_write_path": None}, "publish_weights"),
        ({"update_weights_interval": 2}, "expected 1"),
        ({"rollout_top_p": 0.9}, "--rollout-top-p is 0.9"),
        ({"rewards_normalization": True}, "--disable-rewards-normalization"),
        ({"n_samples_per_prompt": 8}, "has one reply"),
        ({"use_opd": True, "opd_type": "megatron"}, "--opd-type sglang"),
        (
            {"use_opd": True, "opd_type": "sglang", "rm_url": "u", "use_rollout_logprobs": False},
            "no distillation",
        ),
        (
            {"use_opd": True, "opd_type": "sglang", "rm_url": "u", "rollout_temperature": 0.7},
            "scored at 1",
        ),
    ],
)
def test_arguments_that_would_train_wrongly_are_refused(
    tmp_path: Path, changed: dict[str, Any], named: str
) -> None:
    with pytest.raises(ValueError, match=named):
        SlimeOptions.from_args(slime_arguments(tmp_path, tmp_path, **changed))


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"train.finetune": "lora"}, "Set train.finetune to full"),
        ({"train.method": "combine"}, "Add --use-opd"),
        ({"train.method": "sdpo"}, "for which slime has no loss"),
    ],
)
def test_settings_that_slime_cannot_train_are_refused(
    start: Start, settings: dict[str, Any], named: str
) -> None:
    _, run = start(settings)
    with pytest.raises(FeedUnfit, match=named):
        run.generate()


def test_evaluation_is_refused_with_a_message(start: Start) -> None:
    _, run = start()
    with pytest.raises(ValueError, match="leave out --eval-interval"):
        run.generate(evaluation=True)


def test_the_functions_have_the_published_signatures(slime: str) -> None:
    from slime.utils.misc import load_function
    from slime.utils.types import Sample

    assert load_function(interface.ROLLOUT_PATH) is generate_rollout
    assert load_function(interface.HOOK_PATH) is publish_weights
    assert tuple(inspect.signature(generate_rollout).parameters) == interface.ROLLOUT_PARAMETERS
    assert inspect.signature(generate_rollout).parameters["evaluation"].default is False
    assert tuple(inspect.signature(publish_weights).parameters) == interface.HOOK_PARAMETERS
    assert interface.missing_fields(Sample) == []
    published = {field.name: field for field in dataclasses.fields(PublishedSample)}
    assert {field.name for field in dataclasses.fields(Sample)} == set(published), (
        "the double has slime's fields"
    )


def test_unsupported_versions_are_named() -> None:
    assert interface.version_problem("0.3.1") is None
    for found in ("0.2.4", "0.3.0", "0.4.0", ""):
        assert "expected 0.3.1" in str(interface.version_problem(found))


def test_the_adapter_needs_the_standard_library_alone() -> None:
    """It runs in slime's environment, which has none of our dependencies (`pip install --no-deps`)."""
    modules = ("rollout", "weight_update", "self_check")
    words = "; ".join(f"import openclaw_rl.other_trainers.slime.{name}" for name in modules)
    source = Path(interface.__file__).parents[3]
    ran = subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path.insert(0, {str(source)!r}); {words}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
