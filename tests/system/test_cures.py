"""Each trouble's cure, proven: just the settings that doctor names are set, the same is done again, and it is better.

What is wrong with the part that is not ours (a slow judge, one that guesses, a client) stays as it is in both runs.
"""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import itertools
import json
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from aiohttp import web
from tests.judge.endpoint import completion, serving, vote
from tests.judge.world import World
from tests.learner.conftest import draw, tiny
from tests.store import world
from tests.system.test_troubles import Rows, home, killed, logs_of, seen, steps, store
from tests.train.conftest import builder, fill, judged, renderer
from torch.profiler import ProfilerActivity, profile
from transformers import Qwen3Config, Qwen3ForCausalLM

from openclaw_rl.collect.worker import Collector
from openclaw_rl.common import message_hash
from openclaw_rl.common.message_hash import EphemeralMatcher
from openclaw_rl.common.progress import Wait
from openclaw_rl.engines.embedded.model import EmbeddedModel
from openclaw_rl.engines.embedded.scheduler import EmbeddedEngine
from openclaw_rl.errors import OpenClawError
from openclaw_rl.gates.metric_gates import rejection_reason
from openclaw_rl.judge import worker as judging
from openclaw_rl.learner.model.oom import retry_on_oom
from openclaw_rl.learner.trainer import LocalTrainer
from openclaw_rl.methods.registry import make_method
from openclaw_rl.methods.types import Sample
from openclaw_rl.protocols import Judge
from openclaw_rl.rollouts.runner import RolloutTask
from openclaw_rl.rollouts.runner import run_rollouts as roll
from openclaw_rl.settings.load import Config, ModelConfig, TrackConfig, from_flat
from openclaw_rl.status import program_checks
from openclaw_rl.store import exchanges, heartbeats, turns
from openclaw_rl.store.db import Store
from openclaw_rl.supervisor.home_folder import prepare_home
from openclaw_rl.supervisor.subprocess_system import SubprocessSystem, scratch_config
from openclaw_rl.supervisor.supervisor import Supervisor
from openclaw_rl.testing import ScriptedJudge, ScriptedTrainer
from openclaw_rl.train.orchestrator import TrainLoop
from openclaw_rl.train.sample_builder import SampleBuilder
from openclaw_rl.train.tracking import MetricsTracker
from openclaw_rl.types import JudgeInput, PolicyState, Sampling, TurnState, Verdict

pytestmark = pytest.mark.system

__all__ = ["builder", "draw", "fill", "judged", "renderer", "store", "tiny"]
LLM = {"judge.kind": "llm", "judge.model": "grader", "judge.timeout": 10.0}
COLLAPSED = "scores collapsed near the middle"


# ------------------------------------------------------------------------------------------- judges


def drained(
    config: Config, store: Store, judge: Judge | None = None, *, within: float = 600.0
) -> float:
    """Seconds until the judge's room has judged every turn that waits."""

    async def go() -> float:
        stop, began = asyncio.Event(), time.monotonic()
        room = asyncio.create_task(judging.run(config, stop=stop, judge=judge))
        while _closed(store):
            assert time.monotonic() < began + within, "the judge did not get there in time"
            await asyncio.sleep(0.01)
        took = time.monotonic() - began
        stop.set()
        await room
        return took

    return asyncio.run(go())


def _closed(store: Store) -> int:
    with store.read() as conn:
        return turns.count_by_state(conn).get(TurnState.CLOSED, 0)


def waiting(store: Store, name: str, words: Sequence[str]) -> list[str]:
    """Turns that those words answered, and nobody has judged."""
    ids = [f"{name}{n}" for n in range(len(words))]
    for id_, said in zip(ids, words, strict=True):
        World(home(store), store).close(id_, said)
    return ids


def verdicts(store: Store, ids: Sequence[str]) -> list[int | None]:
    with store.read() as conn:
        found: list[Verdict] = [v for id_ in ids if (v := turns.current_verdict(conn, id_))]
    assert len(found) == len(ids)
    return [v.score for v in found]


def asked(
    store: Store,
    settings: Mapping[str, Any],
    opinion: Callable[[str, int], int],
    name: str,
    words: Sequence[str],
) -> list[int | None]:
    """The verdicts of the real llm judge, over a server whose model has that opinion of (what was said, call)."""

    async def answer(request: web.Request, number: int) -> web.StreamResponse:
        return completion(
            vote(opinion(json.dumps(await request.json(), ensure_ascii=False), number))
        )

    async def go() -> None:
        async with serving(answer) as endpoint:
            config = home(
                store,
                LLM | dict(settings) | {"judge.base_url": f"http://127.0.0.1:{endpoint.port}/v1"},
            )
            await asyncio.to_thread(drained, config, store)

    ids = waiting(store, name, words)
    asyncio.run(go())
    return verdicts(store, ids)


def test_more_workers_ask_a_slow_judge_more_at_once(store: Store) -> None:
    class Slow(ScriptedJudge):
        running = most = 0

        async def judge(self, item: JudgeInput) -> Verdict:
            self.running += 1
            self.most = max(self.most, self.running)
            await asyncio.sleep(0.25)
            self.running -= 1
            return await super().judge(item)

    waiting(store, "before", ["ok"] * 40)
    trouble = seen(store)["the judge falls behind"]
    drained(home(store), store, before := Slow(lambda item: 1))
    waiting(store, "after", ["ok"] * 40)
    drained(home(store, dict(trouble.settings)), store, after := Slow(lambda item: 1))
    assert (before.most, after.most) == (
        home(store).judge.workers,
        trouble.settings["judge.workers"],
    )


UNKNOWN = ["Das stimmt leider hinten und vorne nicht", "Genau so wollte ich es haben"]


def test_a_model_has_a_verdict_where_the_rules_have_none(store: Store) -> None:
    """The rules know no German, the model does."""
    before = waiting(store, "before", UNKNOWN * 8)
    drained(home(store), store)
    assert not any(verdicts(store, before))
    trouble = seen(store)[COLLAPSED]
    assert set(trouble.settings) == {"judge.kind", "judge.base_url", "judge.model"}
    after = asked(
        store,
        trouble.settings,
        lambda said, _: 1 if UNKNOWN[1] in said else -1,
        "after",
        UNKNOWN * 8,
    )
    assert after == [-1, 1] * 8
    assert COLLAPSED not in seen(store)


def test_more_votes_part_a_tie(store: Store) -> None:
    """A model of two minds: two votes are split, five are not."""
    opinion = lambda said, number: 1 - 2 * (number % 2)  # noqa: E731
    old = {"judge.num_judges": 2, "judge.workers": 1}
    before = asked(store, old, opinion, "before", ["Hm."] * 18)
    assert set(before) == {None}
    settings = seen(store, LLM | {"judge.base_url": "http://127.0.0.1:9/v1"} | old)[
        COLLAPSED
    ].settings
    assert settings == {"judge.num_judges": 5}
    after = asked(store, old | dict(settings), opinion, "after", ["Hm."] * 18)
    assert None not in after


def test_a_clear_majority_is_right_more_often(store: Store) -> None:
    """Two votes of three are right, the others neutral or wrong. Fewer verdicts that train have the wrong sign."""
    dice = random.Random(3)
    opinion = lambda said, number: dice.choices((1, 0, -1), (4, 1, 1))[0]  # noqa: E731
    settings: dict[str, Any] = {
        "judge.workers": 1
    }  # so that the dice fall for one turn after the other
    wrong = []
    for name in ("before", "majority of five", "four of five"):
        scores = asked(store, settings, opinion, name, ["Good."] * 150)
        wrong.append(scores.count(-1) / (scores.count(-1) + scores.count(1)))
        if (trouble := seen(store, settings).get("judges disagree")) is not None:
            settings |= trouble.settings
    assert settings["judge.consensus_threshold"] == 0.8
    assert wrong[1] < 0.75 * wrong[0], wrong
    assert wrong[2] <= wrong[1], wrong


def test_a_narrower_band_leaves_fewer_rewards_without_a_verdict(
    store: Store, tmp_path: Path
) -> None:
    """A reward model that is never sure."""
    (tmp_path / "rewards.py").write_text(
        "class M:\n    def score(self, prompt, response, next_state):\n"
        "        return 0.47 if 'not' in next_state else 0.53\n"
        "def get_reward_model(config): return M()\n"
    )
    settings: dict[str, Any] = {
        "judge.kind": "plugin",
        "judge.plugin_path": str(tmp_path / "rewards.py"),
    }
    words, rounds = ["I do not like it", "I like it"] * 8, 0
    ids = waiting(store, "before", words)
    drained(home(store, settings), store)
    assert not any(verdicts(store, ids))
    while (trouble := seen(store, settings).get(COLLAPSED)) is not None and rounds < 4:
        settings |= trouble.settings
        rounds += 1
        ids = waiting(store, f"after{rounds}-", words * 3)
        drained(home(store, settings), store)
    assert verdicts(store, ids) == [-1, 1] * 24
    assert rounds == 2, "half of the band each time"


# ---------------------------------------------------------------------------- training and rollouts


def test_a_larger_batch_drains_the_queue_in_fewer_steps(
    store: Store, builder: SampleBuilder, fill: Callable[..., list[str]], tmp_path: Path
) -> None:
    took = []
    settings: dict[str, Any] = {}
    for name in ("before", "after"):
        fill(store, 64)
        train = home(store, settings).train
        room = TrainLoop(store, ScriptedTrainer(), builder, train, tmp_path / name)
        if not settings:
            settings = dict(seen(store, now=time.time())["the trainer falls behind"].settings)
        took.append(sum(1 for _ in itertools.takewhile(bool, (room.run_once() for _ in range(20)))))
        room.close()
    assert took == [4, 2]


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SubprocessSystem]:
    with SubprocessSystem(
        scratch_config(
            tmp_path_factory.mktemp("home"),
            {"train.batch.min_turns": 64, "train.batch.max_turns": 64},
        )
    ) as made:
        yield made


def test_more_workers_make_more_rollouts_at_once(
    system: SubprocessSystem, store: Store, tmp_path: Path
) -> None:
    """Against the real gateway and engine, with an environment that takes its time, as environments do."""
    (tmp_path / "slow.py").write_text(
        "import asyncio\nrunning = 0\nasync def rollout(model, task):\n    global running\n    running += 1\n"
        "    await asyncio.sleep(0.6)\n    seen = running\n    await model.generate(task, max_tokens=4)\n"
        "    running -= 1\n    return seen\n"
    )
    rollouts = {"rollout.function_path": str(tmp_path / "slow.py")}
    steps(store, (0, 1, 1), (100, 1, 1), (200, 1, 1))
    heartbeats.write_heartbeat(store, "train", "0 of 2", waits=[Wait.TURNS])
    trouble = seen(store, rollouts)["slow collection"]
    most = []
    for settings in (rollouts, rollouts | dict(trouble.settings)):
        config = system.config.model_copy(update={"rollout": home(store, settings).rollout})
        out = tmp_path / str(len(most))
        done = asyncio.run(roll(config, [RolloutTask(text="Hi")], out, num=16))
        assert not any(one.error for one in done)
        most.append(max(json.loads(file.read_text())["result"] for file in out.glob("*.json")))
    assert most == [2, trouble.settings["rollout.workers"]]


def stepped(
    path: str, settings: Mapping[str, Any], draw: Callable[..., list[Sample]], out: Path
) -> int:
    """Ten steps on praise and blame by turns, from the last version that passed the gate; how many did not."""
    train = from_flat(dict(settings)).train
    trainer = LocalTrainer(path, make_method(train), train)
    tracker, before, rejected = (
        MetricsTracker(TrackConfig(), out.parent / "logs", run="r", settings={}),
        None,
        0,
    )
    for n in range(10):
        result = trainer.step(draw(trainer, n, 8, reward=(-1.0, 1.0)[n % 2]), str(out / str(n)))
        assert result.folder is not None
        refused = rejection_reason(result.metrics, train) is not None
        state = PolicyState.REJECTED if refused else PolicyState.LIVE
        tracker.log_step(replace(world.policy(n + 1, 0), state=state), result.metrics, [])
        before = before if refused else result
        if refused:
            rejected += 1
            trainer.load(
                folder=before and before.folder, method_state=before.memory if before else {}
            )
    return rejected


@pytest.mark.parametrize(("weights", "rate"), [("lora", 0.3), ("full", 0.1)])
def test_smaller_steps_pass_the_gate(
    tiny: str,
    draw: Callable[..., list[Sample]],
    tmp_path: Path,
    store: Store,
    weights: str,
    rate: float,
) -> None:
    """The real trainer on a rate that is far too high; the same batches."""
    fixed = {
        "train.method": "binary",
        "train.safety.max_turn_log_ratio": 9.0,
        "train.safety.max_batch_log_ratio": 9.0,
        "train.finetune": weights,
    }
    settings = fixed | {"train.optimizer.learning_rate": rate}
    assert stepped(tiny, settings, draw, tmp_path / "before") == 10
    trouble = seen(store, settings)["unstable training"]
    assert stepped(tiny, settings | dict(trouble.settings), draw, tmp_path / "after") == 0
    assert "unstable training" not in seen(store, settings | dict(trouble.settings))


def large(folder: Path) -> str:
    """A model whose activations are most of what a step holds: 4 layers, hidden 128."""
    shape = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 4, "head_dim": 32}
    heads = {
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 64,
        "eos_token_id": 1,
    }
    Qwen3ForCausalLM(Qwen3Config(**shape, **heads, bos_token_id=0)).save_pretrained(folder)
    return str(folder)


def measured(path: str, settings: Mapping[str, Any], out: Path) -> tuple[float, int]:
    """Of a real step: MiB of tensors that it held at most, and the parameters that are trained.

    By torch's own count: what the process takes from the system is also what malloc keeps of what was freed.
    """
    gc.collect()  # the trainer before this one
    train, rng = from_flat(dict(settings)).train, np.random.default_rng(0)
    trainer = LocalTrainer(path, make_method(train), train, ModelConfig(device="cpu"))
    ids = lambda: rng.integers(0, 64, 100).astype(np.int32)  # noqa: E731
    samples = [
        Sample(
            **{
                "turn": f"t{n}",
                "agent": "a",
                "prompt_ids": ids(),
                "response_ids": ids(),
                "mask": np.ones(100, bool),
            },
            **{
                "logprobs": np.full(100, -4.0, np.float32),
                "temperature": 1.0,
                "version": 0,
                "reward": 1.0,
            },
        )
        for n in range(16)
    ]
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        assert trainer.step(samples, str(out)).folder is not None
    seen.export_chrome_trace(f"{out}.json")
    told = json.loads(Path(f"{out}.json").read_text())["traceEvents"]
    taken = sorted(
        (one["ts"], one["args"]["Bytes"]) for one in told if one["name"] == "[memory]"
    )  # < 0: given back
    most = max(itertools.accumulate(number for _, number in taken))
    return most / 2**20, sum(p.numel() for p in trainer.model.parameters() if p.requires_grad)


def too_large(store: Store) -> Mapping[str, Any]:
    """What doctor proposes for a step that did not fit."""

    def too_much() -> None:
        raise torch.OutOfMemoryError("Tried to allocate 2.00 GiB")

    with (
        logs_of("train", home(store)),
        pytest.raises(OpenClawError, match="does not fit into memory"),
    ):
        retry_on_oom(too_much, Rows(), lambda: False)
    return seen(store, WIDE, now=time.time())["out of memory"].settings


WIDE = {
    **{
        "train.method": "binary",
        "train.safety.max_turn_log_ratio": 99.0,
        "train.safety.max_batch_log_ratio": 99.0,
    },
    # By default a trainer takes this cure by itself (tests/learner/forward/test_activation_checkpointing.py).
    "train.gradient_checkpointing": False,
}


def test_each_setting_makes_a_step_smaller(tmp_path: Path, store: Store) -> None:
    """One after the other, as doctor says. Offloading frees a GPU, and is not seen on a CPU."""
    path, cure, settings = large(tmp_path / "model"), too_large(store), dict(WIDE)
    found = [measured(path, settings, tmp_path / "0")]
    for keys in (
        ("train.gradient_checkpointing",),
        ("train.batch.micro_tokens", "train.lora.rank"),
    ):
        settings |= {key: cure[key] for key in keys}
        found.append(measured(path, settings, tmp_path / keys[0]))
    (before, _), (checkpointed, trained), (smaller, fewer) = found
    assert checkpointed < 0.5 * before, found
    assert smaller < 0.75 * checkpointed, found
    assert fewer == trained / 2, "and so are gradients and moments"


@pytest.mark.skipif(
    importlib.util.find_spec("bitsandbytes") is None, reason="`make test-qlora` runs this"
)
def test_a_base_in_four_bits_is_smaller(tmp_path: Path, store: Store) -> None:
    path, cure = large(tmp_path / "model"), too_large(store)
    found = []
    for more in ({}, {"train.base_quantization_bits": cure["train.base_quantization_bits"]}):
        train = from_flat(WIDE | more).train
        parameters = list(LocalTrainer(path, make_method(train), train).model.parameters())
        found.append(
            [
                sum(p.nbytes for p in parameters if p.requires_grad is trained)
                for trained in (False, True)
            ]
        )
    (before, adapter), (after, same) = found
    assert after < 0.25 * before, "of float32"
    assert same == adapter


def test_half_of_the_engines_batch_holds_half_of_the_replies(tiny: str, store: Store) -> None:
    """The real engine's core, asked for more replies than it takes at once: their number, and bytes of their states."""
    model, found = EmbeddedModel.load(ModelConfig(path=tiny, device="cpu")), []
    before = home(store).engine
    cured = home(store, dict(killed(store).settings)).engine
    for engine in (before, cured):
        core, most = EmbeddedEngine(model, engine), 0
        for number in range(before.max_batch + 8):
            prompt = np.full(8, number % 60, np.int32)
            core.generate(number, 0, prompt, Sampling(max_tokens=24, seed=number), ())
        while core.has_work:
            core.step()
            most = max(most, core.running_count)
        found.append((most, core._kv_cache.data.nbytes))
    assert [most for most, _ in found] == [before.max_batch, before.max_batch // 2]
    assert found[1][1] == found[0][1] / 2


# ------------------------------------------------------------------------------- clients, engines


STATUS = "[status of {} at {}]"


def conversation(store: Store, patterns: Sequence[str]) -> int:
    """Calls of a client that puts a line of its own into the history, another one each time; how many are lost."""
    passing = EphemeralMatcher(patterns)
    with store.write() as conn:
        for n in range(10):
            first = [
                {"role": "user", "content": STATUS.format("it", n)},
                {"role": "user", "content": f"this is {n}"},
            ]
            marks = message_hash.mark_messages(first, world.KEY, passing)
            request = world.request(f"t{n}", messages=first, marks=marks)
            exchanges.admit(conn, [request])
            exchanges.finish(conn, [world.reply(request)])
            said = [{"role": "user", "content": STATUS.format("it", f"{n} later")}, first[1]]
            said += [
                {"role": "assistant", "content": world.WORDS},
                {"role": "user", "content": "And now?"},
            ]
            again = world.request(
                f"u{n}",
                messages=said,
                marks=message_hash.mark_messages(said, world.KEY, passing),
                admitted_at=12.0,
            )
            exchanges.admit(conn, [again])
            exchanges.finish(conn, [world.reply(again, finished_at=13.0)])
    collector = Collector(store, home(store).collect)
    while collector.step():
        pass
    with store.read() as conn:
        return sum(turns.get(conn, f"u{n}").parent is None for n in range(10))  # type: ignore[union-attr]


@pytest.mark.parametrize("named", [False, True])
def test_what_a_client_adds_is_named_and_passes(store: Store, named: bool) -> None:
    told = r"\[status of it at [^\]]*\]"
    patterns = [*home(store).serve.ephemeral_patterns, *([told] if named else [])]
    assert conversation(store, patterns) == (0 if named else 10)
    trouble = seen(store, now=20.0).get("wrong session tracking")
    assert (trouble is None) == named
    assert trouble is None or "serve.ephemeral_patterns" in trouble.advice


def test_the_engine_that_doctor_names_starts(store: Store) -> None:
    settings = {"engine.backend": "sglang"}
    trouble = program_checks.check_engine(home(store, settings))
    assert trouble is not None
    config = home(store, settings | dict(trouble.settings))
    assert program_checks.check_engine(config) is None
    prepare_home(config)

    async def up() -> None:
        supervisor, stop = Supervisor(config, ["engine"], echo=False), asyncio.Event()
        running = asyncio.create_task(supervisor.run(stop))
        while not config.engine_socket.exists():
            assert not running.done(), running
            await asyncio.sleep(0.05)
        stop.set()
        await asyncio.wait_for(running, 240)

    with logs_of("supervisor", config):
        asyncio.run(asyncio.wait_for(up(), 300))
