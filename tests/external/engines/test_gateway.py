"""The whole system on a real vLLM: what it served and learned while people talked, and what the store knows of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import openai
import pytest
import torch
from peft import PeftModel
from sqlalchemy import select
from tests.external.engines.conftest import Served, base_model, chosen

from openclaw_rl.store import exchanges
from openclaw_rl.store.lineage import policies
from openclaw_rl.store.schema import exchanges as exchange_table
from openclaw_rl.types import Exchange, ExchangeStatus

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"enum": ["Oslo", "Rome"]},
                "days": {"type": "integer", "minimum": 1, "maximum": 9},
            },
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}


def _done(served: Served) -> list[Exchange]:
    with served.store.read() as conn:
        ids = (
            conn.execute(select(exchange_table.c.id).order_by(exchange_table.c.seq)).scalars().all()
        )
        found = [exchanges.get(conn, i) for i in ids]
    return [e for e in found if e and e.reply and e.reply.status is ExchangeStatus.DONE]


def test_no_reply_broke_and_several_versions_were_served(served: Served) -> None:
    assert not served.ledger.broken
    assert len(served.ledger.finished) > 50
    assert len(served.ledger.versions) >= 3


def test_stored_logprobs_are_those_of_a_forward_pass_of_the_stored_policy(
    served: Served, report: Callable[[str], None]
) -> None:
    """The trainer's side is the same forward pass: this is the engine/trainer gap."""
    gaps: dict[bool, list[np.ndarray]] = {False: [], True: []}
    models: dict[int, torch.nn.Module] = {}
    for exchange in _done(served):
        request, reply = exchange.request, exchange.reply
        assert reply is not None
        if request.sampling.grammar is not None:
            continue
        assert request.sampling.convention == "processed"
        assert request.sampling.untrainable_reason() is None
        if request.version not in models:
            with served.store.read() as conn:
                policy = policies.get(conn, request.version)
            assert policy is not None
            models[request.version] = (
                PeftModel.from_pretrained(base_model(), policy.path).eval()
                if policy.path
                else base_model()
            )
        ids = torch.tensor([[*request.prompt_ids.tolist(), *reply.response_ids.tolist()]])
        with torch.no_grad():
            logits = models[request.version](input_ids=ids).logits[
                0, len(request.prompt_ids) - 1 : -1
            ]
        expected = chosen(logits, reply.response_ids.tolist(), request.sampling.temperature)
        gaps[request.version > 0].append(np.abs(expected - reply.logprobs))
    for adapter, found in gaps.items():
        gap = np.concatenate(found)
        name = "adapter on" if adapter else "adapter off"
        report(
            f"vLLM against the trainer, {name}: mean |difference| {gap.mean():.2e}, max {gap.max():.2e}, "
            f"{len(gap)} tokens"
        )
        assert gap.max() < 1e-4


@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_is_called_and_its_result_is_taken(served: Served, stream: bool) -> None:
    """The starter policy knows no tools: the format is forced, and the call comes out whole."""
    api = openai.OpenAI(
        base_url=f"{served.system.base_url}/v1", api_key=served.system.api_key, max_retries=0
    )
    messages: list[Any] = [{"role": "user", "content": "What is the weather in Oslo?"}]
    asked = {
        "model": "openclaw",
        "messages": messages,
        "tools": [WEATHER],
        "tool_choice": "required",
        "max_tokens": 600,
    }
    if stream:
        calls, arguments, finish = 0, "", None
        for chunk in api.chat.completions.create(stream=True, **asked):  # type: ignore[call-overload]
            for choice in chunk.choices:
                finish = choice.finish_reason or finish
                for delta in choice.delta.tool_calls or []:
                    calls += delta.id is not None
                    arguments += delta.function.arguments or ""
        assert calls >= 1
        assert finish == "tool_calls"
        given = json.JSONDecoder().raw_decode(arguments)[0]
    else:
        reply = api.chat.completions.create(**asked)  # type: ignore[call-overload]
        message = reply.choices[0].message
        assert reply.choices[0].finish_reason == "tool_calls", message
        given = json.loads(message.tool_calls[0].function.arguments)
        messages.append(message.to_dict())
        messages += [
            {"role": "tool", "tool_call_id": c.id, "content": "12 degrees"}
            for c in message.tool_calls
        ]
        after = api.chat.completions.create(
            model="openclaw", messages=messages, tools=[WEATHER], max_tokens=60
        )  # type: ignore[list-item]
        assert after.choices[0].finish_reason in ("stop", "length", "tool_calls")
    assert given["city"] in ("Oslo", "Rome")
    assert 1 <= given["days"] <= 9
