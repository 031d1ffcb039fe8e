"""Each trouble: provoked through real parts, named from store, metrics and logs, with settings that can be set."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import logging
import os
import signal
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.store import world
from tests.system.test_words import run

from openclaw_rl.collect.worker import Collector
from openclaw_rl.common import message_hash
from openclaw_rl.common.logging_metrics import setup_logging
from openclaw_rl.common.progress import Wait
from openclaw_rl.errors import OpenClawError
from openclaw_rl.gates.metric_gates import rejection_reason
from openclaw_rl.judge.voting import majority_score
from openclaw_rl.learner.model.oom import retry_on_oom
from openclaw_rl.settings.load import Config, TrackConfig, from_flat, load_all
from openclaw_rl.status import diagnose, diagnosis_report
from openclaw_rl.status.diagnose import Diagnosis
from openclaw_rl.status.health import LOG_WINDOW
from openclaw_rl.store import exchanges, heartbeats, turns
from openclaw_rl.store.db import Store
from openclaw_rl.store.lineage import policies
from openclaw_rl.supervisor.home_folder import prepare_home
from openclaw_rl.supervisor.supervisor import Supervisor
from openclaw_rl.train.tracking import MetricsTracker
from openclaw_rl.types import Policy, PolicyState, Vote

pytestmark = pytest.mark.system

GUIDE = (Path(__file__).parents[2] / "docs" / "guides" / "troubles.md").read_text(encoding="utf-8")
NOW = 1000.0  # seconds; the world's turns were judged at 13


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store.open(tmp_path / "store.db")
    with opened.write() as conn:
        policies.ensure_root(conn, base="base", identity="i", at=1.0)
    yield opened
    opened.close()


def seen(
    store: Store, settings: dict[str, Any] | None = None, now: float = NOW
) -> dict[str, Diagnosis]:
    """By name. Whatever cures them can be set, is not set yet, and stands in the guide."""
    config = home(store, settings)
    with store.read() as conn:
        named = {trouble.name: trouble for trouble in diagnose.find_diagnoses(config, conn, now)}
    for trouble in named.values():
        changed(config, trouble)
        assert trouble.name.replace(" sglang", "") in GUIDE
        assert all(key in GUIDE for key in trouble.settings)
    return named


def home(store: Store, settings: dict[str, Any] | None = None) -> Config:
    return from_flat({"home": str(store.path.parent)} | (settings or {}))


def changed(config: Config, trouble: Diagnosis) -> None:
    sets = [
        f"{key}={diagnosis_report.format_setting(value)}" for key, value in trouble.settings.items()
    ]
    cured = load_all(sets=sets, environ={}).config
    for key in trouble.settings:
        before, after = config, cured
        for part in key.split("."):
            before, after = getattr(before, part), getattr(after, part)
        assert after != before, key


@contextmanager
def logs_of(room: str, config: Config) -> Iterator[None]:
    """The log of that room, as its process sets it up."""
    setup_logging(room, config.logs_dir)
    try:
        yield
    finally:
        setup_logging(room, None)
        logging.getLogger("openclaw_rl").propagate = True


def steps(store: Store, *told: tuple[float, float, float]) -> None:
    """(seconds since the epoch, seconds that the step took, gradient norm) of each, past the real gate."""
    tracker = MetricsTracker(TrackConfig(), home(store).logs_dir, run="r", settings={})
    for version, (at, seconds, norm) in enumerate(told, 1):
        metrics = {"loss/total": 0.1, "kl": 0.1, "kl/step": 0.001, "gradient/norm": norm}
        reason = rejection_reason(metrics, Config().train)
        state = PolicyState.REJECTED if reason else PolicyState.LIVE
        policy = Policy(
            version=version,
            parent=0,
            state=state,
            path=None,
            digest="",
            base="b",
            identity="i",
            created_at=at,
        )
        tracker.log_step(policy, metrics | {"seconds": seconds}, [])


def voted(store: Store, *scores: int, count: int = 10) -> None:
    with store.write() as conn:
        for n in range(count):
            world.serve(conn, f"v{n}")
            world.close(conn, f"v{n}")
            votes = [Vote(score=score) for score in scores]
            majority = majority_score(votes, 0.5)
            verdict = world.verdict(
                f"v{n}", score=majority.score, votes=tuple(votes), reason=majority.reason
            )
            turns.add_verdict(conn, replace(verdict, reason_code=majority.code))


def test_a_home_that_is_well_has_none(store: Store) -> None:
    with store.write() as conn:
        for n in range(20):
            world.judged(conn, f"t{n}", score=1 - 2 * (n % 2))
    steps(store, *((float(n), 1.0, 1.0) for n in range(10)))
    assert seen(store) == {}


class Rows:
    """Passes of two rows: they can be halved once."""

    memory_limits, world_size = 128, 1

    def reduce_memory(self) -> str | None:
        self.memory_limits //= 2
        return f"passes of {self.memory_limits} tokens" if self.memory_limits == 64 else None


def test_out_of_memory(store: Store) -> None:
    def too_much() -> None:
        raise torch.OutOfMemoryError("Tried to allocate 2.00 GiB")

    with (
        logs_of("train", home(store)),
        pytest.raises(OpenClawError, match="does not fit into memory"),
    ):
        retry_on_oom(too_much, Rows(), lambda: False)
    trouble = seen(store, {"train.gradient_checkpointing": False}, time.time())["out of memory"]
    assert "does not fit into memory" in trouble.evidence
    assert list(trouble.settings)[:2] == [
        "train.gradient_checkpointing",
        "train.batch.micro_tokens",
    ]
    assert (
        "train.gradient_checkpointing" not in seen(store, now=time.time())["out of memory"].settings
    ), "it was tried"
    further = {"train.gradient_checkpointing": True, "train.optimizer.offload": True}
    assert not further.keys() & seen(store, further, time.time())["out of memory"].settings.keys()
    assert seen(store, now=time.time() + LOG_WINDOW + 60) == {}


def killed(store: Store) -> Diagnosis:
    """What doctor says of an engine that the system kills."""
    config = home(store, {"run.max_crashes": 1})
    prepare_home(config)

    async def main() -> None:
        supervisor = Supervisor(config, ["engine"], echo=False)
        running = asyncio.create_task(supervisor.run(asyncio.Event()))
        while (pid := supervisor.worker_pid("engine")) is None:
            await asyncio.sleep(0.05)
        os.kill(pid, signal.SIGKILL)
        await asyncio.wait_for(running, 240)

    with logs_of("supervisor", config), pytest.raises(OpenClawError, match="engine crashed once"):
        asyncio.run(main())
    return seen(store, now=time.time())["out of memory"]


def test_an_engine_that_the_system_kills(store: Store) -> None:
    trouble = killed(store)
    assert "engine ended (signal SIGKILL)" in trouble.evidence
    assert trouble.settings == {"engine.max_batch": 16}


def test_a_judge_that_falls_behind(store: Store) -> None:
    with store.write() as conn:
        for n in range(17):
            world.serve(conn, f"t{n}")
            world.close(conn, f"t{n}")
    trouble = seen(store)["the judge falls behind"]
    assert "17 turns without a verdict, the first for 988 s" in trouble.evidence
    assert seen(store, dict(trouble.settings)) == {}


def test_a_trainer_that_falls_behind(store: Store) -> None:
    with store.write() as conn:
        for n in range(32):
            world.judged(conn, f"t{n}")
    trouble = seen(store)["the trainer falls behind"]
    assert trouble.evidence.startswith("32 turns to train on, a step takes at most 16")
    assert seen(store, dict(trouble.settings)) == {}
    assert seen(store, {"train.method": "opd"}) == {}, (
        "a method that learns from hints waits for none of these"
    )


def test_slow_collection(store: Store) -> None:
    steps(store, (0, 1, 1), (100, 1, 1), (200, 1, 1))
    heartbeats.write_heartbeat(store, "train", "0 of 2", waits=[Wait.TURNS])
    assert seen(store) == {}, "nobody is told to talk faster"
    trouble = seen(store, {"data.watch_dir": "/somewhere"})["slow collection"]
    assert "busy 1% of the time" in trouble.evidence
    assert trouble.settings == {"rollout.workers": 4}


def test_scores_collapsed_near_the_middle(store: Store) -> None:
    with store.write() as conn:
        for n in range(10):
            world.judged(conn, f"t{n}", score=0)
    name = "scores collapsed near the middle"
    assert seen(store)[name].settings["judge.kind"] == "llm"
    plugin = seen(store, {"judge.kind": "plugin", "judge.plugin_path": "x.py"})[name].settings
    assert plugin == pytest.approx({"judge.reward_low": 0.45, "judge.reward_high": 0.55})


def test_reactions_without_words(store: Store) -> None:
    with store.write() as conn:
        for n in range(10):
            world.serve(conn, f"t{n}")
            world.close(conn, f"t{n}", words="")
            assert turns.add_verdict(conn, world.verdict(f"t{n}", score=None))
    assert (
        "10 of the reactions have no text"
        in seen(store)["scores collapsed near the middle"].evidence
    )


def test_judges_that_disagree(store: Store) -> None:
    voted(store, 1, 1, -1)
    trouble = seen(store)["judges disagree"]
    assert "67% of a turn's votes, over 10 turns" in trouble.evidence
    assert trouble.settings == {"judge.num_judges": 5, "judge.consensus_threshold": 0.6}
    narrow = [Vote(score=s) for s in (1, 1, 1, -1, -1)]
    assert (
        majority_score(narrow, float(trouble.settings["judge.consensus_threshold"])).score == 1
    ), "three of five"
    stricter = seen(store, dict(trouble.settings))["judges disagree"].settings
    assert stricter == {"judge.consensus_threshold": 0.8}
    assert majority_score(narrow, 0.8).score is None, "it trains nothing now"
    assert not seen(store, dict(trouble.settings) | stricter)["judges disagree"].settings


def test_votes_that_tie_want_more_votes(store: Store) -> None:
    voted(store, 1, -1)
    assert seen(
        store, {"judge.kind": "llm", "judge.base_url": "http://127.0.0.1:9/v1", "judge.model": "m"}
    )["scores collapsed near the middle"].settings == {"judge.num_judges": 5}


@pytest.mark.parametrize("norms", [(1, 1, 200, 300), (1, 1, 1, 1, 30)])
def test_unstable_training(store: Store, norms: Sequence[float]) -> None:
    steps(store, *((float(n), 1.0, norm) for n, norm in enumerate(norms)))
    settings = seen(store, {"train.finetune": "full"})["unstable training"].settings
    assert settings["train.optimizer.learning_rate"] == 5e-7
    assert seen(store)["unstable training"].settings[
        "train.optimizer.learning_rate"
    ] == pytest.approx(5e-4)
    assert (
        settings["train.optimizer.clip_grad"],
        settings["train.loss.clip_low"],
        settings["train.loss.clip_high"],
    ) == (0.5, 0.9, 1.1)


@pytest.mark.parametrize(("answer", "lost"), [("Something else.", True), (world.WORDS, False)])
def test_wrong_session_tracking(store: Store, answer: str, lost: bool) -> None:
    """A client that changes what it was answered before it sends it back."""
    with store.write() as conn:
        for n in range(10):
            world.serve(conn, f"t{n}")
            said = [*world.request(f"t{n}").messages, {"role": "assistant", "content": answer}]
            said.append({"role": "user", "content": "And now?"})
            marks = message_hash.mark_messages(said, world.KEY, world.NOTHING)
            again = world.request(f"u{n}", messages=said, marks=marks, admitted_at=12.0)
            exchanges.admit(conn, [again])
            exchanges.finish(conn, [world.reply(again, finished_at=13.0)])
    collector = Collector(store, home(store).collect)
    while collector.step():
        pass
    found = seen(store, now=20.0)
    assert ("wrong session tracking" in found) == lost
    if lost:
        assert found["wrong session tracking"].evidence.startswith(
            "10 of the newest 20 turns: no reply in its history"
        )


def test_a_client_that_sends_no_history(store: Store) -> None:
    with store.write() as conn:
        for n in range(20):
            world.serve(conn, f"t{n}")
    collector = Collector(store, home(store).collect)
    while collector.step():
        pass
    assert "continues an earlier one" in seen(store)["wrong session tracking"].evidence


def test_an_engine_that_does_not_start(store: Store) -> None:
    """The real room, without the program that it is to start."""
    settings = {"engine.backend": "sglang", "run.max_crashes": 2}
    config = home(store, settings)
    prepare_home(config)
    with (
        logs_of("supervisor", config),
        pytest.raises(OpenClawError, match="engine crashed 2 times"),
    ):
        asyncio.run(Supervisor(config, ["engine"], echo=False).run(asyncio.Event()))
    trouble = seen(store, settings, now=time.time())["the sglang engine does not start"]
    assert "sglang is not installed" in trouble.evidence
    there = "vllm" if importlib.util.find_spec("vllm") else "embedded"
    assert trouble.settings == {"engine.backend": there}, "what could not start either is no cure"


def test_a_worker_that_does_not_run(store: Store) -> None:
    """The real trainer, in the home of another model."""
    config, reason = home(store, {"run.max_crashes": 2}), "this store belongs to base"
    prepare_home(config)
    with (
        logs_of("supervisor", config),
        pytest.raises(OpenClawError, match=rf"train crashed 2 times\. Reason: {reason}"),
    ):
        asyncio.run(Supervisor(config, ["train"], echo=False).run(asyncio.Event()))
    for age in (0, 1200):  # its crashes, then what the supervisor left in the store
        trouble = seen(store, now=time.time() + age)["a worker does not run"]
        assert reason in trouble.evidence
    heartbeats.write_heartbeat(store, "train", "0 of 2", waits=[Wait.TURNS])
    assert seen(store, now=time.time() + 1200) == {}, "it runs again"


def test_a_ray_head_that_does_not_answer(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and deaf: nobody else answers there
        port = taken.getsockname()[1]
        config = home(
            store,
            {"train.ranks": 2, "train.launch.by": "ray", "train.launch.ray": f"127.0.0.1:{port}"},
        )
        assert not diagnosis_report.print_diagnoses(config, None)
        said = " ".join(capsys.readouterr().out.split())
        cured = {
            "train.ranks": 2,
            "train.launch.ray": f"127.0.0.1:{port}",
            "train.launch.by": "local",
        }
        assert diagnosis_report.print_diagnoses(home(store, cured), None), (
            "tests/learner/distributed/test_ranks.py trains so"
        )
    assert f"no head answers at 127.0.0.1:{port}" in said
    assert "--set train.launch.by=local" in said
    assert "ray start --head" in said
    assert diagnosis_report.print_diagnoses(home(store), None)


@pytest.mark.skipif(
    importlib.util.find_spec("ray") is not None, reason="then Ray is asked: tests/external/ray"
)
def test_what_answers_at_rays_address_is_not_taken_for_ray(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as another:
        address = f"127.0.0.1:{another.getsockname()[1]}"
        config = home(
            store, {"train.ranks": 2, "train.launch.by": "ray", "train.launch.ray": address}
        )
        assert not diagnosis_report.print_diagnoses(config, None)
    said = " ".join(capsys.readouterr().out.split())
    assert (
        "not installed here: pip install 'openclaw-rl[ray]'; without it, a Ray head at its address"
        in said
    )


def test_the_commands_name_them(store: Store) -> None:
    with store.write() as conn:
        for n in range(10):
            world.judged(conn, f"t{n}", score=0)
    where = ("--home", str(store.path.parent))
    status = run("status", *where).stdout
    assert "problems: scores collapsed near the middle" in " ".join(status.split())
    assert json.loads(run("status", *where, "--json").stdout)["troubles"] == [
        "scores collapsed near the middle"
    ]
    done = run("doctor", "--troubles", *where)
    assert done.returncode == 1
    assert "cure    --set judge.kind=llm" in done.stdout
    assert run("doctor", "--troubles", "--home", str(store.path.parent / "none")).returncode == 0
