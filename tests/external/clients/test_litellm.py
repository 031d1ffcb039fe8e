"""LiteLLM, unmodified, with a prompt that is longer than the context."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import litellm
import pytest
from litellm.exceptions import ContextWindowExceededError
from tests.external.clients.conftest import Talk
from tests.serve.conftest import KEY, Site, Start

SMALL, LARGE = 2048, 16_384  # tokens
LONG = "word " * 3000
MESSAGES = [{"role": "user", "content": LONG}]

litellm.suppress_debug_info = True


def target(site: Site, provider: str = "openai") -> dict[str, Any]:
    return {
        "model": f"{provider}/openclaw",
        "api_base": site.url + ("" if provider == "anthropic" else "/v1"),
        "api_key": KEY,
        "num_retries": 0,
    }


CALLS: dict[str, Callable[[Site], Any]] = {
    "chat": lambda site: litellm.completion(**target(site), messages=MESSAGES),
    "chat, streamed": lambda site: list(
        litellm.completion(**target(site), messages=MESSAGES, stream=True)
    ),
    "chat as vLLM's": lambda site: litellm.completion(
        **target(site, "hosted_vllm"), messages=MESSAGES
    ),
    "text": lambda site: litellm.text_completion(
        **target(site, "text-completion-openai"), prompt=LONG
    ),
    "responses": lambda site: litellm.responses(**target(site), input=LONG),
    "messages": lambda site: litellm.completion(
        **target(site, "anthropic"), messages=MESSAGES, max_tokens=8
    ),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_prompt_that_is_too_long_is_recognised(start: Start, call: str) -> None:
    """In each API LiteLLM reads the error as an overflow, and the refused request leaves no exchange."""
    site = start(settings={"engine.max_context": SMALL})
    with pytest.raises(ContextWindowExceededError, match=str(SMALL)):
        CALLS[call](site)
    assert site.count() == 0


def test_the_router_falls_back_to_a_larger_context(start: Start, tmp_path: Path) -> None:
    """The overflow leads LiteLLM's router to its fallback, where the exchange is captured and trainable."""
    home = tmp_path / "large"
    home.mkdir()
    small = start(settings={"engine.max_context": SMALL})
    large = Talk(
        start(settings={"home": str(home), "engine.max_context": LARGE}, context_length=LARGE)
    )
    large.says("That is a long text.")
    router = litellm.Router(
        model_list=[
            {"model_name": "small", "litellm_params": target(small)},
            {"model_name": "large", "litellm_params": target(large.site)},
        ],
        context_window_fallbacks=[{"small": ["large"]}],
        num_retries=0,
    )
    reply = router.completion(model="small", messages=MESSAGES)
    assert reply.choices[0].message.content == "That is a long text."
    assert small.count() == 0
    ((exchange, _, _),) = large.check_captured()
    assert exchange.request.messages[0]["content"] == LONG
