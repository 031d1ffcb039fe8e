"""Anthropic's client against the real system and its embedded engine: captured exactly, and linked."""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import anthropic
import pytest
from transformers import AutoTokenizer

from openclaw_rl.render.model_folder import ModelFiles
from openclaw_rl.store import exchanges, turns
from openclaw_rl.store.db import Store
from openclaw_rl.supervisor.subprocess_system import SubprocessSystem, scratch_config
from openclaw_rl.types import Reaction

pytestmark = pytest.mark.system

WORDS = ["What is the capital of France?", "Thanks, that is what I wanted.", "And of Italy?"]
NOTE = {"type": "text", "text": "<system-reminder>\nBe kind.\n</system-reminder>"}


def test_a_conversation_is_captured_and_linked(tmp_path: Path) -> None:
    with SubprocessSystem(scratch_config(tmp_path)) as system:
        store = Store.open(system.config.store_path, create=False)
        try:
            with anthropic.Anthropic(
                base_url=system.base_url, api_key=system.api_key, max_retries=0
            ) as client:
                said = talk(client)
            tokenizer = AutoTokenizer.from_pretrained(
                ModelFiles.from_path(system.config.model.path).folder
            )
            for message in said:
                with store.read() as conn:
                    kept = exchanges.get(conn, message.id)
                assert kept is not None
                assert kept.reply is not None
                ids = kept.reply.response_ids.tolist()
                assert tokenizer.decode(ids, skip_special_tokens=True) == message.content[0].text
                assert message.usage.output_tokens == len(ids) == len(kept.reply.logprobs)
                assert kept.reply.mask.all()
            for words, (earlier, later) in zip(WORDS[1:], pairwise(said), strict=True):
                found = reaction(store, earlier.id)
                assert (found.source, found.how) == (later.id, "exact")
                assert [m["content"] for m in found.messages] == [words]
        finally:
            store.close()


def talk(client: anthropic.Anthropic) -> list[anthropic.types.Message]:
    """Streamed turn after turn, a reminder beside every word of the user's."""
    history: list[Any] = []
    said = []
    for words in WORDS:
        history.append({"role": "user", "content": [NOTE, {"type": "text", "text": words}]})
        asked: Any = {"model": "openclaw", "messages": history, "system": "Answer briefly."}
        with client.messages.stream(max_tokens=48, **asked) as stream:
            text = "".join(stream.text_stream)
            message = stream.get_final_message()
        assert message.content[0].text == text
        usage = message.usage
        assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == counted(client, asked)
        said.append(message)
        history.append(message.to_param())
    assert said[-1].usage.cache_read_input_tokens
    return said


def counted(client: anthropic.Anthropic, asked: Any) -> int:
    return client.messages.count_tokens(**asked).input_tokens


def reaction(store: Store, turn: str) -> Reaction:
    until = time.monotonic() + 600
    while time.monotonic() < until:
        with store.read() as conn:
            if (found := turns.current_reaction(conn, turn)) is not None:
                return found
        time.sleep(0.05)
    raise AssertionError(f"no reaction to {turn} within 600 s")
