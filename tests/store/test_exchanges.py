"""Admission, end and feedback: what is put in comes back, and what may not be kept is not there."""

from __future__ import annotations

import numpy as np
import pytest
from sqlalchemy import Connection
from tests.store.world import KEY, NOTHING, equal, reply, request, serve

from openclaw_rl.common import message_hash
from openclaw_rl.store import events, exchanges, rows, turns
from openclaw_rl.store.db import Store
from openclaw_rl.store.exchange_index import MAX_SAME_HASH, ExchangeIndex
from openclaw_rl.store.feedback import records
from openclaw_rl.store.turn_states import degenerate_reason, loop_period
from openclaw_rl.types import (
    Capture,
    ExchangeStatus,
    Feedback,
    FinishReason,
    Kind,
    Request,
    Sampling,
    Span,
    TurnState,
)

FAILED, CANCELLED = ExchangeStatus.FAILED, ExchangeStatus.CANCELLED


def feedback(target: str, **changes: object) -> Feedback:
    values = {
        "id": "f1",
        "scope": "key",
        "target": target,
        "score": -1,
        "comment": "no",
        "given_at": 14.0,
    }
    return Feedback(**(values | changes))


def test_exchanges_are_read_back_unchanged(store: Store) -> None:
    asked = request(
        "a",
        user="ann",
        session="s",
        kind=Kind.MAIN,
        session_done=True,
        dialect="responses",
        previous="z",
    )
    odd = request(
        "b",
        messages=[{"role": "user", "content": "half \ud800, é", "extra": [1, None]}],
        sampling=Sampling(logit_bias={7: -1.5}),
    )
    said = reply(
        asked,
        first_token_at=10.5,
        error="none",
        spans=(Span(start=0, end=1, version=0), Span(start=1, end=3, version=2)),
    )
    with store.write() as conn:
        exchanges.admit(conn, [asked, odd])
        exchanges.finish(conn, [said])
    with store.read() as conn:
        first, second = exchanges.get(conn, "a"), exchanges.get(conn, "b")
        assert exchanges.get(conn, "c") is None
        assert [(e.kind, e.ref) for e in events.read_after(conn, 0, 9)] == [
            ("exchange.admitted", "a"),
            ("exchange.admitted", "b"),
            ("exchange.finished", "a"),
        ]
    assert first is not None
    assert second is not None
    equal(first, asked, said)
    equal(second, odd, None)
    assert (first.seq, second.seq) == (1, 2)


def test_arrays_from_the_store_are_writable(store: Store) -> None:
    """A tensor made from an array that is not writable warns."""
    with store.write() as conn:
        serve(conn, "a")
        found = exchanges.get(conn, "a")
    assert found is not None
    assert found.reply is not None
    for array in (
        found.request.prompt_ids,
        found.reply.response_ids,
        found.reply.logprobs,
        found.reply.mask,
    ):
        array[0] = 1


def test_a_redacted_exchange_keeps_only_hashes(store: Store) -> None:
    secret = "the secret words"
    asked = request(
        "a",
        capture=Capture.REDACTED,
        messages=[{"role": "user", "content": secret}],
        tools=[{"t": secret}],
        template={"t": secret},
        user=secret,
        sampling=Sampling(max_tokens=16, stop=(secret,), grammar=f"start: {secret}"),
    )
    said = reply(asked, message={"role": "assistant", "content": secret}, error=secret)
    opinion = Feedback(
        id="f",
        scope=asked.scope,
        target="a",
        score=1,
        comment=secret,
        correction=secret,
        given_at=1.0,
    )
    with store.write() as conn:
        exchanges.admit(conn, [asked])
        exchanges.finish(conn, [said])
        records.add_feedback(conn, [opinion])
        found, turn = exchanges.get(conn, "a"), turns.get(conn, "a")
        held = b"".join(
            bytes(value) if isinstance(value, bytes) else str(value).encode()
            for table in ("exchanges", "bodies", "replies", "turns", "events", "feedback")
            for row in conn.exec_driver_sql(f"SELECT * FROM {table}")
            for value in row
        )
    assert found is not None
    assert found.reply is not None
    assert turn is not None
    assert found.request.marks == asked.marks
    assert found.reply.mark == said.mark
    assert (len(found.request.messages), len(found.request.tools), dict(found.reply.message)) == (
        0,
        0,
        {},
    )
    assert [
        len(found.request.prompt_ids),
        len(found.reply.response_ids),
        len(found.reply.logprobs),
    ] == [0, 0, 0]
    assert "redacted" in str(turn.untrainable)
    assert secret.encode() not in held
    assert asked.prompt_ids.tobytes() not in held
    assert said.logprobs.tobytes() not in held


@pytest.mark.parametrize("path_part", ["", "-wal"])
def test_redacted_text_is_not_in_the_file(store: Store, path_part: str) -> None:
    words = "utterly private sentence"
    asked = request("a", capture=Capture.REDACTED, messages=[{"role": "user", "content": words}])
    with store.write() as conn:
        exchanges.admit(conn, [asked])
        exchanges.finish(conn, [reply(asked, message={"role": "assistant", "content": words})])
    raw = store.path.with_name(store.path.name + path_part).read_bytes()
    assert raw
    assert words.encode() not in raw


@pytest.mark.parametrize(
    ("status", "error", "cause"),
    [
        (FAILED, "engine died", "the reply failed: engine died"),
        (CANCELLED, None, "the reply was cancelled"),
    ],
)
def test_undelivered_replies_are_dropped(
    store: Store, status: ExchangeStatus, error: str | None, cause: str
) -> None:
    with store.write() as conn:
        serve(conn, "a", status=status, error=error)
        turn = turns.get(conn, "a")
        assert turn is not None
        assert (turn.state, turn.reason) == (TurnState.DROPPED, cause)
        assert [e.kind for e in events.read_after(conn, 0, 9)][1:] == [
            "turn.dropped",
            "exchange.finished",
        ]


def test_greedy_replies_are_untrainable(store: Store) -> None:
    with store.write() as conn:
        exchanges.admit(conn, [request("a", sampling=Sampling(temperature=0)), request("b")])
        found = [turns.get(conn, i) for i in "ab"]
    assert [t and t.untrainable for t in found] == [
        str(Sampling(temperature=0).untrainable_reason()),
        None,
    ]


def test_finishing_an_unknown_exchange_is_refused(store: Store) -> None:
    with store.write() as conn:
        serve(conn, "a")
    for bad, error in (("b", KeyError), ("a", ValueError)):
        with pytest.raises(error, match=bad), store.write() as conn:
            exchanges.finish(conn, [reply(request(bad))])
    with store.read() as conn:
        assert events.last_seq(conn) == 2, "nothing of a refused batch is kept"


def test_running_exchanges_of_a_dead_gateway_fail(store: Store) -> None:
    with store.write() as conn:
        serve(conn, "a")
        exchanges.admit(conn, [request("b"), request("c", capture=Capture.REDACTED)])
    with store.write() as conn:
        assert exchanges.fail_running(conn, "the gateway died", 20.0) == 2
        assert exchanges.fail_running(conn, "the gateway died", 21.0) == 0
        found, turn = exchanges.get(conn, "b"), turns.get(conn, "b")
    assert found is not None
    assert found.reply is not None
    assert turn is not None
    assert (found.reply.status, found.reply.error, found.reply.finished_at) == (
        FAILED,
        "the gateway died",
        20.0,
    )
    assert turn.state is TurnState.DROPPED


def test_feedback_needs_a_known_target_of_its_own_key(store: Store) -> None:
    with store.write() as conn:
        serve(conn, "a")
        records.add_feedback(conn, [feedback("a")])
        assert [(e.ref, e.data) for e in events.read_after(conn, 0, 9, ["feedback.given"])] == [
            ("f1", {"target": "a"})
        ]
    for bad in (feedback("b", id="f2"), feedback("a", id="f3", scope="another")):
        with pytest.raises(KeyError, match=bad.target), store.write() as conn:
            records.add_feedback(conn, [bad])


@pytest.mark.parametrize(
    ("tokens", "finish", "said", "words"),
    [
        ([7], FinishReason.STOP, "x", "empty"),
        ([], None, "x", "empty"),
        ([5, 6, 7], FinishReason.STOP, " \n", "empty"),
        ([5, 6, 7], FinishReason.LENGTH, "", None),
        ([5, 6, 7], FinishReason.STOP, "x", None),
        ([5] * 33, FinishReason.STOP, "x", "the same token"),
        ([5] * 32, FinishReason.STOP, "x", None),
        ([5] * 32, FinishReason.LENGTH, "x", "the same token"),
        ([*range(100, 120), *[5, 6, 7] * 20], FinishReason.LENGTH, "x", "the same 3 tokens"),
        ([*range(100, 180), *[5, 6, 7] * 20], FinishReason.LENGTH, "x", None),
        ([i % 9 for i in range(90)], FinishReason.LENGTH, "x", None),
        ([*[5, 6, 5, 9] * 2, *range(60)], FinishReason.LENGTH, "x", None),
    ],
)
def test_degenerate_replies_are_recognised(
    tokens: list[int], finish: FinishReason | None, said: str, words: str | None
) -> None:
    found = degenerate_reason(
        reply(
            request("a"),
            tokens,
            finish_reason=finish,
            message={"role": "assistant", "content": said},
        )
    )
    assert (found is None) if words is None else (words in str(found))


def test_tool_calls_alone_are_not_empty() -> None:
    calls = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"function": {"name": "look", "arguments": "{}"}}],
    }
    assert degenerate_reason(reply(request("a"), [5, 6, 7], message=calls)) is None


def test_the_shortest_loop_period_is_found() -> None:
    rng = np.random.default_rng(0)
    for period in range(1, 9):
        loop = rng.permutation(50)[:period]
        tokens = np.concatenate([rng.integers(100, 10_000, 30), np.tile(loop, 80 // period)])
        assert loop_period(tokens.astype(np.int32)) == period


def test_degenerate_replies_are_dropped(store: Store) -> None:
    with store.write() as conn:
        serve(conn, "a", ids=[5] * 40)
        turn = turns.get(conn, "a")
    assert turn is not None
    assert turn.state is TurnState.DROPPED
    assert "more than half of its 39 tokens" in str(turn.reason)


def test_packed_arrays_are_little_endian() -> None:
    assert rows.pack_ids(np.array([1], ">i4")) == b"\x01\x00\x00\x00"
    assert rows.unpack_ids(b"\x01\x00\x00\x00").tolist() == [1]
    with pytest.raises(ValueError, match="multiple of 4 bytes, got 3"):
        rows.unpack_ids(b"abc")


def test_one_exchange_is_found_by_its_id_in_its_scope(store: Store) -> None:
    with store.write() as conn:
        exchanges.admit(conn, [request("a", previous="before"), request("b", scope="another")])
    with store.read() as conn:
        past = ExchangeIndex(conn)
        found = past.by_id("key", "a")
        assert found is not None
        assert (found.id, found.previous) == ("a", "before")
        assert past.by_id("key", "b") is None
        assert past.by_id("key", "c") is None


def test_only_the_newest_of_many_equal_histories_are_compared(store: Store) -> None:
    """A rare history is not crowded out by a common one that is asked for with it."""
    with store.write() as conn:
        rare = serve_history(conn, "rare", "What is rare?")
        common = [serve_history(conn, f"common-{n}", "Hello.") for n in range(MAX_SAME_HASH + 9)]
        chains = {rare.marks[-1].chain, common[0].marks[-1].chain}
        found = [past.id for past in ExchangeIndex(conn).by_context("key", chains)]
    assert found == ["rare", *(request.id for request in common[9:])]


def serve_history(conn: Connection, id: str, text: str) -> Request:
    messages = [{"role": "user", "content": text}]
    made = request(id, messages=messages, marks=message_hash.mark_messages(messages, KEY, NOTHING))
    exchanges.admit(conn, [made])
    return made
