"""The official client's Responses API against the real system: captured exactly, linked, and ready to be trained on."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import openai
import pytest
from transformers import AutoTokenizer

from openclaw_rl.render.model_folder import ModelFiles
from openclaw_rl.store import exchanges, turns
from openclaw_rl.store.db import Store
from openclaw_rl.supervisor.subprocess_system import SubprocessSystem, scratch_config
from openclaw_rl.types import Exchange, Turn

pytestmark = pytest.mark.system

WORDS = ["What is the capital of France?", "Thanks, that is what I wanted.", "And of Italy?"]
WITHIN = 600.0  # seconds
_T = TypeVar("_T")


def test_a_conversation_is_captured_and_linked(tmp_path: Path) -> None:
    with SubprocessSystem(scratch_config(tmp_path)) as system:
        client = openai.OpenAI(
            base_url=f"{system.base_url}/v1", api_key=system.api_key, max_retries=0
        )
        store = Store.open(system.config.store_path, create=False)
        try:
            said = _talk(client, system.config.model.name)
            kept = [
                _waited(lambda id_=id_: _exchange(store, id_), lambda e: e.reply is not None)
                for id_ in said
            ]
            _check_tokens(system, kept, said)
            for earlier, later in pairwise(kept):
                _check_link(store, earlier, later)
        finally:
            store.close()
            client.close()


def _talk(client: openai.OpenAI, model: str) -> dict[str, str]:
    """Streamed turn after turn by `previous_response_id`. Returns what was said, by id."""
    said: dict[str, str] = {}
    previous: str | None = None
    for words in WORDS:
        text, response = "", None
        for event in client.responses.create(
            model=model,
            input=words,
            instructions="Be kind.",
            previous_response_id=previous,
            max_output_tokens=48,
            stream=True,
        ):
            if event.type == "response.output_text.delta":
                text += event.delta
            elif event.type in ("response.completed", "response.incomplete"):
                response = event.response
        assert response is not None
        assert response.output_text == text
        previous = response.id
        said[previous] = text
    return said


def _check_tokens(system: SubprocessSystem, kept: list[Exchange], said: dict[str, str]) -> None:
    tokenizer = AutoTokenizer.from_pretrained(ModelFiles.from_path(system.config.model.path).folder)
    for exchange in kept:
        assert exchange.reply is not None
        assert (
            tokenizer.decode(exchange.reply.response_ids.tolist(), skip_special_tokens=True)
            == said[exchange.request.id]
        )
        assert exchange.reply.message["content"] == said[exchange.request.id]
    users = [m["content"] for m in kept[-1].request.messages if m["role"] == "user"]
    assert users == WORDS


def _check_link(store: Store, earlier: Exchange, later: Exchange) -> None:
    """The collector finds the next turn, and what its user said to the earlier one."""
    assert earlier.reply is not None
    before = [*earlier.request.prompt_ids.tolist(), *earlier.reply.response_ids.tolist()]
    assert later.request.prompt_ids.tolist()[: len(before)] == before
    turn = _waited(lambda: _turn(store, later.request.id), lambda t: t.parent is not None)
    assert (turn.parent, turn.relation) == (earlier.request.id, "continuation")
    with store.read() as conn:
        reaction = turns.current_reaction(conn, earlier.request.id)
    assert reaction is not None
    assert [m["content"] for m in reaction.messages] == [later.request.messages[-1]["content"]]
    assert reaction.how == "exact"


def _exchange(store: Store, id_: str) -> Exchange:
    with store.read() as conn:
        found = exchanges.get(conn, id_)
    assert found is not None
    return found


def _turn(store: Store, id_: str) -> Turn:
    with store.read() as conn:
        found = turns.get(conn, id_)
    assert found is not None
    return found


def _waited(get: Callable[[], _T], good: Callable[[_T], bool]) -> _T:
    until = time.monotonic() + WITHIN
    while not good(value := get()):
        assert time.monotonic() < until, f"not within {WITHIN:g} s: {value!r}"
        time.sleep(0.05)
    return value
