from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openclaw_rl.engines import wire
from openclaw_rl.engines.base import Info
from openclaw_rl.errors import EngineGone
from openclaw_rl.types import PolicyRef, Sampling

CALLS = [
    wire.Generate(1, 3, wire.pack_ids([1, 2]), Sampling(logit_bias={5: -1.5}, stop=("x",), seed=-4), (2, 3), 5),
    wire.Cancel(2),
    wire.Load(3, (PolicyRef(version=1, path="/a", digest="d"), PolicyRef(version=0, path=None, digest=""))),
    wire.Score(4, 0, b"", wire.pack_ids([7]), 0.5),
    wire.AskInfo(5),
]
ANSWERS = [
    wire.Tokens([1, 2], [7, 8], [-0.5, -0.25], {2: "stop"}, {1: ((7, -0.5), (9, -2.0))}, {1: 40}),
    wire.Loaded(3),
    wire.Scores(4, wire.pack_logprobs([-1.0])),
    wire.Failed(5, "no"),
    wire.Failed(6, "not this one", grammar=True),
    wire.Told(
        6,
        Info(
            model="m",
            context_length=512,
            vocab_size=64,
            versions=(0, 3),
            device="cpu",
            dtype="float32",
            running=1,
            waiting=2,
            pid=3,
        ),
    ),
]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 60), max_size=40))
def test_messages_survive_any_cutting_of_the_stream(cuts: list[int]) -> None:
    stream = b"".join(wire.encode(m) for m in [*CALLS, *CALLS])
    frames, got, at = wire.Frames(), [], 0
    for size in [*cuts, len(stream)]:
        got += [wire.calls.decode(body) for body in frames.feed(stream[at : at + size])]
        at += size
    assert got == [*CALLS, *CALLS]


def test_answers_come_back_as_they_were() -> None:
    frames = wire.Frames()
    assert [wire.answers.decode(b) for b in frames.feed(b"".join(map(wire.encode, ANSWERS)))] == ANSWERS


def test_a_frame_too_large_is_another_program() -> None:
    with pytest.raises(EngineGone, match="another program"):
        list(wire.Frames().feed(b"HTTP/1.1 400 Bad Request"))


def test_arrays_keep_their_values() -> None:
    ids = np.array([0, 1, 2**31 - 1], dtype=np.int32)
    logprobs = np.array([-0.1, -1e-7, -50.0], dtype=np.float32)
    np.testing.assert_array_equal(wire.unpack_ids(wire.pack_ids(ids)), ids)
    np.testing.assert_array_equal(wire.unpack_logprobs(wire.pack_logprobs(logprobs)), logprobs)
