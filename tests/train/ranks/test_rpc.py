"""What travels between the trainer and rank 0 arrives as it was sent."""

from __future__ import annotations

import os
import socket
import threading
from dataclasses import fields

import numpy as np
import pytest

from openclaw_rl.errors import ModelError, OpenClawError, rebuild_error
from openclaw_rl.methods.types import Sample, StepResult
from openclaw_rl.train.ranks import rpc
from openclaw_rl.train.ranks.rpc import (
    ErrorReply,
    LoadCommand,
    RpcChannel,
    RpcListener,
    StepCommand,
    StepReply,
)
from openclaw_rl.types import EpisodeStep


def sample(**further: object) -> Sample:
    values: dict[str, object] = {
        "turn": "t",
        "agent": "a",
        "prompt_ids": np.arange(5, dtype=np.int32),
        "response_ids": np.array([7, 2**31 - 1], np.int32),
        "logprobs": np.array([-1.5, -1e-30], np.float32),
        "mask": np.array([True, False]),
        "temperature": 0.7,
        "version": 3,
        "reward": np.float64(-1.0),
    }
    return Sample(**(values | further))  # type: ignore[arg-type]


def test_samples_are_transferred_unchanged() -> None:
    rewards = {"reward": 1.0, "rewards": (1.0, 0.0), "step_reward": 0.5, "step_rewards": (0.5,)}
    episode = EpisodeStep(group="x", episode="r", step=2, **rewards)  # type: ignore[arg-type]
    sent = [
        sample(),
        sample(reward=None, hinted_prompts=(np.arange(3, dtype=np.int32),), episode=episode),
    ]
    got = rpc.command_decoder.decode(rpc.encode(StepCommand(sent, "/out")))
    assert isinstance(got, StepCommand)
    assert got.out == "/out"
    for one, two in zip(sent, got.samples, strict=True):
        for field in fields(Sample):
            before, after = getattr(one, field.name), getattr(two, field.name)
            np.testing.assert_equal(after, before)
            assert (
                getattr(after, "dtype", None) == getattr(before, "dtype", None)
                or field.name == "reward"
            )


def test_results_and_commands_arrive() -> None:
    credit = {"t": np.array([0.5, -65504.0], np.float16)}
    result = StepResult(
        folder=None,
        digest="d",
        metrics={"kl": float("nan")},
        memory={"a": [1, {"b": 2.5}]},
        dropped={},
        credit=credit,
    )
    got = rpc.reply_decoder.decode(rpc.encode(StepReply(result)))
    assert isinstance(got, StepReply)
    assert np.isnan(got.result.metrics["kl"])
    assert (got.result.memory, got.result.folder) == (result.memory, None)
    np.testing.assert_array_equal(got.result.credit["t"], credit["t"])
    assert got.result.credit["t"].dtype == np.float16
    load = LoadCommand("/folder", {"count": np.float32(2.0)})
    assert rpc.command_decoder.decode(rpc.encode(load)) == LoadCommand("/folder", {"count": 2.0})


def test_an_error_of_a_rank_is_raised_in_the_worker() -> None:
    for error in (ModelError("no such model"), ValueError("broken weights")):
        reply = rpc.reply_decoder.decode(rpc.encode(ErrorReply(type(error).__name__, str(error))))
        assert isinstance(reply, ErrorReply)
        again = rebuild_error(reply.kind, reply.message)
        assert (type(again), str(again)) == (type(error), str(error))
    assert type(rebuild_error("Exception", "x")) is OpenClawError
    assert type(rebuild_error("annotations", "x")) is OpenClawError


def test_messages_are_split_at_their_boundaries() -> None:
    here, there = socket.socketpair()
    ours, theirs = RpcChannel(here), RpcChannel(there)
    large = os.urandom(3 * 2**20)
    sender = threading.Thread(target=lambda: [ours.send(raw) for raw in (b"a", large, b"")])
    sender.start()
    assert [theirs.receive(5), theirs.receive(5), theirs.receive(5)] == [b"a", large, b""]
    sender.join()
    assert theirs.receive(0.01) is None
    here.sendall((2).to_bytes(8, "little") + b"x")
    assert theirs.receive(0.01) is None, "half of a message is none"
    here.sendall(b"y")
    assert theirs.receive(5) == b"xy"
    ours.close()
    with pytest.raises(EOFError, match="closed the connection"):
        theirs.receive(5)
    theirs.close()


def test_only_the_same_user_reaches_the_listener() -> None:
    listener = RpcListener()
    assert listener.folder.stat().st_mode & 0o077 == 0
    found = rpc.connect_to_worker(str(listener.path))
    accepted = listener.accept(lambda: None)
    found.send(b"ready")
    assert rpc.receive_reply(accepted, lambda: None) == b"ready"
    found.close()
    accepted.close()
    listener.close()
    assert not listener.folder.exists()
