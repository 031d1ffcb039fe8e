"""What is stored is what was sampled: checked with a fresh forward of the stored policy by transformers and PEFT."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from benchmarks.faults.client_log import ClientLog
from benchmarks.faults.clients import crowd
from peft import PeftModel
from sqlalchemy import select
from transformers import AutoModelForCausalLM, AutoTokenizer

from openclaw_rl.render.model_folder import ModelFiles
from openclaw_rl.store import exchanges, turns
from openclaw_rl.store.db import Store
from openclaw_rl.store.lineage import policies
from openclaw_rl.store.lineage.policy_marks import freeze_training
from openclaw_rl.store.schema import exchanges as exchange_table
from openclaw_rl.supervisor.subprocess_system import SubprocessSystem, scratch_config
from openclaw_rl.types import Exchange, ExchangeStatus, Policy

pytestmark = pytest.mark.system

SECONDS = 12.0
PATIENCE = 90.0  # seconds more that the first versions may take


@pytest.fixture(scope="module")
def served(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[SubprocessSystem, ClientLog, Store]]:
    """A system in which 6 users talked for a while and several versions were trained and served."""
    home = tmp_path_factory.mktemp("served")
    ledger = ClientLog()
    with SubprocessSystem(scratch_config(home, {"run.log_level": "warning"})) as system:

        async def talk() -> None:
            async with crowd(system, 6, ledger):
                await asyncio.sleep(SECONDS)
                end = time.monotonic() + PATIENCE
                while (
                    len(ledger.versions) < 3 and time.monotonic() < end
                ):  # a busy machine learns later
                    await asyncio.sleep(0.2)

        asyncio.run(talk())
        store = Store.open(system.config.store_path, create=False)
        with store.write() as conn:
            freeze_training(
                conn, time.time()
            )  # the crowd leaves more turns than are trained on in a minute
        system.wait_until_settled()
        yield system, ledger, store
        store.close()


def all_done(store: Store) -> list[Exchange]:
    with store.read() as conn:
        ids = (
            conn.execute(select(exchange_table.c.id).order_by(exchange_table.c.seq)).scalars().all()
        )
        found = [exchanges.get(conn, i) for i in ids]
    return [e for e in found if e and e.reply and e.reply.status is ExchangeStatus.DONE]


def fresh_logprobs(model: torch.nn.Module, exchange: Exchange) -> np.ndarray:
    """[R] log softmax(logits / T) of the stored response after the stored prompt, by one plain forward."""
    assert exchange.reply is not None
    ids = np.concatenate([exchange.request.prompt_ids, exchange.reply.response_ids]).astype(
        np.int64
    )
    with torch.no_grad():
        logits = model(input_ids=torch.from_numpy(ids)[None]).logits[0].float()
    p = len(exchange.request.prompt_ids)
    logprobs = torch.log_softmax(logits[p - 1 : -1] / exchange.request.sampling.temperature, dim=-1)
    chosen = logprobs.gather(-1, torch.from_numpy(ids[p:])[:, None])
    return chosen.squeeze(-1).numpy()


def load(policy: Policy) -> torch.nn.Module:
    folder = ModelFiles.from_path(policy.base).folder
    base = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    return base if policy.path is None else PeftModel.from_pretrained(base, policy.path).eval()


def test_no_reply_broke_and_several_versions_were_served(
    served: tuple[SubprocessSystem, ClientLog, Store],
) -> None:
    _, ledger, _ = served
    assert not ledger.broken
    assert len(ledger.finished) > 50
    assert len(ledger.versions) >= 3


def test_logprobs_equal_a_fresh_forward_under_the_stored_policy(
    served: tuple[SubprocessSystem, ClientLog, Store],
) -> None:
    _, _, store = served
    by_version: dict[int, list[Exchange]] = {}
    for exchange in all_done(store):
        assert exchange.reply is not None
        assert [s.version for s in exchange.reply.spans] == [exchange.request.version]
        by_version.setdefault(exchange.request.version, []).append(exchange)
    assert len(by_version) >= 3
    worst = 0.0
    for version, group in by_version.items():
        with store.read() as conn:
            policy = policies.get(conn, version)
        assert policy is not None
        model = load(policy)
        for exchange in group:
            assert exchange.reply is not None
            gap = float(np.max(np.abs(fresh_logprobs(model, exchange) - exchange.reply.logprobs)))
            worst = max(worst, gap)
            assert gap <= 1e-4, f"{exchange.request.id} on version {version}: off by {gap}"
    assert worst > 0, "floats that agree to the last bit were not computed twice"


def test_joined_deltas_equal_the_stored_text_and_the_decoded_tokens(
    served: tuple[SubprocessSystem, ClientLog, Store],
) -> None:
    system, ledger, store = served
    tokenizer = AutoTokenizer.from_pretrained(ModelFiles.from_path(system.config.model.path).folder)
    for exchange in all_done(store):
        assert exchange.reply is not None
        said = exchange.reply.message.get("content") or ""
        decoded = tokenizer.decode(exchange.reply.response_ids.tolist(), skip_special_tokens=True)
        assert said == decoded
        if exchange.request.id in ledger.finished:
            assert ledger.finished[exchange.request.id] == said


def test_the_next_prompt_has_the_stored_response_token_for_token(
    served: tuple[SubprocessSystem, ClientLog, Store],
) -> None:
    """After a prompt with lessons, the history is as the client sent it; the response stays as it was sampled."""
    _, _, store = served
    by_id = {e.request.id: e for e in all_done(store)}
    continued = with_lessons = 0
    with store.read() as conn:
        for exchange in by_id.values():
            turn = turns.get(conn, exchange.request.id)
            parent = by_id.get(turn.parent) if turn and turn.parent else None
            if parent is None or parent.reply is None or not parent.reply.message.get("content"):
                continue  # an empty reply has no place in a prompt that is rendered again
            prompt, response = exchange.request.prompt_ids, parent.reply.response_ids
            if parent.request.lessons:
                assert response.tobytes() in prompt.tobytes()
                with_lessons += 1
            else:
                stored = np.concatenate([parent.request.prompt_ids, response])
                np.testing.assert_array_equal(prompt[: len(stored)], stored)
                continued += 1
    assert continued > 0
    assert continued + with_lessons > 20
