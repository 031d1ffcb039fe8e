from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.model_identity import identity_of
from tests.train.external_world import BASE, SETTINGS, World

from openclaw_rl.common import message_hash
from openclaw_rl.common.client_patterns import SYSTEM_REMINDER
from openclaw_rl.common.message_hash import EphemeralMatcher
from openclaw_rl.learner.trainer import LocalTrainer
from openclaw_rl.methods.registry import make_method
from openclaw_rl.render.model_folder import ModelFiles
from openclaw_rl.render.renderer import Renderer
from openclaw_rl.settings.load import STARTER, from_flat, train_settings
from openclaw_rl.store import exchanges, reactions, turns
from openclaw_rl.store.db import Store
from openclaw_rl.store.lineage import policies
from openclaw_rl.train.lease_keeper import LeaseKeeper
from openclaw_rl.train.sample_builder import SampleBuilder
from openclaw_rl.types import (
    Exchange,
    ExchangeStatus,
    FinishReason,
    JudgedTurn,
    Policy,
    PolicyState,
    Reply,
    Request,
    Sampling,
    Span,
    Turn,
    TurnState,
    Verdict,
)

IDENTITY = "i" * 64


@pytest.fixture(scope="session")
def renderer() -> Renderer:
    return Renderer(ModelFiles.from_path(STARTER))


@pytest.fixture(scope="session")
def starter_identity() -> str:
    return identity_of(ModelFiles.from_path(STARTER))


@pytest.fixture
def builder(renderer: Renderer) -> SampleBuilder:
    method = make_method(train_settings({"method": "combine"}))
    return SampleBuilder(
        renderer=renderer,
        transient=EphemeralMatcher([SYSTEM_REMINDER]),
        signal=method,
        max_staleness=64,
    )


@pytest.fixture
def head() -> Policy:
    return Policy(
        version=0,
        parent=None,
        state=PolicyState.LIVE,
        path=None,
        digest="",
        base="b",
        identity=IDENTITY,
        created_at=0.0,
    )


@pytest.fixture
def judged(renderer: Renderer) -> Callable[..., JudgedTurn]:
    """A judged turn as the store would give it; keywords replace parts of request, reply and verdict."""
    numbers = itertools.count(1)

    def make(
        *,
        score: int | None = 1,
        hints: tuple[str, ...] = (),
        request: dict[str, Any] | None = None,
        reply: dict[str, Any] | None = None,
        words: str = "Paris.",
        question: str = "Where is the Louvre?",
        at: float | None = None,
    ) -> JudgedTurn:
        n = next(numbers)
        messages = [{"role": "user", "content": question}]
        prompt = renderer.render(messages).prompt_ids
        response = np.append(renderer.tokenizer.encode(words), renderer.stop_token_ids[0]).astype(
            np.int32
        )
        r = len(response)
        now = time.time() if at is None else at
        key = bytes(32)
        marks = message_hash.mark_messages(messages, key, EphemeralMatcher([]))
        answer = {"role": "assistant", "content": words}
        sent = Request(
            **{
                "id": f"chatcmpl-{n}",
                "scope": "key",
                "messages": messages,
                "marks": marks,
                "sampling": Sampling(),
                "prompt_ids": prompt,
                "version": 0,
                "identity": IDENTITY,
                "admitted_at": now,
                **(request or {}),
            }
        )
        got = Reply(
            **{
                "id": sent.id,
                "status": ExchangeStatus.DONE,
                "message": answer,
                "response_ids": response,
                "logprobs": np.full(r, -1.0, np.float32),
                "mask": np.ones(r, bool),
                "spans": (Span(start=0, end=r, version=sent.version),),
                "finish_reason": FinishReason.STOP,
                "mark": message_hash.mark_message(answer, index=1, chain=marks[-1].chain, key=key),
                "finished_at": now,
                **(reply or {}),
            }
        )
        return JudgedTurn(
            exchange=Exchange(seq=n, request=sent, reply=got),
            turn=Turn(id=sent.id, session="s", parent=None, state=TurnState.JUDGED),
            verdict=Verdict(
                turn=sent.id, revision=1, judge="test", score=score, hints=hints, at=now
            ),
            earlier_uses=0,
        )

    return make


def put(store: Store, items: list[JudgedTurn]) -> list[str]:
    """Walks turns through the store as the workers do: admitted, finished, closed, judged."""
    with store.write() as conn:
        exchanges.admit(conn, [i.exchange.request for i in items])
        exchanges.finish(conn, [i.exchange.reply for i in items if i.exchange.reply])
        for i in items:
            reactions.record_reaction(
                conn,
                i.turn.id,
                messages=[{"role": "user", "content": "thanks"}],
                signature=b"",
                source="later",
                how="exact",
                at=i.verdict.at,
            )
            assert turns.add_verdict(conn, i.verdict)
    return [i.turn.id for i in items]


@pytest.fixture
def fill(judged: Callable[..., JudgedTurn]) -> Callable[..., list[str]]:
    """Puts judged turns into a store."""

    def make(store: Store, count: int, **keywords: Any) -> list[str]:
        return put(store, [judged(**keywords) for _ in range(count)])

    return make


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store.open(tmp_path / "store.db")
    with opened.write() as conn:
        policies.ensure_root(conn, base="b", identity=IDENTITY, at=1.0)
    yield opened
    opened.close()


@pytest.fixture
def world(store: Store, builder: SampleBuilder, tmp_path: Path) -> Iterator[World]:
    made = World(store, builder, tmp_path)
    yield made
    made.close()


@pytest.fixture(scope="session")
def local() -> LocalTrainer:
    """The own trainer, which stands in the other program."""
    bounds = {"train.safety.max_turn_log_ratio": 100.0, "train.safety.max_batch_log_ratio": 100.0}
    config = from_flat(SETTINGS | bounds | {"train.trainer": "local"})
    return LocalTrainer(str(BASE), make_method(config.train), config.train, config.model)


@pytest.fixture(autouse=True)
def closed_leases(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """End the threads that renew the leases of a test's training loops."""
    keepers: list[LeaseKeeper] = []
    start = LeaseKeeper.__init__

    def start_and_remember(keeper: LeaseKeeper, *arguments: Any, **options: Any) -> None:
        start(keeper, *arguments, **options)
        keepers.append(keeper)

    monkeypatch.setattr(LeaseKeeper, "__init__", start_and_remember)
    yield
    for keeper in keepers:
        keeper._closed.set()
        keeper._thread.join()
