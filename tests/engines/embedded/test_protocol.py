from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openclaw_rl.common.frames import FrameDecoder, InvalidFrame
from openclaw_rl.engines.embedded import protocol
from openclaw_rl.errors import GrammarError
from openclaw_rl.protocols import EngineInfo
from openclaw_rl.types import PolicyRef, Sampling

CALLS = [
    protocol.GenerateCall(
        1,
        3,
        protocol.pack_ids([1, 2]),
        Sampling(logit_bias={5: -1.5}, stop=("x",), seed=-4),
        (2, 3),
        5,
    ),
    protocol.CancelCall(2),
    protocol.LoadCall(
        3, (PolicyRef(version=1, path="/a", digest="d"), PolicyRef(version=0, path=None, digest=""))
    ),
    protocol.ScoreCall(4, 0, b"", protocol.pack_ids([7]), 0.5),
    protocol.StatesCall(6, protocol.pack_ids([7, 8, 9]), (0.6, 0.8), ((2, 3), (1, 3)), 1),
    protocol.InfoCall(5),
]
ANSWERS = [
    protocol.TokensReply(
        [1, 2], [7, 8], [-0.5, -0.25], {2: "stop"}, {1: ((7, -0.5), (9, -2.0))}, {1: 40}
    ),
    protocol.LoadReply(3),
    protocol.ScoreReply(4, protocol.pack_logprobs([-1.0])),
    protocol.StatesReply(6, (1, 1, 2), protocol.pack_states(np.array([0.5, -2.0]))),
    protocol.RejectionReply(5, "no"),
    protocol.RejectionReply.of(6, GrammarError("not this one")),
    protocol.InfoReply(
        6,
        EngineInfo(
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
    stream = b"".join(protocol.encode_frame(m) for m in [*CALLS, *CALLS])
    frames, got, at = FrameDecoder(), [], 0
    for size in [*cuts, len(stream)]:
        got += [protocol.call_decoder.decode(body) for body in frames.feed(stream[at : at + size])]
        at += size
    assert got == [*CALLS, *CALLS]


def test_answers_are_returned_unchanged() -> None:
    frames = FrameDecoder()
    assert [
        protocol.reply_decoder.decode(b)
        for b in frames.feed(b"".join(map(protocol.encode_frame, ANSWERS)))
    ] == ANSWERS


def test_a_frame_too_large_is_another_program() -> None:
    with pytest.raises(InvalidFrame, match="another program"):
        list(FrameDecoder().feed(b"HTTP/1.1 400 Bad Request"))


def test_arrays_keep_their_values() -> None:
    ids = np.array([0, 1, 2**31 - 1], dtype=np.int32)
    logprobs = np.array([-0.1, -1e-7, -50.0], dtype=np.float32)
    np.testing.assert_array_equal(protocol.unpack_ids(protocol.pack_ids(ids)), ids)
    np.testing.assert_array_equal(
        protocol.unpack_logprobs(protocol.pack_logprobs(logprobs)), logprobs
    )
