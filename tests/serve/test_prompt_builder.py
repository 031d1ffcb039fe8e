"""From an ask to a prompt: what is remembered between requests must never be another request's."""

from __future__ import annotations

import asyncio

import pytest

from openclaw_rl.render.model_folder import ModelFiles
from openclaw_rl.render.renderer import Renderer
from openclaw_rl.serve.chat_request import ChatRequest
from openclaw_rl.serve.prompt_builder import PromptBuilder
from openclaw_rl.types import Sampling

TOOL = {"type": "function", "function": {"name": "look", "description": "d", "parameters": {"type": "object"}}}


@pytest.mark.parametrize("first", [(), (TOOL,)])
def test_tools_whose_bytes_are_not_known_are_nobody_elses(first: tuple[dict[str, object], ...]) -> None:
    renderer = Renderer(ModelFiles.from_path("starter"))
    prompts = PromptBuilder(renderer, secret=b"k" * 16, is_ephemeral=lambda message: False)
    second = () if first else (TOOL,)

    async def ids(tools: tuple[dict[str, object], ...]) -> list[int]:
        ask = ChatRequest(model="", messages=[{"role": "user", "content": "Where?"}], tools=tools, sampling=Sampling())
        return list((await prompts.build_prompt(ask, "scope")).rendered.prompt_ids)

    for tools in (first, second, first):
        expected = renderer.render([{"role": "user", "content": "Where?"}], tools).prompt_ids.tolist()
        assert asyncio.run(ids(tools)) == expected
