"""`openclaw-rl train` on data comes to its end by itself, and nothing else does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from openclaw_rl.common.progress import Wait
from openclaw_rl.settings.load import Config
from openclaw_rl.store import exchanges, heartbeats, leases, reactions, turns
from openclaw_rl.store.db import Store
from openclaw_rl.store.lineage import policies
from openclaw_rl.supervisor.completion import IDLE_CHECKS, CompletionChecker, ends_by_itself
from openclaw_rl.train.lease_keeper import TRAINER_LEASE
from openclaw_rl.types import (
    ExchangeStatus,
    FinishReason,
    Policy,
    PolicyState,
    Reply,
    Request,
    Sampling,
    Span,
    Verdict,
)


def ending(tmp_path: Path, **settings: Any) -> tuple[CompletionChecker, Store]:
    config = Config(home=str(tmp_path), **settings)
    store = Store.open(config.store_path)
    return CompletionChecker(config, store), store


def rooted(store: Store) -> None:
    with store.write() as conn:
        policies.ensure_root(conn, base="b", identity="i", at=1.0)


def looks(made: CompletionChecker) -> list[bool]:
    """One more than it takes."""
    return [made.finished_reason() is not None for _ in range(IDLE_CHECKS + 2)]


@pytest.mark.parametrize(
    ("settings", "workers", "ends"),
    [
        ({}, ("train",), False),
        ({"train": {"max_steps": 3}}, ("train",), True),
        ({"data": {"path": "/data"}}, ("judge", "train", "data"), True),
        (
            {"data": {"path": "/data"}, "train": {"exit_when_done": False}},
            ("judge", "train", "data"),
            False,
        ),
        ({"train": {"exit_when_done": True}}, ("train",), True),
        (
            {"train": {"exit_when_done": True, "max_steps": 3}},
            ("engine", "gateway", "train"),
            False,
        ),
        ({"train": {"max_steps": 3}}, ("judge",), False),
    ],
)
def test_which_workers_end_by_themselves(
    settings: dict[str, Any], workers: tuple[str, ...], ends: bool
) -> None:
    assert ends_by_itself(Config(**settings), workers) is ends


def test_the_last_step_is_the_end(tmp_path: Path) -> None:
    made, store = ending(tmp_path, train={"max_steps": 2})
    assert made.finished_reason() is None, "no policy yet"
    rooted(store)
    for version in (1, 2):
        assert made.finished_reason() is None
        policy = Policy(
            version=version,
            parent=version - 1,
            state=PolicyState.LIVE,
            path=None,
            digest="",
            base="b",
            identity="i",
            metrics={"step": float(version)},
            created_at=1.0,
        )
        with store.write() as conn:
            lease = leases.acquire(conn, TRAINER_LEASE, "test", 10.0, 1.0)
            assert lease is not None
            policies.publish(conn, lease, policy, [], 1.0)
    assert made.finished_reason() == "train.max_steps 2 is reached; version 2 is the last"
    store.close()


def judge_one(store: Store, *, closed_only: bool) -> None:
    request = Request(
        id="t",
        scope="s",
        messages=({"role": "user", "content": "ask"},),
        marks=(),
        sampling=Sampling(),
        prompt_ids=np.array([1], np.int32),
        version=0,
        identity="i",
        admitted_at=1.0,
    )
    reply = Reply(
        id="t",
        status=ExchangeStatus.DONE,
        message={"role": "assistant", "content": "answer"},
        response_ids=np.array([4, 5], np.int32),
        logprobs=np.array([-0.5, -0.5], np.float32),
        mask=np.array([True, True]),
        spans=(Span(start=0, end=2, version=0),),
        finish_reason=FinishReason.STOP,
        mark=None,
        finished_at=2.0,
    )
    with store.write() as conn:
        if closed_only:
            exchanges.admit(conn, [request])
            exchanges.finish(conn, [reply])
            reactions.record_reaction(
                conn,
                "t",
                messages=[{"role": "user", "content": "thanks"}],
                signature=b"",
                source="later",
                how="exact",
                at=3.0,
            )
        else:
            assert turns.add_verdict(
                conn, Verdict(turn="t", revision=1, judge="test", score=1, at=4.0)
            )


def test_nothing_left_is_the_end(tmp_path: Path) -> None:
    made, store = ending(tmp_path, train={"exit_when_done": True})
    rooted(store)
    assert not any(looks(made)), "the trainer has not looked yet"
    heartbeats.write_heartbeat(store, "train", "making a batch")
    assert not any(looks(made)), "it is at work"
    heartbeats.write_heartbeat(store, "train", "the note is text for people", waits=[Wait.TURNS])
    judge_one(store, closed_only=True)
    assert not any(looks(made)), "a turn waits for its verdict"
    judge_one(store, closed_only=False)
    assert looks(made) == [False] * IDLE_CHECKS + [True, True], (
        "the first look sees that something has happened"
    )
    assert "nothing is left to import, judge or train on (the note is text for people)" in str(
        made.finished_reason()
    )
    store.close()


def test_training_does_not_end_before_the_import(tmp_path: Path) -> None:
    data = tmp_path / "data.jsonl"
    data.write_text("{}\n")
    made, store = ending(tmp_path, data={"path": str(data)})
    rooted(store)
    heartbeats.write_heartbeat(store, "train", "0 of 2", waits=[Wait.TURNS])
    assert not any(looks(made))
    store.close()


@pytest.mark.parametrize(
    ("waits", "ends"),
    [
        ([Wait.TURNS], True),
        ([Wait.TURNS, Wait.MAX_STEPS], True),
        ([Wait.MAX_STEPS], True),
        ([], False),
        ([Wait.TURNS, Wait.GATE], False),
        ([Wait.FROZEN], False),
        ([Wait.SETTLING, Wait.TURNS], False),
        ([Wait.TRAINER], False),
        ([Wait.LEASE], False),
    ],
)
def test_training_ends_by_what_the_policies_wait_for(
    tmp_path: Path, waits: list[Wait], ends: bool
) -> None:
    checker, store = ending(tmp_path, train={"exit_when_done": True})
    rooted(store)
    heartbeats.write_heartbeat(store, "train", "waiting for turns: 0 of 2", waits=waits)
    assert any(looks(checker)) is ends
    store.close()
