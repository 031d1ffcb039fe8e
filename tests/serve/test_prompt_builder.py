"""From an ask to a prompt: what is remembered between requests must never be another request's."""

from __future__ import annotations

import asyncio

import pytest

from openclaw_rl.errors import PromptTooLong
from openclaw_rl.render.model_folder import ModelFiles
from openclaw_rl.render.renderer import Renderer
from openclaw_rl.serve.chat_request import ChatRequest
from openclaw_rl.serve.prompt_builder import PromptBuilder
from openclaw_rl.types import Sampling

TOOL = {
    "type": "function",
    "function": {"name": "look", "description": "d", "parameters": {"type": "object"}},
}


@pytest.mark.parametrize("first", [(), (TOOL,)])
def test_tools_whose_bytes_are_not_known_are_nobody_elses(
    first: tuple[dict[str, object], ...],
) -> None:
    renderer = Renderer(ModelFiles.from_path("starter"))
    prompts = PromptBuilder(renderer, secret=b"k" * 16, is_ephemeral=lambda message: False)
    second = () if first else (TOOL,)

    async def ids(tools: tuple[dict[str, object], ...]) -> list[int]:
        ask = ChatRequest(
            model="",
            messages=[{"role": "user", "content": "Where?"}],
            tools=tools,
            sampling=Sampling(),
        )
        return list((await prompts.build_prompt(ask, "scope", 2048)).rendered.prompt_ids)

    for tools in (first, second, first):
        expected = renderer.render(
            [{"role": "user", "content": "Where?"}], tools
        ).prompt_ids.tolist()
        assert asyncio.run(ids(tools)) == expected


@pytest.mark.parametrize(
    "messages",
    [
        pytest.param([{"role": "user", "content": "a word " * 300_000}], id="one user message"),
        pytest.param(
            [{"role": "user", "content": "Where is it?"}] * 20_000, id="many short messages"
        ),
        pytest.param([{"role": "assistant", "content": "a word " * 300_000}], id="one reply"),
        pytest.param([{"role": "user", "content": "ab" * 800_000}], id="one long word"),
    ],
)
def test_a_prompt_that_is_far_too_long_is_not_tokenized_whole(
    messages: list[dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    renderer = Renderer(ModelFiles.from_path("starter"))
    builder = PromptBuilder(renderer, secret=b"k" * 16, is_ephemeral=lambda message: False)
    encode, encoded = renderer.tokenizer._encode_uncached, list[int]()
    monkeypatch.setattr(
        renderer.tokenizer,
        "_encode_uncached",
        lambda text: (encoded.append(len(text)), encode(text))[1],
    )
    size = sum(len(m["content"]) for m in messages)
    ask = ChatRequest(model="", messages=messages, tools=(), sampling=Sampling(), size=size)
    with pytest.raises(
        PromptTooLong, match=r"context length is 2048 tokens.* at least \d+ tokens"
    ) as error:
        asyncio.run(builder.build_prompt(ask, "scope", 2048))
    assert error.value.tokens > 2048
    assert sum(encoded) < min(size / 2, 200_000), "it stops as soon as the limit is exceeded"
    assert max(encoded, default=0) <= 32 * 1024
    encoded.clear()
    short = ChatRequest(
        model="", messages=[{"role": "user", "content": "Where?"}], tools=(), sampling=Sampling()
    )
    asyncio.run(builder.build_prompt(short, "scope", 2048))
    assert sum(encoded) < 200, "a small prompt is tokenized once"


def test_slices_never_count_more_than_the_whole() -> None:
    tokenizer = Renderer(ModelFiles.from_path("starter")).tokenizer
    for text in (
        "a word " * 40_000,
        "\U0001f600" * 70_000,
        "ab" * 100_000,
        " " * 100_000,
        "aGVsbG8g0" * 20_000,
    ):
        whole = len(tokenizer.encode(text))
        assert tokenizer.count_beyond([text], whole) is None
        assert whole // 2 < (tokenizer.count_beyond([text], whole // 2) or 0) <= whole
